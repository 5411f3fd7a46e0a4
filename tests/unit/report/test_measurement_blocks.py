"""Measurements as blocks and charts: every value is shown, nothing a check may have stored breaks a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import loss_measured, training_measurements

from harness.numerics.loss.loss_measurements import LOSS_FORMAT, LossStatus
from harness.report.pages.figures import figures
from harness.report.pages.measurement_blocks import (
    Block,
    Chart,
    ChartLine,
    FactList,
    Multiples,
    TableBlock,
    blocks,
    scalar,
)
from harness.report.pages.svg import chart_svg, describe, legend, share_bar

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["nan", "-inf"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=25,
)
KNOWN = st.sampled_from(
    ["curves", "cases", "verdicts", "runs", "reference", "candidate", "telemetry", "looks"]
)


def texts(block: Block) -> str:
    if isinstance(block, FactList):
        return " ".join(f"{name} {value}" for name, value in block.pairs)
    if isinstance(block, TableBlock):
        return " ".join(" ".join(row) for row in block.rows)
    charts = block.charts if isinstance(block, Multiples) else (block,)
    return " ".join(f"{series.name} {series.values}" for chart in charts for series in chart.series)


def draw(block: Block) -> None:
    for chart in (
        block.charts if isinstance(block, Multiples) else (block,) if isinstance(block, Chart) else ()
    ):
        for small in (False, True):
            picture = chart_svg(chart, small=small)
            if picture:
                ET.fromstring(picture)
        describe(chart)
        legend(chart)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=8) | KNOWN, JSON, max_size=6))
def test_any_measurements_can_be_shown(measurements: dict[str, Any]) -> None:
    for block in figures(measurements):
        draw(block)


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "curves": st.dictionaries(KNOWN | st.sampled_from(["mean", "seed", "reward"]), JSON, max_size=4),
            "cases": st.lists(
                st.dictionaries(st.sampled_from(["name", "status", "budget"]), JSON, max_size=3)
            ),
            "findings": st.lists(st.dictionaries(st.sampled_from(["rule", "file", "line", "message"]), JSON)),
            "verdicts": st.lists(
                st.dictionaries(st.sampled_from(["patch", "verdict", "hunks"]), JSON, max_size=3)
            ),
        },
    )
)
def test_measurements_of_other_versions_can_be_shown(measurements: dict[str, Any]) -> None:
    for block in figures(measurements):
        draw(block)


def test_every_value_is_shown_once() -> None:
    shown = " ".join(
        texts(block)
        for block in blocks(
            {
                "single": "one",
                "list": ["two", "three"],
                "records": [{"a": "four"}, {"b": "five"}],
                "nested": {"deep": {"deeper": {"deepest": "six", "x": {"y": {"z": "seven"}}}}},
                "by name": {"p": {"v": "eight"}, "q": {"v": "nine"}},
                "curve": [1.0, 2.0, 3.0, 10.0],
                "mixed": [1, "ten", None],
            }
        )
    )
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "10.0"):
        assert shown.count(word) == 1, word


def test_training_curves_come_with_their_band_and_telemetry() -> None:
    main, telemetry = figures(training_measurements(), "grpo")[:2]
    assert isinstance(main, Chart)
    assert [series.role for series in main.series] == ["candidate", "reference"]
    assert main.low
    assert main.looks == (15, 30, 45, 60)
    assert isinstance(telemetry, Multiples)
    assert {chart.title for chart in telemetry.charts} == {"entropy", "kl", "grad norm", "clip fraction"}


def test_loss_cases_show_the_share_of_their_tolerance_and_the_wrong_ones_first() -> None:
    measured = loss_measured()
    failed = replace(
        measured.cases[3],
        status=LossStatus.FAIL,
        budget=7.5,
        reasons=("value is outside its interval",),
    )
    cases = (*measured.cases[:3], failed, *measured.cases[4:])
    wrong, beyond, every = figures(LOSS_FORMAT.write(replace(measured, cases=cases)), "loss")[:3]
    assert isinstance(wrong, TableBlock)
    assert isinstance(beyond, TableBlock)
    assert isinstance(every, TableBlock)
    assert wrong.shares == (7.5,)
    assert beyond.title == "cases that are wrong and not required"
    assert len(every.rows) == 19
    assert every.folded
    assert "share over" in share_bar(7.5)
    assert "750%" in share_bar(7.5)
    assert "over" not in share_bar(0.99)


def test_points_that_are_not_finite_are_gaps_that_can_be_seen() -> None:
    chart = Chart(
        title="loss",
        series=(ChartLine(name="loss", values=(1.0, float("nan"), 2.0, float("inf")), role="candidate"),),
    )
    picture = chart_svg(chart)
    assert picture.count('class="gap"') == 2
    assert picture.count("M") > 3
    assert "2 not finite" in describe(chart)
    assert chart_svg(Chart(title="", series=(ChartLine(name="", values=(float("nan"),)),))) == ""


@pytest.mark.parametrize(
    "values",
    [(0.0, 0.0, 0.0), (1e-12, 2e-12), (1e12, 3e12), (-5.0, 5.0), (1e308, -1e308, 1.0, 2.0), (0.1, 0.1000001)],
)
def test_scales_of_any_size(values: tuple[float, ...]) -> None:
    picture = chart_svg(Chart(title="x", series=(ChartLine(name="x", values=values, role="candidate"),)))
    ticks = [node.text for node in ET.fromstring(picture) if node.get("class") == "tick"]
    assert 2 <= len(ticks) <= 9


def test_a_long_curve_keeps_its_extremes() -> None:
    values = [0.0] * 5000
    values[1234] = 9.0
    picture = chart_svg(
        Chart(title="x", series=(ChartLine(name="x", values=tuple(values), role="candidate"),))
    )
    assert len(picture) < 20_000
    assert "10.0" in picture or "10<" in picture
    assert f"{10.0:.1f}" in picture


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (True, "yes"), ([], "none"), ({"a": 1, "b": "x"}, "a 1, b x"), ("f" * 64, "f" * 12 + "…")],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert scalar(value) == text
