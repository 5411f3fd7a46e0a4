"""`npu-matrix api`: names that packages use of each other, and API changes between two versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from harness.cli.api_survival_command import survival
from harness.cli.completion import complete_cells
from harness.errors import EXIT_OK, EXIT_UNEXPECTED
from harness.serialisation import JsonValue, json_object
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.compat.api.api_measurements import ApiFinding, ApiMeasured
    from harness.sources.packages.release_fetcher import ReleaseFetcher


@click.group(
    "api",
    epilog="\b\nExamples:\n  npu-matrix api check verl-0-9-0\n"
    "  npu-matrix api check vllm-ascend==0.9.1 vllm==0.9.2\n"
    "  npu-matrix api diff transformers==4.57.6 transformers==5.5.4\n"
    "  npu-matrix api survival verl vllm --range 0.9.0..0.11.0",
)
def command() -> None:
    """Check that the names packages import from each other exist. Reads source code only; runs nothing."""


command.add_command(survival)


@command.command(
    "check",
    epilog="\b\nExamples:\n  npu-matrix api check verl-0-9-0\n"
    "  npu-matrix api check vllm-ascend==0.9.1 vllm==0.9.2 torch-npu==2.5.1\n"
    "  npu-matrix api check verl@796871d7 vllm==0.11.0 transformers==4.57.6",
)
@click.argument("target", metavar="CELL | CONSUMER", shell_complete=complete_cells)
@click.argument("providers", metavar="[PROVIDER]...", nargs=-1)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also print uses that are guarded, for example by try/except ImportError.",
)
@click.option(
    "--history/--no-history",
    default=True,
    help="Find the last release that had each missing name. Downloads earlier releases.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def check(
    settings: Settings,
    target: str,
    providers: tuple[str, ...],
    everything: bool,
    history: bool,
    as_json: bool,
) -> int:
    """List names that packages use and others do not have.

    CELL: the names that verl, vllm-ascend and our patches use are checked. If CELL could not be resolved, the
    versions of its pins are checked. Exits with 1 when a module that every training imports would fail.

    CONSUMER PROVIDER...: any packages, as NAME==VERSION or NAME@COMMIT, without a cell or a lock. With
    torch-npu as a provider, calls of NPU operators are checked too. Exits with 1 when a use breaks, or
    when no use of one of the providers was found.
    """
    from harness.compat.release_pairs import is_release

    if is_release(target):
        return _check_releases(settings, target, providers, everything, history, as_json)
    if providers:
        raise click.UsageError("providers are for a release such as verl==0.9.0, not for a cell")
    return _check_cell(settings, target, everything, history, as_json)


def _check_releases(
    settings: Settings,
    consumer: str,
    providers: tuple[str, ...],
    everything: bool,
    history: bool,
    as_json: bool,
) -> int:
    from harness.compat.api.api_check import with_last_releases
    from harness.compat.release_pairs import check_releases, read_package

    if not providers:
        raise click.UsageError("name at least one provider, for example vllm==0.9.1")
    source = _source(settings)
    found = check_releases(
        read_package(consumer, source), [read_package(one, source) for one in providers], source
    )
    names = with_last_releases(found.names, source, everything=history)
    if as_json:
        report: dict[str, JsonValue] = {"schema": {"name": "npu-matrix.api-check", "version": 1}}
        report |= json_object(names)
        report["unused"] = list(found.unused)
        report["operators"] = [json_object(one) for one in found.operators]
        click.echo(json.dumps(report, indent=2))
    else:
        _print_names(names, everything)
        for one in found.operators:
            if everything or not one.guarded:
                click.echo(f"{'guarded' if one.guarded else 'error':<8} {one} (torch-npu)")
        for label in found.unused:
            click.echo(f"not checked: no use of {label} was found, so nothing is known of it")
        click.echo(f"{found.uses} uses were checked")
    return EXIT_UNEXPECTED if found.breaks or found.unused else EXIT_OK


def _print_names(measured: ApiMeasured, everything: bool) -> None:
    for finding in measured.findings:
        if finding.breaks or everything:
            click.echo(f"{_level(finding):<8} {finding}")
    for pair in measured.pairs:
        click.echo(f"checked {pair}")
    for file in measured.unparsed:
        click.echo(f"not checked: this Python cannot parse {file}")


def _check_cell(settings: Settings, cell: str, everything: bool, history: bool, as_json: bool) -> int:
    from harness.compat.api.api_analysis import examine
    from harness.compat.api.api_check import gather, with_last_releases
    from harness.compat.checks import CHECKS
    from harness.measurements import read_shape
    from harness.plan.keys.facets import facet_values
    from harness.sources.packages.release_archive import TargetPlatform
    from harness.workspace.planning.open_plan import facet_inputs, open_matrix
    from harness.workspace.planning.plan_selection import find_cell
    from harness.workspace.results.stored_lock import stored_resolution

    matrix = open_matrix(settings)
    found = find_cell(matrix, settings["profile"], cell)
    resolved = stored_resolution(settings, found.id)
    facet_names = next(check.facets for check in CHECKS if check.name == "api")
    facets = facet_values(found, facet_names, facet_inputs(settings, matrix))
    source = replace(
        _source(settings),
        target=read_shape(TargetPlatform, facets["platform"]),
        indexes=resolved.reachable(facets["pins"]["index"]),
        locked=resolved.locked_archives,
    )
    measured = examine(gather(facets, source, settings.root))
    measured = with_last_releases(measured, source, everything=history)
    failed = any(finding.fails for finding in measured.findings)
    if as_json:
        report: dict[str, JsonValue] = {"schema": {"name": "npu-matrix.api-check", "version": 1}}
        report["cell"] = found.id
        report |= json_object(measured)
        click.echo(json.dumps(report, indent=2))
        return EXIT_UNEXPECTED if failed else EXIT_OK
    _print_names(measured, everything)
    if not resolved.locked_archives:
        click.echo("the cell has no lock: versions are those of its pins, or the newest ones in their range")
    for one in measured.misfits:
        click.echo(f"checked without our patch {one}, which does not apply")
    for text in measured.not_read:
        click.echo(f"not checked: the sources of {text} are not available")
    return EXIT_UNEXPECTED if failed else EXIT_OK


@command.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--breaking", is_flag=True, help="Show only changes that can break working code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def diff(settings: Settings, before: str, after: str, breaking: bool, as_json: bool) -> None:
    """List API changes from one release of a package to another.

    BEFORE and AFTER are releases, for example transformers==4.57.6 transformers==5.5.4, or commits of mirrors
    (verl@796871d7).
    For torch-npu the operator schemas are compared too, including changed default values.
    """
    from harness.compat.api.api_diff import ApiChange, api_changes
    from harness.compat.release_pairs import read_package
    from harness.compat.surface.operator_schema import read_operators, schema_changes

    source = _source(settings)
    then, now = read_package(before, source), read_package(after, source)
    old, new = then.surface, now.surface
    changes = list(api_changes(old, new))
    if "torch_npu" in old.packages & new.packages:
        changes += [
            ApiChange(
                name=f"torch_npu.{c.name}",
                text=c.text + (" (silent)" if c.silent else ""),
                breaking=c.breaking or c.silent,
            )
            for c in schema_changes(read_operators(old.sources), read_operators(new.sources))
        ]
    shown = [change for change in changes if change.breaking or not breaking]
    if as_json:
        report: dict[str, object] = {"schema": {"name": "npu-matrix.api-diff", "version": 1}}
        report |= {"before": then.label, "after": now.label}
        report["changes"] = [vars(change) for change in shown]
        click.echo(json.dumps(report, indent=2))
        return
    for change in shown:
        click.echo(f"{'breaks' if change.breaking else '      '}  {change}")
    count = sum(change.breaking for change in changes)
    click.echo(f"{then.label} -> {now.label}: {len(changes)} changes, {count} can break working code")


def _level(finding: ApiFinding) -> str:
    if finding.fails:
        return "error"
    return "warning" if finding.breaks else "guarded" if finding.guarded else "patch"


def _source(settings: Settings) -> ReleaseFetcher:
    from harness.sources.git.mirrors import mirror_folders
    from harness.sources.packages.release_fetcher import ReleaseFetcher
    from harness.workspace.downloads import run_quietly

    return ReleaseFetcher(cache=settings.cache, command=run_quietly, mirrors=mirror_folders())
