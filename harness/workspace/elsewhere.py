"""Entries that this host cannot run and another one has answered: planned here as that host plans them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.workspace.open_plan import Bench, open_bench

if TYPE_CHECKING:
    from harness.devices.host.inventory import HostReport
    from harness.ledger.plan_record import Entry, PlanRecord
    from harness.ledger.store import Ledger

#: A chip of each family as npu-smi names it (see `harness.devices.host.soc`).
CHIPS = {"a2": "910B3", "a3": "910_9391", "a5": "950", "310p": "310P3"}


def host_with(host: HostReport, soc: str) -> HostReport:
    """`host` as if it had a healthy card of that family, with a driver that goes with everything."""
    from harness.devices.host.npu_smi import Chip, NpuReport

    chip = Chip(card=0, chip=0, index=0, name=CHIPS[soc], health="OK", bus_id="", hbm_used=0, hbm_total=65536)
    return replace(
        host,
        npu=NpuReport(version="", chips=(chip,), processes=()),
        npu_error="",
        davinci=(0,),
        missing_nodes=(),
    )


def with_answers_from_elsewhere(
    bench: Bench, ledger: Ledger, only: Sequence[str], checks: Sequence[str]
) -> tuple[Bench, Mapping[str, HostReport]]:
    """The bench with such entries planned, and cell id -> host for the cells it concerns."""
    device = {cell.id: cell.axes.get("soc", "") for cell in bench.plan.cells if cell.device == "npu"}
    skipped = {(entry.cell_id, entry.check) for entry in bench.plan.entries if entry.skip is not None}
    taken: dict[tuple[str, str], Entry] = {}
    tasks: dict[str, Any] = {}
    hosts: dict[str, HostReport] = {}
    for soc in sorted(set(device.values()) & set(CHIPS)):
        host = host_with(bench.host, soc)
        plan = open_bench(bench.settings, only=only, checks=checks, host=host).plan
        for entry in plan.entries:
            name = (entry.cell_id, entry.check)
            wanted = device.get(entry.cell_id) == soc and name in skipped and entry.key in plan.tasks
            if wanted and ledger.history(key=entry.key, limit=1):
                taken[name] = entry
                tasks[entry.key] = plan.tasks[entry.key]
                hosts[entry.cell_id] = host
    plan = replace(
        bench.plan,
        entries=tuple(taken.get((entry.cell_id, entry.check), entry) for entry in bench.plan.entries),
        tasks={**bench.plan.tasks, **tasks},
    )
    return replace(bench, plan=plan), hosts


def joined_plans(here: PlanRecord, elsewhere: Mapping[str, PlanRecord]) -> PlanRecord:
    """A plan with the entries of some cells taken from other plans; `elsewhere` is by cell id."""
    entries = [entry for entry in here.entries if entry.cell_id not in elsewhere]
    tasks = here.tasks_by_key
    for cell, plan in elsewhere.items():
        own = [entry for entry in plan.entries if entry.cell_id == cell]
        entries += own
        keys = {entry.key for entry in own}
        tasks |= {task.key: task for task in plan.tasks if task.key in keys}
    return replace(here, entries=tuple(entries), tasks=tuple(tasks.values()))
