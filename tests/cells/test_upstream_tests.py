"""Suites of upstreams inside a cell: a wrong operator turns the right tests red, a second run runs nothing.

The suite is a small repository made here, so these tests need no mirrors. With mirrors
(`NPU_MATRIX_MIRRORS`), one small suite of each upstream is run as well; without, that is skipped and said.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, BuiltCell, Faults

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.cell_program.built_environment import environment_location
from harness.matrix.model.suite_facet import SuiteFacet, suite_facet
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Outcome, State, Status
from harness.package import PACKAGE_ROOT
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.serialisation import to_json
from harness.sources.git.mirrors import MIRRORS
from harness.upstream_tests.suite_check import SUITE_CHECKS
from harness.upstream_tests.suite_measurements import SUITES_FORMAT, MeasuredSuite
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]

TESTS = """
import unittest

import torch
import torch_npu


class TestOperators(unittest.TestCase):
    def test_matmul(self):
        a = torch.arange(12.0).reshape(3, 4)
        torch.testing.assert_close(torch.mm(a.npu(), a.T.npu()).cpu(), torch.mm(a, a.T))

    def test_add(self):
        a = torch.ones(3)
        torch.testing.assert_close((a.npu() + a.npu()).cpu(), a + a)
"""
ADDRESS = "https://example.org/Someone/tests"
#: Small files, one of each suite.
SMALL = {
    "torch-npu-npu": "test/npu/test_device.py",
    "torch-npu-nn": "test/nn/test_nonlinear_activations.py",
    "torch-npu-distributed": "test/distributed/test_allreduce.py",
    "op-plugin-base": "test/test_base_ops/test_abs.py",
    "op-plugin-custom": "test/test_custom_ops/test_npu_rms_norm.py",
    "verl-cpu": "tests/utils/test_torch_functional_on_cpu.py",
    "vllm-ascend-ut": "tests/ut/test_envs.py",
}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mirrors" / "tests"
    (folder / "suite").mkdir(parents=True)
    (folder / "suite" / "test_operators.py").write_text(TESTS)
    git(folder, "init", "-q")
    git(folder, "remote", "add", "origin", ADDRESS)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "tests")
    git(folder, "tag", "v2")
    monkeypatch.setenv(MIRRORS, str(folder.parent))
    return folder


def shipped(name: str, cell: BuiltCell) -> SuiteFacet:
    matrix = load_matrix(REPOSITORY / "matrix.yaml")
    suite = matrix.suites[name]
    return suite_facet(suite, cell.axes[suite.upstream], matrix.axes)


def own_suite(cell: BuiltCell) -> SuiteFacet:
    return replace(
        shipped("torch-npu-npu", cell),
        name="own",
        repositories=(ADDRESS,),
        revision=("v2",),
        tree=("suite",),
        paths=("suite",),
        cwd="",
        disabled="",
    )


def run_suite(cell: BuiltCell, folder: Path, suite: SuiteFacet, faults: Faults = ()) -> Outcome:
    """The outcome of the check with this suite alone; the cache of results is private to the test."""
    folder.mkdir(exist_ok=True)
    location = environment_location(cell.environment)

    def enter(
        _outcome: Outcome, module: str, args: Any, *, on_cpu: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        if on_cpu:
            return cell.command(module, *args, on_cpu=True)
        bundle = make_bundle(PACKAGE_ROOT, cell.settings.cache)
        return cell_command(location, bundle, module, args, faults)

    check = next(one for one in SUITE_CHECKS if one.name.endswith("-cpu") == (suite.device == "cpu"))
    task = cell.tasks["loss"]
    task = replace(task, check=check, facets={**task.facets, "suites": [to_json(suite)]})
    site = JobSite(root=REPOSITORY, state=folder, cache=folder / "cache", environ=os.environ, cell=enter)
    return execute(Job(task=task, inputs={"environment": cell.environment}), site)


def measured(outcome: Outcome) -> MeasuredSuite:
    assert outcome.state is State.COMPLETED, outcome.failure
    return SUITES_FORMAT.read(outcome.measurements).suites[0]


def test_a_wrong_operator_turns_the_right_test_red(cell: BuiltCell, mirror: Path, tmp_path: Path) -> None:
    clean = run_suite(cell, tmp_path / "clean", own_suite(cell))
    assert clean.evidence is Evidence.SIMULATED
    assert judge_outcome(SUITE_CHECKS[0], clean).status is Status.PASS
    again = run_suite(cell, tmp_path / "clean", own_suite(cell))
    assert [file.reused for file in measured(again).files] == [True]

    wrong = run_suite(cell, tmp_path / "wrong", own_suite(cell), faults=[{"op": "mm", "kind": "sign"}])
    judgement = judge_outcome(SUITE_CHECKS[0], wrong)
    assert judgement.status is Status.FAIL
    failed = [case for case in judgement.cases if case.failed]
    assert [case.id for case in failed] == ["suite/test_operators.py::TestOperators::test_matmul"]
    assert failed[0].kind == "wrong"


def test_without_a_mirror_a_suite_is_not_run(
    cell: BuiltCell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MIRRORS, str(tmp_path))
    outcome = run_suite(cell, tmp_path / "none", own_suite(cell))
    judgement = judge_outcome(SUITE_CHECKS[0], outcome)
    assert judgement.status is Status.NOT_RUN
    assert "no mirror of https://example.org/Someone/tests has the tests" in judgement.reasons[0]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_part_of_each_suite_runs(cell: BuiltCell, name: str, tmp_path: Path) -> None:
    if not os.environ.get(MIRRORS):
        pytest.skip(f"not run: {MIRRORS} names no clones of the upstreams")
    try:
        suite = replace(shipped(name, cell), paths=(SMALL[name],))
    except KeyError:
        pytest.skip("not run: the cell does not have the upstream")
    found = measured(run_suite(cell, tmp_path / "run", suite))
    if found.not_run:
        pytest.skip(f"not run: {found.not_run}")
    assert sum(len(file.tests) for file in found.files) > 0
    assert not [file.uncollected for file in found.files if file.uncollected]
