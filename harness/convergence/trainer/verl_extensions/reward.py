"""The reward function that verl calls for each response; verl loads this file by its path.

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
    """Share of the correct positions: each expected character, and the end right after the last one.

    verl removes special tokens, including the end token, from `solution_str`. Every other token of the task
    is one character, so a response that ends late has more characters than expected. Spaces are ignored,
    because some tokenizers insert them between tokens.
    """
    expected, response = ground_truth.replace(" ", ""), solution_str.replace(" ", "")
    correct = sum(one == other for one, other in zip(expected, response, strict=False))
    return (correct + (len(response) == len(expected))) / (len(expected) + 1)
