"""Statistics of batch norm that several devices put together."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import wide


def batch_norm_reduce(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
    """The sums of the values and of their squares in each channel, in float32."""
    del eps
    values = wide(input)
    others = [axis for axis in range(values.dim()) if axis != 1]
    return values.sum(others), values.square().sum(others)


def batch_norm_gather_stats_update(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1 / standard deviation (channels,) of all devices, from those of each (devices, channels) and
    their numbers of values. Writes the running statistics, if there are any."""
    del input
    weights = wide(counts)[:, None] / wide(counts).sum()
    together = (weights * wide(mean)).sum(0)
    variances = wide(invstd).pow(-2) - eps
    variance = (weights * (variances + (wide(mean) - together).square())).sum(0)
    total = float(counts.sum())
    for running, new in ((running_mean, together), (running_var, variance * total / (total - 1))):
        if running is not None:
            running.copy_((1 - momentum) * wide(running) + momentum * new)
    return together, torch.rsqrt(variance + eps)
