"""`lock` from the command line, over a ledger with outcomes of `resolve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome, State, Tier
from harness.settings import load_settings
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolveMeasured, ResolveProblem
from harness.sources.packages.uv_errors import UvFailureKind
from harness.workspace.planning.open_plan import open_plan

REPOSITORY = Path(__file__).parents[3]
MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: made up}
  python: {title: Python, scheme: python, source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady:
    title: a row
    source: made up
    axes: {verl: 0.9.1, python: 3.11, device: sim}
profiles:
  default: {title: all, select: [{stacks: all}]}
"""
LOCK = f"verl==0.9.1 \\\n    --hash=sha256:{'a' * 64}\n    # via -r requirements.in\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "docker").symlink_to(REPOSITORY / "docker")
    return folder


def resolved(checkout: Path, text: str | None) -> None:
    bench = open_plan(load_settings({}, {}, checkout), checks=["resolve"])
    [task] = bench.plan.tasks.values()
    conflict = ResolveProblem(kind=UvFailureKind.CONFLICT, text="Nothing fits.", remedy="")
    measurements = RESOLVE_FORMAT.write(ResolveMeasured(resolved=text is not None, problems=(conflict,)))
    with Ledger.open(checkout / ".npu-matrix") as ledger:
        artifacts = () if text is None else (ledger.artifacts.put(text.encode(), "lock.txt"),)
        ledger.record(
            Outcome(
                key=task.key,
                check="resolve",
                tier=Tier.STATIC,
                state=State.COMPLETED,
                evidence=Evidence.STATIC,
                facets=dict(task.facet_digests),
                measurements=measurements,
                artifacts=artifacts,
            )
        )


def lock(checkout: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["--root", str(checkout), "lock", "steady", *arguments])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("shape", ["requirements", "script", "markdown", "conda", "dockerfile", "json"])
def test_every_form_is_printed(checkout: Path, shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    resolved(checkout, LOCK)
    assert lock(checkout, "--format", shape) == 0
    printed = capsys.readouterr().out
    assert "steady" in printed
    if shape == "json":
        assert json.loads(printed)["packages"][0]["version"] == "0.9.1"


def test_a_folder_gets_a_whole_build_context(checkout: Path, tmp_path: Path) -> None:
    resolved(checkout, LOCK)
    assert lock(checkout, "--format", "dockerfile", "--output", str(tmp_path / "context")) == 0
    written = {str(p.relative_to(tmp_path / "context")) for p in (tmp_path / "context").rglob("*.*")}
    assert "layers/verl.txt" in written
    assert (tmp_path / "context" / "Dockerfile").is_file()


def test_a_lock_that_was_edited_in_the_store_is_not_exported(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved(checkout, LOCK)
    [file] = [
        path for path in (checkout / ".npu-matrix" / "artifacts" / "sha256").rglob("*") if path.is_file()
    ]
    file.chmod(0o644)
    file.write_text(LOCK.replace("0.9.1", "0.9.2"))
    assert lock(checkout) == 4
    seen = capsys.readouterr()
    assert "its content was changed" in seen.err
    assert "0.9.2" not in seen.out


def test_a_cell_that_was_not_resolved_says_which_command_does_it(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(checkout) == 3
    assert "run --only steady" in capsys.readouterr().err


def test_a_cell_without_a_lock_says_why(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolved(checkout, None)
    assert lock(checkout) == 3
    assert "Nothing fits." in capsys.readouterr().err


def test_repositories_are_asked_only_when_they_are_to_be(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit, nowhere = "0" * 40, "file:///nowhere/npu-matrix-test"
    text = MATRIX.replace("package: verl,", f"package: verl, repository: {nowhere},")
    (checkout / "matrix.yaml").write_text(text.replace("verl: 0.9.1,", f"verl: 0.9.1@{commit},"))
    resolved(checkout, LOCK)
    assert lock(checkout, "--format", "script") == 0
    told = capsys.readouterr().err
    assert f"their content is not verified: verl {commit}" in told
    assert "--ask-upstream" in told
    assert "does not tell" not in told
    assert lock(checkout, "--format", "script", "--ask-upstream") == 0
    assert f"note: {nowhere} does not provide {commit}: " in capsys.readouterr().err
