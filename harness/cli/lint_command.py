"""`npu-matrix lint PATH`: lint a launch script, or all those in a folder, for a verl version."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.completion import complete_cells
from harness.errors import EXIT_INCOMPLETE, EXIT_UNEXPECTED, InputError, Location
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.compat.lint.lint_measurements import LintResult
    from harness.sources.tree import Tree

#: The value of --verl for the newest verl of the profile, which needs no edit when the matrix changes.
PROFILE = "profile"
FORMATS = ("text", "json", "github", "sarif")


@click.command(
    "lint",
    epilog="\b\nExamples:\n  npu-matrix lint run_gspo.sh --verl 0.9.1\n"
    "  npu-matrix lint run.sh --cell gspo-async\n"
    "  npu-matrix lint examples --verl 0.9.1 --diff origin/main --format github\n"
    "  npu-matrix lint run.sh --verl 0.9.1 --show-fixes\n  npu-matrix lint --explain GRAPH-QUEUE",
)
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--explain", "rule", metavar="RULE", help="Explain a rule, with an example and its source.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules.")
@click.option("--diff", "base", metavar="REVISION", help="Report only findings that this git revision lacks.")
@click.option("--show-fixes", is_flag=True, help="Print a patch with the fixes of findings; write nothing.")
@click.option("--fix", is_flag=True, help="Print this patch, then write it to the scripts.")
@click.option("--cell", shell_complete=complete_cells, help="Use all versions of this cell.")
@click.option(
    "--verl",
    help="The verl version (or `0.6.1@COMMIT`) the script is for; `profile`: the newest of the profile.",
)
@click.option("--vllm-ascend", help="The vllm-ascend version.")
@click.option("--cann", help="The CANN version.")
@click.option("--transformers", help="The transformers version.")
@click.option("--format", "shape", type=click.Choice(FORMATS), default="text", help="Output format.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    path: Path | None,
    rule: str | None,
    list_rules: bool,
    base: str | None,
    show_fixes: bool,
    fix: bool,
    cell: str | None,
    shape: str,
    as_json: bool,
    **versions: str | None,
) -> int:
    """Find settings in a launch script that fail, have no effect, or change the objective, each with a fix.

    Hydra composes the configuration of that verl (a release, or a commit that a mirror has) with the
    overrides, and verl's own program is followed with it, without running anything. Of a folder, every *.sh
    file that starts a training job is read, and with --diff only those that the change modified. --fix
    changes only words that are written out in a script, if one correction is plausible and lint finds nothing
    new with it. Exits with 1 if there is an error, and with 4 if settings were not compared or not read.
    """
    if rule or list_rules:
        click.echo(_explained(rule, as_json=as_json or shape == "json"))
        return 0
    if path is None:
        raise click.UsageError("give the PATH of a script or folder, or --explain RULE, or --rules")
    from harness.compat.lint import lint_format as printing
    from harness.compat.lint.lint_measurements import LintResult
    from harness.compat.lint.sarif import as_sarif
    from harness.sources.packages.release_fetcher import ReleaseFetcher
    from harness.workspace.downloads import run_quietly
    from harness.workspace.linting.given_versions import lint_versions, tree_of_verl
    from harness.workspace.linting.script_fixing import fixed_scripts
    from harness.workspace.planning.base_addresses import fetch_for_change
    from harness.workspace.planning.newest_verl import newest_verl

    targets = _targets(path, base)
    if not targets:
        click.echo(f"no shell script in {path} differs from {base}", err=True)
        if as_json or shape != "text":
            nothing = LintResult(findings=(), undecided=())
            click.echo(printing.FORMATS["json" if as_json else shape](nothing), nl=False)
        return 0
    given = {name: value for name, value in versions.items() if value}
    if given.get("verl") == PROFILE:
        given["verl"] = newest_verl(settings)
    releases = ReleaseFetcher(cache=settings.cache, command=run_quietly)
    versions_used, unverified = lint_versions(settings, cell, given)
    for name in unverified:
        click.echo(f"warning: the package index is not reachable, so {name} may not exist", err=True)
    if "@" in versions_used.get("verl", ""):
        fetch_for_change(settings, base, [versions_used])
    tree = tree_of_verl(versions_used, releases)
    result = _new(targets, base, versions_used, tree)
    if fix or show_fixes:
        plain = shape == "text" and not as_json
        _fix(path, versions_used, tree, result, write=fix, to_stderr=not plain)
        if fix:
            result = _new(targets, base, versions_used, tree)
    if shape == "sarif" and not as_json:
        scripts = fixed_scripts(path, versions_used, tree, result.findings.__contains__)
        fixes = {fix.finding: fix for script in scripts for fix in script.fixes}
        click.echo(as_sarif(result, fixes, lambda name: Path(name).read_bytes()), nl=False)
    else:
        click.echo(printing.FORMATS["json" if as_json else shape](result), nl=False)
    if any(finding.severity == "error" for finding in result.findings):
        return EXIT_UNEXPECTED
    return EXIT_INCOMPLETE if result.unchecked else 0


def _explained(rule: str | None, *, as_json: bool) -> str:
    """A rule with its example and source, or the list of all rules."""
    from harness.cli.rule_output import rule_json, rule_lines, rule_list
    from harness.compat.lint.rule_catalogue import explained_rule, explained_rules

    if as_json:
        return rule_json([explained_rule(rule)] if rule else [*explained_rules().values()])
    return rule_lines(explained_rule(rule)) if rule else rule_list([*explained_rules().values()])


def _targets(path: Path, base: str | None) -> tuple[Path, ...]:
    """What to lint: of a folder, the scripts that a change modified, if all of them start a job."""
    if not base or not path.is_dir():
        return (path,)
    from harness.compat.lint.lint_check import shell_scripts, starts_job
    from harness.plan.change.revision import changed_files, resolve_revision

    differing = changed_files(path, resolve_revision(path, base))
    names = {(path / name).resolve() for name in (*differing.tracked, *differing.untracked)}
    if not any(name.suffix == ".sh" for name in names):
        return ()
    changed = tuple(script for script in shell_scripts(path) if script.resolve() in names)
    if not any(map(starts_job, shell_scripts(path))):
        return ()
    # Scripts that others read can change what unmodified ones do.
    return changed if changed and all(map(starts_job, changed)) else (path,)


def _new(
    targets: tuple[Path, ...], base: str | None, versions: Mapping[str, str], verl: Tree | None
) -> LintResult:
    """The findings in these scripts and folders; with a base, those that the base lacks."""
    from harness.compat.lint.lint_check import new_findings
    from harness.compat.lint.lint_measurements import LintResult

    results = []
    for target in targets:
        result = _linted(target, versions, verl)
        results.append(new_findings(result, _linted_before(target, base, versions, verl)) if base else result)
    return LintResult(
        findings=tuple(one for result in results for one in result.findings),
        undecided=tuple(one for result in results for one in result.undecided),
        notes=tuple(one for result in results for one in result.notes),
    )


def _fix(
    path: Path,
    versions: Mapping[str, str],
    verl: Tree | None,
    result: LintResult,
    *,
    write: bool,
    to_stderr: bool,
) -> None:
    """Print the patch that fixes findings of the result, and then write it to the scripts if `write`."""
    from harness.workspace.linting.script_fixing import fixed_scripts, patch_of, write_fixes

    scripts = fixed_scripts(path, versions, verl, result.findings.__contains__)
    for script in scripts:
        click.echo(patch_of(script), nl=False, err=to_stderr)
    for rejected in (one for script in scripts for one in script.rejected):
        place = Location(rejected.finding.file, rejected.finding.line, rejected.finding.column)
        click.echo(f"{place}: {rejected.finding.rule} has no certain fix: {rejected.why}", err=True)
    if write:
        write_fixes(scripts, path)
    count = sum(len(script.fixes) for script in scripts)
    done = "fixed" if write else "could be fixed with --fix"
    click.echo(f"{count} finding{'s' if count != 1 else ''} {done}", err=True)


def _linted(path: Path, versions: Mapping[str, str], verl: Tree | None) -> LintResult:
    from harness.compat.lint.lint_check import lint_file, lint_folder

    return lint_folder(path, versions, verl) if path.is_dir() else lint_file(path, versions, verl)


def _linted_before(path: Path, base: str, versions: Mapping[str, str], verl: Tree | None) -> LintResult:
    """The result for the same path in an earlier revision, with the names that its files have now."""
    from harness.compat.lint.lint_measurements import LintResult
    from harness.plan.change.revision import extract_revision, resolve_revision

    root = path if path.is_dir() else path.parent
    revision = resolve_revision(root, base)
    with tempfile.TemporaryDirectory(prefix="npu-matrix-lint-") as folder:
        before = extract_revision(root, revision, Path(folder))
        old = before if path.is_dir() else before / path.name
        try:
            result = _linted(old, versions, verl)
        except InputError:
            # The scripts are new, or started no job.
            return LintResult(findings=(), undecided=())
        renamed = (replace(one, file=one.file.replace(str(before), str(root), 1)) for one in result.findings)
        return replace(result, findings=tuple(renamed))
