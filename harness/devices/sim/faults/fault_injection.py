"""Injects faults into operators of the simulated device."""

from __future__ import annotations

import fnmatch
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.devices.sim.faults.fault_kinds import KernelCall, distort
from harness.devices.sim.faults.fault_spec import FaultSpec
from harness.devices.sim.operators.dispatch import Compute, Interceptor
from harness.devices.sim.operators.schema_plan import OperatorPlan
from harness.devices.sim.operators.torch_internals import current_autograd_node


class ActiveFault:
    """A fault, the number of calls that match it (`seen`), and of those that it distorted (`hits`)."""

    def __init__(self, spec: FaultSpec) -> None:
        self.spec = spec
        self.seen = 0
        self.hits = 0
        self.hit_operators: Counter[str] = Counter()
        # Results that the kind "stale" keeps between calls.
        self.memory: dict[Any, Any] = {}
        self.random = random.Random(spec.seed)  # noqa: S311 - reproducible, not secret
        self._matches: dict[tuple[str, str], bool] = {}
        self._lock = threading.Lock()

    def claims(self, plan: OperatorPlan) -> bool:
        """Count this call, and tell whether the fault distorts it."""
        if not self._matching(plan):
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

    def report(self) -> dict[str, Any]:
        """JSON: the fault and the operators that it distorted."""
        return {
            "op": self.spec.op,
            "kind": self.spec.kind,
            "phase": self.spec.phase,
            "seen": self.seen,
            "hits": self.hits,
            "operators": dict(self.hit_operators),
        }

    def _matching(self, plan: OperatorPlan) -> bool:
        key = (plan.name, plan.overload)
        found = self._matches.get(key)
        if found is None:
            names = (plan.base, plan.name, f"{plan.base}.{plan.overload or 'default'}")
            found = any(fnmatch.fnmatchcase(name, self.spec.op) for name in names)
            self._matches[key] = found
        return found


class FaultBook:
    """The active faults of the simulated device, and the counts of operator calls once counting is enabled.

    interceptors: the machine's list. It is empty while there are no faults and no counting, so that a run
    without faults is not slowed down.
    """

    def __init__(self, interceptors: list[Interceptor]) -> None:
        self.active: list[ActiveFault] = []
        self.calls: Counter[str] = Counter()
        self._counting = False
        self._interceptors = interceptors

    def add(self, specs: Iterable[FaultSpec]) -> list[ActiveFault]:
        """Activate faults."""
        added = [ActiveFault(spec) for spec in specs]
        self.active.extend(added)
        self._arm()
        return added

    @contextmanager
    def injected(self, *specs: FaultSpec) -> Iterator[list[ActiveFault]]:
        """Faults that are active within the context."""
        added = self.add(specs)
        try:
            yield added
        finally:
            self.active = [fault for fault in self.active if fault not in added]
            self._arm()

    def count_calls(self) -> None:
        """Count operator calls from now on, in `calls`."""
        self._counting = True
        self._arm()

    def report(self) -> dict[str, Any]:
        """JSON: the active faults with their hits, and the counts of operator calls."""
        return {"faults": [fault.report() for fault in self.active], "calls": dict(self.calls.most_common())}

    def _arm(self) -> None:
        self._interceptors[:] = [self._intercept] if self.active or self._counting else []

    def _intercept(
        self, plan: OperatorPlan, compute: Compute, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self._counting:
            self.calls[plan.name] += 1
        for fault in self.active:
            if fault.claims(plan):
                return distort(fault, KernelCall(plan=plan, compute=compute, args=args, kwargs=kwargs))
        return compute(*args, **kwargs)
