"""Keys of many cells. Values that cells share are computed once, so a key costs one hash and a look-up."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from harness.check import Check
from harness.digest import canonical_json, digest_json
from harness.gc_pause import gc_paused
from harness.matrix.model.cell import DIGEST_DIGITS, Cell
from harness.plan.keys.facets import FACETS, UNSHARED, Columns, FacetInputs, projections
from harness.plan.keys.key import question_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Facet:
    """The value of a facet in a cell, and the digest of its JSON."""

    value: Any
    digest: str


class Keyring:
    """Facets and keys of `checks` for any number of cells of one matrix.

    Cells with the same inputs of a facet (`facets.projections`) share its value. The
    docstring of `key.question_digest` defines keys. Here the text to digest is joined from prepared pieces
    instead of being serialised for each cell.
    """

    def __init__(self, checks: Sequence[Check], inputs: FacetInputs, code: Mapping[str, str]) -> None:
        self.checks = tuple(checks)
        self._inputs = inputs
        self._names = tuple(dict.fromkeys(name for check in checks for name in check.facets))
        self._facets: dict[str, dict[Hashable, Facet]] = {name: {} for name in self._names}
        self._axes: dict[tuple[str, str], str] = {}
        self._groups = _groups(self.checks, code)

    def facets(self, cell: Cell) -> Mapping[str, Facet]:
        """Every facet that one of the checks reads; ValueError for the name of an undefined facet."""
        columns = Columns([cell])
        rows = {name: projections(name, columns, self._inputs)[0] for name in self._names}
        return {name: self._facet(cell, name, row) for name, row in rows.items()}

    @gc_paused()
    def keys(self, cells: Sequence[Cell]) -> Mapping[str, Sequence[str]]:
        """Check name -> the key of each cell, in order; ValueError for an undefined facet."""
        columns = Columns(cells)
        members = {name: self._members(name, columns) for name in self._names}
        keys: dict[str, Sequence[str]] = {}
        for group in self._groups:
            rows = _rows([members[name] for name in group.facets], len(cells))
            distinct, numbers = (rows, None) if group.unshared else _numbered(rows)
            facets = [sha256(b"{%b}" % b",".join(row)).hexdigest().encode() for row in distinct]
            for check, question in group.questions.items():
                mine = _joined(question, facets)
                keys[check] = mine if numbers is None else [mine[number] for number in numbers]
        return {check.name: keys[check.name] for check in self.checks}

    def _members(self, name: str, columns: Columns) -> Sequence[bytes]:
        """The part of the digested JSON that a facet makes in each cell: `"name":"digest"`."""
        text = f'{canonical_json(name)}:"%s"'
        if name == "versions":
            return [(text % self._versions(cell)).encode() for cell in columns.cells]
        rows = projections(name, columns, self._inputs)
        cells = dict(zip(rows, columns.cells, strict=True))
        known = {row: (text % self._facet(cell, name, row).digest).encode() for row, cell in cells.items()}
        return list(map(known.__getitem__, rows))

    def _facet(self, cell: Cell, name: str, row: Hashable) -> Facet:
        known = self._facets[name].get(row)
        if known is None:
            value = FACETS[name](cell, self._inputs)
            known = Facet(value=value, digest=digest_json(value))
            # Cells do not share values of these facets: storing them would only cost memory.
            if name not in UNSHARED:
                self._facets[name][row] = known
        return known

    def _versions(self, cell: Cell) -> str:
        """The digest of the facet `versions`, the axes as canonical JSON; cells of a product have it."""
        if cell.digest and cell.id.endswith(cell.digest[:DIGEST_DIGITS]):
            return cell.digest
        known = self._axes
        try:
            members = [known[item] for item in sorted(cell.axes.items())]
        except KeyError:
            known |= {item: canonical_json(dict([item]))[1:-1] for item in cell.axes.items()}
            members = [known[item] for item in sorted(cell.axes.items())]
        return sha256(f"{{{','.join(members)}}}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Checks that read the same facets (sorted by name). questions: check -> question digest."""

    facets: tuple[str, ...]
    questions: Mapping[str, bytes]
    unshared: bool


def _groups(checks: Sequence[Check], code: Mapping[str, str]) -> tuple[_Group, ...]:
    by_facets: dict[tuple[str, ...], list[Check]] = {}
    for check in checks:
        by_facets.setdefault(tuple(sorted(set(check.facets))), []).append(check)
    return tuple(
        _Group(
            facets=facets,
            questions={check.name: question_digest(check, code[check.name]).encode() for check in group},
            unshared=not UNSHARED.isdisjoint(facets),
        )
        for facets, group in by_facets.items()
    )


def _joined(question: bytes, facets: Sequence[bytes]) -> list[str]:
    """The key for a question digest and each facets digest. The hash of the question is computed once."""
    question_hash = sha256(question)
    keys = []
    for digest in facets:
        key = question_hash.copy()
        key.update(digest)
        keys.append(key.hexdigest())
    return keys


def _rows(columns: Sequence[Sequence[bytes]], count: int) -> Iterable[tuple[bytes, ...]]:
    return zip(*columns, strict=True) if columns else itertools.repeat((), count)


def _numbered(rows: Iterable[tuple[bytes, ...]]) -> tuple[Iterable[tuple[bytes, ...]], Sequence[int]]:
    """The distinct rows in the order in which they first appear, and the index of each row among them."""
    order = list(rows)
    numbers = {row: number for number, row in enumerate(dict.fromkeys(order))}
    return list(numbers), list(map(numbers.__getitem__, order))
