"""`patches ablate` and `patches forecast` from the command line, and the nightly job that follows heads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_upstream import (
    BASE,
    FIXED,
    Git,
    checkout_with_patches,
    upstream_with_break,
)

from harness.cli.app import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def upstream(tmp_path: Path) -> Git:
    (tmp_path / "mirrors").mkdir()
    return upstream_with_break(tmp_path / "mirrors" / "upstream")


@pytest.fixture
def checkout(tmp_path: Path, upstream: Git) -> Path:
    return checkout_with_patches(tmp_path / "checkout", upstream)


@pytest.fixture
def patches(checkout: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(checkout), "patches", *map(str, arguments)])
        said = capsys.readouterr()
        assert stopped.value.code == code, said
        return said.out or said.err

    return run


def test_a_patch_others_need_is_needed_and_one_the_tree_has_may_be_dead(
    patches: Any, upstream: Git, checkout: Path
) -> None:
    repo = ("--repo", upstream.folder, "--ref", "v1.0")
    said = patches("ablate", *repo)
    assert "needed   verl/seven\n  verl/eight does not apply without it" in said
    assert "unknown  verl/eight" in said
    assert "unknown" not in patches("ablate", *repo, "--patch", "seven")
    upstream.commit("2.0", FIXED.replace("return 70\n", "return 700\n"), "take both")
    file = checkout / "patches" / "verl" / "series"
    file.write_text("eight\n")
    (checkout / "patches" / "verl" / "seven").rename(checkout / "seven")
    found = json.loads(patches("ablate", "--repo", upstream.folder, "--ref", "main", "--json", code=1))
    assert found["schema"] == {"name": "npu-matrix/patch-ablation", "version": 1}
    assert [one["result"] for one in found["patches"]] == ["dead?"]


def test_a_stack_that_does_not_apply_is_no_success_of_ablate(
    patches: Any, upstream: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.commit("2.0", "nothing that the patches know\n", "rewrite it")
    broken = ("ablate", "--repo", upstream.folder, "--ref", "main")
    assert "the whole stack does not apply" in patches(*broken, code=4)
    found = json.loads(patches(*broken, "--json", code=4))
    assert {one["compared"] for one in found["patches"]} == {False}
    assert "unknown  verl/eight" in patches("ablate", "--repo", upstream.folder, "--ref", "v2.0~1")

    monkeypatch.delenv("NPU_MATRIX_MIRRORS", raising=False)
    assert "unknown  verl/seven" in patches("ablate", "row", "--static", code=4), (
        "the commit is not available"
    )


def test_a_cell_is_run_without_a_patch_and_what_nothing_noticed_is_said(
    patches: Any, upstream: Git, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    assert "verl/eight does not apply without it" in patches("ablate", "row", "--static")
    found = json.loads(patches("ablate", "row", "--check", "patches", "--json", code=4))
    assert {one["patch"]: one["result"] for one in found["patches"]} == {
        "verl/seven": "needed",
        "verl/eight": "unknown",
    }
    header = checkout / "patches" / "verl" / "eight" / "PATCH"
    header.write_text(header.read_text().replace("Guarded-By: patches", "Guarded-By: loss"))
    said = patches("ablate", "row", "--check", "patches", code=4)
    assert "unknown  verl/eight\n  not every guard (loss) passed" in said


@pytest.mark.parametrize(
    "asked",
    [(), ("row", "--version", "1.0"), ("--check", "loss", "--version", "1"), ("row", "--patches", ".")],
)
def test_ablate_is_asked_about_a_cell_or_a_tree(patches: Any, asked: tuple[str, ...]) -> None:
    assert "give either CELL, or a tree" in patches("ablate", *asked, code=2)


def test_a_forecast_names_the_commit_that_will_break_a_patch(patches: Any, upstream: Git) -> None:
    repo = ("forecast", "--repo", upstream.folder, "--ref")
    assert "offset(+1)  verl/seven" in patches(*repo, "v2.0~1")
    said = patches(*repo, "main", code=1)
    assert "conflict  verl/seven" in said
    assert "broken by" in said
    assert "break it" in said
    found = json.loads(patches(*repo, "main", "--json", code=1))
    assert found["schema"] == {"name": "npu-matrix/patch-forecast", "version": 1}
    assert found["broken_by"]["verl/seven"]["subject"] == "break it"


def test_a_forecast_leaves_out_what_has_ended_and_takes_the_newest_releases_bodies(
    patches: Any, upstream: Git, checkout: Path
) -> None:
    upstream.commit("3.0", BASE, "release 3.0")
    assert "verl/seven is for >=0,<2.1" in patches("forecast", "--repo", upstream.folder, code=3)
    matrix = checkout / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("1.0.dev0@" + upstream("rev-parse", "v1.0"), "2.0"))
    assert "clean  verl/seven" in patches("forecast", "--repo", upstream.folder)
    header = checkout / "patches" / "verl" / "eight" / "PATCH"
    header.write_text(header.read_text().replace(">=0,<2.1", ">=0,<2.0"))
    assert "ended  verl/eight (for >=0,<2.0)" in patches("forecast", "--repo", upstream.folder)


@pytest.mark.parametrize("name", ["ablate", "forecast"])
def test_help_shows_examples_and_exit_codes(patches: Any, name: str) -> None:
    said = patches(name, "--help")
    assert f"npu-matrix patches {name}" in said
    assert "Exit codes:" in said
    assert "--json" in said


@pytest.mark.parametrize(("codes", "expected"), [("0 0", 0), ("0 3", 0), ("1 0", 1), ("3 4", 4)])
def test_the_nightly_forecast_is_red_when_a_head_breaks_a_patch(
    tmp_path: Path, codes: str, expected: int
) -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    [script] = [
        step["run"] for step in flow["jobs"]["forecast"]["steps"] if "patches forecast" in step.get("run", "")
    ]
    for name, code in zip(("verl", "vllm-ascend"), codes.split(), strict=True):
        (tmp_path / "mirrors" / f"{name}.git").mkdir(parents=True)
        (tmp_path / "mirrors" / f"{name}.git" / "code").write_text(code)
    program = tmp_path / "bin" / "npu-matrix"
    program.parent.mkdir()
    program.write_text('#!/bin/bash\necho "forecast of $4"\nexit "$(cat "$4/code")"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"PATH": path, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")},
        check=False,
    )
    assert done.returncode == expected
    assert len((tmp_path / "summary.md").read_text().splitlines()) == 2
    assert (tmp_path / "reports" / "forecast-vllm-ascend.json").read_text()
