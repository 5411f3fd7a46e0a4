"""`npu-matrix patches forecast`: whether the current patches apply to the newest upstream."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli.patch_output import CODES, DIRECTORY, json_option, say, stack_options
from harness.errors import EXIT_OK, EXIT_UNEXPECTED, NothingSelectedError
from harness.settings import Settings


@click.command(
    "forecast",
    epilog="\b\nExamples:\n  npu-matrix patches forecast --repo verl.git --ref main\n"
    "  npu-matrix patches forecast --repo vllm-ascend.git --json\n"
    "  npu-matrix patches forecast --repo verl.git --patches theirs/verl"
    + CODES.format(
        ok="every patch applies to the head or is in it already", unexpected="a patch does not apply"
    ),
)
@click.argument("names", nargs=-1, metavar="[PATCH]...")
@stack_options
@click.option("--repo", type=DIRECTORY, required=True, help="A clone or bare mirror of the upstream.")
@click.option("--ref", default="HEAD", show_default=True, help="The branch or commit to test.")
@json_option
@click.pass_obj
def forecast(
    settings: Settings,
    /,
    names: tuple[str, ...],
    folder: Path | None,
    upstream: str,
    repo: Path,
    ref: str,
    as_json: bool,
) -> int:
    """Check whether the patches apply to the head of an upstream.

    For each patch that does not apply, the commit that broke it is named. The patch variants are those for
    the version that the head has, otherwise for the newest release in the matrix. Patches whose version range
    ends before that are listed and not tested.
    """
    from harness.patchstack.history.forecast import forecast_stack as look_ahead
    from harness.patchstack.stacks.patch_selection import choose_upstream, select_by_name
    from harness.sources.git.git_repository import Repository
    from harness.workspace.downloads import progress_logger
    from harness.workspace.patches.patch_target import upstream_of_patches, variants_for_head

    patches = folder or settings.patches
    repository = Repository(repo)
    tree = repository.tree(ref)
    package = upstream_of_patches(patches, choose_upstream(patches, upstream, tree))
    current = variants_for_head(settings, patches, package, tree)
    chosen = select_by_name(current.variants, names)
    if not chosen:
        ended = "; ".join(f"{name} is for {span}" for name, span in current.ended.items())
        raise NothingSelectedError(f"no patch of {package} is for the version of {ref}", why=ended)
    progress = progress_logger("looking for the commits that broke patches, patches")
    found = look_ahead(package, repository, chosen, ref, progress, current.ended)
    say(json.dumps(found.to_json(), indent=2) if as_json else found.to_text())
    return EXIT_OK if found.stack.applies else EXIT_UNEXPECTED
