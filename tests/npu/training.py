"""Three training steps of a small language model: with torch on a device, and as formulas in float64.

Every operation of the formulas has an error bound (`stochastic_arithmetic`). The tolerances of losses, gradients and
parameters are therefore measured, not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from roundings import FP64, Permitted, tolerances
from torch import nn
from torch.nn import functional

from harness.numerics.actor.actor_reference import SAMPLES
from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import BF16_AUTOCAST, FP32, Contract

STEPS, RATE, DECAY, BETAS = 3, 1e-2, 1e-2, (0.9, 0.999)
# Large, because otherwise Adam turns rounding errors of tiny gradients into whole steps.
EPSILON = 1e-2

# As in BF16_AUTOCAST, half an ulp is the rounding of the result. The rest are fp32 errors of 2^-13 ulps of fp16 each.
FP16_AUTOCAST = replace(
    BF16_AUTOCAST,
    name="fp16-autocast",
    io="fp16",
    compute="fp16",
    exp_ulp=0.5 + 3 * 2.0**-13,
    exp_ulp_per_unit=2.0**-13,
    function_ulp=0.5 + 3 * 2.0**-13,
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a training computes. dtype: of the parameters. amp: dtype of autocast. scaled: with a GradScaler."""

    dtype: torch.dtype = torch.float32
    amp: torch.dtype | None = None
    adam: bool = True
    scaled: bool = False

    @property
    def contract(self) -> Contract:
        """The contract of the model's operators."""
        return _CONTRACTS[self.amp or self.dtype]

    @property
    def optimizer(self) -> Contract:
        """The contract of the optimizer, to which autocast does not apply."""
        return _CONTRACTS[self.dtype]


_CONTRACTS = {
    torch.float64: FP64,
    torch.float32: FP32,
    torch.bfloat16: BF16_AUTOCAST,
    torch.float16: FP16_AUTOCAST,
}

KINDS = {
    "fp32": Kind(),
    "sgd": Kind(adam=False),
    "fp64": Kind(dtype=torch.float64),
    "bf16": Kind(dtype=torch.bfloat16),
    "amp-bf16": Kind(amp=torch.bfloat16),
    "amp-fp16": Kind(amp=torch.float16, scaled=True),
    "fp16": Kind(dtype=torch.float16, adam=False),
}


class Model(nn.Module):
    """A small language model with the usual operators."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.query_key_value = nn.Linear(32, 96)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.normalised(self.embedding(tokens))
        q, k, v = self.query_key_value(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        attended = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v
        x = x + attended.transpose(1, 2).flatten(2)
        return self.head(x + self.down(functional.silu(self.up(x))))

    def normalised(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self(tokens)[:, :-1].flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.to(wide), tokens[:, 1:].flatten())


class Formulas(Model):
    """The same model. Operators that consist of several operations are replaced by their formulas."""

    def normalised(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        log_prob = torch.log_softmax(self(tokens)[:, :-1].flatten(0, 1), -1)
        return -log_prob.gather(-1, tokens[:, 1:].flatten()[:, None]).mean()


def drawn(device: str) -> torch.Tensor:
    return torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(3)).to(device)


def train(device: str, kind: Kind = KINDS["fp32"], *, steps: int = STEPS) -> list[torch.Tensor]:
    """The loss of each step, the gradients of the last step and the parameters, on the host."""
    torch.manual_seed(0)
    model, tokens = Model().to(device, kind.dtype), drawn(device)
    # foreach is set, because releases of torch_npu differ in its default. They refuse it in float64.
    optimiser = (
        torch.optim.AdamW(
            model.parameters(),
            lr=RATE,
            betas=BETAS,
            eps=EPSILON,
            weight_decay=DECAY,
            foreach=kind.dtype is not torch.float64,
        )
        if kind.adam
        else torch.optim.SGD(model.parameters(), lr=RATE)
    )
    host = device.partition(":")[0]
    scaler = torch.amp.GradScaler(host, enabled=kind.scaled)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        with torch.autocast(host, dtype=kind.amp, enabled=kind.amp is not None):
            loss = model.loss(tokens)
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        losses.append(loss.detach().cpu())
    gradients = [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]
    return losses + gradients + [parameter.detach().cpu() for parameter in model.parameters()]


def formula(kind: Kind, mode: Any = None) -> list[torch.Tensor]:
    """The result of `train` in float64. mode: a mode of `stochastic_arithmetic` that perturbs every operation."""
    torch.manual_seed(0)
    # The parameters are rounded to the dtype first, because this rounding is not an error of the device.
    model, tokens = Formulas().to(kind.dtype).double(), drawn("cpu")
    parameters = list(model.parameters())
    moments = [
        (torch.zeros_like(parameter.data), torch.zeros_like(parameter.data)) for parameter in parameters
    ]
    losses, gradients = [], []
    with mode or nullcontext():
        for step in range(1, STEPS + 1):
            _set_contract(mode, kind.contract)
            loss = model.loss(tokens)
            unclipped = torch.autograd.grad(loss, parameters)
            _set_contract(mode, kind.optimizer)
            norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in unclipped]).norm()
            factor = (1.0 / (norm + 1e-6)).clamp(max=1.0)
            gradients = [gradient * factor for gradient in unclipped]
            losses.append(loss.detach())
            with torch.no_grad():
                for parameter, gradient, own in zip(parameters, gradients, moments, strict=True):
                    _adam(parameter, gradient, own, step) if kind.adam else parameter.sub_(RATE * gradient)
    return [*losses, *gradients, *(parameter.detach() for parameter in parameters)]


def _set_contract(mode: Any, contract: Contract) -> None:
    if mode is not None:
        mode.contract = contract


def _adam(
    parameter: torch.Tensor, gradient: torch.Tensor, moments: Sequence[torch.Tensor], step: int
) -> None:
    """Loshchilov and Hutter 2019, algorithm 2."""
    (first, second), (fast, slow) = moments, BETAS
    first.mul_(fast).add_((1 - fast) * gradient)
    second.mul_(slow).add_((1 - slow) * gradient * gradient)
    root = second.sqrt() / math.sqrt(1 - slow**step) + EPSILON
    parameter.mul_(1 - RATE * DECAY).sub_(RATE / (1 - fast**step) * (first / root))


def permitted_training(kind: Kind) -> Permitted:
    """The exact results and tolerances of a training. AssertionError if an operation has no error bound."""
    exact, runs = formula(kind), []
    for seed in range(SAMPLES):
        mode = stochastic_arithmetic.perturbed(kind.contract, seed, casts=kind.amp is not None)
        runs.append(formula(kind, mode))
        assert not mode.unbounded, mode.unbounded
    return Permitted(
        dtype=kind.dtype, exact=exact, tolerances=tolerances(exact, runs, kind.contract, kind.dtype)
    )
