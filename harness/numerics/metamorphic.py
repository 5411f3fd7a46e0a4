"""Relations that every right loss keeps between its own results: a test that needs no reference at all.

Each relation evaluates a candidate on a case and on a changed case and returns how far the two are from
agreeing, relative to the size of the sums involved. Legal fp32 arithmetic stays below `TOLERANCE`; a wrong
mask, length, denominator, clip or sign does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from harness.numerics.candidate import Candidate, UnsupportedCaseError
from harness.numerics.other_relations import advantage_relations, logit_relations
from harness.numerics.policy_relations import POLICY_RELATIONS, Relation
from harness.numerics.probe import Probe, Violation

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOSSES = ("vanilla", "gspo")


def violations(candidate: Candidate, seed: int = 0) -> tuple[Violation, ...]:
    """Every relation for every loss and aggregation mode; those a candidate does not offer are left out."""
    probe = Probe(candidate, seed)
    found: list[Violation] = []
    for loss in LOSSES:
        for mode in MODES:
            for name, relation in POLICY_RELATIONS.items():
                found += _if_offered(_one, f"{name}/{loss}/{mode}", relation, probe, loss, mode)
    for group in (advantage_relations, logit_relations):
        found += _if_offered(group, probe)
    return tuple(found)


def _one(name: str, relation: Relation, probe: Probe, loss: str, mode: str) -> Iterator[Violation]:
    yield Violation(relation=name, amount=relation(probe, loss, mode))


def _if_offered(relations: Callable[..., Iterator[Violation]], *arguments: Any) -> list[Violation]:
    try:
        return list(relations(*arguments))
    except UnsupportedCaseError:
        return []
