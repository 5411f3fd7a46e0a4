"""Similar failures, and the condition that separates failing from passing cells."""

from __future__ import annotations

from report_samples import result, sample_inputs

from harness.ledger.plan_record import CellFacts
from harness.outcome import Status, Tier
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import build_model
from harness.report.model.similar_failures import MAX_ALIKE, SimilarFailures


def matrix(versions: dict[str, tuple[str, bool]]) -> ReportInputs:
    """Cells by torch_npu version; the check `probe` passes on those that are good."""
    return ReportInputs(
        generated=1.0,
        cells=tuple(
            CellFacts(id=cell, axes={"torch_npu": version, "verl": "0.9.1"})
            for cell, (version, _good) in versions.items()
        ),
        results=tuple(
            result(
                cell,
                "probe",
                Status.PASS if good else Status.FAIL,
                tier=Tier.STATIC,
                reasons=() if good else ("the operator is gone",),
            )
            for cell, (_version, good) in versions.items()
        ),
    )


def test_a_failure_names_what_all_failing_cells_share() -> None:
    model = build_model(
        matrix(
            {
                "a": ("2.7.1", True),
                "b": ("2.9.0", True),
                "c": ("2.10.0.post2", False),
                "d": ("2.10.0.post4", False),
            }
        )
    )
    row = model.rows[2]
    found = SimilarFailures(model).siblings_of(row, row.results["probe"])
    assert found
    assert found.statement == (
        "probe fails on all 2 cells with torch_npu >= 2.10.0.post2 that ran it, and passes on the other 2."
    )
    assert [other.cell.id for other in found.alike] == ["d"]
    assert found.nearest
    assert found.nearest.cell.id == "a"
    assert [(step.axis, step.here, step.there) for step in found.steps] == [
        ("torch_npu", "2.10.0.post2", "2.7.1")
    ]


def test_a_pass_and_a_single_failure_have_no_similar_failures() -> None:
    model = build_model(matrix({"a": ("2.7.1", True), "b": ("2.9.0", True)}))
    assert SimilarFailures(model).siblings_of(model.rows[0], model.rows[0].results["probe"]) is None
    alone = build_model(matrix({"a": ("2.7.1", False)}))
    assert SimilarFailures(alone).siblings_of(alone.rows[0], alone.rows[0].results["probe"]) is None


def test_only_some_of_many_similar_failures_are_named() -> None:
    model = build_model(matrix({f"c{n}": ("2.9.0", False) for n in range(MAX_ALIKE + 5)}))
    found = SimilarFailures(model).siblings_of(model.rows[0], model.rows[0].results["probe"])
    assert found
    assert (len(found.alike), found.others) == (MAX_ALIKE, 4)


def test_expected_failures_have_similar_failures_too() -> None:
    model = build_model(sample_inputs())
    row = model.row("gspo-qwen25-3b")
    assert row
    found = SimilarFailures(model).siblings_of(row, row.results["resolve"])
    assert found
    assert [other.cell.id for other in found.alike] == ["gspo-qwen3-30b-a3b"]
    assert "cann 8.2.RC2" in found.statement
