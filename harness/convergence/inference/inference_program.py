"""Compute the logits of a tiny gpt-oss model on a device and on the CPU.

    python -m harness.convergence.inference.inference_program --device npu:0 --out logits.json

The model is the implementation in transformers (sliding and full attention with sinks, MoE) with random
weights; weights and prompts depend on a fixed seed. Exit code 0 when the logits were computed, even if they
differ. In-cell module.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cell_program.torch_device import device_facts
from harness.convergence.inference.inference_measurements import (
    InferenceMeasurements,
    UnsupportedInference,
)
from harness.convergence.smoke.smoke_program import versions
from harness.convergence.smoke.training_device import open_device
from harness.convergence.telemetry.series import encode
from harness.errors import HarnessError
from harness.serialisation import to_json

SEED = 0
VOCABULARY, HIDDEN, LAYERS, HEADS, EXPERTS, WINDOW = 32, 64, 2, 4, 4, 4
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 9, 8


def main(argv: Sequence[str] | None = None) -> int:
    """Compare device and CPU, and write the measurements."""
    parser = argparse.ArgumentParser(prog="harness.convergence.inference.inference_program")
    parser.add_argument("--device", required=True, help="npu:0 or cpu")
    parser.add_argument("--out", type=Path, required=True, help="JSON, overwritten")
    options = parser.parse_args(argv)
    try:
        result = compare(options.device)
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    options.out.write_text(json.dumps(to_json(result), allow_nan=False) + "\n", encoding="utf-8")
    return 0


def compare(device: str) -> InferenceMeasurements | UnsupportedInference:
    """Compute logits and greedily decoded tokens for the same prompts on the device and on the CPU."""
    import torch

    open_device(device)
    packages, facts = versions(device), device_facts(device)
    try:
        model = _model()
    except ImportError as error:
        why = f"this transformers has no gpt-oss: {error}"
        return UnsupportedInference(why=why, versions=packages, device=facts)
    generator = torch.Generator().manual_seed(SEED)
    prompts = torch.randint(1, VOCABULARY, (PROMPTS, PROMPT_TOKENS), generator=generator)
    with torch.no_grad():
        cpu_logits = model(prompts).logits
        cpu_tokens = _greedy(model, prompts)
        model.to(device)
        started = time.perf_counter()
        logits = model(prompts.to(device)).logits.cpu()
        seconds = time.perf_counter() - started
        tokens = _greedy(model, prompts.to(device)).cpu()
    return InferenceMeasurements(
        finite=bool(torch.isfinite(logits).all()),
        largest_difference=encode(float((logits - cpu_logits).abs().max())),
        largest_logit=encode(float(cpu_logits.abs().max())),
        same_answers=bool((tokens == cpu_tokens).all()),
        answers=tuple(map(tuple, cpu_tokens.tolist())),
        device_answers=tuple(map(tuple, tokens.tolist())),
        seconds=round(seconds, 4),
        matrix_products=matrix_products(),
        versions=packages,
        device=facts,
    )


def matrix_products() -> int:
    """The number of consecutive matmuls from the embedding to a logit.

    Each layer has 4 for attention (values, scores, weighted sum, output), 1 for the router and 2 for an
    expert; the head adds 1.
    """
    return LAYERS * 7 + 1


def _model() -> Any:
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(SEED)
    config = GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        head_dim=HIDDEN // HEADS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        max_position_embeddings=64,
        layer_types=["sliding_attention", "full_attention"],
        rope_scaling=None,
        pad_token_id=0,
        eos_token_id=0,
    )
    config._attn_implementation = "eager"  # noqa: SLF001 - only this mode computes sinks
    # Otherwise transformers 5 uses different orders of summation on the device and on the CPU.
    config._experts_implementation = "eager"  # noqa: SLF001
    model = GptOssForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        # With transformers' default of 0.02 all logits would be near zero and hardly differ.
        parameter.data.normal_(0.0, 0.15, generator=generator)
    return model


def _greedy(model: Any, prompts: Any) -> Any:
    import torch

    sequence = prompts
    for _ in range(NEW_TOKENS):
        token = model(sequence, use_cache=False).logits[:, -1].argmax(dim=-1, keepdim=True)
        sequence = torch.cat([sequence, token], dim=1)
    return sequence[:, prompts.shape[1] :]


if __name__ == "__main__":
    sys.exit(main())
