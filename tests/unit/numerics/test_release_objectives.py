from __future__ import annotations

import pytest

from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.release_objectives import parse_release, release_objective

CASES = {case.name: case for case in battery()}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.6.1", (0, 6, 1)),
        ("v0.9", (0, 9, 0)),
        ("0.7.0.dev0", (0, 7, 0)),
        ("0.9.1+npu", (0, 9, 1)),
        ("main", None),
        ("", None),
    ],
)
def test_versions(version, expected):
    assert parse_release(version) == expected


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.5.0", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences", "empty-sequences-counted"}),
        ("0.6.0", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences", "empty-sequences-counted"}),
        ("0.6.1", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences"}),
        ("0.7.0", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences"}),
        ("0.7.1", {"gspo-ignores-loss-agg-mode"}),
        ("0.9.0", {"gspo-ignores-loss-agg-mode"}),
        ("0.9.1", set()),
        ("main", set()),
    ],
)
def test_what_each_release_does_differently(version, names):
    assert {entry.id for entry in release_objective(version).differences} == names


def test_a_profile_changes_only_the_cases_it_concerns():
    profile = release_objective("0.6.1")
    same, none = profile.released_case(CASES["policy/grpo-near/token-mean"])
    assert same is CASES["policy/grpo-near/token-mean"]
    assert none == ()
    changed, differences = profile.released_case(CASES["policy/gspo-near/token-mean"])
    assert changed.settings["loss_agg_mode"] == "seq-mean-token-mean"
    assert [entry.id for entry in differences] == ["gspo-ignores-loss-agg-mode"]
    assert profile.released_case(CASES["policy/gspo-near/seq-mean-token-mean"])[1] == ()
    norm, _ = profile.released_case(CASES["policy/gspo-near/seq-mean-token-sum-norm"])
    assert norm.settings["loss_agg_mode"] == "seq-mean-token-mean"
    assert "sum_norm" not in norm.settings
