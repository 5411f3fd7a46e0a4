"""Environment variables of vLLM, vllm-ascend, torch_npu and Ray that a release reads, by the surface pack.

The first two have their variables in a namespace of their own, `VLLM_`: what none of their modules names is
not read. The others read some in compiled code, which the pack does not have: of them only a name counts that
another release has, or that is spelt almost like one of this release.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.compat.knowledge.surface_pack import InRelease, NameHistory, SurfacePack
from harness.compat.lint.setting_changes import nearest_word

PREFIX = "VLLM_"
ASCEND_PREFIX = "VLLM_ASCEND_"
ASCEND, VLLM = "vllm-ascend", "vllm"
#: The starts of the names that torch_npu and Ray read, and hardly anything else.
OTHERS = {
    "RAY_": "ray",
    "TORCH_NPU_": "torch-npu",
    "TORCH_HCCL_": "torch-npu",
    "INDUCTOR_ASCEND_": "torch-npu",
    "NPU_": "torch-npu",
    "ACLNN_": "torch-npu",
}
#: The release of vLLM that a release of vllm-ascend is made for.
_BASE = re.compile(r"(\d+\.\d+\.\d+)(?:rc\d+|\.post\d+)?")


@dataclass(frozen=True, kw_only=True)
class UnreadVariable:
    """A variable that the packages of a job do not read.

    release, since, until: the job's release of the package that reads it in other releases, and the first and
    the last of these; "" if none reads it. near: the variable that is spelt like it, "" if there is none.
    reader: the package that reads `near`, if it is another one than vLLM and vllm-ascend.
    """

    release: str = ""
    since: str = ""
    until: str = ""
    near: str = ""
    reader: str = ""


def stated_vllm(versions: Mapping[str, str]) -> str:
    """The vLLM that a job has, a release or `RELEASE@COMMIT`; "" if it is not known."""
    base = _BASE.fullmatch(versions.get("vllm_ascend", ""))
    version = versions.get("vllm") or (base[1] if base else "")
    return "" if version == "host" else version


def vllm_version(versions: Mapping[str, str]) -> str:
    """The release of vLLM that a job has; "" if it is not known, or a commit."""
    version = stated_vllm(versions)
    return "" if "@" in version else version


def unread_variable(name: str, versions: Mapping[str, str]) -> UnreadVariable | None:
    """What is known of a variable that the job's releases do not read; None if one reads it, or may read it.

    versions: axis -> version. Without them, only a variable that no release reads is one.
    """
    return _unread(name, versions.get("vllm_ascend", ""), vllm_version(versions))


def unread_elsewhere(name: str, versions: Mapping[str, str]) -> UnreadVariable | None:
    """The same for torch_npu and Ray; None also if nothing is known of the name."""
    package = next((one for prefix, one in OTHERS.items() if name.startswith(prefix)), "")
    return _elsewhere(name, package, versions.get(package.replace("-", "_"), "")) if package else None


def unread_readers(name: str, versions: Mapping[str, str]) -> tuple[str, ...]:
    """The packages that may read a variable, and of which the release of the job is not known."""
    pack = shipped_pack().pack
    package = next((one for prefix, one in OTHERS.items() if name.startswith(prefix)), "")
    if name.startswith(PREFIX):
        readers = [ASCEND] if name.startswith(ASCEND_PREFIX) else [ASCEND, VLLM]
    else:
        readers = [package] if package else []
    if pack is None:
        return (f"the variables of {' and '.join(readers)}",) if readers else ()
    histories = [pack.word_history(one, name) for one in readers if pack.has(one)]
    given = {one: versions.get(one.replace("-", "_"), "") for one in readers}
    given |= {VLLM: vllm_version(versions)} if VLLM in given else {}
    states = [one.in_release(given[one.package]) for one in histories]
    always = [all(state is not InRelease.MISSING for _, state in one.releases) for one in histories]
    if InRelease.FOUND in states or any(always):
        return ()
    return tuple(
        f"the variables of {one.package} {given[one.package]}"
        if given[one.package]
        else one.package.replace("-", "_")
        for one, state in zip(histories, states, strict=True)
        if one.since and state is not InRelease.MISSING
    )


@functools.lru_cache(1 << 10)
def _elsewhere(name: str, package: str, version: str) -> UnreadVariable | None:
    pack = shipped_pack().pack
    if pack is None or not pack.has(package):
        return None
    history = pack.word_history(package, name)
    if _reads(history, version):
        return None
    near = nearest_word(name, _variables(pack, package, version))
    if history.since:
        label = f"{package} {version}"
        return UnreadVariable(release=label, since=history.since, until=history.until, near=near)
    return UnreadVariable(near=near, reader=package) if near else None


@functools.lru_cache(1 << 10)
def _unread(name: str, ascend: str, vllm: str) -> UnreadVariable | None:
    pack = shipped_pack().pack
    if pack is None:
        return None
    given = {ASCEND: ascend} if name.startswith(ASCEND_PREFIX) else {ASCEND: ascend, VLLM: vllm}
    others: list[NameHistory] = []
    for package, version in given.items():
        history = pack.word_history(package, name)
        if _reads(history, version):
            return None
        others += [history] if history.since else []
    read = {one for package, version in given.items() for one in _variables(pack, package, version)}
    near = nearest_word(name, read)
    if not others:
        return UnreadVariable(near=near)
    package = others[0].package
    label = f"{package} {given[package]}"
    return UnreadVariable(release=label, since=others[0].since, until=others[0].until, near=near)


def _reads(history: NameHistory, version: str) -> bool:
    """Whether a release has a name; one that the pack does not know counts as all that it knows."""
    state = history.in_release(version)
    return state is not InRelease.MISSING and bool(history.since)


def _variables(pack: SurfacePack, package: str, version: str) -> frozenset[str]:
    """The variables that a release reads; those of the newest one if the pack does not know the release."""
    found = pack.release(package, version) if version else None
    known = [one.version for one in pack.releases(package) if not one.unread]
    release = found or pack.release(package, known[-1])
    return frozenset(release.environment_variables()) if release else frozenset()
