"""False alarms of the checks `loss` and `update` on an accelerator that is not simulated, such as a GPU.

    python -m benchmarks.numerics.accelerator --device cuda:0 --seeds 20

Run it with the Python of an environment that has torch for the accelerator, and verl. On `--device cpu` it
counts false alarms of a release: a battery takes one second of a core, all updates ten, and `--first-seed`
divides many seeds over several processes. What verl itself computes wrongly is printed, too. An accelerator
rounds and sums in orders that no CPU has, so a tolerance that is too narrow shows as a false alarm here. Each
seed draws other inputs for every case. The injected faults of both checks run with the first seed: one that
is missed is a tolerance that is too wide. Exit code 1 for either.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path

from harness.numerics.actor.actor_update import start_torch
from harness.numerics.actor.verl_workers import actor_classes
from harness.numerics.loss.candidate import evaluate
from harness.numerics.loss.cases.loss_battery import DEFAULT_SEED, default_battery
from harness.numerics.loss.loss_compare import compare
from harness.numerics.loss.loss_faults import evaluate_faulty
from harness.numerics.loss.loss_measurements import LossStatus
from harness.numerics.loss.loss_reference_program import references
from harness.numerics.loss.release_objectives import release_objective
from harness.numerics.loss.verl_adapters import VerlCandidate
from harness.numerics.update.update_cases import CASES
from harness.numerics.update.update_compare import (
    judge_faults,
    judge_record,
    not_offered,
    outcome_is_wrong,
)
from harness.numerics.update.update_faults import UPDATE_FAULTS
from harness.numerics.update.verl_update import run_case


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one run of a check found on inputs that are correct. counts: cases by status. worst_budget: the
    largest error of a case that passed, divided by its tolerance. missed: injected faults not found."""

    what: str
    counts: dict[str, int]
    wrong: list[str]
    worst_budget: float
    faults: int
    missed: list[str]


def losses(device: str, seeds: range) -> Iterator[Judged]:
    """The loss battery with each seed. The faults run with the first one."""
    candidate = VerlCandidate(device)
    objective = release_objective(candidate.version)
    for seed in seeds:
        cases = default_battery(seed)
        results = evaluate(candidate, cases)
        if seed == seeds[0]:
            results.update(evaluate_faulty(candidate, cases))
        compared = compare(cases, results, references(cases, objective.differences), objective)
        required = [case for case in compared.cases if case.is_required]
        faults = compared.self_test if seed == seeds[0] else ()
        yield Judged(
            what=f"loss, seed {seed}",
            counts=dict(compared.counts),
            wrong=[f"{one.name}: {one.reasons[0]}" for one in required if one.status is LossStatus.FAIL],
            worst_budget=compared.worst_budget,
            faults=len(faults),
            missed=[fault.fault for fault in faults if not fault.caught],
        )


def updates(device: str, seeds: range) -> Iterator[Judged]:
    """All cases of `update` with each seed. The faults run with the first one."""
    torch = start_torch(device.partition(":")[0])
    objective = release_objective(version("verl"))
    paths = [worker.name for worker in actor_classes()]
    for seed in seeds:
        outcomes = []
        for case, path in product((replace(one, seed=seed) for one in CASES), paths):
            record = run_case(case, torch, device, path)
            if not not_offered(record, objective):
                outcomes.append(judge_record(record, objective, case))
        faulty = [
            run_case(next(one for one in CASES if one.name == fault.case), torch, device, path, fault)
            for fault, path in product(UPDATE_FAULTS if seed == seeds[0] else (), paths)
        ]
        faults = judge_faults(faulty, outcomes, objective)
        wrong = [
            f"{one.case} with {one.path}: {one.error or one.wrong[0].quantity + ' ' + one.wrong[0].detail}"
            for one in outcomes
            if outcome_is_wrong(one)
        ]
        yield Judged(
            what=f"update, seed {seed}",
            counts=dict(Counter("fail" if outcome_is_wrong(one) else "pass" for one in outcomes)),
            wrong=wrong,
            worst_budget=max(one.worst_budget for one in outcomes),
            faults=len(faults),
            missed=[f"{fault.fault} with {fault.path}" for fault in faults if not fault.caught],
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numerics.accelerator", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="cuda:0, npu:0, cpu")
    parser.add_argument("--seeds", type=int, default=20, help="inputs to draw for each check")
    parser.add_argument("--first-seed", type=int, default=DEFAULT_SEED, help="default: that of the check")
    parser.add_argument("--check", choices=("loss", "update"), default="", help="only this check")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for judged.json")
    arguments = parser.parse_args(argv)
    found = []
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    checks = {"loss": losses, "update": updates}
    chosen = [check for name, check in checks.items() if arguments.check in {"", name}]
    if arguments.device == "cpu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    for judged in chain.from_iterable(check(arguments.device, seeds) for check in chosen):
        found.append(judged)
        print(
            f"{judged.what}: {judged.counts}, worst error {judged.worst_budget:.0%} of its tolerance, "
            f"{judged.faults - len(judged.missed)} of {judged.faults} faults found",
            flush=True,
        )
        for line in (*judged.wrong, *(f"missed: {fault}" for fault in judged.missed)):
            print(f"  {line}")
    shown = json.dumps([asdict(judged) for judged in found], indent=1)
    (arguments.out / "judged.json").write_text(shown, "utf-8")
    return int(any(judged.wrong or judged.missed for judged in found))


if __name__ == "__main__":
    sys.exit(main())
