"""Measurements, whatever check made them, as blocks a reader can take in: facts, tables, charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.text import number

MAX_ROWS = 400
MAX_DEPTH = 4
MIN_CURVE = 4
INLINE_TEXT = 240
# (value, limit) columns that are read as a share of a budget.
BUDGETS = (
    ("error", "budget"),
    ("max_error", "budget"),
    ("err", "tol"),
    ("error", "tolerance"),
    ("value", "limit"),
    ("measured", "limit"),
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and values."""

    title: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text. `shares`: the part of its budget each row uses, or None; `dropped`: rows left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    shares: tuple[float | None, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named curve; points that are not finite leave a gap. role: candidate, reference or other."""

    name: str
    values: tuple[float, ...]
    role: str = "other"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over a common x that counts steps, with an optional band of what is expected."""

    title: str
    series: tuple[Series, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Multiples:
    """Small charts side by side, one scale each."""

    title: str
    charts: tuple[Chart, ...]


Block = Facts | Table | Chart | Multiples


def blocks(measurements: Mapping[str, Any], title: str = "", depth: int = 0) -> tuple[Block, ...]:
    """Every value of `measurements` in exactly one block, in order, plain values first."""
    pairs: list[tuple[str, str]] = []
    found: list[Block] = []
    chart = _chart(measurements, title)
    if chart is not None:
        found.append(chart)
    for name, value in measurements.items():
        if chart is not None and _is_curve(value):
            continue
        heading = f"{title} · {label(name)}" if title else label(name)
        block = _block(value, heading)
        if block is not None:
            found.append(block)
        elif isinstance(value, Mapping) and value and depth < MAX_DEPTH and not _small(value):
            found.extend(blocks(value, heading, depth + 1))
        else:
            pairs.append((label(name), scalar(value)))
    facts: list[Block] = [Facts(title=title, pairs=tuple(pairs))] if pairs else []
    return tuple(facts + found)


def label(name: Any) -> str:
    """A key as a heading."""
    return str(name).replace("_", " ")


def scalar(value: Any) -> str:
    """Any JSON value as one line of text."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(scalar(item) for item in value) or "none"
    return json.dumps(value, ensure_ascii=False, default=str)


def _block(value: Any, title: str) -> Block | None:
    if _is_curve(value):
        return Chart(title=title, series=(Series(name=title, values=_floats(value), role="candidate"),))
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(isinstance(item, Mapping) for item in value):
            return table(title, value)
        return None
    if isinstance(value, Mapping) and len(value) > 1:
        if all(_is_curve(item) for item in value.values()):
            return _chart(value, title) or _multiples(title, value)
        if all(isinstance(item, Mapping) and item and _flat(item) for item in value.values()):
            return table(title, [{"": name, **item} for name, item in value.items()])
    return None


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of mappings as a table; columns in order of appearance."""
    columns = tuple(dict.fromkeys(str(name) for row in rows for name in row))
    shown = rows[:MAX_ROWS]
    return Table(
        title=title,
        columns=tuple(label(name) for name in columns),
        rows=tuple(tuple(scalar(row[name]) if name in row else "" for name in columns) for row in shown),
        numeric=tuple(
            all(_is_number(row.get(name)) for row in shown if row.get(name) is not None) for name in columns
        ),
        shares=_shares(columns, shown),
        dropped=len(rows) - len(shown),
    )


def _shares(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[float | None, ...]:
    pair = next(((value, limit) for value, limit in BUDGETS if value in columns and limit in columns), None)
    if pair is None:
        return ()
    return tuple(_share(row.get(pair[0]), row.get(pair[1])) for row in rows)


def _share(value: Any, limit: Any) -> float | None:
    if not (_is_number(value) and _is_number(limit)):
        return None
    return abs(value) / limit if limit > 0 else (0.0 if value == 0 else float("inf"))


def _chart(value: Mapping[str, Any], title: str) -> Chart | None:
    """Curves that belong into one chart: a candidate with its reference or band, named so."""
    curves = {str(name): _floats(item) for name, item in value.items() if _is_curve(item)}
    low = next((curves.pop(name) for name in ("low", "lower", "band_low") if name in curves), ())
    high = next((curves.pop(name) for name in ("high", "upper", "band_high") if name in curves), ())
    roles = {"reference", "candidate"} & set(curves)
    if not curves or not ((low and high) or len(roles) > 1):
        return None
    series = tuple(
        Series(name=label(name), values=values, role=name if name in roles else "other")
        for name, values in curves.items()
    )
    return Chart(title=title, series=series, low=low, high=high)


def _multiples(title: str, value: Mapping[str, Any]) -> Multiples:
    return Multiples(
        title=title,
        charts=tuple(
            Chart(
                title=label(name),
                series=(Series(name=label(name), values=_floats(curve), role="candidate"),),
            )
            for name, curve in value.items()
        ),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_curve(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) >= MIN_CURVE
        and all(item is None or _is_number(item) for item in value)
        and any(item is not None for item in value)
    )


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float("nan") if value is None else float(value) for value in values)


def _flat(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(item, Mapping) or _is_curve(item) for item in value.values())


def _small(value: Mapping[str, Any]) -> bool:
    return len(value) <= 2 and _flat(value) and len(scalar(value)) < INLINE_TEXT
