"""Plans entries that only another host can run, to use the outcomes of that host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.devices.host.host_inspection import HostReport
from harness.devices.host.npu_smi import Chip, NpuReport
from harness.ledger.plan_record import PlanEntry, PlanRecord
from harness.ledger.store import Ledger
from harness.plan.tasks.task import Task
from harness.workspace.planning.open_plan import PlanContext, open_plan

#: SoC family -> the name of one of its chips in npu-smi (see `harness.devices.host.soc`).
CHIPS = {"a2": "910B3", "a3": "910_9391", "a5": "950", "310p": "310P3"}


def host_with_chip(host: HostReport, soc: str) -> HostReport:
    """This host, as if it could run every cell of this SoC: with a healthy card, whose driver is compatible
    with every CANN, and of any architecture."""
    chip = Chip(card=0, chip=0, index=0, name=CHIPS[soc], health="OK")
    return replace(
        host,
        driver="",
        npu=NpuReport(version="", chips=(chip,), processes=()),
        npu_error="",
        davinci=(0,),
        missing_nodes=(),
        not_open=None,
        closed={},
        divided={},
        assigned=None,
        machine="",
    )


def add_outcomes_of_other_hosts(
    context: PlanContext, ledger: Ledger, only: Sequence[str], checks: Sequence[str]
) -> tuple[PlanContext, Mapping[str, HostReport]]:
    """The plan, with skipped entries planned if another host has run them, and cell id -> host for those."""
    device = {cell.id: cell.axes.get("soc", "") for cell in context.plan.cells if cell.device == "npu"}
    skipped = {(entry.cell_id, entry.check) for entry in context.plan.entries if entry.skip is not None}
    added: dict[tuple[str, str], PlanEntry] = {}
    tasks: dict[str, Task] = {}
    hosts: dict[str, HostReport] = {}
    for soc in sorted(set(device.values()) & set(CHIPS)):
        host = host_with_chip(context.host, soc)
        plan = open_plan(context.settings, only=only, checks=checks, host=host).plan
        for entry in plan.entries:
            name = (entry.cell_id, entry.check)
            matches = device.get(entry.cell_id) == soc and name in skipped and entry.key in plan.tasks
            if matches and ledger.history(key=entry.key, limit=1):
                added[name] = entry
                tasks[entry.key] = plan.tasks[entry.key]
                hosts[entry.cell_id] = host
    plan = replace(
        context.plan,
        entries=tuple(added.get((entry.cell_id, entry.check), entry) for entry in context.plan.entries),
        tasks={**context.plan.tasks, **tasks},
    )
    return replace(context, plan=plan), hosts


def join_plans(here: PlanRecord, other_plans: Mapping[str, PlanRecord]) -> PlanRecord:
    """A plan with the entries of some cells taken from other plans; `other_plans` is by cell id."""
    entries = [entry for entry in here.entries if entry.cell_id not in other_plans]
    tasks = here.tasks_by_key
    for cell, plan in other_plans.items():
        own = [entry for entry in plan.entries if entry.cell_id == cell]
        entries += own
        keys = {entry.key for entry in own}
        tasks |= {task.key: task for task in plan.tasks if task.key in keys}
    return replace(here, entries=tuple(entries), tasks=tuple(tasks.values()))
