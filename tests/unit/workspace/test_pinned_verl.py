"""Launch scripts are linted for the verl that the nearest folder above them pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.matrix.model.definitions import Axis
from harness.matrix.reading.load_matrix import load_matrix
from harness.package import shipped_file
from harness.workspace.linting.pinned_verl import scripts_by_verl

JOB = "python3 -m verl.trainer.main_ppo x=1\n"


@pytest.fixture(scope="module")
def verl() -> Axis:
    return load_matrix(shipped_file("matrix.yaml")).axes["verl"]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def found_in(root: Path, verl: Axis) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pin, paths in scripts_by_verl([root], verl).items():
        version = pin.version if pin else ""
        found.setdefault(version, []).extend(str(path.relative_to(root)) for path in paths)
    return {version: sorted(names) for version, names in found.items()}


def test_each_script_is_for_the_release_that_its_recipe_requires(tmp_path: Path, verl: Axis) -> None:
    root = write(
        tmp_path,
        {
            "a/REQUIRED_VERL.txt": "# tested\nMODE=pinned_tag\nCOMMIT=d62da4950\nTAG=v0.6.1\n",
            "a/run.sh": JOB,
            "a/deep/run.sh": JOB,
            "a/helper.sh": "echo no job\n",
            "b/REQUIRED_VERL.txt": "TAG=0.8.0\n",
            "b/run.sh": JOB,
            "c/REQUIRED_VERL.txt": "MODE=commit\nCOMMIT=4f80e46\n",
            "c/run.sh": JOB,
            "d/run.sh": JOB,
        },
    )
    assert found_in(root, verl) == {
        "0.6.1": ["a/deep/run.sh", "a/run.sh"],
        "0.8.0": ["b/run.sh"],
        "@4f80e46": ["c/run.sh"],
        "": ["d/run.sh"],
    }
    assert [pin and pin.version for pin in scripts_by_verl([root / "a/deep/run.sh"], verl)] == ["0.6.1"]
    assert scripts_by_verl([root / "d"], verl) == {None: (root / "d",)}


def test_other_files_of_the_repository_pin_too(tmp_path: Path, verl: Axis) -> None:
    root = write(
        tmp_path,
        {
            ".git/HEAD": "",
            "requirements.txt": "verl==0.7.1\n",
            "run.sh": JOB,
            "one/README.md": "```\ngit clone x/verl.git; cd verl; git checkout v0.6.1\n```\n",
            "one/deep/run.sh": JOB,
            "two/x.Dockerfile": "RUN git clone -b v0.8.0 https://x.org/verl-project/verl.git\n",
            "two/requirements-cuda.txt": "verl==0.5.0\n",
            "two/run.sh": JOB,
            # What verl itself installs elsewhere is not the verl of its scripts.
            "fork/verl/trainer/main.py": "",
            "fork/requirements.txt": "verl==0.4.1\n",
            "fork/run.sh": JOB,
        },
    )
    assert found_in(root, verl) == {
        "0.7.1": ["fork/run.sh", "run.sh"],
        "0.6.1": ["one/deep/run.sh"],
        "0.8.0": ["two/run.sh"],
    }


def test_a_file_above_the_repository_does_not_count(tmp_path: Path, verl: Axis) -> None:
    root = write(tmp_path, {"REQUIRED_VERL.txt": "TAG=v0.6.1\n", "mine/.git/HEAD": "", "mine/run.sh": JOB})
    assert scripts_by_verl([root / "mine/run.sh"], verl) == {None: (root / "mine/run.sh",)}


def test_without_a_repository_only_the_file_of_recipes_counts(tmp_path: Path, verl: Axis) -> None:
    root = write(tmp_path, {"requirements.txt": "verl==0.6.1\n", "run.sh": JOB})
    assert scripts_by_verl([root / "run.sh"], verl) == {None: (root / "run.sh",)}
