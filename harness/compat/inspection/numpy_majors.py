"""Packages that cannot be used with NumPy 2, although their metadata does not say so.

Extensions that were compiled with NumPy 1 refuse NumPy 2, and nothing that was published before its first
release candidate can have been compiled with it. Python code of CANN (the compiler of operators) uses names
that NumPy 2 does not have; CANN has no metadata on an index, but each release of vllm-ascend states what the
CANN of its torch_npu needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.surface_pack import SurfacePack
from harness.sources.packages.lockfile import normal_name

NUMPY, TORCH, TORCH_NPU, PLUGIN = "numpy", "torch", "torch-npu", "vllm-ascend"
SECOND_MAJOR = Version("2")
#: When 2.0.0rc1 was published, the first NumPy that others could be compiled with for NumPy 2.
FIRST_CANDIDATE = "2024-04-01"


@dataclass(frozen=True, kw_only=True)
class NumpyMisfit:
    """A package that cannot be used with the NumPy that is there. newest: the newest NumPy that fits."""

    package: str
    version: str
    numpy: str
    why: str
    source: str
    newest: str

    def __str__(self) -> str:
        return f"{self.package} {self.version} does not work with numpy {self.numpy}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class KnownCann:
    """cann: the version that is there, "" if not known. published: release of the plugin -> its CANN."""

    cann: str = ""
    published: Mapping[str, str | None] = field(default_factory=dict)


def numpy_misfits(
    pack: SurfacePack, stated: Mapping[str, str], known: KnownCann | None = None
) -> Iterator[NumpyMisfit]:
    """Those of the stated packages (normalised name -> version)."""
    numpy = _parsed(stated.get(NUMPY, ""))
    if numpy is None or numpy < SECOND_MAJOR:
        return
    releases = (found for one in pack.releases(NUMPY) if (found := _parsed(one.version)))
    newest = str(max((one for one in releases if one < SECOND_MAJOR), default=""))
    reasons = {
        TORCH: _compiled_before(pack, stated.get(TORCH, "")),
        TORCH_NPU: _stated_by_plugin(pack, stated.get(TORCH_NPU, ""), numpy, known or KnownCann()),
    }
    for package, reason in reasons.items():
        if reason:
            (why, source), version = reason, stated[package]
            yield NumpyMisfit(
                package=package, version=version, numpy=str(numpy), why=why, source=source, newest=newest
            )


def _compiled_before(pack: SurfacePack, version: str) -> tuple[str, str] | None:
    wanted = _parsed(version)
    dates = (one.uploaded for one in pack.releases(TORCH) if wanted and _same(one.version, wanted))
    uploaded = next(dates, "")
    if not uploaded or uploaded >= FIRST_CANDIDATE:
        return None
    why = f"it was published on {uploaded}, before there was a NumPy 2 to compile it with"
    return why, "dates of the releases on the package index"


def _stated_by_plugin(
    pack: SurfacePack, version: str, numpy: Version, known: KnownCann
) -> tuple[str, str] | None:
    """If every release of the plugin for this torch_npu, or for the next ones on both sides, excludes it."""
    wanted = _parsed(version)
    if wanted is None:
        return None
    stated = sorted(_plugin_releases(pack), key=lambda one: one[0])
    own = [one for one in stated if one[0].release == wanted.release]
    below = [one for one in stated if one[0].release < wanted.release][-1:]
    above = [one for one in stated if one[0].release > wanted.release][:1]
    judging = own or (above and [*below, *above])
    if not judging or any(one[2].specifier.contains(numpy, prereleases=True) for one in judging):
        return None
    permitting = [one[1] for one in stated if one[2].specifier.contains(numpy, prereleases=True)]
    canns = [found for one in permitting if (found := _parsed(known.published.get(one) or ""))]
    there = _parsed(known.cann)
    if there is not None and canns and there >= min(canns):
        return None
    _pinned, release, requirement = judging[0]
    pinned = "this torch_npu" if own else "the torch_npu before and after it"
    later = f" (before CANN {min(canns)})" if canns else ""
    others = f"{PLUGIN} {release} and every other release for {pinned}"
    why = f"{others} require {requirement}, because of CANN{later}"
    return why, f"metadata of {len(judging)} releases of {PLUGIN}"


def _plugin_releases(pack: SurfacePack) -> Iterator[tuple[Version, str, Requirement]]:
    """The torch_npu that a release of the plugin pins, the release, and its requirement of NumPy."""
    for one in pack.releases(PLUGIN):
        surface = pack.release(PLUGIN, one.version)
        stated = {normal_name(each.name): each for each in (surface.requirements if surface else ())}
        pinned, needed = stated.get(TORCH_NPU), stated.get(NUMPY)
        clauses = tuple(pinned.specifier) if pinned else ()
        version = _parsed(clauses[0].version) if len(clauses) == 1 and clauses[0].operator == "==" else None
        if version is not None and needed is not None:
            yield version, one.version, needed


def _same(text: str, version: Version) -> bool:
    found = _parsed(text)
    return found is not None and found.public == version.public


def _parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
