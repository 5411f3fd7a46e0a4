"""JUnit files of several dialects merged: megabytes per second, peak memory, and whether anything is lost.

The rival reads the same four files with junitparser (without the characters it refuses), which keeps all of a
file in memory, and writes no output.
"""

# ruff: noqa: E501 - lines as programs write them

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import Figure, peak_mb, timed
from harness.ledger.junit.junit_merge import merge_junit
from harness.sources.secrets.masking import Masker

MEGABYTES, FILES = 100, 4
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
    """Write a file of about this many megabytes; returns how many groups of ten cases it has."""
    rounds = size = 0
    with path.open("wb") as stream:
        stream.write(b'<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="big">')
        while size < megabytes * 1_000_000:
            block = "\n".join(CASES).replace("{0}", str(rounds)).replace("{1}", LOG).encode()
            size += stream.write(block)
            rounds += 1
        stream.write(b"</testsuite></testsuites>")
    return rounds


def merge(folder: str, sources: list[Path]) -> tuple[dict[str, int], list[str | None], float, float]:
    with timed() as took:
        merged = merge_junit(Path(folder) / "out.xml", sources, mask=Masker.of_command(os.environ))
    return asdict(merged.counts), [file.problem for file in merged.files], took.seconds, peak_mb()


def parse(sources: list[Path]) -> tuple[float, float]:
    from junitparser import JUnitXml

    with timed() as took:
        for source in sources:
            # It refuses a whole file for one character that XML does not allow.
            JUnitXml.fromstring(source.read_bytes().replace(b"&#27;", b""))
    return took.seconds, peak_mb()


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder) / f"in-{number}.xml" for number in range(FILES)]
        rounds = sum(write(source, MEGABYTES // FILES) for source in sources)
        size = sum(source.stat().st_size for source in sources) / 1e6
        # Each in a process of its own, whose peak of memory is its own.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as pool:
            counts, problems, seconds, peak = pool.submit(merge, folder, sources).result()
        with ProcessPoolExecutor(1, context) as pool:
            their_seconds, their_peak = pool.submit(parse, sources).result()
    expected = dict(zip(("tests", "failures", "errors", "skipped", "flaky"), EACH, strict=True))
    lost = sum(counts[name] != count * rounds for name, count in expected.items()) + sum(map(bool, problems))
    yield Figure(claim="counts wrong, and files with a problem", measured=lost, limit=0)
    rival = "junitparser, parsing alone"
    yield Figure(
        claim=f"merging {size:.0f} MB of JUnit files, peak memory",
        measured=peak,
        unit="MB",
        limit=500,
        rival=their_peak,
        rival_name=rival,
    )
    yield Figure(claim="the same, time", measured=seconds, unit="s", rival=their_seconds, rival_name=rival)
