"""The `PATCH` header file of a patch: why the patch exists, who owns it, which versions it is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from harness.errors import InputError, Location, Problem

FILE_NAME = "PATCH"
ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
#: The vocabulary of the OpenEmbedded patch guidelines.
UPSTREAM_STATUS = ("Pending", "Submitted", "Backport", "Denied", "Inactive-Upstream", "Inappropriate")
_REQUIRED = (
    "Subject",
    "Why",
    "Owner",
    "Upstream-Status",
    "Upstream-Url",
    "Applies-To",
    "Guarded-By",
    "Review-By",
    "Body",
)
#: Trailers that imported patches have.
_OPTIONAL = ("Origin",)
#: Trailers that a header has once for each variant.
_REPEATED = ("Body", "Origin")
_TRAILER = re.compile(r"([A-Z][A-Za-z-]*):[ \t]*(.*)")
#: Development versions share a version number, so a patch for one of them names its commit.
_COMMIT = re.compile(r"commit:([0-9a-f]{12,40})")
#: Separates ranges; a version has to be in one of them.
OR = "||"
#: `check`, `check:case`, or a test that runs in a cell: `tests/npu/test_x.py::test_y`.
_GUARD = re.compile(r"[a-z][a-z0-9_-]*(:[^\s:]+)?|tests/[\w/-]+\.py::\w+")
_BODY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*\.patch)[ \t]+(\S.*)")
_ORIGIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*\.patch)[ \t]+sha256:([0-9a-f]{64})[ \t]+(\S.*)")


@dataclass(frozen=True, kw_only=True)
class Trailer:
    """One `Name: value` line, joined with its continuation lines. `line` counts from 1."""

    name: str
    value: str
    line: int


def in_range(versions: str, version: str) -> bool:
    """Whether a version, which may end in `@COMMIT`, is in a range.

    A range is a PEP 440 specifier, `commit:ID`, or several of these separated by `||`. Unlike in PEP 440,
    `2.0.dev0` is in `<2.0`: otherwise it would be neither in `<2.0` nor in `>=2.0`, and adjacent ranges would
    leave out every development version. InputError if `version` is not a version.
    """
    if OR in versions:
        return any(in_range(part.strip(), version) for part in versions.split(OR))
    release, _at, commit = version.partition("@")
    pinned = _COMMIT.fullmatch(versions)
    if pinned:
        return bool(commit) and (commit.startswith(pinned[1]) or pinned[1].startswith(commit))
    try:
        at = Version(release)
    except ValueError as error:  # InvalidVersion, or a number with thousands of digits
        raise InputError(
            f"{version!r} is not a version, so it cannot be compared with version ranges",
            fix="write the version before the commit, e.g. 0.7.0.dev0@<commit>",
        ) from error
    return all(
        at < Version(part.version) if part.operator == "<" else part.contains(at, prereleases=True)
        for part in SpecifierSet(versions)
    )


@dataclass(frozen=True, kw_only=True)
class PatchOrigin:
    """The file that a variant was imported from, relative to the checkout, and the SHA-256 of its content."""

    path: str
    digest: str
    line: int


@dataclass(frozen=True, kw_only=True)
class PatchVariant:
    """A diff file and the versions that it is for. origin: where it was imported from."""

    file: Path
    versions: str
    line: int
    origin: PatchOrigin | None = None

    def covers(self, version: str) -> bool:
        """Whether this variant is for `version`."""
        return in_range(self.versions, version)


@dataclass(frozen=True, kw_only=True)
class PatchHeader:
    """The contents of the `PATCH` file of one patch."""

    id: str
    file: Path
    subject: str
    why: str
    owner: str
    upstream_status: str
    upstream_url: str
    applies_to: str
    guarded_by: tuple[str, ...]
    review_by: date
    variants: tuple[PatchVariant, ...]

    def variant_for(self, version: str) -> PatchVariant | None:
        """The variant for `version`, or None."""
        return next((variant for variant in self.variants if variant.covers(version)), None)


def parse_trailers(text: str, file: Path) -> tuple[list[Trailer], list[Problem]]:
    """Trailers in order. A line that starts with a blank continues the one above; `#` starts a comment."""
    trailers: list[Trailer] = []
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _TRAILER.fullmatch(line.rstrip())
        if line[0] in " \t" and trailers:
            last = trailers[-1]
            trailers[-1] = replace(last, value=f"{last.value} {line.strip()}".strip())
        elif found:
            trailers.append(Trailer(name=found[1], value=found[2].strip(), line=number))
        else:
            problems.append(
                Problem(
                    "this line is neither `Name: value` nor a continuation",
                    Location(file, number),
                    fix="start continuation lines with a blank",
                )
            )
    return trailers, problems


def parse_header(file: Path) -> tuple[PatchHeader | None, list[Problem]]:
    """Read and check a `PATCH` file; None if it has problems. All problems are reported together."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return None, [Problem("the header of this patch cannot be read", Location(file), why=str(error))]
    trailers, problems = parse_trailers(text, file)
    checker = _HeaderChecker(file, problems)
    checker.check_names(trailers)
    if problems:
        return None, problems
    first = {trailer.name: trailer for trailer in reversed(trailers)}
    origins = checker.origins([trailer for trailer in trailers if trailer.name == "Origin"])
    variants = [checker.variant(trailer, origins) for trailer in trailers if trailer.name == "Body"]
    for name in origins.keys() - {variant.file.name for variant in variants if variant}:
        checker.report(first["Origin"], f"{name} has an Origin, but no Body", "remove it, or add the Body")
    guards = tuple(first["Guarded-By"].value.replace(",", " ").split())
    for guard in guards:
        if not _GUARD.fullmatch(guard):
            what = f"{guard!r} is not the name of a check or test"
            checker.report(first["Guarded-By"], what, "write check, check:case or tests/FILE.py::TEST")
    status = first["Upstream-Status"]
    if status.value.split(" ")[0] not in UPSTREAM_STATUS:
        checker.report(status, f"unknown status {status.value!r}", f"one of {', '.join(UPSTREAM_STATUS)}")
    if not re.fullmatch(r"https?://\S+|none \(.+\)", first["Upstream-Url"].value):
        checker.report(first["Upstream-Url"], "this is not a URL", "give the URL, or `none (why)`")
    review_by = checker.review_date(first["Review-By"])
    checker.is_range(first["Applies-To"], first["Applies-To"].value)
    if problems:
        return None, problems
    header = PatchHeader(
        id=file.parent.name,
        file=file,
        subject=first["Subject"].value,
        why=first["Why"].value,
        owner=first["Owner"].value,
        upstream_status=status.value,
        upstream_url=first["Upstream-Url"].value,
        applies_to=first["Applies-To"].value,
        guarded_by=guards,
        review_by=review_by,
        variants=tuple(variant for variant in variants if variant),
    )
    return header, []


class _HeaderChecker:
    """Checks the trailers of one header file and adds what is wrong to `problems`."""

    def __init__(self, file: Path, problems: list[Problem]) -> None:
        self._file = file
        self._problems = problems

    def report(self, trailer: Trailer, what: str, fix: str) -> None:
        self._problems.append(Problem(what, Location(self._file, trailer.line), fix=fix))

    def check_names(self, trailers: list[Trailer]) -> None:
        """Check that every required trailer occurs, once and with a value, and no other one."""
        names = [trailer.name for trailer in trailers]
        self._problems += [
            Problem(
                f"the trailer {name} is missing", Location(self._file, 1), fix=f"add a line `{name}: ...`"
            )
            for name in _REQUIRED
            if name not in names
        ]
        for trailer in trailers:
            if trailer.name not in _REQUIRED + _OPTIONAL:
                known = ", ".join(_REQUIRED + _OPTIONAL)
                self.report(trailer, f"unknown trailer {trailer.name}", f"known: {known}")
            elif not trailer.value:
                self.report(trailer, f"the trailer {trailer.name} is empty", "write its value")
            elif trailer.name not in _REPEATED and names.index(trailer.name) != trailers.index(trailer):
                self.report(trailer, f"the trailer {trailer.name} occurs twice", "keep one of them")

    def review_date(self, trailer: Trailer) -> date:
        try:
            return date.fromisoformat(trailer.value)
        except ValueError:
            self.report(trailer, f"{trailer.value!r} is not a date", "write YYYY-MM-DD")
            return date.max

    def is_range(self, trailer: Trailer, versions: str) -> bool:
        """Whether `versions` is a valid range; see `in_range`."""
        if OR in versions:
            parts_valid = [self.is_range(trailer, part.strip()) for part in versions.split(OR)]
            return all(parts_valid)
        if _COMMIT.fullmatch(versions):
            return True
        try:
            SpecifierSet(versions)
        except InvalidSpecifier as error:
            what = f"{versions!r} is not a version range: {error}"
            self.report(trailer, what, "write e.g. >=0.7.0,<=0.9.1")
            return False
        return True

    def origins(self, trailers: list[Trailer]) -> dict[str, PatchOrigin]:
        """Name of a variant's file -> its origin."""
        found = {}
        for trailer in trailers:
            parts = _ORIGIN.fullmatch(trailer.value)
            if parts:
                found[parts[1]] = PatchOrigin(path=parts[3], digest=parts[2], line=trailer.line)
            else:
                what = "an Origin trailer has the form `file.patch sha256:DIGEST PATH`"
                self.report(trailer, what, "import the patch again, or remove the line")
        return found

    def variant(self, trailer: Trailer, origins: Mapping[str, PatchOrigin]) -> PatchVariant | None:
        found = _BODY.fullmatch(trailer.value)
        if not found:
            what = "a Body trailer has the form `file.patch RANGE`"
            self.report(trailer, what, "write e.g. Body: 0.7.0.patch >=0.7.0,<0.7.1")
            return None
        if not self.is_range(trailer, found[2]):
            return None
        file = self._file.parent / found[1]
        if not file.is_file():
            what = f"the file {found[1]} does not exist"
            self.report(trailer, what, "add it to the folder of this file")
            return None
        return PatchVariant(file=file, versions=found[2], line=trailer.line, origin=origins.get(found[1]))
