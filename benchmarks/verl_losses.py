"""`harness/numerics/loss/verl_losses.json` against verl's own sources: every release of the package index and
every commit of `matrix.yaml` that a clone has.

`python -m benchmarks.verl_losses --write` writes what the sources say into the file. Entries of commits that
no clone has are kept.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import ROOT, Figure, user_cache
from harness.numerics.loss.release_objectives import known_losses, parse_release
from harness.numerics.loss.verl_losses_source import ReleasedLosses, read_losses
from harness.package import data_file
from harness.settings import load_settings
from harness.sources.git.mirrors import mirror_folders
from harness.sources.packages.index_listing import listed_releases
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import run_quietly
from harness.workspace.planning.open_plan import open_plan

FIRST = (0, 5, 0)
"""Older releases have no cell and none of the functions that the battery tests by name."""


def published() -> Iterator[tuple[str, ReleasedLosses]]:
    """Each release and commit whose source is available, with what it says."""
    fetcher = ReleaseFetcher(cache=user_cache(), command=run_quietly, mirrors=mirror_folders())
    for release in listed_releases("verl", index_environment(os.environ)):
        name = str(release.version)
        number = parse_release(name)
        if number and number >= FIRST and ".dev" not in name:
            yield name, read_archive(fetcher.sources("verl", name).file)
    for commit in sorted(commits()):
        sources = fetcher.commit(commit)
        if sources is not None:
            yield commit, read_archive(sources.file)


def commits() -> set[str]:
    """The commits of verl in any profile of `matrix.yaml`."""
    found = set()
    for profile in ("default", "full", "twins"):
        for cell in open_plan(load_settings({"profile": profile}, os.environ, ROOT)).plan.cells:
            found.add(cell.axes.get("verl", "").partition("@")[2])
    return found - {""}


def read_archive(file: Path) -> ReleasedLosses:
    """The losses in an archive of sources, whose paths may have a leading folder."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()

        def read(path: str) -> str | None:
            found = [name for name in names if name == path or name.endswith(f"/{path}")]
            return archive.read(min(found, key=len)).decode("utf-8") if found else None

        return read_losses(read)


def figures() -> Iterator[Figure]:
    known = known_losses()
    read = dict(published())
    wrong = [name for name, losses in read.items() if known.get(name) != losses]
    yield Figure(
        claim=f"releases and commits of verl ({len(read)}) that the table has wrongly",
        measured=len(wrong),
        limit=0,
    )


def write() -> None:
    """Write the table of what the sources say."""
    entries = {**known_losses(), **dict(published())}
    ordered = sorted(entries, key=lambda name: (parse_release(name) or (sys.maxsize,), name))
    table = {
        name: {
            "capabilities": sorted(entries[name].capabilities),
            "differences": sorted(entries[name].differences),
        }
        for name in ordered
    }
    data_file("numerics/loss/verl_losses.json").write_text(
        json.dumps(table, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        print(*figures(), sep="\n")
