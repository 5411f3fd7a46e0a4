"""Boxes with sides parallel to the axes: how much two of them overlap, and how one is written by another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from harness.devices.sim.references.precision import wide

#: The kernels add this to the width and the height of a box.
_IOU_MARGIN = 0.01
_EPSILON = 1e-9

Overlap = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def npu_iou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Intersection over union of (gtboxes, bboxes), corners as rows. mode 1: over the area of gtboxes."""
    first, second = wide(gtboxes)[:, None], wide(bboxes)[None]
    sides = (torch.minimum(first, second)[..., 2:] - torch.maximum(first, second)[..., :2]).clamp(0)
    inter = sides.prod(-1)
    areas = [(one[..., 2:] - one[..., :2] + _IOU_MARGIN).prod(-1) for one in (first, second)]
    return (inter / (areas[0] if mode else areas[0] + areas[1] - inter)).to(bboxes.dtype)


npu_ptiou = npu_iou


def _corners(boxes: torch.Tensor, trans: bool) -> tuple[torch.Tensor, ...]:
    """x1, y1, x2, y2 of boxes (4, n). trans: they are written as centre and size."""
    a, b, c, d = wide(boxes)
    return (a - c / 2, b - d / 2, a + c / 2, b + d / 2) if trans else (a, b, c, d)


def _paired(
    first: torch.Tensor, second: torch.Tensor, trans: bool, is_cross: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The corners (4, ...) of each box with its partner, or of all pairs."""
    one, other = (torch.stack(_corners(boxes, trans)) for boxes in (first, second))
    return (one[:, None, :], other[:, :, None]) if is_cross else (one, other)


def _intersection(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    sides = torch.minimum(one[2:], other[2:]) - torch.maximum(one[:2], other[:2])
    return sides.clamp(0).prod(0)


def _enclosing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Width and height of the smallest box around both."""
    return torch.maximum(one[2:], other[2:]) - torch.minimum(one[:2], other[:2])


def _giou(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    inter = _intersection(one, other)
    union = (one[2:] - one[:2]).prod(0) + (other[2:] - other[:2]).prod(0) - inter + 1e-16
    outer = _enclosing(one, other).abs().prod(0)
    return inter / union - (outer - union) / outer


def _iou_and_distance(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Intersection over union, and the squared distance of the centres by that of the enclosing corners."""
    inter = _intersection(one, other)
    areas = [(box[2] - box[0]) * (box[3] - box[1] + _EPSILON) for box in (one, other)]
    diagonal = _enclosing(one, other).square().sum(0) + _EPSILON
    centres = (other[:2] + other[2:] - one[:2] - one[2:]).square().sum(0) / 4
    return inter / (areas[0] + areas[1] - inter + _EPSILON), centres / diagonal


def _diou(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    iou, distance = _iou_and_distance(one, other)
    return iou - distance


def _shown(found: torch.Tensor, is_cross: bool) -> torch.Tensor:
    return found if is_cross else found[None]


def npu_giou(
    self: torch.Tensor, gtboxes: torch.Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """Generalised IoU of boxes (4, n), as a column; the operator has no other mode."""
    del mode
    pairs = _paired(self, gtboxes, trans, is_cross)
    found = _giou(*pairs).to(self.dtype)
    return found if is_cross else found[:, None]


def npu_diou(
    self: torch.Tensor, gtboxes: torch.Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """Distance IoU of boxes (4, n), as a row; the operator has no other mode."""
    del mode
    pairs = _paired(self, gtboxes, trans, is_cross)
    return _shown(_diou(*pairs).to(self.dtype), is_cross)


def npu_ciou(
    self: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> torch.Tensor:
    """Complete IoU of boxes (4, n), as a row."""
    return ciou_and_angle(self, gtboxes, trans, is_cross, mode, atan_sub_flag)[0]


def ciou_and_angle(
    self: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Complete IoU, and the difference of the diagonals' angles, from which its gradient is computed."""
    del mode, atan_sub_flag
    one, other = _paired(self, gtboxes, trans, is_cross)
    iou, distance = _iou_and_distance(one, other)
    angles = [torch.atan((box[2] - box[0]) / (box[3] - box[1] + _EPSILON)) for box in (one, other)]
    difference = angles[1] - angles[0]
    shape = 4 / math.pi**2 * difference.square()
    weight = shape / (1 + _EPSILON - iou + shape)
    found = (iou - distance - shape * weight, difference)
    return _shown(found[0].to(self.dtype), is_cross), _shown(found[1].to(self.dtype), is_cross)


def _gradients(
    overlap: Overlap,
    grad: torch.Tensor,
    bboxes: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of an overlap for both kinds of boxes."""
    del mode
    with torch.enable_grad():
        leaves = [wide(one).detach().requires_grad_() for one in (bboxes, gtboxes)]
        found = overlap(*_paired(leaves[0], leaves[1], trans, is_cross))
        first, second = torch.autograd.grad(found, leaves, wide(grad).reshape(found.shape))
    return first.to(bboxes.dtype), second.to(gtboxes.dtype)


giou_backward, diou_backward = partial(_gradients, _giou), partial(_gradients, _diou)


def _centre_and_size(boxes: torch.Tensor, extra: float = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return (boxes[:, :2] + boxes[:, 2:]) * 0.5, boxes[:, 2:] - boxes[:, :2] + extra


def npu_bounding_box_encode(
    anchor_box: torch.Tensor, ground_truth_box: torch.Tensor, *normal: float
) -> torch.Tensor:
    """Boxes (n, 4) as distances from anchors. The kernel computes in half precision. normal: four means and
    four standard deviations."""
    anchors, sizes = _centre_and_size(anchor_box.half(), 1)
    centres, true_sizes = _centre_and_size(ground_truth_box.half(), 1)
    found = torch.cat([(centres - anchors) / sizes, torch.log(true_sizes / sizes)], dim=1)
    means, factors = torch.tensor(normal[:4]).half(), (1 / torch.tensor(normal[4:])).half()
    return ((found - means) * factors).to(anchor_box.dtype)


def npu_bounding_box_decode(
    rois: torch.Tensor, deltas: torch.Tensor, *normal: float | Sequence[int]
) -> torch.Tensor:
    """Boxes (n, 4) from distances to regions, inside of an image. normal: four means, four standard
    deviations, height and width of the image, and the smallest ratio of sizes."""
    *factors, shape, clip = normal
    means, deviations = (torch.tensor(part, dtype=torch.float32) for part in (factors[:4], factors[4:]))
    moved = wide(deltas) * deviations + means
    limit = abs(math.log(clip))  # type: ignore[arg-type]
    centres, sizes = _centre_and_size(wide(rois), 1)
    new_sizes = sizes * moved[:, 2:].clamp(-limit, limit).exp()
    new_centres = centres + sizes * moved[:, :2]
    found = torch.cat([new_centres - new_sizes / 2 + 0.5, new_centres + new_sizes / 2 - 0.5], dim=1)
    height, width = shape  # type: ignore[misc]
    ends = torch.tensor([width - 1, height - 1] * 2, dtype=torch.float32)
    return torch.minimum(found.clamp(0), ends).to(rois.dtype)


def npu_anchor_response_flags(
    self: torch.Tensor, featmap_size: Sequence[int], stride: Sequence[int], num_base_anchors: int
) -> torch.Tensor:
    """Which anchors of a grid have the centre of a box (n, 4) in their cell, as uint8."""
    height, width = featmap_size
    centres, _ = _centre_and_size(wide(self))
    cells = torch.floor(centres / torch.tensor(stride)).long()
    flags = torch.zeros(height * width, dtype=torch.uint8)
    flags[cells[:, 1] * width + cells[:, 0]] = 1
    return flags.repeat_interleave(num_base_anchors)


def npu_yolo_boxes_encode(
    self: torch.Tensor, gt_bboxes: torch.Tensor, stride: torch.Tensor, performance_mode: bool = False
) -> torch.Tensor:
    """Boxes (n, 4) as YOLO predicts them: the place in the cell of an anchor, and the logarithm of sizes."""
    del performance_mode
    smallest = 1e-6
    anchors, sizes = _centre_and_size(wide(self))
    centres, true_sizes = _centre_and_size(wide(gt_bboxes))
    places = ((centres - anchors) / stride[:, None] + 0.5).clamp(smallest, 1 - smallest)
    return torch.cat([places, torch.log((true_sizes / sizes).clamp(min=smallest))], dim=1).to(self.dtype)


def npu_nms_v4(
    self: torch.Tensor,
    scores: torch.Tensor,
    max_output_size: int,
    iou_threshold: torch.Tensor,
    scores_threshold: torch.Tensor,
    pad_to_max_output_size: bool = False,  # noqa: ARG001 - the result always has that size
) -> tuple[torch.Tensor, torch.Tensor]:
    """The boxes (n, 4) that no better one overlaps more than the threshold, the best first, and their number.

    Any two opposite corners write a box. Places behind the chosen boxes are 0.
    """
    size, limit = int(max_output_size), float(iou_threshold)
    boxes, found = wide(self), wide(scores)
    low = torch.minimum(boxes[:, :2], boxes[:, 2:]).T
    high = torch.maximum(boxes[:, :2], boxes[:, 2:]).T
    areas = (high - low).prod(0)
    left = torch.sort(found, descending=True, stable=True).indices
    left = left[found[left] > float(scores_threshold)]
    chosen: list[int] = []
    while len(left) and len(chosen) < size:
        best, left = int(left[0]), left[1:]
        chosen.append(best)
        sides = torch.minimum(high[:, left], high[:, [best]]) - torch.maximum(low[:, left], low[:, [best]])
        inter = sides.clamp(0).prod(0)
        left = left[inter <= limit * (areas[left] + areas[best] - inter)]
    result = torch.zeros(size, dtype=torch.int32)
    result[: len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return result, torch.tensor(len(chosen), dtype=torch.int32)
