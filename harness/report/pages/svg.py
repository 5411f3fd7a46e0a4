"""Curves and bars as inline SVG, without scripts and style attributes; themes set the colours of classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from harness.report.model.visible_text import clip, number, visible
from harness.report.pages.measurement_blocks import Chart

WIDTH, HEIGHT = 640, 220
SMALL_WIDTH, SMALL_HEIGHT = 240, 110
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 24
MAX_POINTS = 600
TICKS = 4
LARGEST = 1e200


def chart_svg(chart: Chart, *, small: bool = False) -> Markup:
    """The chart as an `<svg>` with a text alternative; "" if no point is finite."""
    width, height = (SMALL_WIDTH, SMALL_HEIGHT) if small else (WIDTH, HEIGHT)
    values = [v for s in chart.series for v in s.values] + [*chart.low, *chart.high]
    finite = [value for value in values if _drawable(value)]
    if not finite:
        return Markup()
    ticks, digits = _scale(min(finite), max(finite), 2 if small else TICKS)
    bottom, top = ticks[0], ticks[-1]
    steps = max([len(s.values) for s in chart.series] + [len(chart.low), len(chart.high), 2])

    def x(step: int) -> float:
        return LEFT + (width - LEFT - RIGHT) * step / (steps - 1)

    def y(value: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (top - value) / (top - bottom)

    parts = [_axes(width, height, ticks, digits, f"{chart.unit} {steps}", y)]
    parts += [
        Markup('<path class="look" d="M{:.1f} {}V{}"/>').format(x(look - 1), TOP, height - BOTTOM)
        for look in chart.looks[:20]
        if 0 < look <= steps
    ]
    if chart.low and chart.high:
        upper = [(x(i), y(v)) for i, v in _thin(chart.high) if _drawable(v)]
        lower = [(x(i), y(v)) for i, v in _thin(chart.low) if _drawable(v)]
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in upper + lower[::-1])
        parts.append(Markup('<polygon class="band" points="{}"/>').format(points))
    for index, series in enumerate(chart.series):
        role = series.role if series.role in {"candidate", "reference"} else f"other o{index % 6}"
        path = _path([(x(i), y(v)) for i, v in _thin(series.values)])
        parts.append(Markup('<path class="curve {}" d="{}"/>').format(role, path))
        broken = [x(i) for i, v in enumerate(series.values) if not _drawable(v)][:MAX_POINTS]
        parts += [
            Markup('<path class="gap" d="M{:.1f} {}l6 6m0 -6l-6 6"/>').format(px - 3, TOP) for px in broken
        ]
    return Markup(
        '<svg class="chart{}" viewBox="0 0 {} {}" role="img" aria-label="{}" '
        'preserveAspectRatio="xMidYMid meet">{}</svg>'
    ).format(" small" if small else "", width, height, describe(chart), Markup().join(parts))


def _drawable(value: float) -> bool:
    # The span of a scale with larger values is not finite.
    return math.isfinite(value) and abs(value) < LARGEST


def describe(chart: Chart) -> str:
    """The chart in words, for readers who cannot see it."""
    texts = []
    for series in chart.series:
        finite = [value for value in series.values if _drawable(value)]
        if finite:
            text = (
                f"{series.name}: {len(series.values)} points from {number(finite[0])} to {number(finite[-1])}"
            )
            lost = len(series.values) - len(finite)
            texts.append(text + (f", {lost} not finite" if lost else ""))
    band = ", with the band of expected values" if chart.low and chart.high else ""
    return visible(clip(f"{chart.title}. {'; '.join(texts)}{band}", 400))


def _axes(
    width: int, height: int, ticks: Sequence[float], digits: int, last: str, y: Callable[[float], float]
) -> Markup:
    line = Markup('<path class="rule" d="M{} {:.1f}H{}"/><text class="tick" x="{}" y="{:.1f}">{}</text>')
    parts = [
        line.format(LEFT, y(value), width - RIGHT, LEFT - 6, y(value) + 3.5, _tick(value, digits))
        for value in ticks
    ]
    foot = Markup('<text class="tick {}" x="{}" y="{}">{}</text>')
    parts.append(foot.format("first", LEFT, height - 8, "1"))
    parts.append(foot.format("", width - RIGHT, height - 8, last))
    return Markup().join(parts)


def _tick(value: float, digits: int) -> str:
    return f"{value:.1e}" if digits > 4 or abs(value) >= 1e5 else f"{value:.{digits}f}"


def _scale(low: float, high: float, count: int) -> tuple[list[float], int]:
    """About `count` round values from below `low` to above `high`, and how many decimals they need."""
    if high - low <= abs(high) * 1e-9:
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    digits = max(0, -math.floor(math.log10(step) + 1e-9) + (1 if round(step / power, 3) == 2.5 else 0))
    return [index * step for index in range(first, last + 1)], digits


def _thin(values: Sequence[float]) -> list[tuple[int, float]]:
    """At most about `MAX_POINTS` points: the lowest and the highest of each stretch."""
    numbered = list(enumerate(values))
    if len(numbered) <= MAX_POINTS:
        return numbered
    stretch = math.ceil(len(numbered) / (MAX_POINTS / 2))
    extremes: set[tuple[int, float]] = set()
    for start in range(0, len(numbered), stretch):
        part = [point for point in numbered[start : start + stretch] if _drawable(point[1])]
        if part:
            extremes |= {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
    return sorted(extremes)


def _path(points: Sequence[tuple[float, float]]) -> str:
    commands = []
    pen = "M"
    for px, py in points:
        if not _drawable(py):
            pen = "M"
            continue
        commands.append(f"{pen}{px:.1f} {py:.1f}")
        pen = "L"
    return "".join(commands)


def legend(chart: Chart) -> Markup:
    """The names of the curves with samples of their lines; "" for a single curve without a band."""
    entries = []
    for index, series in enumerate(chart.series):
        role = series.role if series.role in {"candidate", "reference"} else f"other o{index % 6}"
        entries.append(_legend_entry(f'<path class="curve {role}" d="M1 6H23"/>', series.name))
    if chart.low and chart.high:
        entries.append(_legend_entry('<rect class="band" x="1" y="2" width="22" height="8"/>', "expected"))
    if len(entries) < 2:
        return Markup()
    if chart.looks:
        entries.append(_legend_entry('<path class="look" d="M12 0V12"/>', "test of the decision rule"))
    return Markup('<p class="chart-legend">{}</p>').format(Markup().join(entries))


def percent(share: float) -> str:
    """A share of a budget as a short text; a share far over the budget is given as a multiple."""
    if math.isnan(share):
        return "—"
    if share >= 100:
        return f"{number(share)} times" if share < LARGEST else "not finite"
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def share_bar(share: float | None) -> Markup:
    """The used share of a budget as a bar and a percentage; over 100 % the bar is full and marked."""
    if share is None or math.isnan(share):
        return Markup("—")
    text = f"{share:.0%}" if share < 100 else "over 100 times"
    return Markup(
        '<svg class="share{}" viewBox="0 0 80 10" width="80" height="10" aria-hidden="true">'
        '<rect class="room" width="80" height="10" rx="2"/>'
        '<rect class="used" width="{:.1f}" height="10" rx="2"/></svg> {}'
    ).format(" over" if share > 1 else "", 80 * min(share, 1.0), text)


def _legend_entry(sample: str, name: str) -> Markup:
    svg = Markup('<svg viewBox="0 0 24 12" width="24" height="12" aria-hidden="true">{}</svg>')
    # `sample` is built from constants of this module only.
    return Markup("<span>{}{}</span>").format(svg.format(Markup(sample)), escape(visible(clip(name, 80))))  # noqa: S704
