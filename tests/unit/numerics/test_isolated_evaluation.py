"""A candidate in a process of its own cannot take the harness with it, and costs only the case it fails in."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from bad_candidates import HANGING

from harness.errors import InputError
from harness.numerics.loss import isolated_evaluation
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.isolated_evaluation import evaluate_isolated
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import LossStatus

CASES = [case for case in battery(seed=1) if case.name.startswith("policy/grpo-near/")][:3]


class Clock:
    """The module `time`, on which an hour passes at each look while the process that a file names lives.

    A time limit is then about who hangs, and not about how fast a process starts.
    """

    def __init__(self, file):
        self.file, self.ahead = file, 0.0
        self.sleep = time.sleep

    def monotonic(self):
        if self.file.exists() and (pid := self.file.read_text()) and Path(f"/proc/{pid}").exists():
            self.ahead += 3600.0
        return time.monotonic() + self.ahead


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    here = Path(__file__).parent
    # Threads of a linear algebra library have their stacks in the address space, as many as there are cores.
    for library in ("OMP", "OPENBLAS", "MKL"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parents[2])]))


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ("hangs", "hung: no result within"),
        ("is_killed", "killed by signal 9"),
        ("exits", "ended with code 7: device lost"),
        ("eats_memory", "MemoryError"),
    ],
)
def test_only_the_case_it_fails_in_is_lost(candidate, reason, tmp_path, monkeypatch):
    monkeypatch.setenv(HANGING, str(tmp_path / "hanging"))
    monkeypatch.setattr(isolated_evaluation, "time", Clock(tmp_path / "hanging"))
    limit = 2 << 30 if candidate == "eats_memory" else None
    results = evaluate_isolated(f"bad_candidates:{candidate}", CASES, timeout_s=900.0, memory_bytes=limit)
    verdicts = [judge(case, results[case.name]) for case in CASES]
    assert [verdict.status for verdict in verdicts] == [LossStatus.PASS, LossStatus.FAIL, LossStatus.PASS]
    assert reason in verdicts[1].reasons[0]


def test_a_candidate_that_cannot_be_imported_fails_every_case_at_once(monkeypatch):
    starts = []
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **named: starts.append(1) or start(*given, **named)
    )
    results = evaluate_isolated("no_such_module:candidate", CASES, timeout_s=60.0)
    assert [case.name for case in CASES] == list(results)
    assert all("ModuleNotFoundError" in result.error for result in results.values())
    assert len(starts) == 1, "it was tried again for every case"


@pytest.mark.parametrize("name", ["", "module", ":attribute", "module:", "module:not an identifier"])
def test_a_name_that_names_nothing_is_bad_input(name):
    with pytest.raises(InputError, match="names no candidate"):
        evaluate_isolated(name, CASES, timeout_s=1.0)
