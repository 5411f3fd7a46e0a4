"""Derives a cause from the releases of a surface pack: since when, and until when, a failed use works.

PROVEN: the log shows the version, the pack has read that release, and it lacks what was expected; or the
message says that the module which Python found lacks it, which rules out every release that has it, and the
sentence names what else it can be. LIKELY: the version is not in the log, or the pack does not have it.
Without a version, the files and functions in the traceback tell which releases may be installed. SYMPTOM: the
use may also work in releases that do not name what was expected, and nothing tells the version. A use that
works in the installed release has another reason, and nothing is derived from its releases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from harness.compat.knowledge.surface_pack import InRelease, NameHistory, SurfacePack
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.logged_versions import LoggedVersion
from harness.verdict.triage.derived.meant_packages import is_named
from harness.verdict.triage.derived.published_pairs import PublishedPairs
from harness.verdict.triage.derived.stack_releases import releases_with_stack
from harness.verdict.triage.derived.surface_questions import SurfaceQuestion, questions
from harness.verdict.triage.stack_trace import Frame

#: A program passes these on purpose. An attribute may be set by somebody else, a module made by a build.
CALLS = frozenset({Expected.KEYWORD, Expected.POSITIONAL, Expected.OPTION})
#: How many versions that a release was published for are named.
MOST_VERSIONS = 3
#: How many runs of releases are named.
MOST_RUNS = 2
#: A word that was in a package more releases ago than this is hardly what the code expects of it.
NEAR_RELEASES = 12


@dataclass(frozen=True, kw_only=True)
class _Installed:
    """What is installed, and the state of a history in it.

    version: "" if the log does not show it. is_listed: whether the pack has read it. span: the releases that
    have the files and functions of the traceback, in words, "" if it does not tell.
    """

    version: str
    state: InRelease
    is_listed: bool
    span: str = ""


@dataclass(frozen=True, kw_only=True)
class SurfaceCauses:
    """Derives causes from a pack, the versions that a log shows, and the published pairs."""

    pack: SurfacePack
    versions: Mapping[str, LoggedVersion]
    pairs: PublishedPairs

    def causes(self, use: FailedUse) -> Iterator[DerivedCause]:
        """Every cause that follows, in the order of the questions."""
        asked = list(questions(self.pack, use, self.versions))
        # Where one way of reading finds what was expected, another way that does not see it tells nothing.
        works = {
            (one.package, one.has)
            for one in asked
            if self._installed(one, use.stack).state is InRelease.FOUND
        }
        for question in asked:
            cause = self._cause(question, use) if (question.package, question.has) not in works else None
            if cause:
                yield cause

    def works_as_installed(self, use: FailedUse) -> bool:
        """Whether a release that the log shows, and that was read, has what was expected."""
        found = (self._installed(one, use.stack) for one in questions(self.pack, use, self.versions))
        return any(one.is_listed and one.state is InRelease.FOUND for one in found)

    def _cause(self, question: SurfaceQuestion, use: FailedUse) -> DerivedCause | None:
        states = {state for _version, state in question.history.releases}
        if question.caller == question.package or states <= {InRelease.UNKNOWN, InRelease.NOT_READ}:
            return None
        installed = self._installed(question, use.stack)
        if installed.state is InRelease.FOUND:
            return None
        if question.is_built:
            return self._not_built(question, installed)
        if InRelease.FOUND not in states:
            return self._in_no_release(question, installed, use)
        if InRelease.MISSING not in states:
            return self._in_every_release(question, installed, use)
        return self._in_other_releases(question, installed)

    def _not_built(self, question: SurfaceQuestion, installed: _Installed) -> DerivedCause:
        """A build makes it, and what Python found does not have it."""
        package, history = question.package, question.history
        count = sum(state is InRelease.UNKNOWN for _version, state in history.releases)
        other = "" if installed.state is InRelease.UNKNOWN else f", or another release of {package}"
        found = (
            f"the {package} that Python found" if not installed.version else f"{package} {installed.version}"
        )
        cause = self._derived(
            question,
            Degree.PROVEN if question.is_stated else Degree.LIKELY,
            (
                f"`{history.name}` is made when {package} is built: releases import it and have no source "
                f"of it; {found} does not have it: it is a folder of source code, an incomplete build{other}"
            ),
            f"start from another folder than that of the sources of {package}, or install a built {package}",
        )
        imports = "release imports" if count == 1 else "releases import"
        proof = f"{package}: {count} {imports} it (surface pack {self.pack.digest[-12:]})"
        return replace(cause, proof=(proof,), is_open=True)

    def _in_other_releases(self, question: SurfaceQuestion, installed: _Installed) -> DerivedCause:
        history, package = question.history, question.package
        here = _installed_in_words(question, installed)
        if _is_excluded(question, installed):
            here = _left_over(question)
        sentences = [f"{question.has} {_range_in_words(history, installed.version)}; {here}"]
        sentences += self._caller(question)
        found = self._derived(
            question, _degree(question, installed), "; ".join(sentences), self._remedy(question, installed)
        )
        proof = (*found.proof, *self._broken(package, question.caller))
        return replace(found, proof=proof, is_open=_is_excluded(question, installed))

    def _derived(self, question: SurfaceQuestion, degree: Degree, sentence: str, remedy: str) -> DerivedCause:
        return DerivedCause(
            degree=degree,
            sentence=sentence,
            proof=(self._read(question.history),),
            packages=tuple(dict.fromkeys(filter(None, (question.package, question.caller)))),
            remedy=remedy,
            stacks=self._stacks(),
        )

    def _in_every_release(
        self, question: SurfaceQuestion, installed: _Installed, use: FailedUse
    ) -> DerivedCause | None:
        """What every release has is missing in an older one, or in an incomplete installation."""
        package, history = question.package, question.history
        read = [one for one, state in history.releases if state is not InRelease.NOT_READ]
        older = use.expected in {Expected.NAME, Expected.ATTRIBUTE} and not use.is_shadowed
        told = (
            installed.version or installed.span or any(s is InRelease.UNKNOWN for _v, s in history.releases)
        )
        if told or not question.is_sole or not older:
            return None
        sentence = (
            f"{question.has} in every release of {package} from {read[0]} to {read[-1]}; "
            f"the installed {package} is older, or its installation is incomplete"
        )
        return self._derived(question, Degree.SYMPTOM, sentence, f"install {package} {read[0]} or newer")

    def _in_no_release(
        self, question: SurfaceQuestion, installed: _Installed, use: FailedUse
    ) -> DerivedCause | None:
        """Who expects it was written for a commit between releases, a newer release or a fork."""
        package, history = question.package, question.history
        read = [one for one, state in history.releases if state is not InRelease.NOT_READ]
        lacking = all(state is not InRelease.UNKNOWN for _version, state in history.releases)
        is_call = use.expected in CALLS and question.is_sole and (lacking or _is_missing_in(installed))
        if not is_call and not (question.is_import and lacking):
            return None
        who = question.caller or "the code that expects it"
        here = f"; {package} {installed.version} is installed" if installed.version else ""
        sentence = (
            f"{question.has} in none of the {len(read)} releases of {package} from {read[0]} to "
            f"{read[-1]}{here}; {who} was written for a newer or unreleased {package}, or for a fork"
        )
        remedy = f"install the {package} commit that {who} names, or an older release of it"
        # Without its package in the log, a class or function of this name may be any program's own.
        is_told = question.is_import or is_named(package, use, self.versions)
        return self._derived(question, Degree.LIKELY if is_told else Degree.SYMPTOM, sentence, remedy)

    def _read(self, history: NameHistory) -> str:
        return f"{history.package}: {_read_in_words(history)} (surface pack {self.pack.digest[-12:]})"

    def _stacks(self) -> tuple[str, ...]:
        return self.pairs.nearest_stacks({name: one.version for name, one in self.versions.items()})

    def _installed(self, question: SurfaceQuestion, stack: Sequence[Frame]) -> _Installed:
        history = question.history
        by_stack = releases_with_stack(self.pack, history.package, stack)
        shown = self.versions.get(history.package)
        if shown is None:
            by_class = by_stack & question.with_class if by_stack else question.with_class
            return _by_stack(history, by_class or by_stack)
        for version in (shown.version, shown.version.partition("+")[0]):
            listed = _listed(history, version)
            if listed:
                # A stack of other files is that of a commit which only has the version of this release.
                fits = not by_stack or listed in by_stack
                return _Installed(version=version, state=history.in_release(listed), is_listed=fits)
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
        asked = f"look up which {package} and which folder Python uses, then " * _is_excluded(
            question, installed
        )
        return f"{asked}install {package} {span}{caller}"


def _by_stack(history: NameHistory, releases: frozenset[str]) -> _Installed:
    """What the releases with the files of a traceback agree on."""
    possible = [(one, state) for one, state in history.releases if one in releases]
    states = {state for _version, state in possible}
    if not possible or len(states) > 1:
        return _Installed(version="", state=InRelease.NOT_READ, is_listed=False)
    first, last = possible[0][0], possible[-1][0]
    is_narrow = len(releases) < sum(state is not InRelease.NOT_READ for _version, state in history.releases)
    span = (first if first == last else f"{first} to {last}") if is_narrow else ""
    return _Installed(version="", state=states.pop(), is_listed=False, span=span)


def _is_missing_in(installed: _Installed) -> bool:
    return installed.state is InRelease.MISSING and installed.is_listed


def _is_excluded(question: SurfaceQuestion, installed: _Installed) -> bool:
    """Whether the message alone rules out the releases that have it, whatever is installed instead."""
    is_certain = question.is_stated and question.is_certain and not question.is_imported
    return is_certain and not (installed.version or installed.span)


def _left_over(question: SurfaceQuestion) -> str:
    """Everything that it can be, if the releases that have it are ruled out."""
    package = question.package
    if question.is_object:
        return f"the class of this object is of another release or commit of {package}, or other code"
    if question.is_call:
        return f"what was called is of another release or commit of {package}, or other code of this name"
    return (
        f"what Python found here does not have it: another release or commit of {package}, an incomplete "
        "installation, or another module of this name"
    )


def _degree(question: SurfaceQuestion, installed: _Installed) -> Degree:
    # Whatever is installed has refused the call of a file that is known to import it from this package.
    refused = question.is_imported and not installed.version
    excluded = _is_excluded(question, installed)
    if question.is_certain and (_is_missing_in(installed) or refused or excluded):
        return Degree.PROVEN
    if question.is_mention and _is_long_ago(question.history, installed.version):
        return Degree.SYMPTOM
    is_told = installed.version or installed.span or question.caller
    return Degree.LIKELY if is_told or not question.is_weak else Degree.SYMPTOM


def _is_long_ago(history: NameHistory, version: str) -> bool:
    """Whether very many releases lie between an installed one and the nearest one with a word."""
    listed = _listed(history, version)
    read = [(one, state) for one, state in history.releases if state is not InRelease.NOT_READ]
    here = next((index for index, (one, _state) in enumerate(read) if one == listed), None)
    found = [index for index, (_one, state) in enumerate(read) if state is InRelease.FOUND]
    return here is not None and bool(found) and min(abs(here - index) for index in found) > NEAR_RELEASES


def _installed_in_words(question: SurfaceQuestion, installed: _Installed) -> str:
    history, package = question.history, question.package
    if installed.version:
        return f"{package} {installed.version}, which is installed, is not one of them"
    if installed.span:
        return f"the classes and files that the log names are those of {package} {installed.span}"
    if question.is_imported:
        return f"the installed {package}, which has refused it, is not one of them"
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
