"""A repository of somebody else: a git format-patch folder for verl 0.6.1, a pin and a launch script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCH = "npu/v0.6.1/0001-timings.patch"
TARGET = "timing_tensor = torch.tensor(timing, "
SCRIPT = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=1\n"


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, message: str) -> None:
    """Commit everything in a repository."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def patches_repository(folder: Path) -> Path:
    """Make the repository."""
    (folder / PATCH).parent.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    shutil.copy(ROOT / "patches/verl/timing-all-gather/0.6.1.patch", folder / PATCH)
    (folder / "requirements.txt").write_text("verl==0.6.1\n")
    (folder / "scripts").mkdir()
    (folder / "scripts/run.sh").write_text(SCRIPT)
    commit(folder, "what we have")
    return folder


def break_patch(folder: Path) -> None:
    """Change a line that the patch removes, so that it no longer applies."""
    text = (folder / PATCH).read_text()
    assert TARGET in text
    (folder / PATCH).write_text(text.replace(TARGET, "timing_vector = torch.tensor(timing, "))
