"""Questions to a surface pack: what does a release have, and since when, and until when.

A release that was not read is never counted as one that lacks a name: the answer for it is `NOT_READ`.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_string
from functools import cached_property
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from harness.compat.knowledge.module_outline import ENVIRONMENT
from harness.compat.knowledge.pack_file import PackagePart, PackedRelease, PackFile
from harness.compat.knowledge.raised_messages import RaisedMessage
from harness.compat.surface.api_surface import ApiSurface, NameLookup, Presence
from harness.compat.surface.call_signature import CallSignature
from harness.compat.surface.module_names import ModuleNames
from harness.compat.surface.operator_schema import ATB_SOURCE, SCHEMA_FOLDER, OperatorSchemas, read_operators
from harness.compat.surface.package_text import KnownTests
from harness.errors import InputError
from harness.sources.packages.lockfile import normal_name
from harness.sources.python_syntax import parse_source

METADATA, ENTRY_POINTS = "METADATA", "entry_points.txt"
_ENVIRONMENT = re.compile(rb"\b%s\(([^)]*)\)" % ENVIRONMENT.encode())
_QUOTED = re.compile(rb'"(\w+)"')


class InRelease(enum.Enum):
    """Whether a release has a name. UNKNOWN: it may be defined at run time. NOT_READ: see `PackedRelease`."""

    FOUND = "found"
    MISSING = "missing"
    UNKNOWN = "unknown"
    NOT_READ = "not read"


_OF_PRESENCE = {
    Presence.FOUND: InRelease.FOUND,
    Presence.MISSING: InRelease.MISSING,
    Presence.UNKNOWN: InRelease.UNKNOWN,
}


def in_release(presence: Presence) -> InRelease:
    """The same for a release that was read."""
    return _OF_PRESENCE[presence]


@dataclass(frozen=True, kw_only=True)
class NameHistory:
    """A dotted name over the releases of its package, oldest first, those that were not read among them."""

    package: str
    name: str
    releases: tuple[tuple[str, InRelease], ...]

    @property
    def since(self) -> str:
        """The first release with the name, "" if none that was read has it."""
        return next(iter(self._with_name()), "")

    @property
    def until(self) -> str:
        """The last release with the name, "" if none that was read has it."""
        return next(reversed(self._with_name()), "")

    @property
    def since_is_exact(self) -> bool:
        """Whether the release before `since` was read and lacks the name."""
        return self._neighbour(self.since, -1) is InRelease.MISSING

    @property
    def until_is_exact(self) -> bool:
        """Whether the release after `until` was read and lacks the name, or `until` is the newest release."""
        return self._neighbour(self.until, 1) in (InRelease.MISSING, None) and bool(self.until)

    def in_release(self, version: str) -> InRelease:
        """Whether a release has the name; NOT_READ for one that the pack does not list."""
        return dict(self.releases).get(version, InRelease.NOT_READ)

    def last_before(self, version: str) -> str:
        """The last release before `version` that has the name, or ""."""
        limit = Version(version)
        found = [one for one in self._with_name() if Version(one) < limit]
        return found[-1] if found else ""

    def first_after(self, version: str) -> str:
        """The first release after `version` that has the name, or ""."""
        limit = Version(version)
        return next((one for one in self._with_name() if Version(one) > limit), "")

    def _with_name(self) -> list[str]:
        return [version for version, state in self.releases if state is InRelease.FOUND]

    def _neighbour(self, version: str, step: int) -> InRelease | None:
        """The state of the release beside one; None if there is none."""
        versions = [one for one, _state in self.releases]
        position = versions.index(version) + step if version in versions else -1
        return self.releases[position][1] if 0 <= position < len(versions) else None


@dataclass(frozen=True, kw_only=True)
class StatedRequirement:
    """A requirement in the metadata of a release."""

    package: str
    version: str
    requirement: Requirement


@dataclass(frozen=True)
class _Shared:
    """What was read of the contents that releases have in common."""

    names: dict[tuple[str, bytes], ModuleNames | None] = field(default_factory=dict)
    tests: KnownTests = field(default_factory=dict)


class ReleaseSurface:
    """One release in a pack."""

    def __init__(self, part: PackagePart, number: int, shared: _Shared) -> None:
        self.package = part.name
        self.release = part.releases[number]
        self._part = part
        self._numbers = part.content_numbers(number)
        self._shared = shared

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.package} {self.release.version}"

    def names(self) -> Iterable[str]:
        """The paths of all files."""
        return self._numbers

    def read(self, name: str) -> bytes:
        """The outline of a module, or the content of another file; empty if there is none."""
        return self._part.content(name, self._numbers[name]) if name in self._numbers else b""

    def parse(self, source: bytes) -> ast.Module | None:
        """The syntax tree of an outline. It is not kept: the names that are read from it are."""
        return parse_source(source)

    @cached_property
    def api(self) -> ApiSurface:
        """Modules, names, classes with inherited attributes, and signatures."""
        shared = self._shared
        return ApiSurface(self, search=self.containing, known_names=shared.names, known_tests=shared.tests)

    def forget(self) -> None:
        """Drop what `api` has read, except what other releases share."""
        api = self.__dict__.pop("api", None)
        if api is not None:
            api.close()

    def containing(self, word: bytes) -> list[str]:
        """The paths of the files that contain a text."""
        found = self._part.containing(word)
        return [path for path, numbers in found.items() if self._numbers.get(path) in numbers]

    @cached_property
    def operators(self) -> OperatorSchemas | None:
        """The NPU operators with their schemas; None for another package than torch-npu."""
        return read_operators(self) if self.package == "torch-npu" else None

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        """The requirements in the metadata; invalid ones are left out."""
        return tuple(_requirements(self._metadata.get("Requires-Dist", ())))

    @property
    def python_range(self) -> str:
        """The Python versions that the metadata allows, "" if it says nothing."""
        return next(iter(self._metadata.get("Requires-Python", ())), "")

    @property
    def entry_points(self) -> str:
        """The text of `entry_points.txt`, "" if the archive has none."""
        return self.read(ENTRY_POINTS).decode("utf-8", "replace")

    def environment_variables(self) -> dict[str, tuple[str, ...]]:
        """Environment variable -> the files that read it by a literal name."""
        found: dict[str, list[str]] = {}
        for path in self.names():
            for call in _ENVIRONMENT.findall(self.read(path)):
                for name in _QUOTED.findall(call):
                    found.setdefault(name.decode(), []).append(path)
        return {name: tuple(sorted(files)) for name, files in sorted(found.items())}

    @cached_property
    def _metadata(self) -> Mapping[str, list[str]]:
        message = message_from_string(self.read(METADATA).decode("utf-8", "replace"))
        return {name: message.get_all(name, []) for name in message}


class SurfacePack:
    """An open surface pack."""

    def __init__(self, file: Path) -> None:
        """Open a pack; InputError if the file is no pack, is damaged, or has another format version."""
        self.file = file
        self._file = PackFile(file)
        self._parts: dict[str, PackagePart] = {}
        self._releases: dict[tuple[str, int], ReleaseSurface] = {}
        self._raised: dict[str, Mapping[RaisedMessage, tuple[str, ...]]] = {}
        self._histories: dict[tuple[str, str], NameHistory] = {}
        self._shared = _Shared()

    @property
    def digest(self) -> str:
        """The digest of everything that the pack says."""
        return self._file.digest

    @property
    def newest(self) -> str:
        """When the newest release in the pack was uploaded, YYYY-MM-DD, "" if that is not known."""
        return self._file.newest

    @property
    def began_with(self) -> str:
        """The digest of the shipped pack to which updates added releases, or ""."""
        return self._file.began_with

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages, by their normal names, sorted."""
        return self._file.packages

    def trim(self, limit: int) -> None:
        """Forget what was read, if more than `limit` bytes were unpacked."""
        if sum(part.unpacked for part in self._parts.values()) > limit:
            # The collector may be off, so what refers to itself is taken apart.
            for release in self._releases.values():
                release.forget()
            self._parts.clear()
            self._releases.clear()
            self._raised.clear()
            self._shared = _Shared()

    def has(self, package: str) -> bool:
        """Whether the pack has any release of a package."""
        return normal_name(package) in self._file.packages

    def releases(self, package: str) -> tuple[PackedRelease, ...]:
        """The releases of a package, oldest first; empty for a package that is not in the pack."""
        return self._part(package).releases if self.has(package) else ()

    def paths(self, package: str) -> frozenset[str]:
        """The paths of all files that any release of a package has."""
        return frozenset(self._part(package).paths()) if self.has(package) else frozenset()

    def release(self, package: str, version: str) -> ReleaseSurface | None:
        """One release; None if the pack does not have it or it was not read."""
        wanted = _version(version)
        for number, release in enumerate(self.releases(package)):
            if not release.unread and (release.version == version or _version(release.version) == wanted):
                return self._release(normal_name(package), number)
        return None

    def packages_of(self, dotted: str) -> tuple[str, ...]:
        """The packages that have the longest beginning of a dotted name as a module, in any release.

        Several packages can share a top-level name: `megatron` is a folder of more than one, and `triton` is
        also a folder of triton-ascend. The package of that name comes first.
        """
        parts = dotted.split(".")
        own = normal_name(parts[0])
        depths = {name: self._part(name).depth_of(parts) for name in self.packages}
        deepest = max(depths.values(), default=0)
        found = [name for name, depth in depths.items() if depth == deepest > 0]
        return tuple(sorted(found, key=lambda one: (one != own, one)))

    def package_of(self, dotted: str) -> str:
        """The first of `packages_of`, "" if none in the pack has it."""
        return next(iter(self.packages_of(dotted)), "")

    def modules_defining(self, package: str, name: str) -> tuple[str, ...]:
        """The paths of the modules that define a class or function of this name in any release."""
        return self._part(package).defining(name) if self.has(package) else ()

    def find(self, package: str, version: str, dotted: str) -> tuple[InRelease, NameLookup | None]:
        """Whether a release has a dotted name, and the result of looking it up."""
        release = self.release(package, version)
        if release is None:
            return InRelease.NOT_READ, None
        found = release.api.find(dotted)
        return _OF_PRESENCE[found.presence], found

    def history(self, package: str, dotted: str) -> NameHistory:
        """A dotted name (`vllm.config.ModelConfig`) over all releases of its package.

        What a release needed to find it is forgotten again: of all releases it is much.
        """
        name = normal_name(package)
        if (name, dotted) not in self._histories:
            # Who asks about a name also asks about what holds it.
            wanted = [
                one for one in (dotted, dotted.rpartition(".")[0]) if (name, one) not in self._histories
            ]
            states: dict[str, list[tuple[str, InRelease]]] = {one: [] for one in wanted if one}
            for version, surface in self.surfaces(name):
                for one, found in states.items():
                    state = _OF_PRESENCE[surface.api.find(one).presence] if surface else InRelease.NOT_READ
                    found.append((version, state))
                if surface:
                    surface.forget()
            for one, found in states.items():
                self._histories[name, one] = NameHistory(package=name, name=one, releases=tuple(found))
        return self._histories[name, dotted]

    def stated_history(self, package: str, dotted: str) -> NameHistory:
        """Like `history`, but a name that a module may only define at run time is MISSING.

        UNKNOWN where the module does not exist, was not parsed or has the name in quotes.
        """
        holder, _, name = dotted.rpartition(".")
        quoted = re.compile(rb"""["']%s["']""" % re.escape(name).encode())
        states = []
        known = self.history(package, dotted).releases
        for (version, state), (_version, surface) in zip(known, self.surfaces(package), strict=True):
            module = surface.api.source(holder) if surface and state is InRelease.UNKNOWN else b""
            is_missing = module and not quoted.search(module)
            states.append((version, InRelease.MISSING if is_missing else state))
        return NameHistory(package=normal_name(package), name=dotted, releases=tuple(states))

    def parameter_history(self, package: str, function: str, parameter: str) -> NameHistory:
        """A parameter of a function or of a class's `__init__` over all releases of its package.

        UNKNOWN where the signature cannot be read, or takes any keyword.
        """
        return NameHistory(
            package=normal_name(package),
            name=f"{function}({parameter})",
            releases=tuple(
                (version, _has_parameter(surface.api, function, parameter) if surface else InRelease.NOT_READ)
                for version, surface in self.surfaces(package)
            ),
        )

    def operator_history(self, package: str, operator: str) -> NameHistory:
        """An NPU operator, without its namespace, over all releases of torch-npu."""
        states = []
        for version, surface in self.surfaces(package):
            state = InRelease.NOT_READ
            if surface:
                state = InRelease.FOUND if _has_operator(surface, operator) else InRelease.MISSING
            states.append((version, state))
        return NameHistory(package=normal_name(package), name=operator, releases=tuple(states))

    def argument_history(self, package: str, operator: str, argument: str) -> NameHistory:
        """An argument of an NPU operator over all releases of torch-npu; UNKNOWN without a schema."""
        states = []
        for version, surface in self.surfaces(package):
            state = _has_argument(surface, operator, argument) if surface else InRelease.NOT_READ
            states.append((version, state))
        return NameHistory(
            package=normal_name(package), name=f"{operator}({argument})", releases=tuple(states)
        )

    def mention_history(self, package: str, paths: Sequence[str], word: str) -> NameHistory:
        """A word in quotes in any of `paths`, over all releases of a package. UNKNOWN in one without them.

        For tables in which a package registers what it supports, such as classes of models.
        """
        quoted = f'"{word}"'.encode()
        states = []
        for version, surface in self.surfaces(package):
            found = [path for path in paths if path in surface.names()] if surface else []
            state = InRelease.UNKNOWN if surface else InRelease.NOT_READ
            if surface and found:
                is_there = any(quoted in surface.read(path) for path in found)
                state = InRelease.FOUND if is_there else InRelease.MISSING
            states.append((version, state))
        return NameHistory(package=normal_name(package), name=word, releases=tuple(states))

    def word_history(self, package: str, word: str) -> NameHistory:
        """Whether any file of a release contains a word, over all releases of a package.

        A name that is defined at run time is in a text, too, unless it is composed of parts.
        """
        return self._text_history(package, word, rb"\b%s\b")

    def method_history(self, package: str, name: str) -> NameHistory:
        """Whether any class of a release defines a method, over all releases of a package."""
        return self._text_history(package, name, rb"\n +(?:async )?def %s\(")

    def _text_history(self, package: str, word: str, pattern: bytes) -> NameHistory:
        whole = re.compile(pattern % re.escape(word).encode())
        states = []
        for version, surface in self.surfaces(package):
            state = InRelease.NOT_READ
            if surface:
                files = map(surface.read, surface.containing(word.encode()))
                state = InRelease.FOUND if any(map(whole.search, files)) else InRelease.MISSING
            states.append((version, state))
        return NameHistory(package=normal_name(package), name=word, releases=tuple(states))

    def raised(self, package: str) -> Mapping[RaisedMessage, tuple[str, ...]]:
        """The messages of the exceptions that a package raises, and the releases that have each.

        Only `WITH_MESSAGES` have them; empty for others.
        """
        if not self.has(package):
            return {}
        name = normal_name(package)
        if name not in self._raised:
            part = self._part(name)
            self._raised[name] = {
                RaisedMessage.from_line(line): tuple(part.releases[number].version for number in numbers)
                for line, numbers in part.raised.items()
            }
        return self._raised[name]

    def requirers(self, package: str) -> Iterator[StatedRequirement]:
        """Every requirement of a package that any release in the pack states."""
        wanted = normal_name(package)
        for name in self.packages:
            for version, surface in self.surfaces(name):
                for requirement in surface.requirements if surface else ():
                    if normal_name(requirement.name) == wanted:
                        yield StatedRequirement(package=name, version=version, requirement=requirement)

    def surfaces(self, package: str) -> Iterator[tuple[str, ReleaseSurface | None]]:
        """Every release of a package, oldest first, with None for one that was not read."""
        name = normal_name(package)
        for number, release in enumerate(self.releases(name)):
            yield release.version, None if release.unread else self._release(name, number)

    def _release(self, name: str, number: int) -> ReleaseSurface:
        if (name, number) not in self._releases:
            self._releases[name, number] = ReleaseSurface(self._part(name), number, self._shared)
        return self._releases[name, number]

    def _part(self, package: str) -> PackagePart:
        name = normal_name(package)
        if name not in self._parts:
            self._parts[name] = self._file.package(name)
        return self._parts[name]


def require_package(pack: SurfacePack, package: str) -> None:
    """InputError unless the pack has the package."""
    if not pack.has(package):
        raise InputError(
            f"the surface pack has no {package}",
            why=f"it has {', '.join(pack.packages) or 'no package'}",
            fix=f"add it: npu-matrix knowledge update {package}",
        )


def signatures_of(api: ApiSurface, dotted: str) -> tuple[CallSignature, ...]:
    """The signatures of a function, or of the `__init__` of a class without `self`; empty if not known."""
    found = api.find(dotted)
    if found.definition is None:
        return ()
    if not found.definition.is_class:
        return found.definition.signatures
    constructor = api.member(found.definition, "__init__").definition
    return tuple(one.bound() for one in constructor.signatures) if constructor else ()


def _has_parameter(api: ApiSurface, function: str, parameter: str) -> InRelease:
    presence = api.find(function).presence
    if presence is not Presence.FOUND:
        return _OF_PRESENCE[presence]
    signatures = signatures_of(api, function)
    if not signatures:
        return InRelease.UNKNOWN
    if any(parameter in (*one.positional_only, *one.positional, *one.keyword_only) for one in signatures):
        return InRelease.FOUND
    return InRelease.UNKNOWN if any(one.var_keywords for one in signatures) else InRelease.MISSING


def _has_operator(surface: ReleaseSurface, operator: str) -> bool:
    """Whether the schemas or the sources for the ATB library name an operator. Parsing them takes seconds."""
    stated = re.compile(rb"\bfunc: *%s(?:\.\w+)?\(" % re.escape(operator).encode())
    mentioned = re.compile(rb"\b%s\b" % re.escape(operator).encode())
    for name in surface.names():
        if name.startswith(SCHEMA_FOLDER) and stated.search(surface.read(name)):
            return True
        if ATB_SOURCE.fullmatch(name) and mentioned.search(surface.read(name)):
            return True
    return False


def _has_argument(surface: ReleaseSurface, operator: str, argument: str) -> InRelease:
    schema = re.compile(rb"\bfunc: *%s(?:\.\w+)?\(([^\n]*)" % re.escape(operator).encode())
    name = re.compile(rb"\b%s\b" % re.escape(argument).encode())
    found = [
        arguments.partition(b"->")[0]
        for path in surface.names()
        if path.startswith(SCHEMA_FOLDER)
        for arguments in schema.findall(surface.read(path))
    ]
    if not found:
        return InRelease.UNKNOWN
    return InRelease.FOUND if any(map(name.search, found)) else InRelease.MISSING


def _requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    for line in lines:
        with contextlib.suppress(InvalidRequirement):
            yield Requirement(line)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return None
