"""Every operator of one actor update made wrong on the simulated device: is it found, and is it named?

    python -m harness.numerics.actor.actor_program --role reference --out reference.npz
    python -m harness.devices.sim.start.sim_launch \
        benchmarks/numerics/device_faults.py --reference reference.npz

Both in a cell's environment, the first with TORCH_DEVICE_BACKEND_AUTOLOAD=0 on a CPU. A fault is above
the noise floor where it moves some tensor of the update, against the clean run on the same device, by
more than the tolerance of the check `actor`; below it where it moves none by half as much. Found: some
tensor is outside its tolerance. Named: the operator is among those that ran between the last right
tensor and the first one wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from harness.devices.sim.faults.fault_spec import parse_faults
from harness.devices.sim.start import overlay
from harness.numerics.actor import actor_reference, actor_update
from harness.numerics.actor.actor_case import DEFAULT_SEED, ActorCase
from harness.numerics.actor.tensor_recorder import TensorEvent, TensorRecorder

KINDS = {"round": "round", "sign": "sign", "scale": "scale;any;factor=1.02", "ulp": "ulp;any;ulps=1"}
"""What is injected under each name, after the operator's."""

NEAR = 4
"""A module records its input and output and both gradients: so many tensors lie within one."""

Values = dict[str, np.ndarray]


class Bench:
    """One update, again and again, under whatever fault is injected."""

    def __init__(self, reference: Path) -> None:
        self.torch = actor_update.start_torch("npu")
        self.tolerances = actor_reference.load_reference(reference).tolerances
        tensors = actor_reference.load_tensors(reference)
        self.exact, self.targets = tensors.exact, tensors.targets
        self.setting = actor_update.TensorPlacement(
            torch=self.torch, device="npu:0", dtype=self.torch.float32
        )
        self.clean, self.events = self.update(), self.traced()

    def update(self) -> Values:
        """Every recorded tensor of one update."""
        found: Values = {}
        recorder = TensorRecorder(sink=lambda event, values: found.update({event.label: values}))
        actor_update.run_update(
            ActorCase(seed=DEFAULT_SEED), self.setting, self.targets, recorder, mode=nullcontext()
        )
        return found

    def traced(self) -> list[TensorEvent]:
        """The events of a clean update, with the operators that ran before each."""
        events: list[TensorEvent] = []
        names: list[str] = []
        recorder = TensorRecorder(sink=lambda event, _values: events.append(event), operators=names)
        mode = actor_update.tracing(self.torch, names)
        actor_update.run_update(ActorCase(seed=DEFAULT_SEED), self.setting, self.targets, recorder, mode=mode)
        return [event for event in events if event.label in self.tolerances]

    def operators(self, glob: str) -> list[str]:
        """Every operator of that name that computes, in the order of its first call."""
        ran = dict.fromkeys(name for event in self.events for name in event.operators)
        return [name for name in ran if fnmatchcase(name, glob)]

    def budget(self, found: np.ndarray | None, wanted: np.ndarray, label: str) -> float:
        """Distance over tolerance; infinite where it is not finite."""
        if found is None or found.shape != wanted.shape or not np.isfinite(found).all():
            return float("inf")
        return float(np.linalg.norm(found - wanted)) / max(self.tolerances[label], 1e-300)

    def inject(self, operator: str, kind: str) -> dict[str, Any]:
        """What one fault does, and what is said of it."""
        base = operator.partition(".")[2] or operator
        with overlay.installed().faults.injected(*parse_faults(f"{base};{KINDS[kind]}")) as (active,):  # type: ignore[union-attr]
            faulty = self.update()
        effect = max(self.budget(faulty.get(label), self.clean[label], label) for label in self.labels())
        wrong = [
            place
            for place, event in enumerate(self.events)
            if self.budget(faulty.get(event.label), self.exact[event.label], event.label) > 1
        ]
        first = self.events[wrong[0]].sentence if wrong else ""
        row = {"operator": operator, "kind": kind, "hits": active.hits, "effect": effect, "first": first}
        return {**row, "found": bool(wrong), "behind": self.behind(operator, wrong[0]) if wrong else None}

    def behind(self, operator: str, place: int) -> int | None:
        """How many tensors were recorded between the operator's last run and the one at `place`; 0: none."""
        ran = [at for at in range(place + 1) if operator in self.events[at].operators]
        return place - ran[-1] if ran else None

    def labels(self) -> list[str]:
        """Tensors both sides have."""
        return [label for label in self.clean if label in self.tolerances]


def main() -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description="every operator of one actor update made wrong")
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--every", type=int, default=1, help="only every n-th operator")
    parser.add_argument("--operators", default="*", help="only operators whose name matches this glob")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    bench = Bench(arguments.reference)
    counts: Counter[str] = Counter()
    rows = []
    for kind in arguments.kinds.split(","):
        for operator in bench.operators(arguments.operators)[:: arguments.every]:
            row = bench.inject(operator, kind)
            rows.append(row)
            if not row["hits"]:
                counts["without effect: not computed on the device"] += 1
                continue
            place = "above" if row["effect"] > 1 else "below" if row["effect"] < 0.5 else "at"
            counts[f"{place} the noise floor"] += 1
            counts[f"{place} the noise floor, found"] += row["found"]
            counts[f"{place} the noise floor, found, the operator named"] += row["behind"] == 0
            near = row["behind"] is not None and 0 < row["behind"] <= NEAR
            counts[f"{place} the noise floor, found, the operator up to {NEAR} tensors earlier"] += near
            if (place == "above" and row["behind"] != 0) or (place == "below" and row["found"]):
                print(
                    f"  {operator};{kind}: effect {row['effect']:.3g}, found {row['found']}: {row['first']}, "
                    f"{row['behind']} tensors behind"
                )
    for what in sorted(counts):
        print(f"{what}: {counts[what]}")
    print(f"{len(rows)} faults in {time.monotonic() - started:.0f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    bench.torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
