"""The end of a log that reads like a failure without a level, an exception or a known message."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from healthy_logs import healthy_lines

from harness.compat.knowledge.pack_at_hand import PackAtHand
from harness.verdict.triage.diagnosis import Diagnosis, triage_text
from harness.verdict.triage.last_lines import suspicious_lines

WORKED = tuple(islice(healthy_lines(3), 60))
NO_RELEASES = PackAtHand(Path("no.pack"))
FAILURES = (
    "No solution found when resolving dependencies:",
    "CANN version is not compatible with driver version",
    "hcclCommInitRootInfoConfig failed",
    "'NoneType' object has no attribute 'shape'",
    "Set device 3 failed",
    "Set device 0 failed",
    "Floating point operation raised an unknown signal",
    "torch.OutOfMemoryError",
    "1 out of 3 hunks FAILED -- saving rejects to file x.rej",
    "loss is nan",
    "Training stopped: loss is inf",
    "设备不存在",
    "Hangup",
    "^C",
    "^CTraceback (most recent call last):",
    "Process EngineCore_DP0:",
    "Job 'raysubmit_x' was stopped",
    "connection reset by peer",
    "lost connection to node 3",
    "Preempted by scheduler",
    "returncode=-11",
)
ORDINARY = (
    "(TaskRunner pid=1) Saving model checkpoint to /ckpt/global_step_100",
    "0 of 128 samples failed",
    "no invalid samples in this batch",
    "retries: 3, error_if_overlong=False, 'ignore_missing': False, timeout: 600",
    "rollout_corr/kl:nan",
    "(TaskRunner pid=1) local_global_step_folder: checkpoints/x/global_step_5",
    "(TaskRunner pid=1) test_gen_batch meta info: {'eos_token_id': 151645, 'do_sample': True}",
    "(TaskRunner pid=1) validation generation end",
    "(TaskRunner pid=1) len reward_extra_infos_dict['reward']: 100",
    "(WorkerDict pid=1) After sync model weights in sharding manager, memory allocated (GB): 3.1",
    "[2026-11-20 08:00:00] step 7 of 10",
    "Broadcast of bucket 3 took 0.2 s",
    "dataset len: 7473",
    "skip_invalid=True",
    "Number of failed requests: 0",
    "found 0 errors",
    "real\t12m3.412s",
    "Sat Nov 29 17:01:32 UTC 2026",
    "2026年11月29日 17:01:32",
    "Peak memory 54.2 GB",
    "Reclaimed 12.3 GB",
    "Script executed in 512 seconds",
    "Time elapsed 3 h 12 min",
    "GSM8K | 0.81",
    "Average throughput 1234.5 tokens/s",
    "NPU 0 utilization 93 %",
    "Final loss 0.12",
    "+ set +x",
    "+ exit 0",
    "Exit status 0",
    "2026-11-29 12:00:00,123 SUCC cli.py:62 -- -----------------------------------",
    "Merging shards into one file",
    "Copied /ckpt/x to /mnt/nas/x",
    "Results are in /ckpt/x/results.json",
    "Goodbye!",
    "  _warnings.warn(warn_message, ResourceWarning)",
    "connection reset by peer, will retry in 3 s",
    "Loss scale overflow, skipping step 1",
    "[prompt] Why does RuntimeError: HCCL error occur?",
    "[response] Because the process was killed.",
    "[ground_truth] killed",
    "(vLLMHttpServer pid=8) WARNING 11-20 08:00:00 [scheduler.py:1] request 3 could not be scheduled",
)


def diagnosis(*last: str) -> Diagnosis:
    return triage_text("\n".join([*WORKED, *last, ""]).encode(), surfaces=NO_RELEASES)


@pytest.mark.parametrize("prefix", ["", "(WorkerDict pid=7) ", "> ", "   12  "])
@pytest.mark.parametrize("line", FAILURES)
def test_a_last_line_that_says_what_failed_is_the_failure(line, prefix):
    found = diagnosis(f"{prefix}{line}")
    assert not found.is_clean
    assert found.root is not None
    assert found.root.line == len(WORKED) + 1


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_last_lines_leave_a_log_clean(line):
    assert diagnosis(line).is_clean


def test_what_was_said_before_the_last_step_ended_nothing():
    said = "request {} could not be parsed, its reward is 0"
    tail = [(1, said.format(7)), (2, "step:1"), (3, said.format(8))]
    assert suspicious_lines(tail, 2, ended=False) == []
    assert suspicious_lines(tail[1:], 2, ended=False) == [tail[-1]]


def test_after_a_good_end_only_certain_errors_count():
    tail = [(1, "training is finished"), (2, "the profiler could not be stopped")]
    assert suspicious_lines(tail, 1, ended=True) == []
    assert suspicious_lines([*tail, (3, "error: core dumped")], 1, ended=True) == [(3, "error: core dumped")]


def test_without_progress_only_the_very_last_lines_say_why_the_log_ends():
    tail = [(1, "the cache does not exist"), *((number, "loading") for number in range(2, 20))]
    assert suspicious_lines(tail, 0, ended=False) == []
    assert suspicious_lines([*tail, (20, "device not found")], 0, ended=False) == [(20, "device not found")]


RESULTS = {
    "accuracy after timeouts": ("accuracy: 0.742 (371 / 500)", "Timeout during comparison"),
    "failed samples": (
        "HumanEval/32: failed: name 'poly' is not defined",
        "HumanEval/99: timed out",
        "{'pass@1': 0.6829268292682927}",
    ),
    "a table of requests": (
        "\u2502 Benchmark Duration \u2502 total \u2502 100121.1 ms \u2502",
        "\u2502 Failed Requests \u2502 total \u2502 0 \u2502",
    ),
    "a row of numbers": (
        "       win_rate  standard_error  n_total",
        "qwen      40.02            1.51      805",
        "could not compute the cost: unknown price of model",
    ),
    "counts of samples": ("Timeout samples: 2", "Empty samples: 1", "Mean score: [74.2]"),
    "a printed answer": (
        "Prompt: 'The error says', Generated text: ' no file could be found. RuntimeError: x'",
    ),
}


@pytest.mark.parametrize("lines", RESULTS.values(), ids=list(RESULTS))
def test_results_of_an_evaluation_are_no_failure(lines):
    assert triage_text("\n".join(lines).encode(), surfaces=NO_RELEASES).root is None


def test_an_error_after_the_results_is_found():
    found = triage_text(b"accuracy: 0.742 (371 / 500)\nRuntimeError: cannot write\n", surfaces=NO_RELEASES)
    assert found.root is not None


def test_one_sample_that_failed_ends_no_job():
    assert diagnosis("Failed to parse the answer of sample 17, reward 0").is_clean
    assert not diagnosis("Failed to parse the answer of the server").is_clean


IGNORED = (
    "Final validation metrics: {'val/acc': 0.7}",
    "Exception ignored in: <function ForkServer.__del__ at 0x7f>",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/multiprocessing/forkserver.py", line 80, in __del__',
    "    os.close(self._forkserver_alive_fd)",
    "OSError: [Errno 9] Bad file descriptor",
)


def test_what_python_ignores_in_a_destructor_is_no_failure():
    assert diagnosis(*IGNORED).is_clean
    assert not diagnosis(IGNORED[0], *IGNORED[2:]).is_clean


def test_tests_that_passed_with_expected_failures_ended_well():
    summary = "===== 212 passed, 3 xfailed, 40 warnings in 51.21s ====="
    assert triage_text(
        f"test_timeout XFAIL (known failure)\n{summary}\n".encode(), surfaces=NO_RELEASES
    ).is_clean
    failed = "===== 2 failed, 212 passed, 3 xfailed in 51.21s ====="
    assert not triage_text(f"{failed}\n".encode(), surfaces=NO_RELEASES).is_clean


def test_a_training_that_shows_a_result_and_then_stops_is_not_clean():
    steps = "".join(f"step:{number} - actor/loss:0.1\n" for number in (1, 2))
    last = "could not allocate the port for worker 3\n"
    failed = triage_text(f"{steps}accuracy: 0.53\n{last}".encode(), surfaces=NO_RELEASES)
    assert failed.root is not None
    assert failed.root.text == last.strip()
    # What an evaluation says before its last result was about single samples.
    assert triage_text(f"{steps}{last}accuracy: 0.53\n".encode(), surfaces=NO_RELEASES).root is None
    without_progress = triage_text(f"accuracy: 0.53\n{last}".encode(), surfaces=NO_RELEASES)
    assert not without_progress.is_clean


UNLIKE = (
    "Communication_Error_Get_Socket(E",
    "Available KV cache",
    "Health : Alarm",
    "errorCode: 0x91",
    "hccl_code: 507011",
    "The notify of rank 3 came after 1836 s",
    "Only 3.1 GB left on card 2",
    "No heartbeat of node 3 for 60 s",
    "08:00:00 Communication_Error_Get_Socket(E",
    "[0.12s] Communication_Error_Get_Socket(E",
    "| alarm | 0.81 |",
    "Wait for the notify: {'remote rank': 3}",
    "+ exit 1",
    "+ wait 77",
    "Exit status 1",
    "Copying /ckpt/x to /mnt/nas/x: nothing arrived",
    "Converting: rank 3 is silent",
    "Terminating child processes",
    "Shutting down the engine",
    "Link loss on port 3 alarm 12.5",
    "object_type=dict",
    "(W) W0724 08:00:00.123000 77 gcs.cc:178] Failed to get the id: timed out",
    "(WorkerDict pid=8) WARNING 11-20 08:00:00 [client.py:1] timed out while waiting for the server",
)


@pytest.mark.parametrize("line", UNLIKE)
def test_a_log_that_ends_unlike_its_working_job_is_not_clean(line):
    found = diagnosis(line)
    assert not found.is_clean
    assert found.root is not None or found.ending.kind == "unclear"
    assert found.root is not None or f"line {len(WORKED) + 1} on" in found.ending.sentence


def test_what_the_working_job_has_said_before_is_not_unclear():
    said = "bucket {} goes to worker 3"
    last = f"step:2 - training/global_step:2\n{said.format(8)}\n"
    log = "\n".join([*WORKED, said.format(7), ""])
    assert triage_text(f"{log}{last}".encode(), surfaces=NO_RELEASES).is_clean
    other = triage_text(f"{log}{last}bucket of nobody\n".encode(), surfaces=NO_RELEASES)
    assert other.ending.kind == "unclear"
    assert other.ending.line == len(WORKED) + 4


@pytest.mark.parametrize(
    "lines",
    [
        (
            "Exception ignored in: <function AsyncLLM.__del__ at 0xffff>\n"
            "Traceback (most recent call last):\n"
            '  File "/x/vllm/v1/engine/async_llm.py", line 265, in __del__\n'
            "    self.shutdown()\n"
            "TypeError: 'NoneType' object is not callable"
        ),
        "(raylet) [2026-11-20 08:00:01,000 I 1 1] raylet.cc:100: Raylet received SIGTERM, shutting down...",
        "[W1120 08:00:01.1 NPUStream.cpp:8] Warning: NPU warning, error code is 107003[Error]: ",
    ],
)
def test_what_is_no_error_to_its_program_ends_no_job_that_has_ended(lines):
    step = "step:{0} - training/global_step:{0} - actor/pg_loss:0.01 - actor/grad_norm:0.2\n"
    log = "".join(step.format(number) for number in range(1, 9))
    bar = "Training Progress: {} [10:00<00:00, 75.0s/it]\n"
    done = triage_text(f"{log}{bar.format('100%|####| 8/8')}{lines}\n".encode())
    assert done.is_clean
    assert not done.findings
    error = b"RuntimeError: batch of 17 is odd\n"
    assert not triage_text(f"{log}{bar.format('100%|####| 8/8')}".encode() + error).is_clean
