"""The report of 10,000 cells x 8 checks x 50 runs: writing it, updating it, opening and filtering it.

The rival is one page with one table of everything (`one_table_page`), opened and filtered in turn with the
report in the same headless Chromium.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import CannotRunError, Figure, Timing, peak_mb, timed
from benchmarks.one_table_page import write_one_table
from harness.outcome import Evidence, Status
from harness.report.model.report_inputs import ReportInputs
from harness.report.publish.live_report import LiveReport

FIRST_VIEW = ("index.html", "assets/report.css", "assets/*.js", "data/grid.js")
SIZE = (10_000, 8, 50)
UPDATES = 5
VIEWS = 5
FILTERS = 3
#: (query of the report, words of the rival's box that ask the same)
QUERIES = (
    ("verl:0.9 & !pass", "0.9"),
    ("evidence:simulated", "simulated"),
    ("status:fail", "fail"),
    ("stack 77", "stack 77"),
    ("torch_npu>=2.8 (fail | error)", "2.8"),
    ("c09999", "c09999"),
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
)
# From the input event to the end of the frame that shows the answer.
FILTER = """
const [query, done] = arguments;
const box = document.getElementById("q");
box.value = query;
const start = performance.now();
box.dispatchEvent(new Event("input"));
requestAnimationFrame(() => {
  document.body.getBoundingClientRect();
  setTimeout(() => done(performance.now() - start));
});
"""
# A change of the view by its control, to the end of the frame that shows it.
VIEW = """
const [view, done] = arguments;
const menu = document.getElementById("view");
menu.value = view;
const start = performance.now();
menu.dispatchEvent(new Event("change"));
requestAnimationFrame(() => {
  document.body.getBoundingClientRect();
  setTimeout(() => done(performance.now() - start));
});
"""
LOADED = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def figures() -> Iterator[Figure]:
    # The synthetic matrix of the tests.
    inputs = importlib.import_module("report_samples").many_inputs(*SIZE)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "reports"
        with timed() as whole:
            live = LiveReport(inputs, folder)
        peak = peak_mb()
        updates = list(update_times(live, inputs))
        with timed() as took:
            rival = write_one_table(inputs, folder.parent)
        name = "one table"
        yield Figure(
            claim="report written",
            measured=whole.seconds,
            unit="s",
            limit=10,
            rival=took.seconds,
            rival_name=name,
        )
        yield Figure(claim="report written, processor time", measured=whole.cpu, unit="s")
        yield Figure(claim="report written, peak memory", measured=peak, unit="MB", limit=700)
        yield Figure(
            claim="report updated after one outcome",
            measured=statistics.median(update.seconds for update in updates),
            unit="s",
            limit=1,
            rival=whole.seconds,
            rival_name="written again",
        )
        yield Figure(
            claim="report updated after one outcome, processor time",
            measured=statistics.median(update.cpu for update in updates),
            unit="s",
        )
        first = [file for pattern in FIRST_VIEW for file in folder.glob(pattern)]
        yield Figure(
            claim="first view of the report, size",
            measured=sum(file.stat().st_size for file in first) / 1e6,
            unit="MB",
            limit=3,
            rival=rival.stat().st_size / 1e6,
            rival_name=name,
        )
        with browser() as driver:
            pages = (folder / "index.html", rival)
            views = [first_view(driver, page) for page in pages]
            filters = [slowest_filter(driver, page, place) for place, page in enumerate(pages)]
            changed = slowest_view(driver, pages[0])
        claims = (
            ("first view of the report, time", 1000, views),
            ("slowest filter of the report", 100, filters),
        )
        for claim, limit, (ours, theirs) in claims:
            yield Figure(claim=claim, measured=ours, unit="ms", limit=limit, rival=theirs, rival_name=name)
        yield Figure(claim="slowest change of the report's view", measured=changed, unit="ms", limit=100)


def update_times(live: LiveReport, inputs: ReportInputs) -> Iterator[Timing]:
    """How long it takes to change one outcome in the written report, for several outcomes in turn."""
    for number in range(UPDATES):
        results = list(inputs.results)
        place = (number + 1) * len(results) // (UPDATES + 1)
        verdict = dataclasses.replace(
            results[place].verdict,
            status=Status.FAIL,
            evidence=Evidence.SIMULATED,
            reasons=(f"change {number}",),
        )
        results[place] = dataclasses.replace(results[place], verdict=verdict)
        inputs = dataclasses.replace(inputs, generated=inputs.generated + 1, results=tuple(results))
        with timed() as took:
            live.take(inputs)
        yield took


@contextmanager
def browser() -> Iterator[Any]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if importlib.util.find_spec("selenium") is None or not chromium or not chromedriver:
        raise CannotRunError(
            "Chromium or selenium is not installed", "install chromium, chromium-driver, selenium"
        )
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1440,900"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(chromedriver))
        driver.set_script_timeout(120)
        try:
            yield driver
        finally:
            driver.quit()


def first_view(driver: Any, page: Path) -> float:
    """Milliseconds until the page is there, median."""
    views: list[float] = []
    for _ in range(VIEWS):
        driver.get("about:blank")
        driver.get(page.as_uri())
        views.append(driver.execute_script(LOADED))
    return statistics.median(views)


def slowest_filter(driver: Any, page: Path, place: int) -> float:
    """Milliseconds of the slowest query, each the median of its repetitions."""
    driver.get(page.as_uri())
    medians: list[float] = [
        statistics.median(driver.execute_async_script(FILTER, pair[place]) for _ in range(FILTERS))
        for pair in QUERIES
    ]
    return max(medians)


def slowest_view(driver: Any, page: Path) -> float:
    """Milliseconds of the slowest view, each the median of its repetitions, with the runs loaded."""
    driver.get(page.as_uri())
    views = ("runs", "axes", "")
    times: dict[str, list[float]] = {view: [] for view in views}
    for _ in range(FILTERS + 1):
        for view in views:
            times[view].append(driver.execute_async_script(VIEW, view))
    return max(statistics.median(one[1:]) for one in times.values())
