"""`npu-matrix rehearse`: run cells for NPUs on a stand-in for their host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.selection_options import check_option, only_option
from harness.cli.stated_exit import StatedExit
from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.workspace.execution.rehearsal import HostGroup


@click.command(
    "rehearse",
    epilog="\b\nExamples:\n  npu-matrix rehearse --only 'one-step-off*'\n"
    "  npu-matrix rehearse --only 'verl-0-9-0*' --check environment,loss\n"
    "  npu-matrix --profile rows rehearse --folder /data/rehearsal\n"
    "  npu-matrix --engine docker rehearse --only 'gspo-async*' --check environment\n"
    "  npu-matrix rehearse --first-contact --only 'verl-0-9-0*'\n"
    "  npu-matrix rehearse --faults --only 'verl-0-9-0*'\n"
    "  npu-matrix --engine found rehearse --first-contact --faults --only 'verl-0-9-0*'\n"
    "  npu-matrix rehearse --hosts --only 'gspo-qwen3-30b*'\n"
    "  npu-matrix rehearse --list",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("npu-matrix-rehearsal"),
    show_default=True,
    help="Where the stand-in hosts, the ledger and the reports are written.",
)
@only_option("Cells to rehearse. Default: all cells of the profile that need an NPU.")
@check_option("Checks to run. Default: all of the profile.")
@click.option(
    "--first-contact",
    "contact",
    is_flag=True,
    help="Run `npu-matrix first-contact` on the stand-in instead of `plan` and `run`.",
)
@click.option(
    "--faults",
    is_flag=True,
    help="Instead, bring faults of cards, links and driver into the stand-in, and run `doctor` and `plan`. "
    "With --first-contact: run that while the disk is full, all cards are leased, or it is killed.",
)
@click.option(
    "--hosts",
    "several",
    is_flag=True,
    help="Instead, run the check `hosts` of cells whose recipe needs several hosts, on as many stand-ins "
    "with a Ray cluster. With --faults also while a host, its link, its driver or a card fails.",
)
@click.option("--list", "only_list", is_flag=True, help="Only print what the stand-in replaces.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    folder: Path,
    only: tuple[str, ...],
    checks: tuple[str, ...],
    *,
    contact: bool,
    faults: bool,
    several: bool,
    only_list: bool,
) -> int:
    """Run cells for NPUs on a stand-in for their host, with the commands that you run on the real one.

    The stand-in has the device nodes, npu-smi, driver files and CANN folders of a host with the cell's SoC,
    CANN and driver, in a mount namespace of its own: nothing outside is changed. The simulated device is in
    the place of CANN's libraries, so all evidence is simulated. Needs Linux, and root or user namespaces.

    With `--engine docker` or `podman`, a service of the engine is started that sees the stand-in and has a
    store of its own, which needs root. The image of CANN is replaced by one with the same name: the CANN of
    the stand-in on --base-image (default: the image of Python with the version that the cell needs).

    Exits with 4 if a cell stopped for a reason that is not a fact of the world, or a fault was not named.
    """
    from harness.workspace.execution.rehearsal import STOPS, host_groups, rehearse_group
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import select_cells

    _print_replaced()
    if only_list:
        return EXIT_OK
    if settings.lacks_matrix:
        settings = settings.with_shipped_matrix()
    matrix = open_matrix(settings)
    cells = select_cells(settings, matrix, only)
    nodes = {cell.id: matrix.recipes[cell.recipe].nodes if cell.recipe else 1 for cell in cells}
    if several:
        cells = [cell for cell in cells if nodes[cell.id] > 1]
    groups = host_groups(cells)
    if not groups:
        what = "several hosts" if several else "an NPU"
        return StatedExit(EXIT_NOTHING_SELECTED, (f"no selected cell needs {what}",))
    place = folder.absolute()
    place.mkdir(parents=True, exist_ok=True)
    if several:
        return _hosts(groups, nodes, place, settings, faults=faults)
    if contact and not faults:
        return _contact(groups, place, settings)
    if faults:
        return _faults(groups, place, settings, contact=contact)
    ours = 0
    summary: list[str] = []
    for group in groups:
        click.echo(f"\n== {group.host.shape.title}, CANN {group.host.cann}, simulated")
        for cell in rehearse_group(group, place, settings, checks, click.echo):
            passed = ", ".join(f"{number} {evidence}" for evidence, number in cell.passed.items())
            summary.append(f"{cell.cell}: passed {passed or 'nothing'}; {cell.following} not reached")
            for stop in cell.stops:
                meaning, is_ours = STOPS[stop.kind]
                ours += is_ours
                summary.append(f"  {stop.check} {stop.status}: {meaning}{' [ours]' if is_ours else ''}")
                summary.append(f"    {stop.reason}")
    click.echo("\n== what became of the cells (simulated)")
    click.echo("\n".join(summary))
    if ours:
        return StatedExit(EXIT_INCOMPLETE, (f"{ours} stops are not facts of the world",))
    return StatedExit(EXIT_OK, ("every stop is a fact of the world",))


def _contact(groups: Sequence[HostGroup], place: Path, settings: Settings) -> StatedExit:
    from harness.workspace.execution.rehearsal import contact_group

    codes = []
    for group in groups:
        click.echo(f"\n== {group.host.shape.title}, CANN {group.host.cann}, simulated")
        _, code = contact_group(group, place, settings, click.echo)
        codes.append(code)
    done = codes.count(EXIT_OK)
    return StatedExit(max(codes), (f"{done} of {len(codes)} stand-in hosts were measured (simulated)",))


def _hosts(
    groups: Sequence[HostGroup], nodes: Mapping[str, int], place: Path, settings: Settings, *, faults: bool
) -> StatedExit:
    from harness.workspace.execution.rehearsed_hosts import rehearse_hosts

    found = []
    for group in groups:
        for cell in group.cells:
            one = replace(group, cells=(cell,))
            click.echo(f"\n== {cell.id}: {nodes[cell.id]} x {group.host.shape.title}, simulated")
            for tried in rehearse_hosts(one, nodes[cell.id], place, settings, faults=faults):
                found.append(tried)
                click.echo(f"{tried.fault}\n  {f'[ours] {tried.problem}' if tried.problem else tried.told}")
    right = sum(not tried.problem for tried in found)
    code = EXIT_OK if right == len(found) else EXIT_INCOMPLETE
    return StatedExit(code, (f"{right} of {len(found)} runs on several hosts were as expected (simulated)",))


def _faults(groups: Sequence[HostGroup], place: Path, settings: Settings, *, contact: bool) -> StatedExit:
    from harness.workspace.execution.rehearsed_contact import rehearse_contacts
    from harness.workspace.execution.rehearsed_faults import rehearse_faults

    rehearse = rehearse_contacts if contact else rehearse_faults
    problems = number = 0
    # One host of each SoC: CANN makes no difference to these faults.
    for group in {group.host.shape.soc: group for group in groups}.values():
        click.echo(f"\n== {group.host.shape.title}, CANN {group.host.cann}, simulated")
        for found in rehearse(group, place, settings):
            number, problems = number + 1, problems + bool(found.problem)
            click.echo(f"{found.fault}\n  {f'[ours] {found.problem}' if found.problem else found.told}")
    code = EXIT_INCOMPLETE if problems else EXIT_OK
    return StatedExit(code, (f"{number - problems} of {number} faults were named (simulated)",))


def _print_replaced() -> None:
    from harness.devices.stand_in.stands_for import REPLACED

    click.echo("A stand-in is no NPU host. Part by part: what is in its place, and what remains untried.")
    for one in REPLACED:
        click.echo(f"{one.part[0]}\n  in its place: {one.stand_in[0]}\n  untried: {one.untried[0]}")
