"""Formulas of the operators on boxes in float64, one pair of boxes at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from drawn_inputs import Drawn, Pairs

torch_npu = torch.ops.npu
FP32 = (torch.float32,)
Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _drawn(drawn: Drawn, count: int) -> torch.Tensor:
    """Corners (count, 4) of boxes, of which many overlap."""
    corners = drawn.rand(count, 2) * 3
    return torch.cat([corners, corners + 1 + drawn.rand(count, 2)], dim=1).to(drawn.dtype).double()


def _areas(one: torch.Tensor, other: torch.Tensor, margin: float = 0.0) -> tuple[torch.Tensor, ...]:
    """The shared area, both areas, and the sides of the box around both."""
    width = torch.clamp(torch.minimum(one[2], other[2]) - torch.maximum(one[0], other[0]), min=0)
    height = torch.clamp(torch.minimum(one[3], other[3]) - torch.maximum(one[1], other[1]), min=0)
    areas = [(box[2] - box[0] + margin) * (box[3] - box[1] + margin) for box in (one, other)]
    around = torch.maximum(one[2:], other[2:]) - torch.minimum(one[:2], other[:2])
    return width * height, *areas, around


def _iou(drawn: Drawn) -> Pairs:
    boxes, truth = _drawn(drawn, 5), _drawn(drawn, 3)
    for mode in (0, 1):
        rows = []
        for one in truth:
            for other in boxes:
                shared, first, second, _ = _areas(one, other, 0.01)
                rows.append(shared / (first if mode else first + second - shared))
        expected = torch.stack(rows).reshape(3, 5)
        for operator in (torch_npu.npu_iou, torch_npu.npu_ptiou):
            yield operator(drawn.placed(boxes), drawn.placed(truth), mode), expected


def _generalised(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    shared, first, second, around = _areas(one, other)
    union, outer = first + second - shared, around[0] * around[1]
    return shared / union - (outer - union) / outer


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    shared, first, second, around = _areas(one, other)
    apart = (one[:2] + one[2:] - other[:2] - other[2:]) / 2
    return shared / (first + second - shared) - apart.square().sum() / around.square().sum()


def _complete(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    shared, first, second, _ = _areas(one, other)
    angles = [torch.atan2(box[2] - box[0], box[3] - box[1]) for box in (one, other)]
    shape = 4 / math.pi**2 * (angles[0] - angles[1]) ** 2
    return _distance(one, other) - shape * shape / (1 - shared / (first + second - shared) + shape)


def _written(corners: torch.Tensor, trans: bool) -> torch.Tensor:
    """Corners (n, 4) as the operators take boxes: (4, n), as centre and size with `trans`."""
    centred = torch.cat([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], dim=1)
    return (centred if trans else corners).T.contiguous()


def _corners(boxes: torch.Tensor, trans: bool) -> torch.Tensor:
    rows = boxes.T
    return torch.cat([rows[:, :2] - rows[:, 2:] / 2, rows[:, :2] + rows[:, 2:] / 2], dim=1) if trans else rows


def _overlap(drawn: Drawn, *, name: str, pair: Pair, trans: bool, has_gradient: bool) -> Pairs:
    given = [_written(_drawn(drawn, 6), trans).to(drawn.dtype).double().requires_grad_() for _ in range(2)]
    pairs = zip(*(_corners(one, trans) for one in given), strict=True)
    expected = torch.stack([pair(*two) for two in pairs])
    placed = [drawn.placed(one.detach()).requires_grad_(has_gradient) for one in given]
    found = getattr(torch_npu, name)(*placed, trans, False, 0)
    yield found.detach().reshape(-1), expected.detach()
    if has_gradient:
        weights = drawn.normal(6)
        on_device = torch.autograd.grad(found, placed, drawn.placed(weights).reshape(found.shape))
        yield from zip(on_device, torch.autograd.grad(expected, given, weights), strict=True)
    if name == "npu_ciou":
        yield torch_npu._npu_ciou(*placed, trans, False, 0, True)[0].reshape(-1), expected.detach()


def _decoded(drawn: Drawn) -> Pairs:
    regions, deltas = _drawn(drawn, 4), drawn.normal(4, 4)
    means, deviations, smallest = (0.1, -0.2, 0.05, 0.3), (0.5, 0.4, 0.2, 0.25), 0.3
    limit, rows = -math.log(smallest), []
    for region, delta in zip(regions.tolist(), deltas.tolist(), strict=True):
        moved = [one * by + mean for one, by, mean in zip(delta, deviations, means, strict=True)]
        ends = []
        for axis in (0, 1):
            size = region[2 + axis] - region[axis] + 1
            centre = (region[axis] + region[2 + axis]) / 2 + moved[axis] * size
            half = size * math.exp(min(max(moved[2 + axis], -limit), limit)) / 2
            ends.append(
                [min(max(end, 0), (5, 4)[axis]) for end in (centre - half + 0.5, centre + half - 0.5)]
            )
        rows.append([ends[0][0], ends[1][0], ends[0][1], ends[1][1]])
    placed = (drawn.placed(regions), drawn.placed(deltas))
    found = torch_npu.npu_bounding_box_decode(*placed, *means, *deviations, (5, 6), smallest)
    yield found, torch.tensor(rows, dtype=torch.float64)


def _encoded(drawn: Drawn) -> Pairs:
    """The kernel computes in half precision, with operations whose results are exact there."""
    sizes, moves = 2.0 ** drawn.order(4), drawn.order(4).double() - 2
    anchors = torch.stack([0 * sizes, 0 * sizes, sizes - 1, sizes - 1], dim=1).double()
    truth = anchors + (moves * sizes)[:, None]
    expected = torch.cat([torch.stack([moves, moves], dim=1) * 4, torch.zeros(4, 2)], dim=1).double()
    yield (
        torch_npu.npu_bounding_box_encode(
            drawn.placed(anchors), drawn.placed(truth), 0, 0, 0, 0, 0.25, 0.25, 0.5, 0.5
        ),
        expected,
    )


def _yolo(drawn: Drawn) -> Pairs:
    anchors, truth = _drawn(drawn, 4), _drawn(drawn, 4)
    strides, rows = torch.tensor([8, 8, 16, 1], dtype=torch.int32), []
    for one, other, stride in zip(anchors.tolist(), truth.tolist(), strides.tolist(), strict=True):
        centres = [(other[axis] + other[2 + axis] - one[axis] - one[2 + axis]) / 2 for axis in (0, 1)]
        places = [min(max(centre / stride + 0.5, 1e-6), 1 - 1e-6) for centre in centres]
        ratios = [(other[2 + axis] - other[axis]) / (one[2 + axis] - one[axis]) for axis in (0, 1)]
        rows.append([*places, *map(math.log, ratios)])
    found = torch_npu.npu_yolo_boxes_encode(drawn.placed(anchors), drawn.placed(truth), strides.npu(), False)
    yield found, torch.tensor(rows, dtype=torch.float64)


def _flags(drawn: Drawn) -> Pairs:
    boxes, stride, anchors = _drawn(drawn, 3) * 4, (4, 8), 2
    expected = torch.zeros(3, 6, anchors, dtype=torch.uint8)
    for box in boxes.tolist():
        expected[int((box[1] + box[3]) / 2 / stride[1]), int((box[0] + box[2]) / 2 / stride[0])] = 1
    yield (
        torch_npu.npu_anchor_response_flags(drawn.placed(boxes), (3, 6), stride, anchors),
        expected.reshape(-1),
    )


def _rotated(drawn: Drawn) -> Pairs:
    """Squares around one centre: turned by 45 degrees they share a regular octagon, or the smaller one."""
    centre, side = drawn.normal(2), 1 + drawn.rand(1)
    turned = float(drawn.size(-2, 2) * 90)
    first = torch.cat([centre, side, side, torch.tensor([turned])]).double()
    octagon = 2 * (math.sqrt(2) - 1) * side**2
    sides, shared = torch.stack([side, side / 2, side]), torch.stack([octagon, side**2 / 4, side**2])
    angles = torch.tensor([turned + 45, turned + 45, turned + 180]).double()
    others = torch.cat([centre.repeat(3, 1), sides, sides, angles[:, None]], dim=1)
    placed = drawn.placed(first)[None, None], drawn.placed(others)[None]
    yield torch_npu.npu_rotated_overlaps(*placed, False), shared.reshape(1, 1, 3)
    union = side**2 + sides**2 - shared
    yield torch_npu.npu_rotated_iou(*placed, False, 0, True, 0.0, 0.0), (shared / union).reshape(1, 1, 3)
    yield torch_npu.npu_rotated_iou(*placed, False, 1, True, 0.0, 0.0), (shared / side**2).reshape(1, 1, 3)


def _regions(drawn: Drawn) -> Pairs:
    """A plane between pixels is its value at the centre of each bin; the gradient is that of the mean."""
    slopes = drawn.normal(3)
    y, x = torch.meshgrid(torch.arange(9.0), torch.arange(8.0), indexing="ij")
    image = (slopes[0] + slopes[1] * y.double() + slopes[2] * x.double()).to(drawn.dtype).double()
    starts, sizes = 1 + drawn.rand(2), 4 + drawn.rand(2)
    for mode in (0, 1):
        ends = starts + sizes - mode
        rows = [starts[1] + sizes[1] * (row + 0.5) / 2 for row in range(2)]
        columns = [starts[0] + sizes[0] * (column + 0.5) / 3 for column in range(3)]
        expected = [[slopes[0] + slopes[1] * row + slopes[2] * column for column in columns] for row in rows]
        rois = drawn.placed(torch.cat([torch.zeros(1), starts, ends])[None].double())
        found = torch_npu.npu_roi_align(drawn.placed(image)[None, None], rois, 1.0, 2, 3, 2, mode)
        yield found, torch.tensor(expected, dtype=torch.float64)[None, None]
        weights = drawn.normal(1, 1, 2, 3)
        back = torch_npu.npu_roi_alignbk(drawn.placed(weights), rois, [1, 1, 9, 8], 3, 2, 1.0, 2, mode)
        # The forward pass is linear, so both sums are the same one.
        yield (back * drawn.placed(image)).sum(), (found.cpu().double() * weights).sum()


def _kept(drawn: Drawn) -> Pairs:
    """Of two nearly equal rectangles, the one with the higher score stays."""
    centres = torch.tensor([[0.0, 0], [20, 0], [0, 20]]).double()
    sizes = 4 + drawn.rand(3, 2)
    boxes = torch.cat([centres, sizes, 90 * drawn.rand(3, 1)], dim=1)
    order = drawn.order(6)
    twice = torch.cat([boxes, boxes + 0.01])[order]
    scores = drawn.rand(6) / 2 + 0.25
    best: dict[int, int] = {}
    for one in torch.argsort(scores, descending=True).tolist():
        best.setdefault(int(order[one]) % 3, one)
    found, count = torch_npu.npu_nms_rotated(drawn.placed(twice), drawn.placed(scores), 0.5, 0.0, 6, 0)
    yield found, torch.tensor(list(best.values()))
    yield count, torch.tensor([3])


def _best(drawn: Drawn) -> Pairs:
    """Boxes in the order of their scores, without those that a better one overlaps by more than a quarter."""
    boxes, scores = _drawn(drawn, 12), drawn.rand(12)
    chosen: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        if scores[index] <= 0.2 or len(chosen) == 5:
            continue
        shared = [_areas(boxes[index], boxes[one]) for one in chosen]
        if all(inter <= 0.25 * (first + second - inter) for inter, first, second, _ in shared):
            chosen.append(index)
    swapped = boxes[:, [2, 1, 0, 3]]
    for given in (boxes, swapped):
        limits = (drawn.placed(torch.tensor(value)) for value in (0.25, 0.2))
        found, count = torch_npu.npu_nms_v4(drawn.placed(given), drawn.placed(scores), 5, *limits)
        yield found, torch.tensor(chosen + [0] * (5 - len(chosen)))
        yield count, torch.tensor(len(chosen))


def _overlaps(
    name: str, pair: Pair, *, has_gradient: bool = True
) -> tuple[tuple[str, ...], Callable[[Drawn], Pairs]]:
    def both(drawn: Drawn) -> Pairs:
        # torch_npu refuses other than centres and sizes for the generalised one.
        for trans in (True,) if name == "npu_giou" else (True, False):
            yield from _overlap(drawn, name=name, pair=pair, trans=trans, has_gradient=has_gradient)

    names = (name, f"{name}_backward") if has_gradient else (name, f"_{name}")
    return tuple(f"npu::{one}" for one in names), both


BOXES: Mapping[str, tuple[tuple[str, ...], Callable[[Drawn], Pairs], tuple[torch.dtype, ...]]] = {
    "intersection over union": (("npu::npu_iou", "npu::npu_ptiou"), _iou, FP32),
    "generalised": (*_overlaps("npu_giou", _generalised), FP32),
    "with distance": (*_overlaps("npu_diou", _distance), FP32),
    "complete": (*_overlaps("npu_ciou", _complete, has_gradient=False), FP32),
    "decoded boxes": (("npu::npu_bounding_box_decode",), _decoded, FP32),
    "encoded boxes": (("npu::npu_bounding_box_encode",), _encoded, FP32),
    "boxes of YOLO": (("npu::npu_yolo_boxes_encode",), _yolo, FP32),
    "anchors": (("npu::npu_anchor_response_flags",), _flags, FP32),
    "rotated boxes": (("npu::npu_rotated_overlaps", "npu::npu_rotated_iou"), _rotated, FP32),
    "kept boxes": (("npu::npu_nms_rotated",), _kept, FP32),
    "best boxes": (("npu::npu_nms_v4",), _best, FP32),
    "regions": (("npu::npu_roi_align", "npu::npu_roi_alignbk"), _regions, FP32),
}
