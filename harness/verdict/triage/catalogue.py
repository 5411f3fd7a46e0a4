"""The catalogue of known failures, read from YAML: patterns of log lines, causes, remedies and sources."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from harness.errors import InputError, Location, Problem
from harness.package import data_folder
from harness.yaml_loader import FAST_LOADER

FOLDER = data_folder("verdict/triage/signatures")
#: The file in the folder of matrix.yaml to which `triage --learn` adds signatures.
LOCAL_NAME = "signatures.yaml"
#: Any text of this length contains four bytes at an address divisible by four (see `literal_search`).
SHORTEST_NEEDLE = 7

# On a long line, matching such a pattern can take quadratic time.
UNBOUNDED = re.compile(r"(?<!\\)\.[*+]")

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
#: Strict validation would accept only tuples here, but YAML has lists.
YamlList = Annotated[tuple[str, ...], Field(strict=False)]
StrippedText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
MetricRule = Literal[
    "not-finite",
    "drift",
    "above",
    "far-below-reference",
    "nothing-at-first",
    "mean-apart",
    "worse-at-last",
    "not-repeatable",
]


class PlaceCause(BaseModel):
    """The cause of a failure that is raised at a place.

    frames: a pattern of file, function and code of a frame.
    """

    model_config = STRICT

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,60}$")
    frames: str = Field(min_length=1, max_length=2000)
    cause: StrippedText
    remedy: StrippedText
    sources: YamlList = Field(min_length=1)


class VersionCause(BaseModel):
    """The cause of a failure where a package is installed in certain versions.

    versions: of `package`, as a requirement has them. `role` is that of the signature then.
    """

    model_config = STRICT

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,60}$")
    package: str = Field(min_length=1)
    versions: str = Field(min_length=1)
    role: Literal["cause", "symptom"] = "cause"
    cause: StrippedText
    remedy: StrippedText
    sources: YamlList = Field(min_length=1)

    def holds(self, version: str) -> bool:
        """Whether a version, without its local part, is one of them."""
        try:
            return SpecifierSet(self.versions).contains(version.partition("+")[0], prereleases=True)
        except InvalidVersion:
            return False


class Signature(BaseModel):
    """The description of a failure that can be recognised by a line of a log.

    area: the subject of its file. needles: literal texts of at least seven bytes; every match of `pattern`
    contains one of them. role: a symptom only says that something else failed before. evidence: where the
    example is from. `reproduced`, `source`, `docs` and `seed` are verbatim, `issue` is shortened from a
    report, `learned` is from a user's log. needs_npu: only a symptom where the log does not show that it is
    of NPUs. places: other causes of the same line, by
    the stack that it ends; installed: by the versions that the log shows.
    """

    model_config = STRICT

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,60}$")
    area: str = "local"
    stage: str = "unknown"
    severity: Literal["error", "warning", "note"] = "error"
    role: Literal["cause", "symptom"] = "cause"
    evidence: Literal["reproduced", "source", "docs", "seed", "issue", "learned"] = "learned"
    pattern: str = Field(min_length=1, max_length=2000)
    needles: YamlList = Field(min_length=1)
    example: str = Field(min_length=1)
    cause: StrippedText
    remedy: StrippedText
    affects: str = "unknown"
    sources: YamlList = Field(min_length=1)
    needs_npu: bool = False
    places: Annotated[tuple[PlaceCause, ...], Field(strict=False)] = ()
    installed: Annotated[tuple[VersionCause, ...], Field(strict=False)] = ()

    @functools.cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.pattern)

    def seen(self, *, with_npu: bool) -> Signature:
        """The signature as a symptom, if its cause holds for NPUs only and nothing shows them."""
        return self.model_copy(update={"role": "symptom"}) if self.needs_npu and not with_npu else self

    def at(self, frames: Iterable[str]) -> Signature:
        """The signature with the cause of the first of its places that a frame is; itself if none is."""
        stack = tuple(frames)
        for one in self.places:
            if any(re.search(one.frames, frame) for frame in stack):
                return self.model_copy(update=one.model_dump(exclude={"frames"}))
        return self

    def given(self, versions: Mapping[str, str]) -> Signature:
        """The signature with the cause that these versions of packages explain; itself if none does."""
        for one in self.installed:
            if one.package in versions and one.holds(versions[one.package]):
                return self.model_copy(update=one.model_dump(exclude={"package", "versions"}))
        return self


class SettingCause(BaseModel):
    """A setting that explains failures of metrics, and the patterns of lines that show it on or off.

    needles: as in `Signature`. cause: what it does, and how to turn it off.
    """

    model_config = STRICT

    id: str
    needles: YamlList = Field(min_length=1)
    when_on: str
    when_off: str
    cause: StrippedText

    @functools.cached_property
    def patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """The compiled patterns for on and off."""
        return re.compile(self.when_on), re.compile(self.when_off)


class MetricSignature(BaseModel):
    """The description of a failure that shows in metrics: a rule and its limit (see signatures/metrics.yaml).

    metrics: names of alternative metrics; the first one that a log contains is used. A name that ends in `/`
    is a prefix. derivation: how the limit was determined. explained_by: the settings that may be the cause.
    """

    model_config = STRICT

    id: str
    metrics: YamlList
    symptom: str
    cause: str
    remedy: str
    sources: YamlList
    rule: MetricRule
    limit: float = Field(gt=0)
    derivation: str = Field(min_length=1)
    explained_by: YamlList = ()

    def as_signature(self, cause: str = "") -> Signature:
        """A log signature with the same texts and a pattern that matches no line. cause: replaces its own."""
        return Signature(
            id=self.id,
            area="metrics",
            stage="train",
            evidence="issue",
            pattern=r"(?!)",
            needles=self.metrics,
            example=self.symptom,
            cause=cause or self.cause,
            remedy=self.remedy,
            affects=f"{', '.join(self.metrics)}: {self.symptom}",
            sources=self.sources,
        )


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All signatures, in the order of their files."""

    signatures: tuple[Signature, ...]
    metrics: tuple[MetricSignature, ...] = ()
    settings: tuple[SettingCause, ...] = ()

    def matching(self, text: str) -> tuple[Signature, ...]:
        """The signatures that match a line (see `matching`)."""
        return matching(self.signatures, text)


def matching(signatures: Iterable[Signature], text: str) -> tuple[Signature, ...]:
    """The signatures that match a line. If one of them is a cause, those of symptoms are left out."""
    found = tuple(signature for signature in signatures if signature.regex.search(text))
    causes = tuple(signature for signature in found if signature.role == "cause")
    return causes or found


class _File(BaseModel):
    model_config = STRICT

    area: str = "local"
    signatures: list[Signature] = Field(default_factory=list)
    metric_signatures: list[MetricSignature] = Field(default_factory=list)
    settings: list[SettingCause] = Field(default_factory=list)


@functools.cache
def shipped_catalogue() -> Catalogue:
    """The catalogue that is part of this program."""
    return load_catalogue(sorted(FOLDER.glob("*.yaml")))


def catalogue_with(local: Path) -> Catalogue:
    """The shipped catalogue and the signatures of the file `local`, if it exists."""
    if not local.is_file():
        return shipped_catalogue()
    return load_catalogue([*sorted(FOLDER.glob("*.yaml")), local])


def load_catalogue(files: Iterable[Path]) -> Catalogue:
    """Read catalogue files; InputError lists all problems in them."""
    signatures: dict[str, Signature] = {}
    metrics: list[MetricSignature] = []
    settings: list[SettingCause] = []
    problems: list[Problem] = []
    for file in files:
        parsed = _read(file)
        for entry in parsed.signatures:
            problem = _fault(entry, signatures)
            if problem:
                problems.append(Problem(f"signature {entry.id!r}: {problem}", Location(file)))
            else:
                signatures[entry.id] = entry.model_copy(update={"area": parsed.area})
        metrics.extend(parsed.metric_signatures)
        settings.extend(parsed.settings)
    if problems:
        raise InputError.of(problems)
    return Catalogue(signatures=tuple(signatures.values()), metrics=tuple(metrics), settings=tuple(settings))


def _read(file: Path) -> _File:
    try:
        return _File.model_validate(yaml.load(file.read_text(encoding="utf-8"), FAST_LOADER))  # noqa: S506 - a safe loader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError("this catalogue cannot be read", where=Location(file), why=str(error)) from error
    except ValidationError as error:
        problems = [_problem(file, fault["loc"], fault["msg"]) for fault in error.errors()]
        raise InputError.of(problems) from error


def _problem(file: Path, path: tuple[int | str, ...], message: str) -> Problem:
    if not path:
        return Problem(
            "a catalogue must be a mapping with the key `signatures`",
            Location(file),
            fix="`npu-matrix triage --learn` writes such a file",
        )
    return Problem(f"{'.'.join(map(str, path))}: {message}", Location(file))


def _fault(entry: Signature, known: dict[str, Signature]) -> str:
    if entry.id in known:
        return "its id is already used"
    try:
        pattern = entry.regex
    except re.error as error:
        return f"its pattern is not a regular expression: {error}"
    if not pattern.search(entry.example):
        return "its pattern does not match its example"
    if UNBOUNDED.search(entry.pattern):
        return "its pattern contains `.*` or `.+`, which is slow on long lines: use .{0,300} instead"
    short = [needle for needle in entry.needles if len(needle.encode()) < SHORTEST_NEEDLE]
    if short:
        return f"the needle {short[0]!r} is shorter than {SHORTEST_NEEDLE} bytes"
    if not any(needle in entry.example for needle in entry.needles):
        return "its example contains none of its needles"
    return ""
