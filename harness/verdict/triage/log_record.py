"""Reads a line that is one record of a structured log: a JSON object, or a dictionary as Python prints it.

Docker's json-file driver, collectors of logs (Elasticsearch, CloudWatch, Loki, Vector) and structlog write
such lines. An object without a level, a time or an origin is no record: a sample with prompt and answer.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LONGEST = 1 << 16
_LEVELS = {
    **{name: name.upper() for name in ("debug", "info", "notice", "warning", "error", "critical", "fatal")},
    "trace": "DEBUG",
    "warn": "WARNING",
    "err": "ERROR",
    "panic": "FATAL",
    "emergency": "FATAL",
}
_LEVEL_KEYS = ("level", "levelname", "severity", "lvl", "log.level", "loglevel")
_MESSAGE_KEYS = ("message", "msg", "event", "log", "body", "line")
# What a collector adds to each line: when and where it was written. A sample has neither.
_COLLECTED_KEYS = frozenset(
    {
        *("stream", "time", "ts", "timestamp", "@timestamp", "_time", "datetime", "ingestionTime"),
        *("host", "hostname", "kubernetes", "pod", "pod_name", "container", "container_name", "logGroup"),
    }
)
_DETAIL_KEYS = ("exc_info", "exc_text", "exception", "stack_trace", "traceback", "stack", "error", "err")
# `level=error msg="..."`, as programs in Go print it.
_LOGFMT = re.compile(r"\b(?:level|severity|lvl)=[\"']?(?P<level>[A-Za-z]{3,9})\b")
_WITHIN = 300


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """text: the message. rest: its further lines, and those of an exception. level: as in `LogLine`."""

    text: str
    rest: tuple[str, ...] = ()
    level: str = ""


def read_record(text: str) -> LogRecord | None:
    """The record on a line; None for another line."""
    fields = _fields(text)
    if fields is None:
        return None
    levels = (_LEVELS.get(str(fields[key]).casefold(), "") for key in _LEVEL_KEYS if key in fields)
    level = next(filter(None, levels), "")
    if not level and not fields.keys() & _COLLECTED_KEYS:
        return None
    parts = _parts(fields)
    if not parts:
        # Its text has another name, and may say why the job failed.
        return LogRecord(text=_other_texts(fields), level=level) if level else None
    lines = [line for part in parts for line in part.strip("\r\n").splitlines()]
    return LogRecord(text=lines[0] if lines else "", rest=tuple(lines[1:]), level=level)


def _parts(fields: Mapping[str, object]) -> list[str]:
    """The message of an object, and its exception, which may be an object too."""
    return [*_texts(fields, _MESSAGE_KEYS)[:1], *_texts(fields, _DETAIL_KEYS)]


def _other_texts(fields: Mapping[str, object]) -> str:
    shown = {key: value for key, value in fields.items() if key not in _LEVEL_KEYS and isinstance(value, str)}
    return "; ".join(f"{key}: {value}" for key, value in shown.items()).replace("\n", " ")


def _texts(fields: Mapping[str, object], keys: Iterable[str]) -> list[str]:
    found = []
    for value in map(fields.get, keys):
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            found.append("\n".join(_parts(value)))
    return [text for text in found if text]


def logfmt_level(text: str) -> str:
    """The level of a line in logfmt, or ""."""
    found = _LOGFMT.search(text[:_WITHIN]) if "=" in text else None
    return _LEVELS.get(found["level"].casefold(), "") if found else ""


def _fields(text: str) -> dict[str, object] | None:
    if not text.startswith("{") or not text.rstrip().endswith("}") or len(text) > LONGEST:
        return None
    try:
        found = json.loads(text) if text.startswith('{"') else ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
