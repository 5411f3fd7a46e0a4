"""The tiny task that verl's trainer is run on."""

from __future__ import annotations

import itertools
import json
import struct

import numpy as np
import pytest

from harness.convergence.trainer import tiny_task
from harness.convergence.trainer.verl_extensions.reward import compute_score


def test_no_policy_that_ignores_its_prompt_beats_the_blind_bound():
    prompts = [" ".join(pair) for pair in itertools.product(*tiny_task.PLACES)]
    words = ["", *tiny_task.DIGITS, "=", tiny_task.LINE_BREAK]
    best = max(
        sum(compute_score("", "".join(answer), prompt) for prompt in prompts) / len(prompts)
        for answer in itertools.product(words, repeat=tiny_task.RESPONSE_TOKENS)
    )

    assert best == pytest.approx(tiny_task.best_blind_reward())


@pytest.mark.parametrize(
    ("answer", "score"),
    [("3 7", 1.0), ("37", 1.0), ("3 4", 2 / 3), ("7 3", 1 / 3), ("3", 1 / 3), ("", 0.0), ("3 7 7", 2 / 3)],
)
def test_reward_counts_right_digits_and_the_stop(answer, score):
    assert compute_score("repeat-digits", answer, "3 7") == pytest.approx(score)


def test_a_line_break_after_the_answer_is_no_stop():
    assert compute_score("repeat-digits", "37\n", "3 7") == pytest.approx(2 / 3)


def test_the_tokenizer_has_as_many_tokens_as_the_model():
    vocabulary = tiny_task.tokenizer()["model"]["vocab"]

    assert len(vocabulary) == tiny_task.model_config()["vocab_size"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))


def test_weights_are_the_seeds_and_readable_as_safetensors():
    content = tiny_task.safetensors(tiny_task.weights(3))
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    entry = header["model.layers.1.self_attn.k_proj.weight"]
    start, end = (8 + length + offset for offset in entry["data_offsets"])

    found = np.frombuffer(content[start:end], "<f4").reshape(entry["shape"])

    np.testing.assert_array_equal(found, tiny_task.weights(3)["model.layers.1.self_attn.k_proj.weight"])
    assert content == tiny_task.safetensors(tiny_task.weights(3))
    assert content != tiny_task.safetensors(tiny_task.weights(4))


def test_prompts_are_the_seeds():
    assert tiny_task.examples(1, 5) == tiny_task.examples(1, 9)[:5]
    assert tiny_task.examples(1, 5) != tiny_task.examples(2, 5)
