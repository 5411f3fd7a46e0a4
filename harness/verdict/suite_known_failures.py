"""The files with known failures of upstreams' tests: `known_failures/SUITE/NAME.yaml` next to matrix.yaml.

Each file is about one suite in the cells that have the values under `axes`, and has one line for each test.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location, Problem
from harness.outcome import Case, Status
from harness.verdict.known_cases import KnownCase
from harness.verdict.verdict import ExpectedFailure
from harness.yaml_loader import FAST_LOADER

FOLDER = "known_failures"
_MEMBERS = {"suite", "axes", "until", "owner", "source", "tests"}
_ENTRY = {"class", "message", "reason"}
#: The axes that tell the files of one suite apart, if a cell has them.
NAMING_AXES = ("verl", "vllm_ascend", "torch_npu", "device")


@dataclass(frozen=True, kw_only=True)
class KnownFailures:
    """One file. axes: the values that a cell must have. until: the last day on which it counts."""

    file: str
    suite: str
    axes: Mapping[str, str]
    until: dt.date
    owner: str
    source: str
    tests: tuple[KnownCase, ...]

    def covers(self, axes: Mapping[str, str]) -> bool:
        """Whether it is about a cell with these values; a commit counts as its version."""
        return all(axes.get(name, "").partition("@")[0] == value for name, value in self.axes.items())


def read_known_failures(folder: Path) -> tuple[KnownFailures, ...]:
    """All files below `folder`; InputError lists every problem with its line."""
    found: list[KnownFailures] = []
    problems: list[Problem] = []
    for path in sorted(folder.glob("*/*.yaml")):
        data, text = _load(path)
        wrong = [*_form_problems(path, data)]
        problems += wrong
        if not wrong:
            found.append(_known_failures(path, data, text))
    if problems:
        raise InputError.of(problems)
    return tuple(found)


def _load(path: Path) -> tuple[Any, str]:
    import yaml

    text = path.read_text(encoding="utf-8")
    try:
        # The C parser reads thousands of lines in a tenth of a second.
        data = yaml.load(text, Loader=FAST_LOADER)  # noqa: S506
    except yaml.YAMLError as error:
        raise InputError("this file is not YAML", where=Location(path), why=str(error)) from error
    return data, text


def _known_failures(path: Path, data: Any, text: str) -> KnownFailures:
    lines = _lines_of(text)
    until = data["until"] if isinstance(data["until"], dt.date) else dt.date.fromisoformat(data["until"])
    shown = f"{FOLDER}/{path.parent.name}/{path.name}"
    return KnownFailures(
        file=shown,
        suite=data["suite"],
        axes={name: str(value) for name, value in data["axes"].items()},
        until=until,
        owner=str(data["owner"]),
        source=str(data["source"]),
        tests=tuple(
            KnownCase(
                group=data["suite"],
                id=name,
                kind=entry["class"],
                message=entry["message"],
                reason=entry["reason"],
                where=f"{shown}:{lines.get(name, 0)}",
            )
            for name, entry in (data["tests"] or {}).items()
        ),
    )


def _form_problems(path: Path, data: Any) -> Iterable[Problem]:
    if not isinstance(data, dict) or set(data) != _MEMBERS:
        have = sorted(data) if isinstance(data, dict) else []
        yield Problem(
            f"a file with known failures has the members {', '.join(sorted(_MEMBERS))}",
            Location(path),
            fix=f"it has: {', '.join(map(str, have)) or 'none'}",
        )
        return
    if data["suite"] != path.parent.name:
        yield Problem(
            f"this file is about the suite {data['suite']!r}, but is in the folder {path.parent.name!r}",
            Location(path),
            fix="move the file, or correct 'suite'",
        )
    if not isinstance(data["axes"], dict) or not data["axes"]:
        yield Problem("'axes' names no value", Location(path), fix="write for example {torch_npu: 2.13.0}")
    try:
        dt.date.fromisoformat(str(data["until"]))
    except ValueError:
        yield Problem(f"{data['until']!r} is no date", Location(path), fix="write a date such as 2027-01-31")
    for name, entry in (data["tests"] or {}).items():
        if not isinstance(entry, dict) or set(entry) != _ENTRY or not all(map(_is_text, entry.values())):
            yield Problem(
                f"the entry of {name} needs class, message and reason, each a text",
                Location(path),
                fix='for example {class: wrong, message: "AssertionError: ...", reason: "..."}',
            )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _lines_of(text: str) -> dict[str, int]:
    """Test id -> its line, as `write` writes it."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith('  "'):
            with contextlib.suppress(ValueError):
                found[json.JSONDecoder().raw_decode(line[2:])[0]] = number
    return found


def file_axes(axes: Mapping[str, str]) -> dict[str, str]:
    """The values of a cell under which its known failures are kept."""
    return {name: axes[name].partition("@")[0] for name in NAMING_AXES if name in axes}


def file_name(axes: Mapping[str, str]) -> str:
    """The name of the file for a cell with these values."""
    return (
        "-".join(f"{name}-{value}" if name != "device" else value for name, value in axes.items()) + ".yaml"
    )


@dataclass(frozen=True, kw_only=True)
class KnownFailuresDetails:
    """What a person says about new entries. reason: "" to use what the failure itself says."""

    owner: str
    until: dt.date
    source: str
    reason: str = ""


def updated(
    file: KnownFailures,
    cases: Sequence[Case],
    details: KnownFailuresDetails | None,
    *,
    reasons: Mapping[str, str],
) -> KnownFailures:
    """The file after an outcome: without entries that do not fail any more, or fail in another way.

    With `details`, all failures that no entry explains are added. cases: those of this suite. reasons: test
    id -> why the upstream itself does not run the test.
    """
    failing = {case.id: case for case in cases if case.failed}
    kept = {}
    for entry in file.tests:
        covered = [case for case in cases if entry.covers(case)]
        if covered and all(entry.explains(case) for case in covered):
            kept[entry.id] = entry
    explained = {case.id for entry in kept.values() for case in cases if entry.covers(case)}
    if details is not None:
        for name, case in failing.items():
            if name not in explained:
                reason = details.reason or reasons.get(name, "") or f"{case.kind} when this list was made"
                kept[name] = KnownCase(
                    group=file.suite, id=name, kind=case.kind, message=case.message, reason=reason
                )
        file = replace(file, owner=details.owner, until=details.until, source=details.source)
    return replace(file, tests=tuple(kept[name] for name in sorted(kept)))


def to_text(file: KnownFailures) -> str:
    """The text of the file: one line for each test."""
    axes = ", ".join(f"{name}: {_word(value)}" for name, value in file.axes.items())
    lines = [
        f"# Known failures of the suite {file.suite}, a line for each; `npu-matrix expect tests` writes it.",
        "# Red are: a failure that is not listed, one of another kind, and a listed test that passes.",
        f"suite: {file.suite}",
        f"axes: {{{axes}}}",
        f"until: {file.until.isoformat()}",
        f"owner: {_word(file.owner)}",
        f"source: {_word(file.source)}",
        "tests:",
    ]
    for entry in file.tests:
        member = ", ".join(
            f"{name}: {_word(value)}"
            for name, value in (("class", entry.kind), ("message", entry.message), ("reason", entry.reason))
        )
        lines.append(f"  {_word(entry.id)}: {{{member}}}")
    return "\n".join(lines) + "\n"


def _word(value: str) -> str:
    # A JSON text is also a YAML text.
    return json.dumps(value, ensure_ascii=False)


def expected_tests(
    files: Sequence[KnownFailures], axes: Mapping[str, str], today: dt.date
) -> ExpectedFailure | None:
    """The expected failure of a check of upstreams' tests in a cell; None if nothing is known of the cell."""
    found = [one for one in files if one.covers(axes) and today <= one.until]
    if not found:
        return None
    return ExpectedFailure(
        id=", ".join(one.file for one in found),
        state=Status.FAIL.value,
        reason=f"{sum(len(one.tests) for one in found)} tests of upstreams are known to fail",
        source=", ".join(dict.fromkeys(one.source for one in found)),
        owner=", ".join(dict.fromkeys(one.owner for one in found)),
        until=min(one.until for one in found).isoformat(),
        where=found[0].file,
        cases=tuple(case for one in found for case in one.tests),
    )
