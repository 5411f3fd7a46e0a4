"""`npu-matrix init`: start using npu-matrix in a repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import InputError, Location
from harness.serialisation import dumps

if TYPE_CHECKING:
    from harness.workspace.adoption.first_files import FirstFile
    from harness.workspace.adoption.repository_survey import RepositorySurvey


@click.command(
    "init",
    epilog="\b\nExamples:\n  npu-matrix init --dry-run\n  npu-matrix init\n  npu-matrix init ../my-fork",
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--dry-run", is_flag=True, help="Show what was found and what would be written; write nothing.")
@click.option("--force", is_flag=True, help="Replace files that exist. Default: they are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    context: click.Context, folder: Path | None, *, dry_run: bool, force: bool, as_json: bool
) -> None:
    """Write matrix.yaml, a gate and .gitignore for the repository in FOLDER.

    Without FOLDER it is the one of the option --root, else the current one.

    The gate is for the server of the remote `origin` (GitHub, GitLab, GitCode), else for the CI system whose
    files are here. Without both it is a GitHub workflow. `npu-matrix ci` writes the others.

    The repository is searched for patches (folders by commit of the verl_npu plugin, Ascend recipes, quilt
    series, git format-patch, the branch of a fork), launch scripts, pinned versions and workflows. The new
    matrix.yaml includes the shipped matrix and adds what was found. Nothing of the repository is executed,
    and its patches stay where they are. Files that exist are kept.
    """
    from harness.matrix.reading.load_matrix import load_matrix
    from harness.package import shipped_file
    from harness.settings import MATRIX_FILE, load_settings
    from harness.workspace.adoption.first_files import SIMULATED, describe, first_files
    from harness.workspace.adoption.first_files import as_json as facts
    from harness.workspace.adoption.repository_survey import survey_repository
    from harness.workspace.planning.upstream_mirrors import fetch_for_cells

    asked: Path | None = context.find_root().params.get("root")
    root = (folder or asked or Path()).absolute()
    if not root.is_dir():
        raise InputError(
            "this folder does not exist", where=Location(root), fix="create it, or name another one"
        )
    shipped = load_matrix(shipped_file(MATRIX_FILE))
    survey = survey_repository(root, shipped)
    absent = {(one.upstream, one.commit) for one in survey.patches if one.commit}
    if absent:
        settings = load_settings({}, os.environ, root)
        fetch_for_cells(settings, shipped, [{axis: f"0@{commit}"} for axis, commit in sorted(absent)])
        survey = survey_repository(root, shipped)
    files = first_files(survey, shipped, gates=_gates(survey), force=force)
    if not dry_run:
        _write(root, files)
    if as_json:
        schema = {"name": "npu-matrix.init", "version": 1}
        click.echo(dumps({"schema": schema, "written": not dry_run, **facts(survey, files)}))
        return
    for line in describe(survey):
        click.echo(line)
    click.echo()
    for file in files:
        click.echo(f"{_VERBS[file.action][dry_run]} {file.name}")
        if dry_run and file.action != "keep":
            click.echo("".join(f"    {line}\n" for line in file.text.splitlines()), nl=False)
    if not dry_run:
        click.echo("\nnext:\n  npu-matrix run                              the first report")
        if any(f"\n  {SIMULATED}:\n" in file.text for file in files):
            command = f"npu-matrix --profile {SIMULATED} run"
            click.echo(f"  {command:<42}  losses and training on a simulated device, in minutes")
        gate = f"npu-matrix gate --base {survey.branch or 'main'} --run --run-base"
        click.echo(f"  {gate:<42}  what a change breaks")


#: action -> what is printed when files are written, and with --dry-run.
_VERBS = {
    "create": ("wrote", "would write"),
    "append": ("added lines to", "would add lines to"),
    "keep": ("kept", "would keep"),
    "replace": ("replaced", "would replace"),
}


def _gates(survey: RepositorySurvey) -> list[tuple[str, str]]:
    """Name and text of the files of the gate for the CI system of a repository; none for GitHub."""
    from harness.workspace.ci.gate_pipelines import PROVIDERS, PipelineOptions, pipeline_file

    if survey.ci not in PROVIDERS:
        return []
    made = pipeline_file(survey.ci, PipelineOptions(branch=survey.branch or "main"))
    files = [(made.name, made.text)]
    if survey.ci == "gitlab" and not (survey.root / ".gitlab-ci.yml").exists():
        files.append((".gitlab-ci.yml", f"include:\n  - local: {made.name}\n"))
    return files


def _write(root: Path, files: tuple[FirstFile, ...]) -> None:
    from harness.patchstack.stacks.file_set import write_together

    contents: dict[Path, bytes] = {}
    for file in files:
        path = root / file.name
        if file.action == "keep":
            continue
        if not path.parent.resolve().is_relative_to(root.resolve()):
            raise InputError(
                "this path leads out of the repository", where=Location(path), fix="remove the link"
            )
        before = path.read_bytes() if file.action == "append" else b""
        contents[path] = before + file.text.encode("utf-8", "surrogateescape")
    write_together(contents)
