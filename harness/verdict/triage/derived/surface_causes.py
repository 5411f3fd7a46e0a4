"""Derives a cause from the releases of a surface pack: since when, and until when, a failed use works.

PROVEN: the log shows the version, the pack has read that release, and it lacks what was expected, while
another release has it. LIKELY: the version is not in the log, or the pack does not have it. A use that works
in the installed release has another reason, and nothing is derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.surface_pack import InRelease, NameHistory, SurfacePack
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.failed_use import FailedUse
from harness.verdict.triage.derived.logged_versions import LoggedVersion
from harness.verdict.triage.derived.published_pairs import PublishedPairs
from harness.verdict.triage.derived.surface_questions import SurfaceQuestion, questions

#: How many versions that a release was published for are named.
MOST_VERSIONS = 3
#: How many runs of releases are named.
MOST_RUNS = 2


@dataclass(frozen=True, kw_only=True)
class _Installed:
    """A version in a log, and the state of a history in it. version: "" if the log does not show it."""

    version: str
    state: InRelease
    is_listed: bool


@dataclass(frozen=True, kw_only=True)
class SurfaceCauses:
    """Derives causes from a pack, the versions that a log shows, and the published pairs."""

    pack: SurfacePack
    versions: Mapping[str, LoggedVersion]
    pairs: PublishedPairs

    def causes(self, use: FailedUse) -> Iterator[DerivedCause]:
        """Every cause that follows, in the order of the questions."""
        for question in questions(self.pack, use, self.versions):
            cause = self._cause(question)
            if cause:
                yield cause

    def _cause(self, question: SurfaceQuestion) -> DerivedCause | None:
        history, package = question.history, question.package
        states = {state for _version, state in history.releases}
        if question.caller == package:
            return None
        if states <= {InRelease.MISSING, InRelease.NOT_READ} and InRelease.MISSING in states:
            return self._in_no_release(question) if question.is_import else None
        if not {InRelease.FOUND, InRelease.MISSING} <= states:
            return None
        installed = self._installed(history)
        if installed.state is InRelease.FOUND:
            return None
        proven = question.is_certain and installed.state is InRelease.MISSING and installed.is_listed
        here = _installed_in_words(history, installed.version)
        sentences = [f"{question.has} {_range_in_words(history, installed.version)}; {here}"]
        sentences += self._caller(question)
        broken = self._broken(package, question.caller)
        return DerivedCause(
            degree=Degree.PROVEN if proven else Degree.LIKELY,
            sentence="; ".join(sentences),
            proof=(
                f"{package}: {_read_in_words(history)} (surface pack {self.pack.digest[-12:]})",
                *broken,
            ),
            packages=tuple(dict.fromkeys(filter(None, (package, question.caller)))),
            remedy=self._remedy(question, installed),
            stacks=self.pairs.nearest_stacks({name: one.version for name, one in self.versions.items()}),
        )

    def _in_no_release(self, question: SurfaceQuestion) -> DerivedCause:
        """Who imports it was written for a commit between releases, a newer release or a fork."""
        package, history = question.package, question.history
        read = [one for one, state in history.releases if state is not InRelease.NOT_READ]
        who = question.caller or "the code that imports it"
        return DerivedCause(
            degree=Degree.LIKELY,
            sentence=(
                f"`{history.name}` is in none of the {len(read)} releases of {package} from {read[0]} to "
                f"{read[-1]}; {who} was written for a newer or unreleased {package}, or for a fork of it"
            ),
            proof=(f"{package}: {_read_in_words(history)} (surface pack {self.pack.digest[-12:]})",),
            packages=tuple(dict.fromkeys(filter(None, (package, question.caller)))),
            remedy=f"install the {package} commit that {who} names, or an older release of it",
            stacks=self.pairs.nearest_stacks({name: one.version for name, one in self.versions.items()}),
        )

    def _installed(self, history: NameHistory) -> _Installed:
        shown = self.versions.get(history.package)
        if shown is None:
            return _Installed(version="", state=InRelease.NOT_READ, is_listed=False)
        for version in (shown.version, shown.version.partition("+")[0]):
            listed = _listed(history, version)
            if listed:
                return _Installed(version=version, state=history.in_release(listed), is_listed=True)
        # A development version: what the releases before and after it agree on is likely.
        around = {state for state in _neighbours(history, shown.version) if state}
        state = around.pop() if len(around) == 1 else InRelease.NOT_READ
        return _Installed(version=shown.version, state=state, is_listed=False)

    def _caller(self, question: SurfaceQuestion) -> list[str]:
        """What the log and the published tables say about the package whose code expects it."""
        caller = self.versions.get(question.caller)
        if not caller:
            return [f"{question.caller} needs one of them"] if question.caller else []
        who = f"{question.caller} {caller.version}"
        wanted = self.pairs.released_for(question.caller, caller.version, question.package)
        if not wanted:
            return [f"{who} needs one of them"]
        return [
            f"{who}, which needs one of them, was released for {question.package} {_listed_in_words(wanted)}"
        ]

    def _broken(self, package: str, caller: str) -> list[str]:
        shown = {
            name: self.versions[name].version for name in (package, caller) if name and name in self.versions
        }
        rules = self.pairs.violations(shown) if len(shown) > 1 else ()
        return [f"{rule.what} ({rule.source})" for rule in rules]

    def _remedy(self, question: SurfaceQuestion, installed: _Installed) -> str:
        package, history = question.package, question.history
        run = _nearest_runs(history, installed.version)[0]
        span = run[0] if run[0] == run[1] else f"{run[0]} to {run[1]}"
        caller = f", or a {question.caller} that was released for your {package}" if question.caller else ""
        return f"install {package} {span}{caller}"


def _installed_in_words(history: NameHistory, version: str) -> str:
    package = history.package
    if version:
        return f"{package} {version}, which is installed, is not one of them"
    read = [one for one, state in history.releases if state is not InRelease.NOT_READ]
    older = history.since == read[0]
    either = f", or older than {read[0]}, the oldest that was read" if older else ""
    return f"the installed {package} is probably not one of them{either}"


def _range_in_words(history: NameHistory, version: str) -> str:
    """The releases with the name, those nearest to a version first: `from 0.9.1 on`, `until 0.8.5`."""
    runs = _nearest_runs(history, version)
    shown = [_run_in_words(history, run) for run in runs[:MOST_RUNS]]
    more = " and others" if len(runs) > MOST_RUNS else ""
    return f"in {history.package} {', '.join(shown)}{more}"


def _run_in_words(history: NameHistory, run: tuple[str, str]) -> str:
    first, last = run
    read = [one for one, state in history.releases if state is not InRelease.NOT_READ]
    if last == read[-1]:
        return f"from {first} on"
    if first == read[0]:
        return f"until {last}"
    return first if first == last else f"from {first} to {last}"


def _nearest_runs(history: NameHistory, version: str) -> list[tuple[str, str]]:
    """The runs of adjacent releases with the name (first, last), the one nearest to a version first.

    Without a version, the newest first. A run after the version is nearer than one before it.
    """
    runs: list[tuple[str, str]] = []
    is_open = False
    for one, state in history.releases:
        if state is InRelease.FOUND:
            runs = [*runs[:-1], (runs[-1][0], one)] if is_open else [*runs, (one, one)]
        is_open = state is InRelease.FOUND or (is_open and state is not InRelease.MISSING)
    parsed = _parsed(version)
    if parsed is None:
        return runs[::-1]
    later = [run for run in runs if Version(run[0]) > parsed]
    earlier = [run for run in runs if Version(run[0]) <= parsed]
    return [*later[:1], *earlier[::-1], *later[1:]]


def _read_in_words(history: NameHistory) -> str:
    read = [one for one, state in history.releases if state is not InRelease.NOT_READ]
    having = sum(state is InRelease.FOUND for _version, state in history.releases)
    return f"{having} of {len(read)} releases from {read[0]} to {read[-1]}"


def _listed(history: NameHistory, version: str) -> str:
    """The version as the pack lists it, "" if it does not, or has not read that release."""
    wanted = _parsed(version)
    return next(
        (
            one
            for one, state in history.releases
            if state is not InRelease.NOT_READ and (one == version or _parsed(one) == wanted)
        ),
        "",
    )


def _neighbours(history: NameHistory, version: str) -> tuple[InRelease | None, InRelease | None]:
    """The states of the releases before and after a version that is not listed; None if there is none."""
    wanted = _parsed(version)
    if wanted is None:
        return None, None
    read = [(Version(one), state) for one, state in history.releases if state is not InRelease.NOT_READ]
    before = [state for one, state in read if one < wanted]
    after = [state for one, state in read if one > wanted]
    if not before or not after:
        return None, None
    return before[-1], after[0]


def _listed_in_words(versions: tuple[str, ...]) -> str:
    shown = ", ".join(versions[:MOST_VERSIONS])
    return shown if len(versions) <= MOST_VERSIONS else f"{shown} and others"


def _parsed(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None
