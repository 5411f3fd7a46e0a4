"""Logs of failed jobs as people paste them: cut, wrapped, interleaved. None may be called clean.

Every failure report is put at the end of a log of a job that worked so far, and damaged in each of the ways
below. A damage keeps the line that names the failure, or at least the first half of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from healthy_logs import healthy_lines

from benchmarks.figures import Figure
from benchmarks.retrodiction import Case, read_cases
from harness.compat.knowledge.pack_at_hand import PackAtHand
from harness.verdict.triage.diagnosis import triage_text

Damage = Callable[[list[str], random.Random], list[str]]
BEFORE = 60
RANKS = 4
#: Causes are not derived from releases: only whether a failure is seen counts here.
NO_RELEASES = PackAtHand(Path("no.pack"))
_ERROR = re.compile(r"error|exception|fail|abort|kill", re.IGNORECASE)
TIME = "2026-11-20T08:00:00.123456789Z "


def _whole(lines: list[str], _chance: random.Random) -> list[str]:
    return lines


def _naming(lines: list[str]) -> int:
    """Which line names the failure: the last one that speaks of an error, or the last one."""
    return max((at for at, line in enumerate(lines) if _ERROR.search(line)), default=len(lines) - 1)


def _one_line(lines: list[str], _chance: random.Random) -> list[str]:
    """Nothing is taken away where no line names the failure, for example of metrics."""
    return [lines[_naming(lines)]] if any(map(_ERROR.search, lines)) else lines


def _cut_beginning(lines: list[str], chance: random.Random) -> list[str]:
    """The log begins in the middle of a line of the report."""
    first, *rest = lines[chance.randrange(1 + _naming(lines)) :]
    return [first[chance.randrange(1 + len(first) // 2) :], *rest]


def _cut_end(lines: list[str], chance: random.Random) -> list[str]:
    """The log ends in the second half of the line that names the failure."""
    at = _naming(lines)
    last = lines[at]
    return [*lines[:at], last[: len(last) - chance.randrange(1 + len(last) // 2)]]


def _wrapped(lines: list[str], chance: random.Random) -> list[str]:
    """A terminal of 80 to 120 columns broke the lines."""
    width = chance.randrange(80, 121)
    return [part for line in lines for part in textwrap.wrap(line, width, drop_whitespace=False) or [""]]


def _stripped(lines: list[str], _chance: random.Random) -> list[str]:
    """An issue form removed the indentation."""
    return [line.strip() for line in lines]


def _quoted(lines: list[str], _chance: random.Random) -> list[str]:
    """An answer in a thread quotes the log."""
    return [f"> {line}" for line in lines]


def _interleaved(lines: list[str], chance: random.Random) -> list[str]:
    """Other processes print between the lines."""
    # Steps after the failure would show that the job went on.
    others = (line for line in healthy_lines(chance.randrange(1000)) if "global_step" not in line)
    mixed = []
    for line in lines:
        mixed += [*islice(others, chance.randrange(3)), line]
    return mixed


def _of_ranks(lines: list[str], chance: random.Random) -> list[str]:
    """Several ranks print the same, each a few lines behind the others."""
    waiting = {rank: list(lines) for rank in range(RANKS)}
    mixed = []
    while waiting:
        rank = chance.choice(sorted(waiting))
        mixed.append(f"[rank{rank}]: {waiting[rank].pop(0)}")
        if not waiting[rank]:
            del waiting[rank]
    return mixed


def _without_names(lines: list[str], chance: random.Random) -> list[str]:
    """Two processes without prefixes print the same, a few lines apart."""
    waiting = [list(lines), list(lines)]
    mixed = []
    while any(waiting):
        own = chance.choice([one for one in waiting if one])
        mixed.append(own.pop(0))
    return mixed


def _of_ray(lines: list[str], chance: random.Random) -> list[str]:
    return [f"(WorkerDict pid={chance.randrange(1000, 1004)}, ip=10.0.0.2) {line}" for line in lines]


def _timed(lines: list[str], _chance: random.Random) -> list[str]:
    return [f"{TIME}{line}" for line in lines]


def _coloured(lines: list[str], chance: random.Random) -> list[str]:
    return [f"\x1b[{chance.choice((31, 36, 90))}m{line}\x1b[0m" for line in lines]


def _as_records(lines: list[str], _chance: random.Random) -> list[str]:
    """A collector of logs stores each line as a JSON record."""
    return [json.dumps({"log": f"{line}\n", "stream": "stderr", "time": TIME.strip()}) for line in lines]


def _with_returns(lines: list[str], _chance: random.Random) -> list[str]:
    return [f"{line}\r" for line in lines]


def _numbered(lines: list[str], _chance: random.Random) -> list[str]:
    """Copied from a viewer that numbers lines."""
    return [f"{number:>6}  {line}" for number, line in enumerate(lines, 1)]


DAMAGES: Mapping[str, Damage] = {
    "whole": _whole,
    "only the line that names the failure": _one_line,
    "cut beginning": _cut_beginning,
    "cut end": _cut_end,
    "wrapped": _wrapped,
    "without indentation": _stripped,
    "quoted": _quoted,
    "interleaved with healthy lines": _interleaved,
    "four ranks": _of_ranks,
    "two processes without names": _without_names,
    "Ray, parts with other processes": _of_ray,
    "times": _timed,
    "colours": _coloured,
    "JSON records": _as_records,
    "Windows line ends": _with_returns,
    "numbered lines": _numbered,
}


def damaged(case: Case, name: str) -> bytes:
    """The log of a case with a damage. Equal arguments give equal logs."""
    seed = hashlib.sha256(f"{case.source} {name}".encode()).digest()
    chance = random.Random(seed)
    lines = [line for line in case.error.rstrip().splitlines() if line.strip()]
    # What cuts the beginning of a report has also cut what was before it.
    before = islice(healthy_lines(chance.randrange(1000)), 0 if name == "cut beginning" else BEFORE)
    return "\n".join([*before, *DAMAGES[name](lines, chance), ""]).encode()


def called_clean(cases: Sequence[Case], name: str) -> list[Case]:
    """The cases in whose damaged log triage finds no failure."""
    found = ((case, triage_text(damaged(case, name), surfaces=NO_RELEASES)) for case in cases)
    return [case for case, one in found if one.is_clean]


def figures() -> Iterator[Figure]:
    cases = read_cases()
    for half in ("looked at", "only counted"):
        own = [case for case in cases if case.half == half]
        missed = Counter({name: len(called_clean(own, name)) for name in DAMAGES})
        worst = missed.most_common(1)[0][0]
        yield Figure(
            claim=f"of {len(own) * len(DAMAGES)} damaged logs of reports that are {half}, called clean "
            f"(most: {worst})",
            measured=missed.total(),
            limit=0,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.log_damage", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--show", action="store_true", help="list the logs of reports that may be looked at")
    options = parser.parse_args(arguments)
    missed = 0
    for name in DAMAGES:
        clean = called_clean(read_cases(), name)
        missed += len(clean)
        halves = Counter(case.half for case in clean)
        print(f"{name:<38} {halves['looked at']:>4} {halves['only counted']:>4}", flush=True)
        for case in clean if options.show else ():
            if case.half == "looked at":
                print(f"  {case.source}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
