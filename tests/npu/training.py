"""Three steps of training of a small language model: on a device by torch, and as formulas in float64.

Every operation of the formulas has an error bound of its own (`stochastic`), so how far roundings may take a loss, a
gradient or a parameter is measured and not chosen.
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
# A large one: without it Adam turns rounding errors of tiny gradients into whole steps.
EPSILON = 1e-2

# As BF16_AUTOCAST: half an ulp is the result's one rounding, the rest fp32's error, 2^-13 ulps of fp16 each.
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
    """How a training computes. dtype: of parameters. amp: what autocast computes in. scaled: by a GradScaler."""

    dtype: torch.dtype = torch.float32
    amp: torch.dtype | None = None
    adam: bool = True
    scaled: bool = False

    @property
    def contract(self) -> Contract:
        """What the model's operators promise."""
        return _PROMISED[self.amp or self.dtype]

    @property
    def optimizer(self) -> Contract:
        """What the optimizer promises, which autocast does not reach."""
        return _PROMISED[self.dtype]


_PROMISED = {
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
    """A language model small enough to train in a test, with the operators one is made of."""

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
    """The same, where torch would call one operator for a formula that has several operations."""

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
    """Loss of every step, then gradients of the last, then parameters, all on the host."""
    torch.manual_seed(0)
    model, tokens = Model().to(device, kind.dtype), drawn(device)
    # Releases of torch_npu differ in whether they choose the foreach path by themselves.
    optimiser = (
        torch.optim.AdamW(
            model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, foreach=True
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
    """What `train` gives, in float64 and with every operation as far off as the mode (`stochastic`) takes it."""
    torch.manual_seed(0)
    # Rounded before it is widened: what the dtype cannot hold is no error of a device.
    model, tokens = Formulas().to(kind.dtype).double(), drawn("cpu")
    parameters = list(model.parameters())
    moments = [(torch.zeros_like(one.data), torch.zeros_like(one.data)) for one in parameters]
    losses, gradients = [], []
    with mode or nullcontext():
        for step in range(1, STEPS + 1):
            _promise(mode, kind.contract)
            loss = model.loss(tokens)
            found = torch.autograd.grad(loss, parameters)
            _promise(mode, kind.optimizer)
            norm = torch.stack([torch.linalg.vector_norm(one) for one in found]).norm()
            factor = (1.0 / (norm + 1e-6)).clamp(max=1.0)
            gradients = [one * factor for one in found]
            losses.append(loss.detach())
            with torch.no_grad():
                for parameter, gradient, own in zip(parameters, gradients, moments, strict=True):
                    _adam(parameter, gradient, own, step) if kind.adam else parameter.sub_(RATE * gradient)
    return [*losses, *gradients, *(parameter.detach() for parameter in parameters)]


def _promise(mode: Any, contract: Contract) -> None:
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
    """What a device that keeps the kind's contracts may give.

    AssertionError where an operation of the formulas has no bound.
    """
    exact, runs = formula(kind), []
    for seed in range(SAMPLES):
        mode = stochastic_arithmetic.perturbed(kind.contract, seed, casts=kind.amp is not None)
        runs.append(formula(kind, mode))
        assert not mode.unbounded, mode.unbounded
    return Permitted(
        dtype=kind.dtype, exact=exact, tolerances=tolerances(exact, runs, kind.contract, kind.dtype)
    )
