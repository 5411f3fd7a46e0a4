"""`npu-matrix knowledge`: the surface pack, which says what each release of the packages of the stack has."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.number_range import NumberRange
from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, InputError
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.workspace.knowledge.pack_contents import PackContents
    from harness.workspace.knowledge.pack_update import PackageUpdate

UPDATE_CODES = {
    EXIT_OK: "the pack has all releases that the index lists",
    EXIT_INCOMPLETE: "some releases or packages could not be read; they are listed with the reason",
}
STATUS_CODES = {
    EXIT_OK: "there is a pack, and it can be read",
    EXIT_NOTHING_SELECTED: "there is no pack that can be used",
}
SCHEMA = {"name": "npu-matrix.knowledge", "version": 1}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def _codes(codes: dict[int, str]) -> str:
    return "\n\n\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in codes.items())


@click.group(
    "knowledge", epilog="\b\nExamples:\n  npu-matrix knowledge status\n  npu-matrix knowledge update"
)
def command() -> None:
    """Show or update the surface pack: names, signatures and requirements of many releases in one small file.

    `triage` uses it to find which release of a package has the name, argument or operator that was missing.
    """


@command.command(
    "update",
    epilog="\b\nExamples:\n  npu-matrix knowledge update\n"
    "  npu-matrix knowledge update vllm vllm-ascend --minutes 10\n"
    "  npu-matrix knowledge update --output surfaces.pack --json" + _codes(UPDATE_CODES),
)
@click.argument("packages", nargs=-1, metavar="[PACKAGE]...")
@click.option(
    "--since",
    default="2024-01-01",
    show_default=True,
    help="Of the two years before this date, read only the last release of each minor release.",
)
@click.option(
    "--minutes",
    type=NumberRange(min=0, min_open=True),
    help="Stop reading after this time. The next update reads the releases that remain.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write this pack instead of the one in the cache. If it exists, releases are added to it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.knowledge).")
@click.pass_obj
def update(
    settings: Settings,
    *,
    packages: tuple[str, ...],
    since: str,
    minutes: float | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Add the releases that the package index lists.

    The index is that of pip, and the pack is in the cache. Without PACKAGE, the packages of the stack are
    updated. Only releases that the pack does not have are read: of a large wheel the Python files alone, if
    the index supports range requests. Nothing is installed or run. An interrupted update continues where it
    stopped. Packs of the same releases have the same digest. MindSpeed has no releases on the index; its tags
    are read from the clones in the folder of mirrors.
    """
    from harness.compat.knowledge.pack_at_hand import pack_at_hand, user_pack_file
    from harness.sources.git.mirrors import mirror_folders
    from harness.sources.packages.index_settings import index_environment
    from harness.workspace.knowledge.pack_contents import pack_contents
    from harness.workspace.knowledge.pack_update import PACKAGES, UpdateRequest, update_pack

    if not _DATE.fullmatch(since):
        raise InputError(f"--since {since!r} is not a date", fix="write YYYY-MM-DD")
    target = output or user_pack_file(settings.cache)
    at_hand = pack_at_hand(settings.cache)
    # A pack in the cache that lacks what the shipped one has is replaced.
    start = at_hand.pack.file if at_hand.pack and not output else target if target.is_file() else None
    request = UpdateRequest(
        packages=packages or PACKAGES,
        mirrors=mirror_folders(),
        began_with="" if output else at_hand.shipped_digest,
        since=since,
        seconds=minutes * 60 if minutes is not None else float("inf"),
    )

    def progress(package: str, text: str) -> None:
        click.echo(f"{package} {text}", err=True)

    done = update_pack(target, start, request, index_environment(os.environ), progress)
    if not target.is_file():
        raise InputError("no release was read, and no pack was written", why="; ".join(_problems(done)))
    contents = pack_contents(target)
    if as_json:
        updates = [
            {"package": one.package, "added": one.added, "unread": one.unread, "problem": one.problem}
            for one in done
        ]
        click.echo(json.dumps({"schema": SCHEMA, **contents.to_json(), "updates": updates}, indent=2))
    else:
        for one in done:
            left = f", {len(one.unread)} not read" if one.unread else ""
            click.echo(f"{one.package:<16} {one.problem or f'{len(one.added)} releases added{left}'}")
        _print(contents)
    return EXIT_INCOMPLETE if any(one.problem or one.unread for one in done) else EXIT_OK


@command.command(
    "status",
    epilog="\b\nExamples:\n  npu-matrix knowledge status\n  npu-matrix knowledge status --json"
    + _codes(STATUS_CODES),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.knowledge).")
@click.pass_obj
def status(settings: Settings, *, as_json: bool) -> int:
    """Show the releases of the pack that is used."""
    from harness.compat.knowledge.pack_at_hand import pack_at_hand
    from harness.workspace.knowledge.pack_contents import pack_contents

    at_hand = pack_at_hand(settings.cache)
    pack = at_hand.pack
    if pack is None:
        if as_json:
            click.echo(json.dumps({"schema": SCHEMA, "file": None, "problem": at_hand.note}, indent=2))
        else:
            click.echo(at_hand.note)
        return EXIT_NOTHING_SELECTED
    contents = pack_contents(pack.file)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, **contents.to_json()}, indent=2))
        return EXIT_OK
    for one in contents.packages:
        left = f", {len(one.unread)} not read" if one.unread else ""
        click.echo(f"{one.package:<16} {one.releases:>4} releases, {one.oldest} to {one.newest}{left}")
    _print(contents)
    return EXIT_OK


def _problems(done: list[PackageUpdate]) -> list[str]:
    return [f"{one.package}: {one.problem or 'no release could be read'}" for one in done]


def _print(contents: PackContents) -> None:
    releases = sum(one.releases for one in contents.packages)
    click.echo(
        f"{contents.file}: {releases} releases of {len(contents.packages)} packages, "
        f"{contents.size / 1e6:.1f} MB, newest of {contents.newest or 'unknown date'}\n{contents.digest}"
    )
