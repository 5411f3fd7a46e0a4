"""The code part of a key: a digest of all code of this project that can change what a check finds.

It is computed from the source files (`harness.code_graph`), definition by definition. It includes the code
that can be reached from
- `run`, `judge`, `holds` and `applies` of the check;
- `run` of the checks it needs: for example, a change of the resolver can change the lock, then the
  environment that is built from it, and then a loss. Their judges are not included, because they decide
  whether the check is run, not what it measures;
- the modules that its parameters name;
- the task context (`CONTEXT`), which starts programs, sets their environment, limits and cards, and reads the
  artifacts of needed checks. The classes of the objects that are passed to the context are listed too,
  because only the code that creates these objects refers to the classes. Code that schedules tasks, sends
  them to other hosts or stores outcomes is left out: it does not change what a completed check measured, and
  otherwise each change of the scheduler would renew all outcomes;
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
    "harness.run.jobs.task_cards:leased_cards",
    "harness.run.jobs.task_context:RunContext",
)
CELL = ("harness.builds.cell.cell_command:cell_launcher",)
#: Modules that build and start the simulated device. If one is missing here, changes of the simulator also
#: renew outcomes of hardware; no change is missed.
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
    """Digest of the code of the simulated device."""
    return _simulator(package_root, cache).digest


def simulator_modules(package_root: Path = PACKAGE_ROOT, cache: Path | None = None) -> tuple[str, ...]:
    """The modules and data files of the simulated device."""
    return tuple(_simulator(package_root, cache).modules)


def _simulator(package_root: Path, cache: Path | None) -> ReachedCode:
    return reached_code({SIMULATOR: SIMULATED_DEVICE}, root=package_root, cache=cache)[SIMULATOR]


def code_of_checks(
    checks: Iterable[Check], package_root: Path = PACKAGE_ROOT, cache: Path | None = None
) -> Mapping[str, ReachedCode]:
    """Check name -> the code part of its keys, with the digest of what is reached in each module.

    package_root: the folder `harness` of the tree to read. cache: the cache folder, see `reached_code`.
    """
    checks = tuple(checks)
    reached = reached_code(check_roots(checks), stop=SIMULATED_DEVICE, root=package_root, cache=cache)
    by_name = {check.name: check for check in checks}
    found: dict[str, ReachedCode] = {}
    for check in checks:
        code = reached[check.name]
        inputs = [(need, dict(by_name[need].params)) for need in check.inputs if need in by_name]
        outside = [name for name in _functions(check, by_name) if _is_foreign(name)]
        found[check.name] = ReachedCode(
            digest=digest_json([code.digest, inputs, outside]), modules=code.modules
        )
    return found


def record_code(found: Iterable[ReachedCode]) -> CodeRecord:
    """The modules of code parts as a plan stores them. A module that several parts share occurs once."""
    indices: dict[tuple[str, str], int] = {}
    reached = {
        code.digest: tuple(indices.setdefault(module, len(indices)) for module in code.modules.items())
        for code in found
    }
    return CodeRecord(modules=tuple(indices), reached=reached)


def check_nodes(graph: CodeGraph, checks: Iterable[Check]) -> Mapping[str, set[Node]]:
    """Check name -> every piece of code in its key."""
    return {name: graph.reach(roots, stop=SIMULATED_DEVICE) for name, roots in check_roots(checks).items()}


def simulator_nodes(graph: CodeGraph) -> set[Node]:
    """Every piece of code of the simulated device."""
    return graph.reach(SIMULATED_DEVICE)


def check_roots(checks: Iterable[Check]) -> dict[str, tuple[str, ...]]:
    """Check name -> the definitions and modules from which its code part is computed."""
    checks = tuple(checks)
    by_name = {check.name: check for check in checks}
    roots = {}
    for check in checks:
        found = set(CONTEXT)
        found |= {name for name in _functions(check, by_name) if not _is_foreign(name)}
        for part in (check, *_needed(check, by_name)):
            found |= set(mentions(canonical_json(dict(part.params))))
            found |= set(CELL if part.device else ())
        roots[check.name] = tuple(sorted(found))
    return roots


def _needed(check: Check, by_name: Mapping[str, Check]) -> list[Check]:
    """The checks whose outcomes are inputs of a check, directly or indirectly."""
    found: dict[str, Check] = {}
    waiting = list(check.inputs)
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found:
            found[name] = by_name[name]
            waiting.extend(by_name[name].inputs)
    return [found[name] for name in sorted(found)]


def _functions(check: Check, by_name: Mapping[str, Check]) -> list[str]:
    """Functions and measurement types of the check and `run` of needed checks, as `module:definition`."""
    shapes = check.measurements.shapes if check.measurements else ()
    called = (
        *(check.run, check.judge, check.holds, check.applies, *shapes),
        *((check.altered,) if check.altered else ()),
        *(need.run for need in _needed(check, by_name)),
    )
    return list(dict.fromkeys(name for function in called for name in _definition_names(function)))


def _definition_names(function: Any) -> list[str]:
    """The definitions that contain the code of a function, a `functools.partial` or a callable object.

    Functions among the arguments of a partial and in the closure of a function are included.
    """
    if isinstance(function, functools.partial):
        callables = [function.func, *filter(callable, (*function.args, *function.keywords.values()))]
        return [name for part in callables for name in _definition_names(part)]
    owner = function if hasattr(function, "__qualname__") else type(function)
    owner = getattr(owner, "__func__", owner)
    top = owner.__qualname__.split(".")[0]
    # A lambda has no name by which it can be found: its whole module counts.
    found = [owner.__module__ if top == "<lambda>" else f"{owner.__module__}:{top}"]
    for cell in getattr(owner, "__closure__", None) or ():
        if callable(cell.cell_contents) and cell.cell_contents is not function:
            found += _definition_names(cell.cell_contents)
    return found


def _is_foreign(name: str) -> bool:
    return name.partition(":")[0].split(".")[0] != PACKAGE
