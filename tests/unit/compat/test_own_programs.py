"""Recipes: programs that lie beside their launch scripts, with their own configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.lint_scripts import lint_file, lint_folder
from harness.sources.tree import REGULAR, TreeFile

MAIN = """\
import hydra
@hydra.main(config_path="config", config_name="dapo_trainer", version_base=None)
def main(config):
    pass
"""
VERL = MemoryTree(
    files={
        "verl/trainer/config/ppo_trainer.yaml": TreeFile(mode=REGULAR, data=b"trainer: {nnodes: 1}\n"),
        "verl/trainer/main_ppo.py": TreeFile(mode=REGULAR, data=b"x = 1\n"),
    }
)
SCRIPT = "python3 -m recipe.dapo.main_dapo trainer.nnodes=2 reward.length=3 data.nothing=1\n"
CONFIG = """\
hydra:
  searchpath: [file://verl/trainer/config]
defaults: [ppo_trainer, _self_]
reward: {length: 1}
"""


def checkout(folder: Path) -> Path:
    """A checkout of the recipes, of which one has a script."""
    (folder / "dapo/config").mkdir(parents=True)
    (folder / "dapo/main_dapo.py").write_text(MAIN)
    (folder / "dapo/config/dapo_trainer.yaml").write_text(CONFIG)
    (folder / "dapo/run.sh").write_text(SCRIPT)
    return folder / "dapo/run.sh"


@pytest.mark.parametrize("name", ["verl/recipe", "verl-recipe"])
def test_a_recipe_is_composed_with_its_own_configuration(tmp_path: Path, name: str) -> None:
    script = checkout(tmp_path / name)
    result = lint_file(script, {"verl": "0.9.1"}, VERL)
    assert not result.unchecked
    assert [one.message for one in result.findings if one.rule == "CONFIG-KEY"] == [
        "Hydra refuses `data.nothing=1` (dapo_trainer of verl 0.9.1)"
    ]
    assert len(lint_folder(tmp_path, {"verl": "0.9.1"}, VERL).findings) == len(result.findings)


def test_a_program_behind_a_link_is_not_read(tmp_path: Path) -> None:
    script = checkout(tmp_path / "other")
    (tmp_path / "recipe").symlink_to(tmp_path / "other")
    (tmp_path / "scripts").mkdir()
    moved = script.rename(tmp_path / "scripts/run.sh")
    (tmp_path / "other/dapo/main_dapo.py").unlink()
    (tmp_path / "other/dapo/main_dapo.py").symlink_to(tmp_path / "scripts/main.py")
    (tmp_path / "scripts/main.py").write_text(MAIN)
    assert "recipe.dapo.main_dapo" in " ".join(lint_file(moved, {"verl": "0.9.1"}, VERL).unchecked)


def test_files_of_verl_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "verl/trainer/config").mkdir(parents=True)
    (tmp_path / "verl/trainer/main_own.py").write_text(MAIN.replace("dapo_trainer", "ppo_trainer"))
    (tmp_path / "verl/trainer/config/ppo_trainer.yaml").write_text("trainer: {nnodes: 1, other: 1}\n")
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_own trainer.other=1\n")
    result = lint_file(tmp_path / "run.sh", {"verl": "0.9.1"}, VERL)
    assert [one.rule for one in result.findings] == ["CONFIG-KEY"]


def test_a_recipe_beside_the_repository_of_a_script_is_not_its_program(tmp_path: Path) -> None:
    checkout(tmp_path / "recipe")
    script = tmp_path / "plugin/scripts/run.sh"
    script.parent.mkdir(parents=True)
    (tmp_path / "plugin/.git").mkdir()
    script.write_text(SCRIPT)
    assert not [
        one for one in lint_file(script, {"verl": "0.9.1"}, VERL).findings if one.rule == "CONFIG-KEY"
    ]


@pytest.mark.parametrize("refused", ["", " trainer.no_key=1"])
@pytest.mark.parametrize(
    ("imported", "is_told"),
    [
        ("    from verl.workers.fsdp_workers import Worker\n", True),
        ("    if config.reward.length:\n        from verl.workers.fsdp_workers import Worker\n", True),
        ("    import verl.workers.fsdp_workers as workers\n", True),
        ("    from recipe.dapo.worker import Worker\n    Worker()\n", True),
        ("    from verl.trainer.main_ppo import x\n    import verl.trainer\n", False),
        ("    from verl.trainer import main_ppo\n    from other.workers import Worker\n", False),
        ("    if os.cpu_count() > 2:\n        from verl.workers.fsdp_workers import Worker\n", False),
        (
            "    if os.cpu_count() > 2:\n        from recipe.dapo.worker import Worker\n        Worker()\n",
            False,
        ),
        ("    try:\n        from verl.gone import Worker\n    except ImportError: pass\n", False),
    ],
)
def test_a_recipe_that_imports_a_module_which_this_verl_lacks_stops(
    tmp_path: Path, imported: str, is_told: bool, refused: str
) -> None:
    script = checkout(tmp_path / "recipe")
    script.write_text(f"python3 -m recipe.dapo.main_dapo trainer.nnodes=2{refused}\n")
    (tmp_path / "recipe/dapo/main_dapo.py").write_text("import os\n" + MAIN.replace("    pass\n", imported))
    worker = "from verl.workers.fsdp_workers import Base\nclass Worker(Base):\n    pass\n"
    (tmp_path / "recipe/dapo/worker.py").write_text(worker)
    package = TreeFile(mode=REGULAR, data=b"")
    verl = MemoryTree(files={**VERL.files, "verl/__init__.py": package, "verl/trainer/__init__.py": package})
    told = [one for one in lint_file(script, {"verl": "0.9.1"}, verl).findings if one.rule == "VERL-CHECK"]
    assert [one.message for one in told] == [
        "verl stops: No module named 'verl.workers.fsdp_workers'"
    ] * is_told
    assert all("written for" in one.fix and one.line == 1 for one in told)
