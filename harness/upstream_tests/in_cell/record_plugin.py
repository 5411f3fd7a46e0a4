"""A pytest plugin that writes one JSON line for each event at once, so that a crash loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

MOST_MESSAGE = 600
MOST_DETAIL = 6000
#: Worst last: a test has the worst of what its phases and subtests ended as.
_RANK = ("passed", "skipped", "xfailed", "xpassed", "failed")


class RecordPlugin:
    """Records the tests of one file, and runs only some of them.

    only: the ids to run; None for all. left_out: ends of ids that are not run.
    """

    def __init__(self, record: Path, *, only: Collection[str] | None, left_out: Sequence[str] = ()) -> None:
        self.record = record
        self.only = only
        self.left_out = tuple(f"::{name}" for name in left_out)
        # A process that a test forks inherits this object.
        self.process = os.getpid()
        self.found: dict[str, dict[str, Any]] = {}

    def write(self, event: dict[str, Any]) -> None:
        """Append an event. The file is opened each time, because tests may close all descriptors."""
        if os.getpid() != self.process:
            return
        descriptor = os.open(self.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, (json.dumps(event) + "\n").encode())
        finally:
            os.close(descriptor)

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Keep the tests that are to run, and record their ids."""
        kept = [item for item in items if not self._is_left_out(item.nodeid)]
        if self.only is None:
            self.write({"event": "collected", "ids": [item.nodeid for item in kept]})
        else:
            kept = [item for item in kept if item.nodeid in self.only]
        dropped = [item for item in items if item not in kept]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept

    def _is_left_out(self, node: str) -> bool:
        whole = node.partition("[")[0]
        return any(node.endswith(name) or whole.endswith(name) for name in self.left_out)

    def pytest_collectreport(self, report: Any) -> None:
        """Record why a file cannot be collected."""
        if report.failed:
            text = str(report.longrepr)
            self.write({"event": "uncollected", "message": last_error(text), "detail": text[-MOST_DETAIL:]})
        elif report.skipped:
            self.write({"event": "file-skipped", "message": _skip_reason(report)})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record that a test begins: if its process ends, this is the test that ended it."""
        self.found[nodeid] = {"ended": "passed", "message": "", "detail": "", "seconds": 0.0}
        self.write({"event": "start", "id": nodeid})

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Combine the phases of a test, and its subtests."""
        one = self.found.get(report.nodeid)
        if one is None:
            return
        one["seconds"] += report.duration
        ended = _ended(report)
        if _RANK.index(ended) > _RANK.index(one["ended"]):
            one["ended"] = ended
            one["message"], one["detail"] = _words(report, ended)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record how the test ended."""
        self.write({"event": "end", "id": nodeid, **self.found.pop(nodeid)})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Record that pytest reached its end."""
        self.write({"event": "finished", "status": int(exitstatus)})


def _ended(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and "[XPASS(strict)]" in str(report.longrepr):
        return "xpassed"
    return str(report.outcome)


def _words(report: Any, ended: str) -> tuple[str, str]:
    if ended == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(report.longrepr)
        message = str(crash.message) if crash is not None else last_error(text)
        return one_line(message), text[-MOST_DETAIL:]
    if ended == "skipped":
        return _skip_reason(report), ""
    return one_line(str(getattr(report, "wasxfail", ""))), ""


def _skip_reason(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return one_line(str(reason).removeprefix("Skipped: "))


def last_error(text: str) -> str:
    """The line of a traceback that names the exception, else its last line."""
    lines = [line.removeprefix("E ").strip() for line in text.splitlines() if line.strip()]
    named = [line.removeprefix("E ").strip() for line in text.splitlines() if line.startswith("E ")]
    return one_line((named or lines or [""])[-1 if not named else 0])


def one_line(text: str) -> str:
    """The text in one line of limited length: the first line, and the second if the first says little."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    found = lines[0] if lines else ""
    if len(lines) > 1 and (len(found) < MOST_MESSAGE // 8 or found.endswith(":")):
        found = f"{found} {lines[1]}"
    return found[:MOST_MESSAGE]
