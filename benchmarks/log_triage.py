"""Triage over a healthy log and one full of errors: speed by processor time, memory, wrong matches.

The rival searches the same file with grep for the word "error", which names no cause.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from healthy_logs import METRICS, healthy_log, scary_log

from benchmarks.figures import Figure, timed
from benchmarks.retrodiction import read_cases
from harness.verdict.triage.catalogue import shipped_catalogue
from harness.verdict.triage.diagnosis import triage_file, triage_text

MEGABYTES = 100
SCARY_MEGABYTES = 50
#: A log of `MEGABYTES` is read within this time, whatever is in it.
MOST_SECONDS = 5
#: A started process inherits the peak of the one that starts it: only its own status tells its own.
PEAK = """
import pathlib, re, sys
from harness.verdict.triage.diagnosis import triage_file
triage_file(pathlib.Path(sys.argv[1]))
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""
#: So many failures of packages that call each other are in one log, each of another worker.
FAILURES = 14
GREP = ("grep", "-aic", "error")


def _peak_mb(log: Path) -> float:
    """The peak memory of a process that only reads this log. This one holds the logs that it has made."""
    ran = subprocess.run([sys.executable, "-c", PEAK, str(log)], check=True, capture_output=True, text=True)
    return int(ran.stdout) / 1024


def _failures() -> bytes:
    """A log with failure reports of packages that call each other, of those that may be looked at."""
    cases = [one for one in read_cases() if one.half == "looked at" and one.category == "api"][:FAILURES]
    lines = [
        f"(Worker pid={number}) {line}"
        for number, one in enumerate(cases)
        for line in one.error.strip().splitlines()
    ]
    return ("\n".join(lines) + "\n").encode()


def _record(step: int) -> str:
    """A step as verl's file logger writes it."""
    return json.dumps({"step": step, "data": dict.fromkeys(METRICS, 1 / step)}) + "\n"


def _lines(step: int) -> str:
    """A step as a logger prints it that gives each metric a line."""
    metrics = "".join(f"{name}:{1 / step}\n" for name in METRICS)
    return f"step:{step}\n{metrics}training/global_step:{step}\n"


def _stack(lines: int) -> str:
    """Frames without an exception, as a recursion or a dump of all threads prints them."""
    frames = (
        f'  File "/usr/lib/x/m{at % 977}.py", line {at % 4999}, in f{at % 333}\n' for at in range(lines)
    )
    return "".join(frames)


#: What a line of words is made of: many of them are searched for.
WORDS = "error step the loss RuntimeError: npu File cannot import vllm actor/entropy:0.5 training/global_step"
#: Logs of one kind of line, which a search for needles alone does not pass over: name -> a block of them.
MONOTONOUS = {
    "frames of one stack without an end": "Traceback (most recent call last):\n" + _stack(20_000),
    "stacks of all threads": ("Thread 0x7f (most recent call first):\n" + _stack(30).replace(", in", " in"))
    * 600,
    "words on one line": (WORDS + " ") * 10_000,
    "progress bars": ("  3%| | 3/100 [train/loss: 0.5\r" + WORDS + "\r") * 7_000,
}


def figures() -> Iterator[Figure]:
    catalogue = shipped_catalogue()
    # A cause that is derived from the packages may replace a signature's.
    examples_found = [(one, triage_text(one.example.encode()).findings) for one in catalogue.signatures]
    wrong_ids = sum(
        [one.id for one in found if not one.derived]
        != ([] if any(one.derived for one in found) else [known.id])
        for known, found in examples_found
    )
    examples = f"of {len(catalogue.signatures)} signatures, those whose example has another cause"
    yield Figure(claim=examples, measured=wrong_ids, limit=0)
    with tempfile.TemporaryDirectory() as folder:
        block = healthy_log(20_000_000)
        healthy, failing = Path(folder) / "healthy.log", Path(folder) / "failing.log"
        healthy.write_bytes(block * (MEGABYTES // 20))
        speeds, greps, wrong = [], [], 0
        for _ in range(3):
            with timed() as took:
                found = triage_file(healthy)
            speeds.append(healthy.stat().st_size / 1e6 / took.cpu)
            wrong = sum(one.signature is not None for one in found.findings)
            with timed() as took:
                subprocess.run([*GREP, str(healthy)], check=True, capture_output=True)
            greps.append(healthy.stat().st_size / 1e6 / took.cpu)
        yield Figure(
            claim="triage of a healthy log",
            measured=max(speeds),
            unit="MB per s of CPU",
            limit=200,
            is_lower_limit=True,
            rival=max(greps),
            rival_name="grep -i error",
        )
        yield Figure(claim="causes found in a healthy log", measured=wrong, limit=0)
        for form, step in (("JSON lines of metrics", _record), ("one metric on each line", _lines)):
            with healthy.open("wb") as stream:
                number = 0
                while stream.tell() < MEGABYTES * 1_000_000:
                    number += 1
                    stream.write(step(number).encode())
            with timed() as took:
                triage_file(healthy)
            yield Figure(
                claim=f"triage of {form}",
                measured=healthy.stat().st_size / 1e6 / took.cpu,
                unit="MB per s of CPU",
                limit=MEGABYTES / MOST_SECONDS,
                is_lower_limit=True,
            )
        for name, text in MONOTONOUS.items():
            with healthy.open("wb") as stream:
                while stream.tell() < MEGABYTES * 1_000_000:
                    stream.write(text.encode())
            with timed() as took:
                triage_file(healthy)
            yield Figure(
                claim=f"triage of {name}",
                measured=healthy.stat().st_size / 1e6 / took.cpu,
                unit="MB per s of CPU",
                limit=MEGABYTES / MOST_SECONDS,
                is_lower_limit=True,
            )
            yield Figure(claim=f"{name}, peak memory", measured=_peak_mb(healthy), unit="MB", limit=300)
        texts = [one.example for one in catalogue.signatures]
        cited = tuple(text for text in texts if not text.startswith(("[rank", "(", "kernel:")))
        healthy.write_bytes(scary_log(SCARY_MEGABYTES * 1_000_000, cited))
        with timed() as took:
            found = triage_file(healthy)
        yield Figure(
            claim=f"causes found in {SCARY_MEGABYTES} MB of healthy logs that cite every known error",
            measured=sum(one.signature is not None for one in found.findings) + (not found.is_clean),
            limit=0,
        )
        yield Figure(
            claim="triage of such a log", measured=SCARY_MEGABYTES / took.cpu, unit="MB per s of CPU"
        )
        errors = b"".join(f"{signature.example}\n".encode() for signature in catalogue.signatures)
        with failing.open("wb") as stream:
            for _ in range(MEGABYTES * 10):
                stream.write(block[:100_000] + errors)
        with timed() as took:
            triage_file(failing)
        speed = failing.stat().st_size / 1e6 / took.cpu
        memory = _peak_mb(failing)
        with timed() as took:
            subprocess.run([*GREP, str(failing)], check=True, capture_output=True)
        yield Figure(
            claim="triage of a log with every error each 100 kB",
            measured=speed,
            unit="MB per s of CPU",
            limit=MEGABYTES / MOST_SECONDS,
            is_lower_limit=True,
            rival=failing.stat().st_size / 1e6 / took.cpu,
            rival_name="grep -i error",
        )
    yield Figure(claim="triage of a log with every error, peak memory", measured=memory, unit="MB", limit=500)
    failures = _failures()
    with timed() as took:
        triage_text(failures)
    claim = f"triage of {FAILURES} failures of packages that call each other"
    yield Figure(claim=claim, measured=took.cpu, unit="s of CPU", limit=MOST_SECONDS)
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        file.write(failures)
        file.flush()
        memory = _peak_mb(Path(file.name))
    yield Figure(claim=f"{claim}, peak memory", measured=memory, unit="MB", limit=300)
