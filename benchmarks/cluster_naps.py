"""The tasks of `ray_cluster`: each uses the cards, or a processor, of a host for a known time.

Nodes import this module by name.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.check import Check, TaskContext
from harness.devices.cards.card_leases import FOLDER_VARIABLE
from harness.digest import digest_json
from harness.ledger.plan_record import PlanEntry
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.task import Plan, Task


@dataclass(frozen=True, kw_only=True)
class HostKind:
    """Hosts of one kind. chip: what the runtime calls a device, "" for hosts without cards. cann: installed
    on the host, "" if cells get it from their image. share: of all tasks."""

    hosts: int
    cards: int = 0
    chip: str = ""
    soc: str = ""
    cann: str = ""
    share: float

    @property
    def resources(self) -> dict[str, float]:
        """What a node of Ray with all of these hosts offers, in addition to processors."""
        if not self.cards:
            return {}
        markers = [f"soc:{self.soc}", *([f"cann:{self.cann}"] if self.cann else [])]
        return {"NPU": self.hosts * self.cards, **dict.fromkeys(markers, 1)}

    @property
    def facets(self) -> dict[str, object]:
        """The facets of a task that fills one such host."""
        if not self.cards:
            return {"device": {"kind": "sim"}, "recipe": {}}
        image = {} if self.cann else {"engine": "docker"}
        device = {"kind": "npu", "soc": self.chip, "cann": self.cann or "8.3.RC1", "count": 1, **image}
        return {"device": device, "recipe": {"nodes": 1, "cards": self.cards}}


#: 64 hosts. Each kind has as many tasks for a host as the others.
FLEET = (
    HostKind(hosts=24, cards=8, chip="Ascend910B3", soc="a2", cann="8.5.0", share=0.375),
    HostKind(hosts=24, cards=16, chip="Ascend910_9392", soc="a3", share=0.375),
    HostKind(hosts=16, share=0.25),
)
MOST_CARDS = max(kind.hosts * kind.cards for kind in FLEET)


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
    """`tasks` of 0.2 to 1.8 times `mean` seconds, each for one whole host of a kind; their length is known.

    What the ledger has seen of a check counts more than what its tasks say: others have another name.
    """
    chosen, check = random.Random(seed), replace(CHECK, name=name)
    kinds = [kind for kind in FLEET for _ in range(round(kind.share * tasks))]
    chosen.shuffle(kinds)
    made = []
    for number, kind in enumerate(kinds):
        seconds = round(mean * chosen.uniform(0.2, 1.8), 2)
        facets = {**kind.facets, "number": number, "seconds": seconds}
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


def lengths_by_kind(plan: Plan) -> list[tuple[HostKind, Sequence[float]]]:
    """The lengths of the tasks of each kind of host, in the order of the plan."""
    return [
        (kind, [float(task.facets["seconds"]) for task in plan.tasks.values() if _is_for(task, kind)])
        for kind in FLEET
    ]


def _is_for(task: Task, kind: HostKind) -> bool:
    return bool(task.facets["device"] == kind.facets["device"])
