"""Sampling from a language model with noise that depends on nothing but the prompt."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: run inside a cell")

from harness.convergence.trainer.verl_extensions.sampler import Noise, sample  # noqa: E402

WORDS, END = 6, 0


class Successor(torch.nn.Module):
    """A language model whose most likely next token is one more than the last; END follows the largest."""

    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = torch.nn.Parameter(torch.tensor(float(sharpness)))

    def forward(self, input_ids, attention_mask, position_ids, use_cache):
        assert position_ids.shape == input_ids.shape == attention_mask.shape
        following = (input_ids + 1) % WORDS
        return SimpleNamespace(logits=self.sharpness * torch.nn.functional.one_hot(following, WORDS).float())


def test_responses_follow_the_model_and_end():
    found = sample(Successor(50), [[3], [1, 2]], np.zeros((2, 4, WORDS), np.float32), end=END, pad=END)

    assert found.tokens.tolist() == [[4, 5, END, END], [3, 4, 5, END]]
    assert found.log_probs.exp().tolist()[0] == pytest.approx([1, 1, 1, 1])


def test_samples_are_distributed_as_the_model_says():
    noise = Noise(0)
    noise.next_step()
    prompts = [[2]] * 4000
    found = sample(Successor(1.0), prompts, noise.draw(prompts, 1, WORDS), end=END, pad=END)
    share = float((found.tokens == 3).float().mean())
    expected = float(np.e / (np.e + WORDS - 1))

    # Four standard errors of a share of 4000.
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 4000))
    assert found.log_probs.exp().max() == pytest.approx(expected)


def test_noise_depends_on_the_prompt_and_not_on_who_is_beside_it():
    alone, crowd = Noise(7), Noise(7)
    alone.next_step()
    crowd.next_step()
    mine = alone.draw([[1, 2]], 3, WORDS)[0]

    np.testing.assert_array_equal(crowd.draw([[9], [1, 2], [1, 2]], 3, WORDS)[1], mine)


def test_the_same_prompt_gets_new_noise_each_time_and_each_step():
    noise = Noise(7)
    noise.next_step()
    first, second = noise.draw([[1], [1]], 2, WORDS)
    noise.next_step()
    (later,) = noise.draw([[1]], 2, WORDS)

    assert not np.array_equal(first, second)
    assert not np.array_equal(first, later)
