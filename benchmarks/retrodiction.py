"""Public failure reports (failure_reports/): how often triage names the cause at which the thread ended.

Every case is one file with the short error text, the versions and the expected answer. The judgement is
mechanical: right if the category of the cause fits and a package or code of the case is named. The cases are
split by the hash of their source: half may be looked at while triage is developed, of the other half only
numbers are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from benchmarks.figures import Figure
from harness.verdict.triage.derived.cause_degree import Degree
from harness.verdict.triage.diagnosis import Diagnosis, triage_text

HERE = Path(__file__).parent
REPORTS = HERE / "failure_reports"
Answer = Literal["right", "wrong", "none"]
Half = Literal["looked at", "only counted"]

#: Category of a case -> the areas of signatures that answer it. `derived`: causes computed from packages.
AREAS: Mapping[str, frozenset[str]] = {
    "api": frozenset({"skew", "derived"}),
    "import": frozenset({"skew", "libraries", "derived"}),
    "library": frozenset({"libraries", "derived"}),
    "version": frozenset({"skew", "libraries", "resolve", "derived"}),
    "dependency": frozenset({"resolve", "skew", "derived"}),
    "environment": frozenset({"config", "runtime", "libraries", "distributed"}),
    "config": frozenset({"config", "runtime"}),
    "device": frozenset({"runtime", "device code", "distributed"}),
    "communication": frozenset({"distributed", "device code"}),
    "memory": frozenset({"runtime", "device code", "ending"}),
    "nan": frozenset({"metrics"}),
    "patch": frozenset({"patch"}),
    "hang": frozenset({"progress", "distributed", "device code", "ending"}),
    "build": frozenset({"libraries", "resolve", "patch"}),
}
#: Of the half that was only counted at first, the cases with a second byte of the hash below this were
#: opened in December 2026, after they had been counted. The others never were.
OPENED = 102
#: What an answer rests on: the degree of a derived cause, or a signature. `open`: it names several things of
#: which one is the cause.
BASES_OF_CAUSES = ("proven", "proven, open", "likely", "signature")
BASES = (*BASES_OF_CAUSES, "symptom", "known symptom", "nothing")
YamlList = Annotated[tuple[str, ...], Field(strict=False)]


class Case(BaseModel):
    """A failure report.

    cause: as the thread ends, "" if it ends without one; then only a symptom can be named. names: packages or
    codes of which the answer must contain one.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: str = Field(pattern=r"^[\w.-]+/[\w.-]+#\d+$")
    url: str = Field(pattern=r"^https://")
    category: str
    versions: dict[str, str] = Field(default_factory=dict)
    error: str = Field(min_length=1, max_length=2000)
    cause: str
    names: YamlList = Field(min_length=1)

    @property
    def half(self) -> Half:
        """Which half it belongs to, by the hash of its source."""
        digest = hashlib.sha256(self.source.encode()).digest()
        return "looked at" if digest[0] % 2 or digest[1] < OPENED else "only counted"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A case with the answer that triage gave."""

    case: Case
    answer: Answer
    found: Diagnosis

    @property
    def basis(self) -> str:
        """What the answer rests on: one of `BASES`."""
        root = self.found.root
        if root is None or root.signature is None:
            return "nothing"
        if root.derived is not None:
            return f"{root.derived.degree}{', open' if root.derived.is_open else ''}"
        return "signature" if self.found.known else "known symptom"


def read_cases(folder: Path = REPORTS) -> list[Case]:
    """All failure reports; raises if a file is invalid."""
    texts = (file.read_text("utf-8") for file in sorted(folder.glob("*.yaml")))
    return [Case.model_validate(yaml.safe_load(text)) for text in texts]


def judge(case: Case) -> Judged:
    """Ask triage for the cause of a case. A symptom is never wrong, and right if the thread has no cause.

    If the thread has none, naming a cause is wrong, unless it is proven by the releases of the packages.
    """
    found = triage_text(case.error.encode(), versions=case.versions)
    return Judged(case=case, answer=_answer(case, found), found=found)


def _answer(case: Case, found: Diagnosis) -> Answer:
    root = found.root
    if root is None or root.signature is None:
        return "none"
    text = f"{root.id} {root.signature.cause} {root.signature.remedy} {root.signature.affects}".casefold()
    text = text.replace("-", "_")
    named = any(name.casefold().replace("-", "_") in text for name in case.names)
    proven = root.derived is not None and root.derived.degree is Degree.PROVEN
    if not case.cause and not proven:
        return "wrong" if found.known else "right" if named else "none"
    if not found.known:
        return "none"
    return "right" if named and root.signature.area in AREAS[case.category] else "wrong"


def figures() -> Iterator[Figure]:
    judged = [judge(case) for case in read_cases()]
    for half in ("looked at", "only counted"):
        own = [one for one in judged if one.case.half == half]
        counts = Counter(one.answer for one in own)
        share = 100 / max(1, len(own))
        claim = f"of {len(own)} failure reports that are {half}"
        yield Figure(claim=f"{claim}, cause named rightly", measured=counts["right"] * share, unit="%")
        yield Figure(claim=f"{claim}, named wrongly", measured=counts["wrong"] * share, unit="%", limit=2)
        # Whether a cause is wrong that nobody in the thread has named, only its authors could say.
        told = [one for one in own if one.case.cause]
        wrong = sum(one.answer == "wrong" for one in told)
        claim_told = f"of {len(told)} of these whose thread states a cause, named wrongly"
        yield Figure(claim=claim_told, measured=wrong * 100 / max(1, len(told)), unit="%", limit=2)
        for basis in BASES_OF_CAUSES:
            named = [one for one in own if one.basis == basis]
            right = sum(one.answer == "right" for one in named)
            claim_named = f"of {len(named)} causes that rest on {basis} ({half}), right"
            yield Figure(claim=claim_named, measured=right * 100 / max(1, len(named)), unit="%")
        clean = sum(one.found.is_clean for one in own)
        yield Figure(claim=f"{claim}, taken for a job that worked", measured=clean, limit=0)


def table(judged: Sequence[Judged]) -> str:
    """Right, wrong and none for each half, by category and by what the answer rests on."""
    lines = []
    for half in ("looked at", "only counted"):
        own = [one for one in judged if one.case.half == half]
        lines.append(f"{half + f' ({len(own)})':<24} {'right':>6} {'wrong':>6} {'none':>6}")
        groups: dict[str, Counter[Answer]] = {}
        for one in own:
            groups.setdefault(one.case.category, Counter())[one.answer] += 1
        groups = {name: groups[name] for name in sorted(groups)}
        groups["all"] = Counter(one.answer for one in own)
        for basis in BASES:
            groups[f"by {basis}"] = Counter(one.answer for one in own if one.basis == basis)
        for name, counts in groups.items():
            lines.append(f"  {name:<22} {counts['right']:>6} {counts['wrong']:>6} {counts['none']:>6}")
    return "\n".join(lines)


def listing(judged: Sequence[Judged]) -> Iterator[str]:
    """The cases that may be looked at and were not answered rightly, a line each."""
    for one in judged:
        if one.case.half == "looked at" and one.answer != "right":
            root = one.found.root
            yield f"{one.answer}: {one.case.source} ({one.case.category}): {root.id if root else 'nothing'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.retrodiction", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--show", action="store_true", help="also list the cases that may be looked at")
    options = parser.parse_args(arguments)
    judged = [judge(case) for case in read_cases()]
    print(table(judged))
    for line in listing(judged) if options.show else ():
        print(line)
    return 1 if any(one.found.is_clean for one in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
