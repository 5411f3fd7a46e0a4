"""Write stacks: as canonical patch files with headers, or an imported stack in this project's format."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from harness.digest import digest_bytes
from harness.errors import InputError, Location, Problem
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.format.diff_writer import render_patch
from harness.patchstack.format.patch_header import FILE_NAME, OR, PatchHeader
from harness.patchstack.stacks.file_set import make_folder, write_together
from harness.patchstack.stacks.patch_origin import origin_path
from harness.patchstack.stacks.patch_stack import SERIES, PatchStack
from harness.patchstack.stacks.stack_import import ImportedPatch, ImportedStack

_WIDTH = 100


def canonical(data: bytes) -> bytes:
    """A patch in canonical form; InputError with the line if it is not well-formed.

    A patch with changes that are not read here, such as binary data, is its own canonical form.
    """
    loaded = read_patch("patch", data)
    if loaded.patch is None:
        error = loaded.error
        raise InputError(
            "this is not a well-formed patch", why=str(error), fix="write it again with `git diff`"
        )
    return data if loaded.patch.unsupported else render_patch(loaded.patch)


def exported(stack: PatchStack, version: str) -> dict[str, bytes]:
    """The variants for `version` as `0001-<id>.patch`, ... with the header on top, and a quilt `series`."""
    headers = {f"{stack.upstream}/{patch.id}": patch for patch in stack.patches}
    files = {}
    for number, patch in enumerate(stack.select(version), start=1):
        header = headers[patch.id]
        files[f"{number:04d}-{header.id}.patch"] = _preamble(header).encode() + canonical(patch.data)
    return {**files, SERIES: "".join(f"{name}\n" for name in files).encode()}


def export_stack(stack: PatchStack, version: str, folder: Path) -> tuple[Path, ...]:
    """Write the files of `exported`, or none of them. InputError if the folder is not empty."""
    require_empty_folder(folder)
    files = {folder / name: data for name, data in exported(stack, version).items()}
    write_together(files)
    return tuple(files)


def export_problems(stack: PatchStack, version: str, folder: Path) -> list[Problem]:
    """Differences between a folder and what would be exported into it now."""
    files = exported(stack, version)
    there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    problems = [
        Problem(
            "this file differs from what would be exported" if name in there else "this file is missing",
            Location(folder / name),
            fix="export into an empty folder again",
        )
        for name, data in files.items()
        if name not in there or (folder / name).read_bytes() != data
    ]
    return problems + [
        Problem("this file is not part of the export", Location(folder / name), fix="remove it")
        for name in sorted(there - set(files))
    ]


def canonical_problems(stack: PatchStack) -> list[Problem]:
    """Variants that are not in canonical form."""
    variants = [variant for patch in stack.patches for variant in patch.variants]
    return [
        Problem(
            "this patch is not in canonical form",
            Location(variant.file),
            why="the exported file would differ from the reviewed one",
            fix="write it again with `git diff --full-index`, without text before the diff",
        )
        for variant in variants
        if canonical(variant.file.read_bytes()) != variant.file.read_bytes()
    ]


def write_imported(
    imported: ImportedStack, patches: Path, versions: Mapping[str, str], owner: str, today: date
) -> tuple[Path, ...]:
    """Write an imported stack in this project's format into the folder `patches`.

    versions: pin -> the versions that a patch with this pin is for; InputError names every pin without
    versions. The header records the file of each variant with its digest, so that a later change of that file
    is found. No patch is left out: a corrupt one is written as it is, so that every later check counts and
    names it. If a file cannot be written, none is. InputError if the folder of a patch exists already.
    """
    unknown = sorted({patch.pin or patch.name for patch in imported.patches} - set(versions))
    if unknown:
        raise InputError(
            f"the version range of {', '.join(unknown)} is unknown",
            why="patch variants are selected by version, but the imported stack pins commits",
            fix="name the versions of each pin with --for, e.g. --for d62da4950==0.6.1",
        )
    files: dict[Path, bytes] = {}
    groups = _grouped(imported.patches)
    for (upstream, name), variants in groups.items():
        folder = patches / upstream / name
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(
                "a patch of this name exists already",
                where=Location(folder),
                fix="remove it, or import into another folder",
            )
        lines = []
        for variant in variants:
            file = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', variant.pin[:12]).strip('-.') or 'body'}.patch"
            is_corrupt = read_patch(variant.name, variant.data).patch is None
            files[file] = variant.data if is_corrupt else canonical(variant.data)
            lines.append(f"Body: {file.name} {versions[variant.pin or variant.name]}")
            origin = origin_path(variant.file, patches.parent)
            if origin.isprintable():
                lines.append(f"Origin: {file.name} sha256:{digest_bytes(variant.data)} {origin}")
        files[folder / FILE_NAME] = _header(name, imported, variants, lines, versions, owner, today).encode()
    for upstream in sorted({upstream for upstream, _name in groups}):
        series = patches / upstream / SERIES
        before = series.read_text(encoding="utf-8") if series.is_file() else ""
        names = [name for other, name in groups if other == upstream]
        files[series] = (before + "".join(f"{name}\n" for name in names)).encode()
    write_together(files)
    return tuple(files)


def _grouped(patches: Sequence[ImportedPatch]) -> dict[tuple[str, str], list[ImportedPatch]]:
    """(upstream, id) -> variants. Files of one name for different pins are variants of one patch."""
    pins = Counter((patch.upstream, _id(patch.file.stem), patch.pin) for patch in patches)
    groups: dict[tuple[str, str], list[ImportedPatch]] = {}
    for patch in patches:
        alone = pins[patch.upstream, _id(patch.file.stem), patch.pin] == 1
        name = _id(patch.file.stem if alone else patch.name.rsplit(".", 1)[0])
        groups.setdefault((patch.upstream or "upstream", name), []).append(patch)
    return groups


def _header(
    name: str,
    imported: ImportedStack,
    variants: Sequence[ImportedPatch],
    lines: Sequence[str],
    versions: Mapping[str, str],
    owner: str,
    today: date,
) -> str:
    spans = sorted({versions[variant.pin or variant.name] for variant in variants})
    origin = printable(f"{imported.layout} ({variants[0].name})")
    return "\n".join(
        [
            f"Subject: {name}",
            f"Why: imported from {origin}, which does not record the reason",
            f"Owner: {owner}",
            "Upstream-Status: Inactive-Upstream",
            "Upstream-Url: none (not recorded)",
            f"Applies-To: {f' {OR} '.join(spans)}",
            "Guarded-By: patches",
            f"Review-By: {today.isoformat()}",
            *lines,
            "",
        ]
    )


def printable(text: str) -> str:
    """The text on one line, with `?` for every character that is not printable."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _id(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:80] or "patch"


def _preamble(header: PatchHeader) -> str:
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


def make_empty_folder(folder: Path) -> None:
    """Create an empty folder; InputError if it is not empty or cannot be created."""
    require_empty_folder(folder)
    make_folder(folder)


def require_empty_folder(folder: Path) -> None:
    """InputError if the folder exists and is not empty."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            "this folder is not empty", where=Location(folder), fix="choose another folder, or empty it"
        )
