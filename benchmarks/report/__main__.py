"""How the report scales, and against what: `python -m benchmarks.report [--cells N] [--out FILE]`.

A synthetic matrix is made, its report generated, one outcome changed in it, and both opened and filtered in
headless Chromium, in turn with the obvious alternative (`rival`): one page with one table of everything.
Ratios hold on any machine; seconds only on the one they were measured on. Figures to reach (10,000 cells x 8
checks x 50 runs, 2 cores): generated in under 10 s and 1 GB, one outcome updated in under 1 s, first view
under 1 s and 3 MB, any filter under 100 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report.rival import write_rival
from harness.outcome import Evidence, Status
from harness.report.publish.live_report import LiveReport

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "unit" / "report" / "report_samples.py"
FIRST_VIEW = ("index.html", "assets/report.css", "assets/*.js", "data/grid.js")
UPDATES = 5
VIEWS = 5
FILTERS = 7
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
LOADED = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def load_samples() -> Any:
    """The synthetic matrix that the tests use."""
    spec = importlib.util.spec_from_file_location("report_samples", SAMPLES)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["report_samples"] = module
    spec.loader.exec_module(module)
    return module


def cpu_seconds() -> float:
    """CPU time of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@contextmanager
def timed(figures: dict[str, Any], name: str) -> Iterator[None]:
    """Record wall and CPU seconds of the block."""
    start, cpu = time.perf_counter(), cpu_seconds()
    yield
    figures[f"{name}_s"] = round(time.perf_counter() - start, 2)
    figures[f"{name}_cpu_s"] = round(cpu_seconds() - cpu, 2)


def generate(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], Path]:
    """Write the report and its rival, change one outcome a few times; the figures, and the rival's page."""
    inputs = load_samples().many_inputs(options.cells, options.checks, options.history)
    figures: dict[str, Any] = {
        "cells": options.cells,
        "checks": options.checks,
        "history": options.history,
        "load": os.getloadavg()[0],
        "inputs_peak_mb": peak_mb(),
    }
    with timed(figures, "generate"):
        live = LiveReport(inputs, folder)
    figures["generate_peak_mb"] = peak_mb()
    updates = []
    for number in range(UPDATES):
        old = inputs.results[(number + 1) * len(inputs.results) // (UPDATES + 1)]
        new = dataclasses.replace(
            old, status=Status.FAIL, evidence=Evidence.SIMULATED, reasons=(f"change {number}",)
        )
        start, cpu = time.perf_counter(), cpu_seconds()
        live.update(new, inputs.generated + number)
        updates.append((time.perf_counter() - start, cpu_seconds() - cpu))
    figures["update_s"] = [round(took, 2) for took, _cpu in updates]
    figures["update_cpu_s"] = [round(cpu, 2) for _took, cpu in updates]
    files = [path for path in folder.rglob("*") if path.is_file()]
    figures["files"] = len(files)
    figures["report_mb"] = round(sum(file.stat().st_size for file in files) / 1e6, 1)
    first = [file for pattern in FIRST_VIEW for file in folder.glob(pattern)]
    figures["first_view_mb"] = round(sum(file.stat().st_size for file in first) / 1e6, 2)
    with timed(figures, "rival_generate"):
        rival = write_rival(inputs, folder.parent)
    figures["rival_first_view_mb"] = round(rival.stat().st_size / 1e6, 2)
    return figures, rival


def peak_mb() -> int:
    """The largest memory any process of this one had so far, in MB."""
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(max(used) / 1024)


def browse(page: Path, rival: Path) -> dict[str, Any]:
    """Open both in turn and filter each in headless Chromium; milliseconds."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if importlib.util.find_spec("selenium") is None or not chromium or not chromedriver:
        return {"browser": "not run: chromium, chromedriver or selenium is not installed"}
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
            return _measure(driver, page, rival)
        finally:
            driver.quit()


def _measure(driver: Any, page: Path, rival: Path) -> dict[str, Any]:
    views: dict[str, list[float]] = {"": [], "rival_": []}
    for _ in range(VIEWS):
        for name, target in (("", page), ("rival_", rival)):
            driver.get("about:blank")
            driver.get(target.as_uri())
            views[name].append(driver.execute_script(LOADED))
    found: dict[str, Any] = {}
    for place, (name, target) in enumerate((("", page), ("rival_", rival))):
        driver.get(target.as_uri())
        found[f"{name}first_view_ms"] = [round(view) for view in views[name]]
        repeat = FILTERS if place == 0 else 3
        found[f"{name}filter_ms"] = {
            pair[place]: [round(driver.execute_async_script(FILTER, pair[place]), 1) for _ in range(repeat)]
            for pair in QUERIES
        }
    return found


def ratios(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(what, the figure with its limit, ours over the alternative): medians."""
    update = statistics.median(figures["update_s"])
    rows = [
        (
            "generated",
            f"{figures['generate_s']} s ({figures['generate_cpu_s']} s of CPU), limit 10 s",
            f"{figures['generate_s'] / max(figures['rival_generate_s'], 0.01):.2f} x one page",
        ),
        ("memory", f"{figures['generate_peak_mb']} MB, limit 1000 MB", ""),
        (
            "one outcome later",
            f"{update:.2f} s ({statistics.median(figures['update_cpu_s']):.2f} s of CPU), limit 1 s",
            f"{update / figures['generate_s']:.3f} x everything again",
        ),
        (
            "first view, size",
            f"{figures['first_view_mb']} MB, limit 3 MB",
            f"{figures['first_view_mb'] / figures['rival_first_view_mb']:.3f} x one page",
        ),
    ]
    if "first_view_ms" not in figures:
        return rows
    views = [statistics.median(figures[name]) for name in ("first_view_ms", "rival_first_view_ms")]
    slowest = [
        max(statistics.median(took) for took in figures[name].values())
        for name in ("filter_ms", "rival_filter_ms")
    ]
    return [
        *rows,
        (
            "first view, time",
            f"{views[0]:.0f} ms, limit 1000 ms",
            f"{views[0] / views[1]:.3f} x one page",
        ),
        (
            "slowest filter",
            f"{slowest[0]:.0f} ms, limit 100 ms",
            f"{slowest[0] / slowest[1]:.3f} x hiding rows",
        ),
    ]


def main() -> int:
    """Measure, print and optionally store the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--checks", type=int, default=8)
    parser.add_argument("--history", type=int, default=50, help="earlier runs of each check, at most 50")
    parser.add_argument("--out", type=Path, help="store all figures here as JSON")
    parser.add_argument("--keep", type=Path, help="leave the report in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "reports"
        figures, rival = generate(options, folder)
        figures |= browse(folder / "index.html", rival)
        if options.keep:
            rival.unlink()
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(
        f"{options.cells} cells x {options.checks} checks x {options.history} earlier runs; "
        f"load of the machine at the start {figures['load']:.1f}"
    )
    for what, figure, ratio in ratios(figures):
        print(f"{what:<20} {figure:<40} {ratio}")
    if "browser" in figures:
        print(figures["browser"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
