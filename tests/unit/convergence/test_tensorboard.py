"""TensorBoard event files without TensorBoard."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.convergence.telemetry.tensorboard import EventFile, masked_crc, read

# Written by torch.utils.tensorboard 2.13 (tensorboard 2.21): version record, then critic/rewards/mean = 0.25 at step 1.
BY_TORCH = bytes.fromhex(
    "4800000000000000fe92489d09451b5d3e0bc0da411a0d627261696e2e4576656e743a32522e0a2c74656e736f72626f"
    "6172642e73756d6d6172792e7772697465722e6576656e745f66696c655f777269746572db7a7b092900000000000000"
    "37ff5f00094c205d3e0bc0da4110012a1c0a1a0a136372697469632f726577617264732f6d65616e150000803e18de97"
    "19"
)


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while True:
        number, low = number >> 7, number & 0x7F
        out += bytes([low | (0x80 if number else 0)])
        if not number:
            return out


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(content):
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))


def event(step, tag, value):
    scalar = field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
    return record(
        varint(1 << 3 | 1)
        + struct.pack("<d", 1.5e9)
        + varint(2 << 3)
        + varint(step)
        + field(5, field(1, scalar))
    )


def step(number, reward=0.5, **others):
    metrics = {"critic/rewards/mean": reward, "actor/entropy": 1.5, "actor/grad_norm": 0.25, **others}
    return b"".join(event(number, tag, value) for tag, value in metrics.items())


def telemetry(data, **options):
    events = EventFile("events", **options)
    events.feed(data)
    return events.telemetry()


def test_the_checksum_is_that_of_the_format():
    # CRC-32C of nine digits is e3069283 (RFC 3720, appendix B.4 lists others of the same polynomial).
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_file_of_torch_is_read():
    found = telemetry(BY_TORCH)

    assert found.runs[0].series["reward"] == (0.25,)


def test_metrics_become_series_by_our_names():
    found = telemetry(step(1, 0.25) + step(2, 0.5), steps=2)

    (run,) = found.runs
    assert run.series == {"reward": (0.25, 0.5), "entropy": (1.5, 1.5), "grad_norm": (0.25, 0.25)}
    assert run.complete
    assert found.problems == run.problems == ()


def test_bytes_may_arrive_one_by_one():
    data = step(1) + step(2)
    events = EventFile("events", steps=2)
    for place in range(len(data)):
        events.feed(data[place : place + 1])

    assert events.telemetry() == telemetry(data, steps=2)


@pytest.mark.parametrize("cut", [1, 5, 13, 30])
def test_a_file_that_ends_in_a_record_says_so_and_keeps_what_is_whole(cut):
    found = telemetry(step(1) + step(2)[:-cut], steps=2)

    assert found.runs[0].steps >= 1
    assert "ends in the middle of a record" in found.problems[0]


def test_damage_is_named_with_its_place():
    data = bytearray(step(1) + step(2))
    data[len(step(1)) + 20] ^= 0xFF
    found = telemetry(bytes(data))

    assert found.runs[0].steps == 1
    assert f"byte {len(step(1))}: a record is damaged" in found.problems[0]


def test_steps_logged_again_after_a_resume_are_named():
    found = telemetry(step(1) + step(2, 0.1) + step(2, 0.9) + step(3))

    assert found.runs[0].series["reward"] == (0.5, pytest.approx(0.9), 0.5)
    assert "steps were logged again, the later value is used: 2" in found.problems[0]


def test_what_is_not_finite_is_kept_and_named():
    found = telemetry(step(1) + step(2, math.nan))

    assert math.isnan(found.runs[0].series["reward"][1])
    assert "reward is not finite: nan at step 2" in found.problems


def test_a_metric_that_lacks_and_too_many_steps_are_named():
    found = telemetry(b"".join(event(n, "critic/score/mean", 0.5) for n in (1, 2, 3)), steps=2)

    assert "no step has entropy, grad_norm" in found.problems
    assert "the log has 3 steps, but 2 were planned: it belongs to another recipe" in found.problems


def test_a_scalar_tensor_is_read():
    tensor = varint(1 << 3) + varint(1) + field(5, struct.pack("<f", 0.75))
    summary = field(1, field(1, b"critic/rewards/mean") + field(8, tensor))
    found = telemetry(record(varint(2 << 3) + varint(1) + field(5, summary)))

    assert found.runs[0].series == {"reward": (0.75,)}


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "cannot be read" in read(tmp_path / "events").problems[0]


@given(st.binary())
def test_any_bytes_are_read(data):
    found = telemetry(data)

    assert found.runs or found.problems


@given(st.binary())
def test_any_message_in_a_good_record_is_read(data):
    found = telemetry(step(1) + record(data))

    assert found.runs[0].steps >= 1
