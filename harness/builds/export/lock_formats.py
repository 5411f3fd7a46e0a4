"""A cell's lock as requirements file, script, Dockerfile, conda environment, Markdown table and JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.builds.lock.cell_lock import CellLock
from harness.builds.lock.layer_contents import fetch_commands, layer_contents, requirements_text
from harness.errors import InputError, Location
from harness.package import shipped_file
from harness.serialisation import as_object, dumps
from harness.sources.git.branch_patches import read_patch_content

TEMPLATE = "docker/cell.Dockerfile.j2"
TREE_OF_HEAD = "'HEAD^{tree}'"
NO_DIGEST = "by tag; its digest is not known"


def as_requirements(lock: CellLock) -> str:
    """A requirements file with digests; comments list what such a file cannot contain."""
    lines = [
        *_header(lock),
        f"# for Python {lock.python} on {lock.arch}; install with --no-deps --require-hashes",
    ]
    lines += [
        f"# from source: {s.package} {s.version} {s.repository} {s.commit} tree {s.tree or 'not known'}"
        for s in lock.from_source
    ]
    lines += [f"# patched: {patch.file} sha256:{patch.digest}" for patch in lock.patches]
    return "\n".join(lines) + "\n" + requirements_text(lock.packages)


def as_script(lock: CellLock) -> str:
    """A bash script that installs into the active Python."""
    lines = ["#!/usr/bin/env bash", *_header(lock), "set -euo pipefail", ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(lock.build_env.items())]
    lines += [
        "for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do",
        '  if [ -f "$file" ]; then set +u; source "$file"; set -u; fi',
        "done",
        *([_require_tools(lock.tools)] if lock.tools else []),
        'work="$(mktemp -d)"',
        "trap 'rm -rf \"$work\"' EXIT",
        "",
    ]
    for name, packages in lock.layers():
        lines += [
            f"cat > \"$work/{name}.txt\" <<'LAYER'",
            requirements_text(packages).rstrip("\n"),
            "LAYER",
            f'python3 -m pip install {lock.options(packages)} -r "$work/{name}.txt"',
            "",
        ]
    for source in lock.from_source:
        folder = f'"$work/{source.package}"'
        lines += [
            f"git init -q {folder}",
            *fetch_commands(f"git -C {folder}", source.repository, source),
            *([f'test "$(git -C {folder} rev-parse {TREE_OF_HEAD})" = {source.tree}'] if source.tree else []),
            f"(cd {folder} && {' && '.join(source.installation(lock.python))})",
            "",
        ]
    if lock.patches:
        lines.append('site="$(python3 -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')"')
    for patch in lock.patches:
        # The script runs in the checkout that has the patches.
        lines += [
            f'echo "{patch.digest}  {patch.file}" | sha256sum -c -',
            f'patch --batch --forward --fuzz=0 -p1 -d "$site" < {shlex.quote(patch.file)}',
        ]
    return "\n".join(lines) + "\n"


def _require_tools(tools: Sequence[str]) -> str:
    """A line of bash that ends the script if a program is missing."""
    missing = 'echo "$tool is needed and not installed" >&2; exit 1;'
    return f'for tool in {" ".join(tools)}; do command -v "$tool" >/dev/null || {{ {missing} }}; done'


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
    if lock.notices:
        lines += ["", "Not pinned:", ""]
        lines += [f"- {_table_text(text)}" for text in lock.notices]
    pinned = f"{len(lock.packages)} packages are pinned with digests; `npu-matrix lock` exports them."
    return "\n".join([*lines, "", pinned]) + "\n"


def as_conda(lock: CellLock) -> str:
    """A conda environment file; pip installs the packages, with digests, from `requirements.txt` next to it.

    Comments name what conda cannot install: packages from source and patches. The script installs them.
    """
    notes = [
        f"# not in here, see install.sh: {s.package} {s.version}, built from source" for s in lock.from_source
    ]
    notes += [f"# not in here, see install.sh: {patch.file} sha256:{patch.digest}" for patch in lock.patches]
    lines = [
        *_header(lock),
        *notes,
        f"name: {lock.cell}",
        "dependencies:",
        f"  - python={lock.python}",
        "  - pip",
    ]
    lines += ["  - pip:", "      - --no-deps", "      - --require-hashes", "      - -r requirements.txt"]
    if lock.build_env:
        lines += ["variables:"]
        lines += [f"  {name}: {json.dumps(value)}" for name, value in sorted(lock.build_env.items())]
    return "\n".join(lines) + "\n"


def as_json(lock: CellLock) -> str:
    """JSON with the schema `npu-matrix.lock`."""
    schema = {"name": "npu-matrix.lock", "version": 1}
    return dumps({"schema": schema, **as_object(lock)}, indent=2) + "\n"


def docker_context(lock: CellLock, root: Path) -> dict[str, bytes]:
    """The files of a build context: the Dockerfile, one requirements file for each layer, the patches.

    root: the checkout with the patches. InputError if a patch there is not the locked one.
    """
    files = {"Dockerfile": _dockerfile(lock).encode()}
    for name, packages in lock.layers():
        files[f"layers/{name}.txt"] = requirements_text(packages).encode()
    for patch in lock.patches:
        data = read_patch_content(patch.file, patch.digest, root)
        if data is None:
            raise InputError(
                f"the patch {patch.id} has changed since the lock was made",
                where=Location(root / patch.file),
                fix="make the lock again, or use the checkout it was made from",
            )
        files[patch.file] = data
    return files


def _dockerfile(lock: CellLock) -> str:
    # The import takes 0.2 s, and the report imports this module.
    import jinja2

    # A Dockerfile is not markup; every value has passed the check of `CellLock` or the filter `comment`.
    environment = jinja2.Environment(  # noqa: S701
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["comment"] = _one_line
    try:
        template = environment.from_string(shipped_file(TEMPLATE).read_text("utf-8"))
    except OSError as error:
        raise InputError(
            "the Dockerfile template is missing", where=Location(shipped_file(TEMPLATE))
        ) from error
    return template.render(lock=lock, layers=layer_contents(lock), fetch=fetch_commands)


def _header(lock: CellLock) -> list[str]:
    lines = [f"# {_one_line(lock.title)}", f"# cell {lock.cell}, exported by npu-matrix"]
    lines += [f"# base image {lock.image} ({lock.image_digest or NO_DIGEST})"]
    lines += [f"# known inconsistency: {_one_line(text)}" for text in lock.inconsistencies]
    lines += [f"# not installed on this device: {name}: {why}" for name, why in lock.omitted.items()]
    return [*lines, *(f"# not pinned: {_one_line(text)}" for text in lock.notices)]


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())


def _table_text(text: str) -> str:
    """Text for a Markdown table, with special characters escaped."""
    escaped = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("\\", "\\\\").replace("|", "\\|").replace("[", "\\[")


EXPORTS: Mapping[str, Callable[[CellLock], str]] = {
    "requirements": as_requirements,
    "script": as_script,
    "markdown": as_markdown,
    "conda": as_conda,
    "json": as_json,
}
#: Format -> name of the exported file.
FILE_NAMES = {
    "requirements": "requirements.txt",
    "script": "install.sh",
    "markdown": "CELL.md",
    "conda": "environment.yml",
    "json": "cell.lock.json",
}
