"""Facts for the patches page of the report: whether patches apply to upstream heads, and what they change.

The facts are computed once for each head or tree and cached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.code_graph.stored_facts import code_digest
from harness.digest import digest_json
from harness.errors import HarnessError
from harness.matrix.version_matrix import Matrix
from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.format.diff_writer import render_patch
from harness.patchstack.history.forecast import forecast_stack
from harness.patchstack.stacks.change_summary import summarise_changes
from harness.patchstack.stacks.patch_selection import stacks_in, variants_for
from harness.patchstack.stacks.patch_stack import upstreams
from harness.patchstack.stacks.upstream_tree import version_target
from harness.settings import Settings
from harness.sources.git.mirrors import find_clone, mirror_folders
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import progress_logger, run_quietly
from harness.workspace.patches.cached_facts import cached_facts
from harness.workspace.patches.patch_target import matrix_versions, variants_for_head

LOGGER = logging.getLogger(__name__)

FOLDER = "patch-facts"


def patch_facts_files(settings: Settings, matrix: Matrix) -> tuple[Path, ...]:
    """The files of forecasts and summaries that can be computed without the network.

    A forecast needs a clone of its upstream. A summary needs a commit of such a clone, or a release
    that a check has downloaded. Failures are logged, and the report is made without these facts.
    """
    patches = settings.patches
    if not patches.is_dir():
        return ()
    heads = _or_logged("heads", lambda: _heads(settings, matrix, patches))
    return (*heads, *_or_logged("summaries", lambda: _summaries(settings, patches)))


def _or_logged(what: str, work_out: Callable[[], Iterator[Path]]) -> list[Path]:
    try:
        return list(work_out())
    except (HarnessError, OSError) as error:
        LOGGER.warning("note: the %s of the patches could not be computed: %s", what, error)
        return []


def _heads(settings: Settings, matrix: Matrix, patches: Path) -> Iterator[Path]:
    """A forecast for each upstream that has a local clone."""
    for name in stacks_in(patches):
        address = matrix.axes[name].repository if name in matrix.axes else ""
        clone = find_clone(mirror_folders(), address) if address else None
        if clone is None:
            continue
        head = clone.commit("HEAD")
        current = variants_for_head(settings, patches, name, clone.tree(head))
        progress = progress_logger(f"patches on the head of {name}")
        parts = [name, head, dict(current.ended)]
        yield _cached_file(
            settings,
            parts,
            current.variants,
            lambda name=name, clone=clone, current=current, progress=progress: forecast_stack(  # type: ignore[misc]
                name, clone, current.variants, "HEAD", progress, current.ended
            ).to_json(),
        )


def _summaries(settings: Settings, patches: Path) -> Iterator[Path]:
    """A summary of each patch on its newest version whose source tree is available locally."""
    releases = ReleaseFetcher(
        cache=settings.cache, command=run_quietly, mirrors=mirror_folders(), offline=True
    )
    for name in upstreams(patches):
        summarised: set[str] = set()
        for version in matrix_versions(settings, name):
            variants = [body for body in variants_for(patches, version, name) if body.name not in summarised]
            if not variants:
                continue
            try:
                target = version_target(name, version, releases)
            except HarnessError:
                continue
            summarised |= {body.name for body in variants}
            yield _cached_file(
                settings,
                [name, version],
                variants,
                lambda name=name, variants=variants, target=target: summarise_changes(  # type: ignore[misc]
                    name, variants, target.tree, target.blobs
                ).to_json(),
            )


def _cached_file(
    settings: Settings,
    about: Sequence[Any],
    variants: Sequence[LoadedPatch],
    work_out: Callable[[], Mapping[str, object]],
) -> Path:
    """The cached file with the result of `work_out` for these patches and this code."""
    texts = [
        (one.name, render_patch(one.patch).decode("latin-1") if one.patch else str(one.error))
        for one in variants
    ]
    parts: list[Any] = [list(about), texts, code_digest(__name__, cache=settings.cache)]
    return cached_facts(settings.cache / FOLDER / f"{digest_json(parts)}.json", work_out)
