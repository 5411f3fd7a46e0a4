"""Excerpts of logs and copies of small artifacts for the report's folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness.digest import digest_bytes
from harness.outcome import ArtifactRef
from harness.report.model.visible_text import SAFE_NAME, plain_log

INLINE_LINES = 200
INLINE_CHARACTERS = 60_000
LOG_BYTES = 4_000_000
ARTIFACT_BYTES = 2_000_000
_BAD = re.compile(r"\b\w*(error|fatal|traceback|exception|panic|segfault|failed)\b", re.IGNORECASE)


@dataclass(frozen=True)
class ExcerptLine:
    """A numbered line; `bad` if it contains a word such as error or traceback."""

    number: int
    text: str
    bad: bool


@dataclass(frozen=True, kw_only=True)
class LogExcerpt:
    """The end of a log. whole: the text of a separate file, "" if the page shows the whole log."""

    lines: tuple[ExcerptLine, ...] = ()
    total: int = 0
    skipped: int = 0
    whole: str = ""


@dataclass(frozen=True, kw_only=True)
class ArtifactFile:
    """An artifact in the list of files: its content, or a note why the report does not contain it."""

    name: str
    size: int
    note: str = ""
    stored: str = ""
    content: bytes | None = None


def read_log(file: Path | None) -> LogExcerpt:
    """The end of a log; if the log cannot be read, a line that says so."""
    text = _read(file)
    if not text:
        return LogExcerpt()
    lines = plain_log(text).rstrip("\n").split("\n")
    first = max(0, len(lines) - INLINE_LINES)
    remaining = INLINE_CHARACTERS
    shown: list[ExcerptLine] = []
    for number in range(len(lines), first, -1):
        line = lines[number - 1]
        remaining -= min(len(line), 2000)
        if remaining < 0 and shown:
            break
        shown.append(ExcerptLine(number, line, bool(_BAD.search(line[:2000]))))
    skipped = len(lines) - len(shown)
    return LogExcerpt(
        lines=tuple(reversed(shown)),
        total=len(lines),
        skipped=skipped,
        whole="\n".join(lines) if skipped or len(text) > INLINE_CHARACTERS else "",
    )


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(0, end - LOG_BYTES))
            data = stream.read(LOG_BYTES)
    except OSError as error:
        return f"(the log is gone: {error.strerror or error})"
    head = f"(the first {end - len(data):,} bytes are left out)\n" if end > len(data) else ""
    return head + data.decode("utf-8", "replace")


def read_artifact(artifact: ArtifactRef, file: Path | None) -> ArtifactFile:
    """The content of an artifact if it is small enough for the report, otherwise a note."""
    name = artifact.name
    if file is None:
        return ArtifactFile(name=name, size=artifact.size, note="no longer stored")
    if artifact.size > ARTIFACT_BYTES:
        return ArtifactFile(
            name=name, size=artifact.size, note="too large for the report; it is in the ledger"
        )
    try:
        content = file.read_bytes()
    except OSError as error:
        return ArtifactFile(name=name, size=artifact.size, note=f"gone: {error.strerror or error}")
    if len(content) > ARTIFACT_BYTES:
        return ArtifactFile(
            name=name, size=len(content), note="too large for the report; it is in the ledger"
        )
    return ArtifactFile(
        name=name,
        size=len(content),
        stored=f"{digest_bytes(content)[:16]}-{stored_name(name)}",
        content=content,
    )


def stored_name(name: str) -> str:
    """A file name that browsers show as text and never execute: pages, images and scripts get `.txt`."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name)[-60:].lstrip(".-") or "file"
    safe = SAFE_NAME.fullmatch(base) and base.endswith((".txt", ".json", ".npz", ".log", ".patch", ".csv"))
    return base if safe else f"{base}.txt"
