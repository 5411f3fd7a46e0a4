"""Launch scripts of recipes are linted for the verl that the recipe requires."""

from __future__ import annotations

from pathlib import Path

from harness.workspace.linting.required_verl import scripts_by_verl

JOB = "python3 -m verl.trainer.main_ppo x=1\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_each_script_is_for_the_release_that_its_recipe_requires(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "a/REQUIRED_VERL.txt": "# tested\nMODE=pinned_tag\nTAG=v0.6.1\nCOMMIT=d62da49\n",
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
    found = {
        version: sorted(str(path.relative_to(root)) for path in paths)
        for version, paths in scripts_by_verl([root]).items()
    }
    assert found == {
        "0.6.1": ["a/deep/run.sh", "a/run.sh"],
        "0.8.0": ["b/run.sh"],
        "": ["c/run.sh", "d/run.sh"],
    }
    assert scripts_by_verl([root / "a/deep/run.sh"]) == {"0.6.1": (root / "a/deep/run.sh",)}
    assert scripts_by_verl([root / "d"]) == {"": (root / "d",)}


def test_a_file_above_the_repository_does_not_count(tmp_path: Path) -> None:
    root = write(tmp_path, {"REQUIRED_VERL.txt": "TAG=v0.6.1\n", "mine/.git/HEAD": "", "mine/run.sh": JOB})
    assert scripts_by_verl([root / "mine/run.sh"]) == {"": (root / "mine/run.sh",)}
