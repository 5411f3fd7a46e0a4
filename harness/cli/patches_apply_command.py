"""`npu-matrix patches apply`: apply patches to a folder, all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli.patch_output import CODES, DIRECTORY, json_option, print_facts, say, stack_options
from harness.errors import EXIT_OK, EXIT_UNEXPECTED, InputError, Location, NothingSelectedError
from harness.settings import Settings


@click.command(
    "apply",
    epilog="\b\nExamples:\n  npu-matrix patches apply --tree site-packages --version 0.9.1\n"
    "  npu-matrix patches apply hf-rollout --tree verl --patches patches/verl"
    + CODES.format(ok="every patch is applied", unexpected="a patch does not apply; nothing was written"),
)
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@stack_options
@click.option("--tree", "path", type=DIRECTORY, required=True, help="The folder to patch.")
@click.option(
    "--version", default="", help="Version of the source in the folder. Default: from its metadata."
)
@json_option
@click.pass_obj
def apply(
    settings: Settings,
    /,
    names: tuple[str, ...],
    path: Path,
    as_json: bool,
    **tree: Any,
) -> int:
    """Apply patches in order to a checkout or to site-packages.

    Either all files are replaced or none. If the machine stops half-way, the same command completes the work.
    Patches that are applied already are skipped.
    """
    from harness.patchstack.apply.stack_apply import apply_stack
    from harness.patchstack.apply.stack_install import finish_install, install_stack
    from harness.workspace.patches.patch_target import TreeSelection, resolve_target, variants_for_target

    if not path.is_dir():
        raise InputError(
            "there is no such folder", where=Location(path), fix="give a checkout or site-packages"
        )
    finish_install(path)
    selection = TreeSelection(path=path, **tree)
    target, package = resolve_target(settings, selection)
    chosen = variants_for_target(selection.patches(settings), target, package, names)
    if not chosen:
        raise NothingSelectedError(
            f"no patch is for version {target.version}", fix="give the version of the source with --version"
        )
    result = apply_stack(target.tree, chosen, target.blobs)
    written = install_stack(result, path) if result.applies else ()
    if as_json:
        facts = {"upstream": package, "tree": str(path), "version": target.version or None}
        print_facts("patch-apply", {**facts, **result.to_json(), "written": list(written)})
    else:
        for verdict in result.verdicts:
            say(f"{verdict.verdict}  {verdict.patch}", *(f"  why: {why}" for why in verdict.reasons))
        say(*(f"note: {sentence}" for sentence in result.relations))
        say(f"{path}: {len(written)} files written")
    return EXIT_OK if result.applies else EXIT_UNEXPECTED
