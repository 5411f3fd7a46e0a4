"""What is left out is said: packages of the host on Python 3.10, and every test that could not run.

Properties are tried on the same examples wherever tests run; `pytest --hypothesis-profile search` tries others
each time.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    import hypothesis
    from hypothesis.internal.conjecture import providers
except ImportError:  # a cell has pytest, and may have no more
    pass
else:
    # An example that is slow on a busy machine is no failure; whole tests have their time limits.
    patient = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("search", derandomize=False, **patient)
    hypothesis.settings.register_profile("same", derandomize=True, database=None, **patient)
    hypothesis.settings.load_profile("same")
    # Examples also take numbers and texts from modules that happen to be imported by then: which are depends on
    # the tests that ran before. hypothesis has no setting for that.
    if hasattr(providers, "_get_local_constants"):
        found_constants, no_constants = providers._get_local_constants, providers._local_constants
        providers._get_local_constants = lambda: (
            no_constants if hypothesis.settings.default.derandomize else found_constants()
        )

# Variables of whoever runs tests that git, a workflow, a terminal or this harness would follow.
SETTINGS = ("CLICOLOR", "COLUMNS", "FORCE_COLOR", "GIT_", "GITHUB_", "LINES", "NO_COLOR", "NPU_MATRIX_")
IN_CELL = {"numerics", "convergence", "devices_sim", "fixtures"}
HERE = Path(__file__).parent
# Modules that tests of several packages share are imported by name.
sys.path.insert(0, str(HERE / "support"))
# Nothing here fetches from elsewhere, for which a machine's settings may be needed (a proxy, a mirror).
AT_HOME = [HERE.resolve() / name for name in ("unit", "e2e")]

collect_ignore: list[str] = []
if sys.version_info < (3, 11):
    collect_ignore = [
        str(folder) for folder in sorted((HERE / "unit").iterdir()) if folder.name not in IN_CELL
    ]


@pytest.fixture(scope="module", autouse=True)
def settings_of_nobody(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a machine's owner likes (signed commits, colours, a proxy, own folders) decides nothing here."""
    if not any(request.path.resolve().is_relative_to(folder) for folder in AT_HOME):
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        for name in list(os.environ):
            if (name.startswith(SETTINGS) or name.lower().endswith("_proxy")) and name != "NPU_MATRIX_AXE":
                patched.delenv(name)
        patched.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patched.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patched.setenv("NPU_MATRIX_FETCH", "false")
        yield


@pytest.fixture(autouse=True)
def collector_is_left_on() -> Iterator[None]:
    """Code that leaves the garbage collector off makes the tests after it take all memory of a machine."""
    yield
    left_on = gc.isenabled()
    gc.enable()
    assert left_on, "this test left the garbage collector off: use harness.gc_pause.gc_paused"


def pytest_report_header() -> list[str]:
    left_out = [Path(name).name for name in collect_ignore]
    return [f"not run on this Python, these rooms are the host's: {', '.join(left_out)}"] if left_out else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    return called_not_run((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    return called_not_run((yield))


def called_not_run(report):
    """The report of a test or module; the reason of a skip begins with `not run: ` in every listing."""
    if report.skipped and isinstance(report.longrepr, tuple):
        file, line, reason = report.longrepr
        report.longrepr = file, line, f"not run: {reason.removeprefix('Skipped: ').removeprefix('not run: ')}"
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("not run, and why")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            terminalreporter.line(f"{report.nodeid}: {reason}")
