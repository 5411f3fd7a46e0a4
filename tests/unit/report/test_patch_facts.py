"""The page of patches shows the output of `npu-matrix patches ... --json`; other files are rejected."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from report_samples import sample_inputs

from harness.errors import InputError
from harness.report.model.patch_facts import read_patch_facts
from harness.report.model.report_model import build_model
from harness.report.pages.page_templates import PageWriter
from harness.report.pages.patches_page import patches_page

COMMIT = {"commit": "a" * 40, "date": "2026-11-18T09:00:00Z", "subject": "[worker] move the guard"}
FORECAST = {
    "upstream": "verl",
    "reference": "main",
    "head": COMMIT,
    "verdicts": [
        {"patch": "verl/nccl-guard", "verdict": "conflict", "offset": 0, "reasons": ["the line is gone"]},
        {"patch": "verl/agg-loss", "verdict": "offset", "offset": 12, "reasons": []},
    ],
    "broken_by": {"verl/nccl-guard": COMMIT},
    "ended": {"verl/one-step-off": "<0.8"},
}
SUMMARY = {
    "upstream": "verl",
    "tree": "verl-0.9.1",
    "patches": [
        {
            "id": "verl/agg-loss",
            "verdict": "clean",
            "files": [
                {
                    "path": "verl/trainer/ppo/core_algos.py",
                    "module_changes": [{"action": "update", "kind": "function", "name": "agg_loss"}],
                    "class_changes": [
                        {
                            "class": "Actor",
                            "action": "update",
                            "changes": [{"action": "add", "kind": "method", "name": "step"}],
                        }
                    ],
                    "note": "",
                }
            ],
        }
    ],
}
REBASE = {
    "to": "b" * 40,
    "patches": [
        {
            "patch": "verl/nccl-guard",
            "verdict": "conflict",
            "rebased": False,
            "kit": "out/nccl-guard",
            "broken_by": COMMIT,
        },
        {"patch": "verl/agg-loss", "verdict": "clean", "rebased": True, "kit": None, "broken_by": None},
    ],
}


def written(folder: Path, kind: str, facts: dict[str, Any]) -> Path:
    file = folder / f"{kind}.json"
    file.write_text(json.dumps({"schema": {"name": f"npu-matrix/{kind}", "version": 1}, **facts}))
    return file


def page_of(files: tuple[Path, ...], folder: Path) -> str:
    inputs = dataclasses.replace(sample_inputs(), patches=read_patch_facts(files))
    return patches_page(build_model(inputs), PageWriter(folder))


def test_forecasts_summaries_and_rebase_kits_are_shown(tmp_path: Path) -> None:
    files = (
        written(tmp_path, "patch-forecast", FORECAST),
        written(tmp_path, "patch-summary", SUMMARY),
        written(tmp_path, "patch-rebase", REBASE),
    )
    page = page_of(files, tmp_path)
    assert "aaaaaaaaa 2026-11-18 [worker] move the guard" in page
    assert "offset +12" in page
    assert "verl/trainer/ppo/core_algos.py: add method Actor.step" in page
    assert "npu-matrix patches rebase --continue out/nccl-guard" in page
    assert "made for the new base" in page


def test_without_files_the_page_says_how_to_get_them(tmp_path: Path) -> None:
    page = patches_page(build_model(sample_inputs()), PageWriter(tmp_path))
    assert page.count("Not measured, because") == 2
    assert "npu-matrix patches rebase --repo CLONE" in page


def test_the_page_shows_the_command_that_rebases_a_patch_that_does_not_apply(tmp_path: Path) -> None:
    page = page_of((written(tmp_path, "patch-forecast", FORECAST),), tmp_path)
    assert "npu-matrix patches rebase verl/nccl-guard --repo CLONE --to HEAD" in page
    assert "rebase verl/agg-loss" not in page
    assert "it is for &lt;0.8" in page
    assert "rebase verl/one-step-off" not in page
    fair = {**FORECAST, "verdicts": FORECAST["verdicts"][1:]}  # type: ignore[index]
    assert "Nothing has to be rebased" in page_of((written(tmp_path, "patch-forecast", fair),), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "7",
        '{"schema": {"name": "npu-matrix/survival", "version": 1}}',
        '{"schema": {"name": "npu-matrix/patch-forecast", "version": 2}}',
        '{"schema": "npu-matrix/patch-forecast"}',
        "[" * 100_000,
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "heads.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"heads\.json"):
        read_patch_facts((file,))


@pytest.mark.parametrize("odd", [None, 3, "text", [], [1], {}, [{}]], ids=repr)
@pytest.mark.parametrize(
    ("kind", "facts"), [("patch-forecast", FORECAST), ("patch-summary", SUMMARY), ("patch-rebase", REBASE)]
)
def test_half_written_files_are_shown_as_far_as_they_go(
    tmp_path: Path, kind: str, facts: dict[str, Any], odd: Any
) -> None:
    for name in facts:
        page = page_of((written(tmp_path, kind, {**facts, name: odd}),), tmp_path)
        assert page.endswith("</html>")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    patches = [{**entry, "patch": attack, "kit": attack} for entry in REBASE["patches"]]  # type: ignore[dict-item]
    page = page_of((written(tmp_path, "patch-rebase", {**REBASE, "patches": patches}),), tmp_path)
    assert attack not in page
    assert "&lt;script&gt;alert(1)" in page
