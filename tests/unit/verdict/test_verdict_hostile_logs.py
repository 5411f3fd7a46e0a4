"""Malicious input anywhere in a log: it must not break, hide or forge anything, nor leak secrets."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.outcome import Judgement, Status
from harness.verdict.gate.gate import GateInputs, judge_gate
from harness.verdict.gate.gate_format import COMMENT_MARKER, FORMATS
from harness.verdict.gate.gate_report import Place
from harness.verdict.triage import log_scan, metric_forms
from harness.verdict.triage.diagnosis import triage_text
from harness.verdict.triage.diagnosis_text import describe, in_short
from harness.verdict.triage.learn_signature import generalise
from harness.verdict.triage.log_blocks import BLOCK_BYTES as CHUNK_BYTES
from harness.verdict.triage.log_line import parse_line, shown
from harness.verdict.triage.log_scan import BEFORE_BYTES, LINE_BYTES
from harness.verdict.verdict import judge_against_expectation

WORD = "hunter2hunter2"
#: Lines with a secret, WORD, which must be masked.
SECRETS = st.sampled_from(
    [
        f"Authorization: Bearer {WORD}",
        f"api_key={WORD}",
        f"'password': '{WORD}'",
        f"token = {WORD}",
        f"hf_{WORD}",
        f"ghp_{WORD}",
        f"https://user:{WORD}@host/x",
        f"SECRET_KEY: {WORD}",
        f"--hub-token {WORD}",
        f'secret="two words {WORD}"',
        f"curl -s -u bob:{WORD} http://host",
        f"AccountKey={WORD}==",
        f"Cookie: sid={WORD}",
        f"Authorization: Basic {WORD}",
        f"eyJhbGciOiJIUzI1NiJ9.{WORD}.{WORD}",
        f"-----BEGIN RSA PRIVATE KEY----- {WORD} -----END RSA PRIVATE KEY-----",
    ]
)
COMMANDS = st.sampled_from(
    ["::set-output name=a::b", "::error file=x::y", "##[error]z", "::add-mask::q", "  ::stop-commands::t"]
)
ESCAPES = st.sampled_from(
    ["\x1b[31m", "\x1b[0m", "\x1b]8;;http://e\x07", "\x1b[2J", "\x00", "\r", "\x9b31m", "\u202e", "\u2028"]
)
plain = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)
line = st.lists(st.one_of(plain, ESCAPES, COMMANDS, SECRETS.map(lambda text: f" {text} ")), max_size=6).map(
    "".join
)
encodings = st.sampled_from(["utf-8", "gb18030", "utf-16-le", "utf-16-be", "shift_jis", "latin-1"])
KNOWN = "RuntimeError: NCCL is not available"


def safe(text: str) -> None:
    for one in text.split("\n"):
        assert not one.lstrip().startswith("::set-output")
        assert not one.lstrip().startswith("::add-mask")
        assert not one.lstrip().startswith("::stop-commands")
        assert "##[" not in one
    assert not set(text) & set("\x00\x1b\x9b\u202e\u2028")
    assert WORD not in text


@given(st.lists(line, max_size=5), st.lists(line, max_size=5))
@settings(max_examples=150, deadline=None)
def test_a_known_failure_between_hostile_lines_is_found_and_what_is_told_is_safe(before, after):
    text = "\n".join([*before, KNOWN, *after])
    found = triage_text(text.encode("utf-8", "replace"))
    assert "nccl" in {one.id for one in found.findings}
    safe("\n".join(describe(found)))
    reasons, remedies = in_short(found)
    safe("\n".join([*reasons, *remedies]))
    json.dumps(found.to_json())


@given(line, st.sampled_from(["ValueError", "RuntimeError"]))
@example("0::set-output name=a::b", "ValueError")
@settings(max_examples=150, deadline=None)
def test_an_unknown_failure_with_a_hostile_message_is_told_safely(message, kind):
    log = f'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    g()\n{kind}: {message}\n'
    found = triage_text(log.encode("utf-8", "replace"))
    safe("\n".join(describe(found)))
    if found.root:
        # In the output, the literal text only occurs in the list of the catalogue, never at the start of a line.
        safe(f"- {generalise(found.root.text)[1]}")


@given(st.lists(st.tuples(line, encodings), max_size=4), encodings)
@settings(max_examples=100, deadline=None)
def test_lines_in_different_encodings_do_not_hide_a_failure(others, encoding):
    log = b"".join(text.encode(name, "replace") + "\n".encode(name) for text, name in others)
    log += f"\n{KNOWN}\n".encode(encoding)
    assert "nccl" in {one.id for one in triage_text(log).findings}


@pytest.mark.parametrize("text", [KNOWN, "terminate called after throwing an instance"])
@pytest.mark.parametrize("shift", [-2, 0, 1, 8, 20, 36, 37, 38, 42])
def test_a_failure_is_found_once_wherever_an_endless_line_is_cut(text, shift):
    after = LINE_BYTES * 2 - BEFORE_BYTES
    for length in (LINE_BYTES * 2, CHUNK_BYTES):
        log = b"x" * (length - after - shift) + text.encode() + b"y" * after
        found = triage_text(log)
        assert [one.count for one in found.findings] == [1]
        log = (
            b"x" * (length - BEFORE_BYTES - shift) + text.encode() + b"y" * (BEFORE_BYTES + shift - len(text))
        )
        assert [one.count for one in triage_text(log + b"z" * CHUNK_BYTES).findings] == [1]


@given(st.integers(0, CHUNK_BYTES * 3), st.integers(0, CHUNK_BYTES), line)
@example(28637, 4094, "")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_endless_line_does_not_hide_a_failure_wherever_it_stands(before, after, noise):
    log = b"x" * before + noise.encode("utf-8", "replace") + f" {KNOWN} ".encode() + b"y" * after
    found = triage_text(log)
    assert "nccl" in {one.id for one in found.findings}
    safe("\n".join(describe(found)))


def test_ten_megabytes_without_a_line_end():
    found = triage_text(b"\x1b[31m" + b"z" * 10_000_000 + KNOWN.encode() + b"\x00" * 1000)
    assert found.root.id == "nccl"
    assert len(found.root.text) <= 400


@given(line, line, line)
@settings(max_examples=100, deadline=None)
def test_a_gate_over_hostile_words_is_red_and_every_rendering_is_safe(reason, remedy, change):
    name = ("cell", "loss")
    verdict = judge_against_expectation(
        "cell",
        "loss",
        Judgement(status=Status.FAIL, reasons=(reason,), remedies=(remedy,)),
        expected=None,
    )
    report = judge_gate(
        GateInputs(
            base_name="main",
            head={name: verdict},
            places={name: Place(file="a.yaml", line=3)},
            changes={name: [change]},
            problems=(reason,),
            notices=(remedy,),
        )
    )
    assert report.exit_code == 1
    for kind, render in FORMATS.items():
        text = render(report)
        if kind == "json":
            json.loads(text)
        if kind in {"json", "sarif"}:
            assert WORD not in text
            continue
        safe(text.replace(COMMENT_MARKER, ""))


@given(st.lists(st.one_of(plain, ESCAPES, COMMANDS, SECRETS), max_size=6).map(" ".join))
@settings(max_examples=200, deadline=None)
def test_an_excerpt_is_one_line_that_commands_nothing_and_leaks_nothing(text):
    safe(shown(text))
    assert "\n" not in shown(text)


@pytest.mark.parametrize(
    "text",
    [
        "TypeError: unexpected keyword argument 'hf_processor_kwargs'",
        "KeyError: 'hf_config_path'",
        "asia-southeast1-docker is slow",
        "max_token: 512, eos_token: 2",
        "the task-runner-of-the-cluster stopped",
        "token 17 of 4096",
    ],
)
def test_what_only_looks_a_little_like_a_secret_is_shown(text):
    assert shown(text) == text


FRAME_LINE = '  File "/usr/lib/x/m{0}.py", line {0}, in f{0}\n'
#: Logs of one kind of line: what a line is, and how many of them.
MONOTONOUS = [
    (FRAME_LINE, 60_000),
    (FRAME_LINE + "    y = g(x)\n", 30_000),
    (FRAME_LINE.replace(", in", " in"), 60_000),
    ("Traceback (most recent call last):\n" + FRAME_LINE, 30_000),
    # A process of which nothing more is heard, between lines of the others.
    ("(A_{0} pid=7{0}) Traceback (most recent call last):\n" + "(B pid=1) it works on\n" * 3000, 80),
]


@pytest.mark.parametrize(("line", "count"), MONOTONOUS)
def test_most_of_a_stack_without_an_end_is_passed_over(line, count, monkeypatch):
    parsed = []
    monkeypatch.setattr(log_scan, "parse_line", lambda raw: parsed.append(raw) or parse_line(raw))
    body = "".join(line.format(at) for at in range(count))
    found = triage_text(f"{body}main: it ends\nRuntimeError: the last one\n".encode())
    assert any("the last one" in one.text for one in found.findings)
    assert found.lines == body.count("\n") + 2
    # All lines of the last parts are parsed, and some before.
    last = sum(len(one) for one in parsed)
    assert last < 5 * CHUNK_BYTES + len(body) / 4


def test_a_failure_between_stacks_without_an_end_is_found():
    stack = "".join(FRAME_LINE.format(at) for at in range(30_000))
    text = f"{stack}RuntimeError: CUDA error in the middle\n{stack}"
    found = triage_text(text.encode())
    assert any("in the middle" in one.text for one in found.findings)


@pytest.mark.parametrize("blank", ["x", " "])
def test_what_is_shown_of_a_very_long_line_has_no_part_of_a_secret(blank):
    for at in range(2400, 2500):
        text = f"{blank * at}token=hunter2hunter2{blank * 100_000}"
        assert "hunter2" not in shown(text, 2000)
        assert shown(text, 2000) == shown(text[:60_000], 2000)


def test_progress_bars_and_metrics_on_one_line_are_read_once(monkeypatch):
    spans = []
    monkeypatch.setattr(
        metric_forms, "_STEP_ON_LINE", Recorder(metric_forms._STEP_ON_LINE, spans), raising=True
    )
    data = b"  3%| | 3/100 [train/loss: 0.5\r" * 2000 + b"step: 7 train/loss: 0.25\n"
    found = list(metric_forms.other_forms(data))
    assert {one.step for one in found} == {3, 7}
    assert sum(spans) <= 2 * len(data)


class Recorder:
    """A pattern that records how many bytes are searched."""

    def __init__(self, pattern, spans):
        self.pattern, self.spans = pattern, spans

    def search(self, text):
        self.spans.append(len(text))
        return self.pattern.search(text)
