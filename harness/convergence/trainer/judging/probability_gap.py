"""How far rollout and trainer may lie apart in the probability of a token, by rounding alone.

    python -m harness.convergence.trainer.judging.probability_gap --folder TASK --seed 0 --out limits.json

Both compute the same policy from the same weights, so the only honest difference is that of two orders of
rounding. What one of them may be off is measured: the policy in float64 against itself with every operation
off by what the numerics contract for fp32 permits (`stochastic_arithmetic`, 8 times). Two sides may be off
in opposite directions, so their gap is at most twice that. The weights are those of the first step; later
ones move by at most the learning rate per update (Adam), a tenth of their spread in the check's few steps.
In-cell module; computes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.convergence.trainer import tiny_task
from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import FP32

SAMPLES = 8
"""As in the checks `actor` and `generation`."""
SIDES = 2
PROMPTS = 32


@dataclass(frozen=True, kw_only=True)
class ProbabilityGapLimits:
    """Of |p_rollout - p_trainer|: its mean over the tokens of a step, and its largest value."""

    mean: float
    largest: float


def measure_limits(model: Any, prompts: Sequence[Sequence[int]], seed: int) -> ProbabilityGapLimits:
    """Limits for responses to `prompts` (token ids, of one length).

    model: transformers' causal language model in float64, its weights what both sides hold. Contexts are the
    prompts with random answers, as a random policy gives; probabilities are of all words of the vocabulary,
    weighted for the mean by how likely the policy says them.
    """
    torch = import_module("torch")
    words = model.config.vocab_size
    random = torch.Generator().manual_seed(seed)
    answers = torch.randint(words, (len(prompts), tiny_task.RESPONSE_TOKENS - 1), generator=random)
    sequences = torch.cat([torch.tensor([list(prompt) for prompt in prompts]), answers], dim=1)

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
    # A log-probability is handed over in fp32 (p |log p| u of the probability), and exp rounds (p u).
    rounding = FP32.ulp * float(torch.special.entr(exact).max() + 1)
    return ProbabilityGapLimits(
        mean=SIDES * (FP32.safety * mean + rounding), largest=SIDES * (FP32.safety * largest + rounding)
    )


def prompts_of(seed: int, number: int) -> list[list[int]]:
    """Token ids of the task's first prompts."""
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
    """Write the limits of a task's folder."""
    parser = argparse.ArgumentParser(prog="harness.convergence.trainer.judging.probability_gap")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch, transformers = import_module("torch"), import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.folder / "model", dtype=torch.float32, attn_implementation="eager"
    )
    # Buffers stay as they were computed, in fp32, as they do on both sides.
    found = measure_limits(model.to(torch.float64).eval(), prompts_of(options.seed, PROMPTS), options.seed)
    options.out.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
