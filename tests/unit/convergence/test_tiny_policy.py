import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: run inside a cell")

from harness.convergence.smoke import repeat_task  # noqa: E402
from harness.convergence.smoke.tiny_policy import Policy  # noqa: E402


def batch(rows=16):
    asked = repeat_task.prompts(0, 0, number=rows, samples=1)
    noise = torch.from_numpy(repeat_task.gumbel_noise(0, 0, rows).astype(np.float32))
    return torch.from_numpy(asked.digit), torch.from_numpy(asked.count), noise


def test_the_sampler_and_the_trainer_agree_on_log_probabilities():
    policy = Policy(0, 24, "cpu")
    digit, count, noise = batch()
    sample = policy.sample(digit, count, noise)
    logits = policy.logits(digit, count, sample.tokens).detach()
    log_probs = torch.log_softmax(logits, -1).gather(-1, sample.tokens[..., None])[..., 0]

    torch.testing.assert_close(sample.log_probs, log_probs)
    assert sample.tokens.shape == (16, repeat_task.RESPONSE_LENGTH)


def test_the_cell_is_the_gru_that_torch_has():
    policy = Policy(1, 24, "cpu")
    gru = torch.nn.GRU(24, 24, batch_first=True)
    with torch.no_grad():
        for name, weight in (
            ("weight_ih_l0", "input"),
            ("bias_ih_l0", "input_bias"),
            ("weight_hh_l0", "state"),
            ("bias_hh_l0", "state_bias"),
        ):
            getattr(gru, name).copy_(policy.weights[weight])
        digit, count, _ = batch()
        tokens = torch.randint(0, repeat_task.VOCABULARY, (16, repeat_task.RESPONSE_LENGTH))
        started = torch.cat([torch.full((16, 1), repeat_task.START), tokens[:, :-1]], 1)
        first = torch.tanh(policy.weights["digit"][digit] + policy.weights["count"][count])
        states, _ = gru(policy.weights["token"][started], first[None])
        expected = states @ policy.weights["head"].T + policy.weights["head_bias"]

        torch.testing.assert_close(policy.logits(digit, count, tokens), expected)


def test_the_seed_alone_makes_the_weights():
    one, same, other = (Policy(seed, 8, "cpu") for seed in (3, 3, 4))

    assert all(torch.equal(one.weights[name], same.weights[name]) for name in one.weights)
    assert not torch.equal(one.weights["head"], other.weights["head"])


def test_a_copy_does_not_follow():
    policy = Policy(0, 8, "cpu")
    copy = policy.copy()
    with torch.no_grad():
        policy.weights["head"] += 1

    assert not torch.equal(policy.weights["head"], copy.weights["head"])
