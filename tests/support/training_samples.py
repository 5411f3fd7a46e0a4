"""Measurements of training runs, made from the types that the programs in the cell use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.convergence.smoke.smoke_measurements import SmokeHeader
from harness.convergence.telemetry.training_records import MachineLoad
from harness.convergence.trainer.trainer_measurements import TrainerRun, TrainerSeconds
from harness.convergence.trainer.trainer_recipe import RECIPES
from harness.digest import canonical_json
from harness.evidence import DeviceFacts
from harness.measurements import MeasurementFormat
from harness.serialisation import json_object

SIMULATED = DeviceFacts(device="npu:0", kind="npu", simulated=True)
QUIET = MachineLoad(id="0123456789abcdef", load=0.5, others=0.0)
HEADER = SmokeHeader(
    seed=0,
    recipe={},
    digest="",
    fault=None,
    device=SIMULATED,
    versions={},
    python="3.11.7",
    machine="x86_64",
    host=MachineLoad(id="another", load=0.0),
)
RUN = TrainerRun(
    schema={"name": "npu-matrix/trainer-run", "version": 1},
    state="measured",
    stopped="",
    returncode=0,
    where="",
    stacks=(),
    stack_problems=(),
    algorithm="gspo",
    recipe=RECIPES["gspo"],
    digest="",
    settings="",
    argv=(),
    plugins=(),
    versions={"verl": "0.6.1"},
    ray="2.60.0",
    device=SIMULATED,
    host=MachineLoad(id="another", load=0.0),
    processes=(),
    seconds=TrainerSeconds(prepare=1.0, start_up=41.0, whole=60.0),
    swept=0,
    series={},
    complete=True,
    problems=(),
)


def run_json(**changes: Any) -> dict[str, Any]:
    """The JSON of a trainer run, with other values."""
    return {**json_object(RUN), **changes}


def header_json(**changes: Any) -> dict[str, Any]:
    """The JSON of the first line of a smoke training, with other values."""
    return {**json_object(HEADER), **changes}


def stored(form: MeasurementFormat[Any], measurements: Any) -> Any:
    """The measurements as they are read back from a ledger."""
    written: Mapping[str, Any] = json.loads(canonical_json(form.write(measurements)))
    return form.read(written)
