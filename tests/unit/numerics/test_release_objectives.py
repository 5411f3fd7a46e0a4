from __future__ import annotations

import pytest

from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.release_objectives import parse_release, release_objective
from harness.numerics.loss.verl_losses_source import InstalledLosses

COUNTS_EMPTY_ROWS = "ccd7d934f91be98bb3732c78bd1870fa39c399ad"
"""A commit between 0.6.1 and 0.7.0 whose agg_loss counts sequences without tokens, as neither of them does."""

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
        ("0.5.0", {"sum-norm-without-sequences", "empty-sequences-counted"}),
        ("0.6.0", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences", "empty-sequences-counted"}),
        (
            "0.6.1",
            {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences", "weights-count-empty-sequences"},
        ),
        ("0.7.0", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences"}),
        ("0.7.1", {"gspo-ignores-loss-agg-mode"}),
        ("0.9.0", {"gspo-ignores-loss-agg-mode"}),
        ("0.9.1", set()),
        ("main", set()),
        ("0.7.0.dev0", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences"}),
        (f"0.7.0.dev0@{'f' * 40}", {"gspo-ignores-loss-agg-mode", "sum-norm-without-sequences"}),
        (
            f"0.7.0.dev0@{COUNTS_EMPTY_ROWS}",
            {"gspo-ignores-loss-agg-mode", "empty-sequences-counted", "dp-size-divides"},
        ),
    ],
)
def test_what_each_release_does_differently(version, names):
    assert {entry.id for entry in release_objective(version).differences} == names


def test_an_unknown_commit_is_what_its_source_says():
    source = InstalledLosses(capabilities=("vanilla", "kl:k3+"), differences=("dp-size-divides",))
    unknown = release_objective(f"0.7.0.dev0@{'f' * 40}", source)
    assert not unknown.known
    assert [entry.id for entry in unknown.differences] == ["dp-size-divides"]
    # What both its neighbours have is expected, also if the source no longer has it.
    assert {"kl:k3+", "gspo", "rollout_is_weights"} <= unknown.capabilities
    for known in ("0.7.0", f"0.7.0.dev0@{COUNTS_EMPTY_ROWS}"):
        assert release_objective(known, source) == release_objective(known)


def test_a_profile_changes_only_the_cases_it_concerns():
    profile = release_objective("0.6.1")
    same, none = profile.released_case(CASES["policy/grpo-near/token-mean"])
    assert same is CASES["policy/grpo-near/token-mean"]
    assert none == ()
    changed, differences = profile.released_case(CASES["policy/gspo-near/token-mean"])
    assert changed.settings["loss_agg_mode"] == "seq-mean-token-mean"
    assert [entry.id for entry in differences] == ["gspo-ignores-loss-agg-mode"]
    assert profile.released_case(CASES["policy/gspo-near/seq-mean-token-mean"])[1] == ()
    counted, _ = profile.released_case(CASES["weights/normalised/sequences-without-tokens"])
    assert counted.settings["empty_weights"] == "counted"
    assert profile.released_case(CASES["weights/normalised/sequence"])[1] == ()
    norm, _ = profile.released_case(CASES["policy/gspo-near/seq-mean-token-sum-norm"])
    assert norm.settings["loss_agg_mode"] == "seq-mean-token-mean"
    assert "sum_norm" not in norm.settings


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        ("0.5.0", "vanilla", "gspo"),
        ("0.6.1", "gspo", "global_denominators"),
        ("0.7.1", "global_denominators", "token-sum"),
        ("0.9.1", "token-sum", ""),
        # An unknown commit has what the release before and the release after it have.
        ("0.7.0.dev0", "rollout_is_weights", "global_denominators"),
        # A release that is not known yet has what the newest known one has.
        ("0.99.0", "weights:icepop", ""),
        ("main", "weights:icepop", ""),
        ("0.4.0", "", "vanilla"),
    ],
)
def test_what_each_release_has(version, has, lacks):
    capabilities = release_objective(version).capabilities
    assert not has or has in capabilities
    assert lacks not in capabilities
