"""The code part of a key: a digest of all code of this project that can change what a check finds.

It is computed from the source files (`harness.code_graph`), definition by definition. It includes the code
that can be reached from
- `run`, `judge`, `holds` and `applies` of the check;
- `run` of the checks it needs: other code for resolving makes another lock, thus another environment, which
  can give another loss. Their judges decide whether the check is run, not what it measures, and are not
  included;
- the modules that its parameters name;
- the task context (`CONTEXT`), which starts programs, sets their environment, limits and cards, and reads the
  artifacts of needed checks. The classes of the objects that the context is constructed with are listed too,
  because a reference to a class stands where the object is made. Code that schedules tasks, sends them to
  other
  hosts or stores outcomes is left out. It does not change what a completed check measured, and each
  change of the scheduler would renew all outcomes;
- for a check on the device of a cell: the code that starts a program in a cell (`CELL`).

The simulated device is not included, because outcomes of hardware must not depend on the simulator. It has a
digest of its own, which is part of the facet `device` of simulated cells. That digest includes everything
that is reached through the modules `SIMULATED_DEVICE`; the code part stops at these modules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.check import Check
from harness.code_graph.module_facts import PACKAGE, mentions
from harness.code_graph.reachable_code import CodeGraph, Node, ReachedCode
from harness.code_graph.stored_facts import reached_code
from harness.digest import canonical_json, digest_json
from harness.ledger.plan_record import CodeRecord
from harness.package import PACKAGE_ROOT

CONTEXT = (
    "harness.run.jobs.job:Job",
    "harness.run.jobs.job:JobHandle",
    "harness.run.jobs.job:JobSite",
    "harness.run.jobs.task_cards:task_cards_leased",
    "harness.run.jobs.task_context:RunContext",
)
CELL = ("harness.builds.cell.cell_command:cell_launcher",)
#: Modules by which the simulated device is built and entered. A module that is missing here costs reruns on
#: hardware when the simulator changes; it leaves no gap.
SIMULATED_DEVICE = (
    "harness.devices.sim.start.overlay",
    "harness.devices.sim.start.triton_interpreter",
    "harness.devices.sim.runtime_build.cann_toolkit",
    "harness.devices.sim.runtime_build.runtime_library",
    "harness.devices.sim.start.sim_launch",
    "harness.devices.sim.start.sim_plugin",
)
SIMULATOR = "simulated device"


def code_digests(
    checks: Iterable[Check], package_root: Path = PACKAGE_ROOT, cache: Path | None = None
) -> Mapping[str, str]:
    """Check name -> digest of the code part of its keys."""
    return {name: code.digest for name, code in code_of_checks(checks, package_root, cache).items()}


def simulator_digest(package_root: Path = PACKAGE_ROOT, cache: Path | None = None) -> str:
    """Digest of the simulated device: what runs on another simulator is another outcome."""
    return reached_code({SIMULATOR: SIMULATED_DEVICE}, root=package_root, cache=cache)[SIMULATOR].digest


def code_of_checks(
    checks: Iterable[Check], package_root: Path = PACKAGE_ROOT, cache: Path | None = None
) -> Mapping[str, ReachedCode]:
    """Check name -> the code part of its keys, with what is reached of each module.

    package_root: the folder `harness` of the tree to look in. cache: where to keep what is read of the files.
    """
    checks = tuple(checks)
    reached = reached_code(check_roots(checks), stop=SIMULATED_DEVICE, root=package_root, cache=cache)
    by_name = {check.name: check for check in checks}
    found: dict[str, ReachedCode] = {}
    for check in checks:
        code = reached[check.name]
        inputs = [(need, dict(by_name[need].params)) for need in check.needs if need in by_name]
        outside = [name for name in _functions(check, by_name) if _is_foreign(name)]
        found[check.name] = ReachedCode(
            digest=digest_json([code.digest, inputs, outside]), modules=code.modules
        )
    return found


def record_code(found: Iterable[ReachedCode]) -> CodeRecord:
    """What code parts are made of, as a plan stores it: a module that several of them share is there once."""
    places: dict[tuple[str, str], int] = {}
    reached = {
        code.digest: tuple(places.setdefault(one, len(places)) for one in code.modules.items())
        for code in found
    }
    return CodeRecord(modules=tuple(places), reached=reached)


def check_nodes(graph: CodeGraph, checks: Iterable[Check]) -> Mapping[str, set[Node]]:
    """Check name -> every piece of code in its key."""
    return {name: graph.reach(roots, stop=SIMULATED_DEVICE) for name, roots in check_roots(checks).items()}


def simulator_nodes(graph: CodeGraph) -> set[Node]:
    """Every piece of code of the simulated device."""
    return graph.reach(SIMULATED_DEVICE)


def check_roots(checks: Iterable[Check]) -> dict[str, tuple[str, ...]]:
    """Check name -> where its code begins, that of what it needs included."""
    checks = tuple(checks)
    by_name = {check.name: check for check in checks}
    roots = {}
    for check in checks:
        found = set(CONTEXT)
        found |= {name for name in _functions(check, by_name) if not _is_foreign(name)}
        for one in (check, *_needed(check, by_name)):
            found |= set(mentions(canonical_json(dict(one.params))))
            found |= set(CELL if one.device else ())
        roots[check.name] = tuple(sorted(found))
    return roots


def _needed(check: Check, by_name: Mapping[str, Check]) -> list[Check]:
    """The checks that it needs, and those that they need."""
    found: dict[str, Check] = {}
    waiting = list(check.needs)
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found:
            found[name] = by_name[name]
            waiting.extend(by_name[name].needs)
    return [found[name] for name in sorted(found)]


def _functions(check: Check, by_name: Mapping[str, Check]) -> list[str]:
    """What the check calls, and what measures the checks it needs, as `module:definition`."""
    shapes = check.measurements.shapes if check.measurements else ()
    called = (
        *(check.run, check.judge, check.holds, check.applies, *shapes),
        *(need.run for need in _needed(check, by_name)),
    )
    return list(dict.fromkeys(name for one in called for name in _named(one)))


def _named(function: Any) -> list[str]:
    """The definitions in which a function, a partial one or an object that can be called is written.

    A function made by another one keeps what it was made with: functions among that count as well.
    """
    if isinstance(function, functools.partial):
        given = [*function.args, *function.keywords.values()]
        return [*_named(function.func), *(name for one in given if callable(one) for name in _named(one))]
    owner = function if hasattr(function, "__qualname__") else type(function)
    owner = getattr(owner, "__func__", owner)
    top = owner.__qualname__.split(".")[0]
    # A function without a name is looked for nowhere: all of its module counts.
    found = [owner.__module__ if top == "<lambda>" else f"{owner.__module__}:{top}"]
    for cell in getattr(owner, "__closure__", None) or ():
        if callable(cell.cell_contents) and cell.cell_contents is not function:
            found += _named(cell.cell_contents)
    return found


def _is_foreign(name: str) -> bool:
    return name.partition(":")[0].split(".")[0] != PACKAGE
