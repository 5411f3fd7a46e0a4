"""In-cell program: runs every case of the check `update` through verl and writes what was recorded.

python -m harness.numerics.update.update_program --device npu:0 --records records.npz --out run.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.cell_program.torch_device import device_facts
from harness.numerics.actor.actor_update import run_role, start_torch
from harness.numerics.actor.verl_workers import actor_classes
from harness.numerics.loss.trainer_functions import source_folder
from harness.numerics.loss.verl_losses_source import installed_losses
from harness.numerics.update.update_cases import CASES, UpdateCase
from harness.numerics.update.update_faults import UPDATE_FAULTS
from harness.numerics.update.update_measurements import UpdateDeviceRun
from harness.numerics.update.update_record import UpdateRecord, save_records
from harness.numerics.update.verl_update import run_case
from harness.serialisation import json_object


def measure(
    device: str, records: Path, out: Path, *, faults: bool, only: Sequence[str] = ()
) -> UpdateDeviceRun:
    """Run all cases, or only some, with all worker classes; faults: also once with each fault injected."""
    started = time.monotonic()
    kind = device.partition(":")[0]
    if kind != "npu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start_torch(kind)
    paths = tuple(worker.name for worker in actor_classes())
    cases = [case for case in CASES if not only or case.name in only]
    found = [record for path in paths for record in _records(torch, device, path, cases, faults=faults)]
    save_records(records, found)
    run = UpdateDeviceRun(
        device=device_facts(device),
        verl=version("verl"),
        paths=paths,
        source=installed_losses(source_folder()),
        seconds=round(time.monotonic() - started, 3),
    )
    out.write_text(json.dumps(json_object(run)), encoding="utf-8")
    return run


def _records(
    torch: Any, device: str, path: str, cases: Sequence[UpdateCase], *, faults: bool
) -> Iterator[UpdateRecord]:
    for case in cases:
        yield run_case(case, torch, device, path)
    named = {case.name: case for case in cases}
    for fault in UPDATE_FAULTS if faults else ():
        yield run_case(named[fault.case], torch, device, path, fault)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.update.update_program", description="updates through verl"
    )
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument("--records", type=Path, required=True, help="where the quantities are written")
    parser.add_argument("--out", type=Path, required=True, help="where the facts are written")
    parser.add_argument("--faults", action="store_true", help="also run cases with injected faults")
    parser.add_argument("--only", nargs="*", default=[], metavar="CASE", help="only these cases")
    arguments = parser.parse_args(argv)
    return run_role(
        "updates",
        lambda: measure(
            arguments.device,
            arguments.records,
            arguments.out,
            faults=arguments.faults,
            only=arguments.only,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
