"""Rectangles with an angle in degrees: the area that two of them share."""

from __future__ import annotations

import math

import torch

from harness.devices.sim.references.precision import wide

_SMALLEST = 1e-14
Point = tuple[float, float]


def _rectangle(box: list[float], has_corners: bool) -> tuple[float, float, float, float, float]:
    """Centre, size and angle in radians. has_corners: the box is written by two corners and an angle that
    turns the other way."""
    a, b, c, d, angle = box
    if has_corners:
        a, b, c, d, angle = (a + c) / 2, (b + d) / 2, c - a, d - b, -angle
    return a, b, c, d, math.radians(angle)


def _corners(box: list[float], has_corners: bool) -> list[Point]:
    x, y, width, height, angle = _rectangle(box, has_corners)
    cosine, sine = math.cos(angle), math.sin(angle)
    sides = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    if width * height < 0:
        sides = sides[::-1]
    return [
        (
            x + (one * width * cosine - other * height * sine) / 2,
            y + (one * width * sine + other * height * cosine) / 2,
        )
        for one, other in sides
    ]


def _side(start: Point, end: Point, point: Point) -> float:
    """Positive if the point is to the left of the line."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])


def shared_area(first: list[float], second: list[float], has_corners: bool) -> float:
    """The area of both rectangles: the second one cuts the first, side by side."""
    polygon, cutting = _corners(first, has_corners), _corners(second, has_corners)
    for start, end in zip(cutting, [*cutting[1:], cutting[0]], strict=True):
        kept: list[Point] = []
        for point, following in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True):
            here, there = _side(start, end, point), _side(start, end, following)
            if here >= 0:
                kept.append(point)
            if here * there < 0:
                share = here / (here - there)
                kept.append(
                    (
                        point[0] + share * (following[0] - point[0]),
                        point[1] + share * (following[1] - point[1]),
                    )
                )
        polygon = kept
    pairs = zip(polygon, [*polygon[1:], *polygon[:1]], strict=True)
    return abs(sum(one[0] * other[1] - one[1] * other[0] for one, other in pairs)) / 2


def _iou(first: list[float], second: list[float], has_corners: bool) -> float:
    areas = [math.prod(_rectangle(one, has_corners)[2:4]) for one in (first, second)]
    if min(areas) < _SMALLEST:
        return 0.0
    shared = shared_area(first, second, has_corners)
    return shared / (areas[0] + areas[1] - shared)


def npu_rotated_overlaps(self: torch.Tensor, query_boxes: torch.Tensor, trans: bool = False) -> torch.Tensor:
    """The shared areas (batch, n, m) of boxes (batch, n, 5) and (batch, m, 5)."""
    batches = zip(wide(self).tolist(), wide(query_boxes).tolist(), strict=True)
    found = [
        [[shared_area(one, other, trans) for other in second] for one in first] for first, second in batches
    ]
    return torch.tensor(found, dtype=self.dtype)


def npu_rotated_iou(
    self: torch.Tensor,
    query_boxes: torch.Tensor,
    trans: bool = False,
    mode: int = 0,
    is_cross: bool = True,
    v_threshold: float = 0.0,
    e_threshold: float = 0.0,
) -> torch.Tensor:
    """Intersection over union (batch, n, m), or of each box with its partner (batch, n). mode 1: over the
    area of `self`. The thresholds are for the precision of the kernel."""
    del v_threshold, e_threshold

    def of(first: list[float], second: list[float]) -> float:
        if not mode:
            return _iou(first, second, trans)
        area = math.prod(_rectangle(first, trans)[2:4])
        return shared_area(first, second, trans) / area if area >= _SMALLEST else 0.0

    batches = zip(wide(self).tolist(), wide(query_boxes).tolist(), strict=True)
    if is_cross:
        found = [[[of(one, other) for other in second] for one in first] for first, second in batches]
    else:
        found = [[of(*pair) for pair in zip(*both, strict=True)] for both in batches]  # type: ignore[misc]
    return torch.tensor(found, dtype=self.dtype)


def npu_nms_rotated(
    self: torch.Tensor,
    scores: torch.Tensor,
    iou_threshold: float,
    scores_threshold: float = 0,
    max_output_size: int = -1,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The boxes (n, 5) that overlap with no kept one of a higher score by more than the threshold: their
    numbers, and how many they are. mode 1: boxes are written by two corners."""
    boxes, kept = wide(self).tolist(), list[int]()
    for one in torch.argsort(wide(scores), descending=True, stable=True).tolist():
        if len(kept) == max_output_size or not float(scores[one]) > scores_threshold:
            break
        if all(_iou(boxes[one], boxes[other], bool(mode)) <= iou_threshold for other in kept):
            kept.append(one)
    return torch.tensor(kept, dtype=torch.int32), torch.tensor([len(kept)], dtype=torch.int32)
