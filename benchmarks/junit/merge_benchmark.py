"""JUnit files of several dialects merged: megabytes per second, peak memory of the process, nothing lost.

python benchmarks/junit/merge_benchmark.py --megabytes 1000
"""

# ruff: noqa: E501 - lines as programs write them

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.ledger.junit.junit_merge import merge_junit

GOAL_PEAK_MB = 500
#: One of each ten cases: passed, failed, skipped, gtest's disabled one, two kinds of reruns, a long output.
CASES = (
    '<testcase classname="pkg.test_{0}" name="test_plain[{0}]" time="0.001"/>',
    '<testcase classname="pkg.test_{0}" name="test_bad" time="0.5"><failure message="assert 1 == 2">E   assert 1 == 2 &lt;{0}&gt;</failure></testcase>',
    '<testcase classname="pkg.test_{0}" name="test_skip"><skipped type="pytest.skip" message="no NPU"/></testcase>',
    '<testcase classname="Tile" name="DISABLED_{0}" status="notrun" result="suppressed" time="0"/>',
    '<testcase classname="CalcTest" name="flaky{0}"><flakyError message="first"><stackTrace><![CDATA[at CalcTest.flaky({0})]]></stackTrace></flakyError></testcase>',
    '<testcase classname="CalcTest" name="bad{0}"><failure message="m"/><rerunFailure message="m"/></testcase>',
    '<testcase classname="pkg" name="props{0}"><properties><property name="cell" value="verl-{0}"/></properties></testcase>',
    '<testcase classname="pkg" name="log{0}"><system-out>{1}</system-out></testcase>',
    '<testcase classname="pkg" name="中文{0}" time="0.1"/>',
    '<testcase classname="pkg" name="odd&#27;{0}" status="disabled"><system-out>Disabled</system-out></testcase>',
)
#: tests, failures, errors, skipped, flaky of ten cases
EACH = (10, 2, 0, 3, 1)
LOG = "(WorkerDict pid=1) step:1 - actor/loss:0.1 &amp; more\n" * 40


def write(path: Path, megabytes: int) -> int:
    """About that many megabytes; returns how many times ten cases are in it."""
    rounds = size = 0
    with path.open("wb") as stream:
        stream.write(b'<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="big">')
        while size < megabytes * 1_000_000:
            block = "\n".join(CASES).replace("{0}", str(rounds)).replace("{1}", LOG).encode()
            size += stream.write(block)
            rounds += 1
        stream.write(b"</testsuite></testsuites>")
    return rounds


def measure(folder: str, sources: list[str], queue: multiprocessing.Queue[Any]) -> None:
    started = time.perf_counter()
    merged = merge_junit(Path(folder) / "out.xml", [Path(source) for source in sources])
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    queue.put((asdict(merged.counts), [file.problem for file in merged.files], seconds, peak))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--files", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder) / f"in-{number}.xml" for number in range(options.files)]
        rounds = sum(write(source, options.megabytes // options.files) for source in sources)
        size = sum(source.stat().st_size for source in sources)
        # A process of its own: the peak is the merge's alone.
        context = multiprocessing.get_context("spawn")
        queue: multiprocessing.Queue[Any] = context.Queue()
        process = context.Process(target=measure, args=(folder, [str(one) for one in sources], queue))
        process.start()
        counts, problems, seconds, peak = queue.get()
        process.join()
    expected = dict(zip(("tests", "failures", "errors", "skipped", "flaky"), EACH, strict=True))
    right = counts == {name: count * rounds for name, count in expected.items()} and not any(problems)
    json.dump(
        {
            "schema": {"name": "npu-matrix.benchmark.junit", "version": 1},
            "megabytes": round(size / 1e6),
            "cases": counts["tests"],
            "counts_right": right,
            "seconds": round(seconds, 1),
            "mb_per_s": round(size / 1e6 / seconds, 1),
            "peak_mb": round(peak),
            "goal_peak_mb": GOAL_PEAK_MB,
        },
        sys.stdout,
        indent=2,
    )
    print()
    return int(peak > GOAL_PEAK_MB or not right)


if __name__ == "__main__":
    sys.exit(main())
