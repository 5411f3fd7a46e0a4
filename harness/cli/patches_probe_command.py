"""`npu-matrix patches probe`: whether the patches are in an installation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.patch_output import ANY, CODES, json_option, print_facts, say, stack_options
from harness.errors import EXIT_OK, EXIT_UNEXPECTED, NothingSelectedError
from harness.serialisation import json_object
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.patchstack.stacks.installed_patches import ProbedPatch


@click.command(
    "probe",
    epilog="\b\nExamples:\n  npu-matrix patches probe --tree /opt/venv/lib/python3.10/site-packages\n"
    "  npu-matrix patches probe --patches verl_npu/patch/verl/796871d7d --upstream verl --tree verl"
    + CODES.format(ok="every patch is there", unexpected="a patch is missing, partly there or edited later"),
)
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@stack_options
@click.option(
    "--tree", "path", type=ANY, required=True, help="The installation: site-packages, or a source folder."
)
@click.option("--version", default="", help="Version of --tree, if it does not state one.")
@json_option
@click.pass_obj
def probe(
    settings: Settings,
    /,
    names: tuple[str, ...],
    folder: Path | None,
    upstream: str,
    path: Path,
    version: str,
    *,
    as_json: bool,
) -> int:
    """Check that patches are in an installation, and unedited.

    Each patch must be possible to undo, the last one first. `missing` means that it would still apply,
    `changed` that only a part of it is there or that its lines were edited later. Nothing is written.
    """
    from harness.patchstack.stacks.installed_patches import Presence, probe_patches
    from harness.workspace.patches.patch_target import TreeSelection, resolve_target, variants_for_target

    selection = TreeSelection(folder=folder, upstream=upstream, path=path, version=version)
    target, package = resolve_target(settings, selection)
    chosen = variants_for_target(selection.patches(settings), target, package, names)
    if not chosen:
        raise NothingSelectedError(f"no patch is for version {target.version}", fix="see `patches list`")
    found = probe_patches(target.tree, chosen)
    present = sum(one.presence is Presence.PRESENT for one in found)
    if as_json:
        about = {"upstream": package, "tree": target.tree.label, "version": target.version or None}
        print_facts("patch-probe", {**about, "patches": [json_object(one) for one in found]})
    else:
        say(*(line for one in found for line in _lines(one)))
        say(f"{target.tree.label}: {present} of {len(found)} patches are there")
    return EXIT_OK if present == len(found) else EXIT_UNEXPECTED


def _lines(one: ProbedPatch) -> Iterator[str]:
    yield f"{one.presence:<10} {one.patch}"
    yield from (f"  {reason}" for reason in one.reasons)
