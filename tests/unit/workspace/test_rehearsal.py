"""A rehearsal is never hardware, and each stop of it is explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import evidence
from harness.builds.cell.environment_judge import _device_reasons
from harness.cell_program.built_environment import CellDevice, ProbedDevice
from harness.digest import digest_json
from harness.errors import InputError
from harness.evidence import DeviceFacts, Runtime, evidence_of
from harness.ledger.store import Ledger
from harness.matrix.cells.pins import normal_package, permits, required_package
from harness.matrix.model.cell import Cell
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Outcome, State, Tier
from harness.package import shipped_file
from harness.plan.keys.facets import FacetInputs, _device, _platform
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.evidence_bound import bounded_outcome
from harness.plan.tasks.task import Task
from harness.sources.git.mirrors import COMMIT_REMEDY
from harness.workspace.execution.rehearsal import STOPS, host_groups, read_report


def _inputs(*, rehearsed: bool) -> FacetInputs:
    return FacetInputs(
        host_python="3.11",
        host_arch="x86_64",
        patches=lambda _upstream, _version: [],
        recipes={},
        axes={},
        simulator="abc",
        rehearsed=rehearsed,
    )


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return list(load_matrix(shipped_file("matrix.yaml")).cells("rows").cells)


def test_a_rehearsed_cell_has_other_facets_and_so_other_keys(cells: list[Cell]) -> None:
    real, rehearsed = (_device(cells[0], _inputs(rehearsed=rehearsed)) for rehearsed in (False, True))
    assert "rehearsed" not in real
    assert "simulator" not in real
    assert rehearsed == {**real, "rehearsed": True, "simulator": "abc"}
    assert _platform(cells[0], _inputs(rehearsed=False))["arch"] == "aarch64"
    assert _platform(cells[0], _inputs(rehearsed=True))["arch"] == "x86_64"


def test_no_outcome_of_a_rehearsal_can_have_hardware_evidence(cells: list[Cell]) -> None:
    facets = {"device": _device(cells[0], _inputs(rehearsed=True))}
    for tier in Tier:
        assert evidence.strongest_evidence(tier, facets) is not Evidence.HARDWARE
    # The same cell on a real host can.
    real = {"device": _device(cells[0], _inputs(rehearsed=False))}
    assert evidence.strongest_evidence(Tier.NUMERICS, real) is Evidence.HARDWARE


def test_the_sentinel_decides_also_without_the_setting() -> None:
    """Someone runs the cell on the stand-in as a real one: it is simulated, and the environment fails."""
    facts = DeviceFacts(device="npu:0", kind="npu", runtime=Runtime.SIMULATED, count=8, soc="Ascend910B3")
    assert evidence_of(facts) is Evidence.SIMULATED
    probed = ProbedDevice(
        kind="npu", count=8, sum_of_ones=4.0, runtime=Runtime.SIMULATED, simulated=True, cann="8.5.0"
    )
    requested = CellDevice(kind="npu", cann="8.5.0")
    assert _device_reasons(requested, probed) == ["The device is simulated; the cell needs a real one."]
    rehearsed = CellDevice(kind="npu", cann="8.5.0", rehearsed=True)
    assert _device_reasons(rehearsed, probed) == []


def test_a_real_device_is_no_rehearsal() -> None:
    probed = ProbedDevice(kind="npu", count=8, sum_of_ones=4.0, runtime=Runtime.CANN, cann="8.5.0")
    rehearsed = CellDevice(kind="npu", cann="8.5.0", rehearsed=True)
    assert _device_reasons(rehearsed, probed) == ["The device is real; the cell needs a simulated one."]


def test_a_rehearsed_cell_keeps_the_versions_that_it_states(cells: list[Cell]) -> None:
    """It gets the package replacements of a simulated cell, but none of a version of its own."""
    matrix = load_matrix(shipped_file("matrix.yaml"))
    changed = 0
    for cell in cells:
        rehearsed = matrix.rehearsed(cell)
        assert (rehearsed.id, rehearsed.axes) == (cell.id, cell.axes)
        assert set(cell.pins) <= set(rehearsed.pins)
        changed += rehearsed.overrides != cell.overrides
        for pin in (*rehearsed.pins, *rehearsed.overrides):
            stated = [
                matrix.axes[name].parse(value)
                for name, value in cell.axes.items()
                if normal_package(matrix.axes[name].package or "-") == required_package(pin.requirement)
            ]
            own = pin in cell.pins or pin in cell.overrides
            assert own or all(permits(pin.requirement, version) for version in stated)
    assert changed > 5


def test_what_a_rehearsal_measured_is_never_shown_as_hardware(cells: list[Cell], tmp_path: Path) -> None:
    """Somebody edits an outcome of a rehearsal to say hardware, and merges it: it is bounded by its task."""
    facets = {"device": _device(cells[0], _inputs(rehearsed=True))}
    task = Task(
        key="a" * 64,
        check=next(check for check in all_checks() if check.name == "loss"),
        facets=facets,
        facet_digests={"device": digest_json(facets["device"])},
        code_digest="",
    )
    forged = Outcome(
        key=task.key,
        check="loss",
        tier=Tier.NUMERICS,
        state=State.COMPLETED,
        evidence=Evidence.HARDWARE,
        facets=task.facet_digests,
    )
    with Ledger.open(tmp_path) as ledger:
        ledger.record(forged)
        (stored,) = ledger.history(limit=-1)
    assert stored.evidence is Evidence.HARDWARE
    assert bounded_outcome(task, stored).outcome.evidence is not Evidence.HARDWARE


def test_every_row_of_the_shipped_matrix_has_a_stand_in(cells: list[Cell]) -> None:
    groups = host_groups(cells)
    assert sorted(one for group in groups for one in group.ids) == sorted(cell.id for cell in cells)
    assert len({group.name for group in groups}) == len(groups)
    assert {group.host.shape.soc for group in groups} == {"a2", "a3"}


def test_an_unknown_soc_has_none(cells: list[Cell]) -> None:
    import dataclasses

    strange = dataclasses.replace(cells[0], axes={**cells[0].axes, "soc": "a9"})
    with pytest.raises(InputError, match="no stand-in for a host with a9"):
        host_groups([strange])


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (
            {
                "check": "resolve",
                "status": "fail",
                "reasons": ["torch==2.7.1+cpu is not available from any package index that was searched"],
            },
            "index",
        ),
        ({"check": "resolve", "status": "fail", "reasons": ["x 1 has no file for this platform"]}, "index"),
        ({"check": "resolve", "status": "fail", "reasons": ["a requires b<2, but b 2 is pinned"]}, "other"),
        ({"check": "lint", "status": "fail", "expected": "known", "reasons": ["x"]}, "known"),
        (
            {
                "check": "environment",
                "status": "not-run",
                "reasons": ["vllm-ascend: what has to be compiled ..."],
                "measurements": {"lacks": {"kind": "engine"}},
            },
            "compiler",
        ),
        (
            {
                "check": "environment",
                "status": "not-run",
                "reasons": ["megatron-core: what has to be compiled ..."],
                "measurements": {"lacks": {"kind": "engine"}},
            },
            "source",
        ),
        (
            {"check": "environment", "status": "not-run", "measurements": {"lacks": {"kind": "commits"}}},
            "network",
        ),
        (
            {
                "check": "resolve",
                "status": "not-run",
                "reasons": ["Not decided: https://i did not respond and may have the missing packages."],
                "measurements": {"unreachable": ["https://i"]},
            },
            "network",
        ),
        (
            {"check": "patches", "status": "not-run", "reasons": ["x"], "remedies": [COMMIT_REMEDY]},
            "network",
        ),
        ({"check": "twin", "status": "not-run", "reasons": ["not in profile rows: long"]}, "left out"),
        (
            {"check": "loss", "status": "fail", "expected": "unexpected", "reasons": ["something new"]},
            "other",
        ),
        (
            {"check": "environment", "status": "not-run", "measurements": {"lacks": {"kind": "python"}}},
            "network",
        ),
        ({"check": "loss", "status": "error", "reasons": []}, "other"),
    ],
)
def test_each_stop_is_explained(result: dict[str, object], kind: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    passed = {"check": "patches", "status": "pass", "evidence": "static"}
    blocked = {"check": "actor", "status": "blocked"}
    report.write_text(json.dumps({"cells": [{"id": "a", "results": [passed, result, blocked]}]}))
    (cell,) = read_report(report, ["a"])
    assert [stop.kind for stop in cell.stops] == [kind]
    assert kind in STOPS
    assert (dict(cell.passed), cell.following) == ({"static": 1}, 1)


def test_a_cell_without_a_report_is_not_explained(tmp_path: Path) -> None:
    (cell,) = read_report(tmp_path / "report.json", ["a"])
    assert [stop.kind for stop in cell.stops] == ["other"]
    assert STOPS["other"][1]
