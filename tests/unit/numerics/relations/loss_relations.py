"""Metamorphic relations: properties that every correct loss has between its own results, tested without a
reference.

Each relation evaluates a candidate on a case and on a changed case and returns how far the results are from
agreeing, relative to the size of the sums involved. Correct fp32 arithmetic stays below `TOLERANCE`; a wrong
mask, length, denominator, clip or sign does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness.errors import InputError
from harness.numerics.loss.candidate import Candidate, UnsupportedCaseError
from relations.other_relations import (
    LOGIT_OPERATIONS,
    advantage_relations,
    logit_relations,
)
from relations.policy_relations import POLICY_RELATIONS, Relation
from relations.relation_probe import Probe, UnusableResultError, Violation

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOSSES = ("vanilla", "gspo")


def violations(candidate: Candidate, seed: int = 0) -> tuple[Violation, ...]:
    """Every relation for every loss and aggregation mode; those a candidate does not offer are left out.

    A candidate that raises or returns something of another shape breaks the relation that was being tested.
    InputError when it offers nothing at all, because then nothing was tested.
    """
    probe = Probe(candidate, seed)
    found: list[Violation] = []
    for loss in LOSSES:
        for mode in MODES:
            for name, relation in POLICY_RELATIONS.items():
                label = f"{name}/{loss}/{mode}"
                found += _if_offered(label, _one, label, relation, probe, loss, mode)
    found += _if_offered("advantage", advantage_relations, probe)
    for operation in LOGIT_OPERATIONS:
        found += _if_offered(operation, logit_relations, probe, operation)
    if not found:
        raise InputError(
            "the candidate offers nothing that a relation could be tested on",
            why="it raised UnsupportedCaseError for every loss, advantage, entropy and log-probability",
            fix="offer at least one operation, or judge it case by case",
        )
    return tuple(found)


def _one(name: str, relation: Relation, probe: Probe, loss: str, mode: str) -> Iterator[Violation]:
    yield Violation(relation=name, amount=relation(probe, loss, mode))


def _if_offered(name: str, relations: Callable[..., Iterator[Violation]], *arguments: Any) -> list[Violation]:
    found: list[Violation] = []
    try:
        found.extend(relations(*arguments))
    except UnsupportedCaseError:
        return found
    except UnusableResultError as error:
        found.append(Violation(relation=name, amount=np.inf, why=str(error)))
    return found
