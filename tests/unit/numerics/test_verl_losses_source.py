from __future__ import annotations

import pytest

from harness.numerics.loss.verl_losses_source import (
    CORE_ALGOS,
    ENGINE_WORKERS,
    LEGACY_ACTOR,
    ROLLOUT_CORRECTION,
    installed_losses,
    read_losses,
)

NEW = {
    CORE_ALGOS: '''
@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(old_log_prob, log_prob, rollout_is_weights=None):
    return agg_loss(loss_mat=log_prob, loss_agg_mode=loss_agg_mode)

@register_policy_loss("gspo")
def compute_policy_loss_gspo(old_log_prob, log_prob, rollout_is_weights=None):
    return agg_loss(loss_mat=log_prob, loss_agg_mode=loss_agg_mode)

def agg_loss(loss_mat, loss_mask, loss_agg_mode, batch_num_tokens=None):
    """Knows token-sum in words only."""
    if loss_agg_mode == "token-sum":
        return 1
    seq_mask = (torch.sum(loss_mask, dim=-1) > 0).float()
    return masked_sum(seq_losses, seq_mask) / global_batch_size

def kl_penalty(logprob, ref_logprob, kl_penalty):
    return kl_penalty[:-1] if kl_penalty.endswith("+") else kl_penalty
''',
    LEGACY_ACTOR: "on_policy = len(mini_batches) == 1\n",
    ENGINE_WORKERS: "class TrainingWorker:\n    def train_mini_batch(self, data): ...\n",
    ROLLOUT_CORRECTION: """
def compute_rollout_correction_weights(response_mask, rollout_is_batch_normalize=False):
    seq_mask = response_mask.sum(dim=-1) > 0
def compute_rollout_rejection_mask(rollout_rs_threshold_lower=None): ...
def compute_rollout_correction_and_rejection_mask(rollout_token_veto_threshold=None): ...
def _parse_rollout_rs_thresholds(): ...
def _parse_rollout_is_threshold(): ...
""",
}


def read(*replaced: tuple[str, str]):
    files = dict(NEW)
    for old, new in replaced:
        assert any(old in text for text in files.values())
        files = {path: text.replace(old, new) for path, text in files.items()}
    return read_losses(files.get)


def test_a_release_that_has_everything():
    losses = read()
    assert losses.capabilities == {
        *("vanilla", "gspo", "rollout_is_weights", "global_denominators", "token-sum"),
        *("kl:k3+", "weights", "weights:icepop", "weights:normalised", "on_policy"),
        *("rejection:levels", "rejection:veto", "rejection:estimators"),
        "mini_batches",
    }
    assert losses.differences == set()


def test_the_installed_package_is_read_from_its_folder(tmp_path):
    for path, text in NEW.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    found, expected = installed_losses(tmp_path), read()
    assert found.capabilities == tuple(sorted(expected.capabilities))
    assert found.differences == tuple(sorted(expected.differences))


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ('@register_policy_loss("gspo")', "", "gspo"),
        ('@register_policy_loss("gspo")', '@register_policy_loss("gpso")', "gspo"),
        ('"token-sum"', '"token-mean"', "token-sum"),
        (", batch_num_tokens=None", ", **ignored", "global_denominators"),
        ("kl_penalty[:-1]", "kl_penalty", "kl:k3+"),
        (", rollout_is_weights=None):", ", **kwargs):", "rollout_is_weights"),
        ("def _parse_rollout_is_threshold", "def _parse", "weights:icepop"),
        ("rollout_is_batch_normalize", "normalize", "weights:normalised"),
        ("rollout_rs_threshold_lower", "lower", "rejection:levels"),
        ("rollout_token_veto_threshold", "veto", "rejection:veto"),
        ("def _parse_rollout_rs", "def _parse_rs", "rejection:estimators"),
        ("on_policy = ", "off_policy = ", "on_policy"),
        ("train_mini_batch", "train_batch", "mini_batches"),
    ],
)
def test_what_is_not_in_the_source_is_not_a_capability(old, new, lost):
    assert read().capabilities - read((old, new)).capabilities == {lost}


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("loss_agg_mode=loss_agg_mode", 'loss_agg_mode="seq-mean-token-mean"', "gspo-ignores-loss-agg-mode"),
        (" > 0).float()", ").float()", "empty-sequences-counted"),
        ("response_mask.sum(dim=-1) > 0", "response_mask.sum(dim=-1)", "weights-count-empty-sequences"),
        (
            "masked_sum(seq_losses, seq_mask) / global_batch_size",
            "torch.sum(seq_losses) / loss_mask.shape[-1]",
            "sum-norm-without-sequences",
        ),
        ("    seq_mask = (", "    rows = global_batch_size * dp_size\n    seq_mask = (", "dp-size-divides"),
    ],
)
def test_each_difference_is_seen_in_the_source(old, new, difference):
    assert read((old, new)).differences == {difference}


def test_without_files_there_is_nothing():
    assert read_losses(lambda _path: None).capabilities == set()
