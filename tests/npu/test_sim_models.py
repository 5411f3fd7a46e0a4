"""A transformers model on the simulated device: eager, SDPA and fused attention are right, and padding is hidden."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("torch_npu")
transformers = pytest.importorskip("transformers")
overlay = pytest.importorskip("harness.devices.sim.overlay")

from roundings import Permitted, permitted  # noqa: E402 - needs the guards above

from harness.devices.sim.faultspec import FaultSpec  # noqa: E402

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
NPU = "npu:0"


def built(attention: str, device: str = NPU, dtype: torch.dtype = torch.float32) -> Any:
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
    """Sum of the log-probabilities of the tokens themselves, padded on the left, and all gradients."""
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


@pytest.fixture(scope="module")
def expected() -> Permitted:
    """On the CPU in float64, attention spelled out by torch: in transformers' own two masks add up to minus
    infinity there, and rows that see nothing are not numbers."""
    model = built("sdpa", "cpu", torch.float64)

    def formula() -> list[torch.Tensor]:
        with sdpa_kernel(SDPBackend.MATH):
            return log_prob_and_gradients(model)

    return permitted(formula, torch.float32)


@pytest.mark.parametrize(("attention", "fused"), [("eager", 0), ("sdpa", 0), ("flash_attention_2", 2)])
def test_attention_implementations_are_right(expected: Permitted, attention: str, fused: int) -> None:
    counted = FaultSpec(op="npu_fusion_attention", kind="scale", factor=1.0)
    with SIMULATION.faults.injected(counted) as (forward,):
        found = log_prob_and_gradients(built(attention))
    assert forward.hits == fused
    expected.require(found)


def test_a_wrong_key_gradient_leaves_the_loss_alone(expected: Permitted) -> None:
    wrong = FaultSpec(op="npu_fusion_attention_grad", kind="sign", phase="backward", output=1)
    with SIMULATION.faults.injected(wrong) as (fault,):
        total, *gradients = expected.budgets(log_prob_and_gradients(built("flash_attention_2")))
    assert fault.hits == 2
    assert total <= 1
    assert max(gradients) > 1
