"""What is counted and struck in an engine's workers, which compute where a model lies on several devices.

An engine sends a function of this module to its workers and calls it with the worker there; none returns
anything that its process could not send back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.devices.sim.faults.fault_spec import parse_faults
from harness.devices.sim.start import overlay


def total(llm: Any, ask: Callable[..., dict[str, int]], *arguments: Any) -> Counter[str]:
    """The sum of what each worker of the engine answers to a function of this module."""
    return sum((Counter(answer) for answer in llm.collective_rpc(ask, args=arguments)), Counter())


def calls(_worker: Any) -> dict[str, int]:
    """How often the worker called each operator since it was first asked; none where nothing can count."""
    simulation = overlay.installed()
    if simulation is None:
        return {}
    simulation.faults.count_calls()
    return dict(simulation.faults.calls)


def inject_fault(worker: Any, text: str) -> dict[str, int]:
    """Put faults in force until the worker is released."""
    simulation = overlay.installed()
    if simulation is not None:
        injection = simulation.faults.injected(*parse_faults(text))
        worker.seeded = injection, injection.__enter__()
    return {}


def release(worker: Any) -> dict[str, int]:
    """End the faults of `strike`; the operators they hit, and how often."""
    seeded = getattr(worker, "seeded", None)
    if seeded is None:
        return {}
    injection, faults = seeded
    injection.__exit__(None, None, None)
    del worker.seeded
    return dict(sum((fault.hit_operators for fault in faults), Counter()))
