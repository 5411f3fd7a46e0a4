"""Candidates that misbehave from their second case on, for test_numerics_isolate."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.plain_losses import PlainCandidate

# Names the file in which a candidate that hangs writes its process number.
HANGING = "NPU_MATRIX_TEST_HANGING"
good = PlainCandidate()


def _second(case: LossCase) -> bool:
    return case.name.endswith("seq-mean-token-sum")


def hangs(case: LossCase) -> CandidateResult:
    if _second(case):
        Path(os.environ[HANGING]).write_text(str(os.getpid()))
        time.sleep(600)
    return good(case)


def is_killed(case: LossCase) -> CandidateResult:
    if _second(case):
        os.kill(os.getpid(), signal.SIGKILL)
    return good(case)


def exits(case: LossCase) -> CandidateResult:
    if _second(case):
        print("device lost")
        os._exit(7)
    return good(case)


def eats_memory(case: LossCase) -> CandidateResult:
    if _second(case):
        hoard = [bytearray(1 << 28) for _ in range(64)]
        return CandidateResult(value=float(len(hoard)))
    return good(case)
