"""Reads the output of `npu-matrix patches (forecast|check|summary|rebase) --json` for the page of patches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location

MAX_BYTES = 20_000_000
PREFIX = "npu-matrix/"
FORECASTS = ("patch-forecast", "patch-check")
SUMMARY, REBASE = "patch-summary", "patch-rebase"
KINDS = (*FORECASTS, SUMMARY, REBASE)
MOST_CHANGES = 12
#: The verdict on a patch whose variants are all for older versions.
ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class HeadVerdict:
    """A patch on the newest commit of an upstream. broke: the commit that broke it, in words, or ""."""

    where: str
    patch: str
    verdict: str
    offset: int
    reason: str
    broke: str


@dataclass(frozen=True, kw_only=True)
class PatchSummary:
    """What a patch changes: one line for each symbol; `more` is the number of lines left out."""

    patch: str
    tree: str
    verdict: str
    changes: tuple[str, ...]
    more: int


@dataclass(frozen=True, kw_only=True)
class MovedPatch:
    """A patch rebased to another commit; `kit` is the folder of the rebase kit for its conflicts, or ""."""

    patch: str
    to: str
    verdict: str
    rebased: bool
    kit: str
    broke: str


@dataclass(frozen=True, kw_only=True)
class PatchFacts:
    """The contents of all files, in the order in which they were named."""

    heads: tuple[HeadVerdict, ...] = ()
    summaries: tuple[PatchSummary, ...] = ()
    kits: tuple[MovedPatch, ...] = ()


def read_patch_facts(files: tuple[Path, ...]) -> PatchFacts:
    """Read the files, each by its own schema; InputError for a file with another schema."""
    heads: list[HeadVerdict] = []
    summaries: list[PatchSummary] = []
    kits: list[MovedPatch] = []
    for file in files:
        kind, data = _read(file)
        if kind in FORECASTS:
            heads += _heads(data)
        elif kind == SUMMARY:
            summaries += _summaries(data)
        else:
            kits += _kits(data)
    return PatchFacts(heads=tuple(heads), summaries=tuple(summaries), kits=tuple(kits))


def _read(file: Path) -> tuple[str, Mapping[str, Any]]:
    wrong = "the page of patches cannot show this file"
    fix = f"write it with `npu-matrix patches ... --json`: {', '.join(KINDS)}"
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(wrong, where=Location(file), why=f"more than {MAX_BYTES} bytes", fix=fix)
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(
            "this file cannot be read", where=Location(file), why=error.strerror or str(error)
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(wrong, where=Location(file), why=f"not JSON: {error}", fix=fix) from None
    schema = _mapping(_mapping(data).get("schema"))
    kind = str(schema.get("name", "")).removeprefix(PREFIX)
    if kind not in KINDS or schema.get("version") != 1:
        why = f"its schema is {schema.get('name', 'not named')} {schema.get('version', '')}".strip()
        raise InputError(wrong, where=Location(file), why=why, fix=fix)
    return kind, data


def _heads(data: Mapping[str, Any]) -> Iterator[HeadVerdict]:
    head = data.get("head")
    where = f"{data.get('upstream', '')} {data.get('reference') or data.get('version') or ''}".strip()
    where += f", {_commit(head)}" if isinstance(head, Mapping) else ""
    broken_by = _mapping(data.get("broken_by"))
    for entry in _mappings(data.get("verdicts")):
        patch = str(entry.get("patch", ""))
        offset = entry.get("offset")
        yield HeadVerdict(
            where=where or str(data.get("tree", "")),
            patch=patch,
            verdict=str(entry.get("verdict", "")),
            offset=offset if isinstance(offset, int) else 0,
            reason="; ".join(_texts(entry.get("reasons"))[:2]),
            broke=_commit(broken_by.get(patch)),
        )
    for patch, versions in _mapping(data.get("ended")).items():
        yield HeadVerdict(
            where=where, patch=str(patch), verdict=ENDED, offset=0, reason=f"it is for {versions}", broke=""
        )


def _summaries(data: Mapping[str, Any]) -> Iterator[PatchSummary]:
    for patch in _mappings(data.get("patches")):
        lines = [line for file in _mappings(patch.get("files")) for line in _file_lines(file)]
        yield PatchSummary(
            patch=str(patch.get("id", "")),
            tree=str(data.get("tree", "")),
            verdict=str(patch.get("verdict", "")),
            changes=tuple(lines[:MOST_CHANGES]),
            more=max(0, len(lines) - MOST_CHANGES),
        )


def _file_lines(file: Mapping[str, Any]) -> Iterator[str]:
    path = str(file.get("path", ""))
    changes = [("", change) for change in _mappings(file.get("module_changes"))]
    for changed in _mappings(file.get("class_changes")):
        owner = f"{changed.get('class', '')}."
        changes += [(owner, change) for change in _mappings(changed.get("changes"))]
    if not changes:
        yield f"{path}: {file.get('note') or 'changed'}"
    for owner, change in changes:
        yield f"{path}: {change.get('action', '')} {change.get('kind', '')} {owner}{change.get('name', '')}"


def _kits(data: Mapping[str, Any]) -> Iterator[MovedPatch]:
    for patch in _mappings(data.get("patches")):
        yield MovedPatch(
            patch=str(patch.get("patch", "")),
            to=str(data.get("to", ""))[:12],
            verdict=str(patch.get("verdict", "")),
            rebased=bool(patch.get("rebased")),
            kit=str(patch.get("kit") or ""),
            broke=_commit(patch.get("broken_by")),
        )


def _commit(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    name, date = str(value.get("commit", "")), str(value.get("date", ""))
    return f"{name[:9]} {date[:10]} {value.get('subject', '')}".strip()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
