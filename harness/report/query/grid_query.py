"""The query language of the grid: the same words and the same results as in the script of the page.

    or  := and ("|" and)*
    and := not ("&"? not)*
    not := "!" not | "(" or ")" | term

A query is evaluated for every check of every row; a row is selected if one of its checks matches. The page's
script gets its words from `WORDS`; tests compare the two implementations.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import InputError
from harness.report.model.failure_patterns import natural
from harness.report.model.marks import EVIDENCE, STYLES
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.visible_text import visible

#: Word -> codes of marks (`marks.STYLES`).
STATUS = {
    "pass": "p", "passed": "p", "fail": "fk", "failed": "fk", "known": "k", "known-fail": "k",
    "unexpected": "fu", "unexpected-fail": "f", "unexpected-pass": "u", "error": "e", "inconclusive": "i",
    "unsure": "i", "stale": "s", "claimed": "c", "blocked": "b", "not-run": "n", "unsupported": "x",
    "n/a": "x", "ran": "fuikp",
}  # fmt: skip
#: Word -> codes of evidence (`marks.EVIDENCE`); `-` where nothing ran.
PROOF = {"hardware": "h", "hw": "h", "simulated": "s", "sim": "s", "cpu": "c", "static": "t", "none": "-"}
#: Word -> first letters of changes.
CHANGE = {"new": "bfl", "changed": "bfl", "broken": "b", "fixed": "f", "lost": "l"}
WORDS = {"status": STATUS, "evidence": PROOF, "change": CHANGE}
FIELDS = ("status", "evidence", "check", "tier", "is", "id", "stack", "device", "recipe")

MAX_LENGTH = 2_000
MAX_DEPTH = 100
_TOKEN = re.compile(r'\s+|([&|()]|!(?!=))|((?:"[^"]*"|!=|[^\s&|!()"])+)|(.)', re.DOTALL)
_TERM = re.compile(r"([A-Za-z_][\w.-]*)(:|!=|[<>=]+)(.+)", re.DOTALL)
_VERSION = re.compile(r"[0-9]{1,4}(?:\.|\Z)")
_OFFERED = 24

Test = Callable[[ReportRow, str | None], bool]


@dataclass(frozen=True, kw_only=True)
class GridSelection:
    """The rows that a query selects, in order, each with the checks that match."""

    rows: tuple[tuple[ReportRow, frozenset[str]], ...]

    @property
    def checks(self) -> int:
        """How many checks match."""
        return sum(len(hits) for _, hits in self.rows)


@dataclass(frozen=True, kw_only=True)
class _Token:
    text: str
    symbol: bool
    at: int


def select(model: ReportModel, text: str) -> GridSelection:
    """The rows and checks that a query selects; an empty query selects all. InputError if it is invalid."""
    test = compile_query(model, text)
    rows = []
    for row in model.rows:
        hits = frozenset(name for name in row.results if test is None or test(row, name))
        if hits or (not row.results and (test is None or test(row, None))):
            rows.append((row, hits))
    return GridSelection(rows=tuple(rows))


def compile_query(model: ReportModel, text: str) -> Test | None:
    """The query as a function of row and check; None for an empty query."""
    if len(text) > MAX_LENGTH:
        raise InputError(f"The query is longer than {MAX_LENGTH} characters.")
    tokens = _tokens(text)
    if not tokens:
        return None
    parser = _Parser(tokens, _Terms(model))
    test = parser.either()
    extra = parser.peek()
    if extra is not None:
        raise InputError(f"{extra.text} at {extra.at} is not expected here.")
    return test


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        at = match.start() + 1
        if match[3]:
            wrong = (
                f"The quote at {at} is not closed."
                if match[3] == '"'
                else f"{match[3]} at {at} is not expected."
            )
            raise InputError(wrong)
        if match[1] or match[2]:
            found.append(_Token(text=match[1] or match[2], symbol=bool(match[1]), at=at))
    return found


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: Sequence[_Token], terms: _Terms) -> None:
        self._tokens = tokens
        self._terms = terms
        self._at = 0
        self._depth = 0

    def peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def either(self) -> Test:
        tests = [self._both()]
        while self._is("|"):
            self._at += 1
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda row, check: any(test(row, check) for test in tests)

    def _both(self) -> Test:
        tests = [self._unary()]
        while self.peek() and not self._is("|") and not self._is(")"):
            if self._is("&"):
                self._at += 1
            tests.append(self._unary())
        return tests[0] if len(tests) == 1 else lambda row, check: all(test(row, check) for test in tests)

    def _unary(self) -> Test:
        token = self.peek()
        if token is None:
            raise InputError("The query ends too early.")
        self._at += 1
        if not token.symbol:
            return self._terms.test(token)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InputError("The query is nested too deep.")
        if token.text == "!":
            inner = self._unary()
            return lambda row, check: not inner(row, check)
        if token.text != "(":
            raise InputError(f"{token.text} at {token.at} is not expected here.")
        grouped = self.either()
        if not self._is(")"):
            raise InputError(f"The ( at {token.at} is not closed.")
        self._at += 1
        return grouped

    def _is(self, symbol: str) -> bool:
        token = self.peek()
        return token is not None and token.symbol and token.text == symbol


class _Terms:
    """Terms as functions of (row, check)."""

    def __init__(self, model: ReportModel) -> None:
        self._model = model
        self._axes = list(dict.fromkeys(axis for row in model.rows for axis in row.cell.axes))
        self._tiers = {check.name: check.tier.value for check in model.checks}

    def test(self, token: _Token) -> Test:
        parts = _TERM.fullmatch(token.text)
        if parts:
            return self._field(parts[1].lower(), parts[2], parts[3].replace('"', "").lower())
        word = token.text.replace('"', "").lower()
        if '"' not in token.text:
            if word in STATUS:
                return _marks(STATUS[word])
            if word in CHANGE:
                return _changes(CHANGE[word])
        return lambda row, _check: word in _haystack(row)

    def _field(self, name: str, comparison: str, value: str) -> Test:
        if name == "status":
            return _marks(_among(STATUS, value))
        if name == "evidence":
            return _proofs(_among(PROOF, value))
        if name == "is":
            return _changes(_among(CHANGE, value))
        if name == "check":
            return lambda _row, check: check is not None and value in visible(check).lower()
        if name == "tier":
            return lambda _row, check: check is not None and self._tiers.get(check) == value
        if name == "id":
            return lambda row, _check: value in visible(row.cell.id).lower()
        if name in {"stack", "device", "recipe"}:
            return lambda row, _check: value in visible(getattr(row.cell, name)).lower()
        axis = next((axis for axis in self._axes if visible(axis).lower() == name), None)
        if axis is None:
            raise InputError(f"There is no field {name}. {_near(name, [*FIELDS, *self._axes])}")
        if comparison not in COMPARE:
            raise InputError(f"{comparison} is no comparison.")
        compare = COMPARE[comparison]
        return lambda row, _check: (
            axis in row.cell.axes and compare(visible(row.cell.axes[axis]).lower(), value)
        )


def _same_version(value: str, version: str) -> bool:
    """Whether a version matches: `0.9` matches 0.9 and 0.9.1 but not 0.90; words match anywhere."""
    if not version[:1].isdigit():
        return version in value
    following = value[len(version) : len(version) + 1]
    return value.startswith(version) and not (version[-1].isdigit() and following.isdigit())


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[str, str], bool]:
    """A comparison of versions; commits and dashes are neither before nor after any version."""
    return lambda value, version: bool(_VERSION.match(value)) and holds(natural(value), natural(version))


COMPARE: dict[str, Callable[[str, str], bool]] = {
    ":": _same_version,
    "=": operator.eq,
    "!=": operator.ne,
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
}


def _marks(codes: str) -> Test:
    return lambda row, check: check is not None and STYLES[row.results[check].mark].code in codes


def _proofs(codes: str) -> Test:
    def test(row: ReportRow, check: str | None) -> bool:
        if check is None:
            return False
        result = row.results[check]
        evidence = result.shown_evidence
        return (EVIDENCE[evidence].code if evidence else "-") in codes

    return test


def _changes(codes: str) -> Test:
    def test(row: ReportRow, check: str | None) -> bool:
        change = row.results[check].change if check is not None else ""
        return bool(change) and change[0] in codes

    return test


def _haystack(row: ReportRow) -> str:
    cell = row.cell
    title = cell.title if cell.title != cell.id else ""
    texts = [cell.id, title, cell.stack, cell.device, cell.recipe, *cell.axes.values()]
    return "\n".join(visible(text) for text in texts).lower()


def _among(table: Mapping[str, str], word: str) -> str:
    if word not in table:
        raise InputError(f"There is no {word}. {_near(word, list(table))}")
    return table[word]


def _near(word: str, words: Sequence[str]) -> str:
    best = min(words, key=lambda known: _distance(word, known))
    if _distance(word, best) <= 2:
        return f"Did you mean {best}?"
    return f"Known: {', '.join(words[:_OFFERED])}."


def _distance(a: str, b: str) -> int:
    """Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        following = [i]
        for j, other in enumerate(b, 1):
            following.append(min(following[j - 1] + 1, row[j] + 1, row[j - 1] + (letter != other)))
        row = following
    return row[-1]
