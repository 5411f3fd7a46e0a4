"""Reads the output of `npu-matrix patches survival --json` and draws the heat map of patches and commits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import InputError, Location
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.history.heatmap import MARKS
from harness.report.model.visible_text import clip, visible

SCHEMA = "npu-matrix/survival"
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
        if self.schema_.name != SCHEMA or self.schema_.version != 1:
            raise ValueError(f"its schema is {self.schema_.name} {self.schema_.version}, not {SCHEMA} 1")
        for patch in self.patches:
            for verdicts in (patch.verdicts, *(body.verdicts for body in patch.bodies)):
                if len(verdicts) != len(self.commits):
                    raise ValueError(f"{patch.id!r} has {len(verdicts)} verdicts, not one for each commit")
                if not all(0 <= index < len(self.legend) for index in verdicts):
                    raise ValueError(f"{patch.id!r} has a verdict that is not in the legend")
        return self


def read_survival(file: Path) -> SurvivalFacts:
    """Read the file; InputError if it has another schema."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(
                "this file is too large", where=Location(file), why=f"more than {MAX_BYTES} bytes"
            )
        return SurvivalFacts.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(
            "this file cannot be read", where=Location(file), why=error.strerror or str(error)
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        member = ".".join(str(part) for part in first["loc"])
        raise InputError(
            "this file does not contain patch survival data",
            where=Location(file),
            why=f"{member}: {first['msg']}" if member else first["msg"],
            fix="write it with `npu-matrix patches survival --json`",
        ) from None


def heat_map(survival: SurvivalFacts) -> Markup:
    """One row per patch, the oldest commit on the left, a rectangle for each stretch of equal verdicts."""
    height = len(survival.patches) * ROW + 22
    parts = [part for row, patch in enumerate(survival.patches) for part in _row(survival, patch, row * ROW)]
    scale = WIDTH / len(survival.commits)
    if scale >= MIN_WIDTH_OF_NAME:
        names = [
            (LABEL + (index + 0.5) * scale, "middle", c) for index, c in enumerate(survival.commits[::-1])
        ]
    else:
        names = [(LABEL, "start", survival.commits[-1]), (LABEL + WIDTH, "end", survival.commits[0])]
    parts += [
        _text(at, height - 6, f"{commit.commit[:9]} {commit.date[:10]}".strip(), anchor)
        for at, anchor, commit in names
    ]
    title = f"{len(survival.patches)} patches over {len(survival.commits)} commits, the oldest on the left"
    return Markup('<svg class="heat" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        LABEL + WIDTH + SHARE, height, title, Markup().join(parts)
    )


def _row(survival: SurvivalFacts, patch: PatchSurvival, top: int) -> Iterator[Markup]:
    commits = survival.commits[::-1]
    scale = WIDTH / len(commits)
    name = visible(patch.id)
    yield _text(LABEL - 8, top + 15, name if len(name) <= NAME else f"…{name[1 - NAME :]}", "end")
    for verdict, start, end in _stretches([survival.legend[index] for index in patch.verdicts[::-1]]):
        first, last = commits[start], commits[end - 1]
        title = visible(
            f"{patch.id}: {verdict} at {end - start} commits, {_when(first)} to {_when(last)}; "
            f"since: {clip(first.subject, 120)}"
        )
        left, wide = LABEL + start * scale, (end - start) * scale
        kind = verdict if verdict in KNOWN else "unknown"
        yield Markup(
            '<rect class="v v-{}" x="{:.2f}" y="{}" width="{:.2f}" height="{}"><title>{}</title></rect>'
        ).format(kind, left, top + 2, max(wide, 0.4), ROW - 4, title)
        if wide > MIN_WIDTH_OF_LETTER:
            yield Markup('<text class="letter" x="{:.1f}" y="{}">{}</text>').format(
                left + 4, top + 15, letter(verdict)
            )
    yield _text(LABEL + WIDTH + 6, top + 15, f"{patch.applies_to:.0%}", "start")


def _when(commit: CommitFacts) -> str:
    return f"{commit.commit[:9]} ({commit.date[:10]})" if commit.date else commit.commit[:9]


def letter(verdict: str) -> str:
    """The letter of a verdict, so that colour is not the only sign of it."""
    known = KNOWN.get(verdict)
    return MARKS[known][0] if known else "?"


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
