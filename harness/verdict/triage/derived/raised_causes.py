"""Derives what a message means from the exceptions that packages raise: by which function, and when.

A function that checks settings or arguments is the cause: its condition tells what it refuses. Any other
exception is a symptom, because what led to the condition may be anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from harness.compat.knowledge.raised_messages import (
    FEWEST_LETTERS,
    MOST_CHARACTERS,
    VALUE,
    WITH_MESSAGES,
    RaisedMessage,
)
from harness.compat.knowledge.surface_pack import SurfacePack
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.logged_versions import LoggedVersion
from harness.verdict.triage.derived.package_names import package_of_file
from harness.verdict.triage.stack_trace import Frame

#: pydantic reports what a validator raises as a text of its own.
_VALIDATED = re.compile(
    r"\b(?P<error>Value error|Assertion failed), (?P<message>.{1,2000}?)(?: \[type=\w{1,40}, |$)", re.DOTALL
)
_VALIDATORS_RAISE = {"Value error": "ValueError", "Assertion failed": "AssertionError"}
#: A shorter message may be that of another program, where the traceback does not show the function,
FEWEST_UNSEEN = 20
#: and where the log does not show the package at all.
FEWEST_ALONE = 35
ON_NPUS = "vllm-ascend"
#: With more other functions that raise the same, nothing is told.
MOST_OTHERS = 3
_TEXT = re.compile(r"(?:[\w.]+\.)?(?P<error>[A-Za-z_]\w*): (?P<message>.+)", re.DOTALL)
#: Functions whose purpose is to refuse settings or arguments.
_CHECKS = re.compile(
    r"(?:^|[._])(?:__post_init__|_*(?:validate|check(?!point)|verify|ensure|assert)\w*)$", re.IGNORECASE
)
#: The folder of a package with sources of others.
_COPIED = re.compile(r"/(?:third_party|thirdparty|_?vendor(?:ed)?)/(?P<name>\w+)/")
#: Evaluates on the validation data.
_EVALUATION = re.compile(r"Trainer\._validate$")
_SETTINGS = re.compile(r"(?:\b|_)(?:config|args|kwargs)\b")
_REFUSALS = frozenset({"ValueError", "TypeError", "AssertionError", "NotImplementedError", "KeyError"})


def may_be_raised(text: str) -> bool:
    """Whether a message is long enough to be told from those of other programs."""
    read = _read(text)
    return read is not None and sum(map(str.isalpha, read[1])) >= FEWEST_LETTERS


def _read(text: str) -> tuple[str, str] | None:
    """The type and the message of an exception, that of a validator if pydantic reports one."""
    found = _VALIDATED.search(text)
    if found:
        return _VALIDATORS_RAISE[found["error"]], found["message"]
    read = _TEXT.fullmatch(text.strip())
    return (read["error"], read["message"]) if read else None


def bare_assertion(text: str, frames: Sequence[Frame]) -> tuple[str, DerivedCause] | None:
    """The condition of an assertion without a message, which the traceback shows; None for another error."""
    code = frames[-1].code if frames and text.strip() == "AssertionError" else ""
    condition = code.removeprefix("assert ")
    if condition == code:
        return None
    frame, package = frames[-1], package_of_file(frames[-1].file)
    is_setting = bool(_SETTINGS.search(condition))
    who = package or frame.file
    return frame.function, DerivedCause(
        degree=Degree.LIKELY if is_setting else Degree.SYMPTOM,
        sentence=f"{who} requires `{condition}` in `{frame.function}`, and this job does not meet it",
        proof=(f"{frame.file}, line {frame.line}, in the traceback",),
        packages=tuple(filter(None, (package,))),
        remedy=(
            "change the settings that this condition compares"
            if is_setting
            else f"find out in the log before it why `{frame.function}` got there"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Raised:
    package: str
    message: RaisedMessage
    releases: tuple[str, ...]
    in_stack: bool

    @property
    def letters(self) -> int:
        """How much of the message is not a value."""
        return sum(map(str.isalpha, self.message.template))


@dataclass(frozen=True, kw_only=True)
class RaisedCauses:
    """Derives causes from the messages in a pack and the versions that a log shows."""

    pack: SurfacePack
    versions: Mapping[str, LoggedVersion]

    def cause(self, text: str, frames: Sequence[Frame]) -> tuple[str, DerivedCause] | None:
        """The function that raises an exception with this text, and a cause; None if none or several do."""
        read = _read(text)
        if read is None:
            return None
        # pydantic calls the validator in compiled code, so no frame is its own.
        frames = () if _VALIDATED.search(text) else frames
        found = [one for one in self._raised(*read, frames) if self._is_enough(one, frames)]
        if not found:
            return None
        best = max((one.in_stack, one.letters) for one in found)
        found = [one for one in found if (one.in_stack, one.letters) == best]
        # A package may have a copy of another one's function.
        found = [one for one in found if not _COPIED.search(one.message.path)] or found
        # On NPUs, where vllm-ascend has a copy of a function of vLLM, its own runs.
        newest = max(found, key=lambda one: (one.package == ON_NPUS, Version(one.releases[-1])))
        places = dict.fromkeys((one.package, one.message.function) for one in found)
        others = [place for place in places if place != (newest.package, newest.message.function)]
        # Several functions may check the same setting; of other functions one cannot be told from another.
        is_open = bool(others) and not all(map(_refuses, found))
        if len(others) > MOST_OTHERS and is_open:
            return None
        return newest.message.function, self._derived(newest, others if is_open else ())

    def _raised(self, error: str, message: str, frames: Sequence[Frame]) -> Iterator[_Raised]:
        for package in sorted(WITH_MESSAGES):
            # Only the function of the innermost frame can have raised it.
            if frames and package_of_file(frames[-1].file) != package:
                continue
            messages = self.pack.raised(package)
            possible = self._possible(package, messages.values())
            for one, releases in messages.items():
                if one.error == error and _is_message(one.template, message):
                    shown = tuple(version for version in releases if version in possible)
                    if shown:
                        here = bool(frames) and _is_in(one, frames[-1])
                        yield _Raised(package=package, message=one, releases=shown, in_stack=here)

    def _possible(self, package: str, known: Iterable[tuple[str, ...]]) -> frozenset[str]:
        """The releases with known messages that can be installed.

        A pack may have the messages of one release of each minor version; it stands for the others.
        """
        having = frozenset(version for versions in known for version in versions)
        shown = self.versions.get(package)
        read = self.pack.release(package, shown.version) if shown else None
        if read is None:
            return having
        version = read.release.version
        if version in having:
            return frozenset([version])
        return frozenset(one for one in having if Version(one).release[:2] == Version(version).release[:2])

    def _is_enough(self, one: _Raised, frames: Sequence[Frame]) -> bool:
        if one.in_stack:
            return one.letters >= FEWEST_LETTERS
        # A traceback that is read ends in the package.
        return one.letters >= (FEWEST_UNSEEN if frames or one.package in self.versions else FEWEST_ALONE)

    @staticmethod
    def _derived(one: _Raised, others: Sequence[tuple[str, str]]) -> DerivedCause:
        """others: package and function of those that raise it too, and that it may be instead."""
        message, package = one.message, one.package
        copied = _COPIED.search(message.path)
        who = f"{copied['name']}, of which {package} has a copy," if copied else package
        when = f" when `{message.condition}`" if message.condition else ""
        span = " to ".join(dict.fromkeys((one.releases[0], one.releases[-1])))
        where = f"{message.path} of {package} {span}"
        refuses = _refuses(one) and not others
        also = "".join(f", or {name} in `{function}`" for name, function in others)
        return DerivedCause(
            degree=Degree.LIKELY if refuses else Degree.SYMPTOM,
            sentence=f"{who} raises this in `{message.function}`{when}{also}",
            proof=(where,),
            packages=(copied["name"], package)
            if copied
            else tuple(dict.fromkeys((package, *(name for name, _function in others)))),
            remedy=(
                "change the setting or argument that this condition is about"
                if refuses
                else f"find out in the log before it why `{message.function}` of {package} got there"
            ),
        )


def _refuses(one: _Raised) -> bool:
    """Whether the exception is about a setting or an argument."""
    message = one.message
    checks = _CHECKS.search(message.function) and not _EVALUATION.search(message.function)
    about = checks or _SETTINGS.search(message.condition)
    return message.error in _REFUSALS and bool(message.condition and about)


def _is_in(message: RaisedMessage, frame: Frame) -> bool:
    same = frame.function.rpartition(".")[2] == message.function.rpartition(".")[2]
    return same and frame.file.replace("\\", "/").endswith(message.path)


def _is_message(template: str, message: str) -> bool:
    """Whether a message is the template with some values."""
    fragments = template.split(VALUE)
    if max(fragments, key=len) not in message and not _is_beginning(fragments, message):
        return False
    pattern = ".*?".join(map(re.escape, fragments))
    # A long template was cut.
    if len(template) >= MOST_CHARACTERS:
        return re.match(pattern, message) is not None
    line = message.partition("\n")[0].rstrip()
    return re.fullmatch(pattern, line, re.DOTALL) is not None or _is_beginning(fragments, line)


def _is_beginning(fragments: Sequence[str], message: str) -> bool:
    """Whether a message has the first fragments of a template, enough of them, and was cut in a value."""
    position = letters = 0
    for fragment in fragments[:-1]:
        found = message.find(fragment, position)
        if found < 0 or (position == 0 and found > 0):
            break
        position = found + len(fragment)
        letters += sum(map(str.isalpha, fragment))
    return letters >= FEWEST_ALONE
