"""The decision rule on recorded runs: the power for each kind of fault, and false alarms of clean runs.

    python -m benchmarks.curve_power clean.jsonl faulty.jsonl --references 10 20

Files have the JSON lines that `harness.convergence.smoke.smoke_program` writes, with or without `--fault`,
or one JSON object: the name of a kind -> its runs, each a mapping of series to numbers. Kinds called
`ref-GROUP` are clean; `GROUP:FAULT` is compared with them, and with `--default-group G` all other kinds, too.
The rule gets three candidates at once; the checks train a second one only if the first is suspicious.

For each trial the references are drawn at random from the clean runs, the candidates from the runs of the
fault. The candidates of false alarms are clean runs that are no references of the trial. A fault is found if
80 % of its trials fail. Exit code 1 if more than 0.5 % of the clean trials fail.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.decision_rule import FOUND, upper_bound
from harness.convergence.decision.bands import reference_bands
from harness.convergence.decision.decide import judge
from harness.convergence.decision.decision import Decision
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.telemetry.series import Series, decode_series, read
from harness.outcome import Status

CLEAN = "ref-"
LARGEST_FALSE_ALARMS = 0.005

Runs = Mapping[str, Sequence[Series]]
"""The runs of each kind."""


def load(path: Path, renamed: Mapping[str, str]) -> dict[str, list[Series]]:
    """The runs of a file by kind. renamed: other names of series -> those of the rule."""
    kinds: dict[str, list[Series]] = defaultdict(list)
    if path.suffix == ".jsonl":
        for run in read(path).runs:
            group, fault = run.header["recipe"]["algorithm"], run.header.get("fault")
            kinds[f"{group}:{fault}" if fault else CLEAN + group].append(run.series)
        return kinds
    for kind, runs in json.loads(path.read_text("utf-8")).items():
        for run in runs:
            series = {name: line for name, line in run.items() if isinstance(line, list)}
            missing = {
                name: [float("nan") if one is None else one for one in series[name]] for name in series
            }
            kinds[kind].append(
                {renamed.get(name, name): line for name, line in decode_series(missing).items()}
            )
    return kinds


def group_of(kind: str, clean: Runs, default: str) -> str:
    """The clean kind that a fault is compared with."""
    own = CLEAN + kind.split(":", maxsplit=1)[0]
    return own if own in clean else CLEAN + default


def trials(
    clean: Sequence[Series], faulty: Sequence[Series] | None, *, references: int, number: int, rule: Rule
) -> Iterator[Decision]:
    """Decisions about candidates of a fault, or of clean runs that are not among the references."""
    rng = np.random.default_rng(0)
    for _ in range(number):
        order = rng.permutation(len(clean))
        bands = reference_bands([clean[place] for place in order[:references]], rule)
        rest = [clean[place] for place in order[references:]]
        pool = rest if faulty is None else [faulty[place] for place in rng.permutation(len(faulty))]
        yield judge(bands, pool[: rule.most_runs])


def decider(decision: Decision) -> str:
    """What decided: the statistic, or the gate or twin."""
    return decision.statistic.name if decision.statistic else decision.decided_by


def report(runs: Runs, *, references: int, number: int, default: str, rule: Rule) -> bool:
    """Print the power for each kind and the false alarms; whether their limit is kept."""
    clean = {kind: found for kind, found in runs.items() if kind.startswith(CLEAN)}
    faults = sorted(set(runs) - set(clean))
    found = 0
    for kind in faults:
        own = clean[group_of(kind, clean, default)]
        decisions = list(trials(own, runs[kind], references=references, number=number, rule=rule))
        failed = [one for one in decisions if one.status is Status.FAIL]
        by = Counter(decider(one) for one in failed).most_common(1)
        found += len(failed) >= FOUND * number
        print(f"  {kind}: {len(failed) / number:.0%}{f' by {by[0][0]}' if by else ''}")
    alarms = total = used = 0
    for own in clean.values():
        if len(own) >= references + rule.most_runs:
            decisions = list(trials(own, None, references=references, number=number, rule=rule))
            alarms += sum(one.status is Status.FAIL for one in decisions)
            used += sum(one.runs_used for one in decisions)
            total += number
    print(
        f"{references} references: {found} of {len(faults)} faults are found in {FOUND:.0%} of their trials"
    )
    if total:
        print(
            f"{references} references: {alarms} of {total} clean trials fail (upper bound at 95 % confidence "
            f"if they were independent: {upper_bound(alarms, total):.2%}), {used / total:.2f} runs each"
        )
    return alarms <= LARGEST_FALSE_ALARMS * total


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curve_power", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="recorded runs")
    parser.add_argument("--references", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--trials", type=int, default=100, help="for each kind")
    parser.add_argument("--default-group", default="", help="clean runs for faults of no group")
    parser.add_argument("--rename", nargs="*", default=[], metavar="OTHER=SERIES")
    arguments = parser.parse_args(argv)
    runs: dict[str, list[Series]] = defaultdict(list)
    for path in arguments.files:
        for kind, found in load(path, dict(pair.split("=", 1) for pair in arguments.rename)).items():
            runs[kind] += found
    kept = [
        report(
            runs,
            references=references,
            number=arguments.trials,
            default=arguments.default_group,
            rule=Rule(),
        )
        for references in arguments.references
    ]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
