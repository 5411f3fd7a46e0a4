"""Walks over the versions of a provider and records when a use of a consumer breaks or fits again.

A use of several releases of a consumer is one question if only the provider decides its answer. A question is
answered once, and again only at versions that change something that its last answer has read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.compat.name_survival.tree_surface import Reading, TreeSurface
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import check_uses
from harness.serialisation import JsonValue

#: States of a use, as indexes of the JSON. A guarded use handles the missing name itself.
LEGEND = ("fits", "guarded", "breaks")
FITS, GUARDED, BREAKS = range(3)
#: Kinds of uses whose answer also depends on the sources of the consumer.
_OF_CONSUMER = frozenset({"subclass", "override", "patch"})


@dataclass(frozen=True, kw_only=True)
class ProviderVersion:
    """A commit or release. changes: path -> content id, None if removed, compared with the one before.

    parent: the index of the version that it is compared with for turning points, -1 for none.
    """

    id: str
    date: str
    subject: str
    changes: Mapping[str, str | None]
    parent: int

    @property
    def short(self) -> str:
        """The id, of a commit its first 9 digits."""
        return self.id[:9] if len(self.id) == 40 else self.id


@dataclass(frozen=True, kw_only=True)
class ConsumerRelease:
    """A release or commit of the consumer with its uses. made_for: the provider that it was written for."""

    label: str
    surface: ApiSurface
    uses: tuple[Use, ...]
    made_for: ApiSurface | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether a use fits. kind, text: as in `UseFinding`, "" if it fits."""

    state: int = FITS
    kind: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class TurningPoint:
    """A version that broke or mended a use. text: what is wrong, "" if it was mended."""

    version: int
    broke: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class UseHistory:
    """Equal uses over all versions. places: release of the consumer -> FILE:LINE of the first of them.

    runs: first version -> answer.
    """

    use: Use
    places: Mapping[str, str]
    runs: tuple[tuple[int, Answer], ...]
    turns: tuple[TurningPoint, ...]

    @property
    def newest_place(self) -> tuple[str, str]:
        """The last release with this use, and FILE:LINE in it."""
        return list(self.places.items())[-1]

    def at(self, version: int) -> Answer:
        """The answer at a version."""
        starts = [start for start, _answer in self.runs]
        return self.runs[bisect_right(starts, version) - 1][1]


@dataclass(frozen=True, kw_only=True)
class NameSurvival:
    """All uses of all releases of a consumer over versions of a provider, oldest first.

    uses: those that break at some version, or that changed. checked: how many were followed.
    pairs: (use, version) pairs. distinct: how many answers were computed for them.
    """

    consumer: str
    provider: str
    revisions: str
    versions: tuple[ProviderVersion, ...]
    releases: tuple[str, ...]
    uses: tuple[UseHistory, ...]
    checked: int
    pairs: int
    distinct: int

    def broken(self, release: str) -> list[int]:
        """For each version, how many uses of a release of the consumer break."""
        counts = [0] * len(self.versions)
        for history in self.uses:
            if release in history.places:
                ends = [*(start for start, _answer in history.runs[1:]), len(self.versions)]
                for (start, answer), end in zip(history.runs, ends, strict=True):
                    if answer.state == BREAKS:
                        for version in range(start, end):
                            counts[version] += 1
        return counts

    def to_json(self) -> dict[str, JsonValue]:
        """Versions newest first, as in the survival of patches, and one index of `legend` for each."""
        last = len(self.versions) - 1
        return {
            "schema": {"name": "npu-matrix/api-survival", "version": 1},
            "consumer": self.consumer,
            "provider": self.provider,
            "range": self.revisions,
            "commits": [self._version(last - number) for number in range(last + 1)],
            "legend": list(LEGEND),
            "releases": [self._release(name) for name in self.releases],
            "uses": [self._use(history) for history in self.uses],
            "checked": self.checked,
            "pairs": self.pairs,
            "distinct": self.distinct,
        }

    def _release(self, name: str) -> dict[str, JsonValue]:
        return {"release": name, "breaks": list[JsonValue](self.broken(name)[::-1])}

    def _version(self, number: int) -> dict[str, JsonValue]:
        version = self.versions[number]
        return {"commit": version.id, "date": version.date, "subject": version.subject}

    def _use(self, history: UseHistory) -> dict[str, JsonValue]:
        use = history.use
        return {
            "name": use.target,
            "kind": use.kind,
            "places": {**history.places},
            "verdicts": [history.at(number).state for number in range(len(self.versions) - 1, -1, -1)],
            "breaks": [{**self._version(t.version), "text": t.text} for t in history.turns if t.broke],
            "fixes": [self._version(t.version) for t in history.turns if not t.broke],
        }


@dataclass(kw_only=True)
class _Question:
    """A use, asked for one or several releases, and its answers so far."""

    use: Use
    release: ConsumerRelease
    places: dict[str, str] = field(default_factory=dict)
    runs: list[tuple[int, Answer]] = field(default_factory=list)
    readings: frozenset[Reading] = frozenset()


def survival_of_names(
    consumer: str,
    provider: str,
    revisions: str,
    releases: Sequence[ConsumerRelease],
    versions: Iterable[ProviderVersion],
    surface: TreeSurface,
    progress: Callable[[int], None] = lambda _done: None,
) -> NameSurvival:
    """Follow every use over the versions, oldest first. surface: empty; it becomes each version in turn."""
    questions = _questions(releases)
    readers: dict[Reading, set[int]] = {}
    seen: list[ProviderVersion] = []
    distinct = 0
    top = provider.replace("-", "_")
    for number, version in enumerate(versions):
        changed = surface.update(version.changes)
        affected = (
            set().union(*(readers.get(reading, set()) for reading in changed))
            if number
            else set(range(len(questions)))
        )
        for at in sorted(affected):
            distinct += 1
            _ask(questions, at, number, surface, top, readers)
        seen.append(replace(version, changes={}))
        progress(number + 1)
    histories = [history for one in questions if (history := _history(one, seen)) is not None]
    return NameSurvival(
        consumer=consumer,
        provider=provider,
        revisions=revisions,
        versions=tuple(seen),
        releases=tuple(release.label for release in releases),
        uses=tuple(sorted(histories, key=lambda one: (one.use.target, one.use.file, one.use.line))),
        checked=len(questions),
        pairs=sum(len(one.places) for one in questions) * len(seen),
        distinct=distinct,
    )


def overridden_methods(releases: Sequence[ConsumerRelease]) -> frozenset[str]:
    """The names of the methods of the provider that any release of the consumer redefines."""
    uses = (use for release in releases for use in release.uses)
    return frozenset(use.target.rpartition(".")[2] for use in uses if use.kind == "override")


def _questions(releases: Sequence[ConsumerRelease]) -> list[_Question]:
    """Equal uses as one question."""
    found: dict[object, _Question] = {}
    for release in releases:
        for use in release.uses:
            shape = replace(use, file="", line=0, at_import=False)
            is_shared = use.kind not in _OF_CONSUMER and not use.instance
            key = (shape, "" if is_shared else release.label)
            question = found.setdefault(key, _Question(use=use, release=release))
            question.places.setdefault(release.label, f"{use.file}:{use.line}")
    return list(found.values())


def _ask(
    questions: list[_Question],
    at: int,
    number: int,
    surface: TreeSurface,
    top: str,
    readers: dict[Reading, set[int]],
) -> None:
    """Answer a question again, and remember what the answer has read."""
    question = questions[at]
    made_for = {top: question.release.made_for} if question.release.made_for else {}

    def answer() -> Answer:
        providers: dict[str, tuple[str, ApiSurface]] = {top: (top, surface)}
        found = check_uses([question.use], providers, question.release.surface, made_for)
        if not found:
            return Answer()
        state = BREAKS if found[0].breaks else GUARDED
        return Answer(state=state, kind=found[0].kind, text=found[0].text)

    result, readings = surface.recorded(answer)
    for reading in question.readings - readings:
        readers[reading].discard(at)
    for reading in readings - question.readings:
        readers.setdefault(reading, set()).add(at)
    question.readings = readings
    if not question.runs or question.runs[-1][1] != result:
        question.runs.append((number, result))


def _history(question: _Question, versions: Sequence[ProviderVersion]) -> UseHistory | None:
    """The history of a use; None if it fits everywhere, or is guarded everywhere."""
    if all(answer.state != BREAKS for _start, answer in question.runs):
        return None
    history = UseHistory(use=question.use, places=question.places, runs=tuple(question.runs), turns=())
    turns = []
    for number, version in enumerate(versions):
        if version.parent < 0:
            continue
        before, after = history.at(version.parent), history.at(number)
        if (before.state == BREAKS) != (after.state == BREAKS):
            turns.append(TurningPoint(version=number, broke=after.state == BREAKS, text=after.text))
    return replace(history, turns=tuple(turns))
