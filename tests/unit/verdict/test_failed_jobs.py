"""A failed job is never "nothing found", and a healthy log that mentions errors is."""

from __future__ import annotations

import pytest
from healthy_logs import SCARES, healthy_log, scary_log

from harness.verdict.triage.catalogue import shipped_catalogue
from harness.verdict.triage.diagnosis import triage_text

EXAMPLES = tuple(
    one.example
    for one in shipped_catalogue().signatures
    if not one.example.startswith(("[rank", "(", "kernel:"))
)
STEP = "(TaskRunner pid=7) step:{0} - actor/entropy:0.5 - actor/grad_norm:0.9 - training/global_step:{0}\n"

TORCHRUN = """\
E1120 08:00:00.123000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 5 (pid: 4250) of binary: /usr/bin/python3
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_08:00:00
  rank      : 5 (local_rank: 5)
  exitcode  : 1 (pid: 4250)
"""
WORKER = """\
(Worker_TP1 pid=77) ERROR 11-20 08:00:00 [multiproc_executor.py:870] WorkerProc hit an exception.
(Worker_TP1 pid=77) ERROR 11-20 08:00:00 [multiproc_executor.py:870] Traceback (most recent call last):
(EngineCore_DP0 pid=70) INFO 11-20 08:00:00 [core.py:10] waiting
(Worker_TP1 pid=77) ERROR 11-20 08:00:00 [multiproc_executor.py:870]   File "/usr/lib/python3/site-packages/a/b.py", line 3, in f
(Worker_TP1 pid=77) ERROR 11-20 08:00:00 [multiproc_executor.py:870]     g()
(Worker_TP1 pid=77) ERROR 11-20 08:00:00 [multiproc_executor.py:870] ValueError: tile 17 is odd
"""
OLD_VLLM = """\
(NPURayWorkerWrapper pid=45464) ERROR 06-09 06:57:48 worker_base.py:581] Traceback (most recent call last):
(NPURayWorkerWrapper pid=45464) ERROR 06-09 06:57:48 worker_base.py:581]   File "/a/b.py", line 3, in f
(NPURayWorkerWrapper pid=45464) ERROR 06-09 06:57:48 worker_base.py:581] ValueError: tile 17 is odd [repeated 6x across cluster]
"""
DOCKER = """\
{"log":"Traceback (most recent call last):\\n","stream":"stderr","time":"2026-11-20T08:00:00Z"}
{"log":"  File \\"a.py\\", line 1, in f\\n","stream":"stderr","time":"2026-11-20T08:00:00Z"}
{"log":"ValueError: tile 17 is odd\\n","stream":"stderr","time":"2026-11-20T08:00:00Z"}
"""
#: Text of a failed job -> (what the root cause's text or id contains, its line, its rank).
FAILED = {
    "exception without a traceback": ("start\nValueError: tile 17 is odd\n", "tile 17 is odd", 2, None),
    "level of vLLM": (
        "ERROR 11-20 08:00:00 [core.py:708] the engine gave up\n",
        "the engine gave up",
        1,
        None,
    ),
    "level of logging": ("2026-11-20 08:00:00,123 - verl - ERROR - no card left\n", "no card left", 1, None),
    "level in brackets": ("[2026-11-20 08:00:00,123][root][ERROR] - no card left\n", "no card left", 1, None),
    "level of glog": ("E1120 08:00:00.123456  77 a/b.cc:12] no card left\n", "no card left", 1, None),
    "level of ray": (
        "(raylet) [2026-11-20 08:00:00,1 E 7 7] (raylet) a.cc:3: no card left\n",
        "no card left",
        1,
        None,
    ),
    "worker of vLLM": (WORKER, "tile 17 is odd", 6, 1),
    "worker of an old vLLM": (OLD_VLLM, "tile 17 is odd", 3, None),
    "docker's JSON": (DOCKER, "tile 17 is odd", 3, None),
    "torchrun": (TORCHRUN, "exit-status", 1, 5),
    "mpirun": ("[1,3]<stderr>:ValueError: tile 17 is odd\n", "tile 17", 1, 3),
    "oom killer": ("[ 77.1] Out of memory: Killed process 4242 (python3)\n", "host-oom", 1, None),
    "oom of a container": ("    Reason:       OOMKilled\n    Exit Code:    137\n", "host-oom", 1, None),
    "slurm oom": ("slurmstepd: error: Detected 1 oom_kill event in StepId=42.0\n", "host-oom", 1, None),
    "slurm time": (
        "slurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2026-11-20T08:00:00 DUE TO TIME LIMIT ***\n",
        "slurm-time-limit",
        1,
        None,
    ),
    "slurm exit": ("srun: error: n1: task 3: Exited with exit code 1\n", "exit-status", 1, None),
    "shell": ("run.sh: line 12:  4242 Killed                  python3 -m verl\n", "sigkill", 1, None),
    "shell, alone": ("loading\nKilled\n", "Killed", 2, None),
    "exit status": ("Process finished with exit code 139\n", "segfault", 1, None),
    "bus error": ("Bus error (core dumped)\n", "bus-error", 1, None),
    "terminate": (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  x\n",
        "abort",
        1,
        None,
    ),
    "signal": ("torch: Received Signals.SIGTERM death signal, shutting down\n", "sigterm", 1, None),
    "frames without a head": (
        '  File "/a/b.py", line 250, in _load\n    libs = f(\n',
        "unfinished traceback",
        2,
        None,
    ),
    "traceback without an end": (
        'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n',
        "unfinished",
        2,
        None,
    ),
    "reason of pydantic": ("start\n> Value error, tile 17 is odd\n", "tile 17 is odd", 2, None),
    "behind an unknown prefix": (
        "start\n[0] <7> assert a.n > 1\n[0] <7> AssertionError\n",
        "AssertionError",
        3,
        None,
    ),
    "what could not be done": (
        "2026-11-20 08:00:00 | Failed to save a/b: no place\n",
        "Failed to save",
        1,
        None,
    ),
    "hydra": ("Error executing job with overrides: ['a=b']\n", "Error executing job", 1, None),
    "colours": ("\x1b[31mValueError\x1b[0m: tile 17 is odd\n", "tile 17 is odd", 1, None),
    "assert of C": ("python3: a.cc:12: void f(): Assertion `n > 0' failed.\n", "Assertion", 1, None),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_job_is_a_failure_with_its_line_and_rank(name):
    text, says, line, rank = FAILED[name]
    found = triage_text(text.encode())
    assert not found.is_clean
    root = found.root
    assert root is not None, name
    assert says in f"{root.id} {root.text}"
    assert (root.line, root.ranks[0] if root.ranks else None) == (line, rank)


@pytest.mark.parametrize("name", FAILED)
def test_it_is_found_after_steps_in_the_middle_of_other_ranks(name):
    text, _says, line, _rank = FAILED[name]
    before = "".join(STEP.format(step) for step in range(1, 4))
    others = "[rank9]: destroying the process group\n" * 3
    found = triage_text((before + text + others).encode())
    assert found.root is not None
    assert found.root.line == line + 3
    assert not found.is_clean


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        ("\0" * 100, "empty"),
        ("loading the model\n", "unknown"),
        ("Total training steps: 100\n" + STEP.format(45), "unfinished"),
        ("Total training steps: 100\n" + STEP.format(100), "working"),
        (
            STEP.format(45) + "Training Progress:  45%|####      | 45/100 [02:11<04:09,  1.2s/it]\n",
            "unfinished",
        ),
        (STEP.format(45), "working"),
        (STEP.format(45) + "('Final validation metrics: {}')\n", "finished"),
    ],
)
def test_a_log_without_a_failure_says_how_it_ends(text, kind):
    found = triage_text(text.encode())
    assert found.ending.kind == kind
    assert found.is_clean == (kind in {"working", "finished"})
    assert found.root is None


def heartbeats(minutes, running=3):
    return "".join(
        f"INFO 11-20 {8 + minute // 60:02}:{minute % 60:02}:00 [loggers.py:123] Avg generation throughput: 0.0 tokens/s, "
        f"Running: {running} reqs\n"
        for minute in range(minutes)
    )


def test_a_job_that_stands_still_is_told_by_its_clock_and_last_collective():
    steps = "".join(f"INFO 11-20 07:{50 + step}:00 [a.py:1] x\n" + STEP.format(step) for step in range(1, 9))
    waiting = "(WorkerDict pid=9) start broadcast of bucket 7\n"
    found = triage_text((steps + waiting + heartbeats(90)).encode())
    assert found.root.id == "stands-still"
    assert "11-20 09:29:00" in found.root.text
    assert "broadcast (line 17)" in found.root.text
    assert found.root.line == 16
    assert not found.known
    assert triage_text((steps + waiting + heartbeats(10)).encode()).root is None
    assert triage_text(heartbeats(90, running=0).encode()).root is None
    assert triage_text((steps + waiting + heartbeats(90) + STEP.format(10)).encode()).root is None


def test_a_job_that_never_began_stands_still_too():
    text = "2026-11-20 08:00:00,1 INFO init_process_group\n2026-11-20 10:00:00,1 INFO waiting\n"
    found = triage_text(text.encode())
    assert found.root.id == "stands-still"
    assert found.root.line == 1


@pytest.mark.parametrize("scare", SCARES, ids=range(len(SCARES)))
def test_a_scare_is_no_failure(scare):
    text = (STEP.format(1) + scare + "\n" + STEP.format(2)).encode()
    found = triage_text(text)
    assert found.findings == ()
    assert found.is_clean


@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_log_that_cites_every_known_error_is_clean(seed):
    found = triage_text(scary_log(1_000_000, EXAMPLES, seed))
    assert found.findings == ()
    assert found.is_clean


def test_the_same_errors_are_found_where_nobody_cites_them():
    log = scary_log(100_000, EXAMPLES, 3)
    for example in EXAMPLES[::7]:
        assert triage_text(log + example.encode() + b"\n").root is not None, example


def test_an_error_in_an_answer_that_never_ends_is_a_failure():
    text = "[prompt] what is 1+1?\n[response] RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB\n"
    assert triage_text(text.encode()).root.id == "npu-oom"


def test_the_first_error_is_named_besides_the_root_cause():
    text = "ERROR 11-20 08:00:00 [a.py:1] rank 3 lost its card\nRuntimeError: NCCL is not available\n"
    found = triage_text(text.encode())
    assert found.root.id == "nccl"
    assert (found.first.line, found.first.ranks) == (1, (3,))


def test_a_healthy_log_is_clean():
    assert triage_text(healthy_log(300_000) + STEP.format(7).encode()).is_clean
