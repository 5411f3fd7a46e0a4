"""Values that verl's code does not know, of settings by which it chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.typo_findings import UNKNOWN_RULE
from harness.sources.tree import REGULAR, TreeFile

CONFIG = """\
trainer:
  resume_mode: auto
  kernel: fast
  given: other
  color: red
  run_name: red
"""
MAIN = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    pass
def load(config):
    if config.trainer.resume_mode == "auto":
        pass
    elif config.trainer.resume_mode == "disable":
        pass
    if config.trainer.kernel == "fast":
        pass
    if config.trainer.given in ("left", "right"):
        pass
    if config.trainer.color in ("red", "green") or config.trainer.run_name in ("red", "green"):
        pass
    print("violet")
"""
VERL = MemoryTree(
    files={
        "verl/trainer/config/ppo_trainer.yaml": TreeFile(mode=REGULAR, data=CONFIG.encode()),
        "verl/trainer/main_ppo.py": TreeFile(mode=REGULAR, data=MAIN.encode()),
    }
)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("resume_mode=always", True),
        ("resume_mode=disable", False),
        # One text is no choice: any other value may be meant.
        ("kernel=slow", False),
        # The default is none of the texts, so that the code takes others too.
        ("given=whatever", False),
        # The code has this word elsewhere, perhaps for this setting.
        ("color=violet", False),
        ("color=mauve", True),
        # Users choose names.
        ("run_name=mauve", False),
        ("resume_mode=$MODE", False),
        ("resume_mode=null", False),
    ],
)
def test_a_value_that_the_code_does_not_know_is_told(tmp_path: Path, setting: str, told: bool) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python -m verl.trainer.main_ppo trainer.{setting}\n")
    found = [one for one in lint_file(script, {}, VERL).findings if one.rule == UNKNOWN_RULE]
    assert len(found) == told
    for one in found:
        assert one.line == 1
        assert "main_ppo.py" in one.source
