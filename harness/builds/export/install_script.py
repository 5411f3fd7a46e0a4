"""A lock as a bash script that installs into the active Python, with its patches and checks inside."""

from __future__ import annotations

import base64
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from harness.builds.engines.cann_environment import BUILD_ENV
from harness.builds.export.cell_expectations import CHECK, EXPECTATIONS, check_files
from harness.builds.export.lock_formats import header, one_line
from harness.builds.lock.cell_lock import PIP, CellLock, LockedSource, PatchFile
from harness.builds.lock.layer_contents import LayerContent, fetch_commands, layer_contents, pip_requirements

TREE_OF_HEAD = "'HEAD^{tree}'"


def as_script(lock: CellLock, patches: Mapping[str, bytes] | None = None) -> str:
    """A bash script. Its arguments go to the check before the first installation, for example `--no-driver`.

    patches: exported path of a patch -> its content, which becomes part of the script. Without it the script
    reads the patches from the checkout in which it runs.
    """
    lines = ["#!/usr/bin/env bash", *header(lock), "set -euo pipefail", ""]
    lines += [
        BUILD_ENV,
        'work="$(mktemp -d)"',
        "trap 'rm -rf \"$work\"' EXIT",
        "",
        *(line for name, text in check_files(lock).items() for line in _file(name, text)),
        *([_require_tools(lock.tools)] if lock.tools else []),
        f'python3 "$work/{CHECK}" before "$work/{EXPECTATIONS}" "$@"',
        "",
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(lock.build_env.items())]
    if lock.build_tools:
        lines += _file("build-tools.txt", pip_requirements(lock, lock.build_tools))
        lines += [f'{PIP} --no-deps --require-hashes -r "$work/build-tools.txt"', ""]
    for layer in layer_contents(lock):
        lines += _layer(lock, layer)
    if lock.patches:
        lines += _patches(lock.patches, patches)
    return "\n".join([*lines, f'python3 "$work/{CHECK}" after "$work/{EXPECTATIONS}"']) + "\n"


def _layer(lock: CellLock, layer: LayerContent) -> Iterator[str]:
    if layer.packages:
        yield from _file(f"{layer.name}.txt", pip_requirements(lock, layer.packages))
        yield f'{PIP} {lock.options(layer.packages)} -r "$work/{layer.name}.txt"'
        yield ""
    for wheel in layer.fetched:
        yield f'(cd "$work" && {" && ".join(wheel.installation)})'
        yield ""
    for source in layer.sources:
        yield from _source(lock, source)


def _source(lock: CellLock, source: LockedSource) -> Iterator[str]:
    folder = f'"$work/{source.package}"'
    yield f"git init -q {folder}"
    yield from fetch_commands(f"git -C {folder}", source.repository, source)
    if source.tree:
        yield f'test "$(git -C {folder} rev-parse {TREE_OF_HEAD})" = {source.tree}'
    steps = source.installation(lock.python, isolated=lock.isolated(source.package))
    yield f"(cd {folder} && {' && '.join(steps)})"
    yield ""


def _patches(stack: Sequence[PatchFile], contents: Mapping[str, bytes] | None) -> Iterator[str]:
    """Apply the patches. Those of an earlier run are taken back first: pip does not restore patched files."""
    yield 'site="$(python3 -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')"'
    yield "patches=()"
    for number, patch in enumerate(stack):
        file = shlex.quote(patch.file)
        if contents is not None:
            file = f'"$work/{number}.patch"'
            yield f"# {one_line(patch.id)}"
            yield f"base64 -d > {file} <<'PATCH'"
            yield from textwrap.wrap(base64.b64encode(contents[patch.exported]).decode(), 100)
            yield "PATCH"
        yield f'echo "{patch.digest}  "{file} | sha256sum -c -'
        yield f"patches+=({file})"
    yield "# What an earlier run of this script applied is taken back, so that it can run again."
    yield "for (( i = ${#patches[@]} - 1; i >= 0; i-- )); do"
    yield '  unpatch() { patch --force --reverse --fuzz=0 -p1 -d "$site" "$@" < "${patches[i]}"; }'
    yield "  if unpatch --dry-run >/dev/null 2>&1; then unpatch; fi"
    yield "done"
    yield 'for file in "${patches[@]}"; do'
    yield '  patch --batch --forward --fuzz=0 -p1 -d "$site" < "$file"'
    yield "done"


def _file(name: str, text: str) -> list[str]:
    """Lines that write a file into the temporary folder."""
    return [f"cat > \"$work/{name}\" <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]


def _require_tools(tools: Sequence[str]) -> str:
    """A line of bash that ends the script if a program is missing."""
    missing = 'echo "$tool is needed and not installed" >&2; exit 1;'
    return f'for tool in {" ".join(tools)}; do command -v "$tool" >/dev/null || {{ {missing} }}; done'
