"""Turns the measurements of any check into blocks for a page: lists of facts, tables and charts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from harness.report.model.trend import as_float, is_number
from harness.report.model.visible_text import number

MAX_ROWS = 400
FOLD_ROWS = 14
FOLD_FACTS = 24
MAX_DEPTH = 4
MIN_CURVE = 4
INLINE_TEXT = 240
# Stored JSON is sorted by name; these columns identify a row and come first.
FIRST = ("", "name", "fault", "id", "patch", "package", "rule", "seed", "what", "status", "version")
# Pairs of columns (value, limit) that are shown as a share of a budget.
BUDGETS = (
    ("error", "budget"),
    ("max_error", "budget"),
    ("err", "tol"),
    ("error", "tolerance"),
    ("value", "limit"),
    ("measured", "limit"),
)


@dataclass(frozen=True, kw_only=True)
class FactList:
    """Names and values; the names are those of members."""

    title: str
    pairs: tuple[tuple[str, str], ...]
    worded: ClassVar = False

    @property
    def folded(self) -> bool:
        """Whether the list is long, so that the page shows it folded."""
        return len(self.pairs) > FOLD_FACTS


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """Rows of text. shares: the share of its budget that each row uses, or None. dropped: number of rows
    left out.

    folded: whether the table is closed until the reader opens it. worded: whether its title and columns are
    words, which pages translate, and not names of members.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    shares: tuple[float | None, ...] = ()
    dropped: int = 0
    folded: bool = False
    worded: bool = False


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A named curve; points that are not finite leave a gap. role: candidate, reference or other."""

    name: str
    values: tuple[float, ...]
    role: str = "other"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over steps (or another `unit`), with an optional band of expected values and the steps at
    which the decision rule tested."""

    title: str
    series: tuple[ChartLine, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    looks: tuple[int, ...] = ()
    unit: str = "step"
    worded: bool = False


@dataclass(frozen=True, kw_only=True)
class Multiples:
    """Small charts side by side, one scale each."""

    title: str
    charts: tuple[Chart, ...]
    worded: bool = False


# Pages show shortened digests; report.json has the whole ones.
_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")

#: Values that are shown as they are.
_PLAIN = frozenset({str, int, float, bool, type(None)})

Block = FactList | TableBlock | Chart | Multiples


def blocks(measurements: Mapping[str, object], title: str = "", depth: int = 0) -> tuple[Block, ...]:
    """Blocks that show every value of `measurements` once, in order, plain values first."""
    pairs: list[tuple[str, str]] = []
    found: list[Block] = []
    if all(type(value) in _PLAIN for value in measurements.values()):
        pairs = [(label(name), scalar(value)) for name, value in measurements.items()]
        return (FactList(title=title, pairs=tuple(pairs)),) if pairs else ()
    chart = _chart(measurements, title)
    if chart is not None:
        found.append(chart)
    for name, value in measurements.items():
        if chart is not None and is_curve(value):
            continue
        heading = f"{title} · {label(name)}" if title else label(name)
        block = _block(value, heading)
        if block is not None:
            found.append(block)
        elif isinstance(value, Mapping) and value and depth < MAX_DEPTH and not _small(value):
            found.extend(blocks(value, heading, depth + 1))
        else:
            pairs.append((label(name), scalar(value)))
    facts: list[Block] = [FactList(title=title, pairs=tuple(pairs))] if pairs else []
    return tuple(facts + found)


def label(name: object) -> str:
    """A key as a heading."""
    return str(name).replace("_", " ")


def scalar(value: object) -> str:
    """Any JSON value as one line of text."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return f"{value[:12]}…" if _DIGEST.fullmatch(value) else value
    if isinstance(value, Sequence):
        separator = ", " if all(isinstance(item, str | int | float) for item in value) else "; "
        return separator.join(scalar(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{label(name)} {scalar(item)}" for name, item in value.items()) or "none"
    return str(value)


def _block(value: object, title: str) -> Block | None:
    if is_curve(value):
        return Chart(title=title, series=(ChartLine(name=title, values=floats(value), role="candidate"),))
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(isinstance(item, Mapping) for item in value):
            return table(title, value)
        return None
    if isinstance(value, Mapping) and len(value) > 1:
        curves = {str(name): item for name, item in value.items() if is_curve(item)}
        if len(curves) == len(value):
            return _chart(value, title) or _multiples(title, curves)
        if all(isinstance(item, Mapping) and item and _flat(item) for item in value.values()):
            return table(title, [{"": name, **item} for name, item in value.items()])
    return None


def table(title: str, rows: Sequence[Mapping[str, object]], *, share: str = "") -> TableBlock:
    """Mappings as a table; columns that identify a row come first. share: the column with the used budget."""
    columns = sorted(
        dict.fromkeys(str(name) for row in rows for name in row if name != share),
        key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST),
    )
    shown = rows[:MAX_ROWS]
    return TableBlock(
        title=title,
        columns=tuple(label(name) for name in columns),
        rows=tuple(tuple(scalar(row[name]) if name in row else "" for name in columns) for row in shown),
        numeric=tuple(
            all(is_number(row.get(name)) for row in shown if row.get(name) is not None) for name in columns
        ),
        shares=tuple(as_float(row.get(share)) for row in shown) if share else _shares(columns, shown),
        dropped=len(rows) - len(shown),
        folded=len(rows) > FOLD_ROWS,
    )


def _shares(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> tuple[float | None, ...]:
    pair = next(((value, limit) for value, limit in BUDGETS if value in columns and limit in columns), None)
    if pair is None:
        return ()
    return tuple(_share(row.get(pair[0]), row.get(pair[1])) for row in rows)


def _share(value: object, limit: object) -> float | None:
    if not (is_number(value) and is_number(limit)):
        return None
    return abs(value) / limit if limit > 0 else (0.0 if value == 0 else float("inf"))


def _chart(value: Mapping[str, object], title: str) -> Chart | None:
    """A chart of a candidate with its reference or band, or None if the names of the curves are others."""
    curves = {str(name): floats(item) for name, item in value.items() if is_curve(item)}
    low = next((curves.pop(name) for name in ("low", "lower", "band_low") if name in curves), ())
    high = next((curves.pop(name) for name in ("high", "upper", "band_high") if name in curves), ())
    roles = {"reference", "candidate"} & set(curves)
    if not curves or not ((low and high) or len(roles) > 1):
        return None
    series = tuple(
        ChartLine(name=label(name), values=values, role=name if name in roles else "other")
        for name, values in curves.items()
    )
    return Chart(title=title, series=series, low=low, high=high)


def _multiples(title: str, curves: Mapping[str, Sequence[object]]) -> Multiples:
    return Multiples(
        title=title,
        charts=tuple(
            Chart(
                title=label(name),
                series=(ChartLine(name=label(name), values=floats(curve), role="candidate"),),
            )
            for name, curve in curves.items()
        ),
    )


def is_curve(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a JSON value is a series of numbers, with gaps, nan and inf allowed."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) >= MIN_CURVE
        and all(item is None or as_float(item) is not None for item in value)
        and any(is_number(item) for item in value)
    )


def floats(values: Sequence[object]) -> tuple[float, ...]:
    """A series as numbers; anything else becomes nan."""
    numbers = (as_float(value) for value in values)
    return tuple(math.nan if value is None else value for value in numbers)


def _flat(value: Mapping[str, object]) -> bool:
    return not any(isinstance(item, Mapping) or is_curve(item) for item in value.values())


def _small(value: Mapping[str, object]) -> bool:
    return len(value) <= 2 and _flat(value) and len(scalar(value)) < INLINE_TEXT
