"""Faults in every operator of an actor update on the simulated device: are they detected and located?

Runs inside the newest built cell of the cache. A fault is above the noise floor where it moves some tensor of
the update, against the clean run on the same device, by more than the tolerance of the check `actor`; below
it where it moves none by half as much. Found: some tensor is outside its tolerance. Named: the operator is
among those that ran between the last right tensor and the first wrong one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
"""Kind of fault -> its specification, which follows the name of the operator."""

Values = dict[str, np.ndarray]


class FaultyUpdate:
    """One update that is repeated with different injected faults."""

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
        """Every operator with that name that computes something, in the order of the first calls."""
        ran = dict.fromkeys(name for event in self.events for name in event.operators)
        return [name for name in ran if fnmatchcase(name, glob)]

    def budget(self, found: np.ndarray | None, wanted: np.ndarray, label: str) -> float:
        """Error as a share of the tolerance; infinite if it is not finite."""
        if found is None or found.shape != wanted.shape or not np.isfinite(found).all():
            return float("inf")
        return float(np.linalg.norm(found - wanted)) / max(self.tolerances[label], 1e-300)

    def inject(self, operator: str, kind: str) -> dict[str, Any]:
        """The effect of a fault, and whether it is detected and located."""
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
        """The names of the tensors that both sides have."""
        return [label for label in self.clean if label in self.tolerances]


def in_cell(reference: Path) -> None:
    """Print a row of JSON for each fault; the part that runs inside the cell."""
    update = FaultyUpdate(reference)
    rows = [update.inject(name, kind) for kind in KINDS for name in update.operators("*")]
    print(json.dumps(rows))
    update.torch.distributed.destroy_process_group()


def figures() -> Iterator[Any]:
    # This module is imported inside cells, too, where the rest of the host side is missing.
    from benchmarks.figures import ROOT, CannotRunError, Figure, user_cache

    pythons = sorted(user_cache().glob("cells/*/venv/bin/python"), key=lambda one: one.stat().st_mtime)
    if not pythons:
        raise CannotRunError("no cell is built", "npu-matrix run --check environment")
    python = str(pythons[-1])
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        reference = str(Path(folder) / "reference.npz")
        program = ["harness.numerics.actor.actor_program", "--role", "reference", "--out", reference]
        quiet = {**environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        subprocess.run([python, "-m", *program], env=quiet, cwd=folder, check=True, capture_output=True)
        program = ["harness.devices.sim.start.sim_launch", str(Path(__file__)), reference]
        done = subprocess.run(
            [python, "-m", *program], env=environ, cwd=folder, check=True, capture_output=True, text=True
        )
    rows = [row for row in json.loads(done.stdout.splitlines()[-1]) if row["hits"]]
    above = [row for row in rows if row["effect"] > 1]
    below = [row for row in rows if row["effect"] < 0.5]
    missed = sum(not row["found"] for row in above)
    yield Figure(claim=f"faults missed, of {len(above)} above the noise", measured=missed, limit=0)
    flagged = sum(row["found"] for row in below)
    yield Figure(claim=f"flagged, of {len(below)} below the noise", measured=flagged, limit=0)
    named = 100 * sum(row["behind"] == 0 for row in above) / len(above)
    yield Figure(
        claim="faults above the noise whose operator is named",
        measured=named,
        unit="%",
        limit=85,
        is_lower_limit=True,
    )


if __name__ == "__main__":
    in_cell(Path(sys.argv[1]))
