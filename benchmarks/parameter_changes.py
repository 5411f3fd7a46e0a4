"""Parameter changes of 33 libraries that others collected (PCBench): how many `api` finds or makes up.

The cases come from a clone of the repository PCART-tools/PCBench, given as NPU_MATRIX_PCBENCH. Each is a
program written for one release of a library, with the label whether it is compatible with the next one. Some
of the APIs are drawn by hash; of these, half may be looked at while the check is developed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import CannotRunError, Figure, user_cache
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use_check import check_uses
from harness.errors import HarnessError
from harness.sources.git.git_repository import GitTree, Repository
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import run_quietly

CLONE = "NPU_MATRIX_PCBENCH"
#: So many APIs are drawn, and so many cases with each label of each.
APIS = 240
CASES_OF_LABEL = 2
PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow"}
_CASE = re.compile(
    r"Benchmark/(?P<package>[^/]+)/(?P<name>.+)@(?P<before>[^/-]+)-(?P<after>[^/]+)/"
    r".*#\d+(?P<label>[YN][YN])/[^/]+\.py$"
)


class Api(NamedTuple):
    """An API that changed from one release to another."""

    package: str
    name: str
    before: str
    after: str

    @property
    def order(self) -> bytes:
        """A draw by hash."""
        return hashlib.sha256("|".join(self).encode()).digest()

    @property
    def half(self) -> str:
        """Which half it belongs to."""
        return "looked at" if self.order[1] % 2 else "only counted"


def figures() -> Iterator[Figure]:
    clone = os.environ.get(CLONE)
    if not clone:
        raise CannotRunError("its cases are not here", f"set {CLONE} to a clone of PCART-tools/PCBench")
    tree = Repository(Path(clone)).tree("HEAD")
    apis = _apis(tree)
    releases = _Releases()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for api in sorted(apis, key=lambda one: one.order)[:APIS]:
        for truth, found in _judged(tree, api, apis[api], releases):
            counts[api.half][f"{truth} {found}"] += 1
    for half, own in sorted(counts.items(), reverse=True):
        right, missed, wrong = own["N N"], own["N Y"], own["Y N"]
        claim = f"of {right + missed} programs that a parameter change breaks ({half}), found"
        yield Figure(claim=claim, measured=100 * right / max(1, right + missed), unit="%")
        claim = f"of {own['Y Y'] + wrong} programs that still work ({half}), called broken"
        yield Figure(claim=claim, measured=100 * wrong / max(1, own["Y Y"] + wrong), unit="%", limit=1)
        rate = 200 * right / max(1, 2 * right + missed + wrong)
        yield Figure(claim=f"F1 of these ({half})", measured=rate, unit="%")


def _apis(tree: GitTree) -> Mapping[Api, Mapping[str, Sequence[str]]]:
    """API -> label -> the paths of its cases."""
    found: dict[Api, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(tree.paths()):
        case = _CASE.fullmatch(path)
        if case:
            api = Api(case["package"], case["name"], case["before"], case["after"])
            found[api][case["label"]].append(path)
    return found


class _Releases:
    """The surfaces of releases from the index or the cache; None for one without sources there."""

    def __init__(self) -> None:
        self._source = ReleaseFetcher(cache=user_cache(), command=run_quietly, mirrors=())
        self._known: dict[tuple[str, str], ApiSurface | None] = {}

    def surface(self, package: str, version: str) -> ApiSurface | None:
        key = (PACKAGES.get(package, package), version)
        if key not in self._known:
            try:
                sources = self._source.find(*key)
            except HarnessError:
                sources = None
            self._known[key] = ApiSurface(sources.file) if sources else None
        return self._known[key]


def _judged(
    tree: GitTree, api: Api, cases: Mapping[str, Sequence[str]], releases: _Releases
) -> Iterator[tuple[str, str]]:
    """(Y or N for compatible, the answer) of the cases of an API; nothing without sources."""
    before, after = (releases.surface(api.package, version) for version in (api.before, api.after))
    if before is None or after is None:
        return
    for label, paths in cases.items():
        for path in paths[:CASES_OF_LABEL]:
            consumer = _program(tree.read(path))
            uses = find_uses(consumer, {api.package}).uses
            found = [
                {(one.line, one.name) for one in check_uses(uses, provider, consumer, made_for) if one.breaks}
                for provider, made_for in (
                    ({api.package: (api.before, before)}, None),
                    ({api.package: (api.after, after)}, {api.package: before}),
                )
            ]
            yield label[0], "N" if found[1] - found[0] else "Y"


def _program(text: bytes) -> ApiSurface:
    """A program as the only module of a package."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.zip"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("case.py", text)
        surface = ApiSurface(file)
        surface.source("case")
        return surface
