"""`npu-matrix inspect`: what it prints and its exit codes. The static checks run elsewhere."""

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli.app import app
from harness.compat.checks import CHECKS
from harness.errors import InputError
from harness.outcome import Evidence, Judgement, Outcome, State, Status
from harness.plan.tasks.task import Task
from harness.sources.packages.release_fetcher import ReleaseFetcher, Sources
from harness.workspace.inspection import inspect_source, related_packages, smallest_change
from harness.workspace.inspection.stack_checks import CheckedEntry

CONSTRAINTS = next(check for check in CHECKS if check.name == "constraints")


def only_constraints(settings, cells, checks=()):
    """The check `constraints`, which needs no index; the other checks pass."""
    from harness.plan.keys.facets import facet_values
    from harness.workspace.planning.open_plan import facet_inputs, open_matrix

    matrix = open_matrix(settings)
    found = {}
    for cell in cells:
        facets = facet_values(cell, ("constraints",), facet_inputs(settings, matrix))
        task = Task(key="k", check=CONSTRAINTS, facets=facets, facet_digests={}, code_digest="")
        outcome = Outcome(
            key="k",
            check="constraints",
            tier=CONSTRAINTS.tier,
            facets={},
            state=State.COMPLETED,
            evidence=Evidence.STATIC,
            measurements=facets["constraints"],
        )
        judgement = CONSTRAINTS.judge(CONSTRAINTS.read(outcome), {})
        found[cell.id] = (
            CheckedEntry(check="constraints", judgement=judgement, task=task, outcome=outcome),
            CheckedEntry(check="api", judgement=Judgement(status=Status.PASS)),
        )
    return found


@pytest.fixture(autouse=True)
def without_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_source, "check_combinations", only_constraints)
    monkeypatch.setattr(smallest_change, "check_combinations", only_constraints)
    monkeypatch.setattr(related_packages, "ask_index", lambda packages, fetcher: {})


def inspect(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", "-", *arguments], input=text, standalone_mode=False)


def test_versions_that_belong_together() -> None:
    result = inspect(
        "torch==2.7.1+cpu\ntorch-npu==2.7.1\nvllm==0.11.0\nvllm-ascend==0.11.0rc1\n", "--with", "python=3.11"
    )
    assert result.return_value == 0, result.output
    assert "compatible, as far as it was looked at" in result.output
    assert "not looked at: cann: not known" in result.output


def test_packages_that_are_no_axis_are_checked_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def record(settings, cells, checks=()):
        checked.extend(pin.requirement for cell in cells for pin in cell.pins)
        return only_constraints(settings, cells)

    monkeypatch.setattr(inspect_source, "check_combinations", record)
    inspect("transformers==5.0.0\npeft==0.17.0\nrequests==2.32.0\n", "--with", "python=3.11")
    assert checked == ["peft==0.17.0"]


def test_the_smallest_change_was_tried() -> None:
    result = inspect("torch==2.8.0\ntorch-npu==2.7.1\n", "--with", "cann=8.3.RC1", "--json")
    assert result.return_value == 1, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == {"name": "npu-matrix.inspection", "version": 1}
    assert found["compatible"] is False
    problem = next(one for one in found["problems"] if one["check"] == "constraints")
    assert (problem["stage"], problem["fails"]) == ("import", True)
    assert len(problem["change"]["moves"]) == 1
    assert problem["change"]["passed"] == ["constraints", "api"]


def test_a_list_without_packages_of_the_matrix() -> None:
    result = inspect("requests==2.32.0\n")
    assert "none of the packages" in str(result.exception)


def test_a_file_that_is_no_list() -> None:
    result = inspect("\n")
    assert "no package with a version was found" in str(result.exception)


def test_without_an_index_nothing_is_green(monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(settings, cells, checks=()):
        reason = "Not decided: the index did not respond."
        entry = CheckedEntry(check="resolve", judgement=Judgement(status=Status.NOT_RUN, reasons=(reason,)))
        return {cell.id: (entry,) for cell in cells}

    monkeypatch.setattr(inspect_source, "check_combinations", unanswered)
    result = inspect("torch==2.7.1\ntorch-npu==2.7.1\n")
    assert result.return_value == 4
    assert "not looked at: resolve: Not decided" in result.output


def test_an_unknown_axis() -> None:
    assert "unknown axis" in str(inspect("torch==2.7.1\n", "--with", "canm=8.5.0").exception)


def test_source_and_interpreter_exclude_each_other(tmp_path: Path) -> None:
    result = inspect("torch==2.7.1\n", "--python", str(tmp_path))
    assert "exclude each other" in str(result.exception)


@pytest.mark.parametrize(("torch", "code"), [("2.4.0", 1), ("2.5.1+cpu", 0)])
def test_a_package_of_a_list_that_was_built_for_another_torch(torch: str, code: int) -> None:
    text = f"torch=={torch}\ntorchvision==0.20.1\n"
    result = inspect(text, "--with", "python=3.11", "--no-change")
    assert result.return_value == code, result.output
    assert ("torchvision 0.20.1 requires torch==2.5.1, but torch 2.4.0" in result.output) is bool(code)


@pytest.mark.parametrize(
    ("stated", "code", "words"),
    [
        (
            "vllm-ascend==0.18.0\ntriton-ascend==3.2.1\n",
            0,
            "requires triton-ascend==3.2.0, but triton-ascend 3.2.1",
        ),
        (
            "vllm-ascend==0.13.0\ntorch-npu==2.8.0\n",
            0,
            "requires torch-npu==2.8.0.post2, but torch-npu 2.8.0 is",
        ),
        (
            "vllm-ascend==0.13.0\ntorch-npu==2.7.1\n",
            1,
            "requires torch-npu==2.8.0.post2, but torch-npu 2.7.1 is",
        ),
        ("vllm==0.6.3\ntorch==2.6.0\n", 1, "vllm 0.6.3 requires torch==2.4.0, but torch 2.6.0 is installed"),
        (
            "vllm==0.23.0\nvllm-ascend==0.23.0rc1\ntransformers==5.7.0\n",
            1,
            "requires transformers==5.5.4, but",
        ),
    ],
)
def test_what_is_installed_beside_the_required_release_does_not_fail(
    stated: str, code: int, words: str
) -> None:
    result = inspect(stated, "--with", "python=3.11", "--no-change")
    assert result.return_value == code, result.output
    assert words in result.output
    assert ("installed over it" in result.output) is (code == 0)


def test_a_list_to_install_fails_beside_the_required_release() -> None:
    stated = "vllm-ascend==0.13.0\ntorch-npu==2.8.0\n"
    result = inspect(stated, "--with", "python=3.11", "--no-change", "--to-install")
    assert result.return_value == 1, result.output
    assert "published with torch_npu 2.8.0.post2, not 2.8.0" in result.output


def test_an_environment_is_not_to_be_installed(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.11/site-packages/lower-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lower\nVersion: 1.0\n")
    found = CliRunner().invoke(app, ["inspect", str(tmp_path), "--to-install"], standalone_mode=False)
    assert "installed already" in str(found.exception)


GONE = "from transformers import PreTrainedTokenizer\n\n{name} = print\n\ndef f(x: PreTrainedTokenizer):\n    x.{name}\n"


@pytest.mark.parametrize(
    ("stated", "name", "code", "words"),
    [
        ("vllm==0.11.0\ntransformers==5.0.0\n", "all_special_tokens_extended", 1, "was published"),
        ("vllm==0.11.0\ntransformers==5.0.0\n", "all_special_tokens", 0, "was published"),
        ("vllm==0.11.0\ntransformers==4.57.1\n", "all_special_tokens_extended", 0, ""),
        ("vllm==0.15.0\ntransformers==5.0.0\n", "all_special_tokens_extended", 1, "requires transformers<5"),
        ("vllm==0.15.0\ntransformers==5.0.0\n", "all_special_tokens", 0, "requires transformers<5"),
        ("vllm==0.15.0\ntransformers==4.50.0\n", "all_special_tokens", 1, "requires transformers<5"),
    ],
)
def test_a_later_release_than_the_package_was_written_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stated: str, name: str, code: int, words: str
) -> None:
    """It fails if a name that is used is gone. An earlier release than the required ones fails in any case."""
    with zipfile.ZipFile(tmp_path / "vllm.zip", "w") as archive:
        archive.writestr("vllm/__init__.py", GONE.format(name=name))
    sources = Sources(file=tmp_path / "vllm.zip")
    monkeypatch.setattr(ReleaseFetcher, "sources", lambda self, package, version: sources)
    result = inspect(stated, "--with", "python=3.11", "--no-change")
    assert result.return_value == code, result.output
    assert words in " ".join(result.output.split())
    is_compared = bool(words) and "4.50" not in stated
    assert (f"uses {name}" in result.output) is bool(is_compared and code)
    assert ("no name that it uses is gone" in result.output) is (is_compared and not code)


def test_names_that_cannot_be_compared_are_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self, package, version):
        raise InputError("no such release")

    monkeypatch.setattr(ReleaseFetcher, "sources", unreachable)
    result = inspect("vllm==0.11.0\ntransformers==5.0.0\n", "--with", "python=3.11", "--no-change")
    assert result.return_value == 0, result.output
    assert "the names that it uses were not compared" in result.output


def test_a_change_with_remarks_is_offered() -> None:
    """The judgement of a candidate is that of the list: triton-ascend 3.2.1 beside 3.2.0 is a remark."""
    stated = "vllm-ascend==0.18.0\ntriton-ascend==3.2.1\ntorch==2.9.0\ntorch-npu==2.8.0\n"
    result = inspect(stated, "--with", "python=3.11", "--json")
    assert result.return_value == 1, result.output
    changes = [one["change"] for one in json.loads(result.stdout)["problems"] if one["change"]]
    assert changes, result.output
    assert [move["package"] for move in changes[0]["moves"]] == ["torch-npu"]
