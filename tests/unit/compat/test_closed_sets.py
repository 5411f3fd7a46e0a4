"""Settings whose text is in no closed set that verl compares their name with."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.registry_findings import REGISTRY_RULE
from harness.sources.tree import TreeFile

MAIN = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config): pass
"""
CONFIG = """\
trainer: {resume_mode: auto, level_of: null, kind: a, mode: x, other_mode: y, style: one, free: any}
data: {mode: train}
"""
CODE = """\
LEVELS = {"token", "sequence"}
def resume(trainer):
    if trainer.resume_mode == "auto":
        return 1
    elif trainer.resume_mode in ("disable", "path"):
        return 2
    else:
        raise ValueError("no such mode")
def level(level_of):
    if level_of is None:
        return
    if level_of not in LEVELS:
        raise ValueError(level_of)
def of(config):
    assert config["kind"].lower() in ["a", "b"], "kind"
def mode(mode):
    assert mode in ("x", "y")
def style(style):
    match style:
        case "one" | "two":
            return
        case _:
            raise ValueError(style)
def free(free):
    if free == "any":
        return 1
    elif free == "other":
        return 2
class Part:
    def __post_init__(self):
        assert self.other_mode in ("y", "z")
"""


def told(folder: Path, setting: str, code: str = CODE) -> list[str]:
    texts = {
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/config/ppo_trainer.yaml": CONFIG,
        "verl/part.py": code,
    }
    tree = MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in texts.items()})
    script = folder / "run.sh"
    script.write_text(f"python -m verl.trainer.main_ppo {setting}\n")
    found = lint_file(script, {"verl": "0.9.1"}, tree).findings
    return [f"{one.severity} {one.fix}" for one in found if one.rule == REGISTRY_RULE]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("trainer.resume_mode=latest", ["warning choose one of auto, disable, path"]),
        ("trainer.resume_mode=disabled", ["warning set trainer.resume_mode=disable"]),
        ("trainer.resume_mode=path", []),
        ("trainer.resume_mode=$1", []),
        ("trainer.level_of=seq", ["warning choose one of sequence, token"]),
        ("trainer.level_of=sequence", []),
        ("trainer.level_of=null", []),
        ("trainer.kind=B", []),
        ("trainer.kind=c", ["warning choose one of a, b"]),
        # data.mode has a text that is not in the set: it is not a set of these settings.
        ("trainer.mode=z", []),
        ("trainer.style=three", ["warning choose one of one, two"]),
        ("trainer.style=two", []),
        ("trainer.free=else", []),
        ("trainer.other_mode=a", []),
    ],
)
def test_a_text_outside_of_a_closed_set_is_told(tmp_path: Path, setting: str, expected: list[str]) -> None:
    assert told(tmp_path, setting) == expected


def test_a_set_that_goes_on_with_other_texts_is_not_closed(tmp_path: Path) -> None:
    goes_on = CODE.replace('raise ValueError("no such mode")', "return 3")
    assert told(tmp_path, "trainer.resume_mode=latest", goes_on) == []
    assert told(tmp_path, "trainer.level_of=seq", CODE.replace('"token", "sequence"', '"token", other')) == []
    assert told(tmp_path, "trainer.style=three", CODE.replace("case _:", 'case "three":')) == []
