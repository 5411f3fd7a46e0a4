"""Features of regions of an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import wide


def npu_roi_align(
    self: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> torch.Tensor:
    """Means of bilinear samples in each bin of the regions (image, x1, y1, x2, y2): (n, channels, height,
    width). roi_end_mode 0: regions end at their corners, 1: one pixel later."""
    regions = _ending(rois, roi_end_mode)
    return _pooled(wide(self), regions, spatial_scale, (pooled_height, pooled_width), sample_num).to(
        self.dtype
    )


def npu_roi_alignbk(
    self: torch.Tensor,
    rois: torch.Tensor,
    xdiff_shape: Sequence[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None = None,
) -> torch.Tensor:
    """The gradient of `npu_roi_align` for the image. roi_end_mode is 1 if it is left out."""
    regions = _ending(rois, 1 if roi_end_mode is None else roi_end_mode)
    with torch.enable_grad():
        image = torch.zeros(list(xdiff_shape), requires_grad=True)
        found = _pooled(image, regions, spatial_scale, (pooled_height, pooled_width), sample_num)
        (gradient,) = torch.autograd.grad(found, image, wide(self))
    return gradient.to(self.dtype)


def _ending(rois: torch.Tensor, mode: int) -> torch.Tensor:
    if mode not in {0, 1}:
        raise NotImplementedError(f"npu_roi_align with roi_end_mode {mode}")
    return wide(rois) + torch.tensor([0, 0, 0, mode, mode])


def _pooled(
    images: torch.Tensor, rois: torch.Tensor, scale: float, bins: tuple[int, int], samples: int
) -> torch.Tensor:
    found = []
    for region in rois:
        image, start, end = images[int(region[0])], region[1:3] * scale, region[3:5] * scale
        size = (end - start).clamp(min=1)
        places = []
        # y before x, as the axes of the image are.
        for axis, count in ((1, bins[0]), (0, bins[1])):
            each = samples or max(int(torch.ceil(size[axis] / count)), 1)
            steps = (torch.arange(count * each) + 0.5) / each
            places.append((start[axis] + steps * size[axis] / count, each))
        (y, rows), (x, columns) = places
        values = _bilinear(image, y, x)
        found.append(values.unflatten(1, (bins[0], rows)).unflatten(3, (bins[1], columns)).mean((2, 4)))
    return torch.stack(found)


def _bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Values (channels, len(y), len(x)) between pixels; beyond a pixel outside of the image they are zero."""
    weights = []
    for place, length in ((y, image.shape[1]), (x, image.shape[2])):
        inside = place.clamp(0, length - 1)
        low = inside.floor().long().clamp(max=length - 1)
        high = (low + 1).clamp(max=length - 1)
        share = inside - low
        matrix = torch.zeros(len(place), length)
        numbers = torch.arange(len(place))
        matrix.index_put_((numbers, low), 1 - share, accumulate=True)
        matrix.index_put_((numbers, high), share, accumulate=True)
        weights.append(matrix * ((place >= -1) & (place <= length))[:, None])
    return torch.einsum("yh,chw,xw->cyx", weights[0], image, weights[1])
