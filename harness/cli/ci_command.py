"""`npu-matrix ci`: write the gate for a CI system into a repository."""

from __future__ import annotations

from pathlib import Path

import click

from harness.errors import InputError, Location
from harness.settings import Settings


@click.command(
    "ci",
    epilog="\b\nExamples:\n  npu-matrix ci gitlab\n  npu-matrix ci gitcode --branch master --verl 0.9.1\n"
    "  npu-matrix ci jenkins --print",
)
@click.argument("provider", type=click.Choice(["gitlab", "gitcode", "jenkins"]))
@click.option("--branch", default="main", show_default=True, help="The branch into which changes are merged.")
@click.option(
    "--verl",
    default="profile",
    show_default=True,
    help="The verl version for which launch scripts are linted, as in `lint --verl`.",
)
@click.option("--package", help="What pip installs. Default: this version of npu-matrix.")
@click.option(
    "--awaiting",
    default="npu",
    show_default=True,
    help="Outcomes that another job provides, as in `gate --awaiting`; - for none.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the file; write nothing.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    provider: str,
    branch: str,
    verl: str,
    package: str | None,
    awaiting: str,
    *,
    only_print: bool,
    force: bool,
) -> None:
    """Write the file that makes a CI system gate every change: GitLab, GitCode or Jenkins.

    The pipeline runs what the change affects, runs the base where a failure cannot be compared, lints the
    launch scripts that the change modifies, and reports in JUnit and in the code quality format of GitLab. It
    fails if something is newly broken, and also if something that changed has no outcome, for example because
    an upstream repository is not reachable.

    For GitHub, use the action of npu-matrix.
    """
    from harness.workspace.ci.gate_pipelines import PipelineOptions, pipeline_file

    options = PipelineOptions(
        verl=verl,
        branch=branch,
        awaiting="" if awaiting == "-" else awaiting,
        **({"package": package} if package else {}),
    )
    made = pipeline_file(provider, options)
    if only_print:
        click.echo(made.text, nl=False)
        return
    file = settings.root / made.name
    if file.exists() and not force:
        raise InputError(
            "this file exists already", where=Location(file), fix="remove it, or replace it with --force"
        )
    _write(file, made.text)
    click.echo(f"wrote {made.name}; commit it, and make its job a required check of {branch}")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            "cannot write here", where=Location(file), why=error.strerror or str(error)
        ) from error
