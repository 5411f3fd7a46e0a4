"""Recording reference sets in the cells of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.check import Completed
from harness.cli.references import SEEDS, record, wanted
from harness.errors import InfrastructureError, NothingSelectedError


def entry(check, *, cell="verl-sim", built=True):
    outcome = SimpleNamespace(measurements={"built": built}) if check else None
    return SimpleNamespace(entry=SimpleNamespace(cell_id=cell, check=check), outcome=outcome)


def plan(device="sim"):
    return SimpleNamespace(cells=[SimpleNamespace(id="verl-sim", device=device)])


def result(*entries):
    return SimpleNamespace(entries=entries)


class Cell:
    """A cell whose recording program prints a path, or fails."""

    def __init__(self, code=0):
        self.code, self.arguments = code, []

    def enter(self, _environment, module, arguments):
        self.arguments.append((module, list(arguments)))
        return ["python", "-m", module, *arguments], {"PYTHONPATH": "/bundle"}

    def run(self, argv, _variables, _seconds):
        tail = "no device npu:0" if self.code else "Warning: noise\n/refs/grpo-0123456789ab.json\n"
        return Completed(argv=tuple(argv), returncode=self.code, tail=tail, seconds=1.0)


def test_each_answered_check_is_recorded_with_the_seeds_of_candidates(tmp_path):
    cell = Cell()
    recordings = wanted(plan(), result(entry("environment"), entry("loss"), entry("grpo"), entry("gspo")))

    paths = list(record(recordings, tmp_path / "refs", cell.enter, cell.run))

    assert paths == ["/refs/grpo-0123456789ab.json"] * 2
    module, arguments = cell.arguments[0]
    assert module == "harness.convergence.record"
    assert arguments[arguments.index("--seeds") + 1] == str(SEEDS)
    assert arguments.count("--twin") == 3
    assert arguments[arguments.index("--device") + 1] == "npu:0"


def test_a_cpu_cell_is_recorded_on_its_cpu():
    (recording,) = wanted(plan("cpu"), result(entry("environment"), entry("grpo")))

    assert recording.device == "cpu"


@pytest.mark.parametrize(
    "entries", [(), (entry("environment"), entry("loss")), (entry("environment", built=False), entry("grpo"))]
)
def test_without_an_answered_check_there_is_nothing_to_record(entries):
    with pytest.raises(NothingSelectedError, match="nothing to record"):
        wanted(plan(), result(*entries))


def test_a_recording_that_fails_says_where_and_why(tmp_path):
    cell = Cell(code=4)
    recordings = wanted(plan(), result(entry("environment"), entry("grpo")))

    with pytest.raises(InfrastructureError, match="grpo in verl-sim") as found:
        list(record(recordings, tmp_path, cell.enter, cell.run))
    assert "no device npu:0" in str(found.value)
