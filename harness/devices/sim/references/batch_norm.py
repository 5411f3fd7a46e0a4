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
    """Mean and 1 / standard deviation (channels,) of all devices, from the sums of the values (`mean`) and of
    their squares (`invstd`) of each device (devices, channels), as `batch_norm_reduce` returns them, and from
    the numbers of values. Writes the running statistics, if there are any."""
    del input
    total = wide(counts).sum()
    together = wide(mean).sum(0) / total
    variance = wide(invstd).sum(0) / total - together.square()
    for running, new in ((running_mean, together), (running_var, variance)):
        if running is not None:
            running.copy_((1 - momentum) * wide(running) + momentum * new)
    return together.to(mean.dtype), torch.rsqrt(variance + eps).to(mean.dtype)
