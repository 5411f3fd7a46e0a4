"""Parse uv's error output after a failed resolution into a kind of failure and the packages involved.

The patterns match the wording of the uv version that this project pins (its PubGrub reporter); the tests
contain samples.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.sources.packages.fetch_failure import REFUSED_STATUS, fetch_failure
from harness.sources.packages.lockfile import normal_name

NAME = r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9,._-]+\])?"
RANGE = r"(?P<range>(?:[<>=!~][^\s,]*(?:,[<>=!~][^\s,]*)*)?)"
PACKAGE = re.compile(rf"^(?:all versions of )?{NAME}{RANGE}$")
STEP = re.compile(
    r"(?P<word>Because|And because)\s+(?P<facts>.*?),?\s+we can conclude that\s+(?P<conclusion>.*?)\.?"
    r"(?:\s+\(\d+\))?\s*(?=(?:Because|And because)\s|$)",
    re.DOTALL,
)
ONE_OF = re.compile(r" one of:(?P<items>(?:\n[ \t]+[A-Za-z0-9][^\s<>=!~]*[<>=!~]\S*(?=\n|$))+)")
# uv prints the marker of a requirement. What it reports applies to this platform, so the marker is dropped.
MARKER = re.compile(r"(?<=[A-Za-z0-9\]])\{[^{}]*\}")
DEPENDS = re.compile(r" depends? on ")
CLAUSES = re.compile(
    r",? and (?=(?:all versions of )?\S+ (?:depends? on|has|was) |you require |there |only )"
)
HINT = re.compile(r"^hint:\s+(?P<text>.*(?:\n(?!hint:|error:|\s*$).*)*)", re.MULTILINE)


class UvFailureKind(str, enum.Enum):
    """Why uv found no lock."""

    CONFLICT = "conflict"
    UNKNOWN_PACKAGE = "unknown-package"
    MISSING_VERSION = "missing-version"
    WRONG_TARGET = "wrong-target"
    NO_WHEEL = "no-wheel"
    BUILD = "build"
    REQUIREMENT = "requirement"
    NETWORK = "network"
    OTHER = "other"


RESTS_ON_INDEXES = (
    UvFailureKind.MISSING_VERSION,
    UvFailureKind.UNKNOWN_PACKAGE,
    UvFailureKind.WRONG_TARGET,
    UvFailureKind.NO_WHEEL,
    UvFailureKind.CONFLICT,
)


@dataclass(frozen=True, kw_only=True)
class UvDependency:
    """`package` in `versions` requires `needs` in `needed_versions`; "" as `package` is the cell itself."""

    package: str
    versions: str
    needs: str
    needed_versions: str


@dataclass(frozen=True, kw_only=True)
class UvDerivation:
    """One step of uv's derivation: facts and the conclusion from them, each on one line."""

    facts: str
    conclusion: str


@dataclass(frozen=True, kw_only=True)
class UvFailure:
    """A failed resolution.

    subject: the package that is not available, with its version range; "" for a conflict.
    blamed: the packages that conflict or are not available, most specific first.
    contested: packages that others require in incompatible versions.
    """

    kind: UvFailureKind
    subject: str = ""
    subject_versions: str = ""
    chain: tuple[UvDerivation, ...] = ()
    dependencies: tuple[UvDependency, ...] = ()
    blamed: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    url: str = ""
    text: str = ""

    @property
    def rests_on_indexes(self) -> bool:
        """Whether it states what the indexes have, so that an index that was not read may contradict it."""
        return self.kind in RESTS_ON_INDEXES


def parse_uv_failure(output: str) -> UvFailure:
    """Parse the error output of a failed `uv pip compile`; an unknown text becomes `UvFailureKind.OTHER`."""
    text = _only_error(output)
    hints = tuple(" ".join(match["text"].split()) for match in HINT.finditer(text))
    failure = fetch_failure(text)
    refused = failure is not None and failure.status in REFUSED_STATUS
    # uv continues without an index that refuses the credentials, and then misses packages.
    if "No solution found when resolving" in text and not refused:
        return _no_solution(text, hints)
    if failure is not None:
        return UvFailure(kind=UvFailureKind.NETWORK, url=failure.url, hints=hints, text=text)
    if "Couldn't parse requirement" in text or "is not a valid" in text:
        return UvFailure(kind=UvFailureKind.REQUIREMENT, hints=hints, text=text)
    if match := re.search(r"Failed to (?:download and )?build `?([A-Za-z0-9._-]+?)==([^`\s]+)`?", text):
        name = normal_name(match[1])
        return UvFailure(
            kind=UvFailureKind.BUILD,
            subject=name,
            subject_versions=f"=={match[2]}",
            blamed=(name,),
            hints=hints,
            text=text,
        )
    return UvFailure(kind=UvFailureKind.OTHER, hints=hints, text=text)


def _only_error(output: str) -> str:
    start = output.find("error:")
    lines = (output[start:] if start >= 0 else output).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()


def _no_solution(text: str, hints: tuple[str, ...]) -> UvFailure:
    body = HINT.sub("", text)
    joined = ONE_OF.sub(lambda match: " " + " | ".join(match["items"].split()), MARKER.sub("", body))
    flat = " ".join(joined.split())
    start = flat.find("Because")
    steps = tuple(
        UvDerivation(facts=match["facts"].strip(), conclusion=match["conclusion"].strip())
        for match in STEP.finditer(flat[start:] if start >= 0 else "")
    )
    dependencies = tuple(dict.fromkeys(d for step in steps for d in _dependencies(step.facts)))
    kind, subject, versions = _unavailable(steps, hints)
    contested = _contested(dependencies)
    blamed = _blamed(subject, dependencies, contested)
    return UvFailure(
        kind=kind,
        subject=subject,
        subject_versions=versions,
        chain=steps,
        dependencies=dependencies,
        blamed=blamed,
        contested=() if subject else contested,
        hints=hints,
        text=text,
    )


UNAVAILABLE = (
    (re.compile(r"there (?:is|are) no versions? of (?P<what>\S+)"), UvFailureKind.MISSING_VERSION),
    (
        re.compile(r"(?P<what>\S+) was not found in the (?:package registry|provided package)"),
        UvFailureKind.UNKNOWN_PACKAGE,
    ),
    (re.compile(r"(?P<what>\S+) was not found in the cache"), UvFailureKind.NETWORK),
    (re.compile(r"(?P<what>\S+) has no wheels with a matching"), UvFailureKind.WRONG_TARGET),
    (re.compile(r"(?P<what>\S+) has only unsupported wheel variants"), UvFailureKind.NO_WHEEL),
    (
        re.compile(r"(?P<what>\S+) has no (?:usable wheels|publicly available wheels|wheels)"),
        UvFailureKind.NO_WHEEL,
    ),
    (re.compile(r"only (?P<what>\S+) (?:is|are) available"), UvFailureKind.MISSING_VERSION),
    (re.compile(r"(?P<what>\S+) requires Python"), UvFailureKind.WRONG_TARGET),
    (re.compile(r"Python version \S+ does not satisfy (?P<what>\S+)"), UvFailureKind.WRONG_TARGET),
)


def _unavailable(steps: Iterable[UvDerivation], hints: tuple[str, ...]) -> tuple[UvFailureKind, str, str]:
    if any("network was disabled" in hint for hint in hints):
        return UvFailureKind.NETWORK, "", ""
    for step in steps:
        for pattern, kind in UNAVAILABLE:
            if match := pattern.search(step.facts):
                name, versions = _package(match["what"])
                return kind, name, versions
    return UvFailureKind.CONFLICT, "", ""


def _dependencies(facts: str) -> list[UvDependency]:
    dependencies: list[UvDependency] = []
    for clause in CLAUSES.split(facts):
        subject, _, needed = clause.partition("you require ")
        if not needed:
            subject, *rest = DEPENDS.split(clause, maxsplit=1)
            needed = "".join(rest)
        package, versions = _package(subject.split()[-1]) if subject.strip() else ("", "")
        for item in _items(needed):
            name, wanted_versions = _package(item)
            if name:
                dependencies.append(
                    UvDependency(
                        package=package, versions=versions, needs=name, needed_versions=wanted_versions
                    )
                )
    return dependencies


def _items(text: str) -> list[str]:
    """`a==1 | a==2` is one requirement with alternatives; `a==1 and b==2` are two requirements."""
    items: list[str] = []
    for part in re.split(r",? and ", text):
        alternatives = [item.strip(" ,") for item in part.split(" | ") if item.strip(" ,")]
        names = {_package(item)[0] for item in alternatives}
        if len(alternatives) > 1 and len(names) == 1:
            items.append(f"{alternatives[0]}|{'|'.join(_package(item)[1] for item in alternatives[1:])}")
        else:
            items.extend(alternatives)
    return items


def _package(text: str) -> tuple[str, str]:
    first, bar, rest = text.strip().strip("`").partition("|")
    match = PACKAGE.match(first)
    if not match:
        return "", ""
    return normal_name(match["name"]), match["range"] + bar + rest


def _contested(dependencies: tuple[UvDependency, ...]) -> tuple[str, ...]:
    """Packages that are required in more than one version range, at least once by another package."""
    required: dict[str, set[tuple[str, str]]] = {}
    for dependency in dependencies:
        required.setdefault(dependency.needs, set()).add((dependency.package, dependency.needed_versions))
    return tuple(
        name
        for name, ranges in required.items()
        if len({versions for _package, versions in ranges}) > 1 and any(package for package, _ in ranges)
    )


def _blamed(
    subject: str, dependencies: tuple[UvDependency, ...], contested: tuple[str, ...]
) -> tuple[str, ...]:
    dependents = [d.package for d in dependencies if d.package and d.needs in (subject, *contested)]
    parents = [d.package for d in dependencies if d.package]
    required = [d.needs for d in dependencies if not d.package]
    ordered = (
        [subject, *dependents, *contested, *parents, *required]
        if subject
        else [*dependents, *contested, *parents]
    )
    return tuple(dict.fromkeys(name for name in ordered if name))
