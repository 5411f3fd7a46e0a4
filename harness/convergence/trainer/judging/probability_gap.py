"""Measures how much rounding can make token probabilities of rollout and trainer differ.

    python -m harness.convergence.trainer.judging.probability_gap --folder TASK --seed 0 --out limits.json

Rollout and trainer evaluate the same policy with the same weights, so a correct stack differs by rounding
only. The possible rounding error of one side is measured: the policy in float64 is compared with eight
evaluations in which every operation is perturbed by the error that the numerics contract permits for fp32
(`stochastic_arithmetic`). The errors of both sides can have opposite signs, so the limit is twice this error.
The weights are those of the first step. Later weights differ by at most the learning rate per update (Adam),
which in the few steps of the check is a tenth of their spread. In-cell module; computes on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.convergence.trainer import tiny_task
from harness.convergence.trainer.trainer_measurements import GapLimits
from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import FP32
from harness.serialisation import dumps

SAMPLES = 8
"""The number of perturbed evaluations, as in the checks `actor` and `generation`."""
SIDES = 2
PROMPTS = 32


def measure_limits(model: Any, prompts: Sequence[Sequence[int]], seed: int) -> GapLimits:
    """Limits for responses to `prompts` (token ids, all of the same length).

    model: a transformers causal language model in float64 with the weights of both sides. The responses are
    random tokens, like those of an untrained policy. The probabilities of the whole vocabulary are compared;
    their mean is weighted by the probability.
    """
    torch = import_module("torch")
    random = torch.Generator().manual_seed(seed)
    shape = (len(prompts), tiny_task.RESPONSE_TOKENS - 1)
    responses = torch.randint(model.config.vocab_size, shape, generator=random)
    sequences = torch.cat([torch.tensor([list(prompt) for prompt in prompts]), responses], dim=1)

    def probabilities(mode: Any) -> Any:
        with torch.no_grad(), mode:
            logits = model(input_ids=sequences, use_cache=False).logits[:, -tiny_task.RESPONSE_TOKENS :]
            return torch.log_softmax(logits, -1).exp()

    exact = probabilities(stochastic_arithmetic.exact(FP32))
    mean = largest = 0.0
    for sample in range(SAMPLES):
        error = (probabilities(stochastic_arithmetic.perturbed(FP32, sample)) - exact).abs()
        mean = max(mean, float((exact * error).sum(-1).mean()))
        largest = max(largest, float(error.max()))
    # Log-probabilities are passed in fp32 (an error of p |log p| u in the probability), and exp rounds (p u).
    rounding = FP32.ulp * float(torch.special.entr(exact).max() + 1)
    return GapLimits(
        mean=SIDES * (FP32.safety * mean + rounding), largest=SIDES * (FP32.safety * largest + rounding)
    )


def prompts_of(seed: int, number: int) -> list[list[int]]:
    """Token ids of the first prompts of the task."""
    numbers = {word: index for index, word in enumerate(tiny_task.VOCABULARY)}
    return [
        [
            numbers[tiny_task.START],
            *(numbers[digit] for digit in row["prompt"][0]["content"].split()),
            numbers["="],
        ]
        for row in tiny_task.examples(seed, number)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the limits for the model in a task's folder."""
    parser = argparse.ArgumentParser(prog="harness.convergence.trainer.judging.probability_gap")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch, transformers = import_module("torch"), import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.folder / "model", dtype=torch.float32, attn_implementation="eager"
    )
    # Buffers were computed in fp32 on both sides, so they are loaded in fp32 first.
    found = measure_limits(model.to(torch.float64).eval(), prompts_of(options.seed, PROMPTS), options.seed)
    options.out.write_text(dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
