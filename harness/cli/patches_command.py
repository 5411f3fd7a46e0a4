"""`npu-matrix patches`: check, summarise and test patches over a range of commits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.patch_output import (
    ANY,
    CODES,
    DIRECTORY,
    FILE,
    json_option,
    print_facts,
    problem_facts,
    say,
    stack_options,
    today,
    write_file,
)
from harness.cli.patches_ablate_command import ablate
from harness.cli.patches_apply_command import apply
from harness.cli.patches_forecast_command import forecast
from harness.cli.patches_list_command import list_patches
from harness.cli.patches_probe_command import probe
from harness.cli.patches_rebase_command import export, import_command, rebase
from harness.cli.patches_runtime_command import runtime
from harness.errors import (
    EXIT_BAD_INPUT,
    EXIT_OK,
    EXIT_UNEXPECTED,
    InputError,
    Location,
    NothingSelectedError,
    Problem,
)
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.patchstack.apply.patch_verdict import ClassifiedPatch
    from harness.patchstack.apply.stack_apply import StackResult
    from harness.patchstack.stacks.patch_stack import SelectedPatch
    from harness.patchstack.stacks.upstream_tree import UpstreamTree
    from harness.sources.git.commit_history import Commit


@click.group(
    "patches",
    epilog="\b\nExamples:\n  npu-matrix patches check --version 0.9.1\n"
    "  npu-matrix patches survival --repo verl.git --range v0.6.1..main --html survival.html\n"
    "  npu-matrix patches rebase --repo verl.git --to main --out rebased",
)
def command() -> None:
    """Check, rebase, import, export and summarise patch stacks. None of them needs an NPU."""


def _tree_options(function: Any) -> Any:
    for option in (
        click.option(
            "--ref", default="HEAD", show_default=True, help="With --repo: the commit, branch or tag."
        ),
        click.option("--repo", type=DIRECTORY, help="Use a commit of this clone or bare mirror."),
        click.option("--tree", "path", type=ANY, help="Use this folder, wheel or sdist."),
        click.option(
            "--version", default="", help="Use this release (or `0.6.1@COMMIT`) from the package index."
        ),
    ):
        function = option(function)
    return stack_options(function)


@command.command(
    "check",
    epilog="\b\nExamples:\n  npu-matrix patches check\n  npu-matrix patches check --version 0.9.1\n"
    "  npu-matrix patches check --repo verl.git --ref main --version 0.9.1\n"
    "  npu-matrix patches check --patches theirs/ --tree site-packages"
    + CODES.format(ok="every patch applies or is upstream already", unexpected="a patch does not apply"),
)
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@_tree_options
@json_option
@click.pass_obj
def check(settings: Settings, /, names: tuple[str, ...], as_json: bool, **tree: Any) -> int:
    """Check whether the patches apply to a source tree, in order. Nothing is written.

    Without a tree, only the headers, variants and version ranges of the stacks are checked, for the versions
    in the matrix. Patches in other layouts, which the section `patches` of matrix.yaml names, must be
    readable, and a quilt series must name files that exist. With --tree or --repo, --version selects the
    patch variants if the tree has no version.
    """
    from harness.workspace.patches.patch_effects import apply_with_culprits
    from harness.workspace.patches.patch_target import TreeSelection, resolve_target, variants_for_target

    selection = TreeSelection(**tree)
    patches = selection.patches(settings)
    if names and not selection.has_tree:
        raise click.UsageError("to check single patches, give a tree with --version, --tree or --repo")
    if not selection.has_tree:
        return _lint(settings, patches, selection.upstream, as_json=as_json)
    target, package = resolve_target(settings, selection)
    chosen = variants_for_target(patches, target, package, names)
    if not chosen:
        raise NothingSelectedError(
            f"no patch is for version {target.version}",
            fix="select the patch variants with --version, for example --version 0.9.1",
        )
    result, culprits = apply_with_culprits(package, target, chosen, selection.repo, selection.ref)
    if as_json:
        about = {"upstream": package, "tree": target.tree.label, "version": target.version or None}
        broken_by = {name: culprit.to_json() for name, culprit in culprits.items()}
        print_facts("patch-check", {**about, **result.to_json(), "broken_by": broken_by})
    else:
        say(*_check_lines(target, result, culprits))
    return EXIT_OK if result.applies else EXIT_UNEXPECTED


def _check_lines(target: UpstreamTree, result: StackResult, culprits: Mapping[str, Commit]) -> list[str]:
    lines = []
    for verdict in result.verdicts:
        lines += _verdict_lines(verdict)
        broke = culprits.get(verdict.patch)
        if broke:
            lines.append(f"  broken by: {broke.id[:12]} {broke.date[:10]} {broke.subject}")
    good = sum(verdict.verdict.applies for verdict in result.verdicts)
    head = f"{target.tree.label}: {good} of {len(result.verdicts)} patches apply"
    return [*lines, *(f"note: {sentence}" for sentence in result.relations), head]


def _verdict_lines(verdict: ClassifiedPatch) -> list[str]:
    offset = f"({verdict.offset:+d})" if verdict.offset else ""
    lines = [f"{verdict.verdict}{offset}  {verdict.patch}"]
    if verdict.verdict.applies:
        return lines
    lines += [f"  why: {reason}" for reason in verdict.reasons]
    return lines + [f"  do:  {remedy}" for remedy in verdict.remedies]


def _lint(settings: Settings, patches: Path, upstream: str, *, as_json: bool) -> int:
    from harness.patchstack.stacks.patch_stack import upstreams
    from harness.patchstack.stacks.stack_lint import lint_stack
    from harness.workspace.patches.patch_target import matrix_versions

    known = [name for name in upstreams(patches) if not upstream or name == upstream]
    placed = _placed_patches(settings, upstream)
    if not known and not placed:
        raise InputError(
            "there are no stacks here",
            where=Location(patches),
            fix="expected patches/<upstream>/series; `npu-matrix init` finds patches in other layouts, and "
            "--tree or --repo applies those of a folder",
        )
    versions = {name: matrix_versions(settings, name) for name in known}
    problems = [
        problem for name in known for problem in lint_stack(patches, name, versions[name], today=today())
    ]
    problems += [problem for patch in placed for problem in _unreadable(settings, patch)]
    if as_json:
        stacks = [{"upstream": name, "versions": versions[name]} for name in known]
        print_facts("patch-lint", {"stacks": stacks, "problems": [problem_facts(one) for one in problems]})
    elif problems:
        raise InputError.of(problems)
    else:
        for name in known:
            count = len(versions[name])
            click.echo(f"{patches / name}: valid for {count} versions of the matrix")
        if placed:
            click.echo(f"{len(placed)} patches in other layouts can be read")
        click.echo("the patches were not applied to a tree; give one with --version, --tree or --repo")
    return EXIT_BAD_INPUT if problems else EXIT_OK


def _placed_patches(settings: Settings, upstream: str) -> tuple[SelectedPatch, ...]:
    """The patches of this checkout that are in other layouts; none without a matrix."""
    from harness.workspace.planning.open_plan import open_matrix, patch_sources

    if settings.lacks_matrix:
        return ()
    placed = patch_sources(settings, open_matrix(settings)).placed
    return tuple(one.patch for one in placed if not upstream or one.upstream == upstream)


def _unreadable(settings: Settings, patch: SelectedPatch) -> list[Problem]:
    """Why git rejects a patch, if it does."""
    from harness.patchstack.apply.classify import read_patch

    error = read_patch(patch.id, patch.data).error if patch.data else None
    return [Problem(error.why, Location(settings.root / patch.file, error.line))] if error else []


@command.command(
    "survival",
    epilog="\b\nExamples:\n  npu-matrix patches survival --repo verl.git --range v0.6.1..main\n"
    "  npu-matrix patches survival --repo verl.git --range v0.6.1..main --patches theirs/ --html map.html\n"
    "  npu-matrix patches survival --json > survival.json && npu-matrix report --survival survival.json"
    + CODES.format(ok="the history was computed, whatever it shows", unexpected="is not used"),
)
@click.option("--repo", type=DIRECTORY, help="A clone or bare mirror. Default: the releases in the matrix.")
@click.option("--range", "revisions", help="With --repo: the commits to test, as A..B (in B but not in A).")
@stack_options
@click.option("--html", type=FILE, help="Write the heat map and its turning points as an HTML page.")
@click.option("--svg", type=FILE, help="Write the heat map as SVG.")
@json_option
@click.pass_obj
def survival(
    settings: Settings,
    /,
    repo: Path | None,
    revisions: str | None,
    folder: Path | None,
    upstream: str,
    html: Path | None,
    svg: Path | None,
    as_json: bool,
) -> int:
    """Test every patch on a range of commits.

    The result shows where each patch applies, which commit broke it and which commit fixed it. The JSON has
    `commits` (newest first), `legend` (the verdicts) and, for each patch, one index into the legend per
    commit: the best verdict of any variant of the patch, followed by the verdicts of each variant. Without
    --repo the patches are tested on the releases in the matrix.
    """
    from harness.patchstack.history.heatmap import (
        heatmap_page,
        heatmap_svg,
        heatmap_text,
        turning_point_lines,
    )
    from harness.patchstack.history.survival import survival_of_commits as follow
    from harness.patchstack.stacks.patch_selection import all_variants, choose_upstream
    from harness.sources.git.git_repository import Repository
    from harness.workspace.downloads import progress_logger
    from harness.workspace.patches.patch_effects import survival_over_releases

    if bool(repo) != bool(revisions):
        raise click.UsageError("--repo and --range need each other")
    patches = folder or settings.patches
    if repo and revisions:
        repository = Repository(repo)
        tip = repository.tree(revisions.rpartition("..")[2] or "HEAD")
        variants, logical = all_variants(patches, choose_upstream(patches, upstream, tip))
        found = follow(repository, revisions, variants, progress_logger("survival, commits"), logical)
    else:
        upstream = choose_upstream(patches, upstream)
        found = survival_over_releases(settings, patches, upstream)
    if html:
        write_file(html, heatmap_page(found))
    if svg:
        write_file(svg, heatmap_svg(found))
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        say(
            heatmap_text(found, shutil.get_terminal_size().columns if _is_terminal() else 100),
            *turning_point_lines(found),
        )
    return EXIT_OK


@command.command(
    "summary",
    epilog="\b\nExamples:\n  npu-matrix patches summary --version 0.9.1\n"
    "  npu-matrix patches summary --patches theirs/verl/d62da4950 --repo verl.git --ref d62da4950"
    + CODES.format(ok="every patch applies", unexpected="a patch does not apply, so its changes are unknown"),
)
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@_tree_options
@json_option
@click.pass_obj
def summary(settings: Settings, /, names: tuple[str, ...], as_json: bool, **tree: Any) -> int:
    """List what each patch adds, replaces or deletes.

    Classes, functions, methods and attributes are listed. The lists come from comparing the code before and
    after each patch. Changed signatures are shown in both forms.
    """
    from harness.patchstack.apply.patch_verdict import PatchVerdict
    from harness.patchstack.stacks.change_summary import summarise_changes
    from harness.workspace.patches.patch_target import TreeSelection, resolve_target, variants_for_target

    selection = TreeSelection(**tree)
    if not selection.has_tree:
        raise click.UsageError("select a tree with --version, --tree or --repo")
    target, package = resolve_target(settings, selection)
    variants = variants_for_target(selection.patches(settings), target, package, names)
    found = summarise_changes(package, variants, target.tree, target.blobs)
    say(json.dumps(found.to_json(), indent=2) if as_json else found.to_text())
    upstreamed = PatchVerdict.ALREADY_UPSTREAM
    good = all(one.files or one.verdict is upstreamed for one in found.patches)
    return EXIT_OK if good else EXIT_UNEXPECTED


def _is_terminal() -> bool:
    return sys.stdout.isatty()


for _other in (list_patches, apply, ablate, forecast, rebase, import_command, export, runtime, probe):
    command.add_command(_other)
