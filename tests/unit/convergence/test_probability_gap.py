"""What rounding permits between rollout and trainer, on the task's own model. Needs torch: runs in a cell."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from harness.convergence.trainer import tiny_task  # noqa: E402
from harness.convergence.trainer.judging import probability_gap  # noqa: E402


def policy():
    config = transformers.AutoConfig.for_model(**tiny_task.model_config())
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    weights = {name: torch.from_numpy(values) for name, values in tiny_task.weights(0).items()}
    assert model.load_state_dict(weights, strict=False).unexpected_keys == []
    return model.eval()


def probabilities(model, prompts):
    with torch.no_grad():
        return model(torch.tensor(prompts)).logits.double().log_softmax(-1).exp()


def test_fp32_stays_within_the_limits_and_bf16_does_not():
    prompts = probability_gap.prompts_of(0, 8)
    exact = probabilities(policy().to(torch.float64), prompts)
    found = probability_gap.measure_limits(policy().to(torch.float64), prompts, 0)

    assert 0 < found.mean < found.largest < 1e-4
    assert float((probabilities(policy(), prompts) - exact).abs().max()) < found.largest
    assert float((probabilities(policy().bfloat16(), prompts) - exact).abs().max()) > 10 * found.largest


def test_the_prompts_are_those_of_the_task():
    assert [len(prompt) for prompt in probability_gap.prompts_of(0, 3)] == [tiny_task.PROMPT_TOKENS] * 3
    words = [
        [tiny_task.VOCABULARY[number] for number in prompt] for prompt in probability_gap.prompts_of(0, 2)
    ]
    assert [row["prompt"][0]["content"].split() for row in tiny_task.examples(0, 2)] == [
        row[1:3] for row in words
    ]
