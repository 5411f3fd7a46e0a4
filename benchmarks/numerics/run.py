"""Measure the judge against others: false alarms on legal evaluations, kills of wrong ones. See README.md."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import exp, lgamma, log, log1p
from pathlib import Path

import torch
from comparators import Comparator, Evidence, comparators
from held_out import HELD_OUT, LATER, SEEN
from kill_rule import differs
from mutants import LEGAL, MUTANTS, REGRESSIONS
from torch_losses import VARIANTS, TorchCandidate

from harness.numerics.arithmetic.precision_contract import (
    BF16_IO,
    BF16_NATIVE,
    CONTRACTS,
    FP16_IO,
    FP16_NATIVE,
    FP32,
)
from harness.numerics.loss.candidate import Candidate, evaluate_one
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import REQUIRED, LossStatus
from harness.numerics.loss.plain_losses import PlainCandidate

UPCAST = (FP32, BF16_IO, FP16_IO)
HELD_OUT_SEEDS = (9300, 9301, 9302)
COMPILED_CASES = ("policy/grpo-near/token-mean", "policy/gspo-production/seq-mean-token-mean")


def evidence(seeds: Iterable[int], names: Iterable[str]) -> Iterator[Evidence]:
    """Cases with reference, exact result and a baseline of another implementation."""
    exact, baseline = PlainCandidate("fp64"), PlainCandidate("fp32")
    for name in names:
        for seed in seeds:
            for case in battery(seed=seed, contract=CONTRACTS[name]):
                if case.severity == REQUIRED:
                    yield Evidence(
                        case=case,
                        expected=reference(case),
                        exact=evaluate_one(exact, case),
                        baseline=evaluate_one(baseline, case),
                    )


def legal(device: str) -> dict[str, Candidate]:
    """Every legal way of computing that is measured."""
    ways: dict[str, Candidate] = {f"numpy {name}": make() for name, make in LEGAL.items()}
    ways |= {f"torch {name}": TorchCandidate(name, device=device) for name in VARIANTS}
    return ways


def false_alarms(
    items: list[Evidence], ways: dict[str, Candidate], rules: dict[str, Comparator]
) -> dict[str, int]:
    """How often each rule flags a legal evaluation, of `evaluations`; `ill-posed` are our abstentions."""
    counts: Counter[str] = Counter(dict.fromkeys(rules, 0))
    for item in items:
        for way in ways.values():
            result = evaluate_one(way, item.case)
            if result.unsupported:
                continue
            if result.error:
                raise RuntimeError(f"{item.case.name}: {result.error}")
            counts["evaluations"] += 1
            counts["ill-posed"] += judge(item.case, result, item.expected).status is LossStatus.ILL_POSED
            counts.update(name for name, rule in rules.items() if not rule(item, result))
    return dict(counts)


def kills(
    items: list[Evidence],
    wrong: dict[str, type[PlainCandidate]],
    rules: dict[str, Comparator],
    *,
    exactly: bool,
) -> dict[str, dict[str, int]]:
    """Per group of cases: observable mutants x cases, and how many of them each rule rejects."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    alive: dict[str, set[str]] = {name: set(wrong) for name in rules}
    for item in items:
        production = "production" in item.case.name or "accumulated" in item.case.name
        groups = [
            f"all {item.case.contract.name}",
            *([f"production {item.case.contract.name}"] if production else []),
        ]
        for name, make in wrong.items():
            result = evaluate_one(make("fp32"), item.case)
            judged = evaluate_one(make("fp64"), item.case) if exactly else result
            seen = differs(item.case, judged, item.exact) and differs(item.case, result, item.baseline)
            if not seen:
                continue
            rejected = [rule for rule, accepts in rules.items() if not accepts(item, result)]
            for rule in rejected:
                alive[rule].discard(name)
            for group in groups:
                counts[group].update(["observable", *rejected])
    figures = {group: dict(found) for group, found in counts.items()}
    figures["never rejected"] = {rule: len(names) for rule, names in alive.items()}
    figures["never rejected by us"] = dict.fromkeys(sorted(alive["ours"]), 1)
    return figures


def native(seed: int) -> dict[str, dict[str, int]]:
    """Losses computed in 16 bits: how many cases the judge calls ill-posed."""
    figures = {}
    for contract in (BF16_NATIVE, FP16_NATIVE):
        statuses: Counter[str] = Counter()
        for item in evidence([seed], [contract.name]):
            statuses[judge(item.case, item.exact, item.expected).status.value] += 1
        figures[contract.name] = dict(statuses)
    return figures


def inductor(rules: dict[str, Comparator], seed: int) -> dict[str, int]:
    """False alarms on code that TorchInductor generates."""
    items = [
        item
        for item in evidence([seed], ["fp32", "bf16-io"])
        if item.case.name.split("@")[0] in COMPILED_CASES
    ]
    return false_alarms(items, {"inductor": TorchCandidate("eager", compiled=True)}, rules)


def at_least(hits: int, of: int) -> float:
    """Lower bound of a rate at 95 % confidence (Clopper-Pearson): below it, so many hits would be a
    chance of less than one in twenty."""
    low, high = 0.0, hits / of
    for _ in range(60):
        rate = (low + high) / 2
        log_choices = (lgamma(of + 1) - lgamma(k + 1) - lgamma(of - k + 1) for k in range(hits, of + 1))
        chance = sum(
            exp(choices + k * log(rate) + (of - k) * log1p(-rate))
            for k, choices in enumerate(log_choices, start=hits)
        )
        low, high = (rate, high) if chance < 0.05 else (low, rate)
    return low


def table(title: str, figures: dict[str, dict[str, int]], of: str, rules: Iterable[str]) -> None:
    """Print counts as percentages of the count called `of`, ours with its bound."""
    print(f"\n{title}")
    for group, counts in figures.items():
        if of in counts:
            shares = "  ".join(f"{rule} {100 * counts.get(rule, 0) / counts[of]:.2f}%" for rule in rules)
            bound = at_least(counts.get("ours", 0), counts[of]) if of == "observable" else None
            told = "" if bound is None else f"; ours at least {100 * bound:.2f}% (95 % confidence)"
            print(f"  {group} (n={counts[of]}): {shares}{told}")


def seeds(text: str) -> Sequence[int]:
    """Numbers, separated by commas."""
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Command line; see README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("numerics-figures.json"))
    parser.add_argument("--device", default="cpu", help="torch device of the legal torch evaluations")
    parser.add_argument(
        "--no-inductor", action="store_true", help="skip TorchInductor, which needs a C++ compiler"
    )
    parser.add_argument("--seeds", type=seeds, default=HELD_OUT_SEEDS, help="held-out seeds, e.g. 9300,9301")
    arguments = parser.parse_args()
    # dynamo reports every difference that same() finds.
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    started = time.monotonic()
    rules = comparators()
    names = [contract.name for contract in UPCAST]
    held_out = list(evidence(arguments.seeds, names))
    alarms = {"held-out": false_alarms(held_out, legal(arguments.device), rules)}
    if not arguments.no_inductor:
        alarms["inductor"] = inductor(rules, arguments.seeds[0])
    table("False alarms", alarms, "evaluations", rules)
    one_seed = list(evidence(arguments.seeds[:1], names))
    found = {
        "held-out mutants": kills(held_out, {**HELD_OUT, **LATER}, rules, exactly=True),
        "development mutants, held-out seed": kills(one_seed, {**MUTANTS, **SEEN}, rules, exactly=True),
        "precision regressions": kills(held_out, REGRESSIONS, rules, exactly=False),
    }
    for title, figures in found.items():
        table(f"Kills: {title}", figures, "observable", rules)
        print(
            f"  never rejected: {figures['never rejected']}; by us: {sorted(figures['never rejected by us'])}"
        )
    bits = native(arguments.seeds[0])
    print(f"\nComputed in 16 bits: {bits}")
    seconds = round(time.monotonic() - started, 1)
    print(f"{seconds} s; torch {torch.__version__}, device {arguments.device}, rules {', '.join(rules)}")
    arguments.out.write_text(
        json.dumps({"alarms": alarms, "kills": found, "native": bits, "seconds": seconds}, indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
