"""The `PATCH` header file of a patch: why the patch exists, who owns it, which versions it is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

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
_TRAILER = re.compile(r"([A-Z][A-Za-z-]*):[ \t]*(.*)")
#: Development versions share a version number, so a patch for one of them names its commit.
_COMMIT = re.compile(r"commit:([0-9a-f]{12,40})")
#: Separates ranges; a version has to be in one of them.
OR = "||"
#: `check`, `check:case`, or a test that runs in a cell: `tests/npu/test_x.py::test_y`.
_GUARD = re.compile(r"[a-z][a-z0-9_-]*(:[^\s:]+)?|tests/[\w/-]+\.py::\w+")
_BODY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*\.patch)[ \t]+(\S.*)")


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
    except InvalidVersion as error:
        raise InputError(
            f"{version!r} is not a version, so it cannot be compared with version ranges",
            fix="write the version before the commit, e.g. 0.7.0.dev0@<commit>",
        ) from error
    return all(
        at < Version(part.version) if part.operator == "<" else part.contains(at, prereleases=True)
        for part in SpecifierSet(versions)
    )


@dataclass(frozen=True, kw_only=True)
class PatchVariant:
    """A diff file and the versions that it is for."""

    file: Path
    versions: str
    line: int

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
            trailers[-1] = Trailer(
                name=last.name, value=f"{last.value} {line.strip()}".strip(), line=last.line
            )
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
    problems += _shape(trailers, file)
    if problems:
        return None, problems
    first = {trailer.name: trailer for trailer in reversed(trailers)}
    variants = [_variant(trailer, file, problems) for trailer in trailers if trailer.name == "Body"]
    guards = tuple(first["Guarded-By"].value.replace(",", " ").split())
    for guard in guards:
        if not _GUARD.fullmatch(guard):
            problems.append(
                _bad(
                    first["Guarded-By"],
                    file,
                    f"{guard!r} is not the name of a check or test",
                    "write check, check:case or tests/FILE.py::TEST",
                )
            )
    status = first["Upstream-Status"].value
    if status.split(" ")[0] not in UPSTREAM_STATUS:
        problems.append(
            _bad(
                first["Upstream-Status"],
                file,
                f"unknown status {status!r}",
                f"one of {', '.join(UPSTREAM_STATUS)}",
            )
        )
    if not re.fullmatch(r"https?://\S+|none \(.+\)", first["Upstream-Url"].value):
        problems.append(
            _bad(first["Upstream-Url"], file, "this is not a URL", "give the URL, or `none (why)`")
        )
    review = _date(first["Review-By"], file, problems)
    _specifier(first["Applies-To"], first["Applies-To"].value, file, problems)
    if problems:
        return None, problems
    header = PatchHeader(
        id=file.parent.name,
        file=file,
        subject=first["Subject"].value,
        why=first["Why"].value,
        owner=first["Owner"].value,
        upstream_status=status,
        upstream_url=first["Upstream-Url"].value,
        applies_to=first["Applies-To"].value,
        guarded_by=guards,
        review_by=review or date.max,
        variants=tuple(variant for variant in variants if variant),
    )
    return header, []


def _shape(trailers: list[Trailer], file: Path) -> list[Problem]:
    names = [trailer.name for trailer in trailers]
    problems = [
        Problem(f"the trailer {name} is missing", Location(file, 1), fix=f"add a line `{name}: ...`")
        for name in _REQUIRED
        if name not in names
    ]
    for trailer in trailers:
        if trailer.name not in _REQUIRED:
            problems.append(
                _bad(trailer, file, f"unknown trailer {trailer.name}", f"known: {', '.join(_REQUIRED)}")
            )
        elif not trailer.value:
            problems.append(_bad(trailer, file, f"the trailer {trailer.name} is empty", "write its value"))
        elif trailer.name != "Body" and names.index(trailer.name) != trailers.index(trailer):
            problems.append(
                _bad(trailer, file, f"the trailer {trailer.name} occurs twice", "keep one of them")
            )
    return problems


def _bad(trailer: Trailer, file: Path, what: str, fix: str) -> Problem:
    return Problem(what, Location(file, trailer.line), fix=fix)


def _date(trailer: Trailer, file: Path, problems: list[Problem]) -> date | None:
    try:
        return date.fromisoformat(trailer.value)
    except ValueError:
        problems.append(_bad(trailer, file, f"{trailer.value!r} is not a date", "write YYYY-MM-DD"))
        return None


def _specifier(trailer: Trailer, value: str, file: Path, problems: list[Problem]) -> bool:
    if OR in value:
        good = [_specifier(trailer, part.strip(), file, problems) for part in value.split(OR)]
        return all(good)
    if _COMMIT.fullmatch(value):
        return True
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        problems.append(
            _bad(trailer, file, f"{value!r} is not a version range: {error}", "write e.g. >=0.7.0,<=0.9.1")
        )
        return False
    return True


def _variant(trailer: Trailer, file: Path, problems: list[Problem]) -> PatchVariant | None:
    found = _BODY.fullmatch(trailer.value)
    if not found:
        problems.append(
            _bad(
                trailer,
                file,
                "a Body trailer has the form `file.patch RANGE`",
                "write e.g. Body: 0.7.0.patch >=0.7.0,<0.7.1",
            )
        )
        return None
    if not _specifier(trailer, found[2], file, problems):
        return None
    variant = file.parent / found[1]
    if not variant.is_file():
        problems.append(
            _bad(trailer, file, f"the file {found[1]} does not exist", "add it to the folder of this file")
        )
        return None
    return PatchVariant(file=variant, versions=found[2], line=trailer.line)
