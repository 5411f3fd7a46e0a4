"""Reads what `patches survival` and `api survival` print with --json, and draws their heat maps.

Both follow something over the commits of an upstream: patches, or the names that a package uses of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import InputError, Location
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.history.heatmap import MARKS
from harness.report.model.visible_text import clip, visible

SCHEMA = "npu-matrix/survival"
NAMES_SCHEMA = "npu-matrix/api-survival"
MAX_BYTES = 100_000_000
ROW = 22
LABEL = 250
#: How many letters of a patch's name fit into the label.
NAME = 33
WIDTH = 800
SHARE = 50
MIN_WIDTH_OF_LETTER = 14
MIN_WIDTH_OF_NAME = 150
COMMIT = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{4,28}\b")
KNOWN = {verdict.value: verdict for verdict in PatchVerdict}
#: State of a use of a name -> the patch verdict whose colour it has, and its letter.
NAME_KINDS = {
    "fits": (PatchVerdict.CLEAN.value, "."),
    "guarded": (PatchVerdict.ALREADY_UPSTREAM.value, "g"),
    "breaks": (PatchVerdict.CONFLICT.value, "X"),
}


class _StoredPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SurvivalSchema(_StoredPart):
    """The name and version of the file's schema."""

    name: str
    version: int


class CommitFacts(_StoredPart):
    """A commit of the upstream."""

    commit: str
    date: str
    subject: str


class TurnFacts(CommitFacts):
    """A commit that changed the verdict on a patch."""

    was: str = Field(alias="from")
    to: str


class VariantSurvival(_StoredPart):
    """A patch variant, its range of versions, and one index into the legend for each commit."""

    file: str
    versions: str = ""
    verdicts: tuple[int, ...]


class PatchSurvival(_StoredPart):
    """A patch; verdicts: one index into the legend for each commit, newest first."""

    id: str
    verdicts: tuple[int, ...]
    applies_to: float
    breaks: tuple[TurnFacts, ...] = ()
    fixes: tuple[TurnFacts, ...] = ()
    bodies: tuple[VariantSurvival, ...] = ()


class SurvivalFacts(_StoredPart):
    """The content of the file; the newest commit comes first."""

    schema_: SurvivalSchema = Field(alias="schema")
    range: str
    commits: tuple[CommitFacts, ...] = Field(min_length=1)
    legend: tuple[str, ...]
    patches: tuple[PatchSurvival, ...]

    @model_validator(mode="after")
    def _fits(self) -> SurvivalFacts:
        _check_schema(self.schema_, SCHEMA)
        for patch in self.patches:
            for verdicts in (patch.verdicts, *(body.verdicts for body in patch.bodies)):
                _check_verdicts(patch.id, verdicts, self.commits, self.legend)
        return self


class NameBreak(CommitFacts):
    """A version that broke a use, and why."""

    text: str = ""


class NameUse(_StoredPart):
    """A use of a name. places: release of the consumer -> FILE:LINE. verdicts: as of a patch."""

    name: str
    kind: str
    places: dict[str, str] = Field(min_length=1)
    verdicts: tuple[int, ...]
    breaks: tuple[NameBreak, ...] = ()
    fixes: tuple[CommitFacts, ...] = ()


class NameFacts(_StoredPart):
    """The uses of a provider's names by a consumer that break at some version; the newest comes first."""

    schema_: SurvivalSchema = Field(alias="schema")
    consumer: str
    provider: str
    range: str
    commits: tuple[CommitFacts, ...] = Field(min_length=1)
    legend: tuple[str, ...]
    uses: tuple[NameUse, ...]
    checked: int

    @model_validator(mode="after")
    def _fits(self) -> NameFacts:
        _check_schema(self.schema_, NAMES_SCHEMA)
        for use in self.uses:
            _check_verdicts(use.name, use.verdicts, self.commits, self.legend)
        return self


def _check_schema(found: SurvivalSchema, name: str) -> None:
    if found.name != name or found.version != 1:
        raise ValueError(f"its schema is {found.name} {found.version}, not {name} 1")


def _check_verdicts(
    name: str, verdicts: Sequence[int], commits: Sequence[CommitFacts], legend: Sequence[str]
) -> None:
    if len(verdicts) != len(commits):
        raise ValueError(f"{name!r} has {len(verdicts)} verdicts, not one for each commit")
    if not all(0 <= index < len(legend) for index in verdicts):
        raise ValueError(f"{name!r} has a verdict that is not in the legend")


def read_survival(file: Path) -> SurvivalFacts:
    """Read the file; InputError if it has another schema."""
    return _read(SurvivalFacts, file, "patch survival", "npu-matrix patches survival --json")


def read_names(file: Path) -> NameFacts:
    """Read the file; InputError if it has another schema."""
    return _read(NameFacts, file, "name survival", "npu-matrix api survival CONSUMER PROVIDER --json")


_Facts = TypeVar("_Facts", SurvivalFacts, NameFacts)


def _read(kind: type[_Facts], file: Path, what: str, command: str) -> _Facts:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(
                "this file is too large", where=Location(file), why=f"more than {MAX_BYTES} bytes"
            )
        return kind.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(
            "this file cannot be read", where=Location(file), why=error.strerror or str(error)
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        member = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"this file does not contain {what} data",
            where=Location(file),
            why=f"{member}: {first['msg']}" if member else first["msg"],
            fix=f"write it with `{command}`",
        ) from None


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A row of a heat map. words: the verdict on each commit, newest first."""

    name: str
    words: Sequence[str]
    share: float


#: Verdict -> its colour, as the verdict of a patch, and its letter.
Kinds = Mapping[str, tuple[str, str]]
PATCH_KINDS: Kinds = {verdict.value: (verdict.value, MARKS[verdict][0]) for verdict in PatchVerdict}


def patch_heat_map(survival: SurvivalFacts) -> Markup:
    """One row per patch, and the share of commits that it applies to."""
    lanes = [
        Lane(
            name=patch.id,
            words=[survival.legend[index] for index in patch.verdicts],
            share=patch.applies_to,
        )
        for patch in survival.patches
    ]
    return _heat_map(survival.commits, lanes, "patches", PATCH_KINDS)


def name_heat_map(names: NameFacts, most: int) -> Markup:
    """One row for each of the first uses, and the share of versions that they fit."""
    lanes = []
    for use in names.uses[:most]:
        words = [names.legend[index] for index in use.verdicts]
        lanes.append(Lane(name=use.name, words=words, share=1 - words.count("breaks") / len(words)))
    return _heat_map(names.commits, lanes, "names", NAME_KINDS)


def _heat_map(newest_first: Sequence[CommitFacts], lanes: Sequence[Lane], what: str, kinds: Kinds) -> Markup:
    """One row per lane, the oldest commit on the left, a rectangle for each stretch of equal verdicts."""
    height = len(lanes) * ROW + 22
    commits = newest_first[::-1]
    parts = [part for row, lane in enumerate(lanes) for part in _row(commits, lane, row * ROW, kinds)]
    scale = WIDTH / len(commits)
    if scale >= MIN_WIDTH_OF_NAME:
        names = [(LABEL + (index + 0.5) * scale, "middle", c) for index, c in enumerate(commits)]
    else:
        names = [(LABEL, "start", commits[0]), (LABEL + WIDTH, "end", commits[-1])]
    parts += [
        _text(at, height - 6, f"{commit.commit[:9]} {commit.date[:10]}".strip(), anchor)
        for at, anchor, commit in names
    ]
    title = f"{len(lanes)} {what} over {len(commits)} commits, the oldest on the left"
    return Markup('<svg class="heat" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        LABEL + WIDTH + SHARE, height, title, Markup().join(parts)
    )


def _row(commits: Sequence[CommitFacts], lane: Lane, top: int, kinds: Kinds) -> Iterator[Markup]:
    scale = WIDTH / len(commits)
    name = visible(lane.name)
    yield _text(LABEL - 8, top + 15, name if len(name) <= NAME else f"…{name[1 - NAME :]}", "end")
    for verdict, start, end in _stretches(lane.words[::-1]):
        first, last = commits[start], commits[end - 1]
        title = visible(
            f"{lane.name}: {verdict} at {end - start} commits, {_when(first)} to {_when(last)}; "
            f"since: {clip(first.subject, 120)}"
        )
        left, wide = LABEL + start * scale, (end - start) * scale
        kind, letter = kinds.get(verdict, ("unknown", "?"))
        yield Markup(
            '<rect class="v v-{}" x="{:.2f}" y="{}" width="{:.2f}" height="{}"><title>{}</title></rect>'
        ).format(kind, left, top + 2, max(wide, 0.4), ROW - 4, title)
        if wide > MIN_WIDTH_OF_LETTER:
            yield Markup('<text class="letter" x="{:.1f}" y="{}">{}</text>').format(
                left + 4, top + 15, letter
            )
    yield _text(LABEL + WIDTH + 6, top + 15, f"{lane.share:.0%}", "start")


def _when(commit: CommitFacts) -> str:
    return f"{commit.commit[:9]} ({commit.date[:10]})" if commit.date else commit.commit[:9]


def _stretches(verdicts: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    start = 0
    for verdict, group in groupby(verdicts):
        count = sum(1 for _ in group)
        yield verdict, start, start + count
        start += count


def _text(at: float, down: int, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(at, down, anchor, text)


def turning_points(survival: SurvivalFacts) -> list[dict[str, object]]:
    """For each patch the commits that last broke and fixed it, and its verdict on the newest commit."""
    return [
        {
            "patch": patch.id,
            "applies": f"{patch.applies_to:.0%}",
            "broke": patch.breaks[-1] if patch.breaks else None,
            "fixed": patch.fixes[-1] if patch.fixes else None,
            "newest": survival.legend[patch.verdicts[0]],
            "bodies": [_body(survival, body) for body in patch.bodies],
        }
        for patch in survival.patches
    ]


def _body(survival: SurvivalFacts, body: VariantSurvival) -> str:
    """A patch variant in words: its file, its range of versions, and the share of commits it applies to."""
    applies = [KNOWN[word].applies if word in KNOWN else False for word in survival.legend]
    share = sum(applies[index] for index in body.verdicts) / len(body.verdicts)
    versions = COMMIT.sub(r"\1", body.versions)
    return f"{body.file} {versions} {share:.0%}"
