"""The model of the report: marks, completeness, changes, attention, common conditions of failing cells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import NOW, changed, result, sample_inputs

from harness.ledger.plan_record import CellFacts
from harness.outcome import Evidence, Status, Tier
from harness.report.formats.badge import badges
from harness.report.model.failure_patterns import find_patterns
from harness.report.model.marks import EVIDENCE, STYLES, Mark, mark_of
from harness.report.model.report_inputs import CheckColumn, ReportInputs
from harness.report.model.report_model import build_model
from harness.report.model.streak import EarlierVerdict, HistoryEntry
from harness.report.model.visible_text import clip, file_name, visible
from harness.verdict.verdict import Standing


def one(status: Status, **more: object) -> ReportInputs:
    return ReportInputs(
        generated=NOW,
        cells=(CellFacts(id="cell"),),
        planned={"cell": ("loss",)},
        results=(result("cell", "loss", status, **more),),
    )


def test_an_expected_failure_needs_no_attention_whatever_its_status() -> None:
    known = build_model(one(Status.INCONCLUSIVE, standing=Standing.KNOWN))
    assert known.attention == ()
    assert len(build_model(one(Status.INCONCLUSIVE, standing=Standing.UNEXPECTED)).attention) == 1


def test_report_model_is_pure() -> None:
    assert build_model(sample_inputs()) == build_model(sample_inputs())


def test_every_mark_and_kind_of_evidence_looks_different() -> None:
    for field in ("label", "word", "code", "glyph", "plain", "meaning"):
        assert len({getattr(style, field) for style in STYLES.values()}) == len(Mark)
    for field in ("label", "tag", "code", "meaning"):
        assert len({getattr(style, field) for style in EVIDENCE.values()}) == len(Evidence)


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("standing", list(Standing))
def test_only_a_pass_is_marked_as_a_pass(status: Status, standing: Standing) -> None:
    mark = mark_of(status, standing)
    assert (mark is Mark.PASS) == (status is Status.PASS and standing is not Standing.UNEXPECTED_PASS)
    assert (mark is Mark.KNOWN_FAIL) == (status is Status.FAIL and standing is Standing.KNOWN)


def test_a_planned_check_without_a_result_makes_the_report_incomplete() -> None:
    inputs = ReportInputs(
        generated=NOW,
        cells=(CellFacts(id="cell"),),
        planned={"cell": ("loss", "grpo")},
        checks=(
            CheckColumn(name="loss", tier=Tier.NUMERICS),
            CheckColumn(name="grpo", tier=Tier.CONVERGENCE),
        ),
        results=(result("cell", "loss", Status.PASS),),
    )
    model = build_model(inputs)
    assert not model.complete
    assert badges(model)["status"].text == "incomplete"
    assert model.missing == (("cell", "grpo"),)
    assert model.rows[0].results["grpo"].mark is Mark.NOT_RUN
    assert model.planned == 2
    assert "1 planned without an outcome" in model.headline


def test_an_infrastructure_error_is_not_complete() -> None:
    assert not build_model(one(Status.ERROR)).complete
    assert build_model(one(Status.FAIL)).complete


def test_nothing_planned_proves_nothing() -> None:
    model = build_model(ReportInputs(generated=NOW, cells=()))
    assert model.headline == "Nothing was planned, so nothing was proved."


def test_simulated_passes_are_never_counted_as_hardware() -> None:
    model = build_model(one(Status.PASS, evidence=Evidence.SIMULATED))
    assert model.passed[Evidence.HARDWARE] == 0
    assert model.passed[Evidence.SIMULATED] == 1
    assert "none on hardware" in model.proof


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (Status.PASS, Status.FAIL, "broken"),
        (Status.FAIL, Status.PASS, "fixed"),
        (Status.PASS, Status.NOT_RUN, "lost"),
        (Status.FAIL, Status.ERROR, "lost"),
        (Status.PASS, Status.PASS, ""),
        (Status.NOT_RUN, Status.FAIL, ""),
        (Status.NOT_RUN, Status.NOT_RUN, ""),
    ],
)
def test_changes_since_the_verdict_before(before: Status, now: Status, change: str) -> None:
    history = (HistoryEntry(time=NOW - 100, run_id="earlier", verdict=EarlierVerdict(status=before)),)
    model = build_model(one(now, history=history))
    assert model.rows[0].results["loss"].change == change


def test_results_of_unknown_cells_are_listed_and_unknown_checks_get_a_column() -> None:
    inputs = one(Status.PASS)
    stranger = result("elsewhere", "loss", Status.PASS)
    unknown = result("cell", "of-tomorrow", Status.PASS, tier=Tier.STATIC)
    model = build_model(replace(inputs, results=(*inputs.results, stranger, unknown)))
    assert model.strangers == (stranger,)
    assert [check.name for check in model.checks] == ["of-tomorrow", "loss"]


def test_clock_skew_and_missing_evidence_are_noted() -> None:
    model = build_model(one(Status.PASS))
    (future,) = one(Status.PASS, started=NOW + 9999).results
    assert "clocks" in model.notes_on(future)[0]
    assert "evidence" in model.notes_on(changed(future, evidence=None))[-1]
    assert model.notes_on(model.rows[0].results["loss"]) == ()


def test_cells_that_fail_for_one_reason_are_one_item_of_attention() -> None:
    inputs = ReportInputs(
        generated=NOW,
        cells=(CellFacts(id="a"), CellFacts(id="b"), CellFacts(id="c")),
        results=tuple(
            result(cell, "loss", Status.FAIL, reasons=(reason,))
            for cell, reason in (("a", "same"), ("b", "same"), ("c", "other"))
        ),
    )
    assert [item.cells for item in build_model(inputs).attention] == [("a", "b"), ("c",)]


def test_an_error_is_no_evidence_wherever_it_is_shown() -> None:
    (item,) = build_model(one(Status.ERROR, evidence=Evidence.HARDWARE)).attention
    assert item.evidence is None


def test_patterns_name_the_axis_that_splits_failing_from_passing() -> None:
    rows = [
        ({"torch": "2.7", "cann": "8.2"}, {"loss": Mark.FAIL}),
        ({"torch": "2.7", "cann": "8.3"}, {"loss": Mark.KNOWN_FAIL}),
        ({"torch": "2.8", "cann": "8.3"}, {"loss": Mark.PASS}),
        ({"torch": "2.7", "cann": "8.3"}, {"loss": Mark.NOT_RUN}),
    ]
    (pattern,) = find_patterns(rows)
    assert (pattern.condition, pattern.failing, pattern.passing) == ("torch 2.7", 2, 1)
    assert find_patterns(rows[:2]) == ()


def test_patterns_name_ranges_in_the_order_of_versions() -> None:
    def marks(fails: set[str]) -> list[str]:
        versions = ("2.9.0", "2.10.0rc1", "2.10.0", "2.10.0.post2", "2.11.0")
        rows = [
            ({"torch_npu": version}, {"loss": Mark.FAIL if version in fails else Mark.PASS})
            for version in versions
        ]
        return [pattern.condition for pattern in find_patterns(rows)]

    assert marks({"2.10.0.post2", "2.11.0"}) == ["torch_npu >= 2.10.0.post2"]
    assert marks({"2.9.0", "2.10.0rc1"}) == ["torch_npu <= 2.10.0rc1"]
    assert marks({"2.9.0", "2.11.0"}) == []


@given(st.text(max_size=200))
def test_file_names_are_safe(identity: str) -> None:
    name = file_name(identity)
    assert name
    assert not name.startswith(".")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert len(name) <= 120


@given(st.lists(st.text(max_size=30), unique=True, max_size=20))
def test_file_names_are_injective(identities: list[str]) -> None:
    assert len({file_name(identity) for identity in identities}) == len(identities)


@given(st.text())
def test_no_invisible_character_remains(text: str) -> None:
    shown = visible(text)
    assert not any(character in shown for character in "\u202e\u2066\u200b\ufeff\x00\x1b\r\u2028")
    shown.encode()


def test_clipping_says_how_much_is_missing() -> None:
    assert clip("a" * 10, 10) == "a" * 10
    assert clip("a" * 12, 10) == "a" * 12  # a note about two letters is longer than they are
    assert clip("a" * 1_000_000, 10) == "a" * 10 + "… (999,990 more characters)"


@pytest.mark.parametrize(("title", "name"), [("", "a-1"), ("   \t", "a-1"), (" GSPO ", "GSPO")])
def test_a_cell_is_called_by_its_title_or_its_id(title: str, name: str) -> None:
    assert CellFacts(id="a-1", title=title).name == name
