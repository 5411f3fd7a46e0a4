"""`npu-matrix mirrors`: fetch the upstream repositories that stacks and patches name into the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_INCOMPLETE, EXIT_OK
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.sources.git.fetched_mirror import MirrorUpdate
    from harness.workspace.planning.upstream_mirrors import NeededUpstreams

CODES = {
    EXIT_OK: "the cache has all commits that were asked for, with their files",
    EXIT_INCOMPLETE: "some commits could not be fetched; the reasons are printed",
}
_CODES_TEXT = "\n\n\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in CODES.items())


@click.group("mirrors", epilog="\b\nExamples:\n  npu-matrix mirrors update\n  npu-matrix mirrors list")
def command() -> None:
    """Fetch and list the mirrors of upstream repositories in the cache."""


@command.command(
    "update",
    epilog="\b\nExamples:\n  npu-matrix mirrors update\n  npu-matrix mirrors update --only 'gspo-*'\n"
    "  npu-matrix mirrors update --base origin/main --if-absent" + _CODES_TEXT,
)
@click.option(
    "--only",
    multiple=True,
    metavar="GLOB",
    help="Fetch what these cells of the profile name; a,b or repeated. Default: everything that matrix.yaml "
    "and the patches name.",
)
@click.option(
    "--base",
    metavar="REV",
    help="Use only the addresses that matrix.yaml has at this revision, as a gate must.",
)
@click.option(
    "--if-absent",
    is_flag=True,
    help="Fetch only commits that are not on this disk, without their history.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.mirrors).")
@click.pass_obj
def update(
    settings: Settings, *, only: tuple[str, ...], base: str | None, if_absent: bool, as_json: bool
) -> int:
    """Fetch what matrix.yaml and the patches name into the cache.

    These are the repositories whose commits or tags stacks, profiles, migrations and patches name. A mirror
    has the whole history, and the files of the named commits. The addresses of a repository are those in
    matrix.yaml (`repository`, then `alternatives`), tried in this order; git rewrites them as its setting
    `url.NEW.insteadOf` says. Credentials come from git's credential helpers, from SSH or from netrc.

    An interrupted update continues where it stopped. Several processes that need the same repository wait
    for one fetch. Commits that a clone in the folder of the setting `mirrors` has are not fetched.
    `npu-matrix cleanup` removes mirrors that are not used any more.

    `run`, `gate` and `lock` fetch missing commits by themselves, unless the setting `fetch` is false.
    """
    from harness.sources.git.absent_objects import fetching_git
    from harness.workspace.planning.base_addresses import matrix_at
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import select_cells
    from harness.workspace.planning.upstream_mirrors import (
        named_versions,
        needed_upstreams,
        update_mirrors,
        versions_of,
    )

    matrix = open_matrix(settings)
    if only:
        cells = select_cells(settings, matrix, only)
        versions = tuple(dict.fromkeys(one for cell in cells for one in versions_of(cell.axes)))
    else:
        versions = named_versions(settings, matrix)
    needed = needed_upstreams(matrix_at(settings, base) if base else matrix, versions)
    updates = update_mirrors(settings, needed.upstreams, fetching_git(os.environ), if_absent=if_absent)
    if as_json:
        _print_json(updates, needed)
    else:
        _print(updates, needed)
    complete = all(one.complete for one in updates) and not needed.without_address
    return EXIT_OK if complete else EXIT_INCOMPLETE


@command.command("list", epilog="\b\nExamples:\n  npu-matrix mirrors list\n  npu-matrix mirrors list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.mirrors).")
@click.pass_obj
def list_mirrors(settings: Settings, *, as_json: bool) -> int:
    """Show which commits are on this disk; fetches nothing.

    Listed are the commits and tags that matrix.yaml and the patches name.
    """
    from harness.sources.git.fetched_mirror import MirrorUpdate, absent_names
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.upstream_mirrors import named_versions, needed_upstreams

    matrix = open_matrix(settings)
    needed = needed_upstreams(matrix, named_versions(settings, matrix))
    updates = tuple(
        MirrorUpdate(
            upstream=one,
            folder=settings.fetched_mirrors / one.folder,
            missing=dict.fromkeys(absent_names(settings.fetched_mirrors, one), "it was not fetched yet"),
        )
        for one in needed.upstreams
    )
    if as_json:
        _print_json(updates, needed)
    else:
        _print(updates, needed)
    complete = all(one.complete for one in updates) and not needed.without_address
    return EXIT_OK if complete else EXIT_INCOMPLETE


def _print(updates: tuple[MirrorUpdate, ...], needed: NeededUpstreams) -> None:
    from harness.sources.redact import redact_url
    from harness.workspace.planning.upstream_mirrors import update_notes

    for one in updates:
        total = len(one.upstream.commits) + len(one.upstream.tags)
        here = total - len(one.missing)
        click.echo(f"{redact_url(one.upstream.addresses[0])}: {here} of {total} commits in {one.folder}")
        for line in update_notes(one):
            click.echo(f"  {line}")
    for line in (*needed.without_address, *needed.in_own_clones):
        click.echo(f"note: {line}")
    missing = sum(len(one.missing) for one in updates) + len(needed.without_address)
    click.echo(f"{len(updates)} repositories, {missing} commits missing")


def _print_json(updates: tuple[MirrorUpdate, ...], needed: NeededUpstreams) -> None:
    from harness.serialisation import dumps
    from harness.sources.redact import redact_url

    report = {
        "schema": {"name": "npu-matrix.mirrors", "version": 1},
        "repositories": [
            {
                "addresses": [redact_url(address) for address in one.upstream.addresses],
                "folder": str(one.folder),
                "fetched_from": one.address,
                "commits": [*one.upstream.commits, *one.upstream.tags],
                "missing": one.missing,
                "failures": one.failures,
                "notices": list(one.notices),
            }
            for one in updates
        ],
        "without_address": list(needed.without_address),
        "in_own_clones": list(needed.in_own_clones),
    }
    click.echo(dumps(report, indent=2))
