"""A small transformers model; as a program, this module computes the model's results on the CPU in float64.

    python model_reference.py reference.pt

This is a separate process because importing verl replaces parts of transformers by operators of the NPU.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from roundings import permitted
from torch.nn.attention import SDPBackend, sdpa_kernel


def built(attention: str, device: str, dtype: torch.dtype = torch.float32) -> Any:
    import transformers

    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.float().to(device, dtype)


def log_prob_and_gradients(model: Any) -> list[torch.Tensor]:
    """The sum of the log-probabilities of the input tokens, which are padded on the left, and all gradients."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (3, 17), generator=generator)
    visible = torch.ones_like(tokens)
    visible[1, :5] = 0
    tokens[1, :5] = 0
    tokens, visible = tokens.to(model.device), visible.to(model.device)
    logits = model(input_ids=tokens, attention_mask=visible).logits
    log_prob = torch.log_softmax(logits, -1).gather(-1, tokens[..., None]).squeeze(-1)
    total = (log_prob * visible).sum()
    return [total, *torch.autograd.grad(total, list(model.parameters()))]


def main(out: str) -> None:
    """Save the exact tensors and their fp32 tolerances.

    torch computes the attention by its formula. With transformers' eager attention, two masks add up to minus
    infinity in float64, and fully hidden rows become NaN.
    """
    model = built("sdpa", "cpu", torch.float64)

    def formula() -> list[torch.Tensor]:
        with sdpa_kernel(SDPBackend.MATH):
            return log_prob_and_gradients(model)

    reference = permitted(formula, torch.float32)
    torch.save({"exact": list(reference.exact), "tolerances": list(reference.tolerances)}, out)


if __name__ == "__main__":
    main(sys.argv[1])
