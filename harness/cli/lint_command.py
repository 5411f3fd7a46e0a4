"""`npu-matrix lint PATH`: lint a launch script, or all those in a folder, for a verl version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.completion import complete_cells
from harness.errors import EXIT_INCOMPLETE, EXIT_UNEXPECTED, Location
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.compat.lint.lint_measurements import LintResult
    from harness.sources.tree import Tree
    from harness.workspace.linting.lint_request import LintRequest

#: The value of --verl for the newest verl of the profile, which needs no edit when the matrix changes.
PROFILE = "profile"
OUTPUTS = ("text", "json", "github", "sarif")


@click.command(
    "lint",
    epilog="\b\nExamples:\n  npu-matrix lint run_gspo.sh --verl 0.9.1\n"
    "  npu-matrix lint run.sh --cell gspo-async\n"
    "  npu-matrix lint offline_inference.py --vllm-ascend 0.18.0\n"
    "  npu-matrix lint examples --verl 0.9.1 --diff origin/main --format github\n"
    "  npu-matrix lint run.sh --verl 0.9.1 --show-fixes\n  npu-matrix lint --explain GRAPH-QUEUE",
)
@click.argument("paths", metavar="[PATH]...", type=click.Path(path_type=Path), nargs=-1)
@click.option("--explain", "rule", metavar="RULE", help="Explain a rule, with an example and its source.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules.")
@click.option("--diff", "base", metavar="REVISION", help="Report only findings that this git revision lacks.")
@click.option("--show-fixes", is_flag=True, help="Print a patch with the fixes of findings; write nothing.")
@click.option("--fix", is_flag=True, help="Print this patch, then write it to the scripts.")
@click.option(
    "--skip-others", is_flag=True, help="Skip scripts that start no training job, instead of an error."
)
@click.option("--cell", shell_complete=complete_cells, help="Use all versions of this cell.")
@click.option(
    "--verl",
    help="The verl version (or `0.6.1@COMMIT`) the script is for; `profile`: what the nearest folder above "
    "it pins (REQUIRED_VERL.txt, requirements, Dockerfile, README), otherwise the newest of the profile.",
)
@click.option("--vllm-ascend", help="The vllm-ascend version.")
@click.option("--vllm", help="The vLLM version; default: the one that --vllm-ascend is made for.")
@click.option("--cann", help="The CANN version.")
@click.option("--transformers", help="The transformers version.")
@click.option("--format", "shape", type=click.Choice(OUTPUTS), default="text", help="Output format.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    paths: tuple[Path, ...],
    rule: str | None,
    list_rules: bool,
    base: str | None,
    show_fixes: bool,
    fix: bool,
    skip_others: bool,
    cell: str | None,
    shape: str,
    as_json: bool,
    **versions: str | None,
) -> int:
    """Find settings in a launch script that fail, have no effect, or change the objective, each with a fix.

    Hydra composes the configuration of that verl (a release, or a commit that a mirror has) with the
    overrides, and verl's own program is followed with it, without running anything; so are the checks of the
    vllm-ascend that is given. Commands that start vLLM's server are compared with the options of its release,
    and so is what a Python file calls of vLLM (`LLM(...)`, `SamplingParams(...)`), if the file is given.
    With --cell and with `--verl profile`, verl and vllm-ascend have the patches of the matrix. Of a folder,
    every *.sh file that starts a training job or a server is read, and with --diff only those that the change
    modified. --fix changes only words that are written out in a script, if one correction is plausible and
    lint finds nothing new with it. Exits with 1 if there is an error, and with 4 if settings were not
    compared or not read.
    """
    if rule or list_rules:
        click.echo(_explained(rule, as_json=as_json or shape == "json"))
        return 0
    if not paths:
        raise click.UsageError("give the PATH of a script or folder, or --explain RULE, or --rules")
    from harness.compat.lint.lint_measurements import LintResult
    from harness.compat.lint.lint_scripts import new_findings
    from harness.workspace.linting.lint_request import changed_paths

    output = "json" if as_json else shape
    nothing = LintResult(findings=(), undecided=())
    targets = changed_paths(paths, base) if base else paths
    if not targets:
        click.echo(f"no shell script in {' '.join(map(str, paths))} differs from {base}", err=True)
        if output != "text":
            _print(nothing, output)
        return 0
    is_pinned = versions["verl"] == PROFILE and not cell
    groups = _by_verl(settings, targets, base) if is_pinned else {versions["verl"]: targets}
    patched = is_pinned or bool(cell)
    requests = [
        replace(
            _request(settings, scripts, base, cell, {**versions, "verl": verl}, patched=patched),
            skip_others=skip_others,
        )
        for verl, scripts in groups.items()
    ]
    before = LintResult.of([request.result_at(base) for request in requests]) if base else nothing
    result = new_findings(LintResult.of([request.result() for request in requests]), before)
    if fix or show_fixes:
        _fix(requests, result, write=fix, to_stderr=output != "text")
        if fix:
            result = new_findings(LintResult.of([request.result() for request in requests]), before)
    _print(result, output, requests)
    if any(finding.severity == "error" for finding in result.findings):
        return EXIT_UNEXPECTED
    return EXIT_INCOMPLETE if result.unchecked else 0


def _by_verl(
    settings: Settings, targets: tuple[Path, ...], base: str | None
) -> Mapping[str | None, tuple[Path, ...]]:
    """The verl that the repository pins for its scripts, or the newest of the profile -> the scripts."""
    from harness.workspace.linting.pinned_verl import scripts_by_verl
    from harness.workspace.planning.base_addresses import fetch_for_change
    from harness.workspace.planning.open_plan import open_matrix

    verl = open_matrix(settings).axes["verl"]
    pinned = scripts_by_verl(targets, verl)
    absent = [pin.version for pin in pinned if pin and not pin.is_known]
    if absent:
        fetch_for_change(settings, base, [{"verl": f"0{commit}"} for commit in absent])
        pinned = scripts_by_verl(targets, verl)
    found: dict[str | None, tuple[Path, ...]] = {}
    for pin, scripts in pinned.items():
        if pin and not pin.is_known:
            click.echo(
                f"warning: {pin.where} pins verl{pin.version[:13]}, which no clone here has: its scripts are "
                "compared with the newest verl of the profile",
                err=True,
            )
        version = pin.version if pin and pin.is_known else PROFILE
        found[version] = (*found.get(version, ()), *scripts)
    return found


def _request(
    settings: Settings,
    paths: tuple[Path, ...],
    base: str | None,
    cell: str | None,
    versions: Mapping[str, str | None],
    *,
    patched: bool,
) -> LintRequest:
    """What to lint, with the versions that were given and the files of their verl.

    patched: whether verl has the patches of the matrix, as in a cell.
    """
    from harness.compat.lint.serving.server_findings import ServerSources
    from harness.sources.git.mirrors import mirror_folders
    from harness.sources.packages.release_fetcher import ReleaseFetcher
    from harness.workspace.downloads import run_quietly
    from harness.workspace.linting.given_versions import (
        lint_versions,
        tree_of_engine,
        tree_of_verl,
        tree_of_vllm,
    )
    from harness.workspace.linting.lint_request import LintRequest

    # What reads the matrix imports every check, which takes longer than the lint of a script.
    given = {name: value for name, value in versions.items() if value}
    if given.get("verl") == PROFILE:
        from harness.workspace.planning.newest_verl import newest_verl

        given["verl"] = newest_verl(settings)
    used, unverified = lint_versions(settings, cell, given)
    for name in unverified:
        click.echo(f"warning: the package index is not reachable, so {name} may not exist", err=True)
    if "@" in used.get("verl", ""):
        from harness.workspace.planning.base_addresses import fetch_for_change

        fetch_for_change(settings, base, [used])
    releases = ReleaseFetcher(cache=settings.cache, command=run_quietly, mirrors=mirror_folders())
    tree = tree_of_verl(used, releases)
    engine, absent = tree_of_engine(used, releases) if tree is not None else (None, "")
    if absent:
        click.echo(f"warning: the checks of vllm-ascend itself are not followed: {absent}", err=True)
    if patched:
        tree, engine = _patched(settings, "verl", used, tree), _patched(settings, "vllm_ascend", used, engine)

    def ascend_of_servers() -> Tree | None:
        found = engine if tree is not None else tree_of_engine(used, releases)[0]
        return _patched(settings, "vllm_ascend", used, found) if patched and tree is None else found

    servers = ServerSources(
        fetch_vllm=lambda: tree_of_vllm(used, releases), fetch_ascend=ascend_of_servers, cache=settings.cache
    )
    return LintRequest(
        paths=paths, versions=used, verl=tree, cache=settings.cache, engine=engine, servers=servers
    )


def _patched(
    settings: Settings, upstream: str, versions: Mapping[str, str], tree: Tree | None
) -> Tree | None:
    """The files of an upstream with the patches of the matrix; those that do not apply are told."""
    from harness.workspace.linting.patched_upstream import with_patches

    if tree is None:
        return None
    found = with_patches(settings, upstream, versions, tree)
    if found.others:
        names = f"{', '.join(found.others[:3])}{' ...' if len(found.others) > 3 else ''}"
        click.echo(
            f"warning: {upstream} {versions[upstream]} is read without {len(found.others)} of the "
            f"{len(found.applied) + len(found.others)} patches for it, which do not apply: {names}",
            err=True,
        )
    return found.tree


def _print(result: LintResult, output: str, requests: Sequence[LintRequest] = ()) -> None:
    """Print a result; SARIF has the fixes, which are tried with the requests."""
    from harness.compat.lint.lint_format import FORMATS
    from harness.compat.lint.sarif import as_sarif

    if output != "sarif" or not requests:
        click.echo(FORMATS[output](result), nl=False)
        return
    scripts = [script for request in requests for script in request.fixed(result.findings)]
    fixes = {fix.finding: fix for script in scripts for fix in script.fixes}
    click.echo(as_sarif(result, fixes, lambda name: Path(name).read_bytes()), nl=False)


def _explained(rule: str | None, *, as_json: bool) -> str:
    """A rule with its example and source, or the list of all rules."""
    from harness.cli.rule_output import rule_json, rule_lines, rule_list
    from harness.compat.lint.rule_catalogue import explained_rule, explained_rules

    if as_json:
        return rule_json([explained_rule(rule)] if rule else [*explained_rules().values()])
    return rule_lines(explained_rule(rule)) if rule else rule_list([*explained_rules().values()])


def _fix(requests: Sequence[LintRequest], result: LintResult, *, write: bool, to_stderr: bool) -> None:
    """Print the patch that fixes findings of the result, and then write it to the scripts if `write`."""
    from harness.workspace.linting.script_fixing import patch_of, write_fixes

    scripts = [script for request in requests for script in request.fixed(result.findings)]
    for script in scripts:
        click.echo(patch_of(script), nl=False, err=to_stderr)
    for rejected in (one for script in scripts for one in script.rejected):
        place = Location(rejected.finding.file, rejected.finding.line, rejected.finding.column)
        click.echo(f"{place}: {rejected.finding.rule} has no certain fix: {rejected.why}", err=True)
    if write:
        write_fixes(scripts, [path for request in requests for path in request.paths])
    count = sum(len(script.fixes) for script in scripts)
    done = "fixed" if write else "could be fixed with --fix"
    click.echo(f"{count} finding{'s' if count != 1 else ''} {done}", err=True)
