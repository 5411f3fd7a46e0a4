"""Checks for tests on a cluster: real programs and files, no packages. Nodes import this module by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.check import Check, TaskContext
from harness.devices.cards.card_leases import FOLDER_VARIABLE
from harness.digest import digest_json
from harness.ledger.plan_record import PlanEntry
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status, Tier
from harness.plan.tasks.task import Plan, Task


def lock(context: TaskContext) -> Measured:
    """Leaves a file, as `resolve` does."""
    (context.workdir / "lock.txt").write_text(f"pinned {context.facets['pins']}\n")
    return Measured(measurements={"ok": True}, evidence=Evidence.STATIC, artifacts={"lock.txt": "lock.txt"})


def build(context: TaskContext) -> Measured:
    """Makes a folder on the node it runs on, from the lock, as `environment` does."""
    locked = context.artifact("lock", "lock.txt").read_text()
    home = context.workdir.parent.parent / f"cell-{context.facets['pins']}"
    home.mkdir(parents=True, exist_ok=True)
    (home / "made").write_text(locked)
    show = ["sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES"]
    before = context.command(show).tail.strip()
    with context.cards():
        card = context.command(show).tail.strip()
    ok = not before and card != ""
    return Measured(measurements={"ok": ok, "home": str(home)}, evidence=Evidence.STATIC)


def missing_folder(_measurements: Mapping[str, Any], outcome: Outcome) -> str:
    """Why the built folder cannot be used here, as the check `environment` does it.

    The nodes of these tests share a disk, so the folder of another node counts as missing.
    """
    import ray

    home = Path(outcome.measurements["home"])
    here = str(ray.get_runtime_context().get_node_id())[:16]
    on_other_node = (
        ray.get_runtime_context().worker.mode == ray.WORKER_MODE and not home.parent.name.endswith(here)
    )
    return "its folder is not on this node" if on_other_node or not (home / "made").is_file() else ""


def use(context: TaskContext) -> Measured:
    """Reads that folder with a program, and says what the program sees of the cluster."""
    home = context.inputs["build"].measurements["home"]
    seconds = str(context.facets.get("seconds", 0))
    if "marks" in context.facets:
        marks = Path(context.facets["marks"])
        # The first one stays until its node is killed.
        seconds = "0" if any(marks.iterdir()) else "300"
        (marks / Path(home).parent.name).touch()
    if "meeting" in context.facets:
        # Each host stays until the test ends it.
        seconds = "600"
        (Path(context.facets["meeting"]) / Path(home).parent.name).touch()
    script = 'cat "$0"/made; sleep "$1"; echo "nodes=$NPU_MATRIX_NODES ray=$RAY_ADDRESS"'
    done = context.command(["sh", "-c", script, home, seconds])
    return Measured(
        measurements={
            "ok": done.returncode == 0 and done.tail.startswith("pinned"),
            "said": done.tail.splitlines()[-1],
            "home": home,
        },
        evidence=Evidence.CPU,
    )


def nap(context: TaskContext) -> Measured:
    """Takes its time; leaves a mark of every start, so that a test can count them."""
    marks = Path(context.facets["marks"])
    with (marks / context.facets["name"]).open("a") as stream:
        stream.write("x")
    context.command(["sleep", str(context.facets["seconds"])])
    return Measured(measurements={"ok": True}, evidence=Evidence.STATIC)


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    return Judgement(status=Status.PASS if measurements["ok"] else Status.FAIL)


def no_cells(_cache: Path) -> None:
    """For plans whose checks enter no cell."""


def made_up_host(state: Path) -> tuple[Path, Mapping[str, str]]:
    """Nodes of these tests share a machine and stand for hosts of their own, each with eight made-up cards."""
    dev = state / "dev"
    dev.mkdir(parents=True, exist_ok=True)
    for card in range(8):
        (dev / f"davinci{card}").touch()
    return dev, {FOLDER_VARIABLE: str(state / "leases")}


def check(name: str, run: Any, **more: Any) -> Check:
    given = {"tier": Tier.STATIC, "question": f"{name}?", "facets": (), "judge": judge}
    return Check(name=name, run=run, **{**given, **more})


LOCK = check("lock", lock)
BUILD = check(
    "build",
    build,
    tier=Tier.BUILD,
    needs=("lock",),
    holds=missing_folder,
    device=True,
    holds_cards=False,
)
USE = check("use", use, tier=Tier.NUMERICS, needs=("build",), device=True, each_host=True)
NAP = check("nap", nap)


def task(checked: Check, facets: Mapping[str, Any], needs: tuple[Task, ...] = ()) -> Task:
    return Task(
        key=digest_json([checked.name, dict(facets)]),
        check=checked,
        facets=facets,
        facet_digests={name: digest_json(value) for name, value in facets.items()},
        code_digest="c",
        needs=tuple(one.key for one in needs),
        expected_s=float(facets.get("seconds", 0.1)),
    )


def chain(cell: str, facets: Mapping[str, Any]) -> list[tuple[str, Task]]:
    locked = task(LOCK, facets)
    made = task(BUILD, facets, (locked,))
    return [(cell, one) for one in (locked, made, task(USE, facets, (made,)))]


def plan_of(pairs: list[tuple[str, Task]]) -> Plan:
    entries = tuple(
        PlanEntry(cell_id=cell, check=one.check.name, tier=one.check.tier, question="?", key=one.key)
        for cell, one in pairs
    )
    return Plan(
        profile="test", matrix_digest="m", cells=(), entries=entries, tasks={one.key: one for _, one in pairs}
    )
