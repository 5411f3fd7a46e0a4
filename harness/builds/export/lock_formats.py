"""A cell's lock as requirements file, conda environment, Markdown table and JSON."""

from __future__ import annotations

import json
from typing import Any

from harness.builds.lock.cell_lock import CellLock
from harness.builds.lock.layer_contents import pip_requirements
from harness.builds.lock.lock_notices import lock_notices
from harness.serialisation import as_object, dumps

NO_DIGEST = "by tag; its digest is not known"


def as_requirements(lock: CellLock) -> str:
    """A requirements file with digests; comments list what such a file cannot contain."""
    lines = [
        *header(lock),
        f"# for Python {lock.python} on {lock.arch}; install with --no-deps --require-hashes",
    ]
    lines += [
        f"# from source: {s.package} {s.version} {s.repository} {s.commit} tree {s.tree or 'not known'}"
        for s in lock.from_source
    ]
    lines += [f"# patched: {one_line(patch.file)} sha256:{patch.digest}" for patch in lock.patches]
    return "\n".join(lines) + "\n" + pip_requirements(lock, lock.packages)


def as_markdown(lock: CellLock) -> str:
    """Markdown tables for a README."""
    rows = [("base image", f"{lock.image} ({lock.image_digest or NO_DIGEST})")]
    rows += sorted(lock.axes.items())
    rows += [("build environment", f"{name}={value}") for name, value in sorted(lock.build_env.items())]
    lines = [
        f"## {_table_text(lock.title)}",
        "",
        f"Cell `{lock.cell}`.",
        "",
        "| part | version |",
        "|---|---|",
    ]
    lines += [f"| {_table_text(name)} | {_table_text(value)} |" for name, value in rows]
    if lock.from_source:
        lines += ["", "| from source | commit | tree | repository |", "|---|---|---|---|"]
        lines += [
            f"| {s.package} {s.version} | `{s.commit}` | {s.tree or 'not known'} | {s.repository} |"
            for s in lock.from_source
        ]
    if lock.patches:
        lines += ["", "| patch | sha256 |", "|---|---|"]
        lines += [f"| {_table_text(patch.id)} | `{patch.digest}` |" for patch in lock.patches]
    if lock.inconsistencies:
        lines += ["", "Known inconsistencies of the source:", ""]
        lines += [f"- {_table_text(text)}" for text in lock.inconsistencies]
    if lock.omitted:
        lines += ["", "Locked, but not installed on this device:", ""]
        lines += [f"- {_table_text(name)}: {_table_text(why)}" for name, why in lock.omitted.items()]
    if lock_notices(lock):
        lines += ["", "Notes:", ""]
        lines += [f"- {_table_text(text)}" for text in lock_notices(lock)]
    pinned = f"{len(lock.packages)} packages are pinned with digests; `npu-matrix lock` exports them."
    return "\n".join([*lines, "", pinned]) + "\n"


def as_conda(lock: CellLock) -> str:
    """A conda environment file with the Python and the programs that `install.sh` next to it needs.

    conda passes the entries of a section `pip` to pip as a requirements file, in which the option --no-deps
    is not allowed. The script therefore installs the packages: `conda run -n NAME bash install.sh`.
    """
    lines = [
        *header(lock),
        f"# then: conda run --no-capture-output -n {lock.cell} bash install.sh",
        *(f"# install.sh builds from source: {s.package} {s.version}" for s in lock.from_source),
        *(f"# install.sh applies: {one_line(patch.file)} sha256:{patch.digest}" for patch in lock.patches),
        f"name: {lock.cell}",
        "channels:",
        "  - conda-forge",
        "dependencies:",
        f"  - python={lock.python_minor}",
        "  - pip",
        *(f"  - {'cxx-compiler' if tool == 'g++' else tool}" for tool in lock.tools),
    ]
    if lock.build_env:
        lines += ["variables:"]
        lines += [f"  {name}: {json.dumps(value)}" for name, value in sorted(lock.build_env.items())]
    return "\n".join(lines) + "\n"


def as_json(lock: CellLock) -> str:
    """JSON with the schema `npu-matrix.lock`."""
    schema = {"name": "npu-matrix.lock", "version": 1}
    return dumps({"schema": schema, **as_object(lock)}, indent=2) + "\n"


def header(lock: CellLock) -> list[str]:
    """Comment lines: the cell, its base image, what is known about it and what is not pinned."""
    lines = [f"# {one_line(lock.title)}", f"# cell {lock.cell}, exported by npu-matrix"]
    lines += [f"# base image {lock.image} ({lock.image_digest or NO_DIGEST})"]
    lines += [f"# known inconsistency: {one_line(text)}" for text in lock.inconsistencies]
    lines += [f"# not installed on this device: {name}: {why}" for name, why in lock.omitted.items()]
    return [*lines, *(f"# note: {one_line(text)}" for text in lock_notices(lock))]


def one_line(text: Any) -> str:
    """Text for a comment, which it cannot leave."""
    return " ".join(str(text).split())


def _table_text(text: str) -> str:
    """Text for a Markdown table, with special characters escaped."""
    escaped = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("\\", "\\\\").replace("|", "\\|").replace("[", "\\[")
