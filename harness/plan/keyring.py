"""Keys of many cells: what cells share is worked out once, so that a key costs a hash and a look-up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import itemgetter
from typing import Any

from harness.check import Check
from harness.digest import canonical_json, digest_json
from harness.matrix.cells import DIGEST_DIGITS, Cell
from harness.plan.facets import FACETS, READS, UNSHARED, FacetInputs, projection
from harness.plan.key import question_digest

# Stands for a digest while the text around it is made; no JSON text contains it.
_GAP = "\x00"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facet:
    """A facet's value in a cell, and the digest of its JSON."""

    value: Any
    digest: str


class Keyring:
    """Facets and keys of `checks` for any number of cells of one matrix.

    Cells that agree in what a facet reads (`facets.projection`) share its value. The keys are those of
    `key.task_key`: texts are put together from prepared pieces instead of being serialised each time.
    """

    def __init__(self, checks: Sequence[Check], inputs: FacetInputs, code: Mapping[str, str]) -> None:
        self.checks = tuple(checks)
        self._inputs = inputs
        self._names = tuple(dict.fromkeys(name for check in checks for name in check.facets))
        self._facets: dict[str, dict[Hashable, Facet]] = {name: {} for name in self._names}
        # Facets that read a few axes and nothing else, with digests by those axes' values.
        plain = [(name, READS[name], dict[Any, str]()) for name in self._names if name in READS]
        self._single = tuple((name, axes[0], known) for name, axes, known in plain if len(axes) == 1)
        self._several = tuple(found for found in plain if len(found[1]) > 1)
        self._others = tuple(name for name in self._names if name not in READS)
        self._members: dict[tuple[str, str], str] = {}
        self._groups = _groups(self.checks, code)
        self._order = tuple(name for group in self._groups for name in group.checks)

    def facets(self, cell: Cell) -> Mapping[str, Facet]:
        """Every facet that any of the checks reads; a name nobody defines is a ValueError."""
        return {name: self._facet(cell, name) for name in self._names}

    def keys(self, cell: Cell) -> Mapping[str, str]:
        """Check name -> key, for every check."""
        get = cell.axes.get
        digests: dict[str, str] = {}
        for name, axis, known in self._single:
            digest = known.get(get(axis))
            if digest is None:
                digest = known[get(axis)] = self._facet(cell, name).digest
            digests[name] = digest
        for name, axes, known in self._several:
            place = tuple([get(axis) for axis in axes])
            digest = known.get(place)
            if digest is None:
                digest = known[place] = self._facet(cell, name).digest
            digests[name] = digest
        for name in self._others:
            digests[name] = self._versions(cell) if name == "versions" else self._facet(cell, name).digest
        return self.keys_of(digests)

    def keys_of(self, digests: Mapping[str, str]) -> Mapping[str, str]:
        """Check name -> key, over facets with these digests."""
        keys: list[str] = []
        for group in self._groups:
            place = group.pick(digests)
            known = None if group.unshared else group.known.get(place)
            if known is None:
                facets = sha256((group.text % place).encode()).hexdigest().encode()
                known = [sha256(question + facets).hexdigest() for question in group.questions]
                if not group.unshared:
                    group.known[place] = known
            keys += known
        return dict(zip(self._order, keys, strict=True))

    def _facet(self, cell: Cell, name: str) -> Facet:
        place = projection(name, cell, self._inputs)
        known = self._facets[name].get(place)
        if known is None:
            value = FACETS[name](cell, self._inputs)
            known = Facet(value=value, digest=digest_json(value))
            # Every cell has its own: remembering it would only cost memory.
            if name not in UNSHARED:
                self._facets[name][place] = known
        return known

    def _versions(self, cell: Cell) -> str:
        """The digest of the facet `versions`: the axes as canonical JSON, which a cell of a product knows."""
        if cell.digest and cell.id.endswith(cell.digest[:DIGEST_DIGITS]):
            return cell.digest
        known = self._members
        try:
            members = [known[item] for item in sorted(cell.axes.items())]
        except KeyError:
            known |= {item: canonical_json(dict([item]))[1:-1] for item in cell.axes.items()}
            members = [known[item] for item in sorted(cell.axes.items())]
        return sha256(f"{{{','.join(members)}}}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Checks that read the same facets, whose digests `pick` hands out in the order of the text's %s."""

    pick: Callable[[Mapping[str, str]], tuple[str, ...] | str]
    checks: tuple[str, ...]
    text: str
    questions: tuple[bytes, ...]
    unshared: bool
    known: dict[tuple[str, ...] | str, list[str]] = field(default_factory=dict)


def _groups(checks: Sequence[Check], code: Mapping[str, str]) -> tuple[_Group, ...]:
    by_facets: dict[tuple[str, ...], list[Check]] = {}
    for check in checks:
        by_facets.setdefault(tuple(sorted(check.facets)), []).append(check)
    return tuple(
        _Group(
            pick=itemgetter(*facets) if facets else lambda _digests: (),
            checks=tuple(check.name for check in group),
            text=_text(facets),
            questions=tuple(question_digest(check, code[check.name]).encode() for check in group),
            unshared=not UNSHARED.isdisjoint(facets),
        )
        for facets, group in by_facets.items()
    )


def _text(facets: Sequence[str]) -> str:
    """The canonical JSON of facets' digests, with %s for each of them."""
    text = canonical_json(dict.fromkeys(facets, _GAP))
    return text.replace("%", "%%").replace(canonical_json(_GAP)[1:-1], "%s")
