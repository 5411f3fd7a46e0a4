"""Activates faults in operators of the simulated device."""

from __future__ import annotations

import fnmatch
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.devices.sim.faults.fault_kinds import KernelCall, distort
from harness.devices.sim.faults.fault_spec import OF_UPDATES, FaultSpec
from harness.devices.sim.operators.dispatch import Compute, Interceptor
from harness.devices.sim.operators.schema_plan import OperatorPlan
from harness.devices.sim.operators.torch_internals import current_autograd_node
from harness.serialisation import JsonValue


class ActiveFault:
    """A fault that is being injected. seen: number of matching calls. hits: how many of them it distorted."""

    def __init__(self, spec: FaultSpec) -> None:
        self.spec = spec
        self.seen = 0
        self.hits = 0
        self.hit_operators: Counter[str] = Counter()
        # The previous results, which the kind "stale" returns.
        self.memory: dict[Any, Any] = {}
        self.random = random.Random(spec.seed)  # noqa: S311 - reproducible, not secret
        self._matches: dict[tuple[str, str], bool] = {}
        self._lock = threading.Lock()

    def should_distort(self, plan: OperatorPlan) -> bool:
        """Whether the fault distorts this call. Also counts the call."""
        if not self._does_match(plan):
            return False
        spec = self.spec
        if spec.phase != "any" and (current_autograd_node() is not None) != (spec.phase == "backward"):
            return False
        with self._lock:
            self.seen += 1
            if self.seen <= spec.after or (spec.count is not None and self.hits >= spec.count):
                return False
            if spec.rate < 1.0 and self.random.random() >= spec.rate:
                return False
            self.hits += 1
            self.hit_operators[plan.name] += 1
            return True

    def report(self) -> dict[str, JsonValue]:
        """JSON: the fault and the operators that it distorted."""
        return {
            "op": self.spec.op,
            "kind": self.spec.kind,
            "phase": self.spec.phase,
            "seen": self.seen,
            "hits": self.hits,
            "operators": dict(self.hit_operators),
        }

    def _does_match(self, plan: OperatorPlan) -> bool:
        key = (plan.name, plan.overload)
        if key not in self._matches:
            names = (plan.base, plan.name, f"{plan.base}.{plan.overload or 'default'}")
            self._matches[key] = any(fnmatch.fnmatchcase(name, self.spec.op) for name in names)
        return self._matches[key]


class FaultInjector:
    """The active faults of the simulated device. It can also count the calls of each operator.

    interceptors: the list of the `Machine`. It stays empty while no fault is active and calls are not
    counted, so that such a run is not slowed down. prepare: called before it has an entry.
    """

    def __init__(self, interceptors: list[Interceptor], prepare: Callable[[], None]) -> None:
        self.active: list[ActiveFault] = []
        self.calls: Counter[str] = Counter()
        self._counting = False
        self._interceptors = interceptors
        self._prepare = prepare

    def add(self, specs: Iterable[FaultSpec]) -> list[ActiveFault]:
        """Activate faults."""
        added = [ActiveFault(spec) for spec in specs]
        self.active.extend(added)
        self._update_interceptors()
        return added

    @contextmanager
    def injected(self, *specs: FaultSpec) -> Iterator[list[ActiveFault]]:
        """Activate faults while the `with` block runs."""
        added = self.add(specs)
        try:
            yield added
        finally:
            self.active = [fault for fault in self.active if fault not in added]
            self._update_interceptors()

    def count_calls(self) -> None:
        """Count operator calls from now on, in `calls`."""
        self._counting = True
        self._update_interceptors()

    def ignores_update(self, plan: OperatorPlan) -> bool:
        """Whether an update of a captured call of this operator has no effect. Also counts the update."""
        return any(fault.spec.kind == OF_UPDATES and fault.should_distort(plan) for fault in self.active)

    def report(self) -> dict[str, JsonValue]:
        """JSON: the active faults with their hits, and the counts of operator calls."""
        return {"faults": [fault.report() for fault in self.active], "calls": dict(self.calls.most_common())}

    def _update_interceptors(self) -> None:
        if self.active or self._counting:
            self._prepare()
            self._interceptors[:] = [self._intercept]
        else:
            self._interceptors.clear()

    def _intercept(
        self, plan: OperatorPlan, compute: Compute, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self._counting:
            self.calls[plan.name] += 1
        for fault in self.active:
            if fault.spec.kind != OF_UPDATES and fault.should_distort(plan):
                return distort(fault, KernelCall(plan=plan, compute=compute, args=args, kwargs=kwargs))
        return compute(*args, **kwargs)
