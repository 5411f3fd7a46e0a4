"""What `inspect` says of a resolution: of a list that is installed, and of one that pip is to install."""

from typing import Any

import pytest

from harness.compat.inspection.stated_packages import Inventory, SourceKind, StatedPackage
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Judgement, Status
from harness.package import shipped_file
from harness.sources.packages.resolve_measurements import HiddenRequirement, ResolveMeasured, ResolveProblem
from harness.sources.packages.uv_errors import UvDependency, UvFailureKind
from harness.workspace.inspection.inspection_report import Problem
from harness.workspace.inspection.stack_checks import CheckedEntry, combination
from harness.workspace.inspection.version_problems import check_problems

LIST = {"vllm-ascend": "0.18.0", "triton-ascend": "3.2.1"}


class _Check:
    """Reads what it was given."""

    def __init__(self, measured: ResolveMeasured) -> None:
        self.measured = measured

    def read(self, _outcome: object) -> ResolveMeasured:
        return self.measured


class _Task:
    def __init__(self, measured: ResolveMeasured) -> None:
        self.check = _Check(measured)


def problems(
    measured: ResolveMeasured,
    kind: SourceKind,
    known: Any = (),
    packages: dict[str, str] = LIST,
) -> list[Problem]:
    matrix = load_matrix(shipped_file("matrix.yaml"))
    entry = CheckedEntry(
        check="resolve",
        judgement=Judgement(status=Status.FAIL),
        task=_Task(measured),  # type: ignore[arg-type]
        outcome=object(),  # type: ignore[arg-type]
    )
    stated = {name: StatedPackage(name=name, version=version) for name, version in packages.items()}
    inventory = Inventory(kind=kind, where="a list", packages=stated)
    cell = combination(matrix, {"vllm_ascend": "0.18.0"}, [], "a list")
    return list(check_problems([entry], inventory, matrix, cell, known))


def conflict(needed: str, package: str = "vllm-ascend", needs: str = "triton-ascend") -> ResolveMeasured:
    required = UvDependency(package=package, versions="==0.18.0", needs=needs, needed_versions=needed)
    problem = ResolveProblem(
        kind=UvFailureKind.CONFLICT,
        text="No version fits.",
        remedy="",
        contested=(needs,),
        dependencies=(required,),
    )
    return ResolveMeasured(resolved=False, problems=(problem,))


@pytest.mark.parametrize(
    ("measured", "fails"),
    [
        (conflict("==3.2.0"), False),
        (conflict("==3.1.0"), True),
        (conflict(">=3.2.2"), True),
        (conflict("==1.0", needs="xgrammar"), False),
        (conflict("==1.0", package="torchvision"), False),
        (conflict("3.1 or 3.3"), True),
    ],
)
def test_a_conflict_of_an_installed_list_fails_if_a_stated_release_is_refused(measured, fails) -> None:
    (installed,) = problems(measured, SourceKind.FREEZE)
    assert installed.fails is fails
    assert ("installed over it" in installed.text) is not fails
    (asked,) = problems(measured, SourceKind.REQUIREMENTS)
    assert asked.fails
    assert asked.text == "No version fits."


@pytest.mark.parametrize(("needed", "fails"), [(">=1.25,<2.4", False), ("==2.3.0", True)])
def test_of_packages_that_are_no_axis_only_requirements_of_one_release_count(
    needed: str, fails: bool
) -> None:
    measured = conflict(needed, package="mistral-common", needs="numpy")
    packages = {"mistral-common": "0.18.0", "numpy": "2.4.6"}
    (installed,) = problems(measured, SourceKind.FREEZE, packages=packages)
    assert installed.fails is fails
    (asked,) = problems(measured, SourceKind.REQUIREMENTS, packages=packages)
    assert asked.fails


def test_a_conflict_that_was_told_before_is_not_told_again() -> None:
    known = [("vllm-ascend", "triton-ascend")]
    assert problems(conflict("==3.1.0"), SourceKind.FREEZE, known) == []
    assert problems(conflict("==3.1.0"), SourceKind.REQUIREMENTS, known) != []


@pytest.mark.parametrize("undecided", [False, True])
def test_what_no_index_has_fails_only_what_is_to_be_installed(undecided: bool) -> None:
    problem = ResolveProblem(
        kind=UvFailureKind.MISSING_VERSION,
        subject="torch-npu==2.7.1.dev20250724",
        text="torch-npu==2.7.1.dev20250724 is not available.",
        remedy="add that index",
        undecided=undecided,
    )
    measured = ResolveMeasured(resolved=False, problems=(problem,))
    assert not any(one.fails for one in problems(measured, SourceKind.FREEZE))
    (asked,) = problems(measured, SourceKind.REQUIREMENTS)
    assert asked.fails
    assert asked.remedy == "add that index"


def test_requirements_that_the_matrix_replaces_are_refused_by_pip() -> None:
    hidden = HiddenRequirement(
        of="vllm",
        version="0.8.5",
        requirement="torch==2.6.0",
        locked="2.5.1",
        reason="no kernels.",
        source="s",
    )
    measured = ResolveMeasured(resolved=True, hidden=(hidden,), indexes=("https://vendor.example/pypi",))
    assert problems(measured, SourceKind.FREEZE) == []
    first, second = problems(measured, SourceKind.REQUIREMENTS)
    assert first.text == (
        "pip refuses to install these together: vllm 0.8.5 requires torch==2.6.0, and the other packages 2.5.1"
    )
    assert first.fails
    assert second.fails
    assert second.remedy == "pip install --extra-index-url https://vendor.example/pypi"
