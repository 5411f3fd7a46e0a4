"""What is left out is said: host rooms on Python 3.10, and every test that could not run."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import hypothesis
except ImportError:  # a cell has pytest, and may have no more
    pass
else:
    # An example that is slow on a busy machine is no failure; whole tests have their time limits.
    hypothesis.settings.register_profile("unhurried", deadline=None)
    hypothesis.settings.load_profile("unhurried")

IN_CELL = {"numerics", "convergence", "devices_sim", "fixtures"}
HERE = Path(__file__).parent

collect_ignore: list[str] = []
if sys.version_info < (3, 11):
    collect_ignore = [
        str(folder) for folder in sorted((HERE / "unit").iterdir()) if folder.name not in IN_CELL
    ]


def pytest_report_header() -> list[str]:
    left_out = [Path(name).name for name in collect_ignore]
    return [f"not run on this Python, these rooms are the host's: {', '.join(left_out)}"] if left_out else []


def pytest_terminal_summary(terminalreporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("not run, and why")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            terminalreporter.line(f"{report.nodeid}: {reason}")
