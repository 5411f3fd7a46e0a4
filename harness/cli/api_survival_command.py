"""`npu-matrix api survival`: which version of a provider broke which use of a consumer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.patch_output import FILE, say, write_file
from harness.errors import EXIT_OK, EXIT_UNEXPECTED
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.compat.name_survival.name_survival import NameSurvival, UseHistory

NAMES_SHOWN = 40


@click.command(
    "survival",
    epilog="\b\nExamples:\n  npu-matrix api survival verl vllm --range 0.9.0..0.11.0\n"
    "  npu-matrix api survival mindspeed_rl verl --range v0.6.1..main --release HEAD\n"
    "  npu-matrix api survival ./verl-recipe.git verl --range v0.6.1..main --html names.html\n\n"
    "\b\nExit codes: 0 every use of the last release of CONSUMER fits the last version of PROVIDER;\n"
    "  1 a use breaks; 2 bad usage or an unknown revision.",
)
@click.argument("consumer")
@click.argument("provider")
@click.option(
    "--range",
    "revisions",
    required=True,
    help="Versions of PROVIDER as A..B: commits if a clone of it has both, otherwise releases.",
)
@click.option(
    "--release", "releases", multiple=True, help="A release, tag or commit of CONSUMER. Repeatable."
)
@click.option(
    "--newest",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Without --release: so many of the newest releases, and the head of the clone.",
)
@click.option("--html", type=FILE, help="Write the map of uses and versions as an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def survival(
    settings: Settings,
    consumer: str,
    provider: str,
    revisions: str,
    releases: tuple[str, ...],
    newest: int,
    html: Path | None,
    as_json: bool,
) -> int:
    """Find the version of PROVIDER that broke each use of CONSUMER.

    Imports, attributes, calls, subclasses, overridden methods and assigned names (monkey patches) are
    followed over every version in the range. CONSUMER and PROVIDER are axes of the matrix, packages on the
    index, or folders of clones. Only source code is read; nothing is run. The first call for a range reads
    every file version once, later calls use what is stored.
    """
    from harness.workspace.name_history.followed_versions import NameHistory
    from harness.workspace.planning.open_plan import open_matrix

    found = NameHistory(settings, open_matrix(settings)).survival(
        consumer, provider, revisions, releases, newest
    )
    if html:
        from harness.compat.name_survival.name_survival_page import name_survival_page

        write_file(html, name_survival_page(found))
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        say(*_lines(found, shutil.get_terminal_size().columns))
    return EXIT_UNEXPECTED if found.broken(found.releases[-1])[-1] else EXIT_OK


def _lines(found: NameSurvival, width: int) -> list[str]:
    """For each broken use its history; then how many uses break in total."""
    shown = [line for history in found.uses[:NAMES_SHOWN] for line in _history(found, history)]
    if len(found.uses) > NAMES_SHOWN:
        shown.append(f"and {len(found.uses) - NAMES_SHOWN} more uses; --json and --html list all")
    last = found.versions[-1]
    for release in found.releases:
        counts = found.broken(release)
        shown.append(
            f"{release}: {counts[0]} uses break at {found.versions[0].short}, {counts[-1]} at {last.short}"
        )
    shown.append(
        f"{found.checked} uses over {len(found.versions)} versions of {found.provider}, "
        f"{found.versions[0].short} to {last.short}"
    )
    return [line if len(line) <= 4 * width else line[: 4 * width] + "…" for line in shown]


def _history(found: NameSurvival, history: UseHistory) -> list[str]:
    place = history.newest_place
    now = history.at(len(found.versions) - 1)
    state = f"breaks: {now.text}" if now.state else "fits the last version"
    lines = [f"{history.use.kind} {history.use.target} ({place[0]}, {place[1]}) {state}"]
    for turn in history.turns:
        version = found.versions[turn.version]
        word = "broken by" if turn.broke else "mended by"
        lines.append(f"  {word} {version.short} {version.date[:10]} {version.subject}")
    if not history.turns:
        lines.append(f"  does not fit {found.versions[0].short}, the first version of the range")
    return lines
