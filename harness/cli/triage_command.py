"""`npu-matrix triage`: find the root cause of a failed job in its log."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_OK, EXIT_UNEXPECTED, InputError, Location, NothingSelectedError
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.compat.knowledge.pack_at_hand import PackAtHand
    from harness.sources.secrets.masking import Masker
    from harness.verdict.triage.catalogue import Catalogue
    from harness.verdict.triage.diagnosis import ComparedRuns, Diagnosis


@click.command(
    "triage",
    epilog="\b\nExamples:\n  npu-matrix triage train.log\n  npu-matrix triage --json *.log\n"
    "  npu-matrix triage npu.log --reference gpu.log\n"
    "  npu-matrix triage --run latest\n"
    "  npu-matrix triage --stack gspo-async\n"
    "  kubectl logs trainer-0 | npu-matrix triage -\n  npu-matrix triage --list\n"
    "  npu-matrix triage train.log --learn --id my-failure --cause '...' --remedy '...' --source URL\n\n\b\n"
    "Exit codes: 0 the log shows that the job worked; 1 it shows a failure, or not that the job worked "
    "(an empty log, no end).",
)
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.triage).")
@click.option(
    "--run",
    "run_id",
    metavar="RUN",
    help="Read the logs of the failed tasks of this run, or of the `latest` run.",
)
@click.option(
    "--stack",
    metavar="STACK",
    help="Triage the failures that matrix.yaml lists for this stack, and compare with their causes.",
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="Log of a correct run of the same recipe, to compare metrics with.",
)
@click.option(
    "--repeat",
    type=click.Path(path_type=Path),
    help="Log of a second run with the same cell and seed, to find nondeterminism.",
)
@click.option("--list", "list_all", is_flag=True, help="Print the catalogue of known failures.")
@click.option("--learn", "learns", is_flag=True, help="Add the unknown failure of LOG to signatures.yaml.")
@click.option("--id", "name", help="With --learn: id of the new signature.")
@click.option("--cause", help="With --learn: the cause of the failure.")
@click.option("--remedy", help="With --learn: how to fix it.")
@click.option("--affects", default="", help="With --learn: the affected versions.")
@click.option("--source", help="With --learn: a link to the source of this information.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    logs: tuple[str, ...],
    as_json: bool,
    run_id: str | None,
    stack: str | None,
    reference: Path | None,
    repeat: Path | None,
    list_all: bool,
    learns: bool,
    **described: str | None,
) -> int:
    """Find the root cause of a failed job in its log, with a remedy and its source.

    LOG is a file of any size, or `-` for standard input. Failures that are not in the catalogue are grouped
    by their stack traces. The file signatures.yaml next to matrix.yaml extends the catalogue. Training
    metrics are compared with the limits of the catalogue; most limits need --reference.
    """
    from harness.compat.knowledge.pack_at_hand import pack_at_hand
    from harness.sources.secrets.masking import Masker
    from harness.verdict.triage.catalogue import LOCAL_NAME, catalogue_with
    from harness.verdict.triage.diagnosis import ComparedRuns, read_series
    from harness.workspace.results.run_triage import triage_run

    local = settings.root / LOCAL_NAME
    catalogue = catalogue_with(local)
    if list_all:
        _list(catalogue, as_json=as_json)
        return EXIT_OK
    if stack:
        return _triage_stack(settings, stack, catalogue, as_json=as_json)
    if not logs and not run_id:
        raise click.UsageError("give a log file, - for standard input, or --run")
    compared = ComparedRuns(
        reference=read_series(reference, catalogue) if reference else None,
        repeat=read_series(repeat, catalogue) if repeat else None,
    )
    surfaces = pack_at_hand(settings.cache)
    diagnoses = {
        name: found
        for log in dict.fromkeys(logs)
        for name, found in _diagnose(log, catalogue, compared, surfaces).items()
    }
    if run_id:
        diagnoses |= triage_run(settings, run_id, catalogue)
    mask = Masker.of_command(os.environ)
    if learns:
        _learn(diagnoses, catalogue, local, described, mask)
        return EXIT_OK
    if as_json:
        _print_json(diagnoses, mask, as_list=run_id is not None)
    else:
        _print_text(diagnoses, mask)
    return EXIT_OK if all(found.is_clean for found in diagnoses.values()) else EXIT_UNEXPECTED


def _triage_stack(settings: Settings, name: str, catalogue: Catalogue, *, as_json: bool) -> int:
    from harness.compat.knowledge.pack_at_hand import pack_at_hand
    from harness.serialisation import json_object
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.results.stack_failures import failure_lines, named_stack, triage_stack

    stack = named_stack(open_matrix(settings), name)
    found = list(triage_stack(stack, catalogue, pack_at_hand(settings.cache)))
    if not found:
        raise NothingSelectedError(
            f"matrix.yaml lists no failures of the stack {name}",
            why=stack.no_failures,
            fix="add them to its `failures`",
        )
    if as_json:
        schema = {"name": "npu-matrix.stack-failures", "version": 1}
        click.echo(
            json.dumps({"schema": schema, **json_object({"stack": name, "failures": found})}, indent=2)
        )
    else:
        click.echo("\n".join(failure_lines(found)))
    return EXIT_OK if all(one.agrees for one in found) else EXIT_UNEXPECTED


def _diagnose(
    log: str, catalogue: Catalogue, compared: ComparedRuns, surfaces: PackAtHand
) -> dict[str, Diagnosis]:
    """The diagnosis of a log; of an archive those of its files, by the names of both."""
    from harness.verdict.triage.diagnosis import triage, triage_members

    if log == "-":
        # None if standard input was closed when Python started.
        if sys.stdin is None:
            raise InputError("standard input is closed", fix="name a log file")
        return {log: triage(sys.stdin.buffer, catalogue, compared=compared, surfaces=surfaces)}
    members = triage_members(Path(log), catalogue, compared=compared, surfaces=surfaces)
    if len(members) == 1:
        return {log: next(iter(members.values()))}
    return {f"{log}: {name or 'the rest'}": found for name, found in members.items()}


def _print_json(diagnoses: dict[str, Diagnosis], mask: Masker, *, as_list: bool) -> None:
    from harness.verdict.triage.diagnosis import SCHEMA, cluster

    if len(diagnoses) == 1 and not as_list:
        log, found = next(iter(diagnoses.items()))
        click.echo(json.dumps(mask.json({**found.to_json(), "log": log}), indent=2))
        return
    clusters = [
        {"id": one.id, "text": one.text, "stack": list(one.stack), "logs": list(one.places)}
        for one in cluster(diagnoses)
    ]
    results = [{**found.to_json(), "log": log} for log, found in diagnoses.items()]
    click.echo(json.dumps(mask.json({"schema": SCHEMA, "logs": results, "clusters": clusters}), indent=2))


def _print_text(diagnoses: dict[str, Diagnosis], mask: Masker) -> None:
    from harness.verdict.triage.diagnosis import cluster
    from harness.verdict.triage.diagnosis_text import describe

    if not diagnoses:
        click.echo("no failed task has a log")
    for log, found in diagnoses.items():
        if len(diagnoses) > 1:
            click.echo(f"\n{log}")
        for line in describe(found):
            click.echo(mask.text(line))
    shared = [one for one in cluster(diagnoses) if len(one.places) > 1]
    if shared:
        click.echo("\nthe same unknown failure in several logs:")
    for one in shared:
        click.echo(f"  {one.id}: {', '.join(one.places)}")


def _learn(
    diagnoses: dict[str, Diagnosis],
    catalogue: Catalogue,
    local: Path,
    described: dict[str, str | None],
    mask: Masker,
) -> None:
    from harness.verdict.triage.learn_signature import Description, append_entry, learn

    missing = [f"--{name}" for name in ("name", "cause", "remedy", "source") if not described[name]]
    if missing:
        raise click.UsageError(f"--learn also needs {', '.join(missing).replace('--name', '--id')}")
    if len(diagnoses) != 1:
        raise click.UsageError("--learn takes one log")
    root = next(iter(diagnoses.values())).root
    if root is not None and mask.text(root.text) != root.text:
        raise InputError(
            "the line that would be learned contains a credential of this machine",
            where=Location(next(iter(diagnoses))),
            fix="remove it from the log, and revoke it if others have the log",
        )
    if root is None:
        raise InputError("no failure was found in this log", fix="name the log of a job that failed")
    text = {name: value or "" for name, value in described.items()}
    description = Description(
        id=text["name"],
        cause=text["cause"],
        remedy=text["remedy"],
        affects=text["affects"],
        source=text["source"],
    )
    entry = learn(root, description, catalogue)
    append_entry(local, entry)
    click.echo(f"{local.name}: {entry.id} recognises {entry.pattern}")


def _list(catalogue: Catalogue, *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "id": one.id,
                "area": one.area,
                "stage": one.stage,
                "severity": one.severity,
                "role": one.role,
                "evidence": one.evidence,
                "pattern": one.pattern,
                "example": one.example,
                "cause": one.cause,
                "remedy": one.remedy,
                "affects": one.affects,
                "sources": list(one.sources),
            }
            for one in catalogue.signatures
        ]
        metrics = [
            {"id": one.id, "metrics": list(one.metrics), "symptom": one.symptom, "cause": one.cause}
            | {"remedy": one.remedy, "sources": list(one.sources), "rule": one.rule}
            | {"limit": one.limit, "derivation": one.derivation}
            for one in catalogue.metrics
        ]
        schema = {"name": "npu-matrix.signatures", "version": 1}
        click.echo(json.dumps({"schema": schema, "signatures": rows, "metrics": metrics}, indent=2))
        return
    for one in catalogue.signatures:
        click.echo(f"{one.id:<26} {one.area:<12} {one.severity:<8} {one.cause}")
    for metric in catalogue.metrics:
        click.echo(f"{metric.id:<26} {'metric':<12} {'':<8} {metric.symptom}: {metric.cause}")
