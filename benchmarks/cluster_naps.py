"""The task of `ray_cluster`: it uses the cards of a host for a known time.

Nodes import this module by name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.check import Check, TaskContext
from harness.devices.cards.card_leases import FOLDER_VARIABLE
from harness.digest import digest_json
from harness.ledger.plan_record import PlanEntry
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.task import Plan, Task

CARDS = 8
MOST_CARDS = 16 * CARDS
DEVICE = {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}


def nap(context: TaskContext) -> Measured:
    """A program that sleeps, started like every program of a task."""
    done = context.command(["sleep", str(context.facets["seconds"])])
    return Measured(measurements={"ok": done.returncode == 0}, evidence=Evidence.CPU)


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pass if the program ended normally."""
    return Judgement(status=Status.PASS if measurements["ok"] else Status.FAIL)


def no_cells(_cache: Path) -> None:
    """No task uses a cell."""


def made_up_host(state: Path) -> tuple[Path, Mapping[str, str]]:
    """Nodes on this machine, each with its own device nodes (plain files) and leases."""
    dev = state / "dev"
    dev.mkdir(parents=True, exist_ok=True)
    if not (dev / f"davinci{MOST_CARDS - 1}").exists():
        for card in range(MOST_CARDS):
            (dev / f"davinci{card}").touch()
    return dev, {FOLDER_VARIABLE: str(state / "leases")}


CHECK = Check(
    name="nap",
    run=nap,
    judge=judge,
    tier=Tier.NUMERICS,
    question="does it come to its end?",
    facets=(),
    device=True,
)


def naps(tasks: int, mean: float, seed: int, name: str = CHECK.name) -> Plan:
    """`tasks` of 0.2 to 1.8 times `mean` seconds, each for all cards of one host; their length is known.

    What the ledger has seen of a check counts more than what its tasks say: others have another name.
    """
    chosen, check = random.Random(seed), replace(CHECK, name=name)
    made = []
    for number in range(tasks):
        seconds = round(mean * chosen.uniform(0.2, 1.8), 2)
        facets = {
            "device": DEVICE,
            "recipe": {"nodes": 1, "cards": CARDS},
            "number": number,
            "seconds": seconds,
        }
        made.append(
            Task(
                key=digest_json([name, facets]),
                check=check,
                facets=facets,
                facet_digests={name: digest_json(value) for name, value in facets.items()},
                code_digest="benchmark",
                needs=(),
                expected_s=seconds,
            )
        )
    entries = tuple(
        PlanEntry(
            cell_id=f"n{task.facets['number']}", check=name, tier=CHECK.tier, question="?", key=task.key
        )
        for task in made
    )
    return Plan(
        profile="benchmark",
        matrix_digest="benchmark",
        cells=(),
        entries=entries,
        tasks={task.key: task for task in made},
    )
