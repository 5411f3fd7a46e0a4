"""The reward verl calls for each response; verl loads this file by its path.

In-cell module; standard library only.
"""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,  # noqa: ARG001 - verl's signature
    **_others: Any,
) -> float:
    """Share of the positions that are right: each wanted character, and the stop right after them.

    verl takes special tokens, the end token among them, out of `solution_str`. Every other token of the task
    is one character, and tokenizers differ in whether they put blanks between them, so what goes on after the
    wanted characters shows as more characters.
    """
    wanted, found = ground_truth.replace(" ", ""), solution_str.replace(" ", "")
    right = sum(one == other for one, other in zip(wanted, found, strict=False))
    return (right + (len(found) == len(wanted))) / (len(wanted) + 1)
