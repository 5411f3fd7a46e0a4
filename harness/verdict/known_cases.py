"""Compares the tests of a check, one by one, with those that are known to fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.outcome import Case

MOST_SENTENCES = 10


@dataclass(frozen=True, kw_only=True)
class KnownCase:
    """A failure that is known, or several with a pattern.

    id: of the test; with a `*` at its end it is a pattern. kind, message: how it fails; a failure of another
    kind or with another message is a new one. reason: why it is known. where: file and line of the entry.
    """

    group: str
    id: str
    kind: str
    message: str
    reason: str
    where: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether the entry is about all tests whose ids begin alike."""
        return self.id.endswith("*")

    def covers(self, case: Case) -> bool:
        """Whether the entry is about this test, however it ended."""
        if case.group != self.group:
            return False
        return case.id == self.id or (self.is_pattern and case.id.startswith(self.id[:-1]))

    def explains(self, case: Case) -> bool:
        """Whether this failure is the known one."""
        same_kind = case.kind == self.kind or self.kind in GIVEN_BY_PEOPLE
        return case.failed and same_kind and case.message == self.message


#: Classes that no message tells; a person gives them.
GIVEN_BY_PEOPLE = frozenset({"not-simulatable", "upstream"})


@dataclass(frozen=True, kw_only=True)
class ComparedCases:
    """What is new and what is known.

    new: failures that no entry explains, each with the entry about this test, if any. repaired: entries whose
    test does not fail any more. known: failures that an entry explains. refused: patterns that would hide a
    new failure, with the reason; what they cover counts as new.
    """

    new: tuple[tuple[Case, KnownCase | None], ...]
    repaired: tuple[tuple[KnownCase, str], ...]
    known: tuple[tuple[Case, KnownCase], ...]
    refused: tuple[tuple[KnownCase, str], ...]

    def sentences(self) -> Iterator[str]:
        """A sentence for each difference, and one that counts what is known."""
        yield from _limited(
            [f"The pattern {one.id}{_at(one)} is refused: {why}" for one, why in self.refused]
        )
        yield from _limited([_new_sentence(case, entry) for case, entry in self.new])
        yield from _limited(
            [
                f"Known failure{_at(entry)} does not fail any more ({why}): {entry.id}"
                for entry, why in self.repaired
            ]
        )
        if self.known:
            kinds = Counter(entry.kind for _, entry in self.known)
            listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
            yield f"{len(self.known)} known failures: {listed}"


def _new_sentence(case: Case, entry: KnownCase | None) -> str:
    what = f"{case.group}: {case.id}: {case.kind}: {case.message}"
    if entry is None:
        return f"new failure: {what}"
    return f"fails in another way than the known failure{_at(entry)} ({entry.kind}: {entry.message}): {what}"


def _limited(sentences: Sequence[str]) -> list[str]:
    shown = list(sentences[:MOST_SENTENCES])
    more = len(sentences) - len(shown)
    return [*shown, f"... and {more} more like these"] if more > 0 else shown


def _at(entry: KnownCase) -> str:
    return f" ({entry.where})" if entry.where else ""


def compare_cases(cases: Iterable[Case], entries: Sequence[KnownCase]) -> ComparedCases:
    """Compare all tests of a check with the known failures."""
    cases = tuple(cases)
    by_id = {(entry.group, entry.id): entry for entry in entries if not entry.is_pattern}
    refused = {id(entry): (entry, why) for entry in entries if (why := why_refused(entry, cases))}
    patterns = [entry for entry in entries if entry.is_pattern and id(entry) not in refused]
    new: list[tuple[Case, KnownCase | None]] = []
    known: list[tuple[Case, KnownCase]] = []
    found: set[int] = set()
    repaired: list[tuple[KnownCase, str]] = []
    for case in cases:
        entry = by_id.get((case.group, case.id)) or next((one for one in patterns if one.covers(case)), None)
        if entry is not None:
            found.add(id(entry))
        if case.failed:
            if entry is not None and entry.explains(case):
                known.append((case, entry))
            else:
                new.append((case, entry))
        elif entry is not None:
            repaired.append((entry, "it passes" if case.passed else "it is skipped"))
    absent = [entry for entry in by_id.values() if id(entry) not in found]
    repaired += [(entry, "there is no such test") for entry in absent]
    return ComparedCases(
        new=tuple(new), repaired=tuple(repaired), known=tuple(known), refused=tuple(refused.values())
    )


def why_refused(entry: KnownCase, cases: Sequence[Case]) -> str:
    """Why a pattern would hide a new failure, or "".

    It may cover only tests that fail, and only in the one way that it names: a test that passes today could
    fail tomorrow without anybody noticing.
    """
    if not entry.is_pattern:
        return ""
    covered = [case for case in cases if entry.covers(case)]
    if not covered:
        return "it covers no test"
    other = next((case for case in covered if not entry.explains(case)), None)
    if other is None:
        return ""
    how = (
        f"fails with {other.kind}: {other.message}"
        if other.failed
        else ("passes" if other.passed else "is skipped")
    )
    return f"it also covers {other.id}, which {how}; list the failing tests one by one"
