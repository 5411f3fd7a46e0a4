"""Functions that vLLM's engine runs in its workers: they count operator calls and inject faults there.

With several devices, the workers are other processes than the engine. The engine sends a function of this
module to its workers (`collective_rpc`) and calls it there with the worker; all results can be pickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.devices.sim.faults.fault_spec import parse_faults
from harness.devices.sim.start import overlay


def total(llm: Any, function: Callable[..., dict[str, int]], *arguments: Any) -> Counter[str]:
    """Call a function of this module in each worker of the engine, and add up the counts it returns."""
    return sum((Counter(counts) for counts in llm.collective_rpc(function, args=arguments)), Counter())


def calls(_worker: Any) -> dict[str, int]:
    """The number of calls of each operator since the first call of this function; empty on a real device."""
    simulation = overlay.installed()
    if simulation is None:
        return {}
    simulation.faults.count_calls()
    return dict(simulation.faults.calls)


def inject_fault(worker: Any, text: str) -> dict[str, int]:
    """Inject faults into the worker's operators until `release` is called."""
    simulation = overlay.installed()
    if simulation is not None:
        injection = simulation.faults.injected(*parse_faults(text))
        worker.seeded = injection, injection.__enter__()
    return {}


def release(worker: Any) -> dict[str, int]:
    """End the faults of `inject_fault`. Returns the operators they distorted, and how often."""
    seeded = getattr(worker, "seeded", None)
    if seeded is None:
        return {}
    injection, faults = seeded
    injection.__exit__(None, None, None)
    del worker.seeded
    return dict(sum((fault.hit_operators for fault in faults), Counter()))
