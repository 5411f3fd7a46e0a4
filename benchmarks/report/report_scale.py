"""How the report scales: generate, open and filter a large synthetic matrix.

    python benchmarks/report/report_scale.py --cells 10000 --checks 8 --out figures.json

Measures time and peak memory of `build_model` and `render_all`, sizes of the files, and, where chromium and
selenium are there, the first view and filters in the browser (the best of several: other work on the machine
only ever adds). Figures to reach (10,000 cells x 8 checks, 2 cores): generated in under 10 s and 1 GB,
first view under 1 s and under 3 MB, any filter under 100 ms.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "unit" / "report" / "report_samples.py"
FIRST_VIEW = ("index.html", "assets/report.css", "assets/report.js", "data/grid.js")
QUERIES = (
    "verl:0.9 & !pass",
    "evidence:simulated",
    "status:fail",
    "stack 77",
    "torch_npu>=2.8 (fail | error)",
    "c09999",
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
)


def load_samples() -> Any:
    """The synthetic matrix that the tests use."""
    spec = importlib.util.spec_from_file_location("report_samples", SAMPLES)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(cells: int, checks: int, history: int, folder: Path) -> dict[str, float]:
    """Build the model and write the report; seconds and megabytes."""
    from harness.report.model import build_model
    from harness.report.publish import render_all

    inputs = load_samples().many_inputs(cells, checks, history)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start, cpu = time.perf_counter(), cpu_seconds()
    model = build_model(inputs)
    built = time.perf_counter()
    files = render_all(model, folder)
    done = time.perf_counter()
    return {
        "model_s": round(built - start, 2),
        "render_s": round(done - built, 2),
        "generate_s": round(done - start, 2),
        "generate_cpu_s": round(cpu_seconds() - cpu, 2),
        "files": len(files),
        "first_view_mb": round(sum((folder / name).stat().st_size for name in FIRST_VIEW) / 1e6, 2),
        "report_mb": round(sum(file.stat().st_size for file in files) / 1e6, 1),
        "inputs_peak_mb": round(before),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def cpu_seconds() -> float:
    """CPU time of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def browse(folder: Path) -> dict[str, Any]:
    """Open the grid and filter it in headless Chromium; milliseconds."""
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
        try:
            return _measure(driver, folder)
        finally:
            driver.quit()


def _measure(driver: Any, folder: Path) -> dict[str, Any]:
    driver.get((folder / "index.html").as_uri())
    views = []
    for _ in range(5):
        driver.get("about:blank")
        driver.get((folder / "index.html").as_uri())
        views.append(
            driver.execute_script(
                "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
            )
        )
    filters: dict[str, float] = {}
    for query in QUERIES * 4:
        took = driver.execute_async_script(
            """
            const [query, done] = arguments;
            const box = document.getElementById("q");
            box.value = query;
            const start = performance.now();
            box.dispatchEvent(new Event("input"));
            requestAnimationFrame(() => {
              document.body.getBoundingClientRect();
              setTimeout(() => done(performance.now() - start));
            });
            """,
            query,
        )
        filters[query] = min(filters.get(query, took), took)
    scroll = driver.execute_async_script(
        """
        const done = arguments[0];
        document.getElementById("q").value = "";
        document.getElementById("q").dispatchEvent(new Event("input"));
        requestAnimationFrame(() => {
          const start = performance.now();
          window.scrollTo(0, document.body.scrollHeight / 2);
          requestAnimationFrame(() => {
            document.body.getBoundingClientRect();
            setTimeout(() => done(performance.now() - start));
          });
        });
        """
    )
    return {
        "first_view_ms": round(min(views)),
        "filter_ms": {query: round(took, 1) for query, took in filters.items()},
        "scroll_ms": round(scroll, 1),
    }


def main() -> int:
    """Run, print and optionally store the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--checks", type=int, default=8)
    parser.add_argument(
        "--history", type=int, default=20, help="earlier runs each check remembers, at most 20"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="leave the report in this folder")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "reports"
        figures = {
            "cells": options.cells,
            "checks": options.checks,
            "history": options.history,
            **generate(options.cells, options.checks, options.history, folder),
        }
        figures |= browse(folder)
    text = json.dumps(figures, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
