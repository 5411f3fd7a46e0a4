"""A transformers model on the simulated device: eager, SDPA and fused attention agree, and padding is hidden."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_npu")
transformers = pytest.importorskip("transformers")
overlay = pytest.importorskip("harness.devices.sim.overlay")

from harness.devices.sim.faultspec import FaultSpec  # noqa: E402 - needs the guard above

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
NPU = "npu:0"


def log_prob_and_gradients(attention: str) -> tuple[float, list[torch.Tensor]]:
    """Sum of the log-probabilities of the tokens themselves, padded on the left, and all gradients."""
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
    model = (
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().to(NPU)
    )
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (3, 17), generator=generator)
    visible = torch.ones_like(tokens)
    visible[1, :5] = 0
    tokens[1, :5] = 0
    tokens, visible = tokens.to(NPU), visible.to(NPU)
    logits = model(input_ids=tokens, attention_mask=visible).logits.float()
    log_prob = torch.log_softmax(logits, -1).gather(-1, tokens[..., None]).squeeze(-1)
    total = (log_prob * visible).sum()
    total.backward()
    return total.item(), [parameter.grad.cpu() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def eager() -> tuple[float, list[torch.Tensor]]:
    return log_prob_and_gradients("eager")


@pytest.mark.parametrize(("attention", "fused"), [("sdpa", 0), ("flash_attention_2", 2)])
def test_attention_implementations_agree(
    eager: tuple[float, list[torch.Tensor]], attention: str, fused: int
) -> None:
    counted = FaultSpec(op="npu_fusion_attention", kind="scale", factor=1.0)
    with SIMULATION.faults.injected(counted) as (forward,):
        total, gradients = log_prob_and_gradients(attention)
    assert forward.hits == fused
    assert total == pytest.approx(eager[0], rel=1e-6)
    for actual, expected in zip(gradients, eager[1], strict=True):
        assert float((actual - expected).norm() / (expected.norm() + 1e-6)) < 1e-4


def test_a_wrong_key_gradient_leaves_the_loss_alone(eager: tuple[float, list[torch.Tensor]]) -> None:
    wrong = FaultSpec(op="npu_fusion_attention_grad", kind="sign", phase="backward", output=1)
    with SIMULATION.faults.injected(wrong) as (fault,):
        total, gradients = log_prob_and_gradients("flash_attention_2")
    assert fault.hits == 2
    assert total == pytest.approx(eager[0], rel=1e-6)
    worst = max(
        float((actual - expected).norm() / (expected.norm() + 1e-6))
        for actual, expected in zip(gradients, eager[1], strict=True)
    )
    assert worst > 1e-2
