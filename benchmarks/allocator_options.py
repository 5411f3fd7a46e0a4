"""Options of PYTORCH_NPU_ALLOC_CONF: whether `lint` takes those that each version of torch_npu has.

The truth is the parser of each release: a text that its source compares the name of an option with. `options`
makes the list `since` of `harness/compat/lint/rules/environment.yaml`. The repository of torch_npu must be
among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from benchmarks.figures import CannotRunError, Figure
from harness.compat.lint.allocator_options import options_problem
from harness.compat.lint.ruleset import load_ruleset
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_clone, mirror_folders

FILES = tuple(
    f"torch_npu/csrc/core/npu/NPU{name}" for name in ("CachingAllocator.cpp", "AllocatorConfig.cpp")
)
TAG = re.compile(r"v(?:7\.[1-9]|\d\d\.)[\w.]*(?:-[\w.]+)?-pytorch(?P<torch>2\.(?:[5-9]|\d\d)\.\d)")
VERSION = re.compile(r"2\.\d+\.\d+(?:\.post\d+)?")
COMPARED = re.compile(r'(?:config\[i\]|key)(?: == |\.compare\()"(?P<name>[a-z]\w*)"')
#: The options that PyTorch parses, of which torch_npu takes these.
TAKEN = re.compile(r"kNPUSupportAccKeys = \{(?P<names>[^}]*)\}")


def repository() -> Repository:
    """The clone of torch_npu."""
    clone = find_clone(mirror_folders(), "Ascend/pytorch")
    if clone is None:
        raise CannotRunError(
            "no mirror has torch_npu", "set NPU_MATRIX_MIRRORS to a folder with a clone of it"
        )
    return clone


def options() -> Mapping[Version, frozenset[str]]:
    """The options that each released version of torch_npu has."""
    found: dict[Version, frozenset[str]] = {}
    clone = repository()
    for tag in clone.tags():
        release = TAG.fullmatch(tag)
        if release is None:
            continue
        tree = clone.tree(tag)
        paths = frozenset(tree.paths())
        source = "\n".join(tree.read(path).decode("utf-8", "replace") for path in FILES if path in paths)
        versions = VERSION.findall(tree.read("version.txt").decode()) if "version.txt" in paths else []
        # A source can be one for several releases of torch.
        version = next((one for one in versions if one.startswith(release["torch"])), "")
        if not version:
            continue
        names = {one["name"] for one in COMPARED.finditer(source)}
        taken = TAKEN.search(source)
        names |= set(re.findall(r'"(\w+)"', taken["names"])) if taken else set()
        found[Version(version)] = found.get(Version(version), frozenset()) | names
    return found


def since(found: Mapping[Version, frozenset[str]]) -> Mapping[str, list[str]]:
    """The first version of each release of torch that has an option, as environment.yaml has them."""
    firsts: dict[str, dict[str, Version]] = {}
    for version in sorted(found):
        for name in found[version]:
            firsts.setdefault(name, {}).setdefault(version.base_version, version)
    return {name: [str(one) for one in bases.values()] for name, bases in sorted(firsts.items())}


def figures() -> Iterator[Figure]:
    found = options()
    entry = next(one for one in load_ruleset().environment if "PYTORCH_NPU_ALLOC_CONF" in one.names)
    examples = {"truth": "True", "number": "0.5", "text": "1g"}
    refused, taken = list[tuple[str, str]](), list[tuple[str, str]]()
    for version, names in found.items():
        for name, option in entry.options.items():
            value = examples.get(option.form, f"{option.low:.0f}")
            is_refused = bool(options_problem(f"{name}:{value}", entry.options, str(version)))
            if is_refused == (name in names):
                (refused if is_refused else taken).append((str(version), name))
    claim = f"of {len(found)} versions of torch_npu, options that"
    yield Figure(claim=f"{claim} `lint` refuses wrongly", measured=len(refused), unit="options", limit=0)
    # An option can be missing in all versions for one release of torch, to which a later one may add it.
    yield Figure(
        claim=f"{claim} `lint` does not refuse, and the version does not have",
        measured=len(taken),
        unit="options",
    )
