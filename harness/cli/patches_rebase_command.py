"""`npu-matrix patches rebase`, `import` and `export`: rebase patches, import and export patch stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.patch_output import (
    CODES,
    DIRECTORY,
    json_option,
    print_facts,
    problem_facts,
    say,
    stack_options,
    today,
    write_file,
)
from harness.errors import EXIT_OK, EXIT_UNEXPECTED, InputError, Location, Problem
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.patchstack.apply.classify import LoadedPatch
    from harness.patchstack.rebase.rebase_kit import RebasedPatch
    from harness.patchstack.stacks.import_check import ImportedVerdict
    from harness.patchstack.stacks.stack_import import ImportedStack
    from harness.sources.git.git_repository import GitTree, Repository


@click.command(
    "rebase",
    epilog="\b\nExamples:\n  npu-matrix patches rebase --repo verl.git --to main --out rebased\n"
    "  npu-matrix patches rebase agent_loop.patch --patches theirs --repo verl.git --to v0.9.0 --out new\n"
    "  npu-matrix patches rebase --continue new/agent_loop"
    + CODES.format(
        ok="every patch was rebased", unexpected="a patch has conflicts: resolve them in its rebase kit"
    ),
)
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@stack_options
@click.option(
    "--version",
    default="",
    help="Start from the patch variants for this version. Default: the newest variants.",
)
@click.option(
    "--repo",
    type=DIRECTORY,
    help="A clone or bare mirror of the upstream. Default: the mirror that has the commit.",
)
@click.option("--to", help="The commit to rebase the patches onto.")
@click.option("--out", type=DIRECTORY, help="An empty folder for the rebased patches and the rebase kits.")
@click.option(
    "--continue", "kit", type=DIRECTORY, help="A rebase kit whose conflicts are resolved: write its patch."
)
@json_option
@click.pass_obj
def rebase(
    settings: Settings,
    /,
    names: tuple[str, ...],
    folder: Path | None,
    upstream: str,
    version: str,
    repo: Path | None,
    to: str | None,
    out: Path | None,
    kit: Path | None,
    as_json: bool,
) -> int:
    """Rebase patches onto a new commit of the upstream.

    Patches are those of --patches, or any that a cell has, by the name that the check `patches` prints.
    For each patch with conflicts a rebase kit is written: files with conflict markers, the commits that
    caused the conflicts, and the next steps. After resolving them, run the command with --continue KIT.
    """
    from harness.patchstack.rebase.rebase_stack import rebase_stack as move
    from harness.patchstack.rebase.rebase_stack import rebased_files
    from harness.patchstack.stacks.stack_export import make_empty_folder
    from harness.workspace.downloads import progress_logger

    if kit:
        return _finish(kit, out, as_json=as_json)
    if to is None or out is None:
        raise click.UsageError("give --repo, --to and --out, or --continue KIT")
    repository = _clone_with(repo, to)
    commit = repository.commit(to)
    chosen = _chosen_patches(settings, names, folder, upstream, version, repository.tree(commit))
    make_empty_folder(out)
    results = move(repository, chosen, commit, out, progress_logger("rebase, patches"))
    files = rebased_files(results)
    for name, file in files.items():
        write_file(out / name, file.data)
    if as_json:
        rows = [result.to_json() for result in results]
        print_facts("patch-rebase", {"to": commit, "patches": rows, "written": sorted(files)})
    else:
        for result in results:
            say(*_rebased_lines(result))
        click.echo(f"{out}: {len(files)} of {len(results)} patches were rebased onto {commit[:12]}")
    return EXIT_UNEXPECTED if any(_unfinished(result) for result in results) else EXIT_OK


def _clone_with(repo: Path | None, to: str) -> Repository:
    from harness.sources.git.git_repository import Repository
    from harness.sources.git.mirrors import COMMIT_REMEDY, find_mirror, mirror_folders

    if repo is not None:
        return Repository(repo)
    found = find_mirror(mirror_folders(), to)
    if found is None:
        raise InputError(f"no mirror has a commit {to!r}", fix=f"name a clone with --repo. {COMMIT_REMEDY}")
    return found


def _chosen_patches(
    settings: Settings, names: Sequence[str], folder: Path | None, upstream: str, version: str, tree: GitTree
) -> Sequence[LoadedPatch]:
    """The named patches of the folder, else those that cells have; without names all of the folder."""
    from harness.patchstack.stacks.patch_selection import (
        choose_upstream,
        newest_variants,
        select_by_name,
        variants_for,
    )
    from harness.workspace.patches.patch_target import patches_in_cells

    placed = patches_in_cells(settings, names) if names and folder is None else ()
    if placed:
        return placed
    patches = folder or settings.patches
    upstream = choose_upstream(patches, upstream, tree)
    variants = variants_for(patches, version, upstream) if version else newest_variants(patches, upstream)
    return select_by_name(variants, names)


def _unfinished(result: RebasedPatch) -> bool:
    from harness.patchstack.apply.patch_verdict import PatchVerdict

    return result.data is None and result.verdict.verdict is not PatchVerdict.ALREADY_UPSTREAM


def _rebased_lines(result: RebasedPatch) -> list[str]:
    if result.data is not None:
        return [f"{result.verdict.verdict}  {result.patch}"]
    lines = [f"{result.verdict.verdict}  {result.patch}"]
    lines += [f"  why: {reason}" for reason in result.verdict.reasons]
    culprit = result.breakage.broken_by if result.breakage else None
    if culprit:
        lines.append(f"  broken by: {culprit.id[:12]} {culprit.date[:10]} {culprit.subject}")
    if result.kit:
        lines.append(
            f"  do:  resolve the files in {result.kit / 'tree'}, then: "
            f"npu-matrix patches rebase --continue {result.kit}"
        )
    else:
        lines += [f"  do:  {remedy}" for remedy in result.verdict.remedies]
    return lines


def _finish(kit: Path, out: Path | None, *, as_json: bool) -> int:
    from harness.patchstack.rebase.rebase_kit import finish_kit

    patch = finish_kit(kit)
    file = (out or kit.parent) / f"{kit.name}.patch"
    if file.exists() and file.read_bytes() != patch:
        raise InputError(
            "a different patch of this name exists already",
            where=Location(file),
            fix="remove that file, or choose another folder with --out FOLDER",
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, patch)
    if as_json:
        print_facts("patch-rebase", {"kit": str(kit), "written": [str(file)]})
    else:
        click.echo(f"{file}: written; the kit {kit} is no longer needed")
    return EXIT_OK


@click.command(
    "import",
    epilog="\b\nExamples:\n  npu-matrix patches import MindSpeed-RL\n"
    "  npu-matrix patches import MindSpeed-RL --repo verl.git --repo vllm.git\n"
    "  npu-matrix patches import MindSpeed-RL --for d62da4950==0.6.1 --owner me --out patches"
    + CODES.format(
        ok="the stack has no problems", unexpected="it has problems; with --out it is written nevertheless"
    ),
)
@click.argument("folder", type=DIRECTORY)
@click.option("--layout", type=click.Choice(["verl_npu", "verl-ascend-recipe", "quilt", "plain"]))
@click.option(
    "--repo",
    "repos",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A clone of the upstream: apply each patch to the commit it is pinned to; may be repeated.",
)
@click.option("--out", type=DIRECTORY, help="Write the patches in this project's format below this folder.")
@click.option(
    "--for",
    "spans",
    multiple=True,
    metavar="[PIN]RANGE",
    help="Version range of the patches of a pin, or of all patches, for example d62da4950==0.6.1.",
)
@click.option("--owner", default="", help="With --out: who maintains the imported patches.")
@json_option
def import_command(
    *,
    folder: Path,
    layout: str | None,
    repos: tuple[Path, ...],
    out: Path | None,
    spans: tuple[str, ...],
    owner: str,
    as_json: bool,
) -> int:
    """Import a patch stack of another project.

    Problems of the stack are reported, and with --out it is written in this project's format. With --repo
    each patch is applied to the commit that it names, and the summary of the stack is compared with the code.
    A pin without --for gets a version range of that one commit.
    """
    from harness.patchstack.stacks.import_check import check_imported
    from harness.patchstack.stacks.stack_export import write_imported
    from harness.patchstack.stacks.stack_import import import_patches
    from harness.sources.git.git_repository import Repository
    from harness.workspace.downloads import progress_logger

    if out and not owner:
        raise click.UsageError("--out also needs --owner: who maintains these patches from now on")
    ranges = _ranges(spans)
    imported = import_patches(folder, layout or "")
    verdicts, found = check_imported(
        imported, [Repository(repo) for repo in repos], progress_logger("import, patches")
    )
    written: Sequence[Path] = ()
    if out:
        written = write_imported(imported, out, _spans(ranges, verdicts), owner, today())
    problems = [*imported.problems, *found]
    if as_json:
        facts = {
            "layout": imported.layout,
            "folder": str(folder),
            "patches": [one.to_json() for one in verdicts],
        }
        facts |= {
            "problems": [problem_facts(one) for one in problems],
            "written": [str(file) for file in written],
        }
        print_facts("patch-import", facts)
    else:
        say(*_import_lines(imported, verdicts, problems, written))
    failing = any(one.verdict is not None and not one.verdict.verdict.applies for one in verdicts)
    return EXIT_UNEXPECTED if problems or failing else EXIT_OK


def _ranges(given: Sequence[str]) -> dict[str, str]:
    """Pin ("" for all) -> version range, of the option --for."""
    spans: dict[str, str] = {}
    for text in given:
        found = re.fullmatch(r"([^\s<>=!~]*?)\s*((?:[<>=!~]|commit:).*)", text)
        if found is None:
            raise InputError(
                f"{text!r} is not a pin with a version range", fix="for example d62da4950==0.6.1"
            )
        spans[found[1]] = found[2]
    return spans


def _spans(spans: Mapping[str, str], verdicts: Sequence[ImportedVerdict]) -> dict[str, str]:
    """Pin, or name of a patch without a pin -> its versions: as given with --for, else the pinned commit."""
    chosen = {}
    for one in verdicts:
        pin = one.patch.pin
        name = pin or one.patch.name
        known = next((spans[prefix] for prefix in spans if prefix and name.startswith(prefix)), spans.get(""))
        commit = one.commit or (pin if re.fullmatch(r"[0-9a-f]{12,40}", pin) else "")
        if known or commit:
            chosen[name] = known or f"commit:{commit}"
    return chosen


def _import_lines(
    imported: ImportedStack,
    verdicts: Sequence[ImportedVerdict],
    problems: Sequence[Problem],
    written: Sequence[Path],
) -> list[str]:
    lines = [f"{imported.folder}: {len(imported.patches)} patches, laid out as {imported.layout}"]
    for one in verdicts:
        word = str(one.verdict.verdict) if one.verdict else "not tested"
        lines.append(f"  {word:<16} {one.patch.name}  at {(one.commit or one.patch.pin)[:12] or 'no pin'}")
        if one.verdict and not one.verdict.verdict.applies:
            lines += [f"    why: {reason}" for reason in one.verdict.reasons]
    lines += [str(problem) for problem in problems]
    if written:
        lines.append(f"{len(written)} files written")
    return [*lines, f"{len(problems)} problems"]


@click.command(
    "export",
    epilog="\b\nExamples:\n  npu-matrix patches export --check\n"
    "  npu-matrix patches export --version 0.9.1 --out exported\n"
    "  npu-matrix patches export --version 0.9.1 --out exported --check"
    + CODES.format(
        ok="the files were written, or with --check are up to date", unexpected="with --check, a file differs"
    ),
)
@stack_options
@click.option("--version", default="", help="Export the patch variants for this version.")
@click.option(
    "--out", type=DIRECTORY, help="An empty folder for the patches 0001-... and a quilt series file."
)
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Write nothing; compare with the files in --out, or with the stored variants.",
)
@json_option
@click.pass_obj
def export(
    settings: Settings,
    /,
    folder: Path | None,
    upstream: str,
    version: str,
    out: Path | None,
    checks: bool,
    as_json: bool,
) -> int:
    """Export a patch stack as numbered patches.

    Each patch has its description. The output is reproducible. With --check alone, every stored patch variant
    is compared with its canonical form.
    """
    from harness.patchstack.stacks.patch_selection import choose_upstream, load_own_stack, stacks_in
    from harness.patchstack.stacks.stack_export import canonical_problems, export_problems, export_stack

    patches = folder or settings.patches
    if bool(out) != bool(version) or not (out or checks):
        raise click.UsageError("give --version and --out, or --check")
    stack = load_own_stack(patches, choose_upstream(patches, upstream))
    if stack is None:
        raise InputError(
            "there is no stack of this project's format here",
            where=Location(patches),
            fix="make one: npu-matrix patches import FOLDER --out patches",
        )
    problems: list[Problem] = []
    files: Sequence[Path] = ()
    if checks and not out and not upstream:
        stacks = [load_own_stack(patches, name) for name in stacks_in(patches)] or [stack]
        problems = [problem for one in stacks if one for problem in canonical_problems(one)]
    elif checks:
        problems = export_problems(stack, version, out) if out else canonical_problems(stack)
    elif out:
        files = export_stack(stack, version, out)
    if as_json:
        written = [str(file) for file in files]
        print_facts(
            "patch-export", {"problems": [problem_facts(one) for one in problems], "written": written}
        )
    else:
        say(*map(str, problems))
        done = f"{len(files)} files written" if files else f"{len(problems)} differences"
        click.echo(f"{out or (stack.folder if upstream else patches)}: {done}")
    return EXIT_UNEXPECTED if problems else EXIT_OK
