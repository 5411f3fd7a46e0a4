"""Versions on an axis, their order, and version specifiers such as `>=8.3.RC1,<9`.

A version can name an exact commit: `0.6.1@d62da4950573` is that commit and is ordered like 0.6.1. Two commits
of the same nominal version compare as equal. Unlike in pip, specifiers treat pre-releases like other
versions: `<0.8` matches 0.8.0.dev0 and 0.8.0rc1, because both come before 0.8.0.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version as Pep440

# The interpreter that runs npu-matrix. Its version is not known when the matrix is read.
HOST = "host"
MAX_LENGTH = 200
MOVING_REFS = ("main", "master", "HEAD", "head", "latest", "nightly", "develop", "dev", "trunk")

_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,99}")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_CANN = re.compile(
    r"(?P<release>[0-9]{1,6}(?:\.[0-9]{1,6}){0,3})"
    r"(?:\.RC(?P<rc>[0-9]{1,6})(?:\.(?P<fix>[0-9]{1,6}))?)?"
    r"(?P<pre>[.-](?P<kind>alpha|beta)\.?(?P<number>[0-9]{1,6}))?",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\s*(?P<operator>==|!=|>=|<=|>|<)?\s*(?P<value>[^\s<>=!,]+)\s*")
_INFINITE = 1 << 30


class Scheme(str, enum.Enum):
    """How versions of an axis are written and ordered. Names have no order."""

    PEP440 = "pep440"
    CANN = "cann"
    PYTHON = "python"
    NAME = "name"


@dataclass(frozen=True, kw_only=True)
class Version:
    """One value of an axis.

    nominal: the version in normal form. ref: the commit or tag after `@`, or "".
    order: sort key of the nominal version; None for values without an order (names, `host`).
    """

    scheme: Scheme
    nominal: str
    ref: str = ""
    order: tuple[Any, ...] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.nominal}@{self.ref}" if self.ref else self.nominal

    @property
    def commit(self) -> str:
        """The commit that the value is pinned to, or ""."""
        return self.ref if _COMMIT.fullmatch(self.ref) else ""

    @property
    def short(self) -> str:
        """The version for display, with the commit abbreviated to 12 digits."""
        return f"{self.nominal}@{self.commit[:12]}" if self.commit else str(self)

    @property
    def is_between_releases(self) -> bool:
        """Whether it is a commit with the number of the next release: `0.12.0.dev0@54879467c417`."""
        return bool(self.ref) and self.scheme is Scheme.PEP440 and Pep440(self.nominal).is_devrelease

    @property
    def released(self) -> Version:
        """The nominal version without its `ref`."""
        return parse_version(self.scheme, self.nominal) if self.ref else self

    @property
    def release(self) -> str:
        """`2.7.1` of `2.7.1.post2+git1`; `8.3` of `8.3.RC1`."""
        if self.scheme is Scheme.CANN:
            match = _CANN.fullmatch(self.nominal)
            return match["release"] if match else self.nominal
        return Pep440(self.nominal).base_version if self.order else self.nominal

    @property
    def release_version(self) -> Version:
        """The version `release`, without its suffixes."""
        return parse_version(self.scheme, self.release)

    @property
    def public(self) -> Version:
        """The nominal version without its `ref` and without a local label such as `+cpu`."""
        return _without_local(self.released)

    def is_same(self, other: Version) -> bool:
        """Whether both are the same nominal version: 2.8 is 2.8.0."""
        if self.order is None or other.order is None:
            return self.nominal == other.nominal
        return self.order == other.order

    def compare(self, other: Version) -> int:
        """-1, 0 or 1, by the order of the nominal versions; ValueError if either has no order."""
        if self.scheme is not other.scheme or self.order is None or other.order is None:
            raise ValueError(f"{self} and {other} have no order")
        return (self.order > other.order) - (self.order < other.order)

    def __lt__(self, other: Version) -> bool:
        return self.compare(other) < 0

    def __le__(self, other: Version) -> bool:
        return self.compare(other) <= 0


@functools.lru_cache(maxsize=4096)
def parse_version(scheme: Scheme, text: str) -> Version:
    """The version that `text` denotes; ValueError says why it is invalid.

    PEP 440 versions may start with `v`, and `rc` may be written in upper or lower case. `host` is a valid
    value of a Python axis.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{text[:20]!r}... is longer than {MAX_LENGTH} characters")
    nominal, separator, ref = text.strip().partition("@")
    if separator:
        _check_ref(ref)
    normal, order = _PARSERS[scheme](nominal)
    return Version(scheme=scheme, nominal=normal, ref=ref, order=order)


def _check_ref(ref: str) -> None:
    if ref in MOVING_REFS:
        raise ValueError(
            f"{ref!r} is a moving branch, so a test could not be repeated; write a commit or tag instead"
        )
    if not _REF.fullmatch(ref) or ".." in ref:
        raise ValueError(f"{ref!r} after '@' is neither a commit nor a tag")


def _parse_pep440(text: str) -> tuple[str, tuple[Any, ...] | None]:
    try:
        version = Pep440(text)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        raise ValueError(
            f"{text!r} is not a version (PEP 440), such as 2.7.1, 2.8.0.post2 or 0.11.0rc1"
        ) from None
    return str(version), (version,)


def _parse_python(text: str) -> tuple[str, tuple[Any, ...] | None]:
    if text == HOST:
        return HOST, None
    return _parse_pep440(text)


def _parse_cann(text: str) -> tuple[str, tuple[Any, ...] | None]:
    match = _CANN.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is not a CANN version, such as 8.5.0, 8.3.RC1, 8.3.RC1.alpha002 or 9.0.0-beta.2"
        )
    release = [int(part) for part in match["release"].split(".")]
    # A release candidate precedes its release, and a pre-release precedes the version that it leads to.
    candidate = (int(match["rc"]), int(match["fix"] or 0)) if match["rc"] else (_INFINITE, 0)
    kind = (match["kind"] or "").lower()
    pre = (("alpha", "beta", "").index(kind), int(match["number"] or 0))
    normal = match["release"] + (f".RC{match['rc']}" if match["rc"] else "")
    normal += (f".{match['fix']}" if match["fix"] else "") + (match["pre"] or "").lower()
    return normal, (*release, *[0] * (4 - len(release)), candidate, pre)


def _parse_name(text: str) -> tuple[str, tuple[Any, ...] | None]:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: letters, digits, '.', '_', '+', '-'")
    return text, None


_PARSERS: dict[Scheme, Callable[[str], tuple[str, tuple[Any, ...] | None]]] = {
    Scheme.PEP440: _parse_pep440,
    Scheme.CANN: _parse_cann,
    Scheme.PYTHON: _parse_python,
    Scheme.NAME: _parse_name,
}


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One comparison. For `==2.7.*`, `prefix` is `2.7` and `version` is None."""

    operator: str
    version: Version | None
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.operator}{self.prefix + '.*' if self.version is None else self.version}"

    def contains(self, candidate: Version) -> bool:
        """Whether `candidate` satisfies it; ValueError if names would have to be ordered."""
        if self.operator in {"==", "!="}:
            return self._equals(candidate) == (self.operator == "==")
        if self.version is None:
            raise AssertionError("only == and != take a prefix")
        order = candidate.compare(self.version)
        return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[self.operator]

    def _equals(self, candidate: Version) -> bool:
        if self.version is None:
            return f"{candidate.release}.".startswith(f"{self.prefix}.")
        if self.version.ref and not _same_ref(candidate.ref, self.version.ref):
            return False
        if candidate.order is None or self.version.order is None:
            return candidate.nominal == self.version.nominal
        if "+" not in self.version.nominal:
            return _without_local(candidate).order == self.version.order
        return candidate.order == self.version.order


@dataclass(frozen=True, kw_only=True)
class Specifier:
    """Comparisons that must all hold. `*` has no comparisons and matches every version."""

    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return ",".join(str(clause) for clause in self.clauses) or "*"

    def contains(self, candidate: Version) -> bool | None:
        """Whether `candidate` satisfies every comparison; None if that is not known (Python `host`)."""
        if candidate.scheme is Scheme.PYTHON and candidate.nominal == HOST and self.clauses:
            return None
        return all(clause.contains(candidate) for clause in self.clauses)


@functools.lru_cache(maxsize=4096)
def parse_specifier(scheme: Scheme, text: str) -> Specifier:
    """The specifier that `text` denotes; a bare version means `==`. ValueError if it is invalid."""
    if text.strip() == "*":
        return Specifier(clauses=())
    return Specifier(clauses=tuple(_parse_clause(scheme, part) for part in text.split(",")))


def _parse_clause(scheme: Scheme, text: str) -> Clause:
    match = _CLAUSE.fullmatch(text)
    if not match:
        raise ValueError(f"{text.strip()!r} is not a comparison, such as >=8.3.RC1, <9, ==2.7.* or *")
    operator, value = match["operator"] or "==", match["value"]
    if value.endswith(".*") and scheme is not Scheme.NAME:
        if operator not in {"==", "!="}:
            raise ValueError(f"{text.strip()!r}: '.*' can only be used with == and !=")
        prefix = parse_version(scheme, value[:-2])
        if prefix.ref or prefix.order is None or prefix.nominal != prefix.release:
            raise ValueError(f"{text.strip()!r}: '.*' must follow a release number such as 2.7")
        return Clause(operator=operator, version=None, prefix=prefix.nominal)
    version = parse_version(scheme, value)
    if version.order is None and operator not in {"==", "!="}:
        raise ValueError(f"{text.strip()!r}: names have no order, use a bare name or !=")
    return Clause(operator=operator, version=version)


def _same_ref(left: str, right: str) -> bool:
    if _COMMIT.fullmatch(left) and _COMMIT.fullmatch(right):
        return left.startswith(right) or right.startswith(left)
    return left == right


def _without_local(version: Version) -> Version:
    if "+" not in version.nominal:
        return version
    return parse_version(version.scheme, version.nominal.partition("+")[0])
