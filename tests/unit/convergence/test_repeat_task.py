import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.convergence.smoke import repeat_task


def mask_of(tokens):
    ended = np.cumsum(tokens == repeat_task.END, axis=1) - (tokens == repeat_task.END)
    return (ended == 0).astype(np.float32)


def answer(digit, count, length=repeat_task.RESPONSE_LENGTH):
    return [digit] * count + [repeat_task.END] * (length - count)


def one(digit, count):
    return repeat_task.Prompts(digit=np.array([digit]), count=np.array([count]), group=np.array([0]))


@given(digit=st.integers(0, repeat_task.DIGITS - 1), count=st.integers(1, repeat_task.MAX_COUNT))
def test_the_right_answer_and_only_it_earns_everything(digit, count):
    tokens = np.array([answer(digit, count)])
    reward, exact = repeat_task.rewards(one(digit, count), tokens, mask_of(tokens))
    assert reward[0] == pytest.approx(1.0)
    assert exact[0] == 1

    never_stops = np.full((1, repeat_task.RESPONSE_LENGTH), digit)
    reward, exact = repeat_task.rewards(one(digit, count), never_stops, mask_of(never_stops))
    assert reward[0] < 0.8
    assert exact[0] == 0


def test_tokens_after_the_end_earn_nothing():
    tokens = np.array([[repeat_task.END, 3, 3, repeat_task.END, 0, 0, 0]])
    reward, _ = repeat_task.rewards(one(3, 2), tokens, mask_of(tokens))

    assert reward[0] < 0.2


@given(
    st.lists(
        st.lists(
            st.integers(0, repeat_task.VOCABULARY - 1),
            min_size=repeat_task.RESPONSE_LENGTH,
            max_size=repeat_task.RESPONSE_LENGTH,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_rewards_lie_between_zero_and_one(rows):
    tokens = np.array(rows)
    asked = repeat_task.prompts(1, 2, number=len(rows), samples=1)
    reward, exact = repeat_task.rewards(asked, tokens, mask_of(tokens))

    assert ((reward >= 0) & (reward <= 1 + 1e-12)).all()
    assert ((exact == 1) == (reward > 0.999)).all()


def test_prompts_and_noise_depend_on_seed_and_step_alone():
    again = [repeat_task.prompts(5, 7, number=4, samples=2) for _ in range(2)]
    assert np.array_equal(again[0].digit, again[1].digit)
    assert np.array_equal(again[0].group, [0, 0, 1, 1, 2, 2, 3, 3])
    assert (again[0].count >= 1).all()
    assert (again[0].count <= repeat_task.MAX_COUNT).all()

    noise = repeat_task.gumbel_noise(5, 7, 3)
    assert np.array_equal(noise, repeat_task.gumbel_noise(5, 7, 3))
    assert not np.array_equal(noise, repeat_task.gumbel_noise(5, 8, 3))
    assert np.isfinite(repeat_task.gumbel_noise(0, 0, 4000)).all()


def test_gumbel_noise_samples_the_softmax():
    logits = np.array([1.0, 0.0, -1.0, 0.5, 0.0, 2.0, -2.0])
    noise = repeat_task.gumbel_noise(3, 0, 3000)
    drawn = np.bincount((logits + noise).argmax(axis=-1).ravel(), minlength=len(logits)) / noise[..., 0].size

    assert drawn == pytest.approx(np.exp(logits) / np.exp(logits).sum(), abs=0.01)
