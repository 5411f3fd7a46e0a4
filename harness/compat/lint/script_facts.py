"""What a launch script shows of the machines that its jobs get: the cards of Ray, and the nodes of Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from harness.compat.lint.python_program import option
from harness.compat.lint.shell.evaluator import Command

_SLURM_NODES = re.compile(r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)(?P<nodes>\d+)\s*$", re.MULTILINE)

# What `recipe render --script` writes. In other scripts it states hosts that the script does not choose.
_HOSTS = re.compile(
    r"^# npu-matrix: (?P<nodes>[1-9]\d{0,5}) x (?P<cards>[1-9]\d{0,5}) cards\s*$", re.MULTILINE
)


def stated_hosts(text: str) -> tuple[int, int] | None:
    """The nodes, and the cards of each, that the line `# npu-matrix: 2 x 8 cards` of a script states."""
    match = _HOSTS.search(text)
    return (int(match["nodes"]), int(match["cards"])) if match else None


def script_facts(text: str, commands: Sequence[Command]) -> dict[str, int]:
    """The values of SCRIPT_FACTS that a script shows."""
    facts: dict[str, int] = {}
    nodes = _SLURM_NODES.findall(text)
    if nodes:
        # The last of several options counts.
        facts["slurm_nodes"] = int(nodes[-1])
    # A head node without cards only drives the job.
    cards = {number for command in commands if (number := _ray_cards(command))}
    if len(cards) == 1:
        facts["ray_cards"] = cards.pop()
    return facts


def _ray_cards(command: Command) -> int | None:
    """The NPUs that `ray start` is given for a node; None if it detects them itself, or only a run knows."""
    words = command.arguments
    places = [place for place, word in enumerate(words) if word.text.rpartition("/")[2] == "ray"]
    if not any(word.text == "start" for place in places for word in words[place + 1 : place + 2]):
        return None
    try:
        resources = json.loads(option(words, "--resources") or "{}")
    except ValueError:
        return None
    number = resources.get("NPU") if isinstance(resources, dict) else None
    return int(number) if isinstance(number, (int, float)) else None
