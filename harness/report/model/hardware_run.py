"""When hardware last ran a check of a cell, and whether its inputs have changed since."""

from __future__ import annotations

from dataclasses import dataclass

from harness.report.model.marks import Mark


@dataclass(frozen=True, kw_only=True)
class HardwareRun:
    """The last execution on a real NPU. time: Unix seconds, when it was measured; 0 if that is not recorded.

    machine: the runner or host. foreign: another machine recorded it. signer: the runner whose signature was
    verified, "" without one. claimed: why
    it is not believed, or "". stale: the inputs are other ones today, so that it says nothing about them;
    changes: which.
    """

    mark: Mark
    time: float
    run_id: str
    machine: str = ""
    foreign: bool = False
    signer: str = ""
    claimed: str = ""
    stale: bool = False
    changes: tuple[str, ...] = ()
