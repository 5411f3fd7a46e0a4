"""The versions that the files of a repository pin, each with its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import tomllib

from harness.matrix.model.definitions import Axis
from harness.patchstack.stacks.stack_import import REQUIRED_VERL
from harness.workspace.pins.dockerfile_pins import dockerfile_lines, dockerfile_pins, is_dockerfile
from harness.workspace.pins.install_commands import (
    NamedVersion,
    command_pins,
    installed_lines,
    is_readme,
    readme_lines,
    script_lines,
)

_PIN = re.compile(r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]*)\s*==\s*([0-9][A-Za-z0-9_.+!]*)(?!\S*\*)")
#: Not for pip, but for scripts that check it out: `mindspeed==ca70c1338f1b3d1ce46a0ea426e5779ae1312e2e`.
_FULL_COMMIT = re.compile(r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]*)\s*==\s*([0-9a-f]{40})(?![\w.])")
#: Branches and tags of MindSpeed also name its Megatron: `2.3.0_core_r0.12.1`.
_CORE = "_core_"
#: A requirement on a tag of a repository: `verl @ git+https://github.com/verl-project/verl@v0.6.1#egg=verl`.
_DIRECT = re.compile(
    r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]*)(?:\[[\w,. -]*\])?\s*@\s*git\+[^\s@\"']+(?:@[\w.-]+[:/][^\s@\"']*)?"
    r"@(?:refs/tags/)?(?:core_)?v?([0-9][A-Za-z0-9_.+!]*)(?=[\s#;\"']|$)"
)
_STATED = re.compile(r"(?:TAG=v?(?P<tag>[0-9][\w.]*)|COMMIT=(?P<commit>[0-9a-f]{7,40}))\s*")
#: Extras and groups with these words are for NPUs; what others pin is for other hardware or optional.
_FOR_NPU = re.compile(r"npu|ascend|cann")
#: Not setup.py: what it pins are mostly extras of other hardware.
_NAMES = re.compile(rf"requirements[\w.-]*\.txt|pyproject\.toml|constraints[\w.-]*\.txt|{REQUIRED_VERL}")
_PLAIN_DOCKERFILES = frozenset({"Dockerfile", "Containerfile"})
_SCRIPT = ".sh"
_SUBMODULES = ".gitmodules"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PinnedVersion:
    """A version that a file pins.

    version: `@` and a commit, if the version at this commit is not known. other: places that pin another
    version of the same package.
    """

    version: str
    where: str
    other: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the version is known, and not only the commit."""
        return not self.version.startswith("@")


def find_pins(
    root: Path,
    files: Sequence[str],
    axes: Mapping[str, Axis],
    submodules: Iterable[NamedVersion] = (),
    version_at: Callable[[str, str], str] = lambda _axis, _commit: "",
) -> dict[str, dict[str, PinnedVersion]]:
    """Folder -> axis -> the version that the files of the folder pin, "." first.

    submodules: the repository, "@" and commit of each submodule, with its line in .gitmodules. version_at:
    the version of an axis at a commit, with the whole commit (`0.7.0.dev0@c651b7b4...`), or "".

    Versions of different folders need not go together, so each folder is on its own. In one folder, the first
    file in the order of names counts. A Dockerfile with a name of its own, such as `Dockerfile.a3`, is one of
    several in its folder: it has its path as the key, and its versions are not those of the folder.
    """
    names = axis_names(axes)
    found: dict[str, dict[str, list[tuple[str, str]]]] = {}

    def add(key: str, file: str, pins: Iterable[NamedVersion]) -> None:
        for package, named, line in pins:
            axis = names.get(normal_name(package), "")
            version = named.partition(_CORE)[0]
            if axis and named.startswith("@"):
                version = version_at(axis, named[1:]) or named
            if axis and _is_valid(axes[axis], version):
                found.setdefault(key, {}).setdefault(axis, []).append((version, f"{file}:{line}"))

    add(".", _SUBMODULES, submodules)
    for name in sorted(files, key=_rank):
        path = PurePosixPath(name)
        if is_dockerfile(path) and path.name not in _PLAIN_DOCKERFILES:
            add(name, name, _pins_of(root / name))
        elif is_dockerfile(path) or _NAMES.fullmatch(path.name) or path.suffix == _SCRIPT or is_readme(path):
            add(str(path.parent), name, _pins_of(root / name))
    return {folder: {axis: _first(places) for axis, places in pins.items()} for folder, pins in found.items()}


def _rank(name: str) -> tuple[int, int, str]:
    """Requirements come before a Dockerfile, whose stages may name older versions; a README is last."""
    path = PurePosixPath(name)
    return name.count("/"), is_dockerfile(path) + 2 * (path.suffix == _SCRIPT) + 4 * is_readme(path), name


def axis_names(axes: Mapping[str, Axis]) -> dict[str, str]:
    """Normal name of an axis, its package or its repository -> the axis."""
    found: dict[str, str] = {}
    for name, axis in axes.items():
        repository = PurePosixPath(axis.repository).name.removesuffix(".git")
        found |= {normal_name(one): name for one in (repository, axis.package, name) if one}
    return found


def _first(pins: Sequence[tuple[str, str]]) -> PinnedVersion:
    version, where = pins[0]
    other = tuple(f"{place} ({one})" for one, place in pins[1:] if one != version)
    return PinnedVersion(version=version, where=where, other=other)


def _pins_of(file: Path) -> Iterator[NamedVersion]:
    try:
        text = file.read_bytes()[:_MAX_BYTES].decode("utf-8", "replace")
    except OSError:
        return
    numbered: Iterable[tuple[str, int]] = (
        (line, number) for number, line in enumerate(text.splitlines(), start=1)
    )
    if is_dockerfile(PurePosixPath(file.name)):
        yield from dockerfile_pins(text)
        numbered = dockerfile_lines(text)
    if file.suffix == _SCRIPT:  # The versions in other commands may be anything.
        numbered = list(script_lines(text))
        yield from command_pins(numbered)
        numbered = list(installed_lines(numbered))
    if is_readme(PurePosixPath(file.name)):
        numbered = list(readme_lines(text))
        yield from command_pins(numbered)
    if file.name == REQUIRED_VERL:
        stated = ((_STATED.fullmatch(line), number) for line, number in numbered)
        found = [(one, number) for one, number in stated if one]
        # A tag says the version, a commit only with a clone.
        for one, number in sorted(found, key=lambda pin: not pin[0]["tag"]):
            yield "verl", one["tag"] or f"@{one['commit']}", number
        return
    always = _always_required(text) if file.name == "pyproject.toml" else None
    for line, number in numbered:
        requirement = re.split(r"(?:^|\s)#", line)[0]
        if always is not None and not any(one in requirement for one in always):
            continue
        for match in _FULL_COMMIT.finditer(requirement):
            yield match[1], f"@{match[2]}", number
        for match in (*_PIN.finditer(requirement), *_DIRECT.finditer(requirement)):
            # The build for the CPU is the one that torch_npu extends.
            yield match[1], match[2].rstrip(",;").removesuffix("+cpu"), number


def _always_required(text: str) -> frozenset[str]:
    """The requirements of a pyproject.toml that everybody with an NPU installs, also to build it."""
    try:
        data = tomllib.loads(text)
        project = data.get("project", {})
        found = [*project.get("dependencies", ()), *data.get("build-system", {}).get("requires", ())]
        for groups in (project.get("optional-dependencies", {}), data.get("dependency-groups", {})):
            found += [one for name, ones in groups.items() if _FOR_NPU.search(name.lower()) for one in ones]
    except (ValueError, AttributeError, TypeError):
        return frozenset()
    return frozenset(one for one in found if isinstance(one, str) and one)


def _is_valid(axis: Axis, version: str) -> bool:
    if version.startswith("@"):
        return bool(axis.repository)
    try:
        axis.parse(version)
    except ValueError:
        return False
    return not axis.values or version in axis.values


def normal_name(name: str) -> str:
    """The name of a package or repository, as names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()
