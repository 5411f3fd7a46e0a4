"""Reads TensorBoard event files as telemetry, also while they are written, without TensorBoard.

Framing (tensorflow/core/lib/io/record_writer.h): length as uint64, masked CRC-32C of its 8 bytes, data,
masked CRC-32C of the data, all little-endian. Data (tensorflow/core/util/event.proto and
framework/summary.proto): `Event` with step (2) and summary (5), `Summary` with values (1), `Value` with tag
(1) and simple_value (2) or a scalar tensor (8). verl writes each metric of a step as a separate event, with
the name that its console log has. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.convergence.telemetry.series import RunBuilder, Telemetry
from harness.convergence.telemetry.verl_metrics import FIRST_STEP, metric_problems, values_of

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
# A summary of scalars has some dozens of bytes. A longer record is damaged, although its checksum is correct.
LONGEST_RECORD = 1 << 26
# Fields of the messages above, and of TensorProto (framework/tensor.proto).
_STEP, _SUMMARY, _VALUE, _TAG, _SIMPLE, _TENSOR = 2, 5, 1, 1, 2, 8
_TENSOR_CONTENT, _FLOAT_VALUES, _DOUBLE_VALUES, _DTYPE = 4, 5, 6, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2


class DamagedError(ValueError):
    """The bytes are not a valid record or protobuf message."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value of one metric."""

    step: int
    tag: str
    value: float


class EventFile:
    """Reads a growing event file: pass its bytes to `feed`, and call `telemetry` at any time.

    steps: planned training steps. The run is complete when the last of them was logged.
    """

    def __init__(self, name: str, *, steps: int | None = None) -> None:
        self.name = name
        self.steps = steps
        self._rest = b""
        self._offset = 0
        self._damage = ""
        self._logged: dict[int, dict[str, float]] = {}
        self._repeated: list[int] = []

    def feed(self, data: bytes) -> None:
        """Read the next bytes, which may end anywhere. Nothing after a damaged record can be read."""
        if self._damage:
            return
        self._rest += data
        try:
            while (record := self._record()) is not None:
                for scalar in scalars(record):
                    self._add(scalar)
        except DamagedError as error:
            self._damage = f"{self.name}: byte {self._offset}: {error}; what follows cannot be read"

    def telemetry(self) -> Telemetry:
        """The run so far, and the problems."""
        problems = [self._damage] if self._damage else []
        if self._rest and not self._damage:
            problems.append(
                f"{self.name} ends in the middle of a record, {len(self._rest)} bytes after {self._offset}"
            )
        if self._repeated:
            shown = ", ".join(map(str, sorted(set(self._repeated))[:5]))
            problems.append(f"{self.name}: steps were logged again, the later value is used: {shown}")
        builder = RunBuilder({"source": self.name}, first=FIRST_STEP)
        for step, logged in sorted(self._logged.items()):
            values = values_of(logged)
            if values:
                builder.add({"step": step, **values}, self.name)
        if not builder.steps:
            problems.append(f"{self.name} contains no training step")
            return Telemetry(runs=(), problems=tuple(problems))
        builder.ended = self.steps is not None and max(builder.steps) >= self.steps
        run = builder.build()
        return Telemetry(runs=(run,), problems=(*problems, *metric_problems(run, self.steps)))

    def _record(self) -> bytes | None:
        """The next complete record, or None if it has not arrived yet."""
        if len(self._rest) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack_from(self._rest)
        if masked_crc(self._rest[:8]) != checksum or length > LONGEST_RECORD:
            raise DamagedError("a record's length is damaged")
        end = _HEADER.size + length + _CHECKSUM.size
        if len(self._rest) < end:
            return None
        record = self._rest[_HEADER.size : end - _CHECKSUM.size]
        (checksum,) = _CHECKSUM.unpack_from(self._rest, end - _CHECKSUM.size)
        if masked_crc(record) != checksum:
            raise DamagedError("a record is damaged")
        self._rest = self._rest[end:]
        self._offset += end
        return record

    def _add(self, scalar: Scalar) -> None:
        logged = self._logged.setdefault(scalar.step, {})
        if scalar.tag in logged:
            self._repeated.append(scalar.step)
        logged[scalar.tag] = scalar.value


def read(path: Path, *, steps: int | None = None) -> Telemetry:
    """The telemetry of a whole event file. A missing file has no run and one problem."""
    events = EventFile(path.name, steps=steps)
    try:
        events.feed(path.read_bytes())
    except OSError as error:
        return Telemetry(runs=(), problems=(f"{path.name} cannot be read: {error.strerror or error}",))
    return events.telemetry()


def scalars(event: bytes) -> Iterator[Scalar]:
    """The scalars of an `Event`. Raises DamagedError when the bytes are not a message."""
    step, summaries = 0, []
    for field, value in _fields(event):
        if field == _STEP and isinstance(value, int):
            # An int64 is written as an unsigned number with the same 64 bits.
            step = value - (1 << 64) if value >> 63 else value
        elif field == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == _VALUE and isinstance(value, bytes):
                found = _scalar(value)
                if found is not None and step >= 0:
                    yield Scalar(step=step, tag=found[0], value=found[1])


def _scalar(message: bytes) -> tuple[str, float] | None:
    tag, value = "", None
    for field, found in _fields(message):
        if field == _TAG and isinstance(found, bytes):
            tag = found.decode("utf-8", "replace")
        elif field == _SIMPLE and isinstance(found, bytes) and len(found) == 4:
            value = struct.unpack("<f", found)[0]
        elif field == _TENSOR and isinstance(found, bytes):
            value = _of_tensor(found)
    return (tag, value) if tag and value is not None else None


def _of_tensor(message: bytes) -> float | None:
    """The number in a scalar tensor of float or double; None for other tensors."""
    found: Mapping[int, int | bytes] = dict(_fields(message))
    formats = {_DT_FLOAT: ("<f", _FLOAT_VALUES), _DT_DOUBLE: ("<d", _DOUBLE_VALUES)}
    layout, field = formats.get(found.get(_DTYPE), ("", 0))  # type: ignore[arg-type]
    content = found.get(field) or found.get(_TENSOR_CONTENT)
    if not layout or not isinstance(content, bytes) or len(content) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, content)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The field numbers and values of a protobuf message; numbers of fixed size are returned as bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            number, place = _varint(message, place)
            yield field, number
            continue
        if kind == _BYTES:
            length, place = _varint(message, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise DamagedError(f"a field has the unknown kind {kind}")
        if place + length > len(message):
            raise DamagedError("a field is longer than its message")
        yield field, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise DamagedError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & (1 << 64) - 1, place
    raise DamagedError("a number has more than ten bytes")


def _table() -> tuple[int, ...]:
    entries = []
    for entry in range(256):
        value = entry
        for _bit in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_CRC = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C (Castagnoli), rotated and offset as in TFRecord files (tensorflow/core/lib/hash/crc32c.h)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
