"""Logs of other programs: structured records, prefixes, ends of jobs, many ranks, and healthy logs that cite errors."""

from __future__ import annotations

import gzip
import json

import pytest

from harness.verdict.triage.citations import Citations
from harness.verdict.triage.diagnosis import triage_text
from harness.verdict.triage.log_line import parse_line
from harness.verdict.triage.log_record import read_record
from harness.verdict.triage.log_scan import MANY

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/w/verl/trainer/main_ppo.py", line 31, in main\n'
    "    run(config)\n"
    '  File "/w/verl/trainer/x.py", line 7, in run\n'
    '    raise ValueError("bad shape")\n'
    "ValueError: bad shape\n"
)
LINES = TRACEBACK.splitlines()


def step(number: int) -> str:
    return f"step:{number} - actor/entropy:0.5 - training/global_step:{number}\n"


STEPS = "".join(map(step, range(1, 40)))
HEALTHY = STEPS + "Final validation metrics: {'val-core/openai/gsm8k/reward/mean@1': '0.36'}\n"


def prefixed(prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in LINES)


def interleaved(prefix: str, ranks: int) -> str:
    return "".join(f"{prefix.format(rank)}{line}\n" for line in LINES for rank in range(ranks))


BAR = "\r".join(f"Training Progress:  {done}%|#| {done}/100 [00:01<01:00]" for done in range(37))
GLUED = "Training Progress:  37%|###   | 37/100 [00:10<00:20, 2.1s/it]"
TRACEBACKS = {
    "structlog": json.dumps({"ts": "2026-11-20", "level": "error", "msg": "failed", "exc_info": TRACEBACK}),
    "a message with a traceback": json.dumps({"severity": "ERROR", "message": TRACEBACK}),
    "a dictionary": str({"level": "error", "event": "failed", "exception": TRACEBACK}),
    "Kubernetes' runtime": prefixed("2026-11-20T08:00:00.123456789Z stderr F "),
    "a record behind a prefix": "2026-11-20T08:00:00.1Z stderr F "
    + json.dumps({"level": "error", "msg": "failed", "stack_trace": TRACEBACK}),
    "journald": prefixed("Nov 20 08:00:00 node1 python[4242]: "),
    "srun --label": interleaved("{:3d}: ", 200),
    "torchrun": STEPS + interleaved("[rank{}]: ", 128),
    "Ray": STEPS + interleaved("(WorkerDict pid={}) ", 128),
    "a progress bar": f"{BAR}\n{TRACEBACK}",
    "UTF-16": ("\ufeff" + STEPS + TRACEBACK).encode("utf-16-le"),
    "UTF-16 from its first line": ("\ufeff" + TRACEBACK).encode("utf-16-be"),
    "UTF-8 with a byte order mark": ("\ufeff" + TRACEBACK).encode(),
    "gzip": gzip.compress((STEPS + TRACEBACK).encode()),
    "a gzip archive of two members": gzip.compress(STEPS.encode()) + gzip.compress(TRACEBACK.encode()),
    "a gzip archive without its end": gzip.compress((STEPS + TRACEBACK).encode())[:-8],
    "carriage returns alone": (STEPS + TRACEBACK).replace("\n", "\r"),
    "bars of another process in it": STEPS + "".join(f"\r{GLUED}{line}\n" for line in LINES),
    "bars that overwrite it": STEPS + "".join(f"{line}\r{GLUED}\n" for line in LINES),
    "Windows": (STEPS + TRACEBACK).replace("\n", "\r\n"),
    "a terminal": "".join(f"\x1b[31m{line}\x1b[0m\n" for line in LINES),
}


@pytest.mark.parametrize("log", TRACEBACKS.values(), ids=TRACEBACKS.keys())
def test_a_traceback_is_found_in_every_form(log):
    root = triage_text(log if isinstance(log, bytes) else log.encode()).root
    assert root is not None
    assert root.text == "ValueError: bad shape"
    assert root.failure.frames[-1].file == "/w/verl/trainer/x.py"


ENDS = [
    *(
        "make: *** [Makefile:12: train] Error 2",
        "job finished: rc=137",
        "Pod failed: reason=Error exitCode=1",
    ),
    *("python: can't open file '/w/x.py': [Errno 2] No such file", "FAILED tests/x.py::y - assert 1 == 2"),
    *(
        "rayjob.ray.io/x status: FAILED",
        "Job 'raysubmit_x' failed",
        "*** stack smashing detected ***: terminated",
    ),
    *("double free or corruption (out)", "free(): invalid pointer", "assert False", "KeyboardInterrupt"),
    *("ninja: build stopped: subcommand failed.", "exec /entry.sh: exec format error", "ImagePullBackOff"),
    *("failed: 10, passed: 0", "失败样本数: 10", "错误: 0x7 无法读取", "error: 0 cards found"),
    *("status: Error", "state: FAILED", "训练失败: 内存不足", "错误: 无法加载模型", "Evicted"),
    *('time="2026-11-20T08:00:00Z" level=fatal msg="failed to start"', "{'level': 'error', 'event': 'lost'}"),
    *('{"level": "CRITICAL", "message": "worker 3 lost"}', "Traceback (most recent call last):"),
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("before", [STEPS, ""], ids=["after steps", "alone"])
def test_the_end_of_a_failed_job_is_a_failure(end, before):
    found = triage_text(f"{before}{end}\n".encode())
    assert not found.is_clean
    assert found.root is not None


@pytest.mark.parametrize(
    ("end", "fails"),
    [("训练失败: 内存不足", True), ("错误: 无法加载模型", True), ("训练完成,没有错误", False)],
)
def test_lines_in_the_encoding_of_chinese_systems_are_read(end: str, fails: bool) -> None:
    found = triage_text(STEPS.encode() + f"{end}\n".encode("gb18030"))
    assert found.is_clean != fails
    assert not fails or (found.root is not None and found.root.text == end)


def test_a_line_that_was_cut_within_a_letter_stays_utf_8() -> None:
    assert parse_line("训练失败".encode()[1:-1]).body.strip("\N{REPLACEMENT CHARACTER}") == "练失"


FAILURE = "RuntimeError: NPU out of memory."
RECORDS = [
    {"level": "error", "reason": FAILURE},
    {"level": "error", "msg": "step failed", "error": FAILURE},
    {"level": "error", "msg": "step failed", "error": {"message": FAILURE, "code": 1}},
    {"level": "error", "msg": {"text": "step failed", "message": FAILURE}},
    {"log": f"\n{FAILURE}\n", "stream": "stderr"},
]


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_cause_is_found_wherever_it_stands_in_a_record(record):
    root = triage_text(f"{json.dumps(record)}\n".encode()).root
    assert root is not None
    assert root.id == "npu-oom"


def test_a_record_of_level_error_is_a_failure_whatever_its_text_is_called():
    assert triage_text(b'{"level": "fatal", "detail": "worker 3 is lost"}\n').root is not None
    assert read_record('{"stream": "x", "data": "ValueError: x"}') is None


CITED = (
    f"[prompt] system\nExplain:\n{TRACEBACK}\n[response] 错误: it is a `ValueError: bad shape`\n[score] 1.0\n"
)
CLEAN = {
    "the log ends with samples": HEALTHY + CITED * 3,
    "a sample in JSON": json.dumps({"prompt": TRACEBACK, "response": "ValueError: x", "level": 3})
    + "\n"
    + HEALTHY,
    "records of level info": "".join(
        json.dumps({"level": "info", "msg": f"{n} errors: 0"}) + "\n" for n in range(9)
    )
    + HEALTHY,
    "counts of errors": HEALTHY
    + "0 failed, 12 succeeded\nfailures: 0\nstatus: SUCCEEDED\nexit code: 0\nrc=0\n",
    "counts that are zero": HEALTHY
    + "failed: 0, passed: 12\n训练完成,没有错误\n失败样本数: 0\nerror rate: 0.0%\n",
    "a request of vLLM": "INFO 06-24 09:08:01 [logger.py:43] Received request c: prompt: 'RuntimeError: NPU out of"
    " memory. Tried', params: x\n" + HEALTHY,
}


@pytest.mark.parametrize("log", CLEAN.values(), ids=CLEAN.keys())
def test_a_healthy_log_is_clean(log):
    found = triage_text(log.encode())
    assert found.is_clean
    assert not any(one.signature for one in found.findings)


def test_the_last_failure_is_found_behind_very_many_that_the_job_survived():
    log = "".join(TRACEBACK + step(number) for number in range(1, 5 * MANY))
    log += TRACEBACK.replace("bad shape", "the last one")
    assert triage_text(log.encode()).root.text == "ValueError: the last one"


def test_the_last_match_of_a_signature_is_found_behind_very_many_that_the_job_survived():
    log = "".join("RuntimeError: NPU out of memory.\n" + step(number) for number in range(1, 5 * MANY))
    found = triage_text(log.encode())
    assert found.is_clean
    found = triage_text(f"{log}RuntimeError: NPU out of memory.\n".encode())
    assert found.root.id == "npu-oom"


def test_a_message_of_several_lines_needs_no_traceback():
    log = b"""pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, The checkpoint you are trying to load has model type `qwen3_5` but Transformers does not recognize this
"""
    root = triage_text(log).root
    assert root.id == "model-type-qwen3-5"
    assert "from 5.2.0 on" in root.signature.cause


def test_a_model_type_is_meant_where_the_code_loads_a_model():
    log = """Traceback (most recent call last):
  File "/w/train.py", line 104, in load
    {}
KeyError: 'qwen3_next'
"""
    loads = triage_text(log.format("processor = AutoProcessor.from_pretrained(").encode())
    assert "transformers from 4.57" in loads.root.signature.cause
    assert not triage_text(log.format("value = table[name]").encode()).known


def test_a_key_that_the_program_reads_is_no_unknown_override():
    log = b"""Traceback (most recent call last):
  File "/w/verl/trainer/main_generation.py", line 68, in main
    wg.init_model()
omegaconf.errors.ConfigAttributeError: Key 'actor' is not in struct
    full_key: actor
"""
    root = triage_text(log).root
    assert root.signature.area == "config"
    assert "verl reads the key `actor`" in root.signature.cause
    override = triage_text(b"Could not override 'actor.x'.\nKey 'x' is not in struct\n").root
    assert override.id == "hydra-unknown-key"


def test_a_package_that_is_imported_from_its_source_code_has_no_compiled_modules():
    log = """Traceback (most recent call last):
  File "{}/torch_npu/npu/utils.py", line 11, in <module>
    import torch_npu._C
ModuleNotFoundError: No module named 'torch_npu._C'
"""
    source = triage_text(log.format("/data/pytorch").encode())
    assert source.known
    assert "/data/pytorch" in source.root.signature.cause
    installed = triage_text(log.format("/usr/lib/python3.10/site-packages").encode())
    assert not installed.known


def test_a_sample_is_no_record():
    assert read_record('{"prompt": "x", "response": "y"}') is None
    assert read_record("{broken") is None
    assert read_record('{"log": "x\\n", "stream": "stderr"}').text == "x"
    line = parse_line(b'time="2026-11-20" level=error msg="no device"')
    assert line.is_error


def test_a_citation_ends():
    log = b"[prompt] a\nValueError: x\n[score] 1\nValueError: y\n"
    citations = Citations(b"", log, b"")
    cited, real = log.index(b"ValueError: x"), log.index(b"ValueError: y")
    assert citations.contain(cited, log.index(b"\n", cited), "")
    assert not citations.contain(real, log.index(b"\n", real), "")


def test_frames_without_an_exception_hide_no_cause():
    frames = '  File "/w/verl/trainer/x.py", line 7, in run\n    go()\n'
    cause = "ValueError: [actor_rollout_ref.actor] Please set at least one of 'ppo_micro_batch_size'\n"
    found = triage_text((TRACEBACK.replace("ValueError: bad shape\n", cause) + frames).encode())
    assert found.root is not None
    assert "micro_batch" in found.root.text
    alone = triage_text(frames.encode())
    assert alone.root is not None
    assert "unfinished traceback" in alone.root.text


def test_a_damaged_archive_is_read_as_far_as_it_can_be() -> None:
    archive = bytearray(gzip.compress((STEPS * 2000).encode()))
    archive[len(archive) // 2] ^= 0xFF
    found = triage_text(bytes(archive))
    assert found.lines
    assert not triage_text(b"\x1f\x8b\x08 no archive").is_clean


COLLECTED = {
    "Elasticsearch": {"@timestamp": "2026-11-20T08:00:00Z", "message": "{}"},
    "CloudWatch": {"timestamp": 1, "message": "{}", "ingestionTime": 2},
    "Loki": {"line": "{}", "ts": "2026-11-20T08:00:00Z"},
    "Vector": {"host": "node1", "msg": "{}"},
}


@pytest.mark.parametrize("record", COLLECTED.values(), ids=COLLECTED.keys())
def test_a_collector_of_logs_states_no_level(record):
    lines = [
        json.dumps({key: line if value == "{}" else value for key, value in record.items()})
        for line in (STEPS + TRACEBACK).splitlines()
    ]
    found = triage_text("\n".join(lines).encode())
    assert found.root is not None
    assert found.root.text == "ValueError: bad shape"


def test_a_log_that_shows_its_newest_line_first_is_not_clean():
    lines = [*LINES[::-1], *STEPS.splitlines()[::-1]]
    found = triage_text("\n".join(lines).encode())
    assert found.root is not None
    assert found.root.text.startswith("ValueError: bad shape")
    assert any("newest line first" in note for note in found.notes)
    assert triage_text((STEPS + STEPS).encode()).is_clean
