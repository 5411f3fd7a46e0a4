"""Which stack for which host: the newest one, how far it is proven, what is known against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from make_outcome import make_outcome

from harness.ledger.plan_record import CellFacts, CellFinding, PlanEntry
from harness.outcome import Evidence, Status, Tier
from harness.report.model.host_kinds import HostKind, Stage, find_host_kinds
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import CheckColumn, ReportInputs, ReportResult
from harness.report.model.report_model import build_model
from harness.report.model.short_versions import short_versions
from harness.report.publish.publish import render_all
from harness.verdict.verdict import ExpectedFailure, Standing, Verdict

CHECKS = (
    CheckColumn(name="resolve", tier=Tier.STATIC),
    CheckColumn(name="lint", tier=Tier.STATIC),
    CheckColumn(name="environment", tier=Tier.BUILD),
    CheckColumn(name="loss", tier=Tier.NUMERICS),
)
PASSES = {"resolve": "static", "lint": "static", "environment": "simulated", "loss": "hardware"}


def cell(name: str, verl: str, *, device: str = "npu", soc: str = "a2", cann: str = "8.5.0") -> CellFacts:
    return CellFacts(id=name, device=device, axes={"verl": verl, "soc": soc, "cann": cann})


def result(
    cell_id: str, check: str, evidence: str | None, *, failed: str = "", started: float = 0
) -> ReportResult:
    """A pass with this evidence, not run without evidence, or a failure: `known` or `new`."""
    tier = next(column.tier for column in CHECKS if column.name == check)
    status = Status.FAIL if failed else Status.PASS if evidence else Status.NOT_RUN
    expected = ExpectedFailure(state="fail", reason="needs 2.8.0.post2", source="guide") if failed else None
    ran = evidence and started
    outcome = make_outcome("k", check, evidence=Evidence(evidence), started=started) if ran else None
    return ReportResult(
        entry=PlanEntry(cell_id=cell_id, check=check, tier=tier, question=""),
        verdict=Verdict(
            cell_id=cell_id,
            check=check,
            status=status,
            standing=Standing.KNOWN if failed == "known" else Standing.AS_EXPECTED,
            reasons=("it fails",) if failed else (),
            evidence=Evidence(evidence) if evidence else None,
            expected=expected if failed == "known" else None,
            outcome=outcome,
        ),
    )


def kinds(cells: list[CellFacts], *results: ReportResult) -> tuple[HostKind, ...]:
    inputs = ReportInputs(generated=1e9, cells=tuple(cells), checks=CHECKS, results=results)
    return find_host_kinds(build_model(inputs).rows)


def test_the_newest_stack_of_each_host_and_simulated_devices_last() -> None:
    found = kinds(
        [
            cell("old", "0.9.0"),
            cell("commit", "796871d7"),
            cell("new", "0.10.0.dev0@" + "f" * 40),
            cell("sim", "0.11.0", device="sim"),
            cell("a3", "0.8.0", soc="a3", cann="8.10.0"),
            cell("elsewhere", "0.8.0", cann="8.3.RC1"),
        ]
    )
    assert [(kind.soc, kind.cann, kind.simulated) for kind in found] == [
        ("a3", "8.10.0", False),
        ("a2", "8.5.0", False),
        ("a2", "8.3.RC1", False),
        ("a2", "8.5.0", True),
    ]
    assert [kind.newest.row.cell.id for kind in found] == ["a3", "new", "elsewhere", "sim"]
    assert [kind.others for kind in found] == [0, 2, 0, 0]


def test_stages_are_never_mixed_and_not_run_is_no_proof() -> None:
    passes = [result("c", check, evidence) for check, evidence in PASSES.items() if check != "lint"]
    (kind,) = kinds([cell("c", "0.9.0")], *passes, result("c", "lint", None))
    proofs = {proof.stage: proof for proof in kind.newest.stages}
    assert (proofs[Stage.STATIC].mark, proofs[Stage.STATIC].look) == (Mark.INCONCLUSIVE, "partly")
    assert proofs[Stage.BUILT].mark is Mark.PASS
    assert proofs[Stage.SIMULATED].mark is Mark.NOT_RUN
    assert proofs[Stage.HARDWARE].mark is Mark.PASS
    # A stronger stage does not count without the weaker ones.
    assert kind.newest.proven is None
    (whole,) = kinds([cell("c", "0.9.0")], *passes, result("c", "lint", "static"))
    assert whole.newest.proven is Stage.HARDWARE


def test_a_check_that_did_not_run_is_due_on_the_device_of_the_cell() -> None:
    (npu,) = kinds([cell("c", "0.9.0")], result("c", "loss", None))
    (sim,) = kinds([cell("c", "0.9.0", device="sim")], result("c", "loss", None))
    assert [proof.stage for proof in npu.newest.stages if proof.open] == [Stage.HARDWARE]
    assert [proof.stage for proof in sim.newest.stages if proof.open] == [Stage.SIMULATED]


def test_the_age_is_that_of_the_passes() -> None:
    (kind,) = kinds(
        [cell("c", "0.9.0")],
        result("c", "resolve", "static", started=100.0),
        result("c", "lint", "static", started=300.0),
    )
    static = kind.newest.stages[0]
    assert (static.since, static.until) == (100.0, 300.0)


def test_what_is_known_against_the_newest_stack_and_the_newest_one_that_does_not_fail() -> None:
    found = CellFacts(
        id="new", device="npu", axes=cell("new", "0.9.0").axes, findings=(CellFinding(what="two dates", source="doc"),)
    )  # fmt: skip
    (kind,) = kinds(
        [found, cell("sound", "0.8.0"), cell("unknown", "0.8.5")],
        result("new", "resolve", "static", failed="known"),
        result("new", "lint", "static", failed="new"),
        result("sound", "resolve", "static"),
    )
    assert [(item.mark, item.check, item.text) for item in kind.newest.against] == [
        (Mark.FAIL, "lint", "it fails"),
        (Mark.KNOWN_FAIL, "resolve", "needs 2.8.0.post2"),
        (Mark.INCONCLUSIVE, "", "two dates"),
    ]
    # A stack that was never checked is not offered as sound.
    assert kind.sound
    assert kind.sound.row.cell.id == "sound"


def test_a_matrix_without_hosts_has_no_kinds() -> None:
    assert kinds([CellFacts(id="c", axes={"python": "3.11"})]) == ()


def test_short_commits_stay_different() -> None:
    first, second = "0.7.0@" + "ab" * 20, "0.7.0@" + "ab" * 5 + "cd" * 15
    short = short_versions([first, second, "0.9.1", "v2.2.0_core", "0.6.1@" + "d" * 40, "2.7.1@v7.2.RC1"])
    assert short[first] != short[second]
    assert short["0.6.1@" + "d" * 40] == "0.6.1@ddddddd"
    assert set(short) == {first, second, "0.6.1@" + "d" * 40}
    # Nor is a short form another version of the matrix.
    assert short_versions(["1@" + "e" * 40, "1@eeeeeee"]).get("1@" + "e" * 40) != "1@eeeeeee"


def test_nothing_says_of_a_cell_without_a_device_that_it_is_simulated() -> None:
    stated, unstated = kinds([cell("a", "0.9.1", device=""), cell("b", "0.9.1", device="sim", soc="sim")])
    assert (stated.soc, stated.simulated) == ("a2", False)
    assert unstated.simulated


def test_cells_with_the_same_title_are_told_apart_by_their_ids() -> None:
    cells = [replace(cell(name, "main"), title=title) for name, title in (("a", "x"), ("b", "x"), ("c", "y"))]
    blank = replace(cell("d", "main"), title=" ")
    model = build_model(ReportInputs(generated=1e9, cells=(*cells, blank), checks=CHECKS))
    assert model.names == {"a": "x (a)", "b": "x (b)", "c": "y", "d": "d"}


def test_many_kinds_of_hosts_are_folded_and_those_not_listed_are_counted(tmp_path: Path) -> None:
    cells = [cell(f"c{place}", "0.9.1", cann=f"8.{place}.0") for place in range(70)]
    render_all(build_model(ReportInputs(generated=1e9, cells=tuple(cells), checks=CHECKS)), tmp_path / "r")
    page = (tmp_path / "r/index.html").read_text("utf-8")
    shown, folded = page.split("48 more hosts")
    assert shown.count("data-host=") == 12
    assert folded.count("data-host=") == 48
    assert "10 more kinds of hosts are not listed" in folded
