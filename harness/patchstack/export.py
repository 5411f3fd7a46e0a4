"""Stacks written out: canonical patch files and headers, byte for byte the same every time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from harness.errors import InputError, Location
from harness.patchstack.classify import read_patch
from harness.patchstack.header import FILE_NAME, Header
from harness.patchstack.imports import Imported, ImportedPatch
from harness.patchstack.render import render_patch
from harness.patchstack.stack import SERIES, PatchStack

_WIDTH = 100


def canonical(data: bytes) -> bytes:
    """A patch in canonical form; InputError with its line when it is none."""
    readable = read_patch("patch", data)
    if readable.patch is None:
        error = readable.error
        raise InputError("this is no well-formed patch", why=str(error), fix="write it again with `git diff`")
    return render_patch(readable.patch)


def export_stack(stack: PatchStack, version: str, folder: Path) -> tuple[Path, ...]:
    """Write the bodies for `version` as `0001-<id>.patch` ... with their reason on top, and a quilt `series`.

    The folder must be empty or absent: InputError otherwise. Returns the files written.
    """
    _must_be_empty(folder)
    chosen = stack.select(version)
    headers = {f"{stack.upstream}/{patch.id}": patch for patch in stack.patches}
    files = []
    for number, patch in enumerate(chosen, start=1):
        header = headers[patch.id]
        file = folder / f"{number:04d}-{header.id}.patch"
        file.write_bytes(_preamble(header).encode() + canonical(patch.data))
        files.append(file)
    series = folder / SERIES
    series.write_text("".join(f"{file.name}\n" for file in files), encoding="utf-8")
    return (*files, series)


def write_imported(
    imported: Imported, patches: Path, versions: Mapping[str, str], owner: str, today: date
) -> tuple[Path, ...]:
    """Write an imported stack in this project's format below the `patches` folder.

    versions: pin -> the versions a patch pinned to it is for; InputError names every pin without them.
    Corrupt patches are left out; existing folders are not touched (InputError).
    """
    usable = [patch for patch in imported.patches if read_patch(patch.name, patch.data).patch]
    unknown = sorted({patch.pin or patch.name for patch in usable} - set(versions))
    if unknown:
        raise InputError(
            f"no version range is known for {', '.join(unknown)}",
            why="bodies are chosen by version, the imported stack pins commits",
            fix="say which versions each is for, e.g. d62da4950==0.6.1",
        )
    written: list[Path] = []
    groups: dict[tuple[str, str], list[ImportedPatch]] = {}
    for patch in usable:
        groups.setdefault((patch.upstream or "upstream", _id(patch)), []).append(patch)
    for (upstream, name), bodies in groups.items():
        folder = patches / upstream / name
        _must_be_empty(folder)
        lines = []
        for body in bodies:
            span = versions[body.pin or body.name]
            file = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', body.pin[:12] or 'body').strip('-')}.patch"
            file.write_bytes(canonical(body.data))
            lines.append(f"Body: {file.name} {span}")
            written.append(file)
        header = folder / FILE_NAME
        header.write_text(_header(name, imported, bodies, lines, versions, owner, today), encoding="utf-8")
        written.append(header)
    for upstream in sorted({upstream for upstream, _name in groups}):
        names = [name for other, name in groups if other == upstream]
        series = patches / upstream / SERIES
        before = series.read_text(encoding="utf-8") if series.is_file() else ""
        series.write_text(before + "".join(f"{name}\n" for name in names), encoding="utf-8")
        written.append(series)
    return tuple(written)


def _header(
    name: str,
    imported: Imported,
    bodies: Sequence[ImportedPatch],
    lines: Sequence[str],
    versions: Mapping[str, str],
    owner: str,
    today: date,
) -> str:
    spans = sorted({versions[body.pin or body.name] for body in bodies})
    return "\n".join(
        [
            f"Subject: {name}",
            f"Why: imported from {imported.layout} ({bodies[0].name}); the reason was not recorded there",
            f"Owner: {owner}",
            "Upstream-Status: Inactive-Upstream",
            "Upstream-Url: none (not recorded)",
            f"Applies-To: {spans[0] if len(spans) == 1 else '>=0'}",
            "Guarded-By: patches",
            f"Review-By: {today.isoformat()}",
            *lines,
            "",
        ]
    )


def _id(patch: ImportedPatch) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", patch.file.stem.lower()).strip("-.")[:80] or "patch"


def _preamble(header: Header) -> str:
    import textwrap

    trailers = [
        ("Subject", header.subject),
        ("Why", header.why),
        ("Owner", header.owner),
        ("Upstream-Status", header.upstream_status),
        ("Upstream-Url", header.upstream_url),
        ("Guarded-By", ", ".join(header.guarded_by)),
        ("Review-By", header.review_by.isoformat()),
    ]
    lines = [
        textwrap.fill(
            f"{name}: {value}", _WIDTH, subsequent_indent=" ", break_long_words=False, break_on_hyphens=False
        )
        for name, value in trailers
    ]
    return "\n".join([*lines, "---", ""])


def _must_be_empty(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            "this folder is not empty", where=Location(folder), fix="choose another, or empty it first"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("this folder cannot be made", where=Location(folder), why=str(error)) from error
