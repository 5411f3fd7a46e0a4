"""`npu-matrix jobs`: write jobs that run the planned cells on hosts with NPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli.container_options import ascend_runtime_option, npu_resource_option
from harness.cli.selection_options import check_option, only_option
from harness.errors import InputError, Location
from harness.settings import Settings

# The keys of `FORMATS` in harness/workspace/ci/host_jobs.py, which `--help` need not import.
FORMATS = ("kubernetes", "slurm", "compose", "bake", "runners")


@click.command(
    "jobs",
    epilog="\b\nExamples:\n  npu-matrix --profile full jobs kubernetes --cards 8 --jobs 4 > jobs.yaml\n"
    "  npu-matrix --profile full jobs slurm --only 'gspo-*' --partition npu | sbatch\n"
    "  npu-matrix --engine found jobs kubernetes --image registry/our-image:1 --only as-found\n"
    "  npu-matrix --profile full jobs runners --repository https://github.com/us/patches > values.yaml",
)
@click.argument("shape", metavar="{kubernetes|slurm|compose|bake|runners}", type=click.Choice(FORMATS))
@only_option("Cells or stacks to run; a,b or repeated. Default: the profile.")
@check_option("Checks to run, and what they need; a,b or repeated. Default: the profile.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Divide the cells of a kind of host by cost over at most this number of jobs.",
)
@click.option(
    "--cards", type=click.IntRange(1, 64), default=8, show_default=True, help="NPUs that each job gets."
)
@click.option("--image", default="", help="Image of the jobs. Default: the CANN image for the cells.")
@ascend_runtime_option
@npu_resource_option
@click.option(
    "--claim",
    default="npu-matrix",
    show_default=True,
    help="Kubernetes: the persistent volume claim with the checkout.",
)
@click.option("--partition", default="", help="Slurm: the partition.")
@click.option(
    "--repository",
    default="https://github.com/OWNER/REPOSITORY",
    help="runners: address of the GitHub repository or organisation for which they wait.",
)
@click.option("--package", help="What pip installs. Default: this version of npu-matrix.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.pass_obj
def command(
    settings: Settings, /, shape: str, only: tuple[str, ...], checks: tuple[str, ...], **options: Any
) -> None:
    """Write jobs that run the planned cells on hosts with NPUs: for Kubernetes, Slurm, compose, or runners.

    `bake` is a file for `docker buildx bake` with the images of the cells.

    Nothing is started. The jobs read the checkout in a folder that they share, and each writes its outcomes
    below `ledgers` there; `npu-matrix ledger merge ledgers/*` collects them afterwards. `runners` are values
    for GitHub's runners on Kubernetes, whose names are the labels of `plan --github`.
    """
    from harness.builds.export.container_files import ContainerOptions
    from harness.workspace.ci.host_jobs import FORMATS as WRITERS
    from harness.workspace.ci.host_jobs import HostJobOptions, host_jobs, job_lines
    from harness.workspace.planning.plan_history import open_plan_with_history

    chosen = HostJobOptions(
        profile=settings["profile"],
        engine=settings["engine"],
        checks=checks,
        container=ContainerOptions(
            cards=options["cards"],
            image=options["image"],
            ascend_runtime=options["ascend_runtime"],
            npu_resource=options["npu_resource"],
        ),
        claim=options["claim"],
        partition=options["partition"],
        repository=options["repository"],
        **({"package": options["package"]} if options["package"] else {}),
    )
    context, known = open_plan_with_history(settings, only=only, checks=checks, elsewhere=True)
    jobs = host_jobs(context, known, options["jobs"], chosen)
    text = WRITERS[shape](jobs, chosen)
    for line in job_lines(jobs):
        click.echo(line, err=True)
    if options["output"] is None:
        click.echo(text, nl=False)
        return
    try:
        options["output"].write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("cannot write here", where=Location(options["output"]), why=str(error)) from error
