"""Keys of many cells: what cells share is worked out once, so that a key costs a hash and a look-up."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.check import Check
from harness.digest import canonical_json, digest_bytes, digest_json
from harness.matrix.cells import Cell
from harness.plan.facets import FACETS, FacetInputs, projection

# Stands for a digest while the text around it is made; no JSON text contains it.
_GAP = "\x00"


@dataclass(frozen=True, kw_only=True)
class Facet:
    """A facet's value in a cell, and the digest of its JSON."""

    value: Any
    digest: str


class Keyring:
    """Facets and keys of `checks` for any number of cells of one matrix.

    Cells that agree in what a facet reads (`facets.projection`) share its value. The keys are those of
    `key.task_key`: their text is put together from prepared pieces instead of being serialised each time.
    """

    def __init__(self, checks: Sequence[Check], inputs: FacetInputs, code: Mapping[str, str]) -> None:
        self.checks = tuple(checks)
        self._inputs = inputs
        self._facets: dict[tuple[str, Hashable], Facet] = {}
        self._keys: dict[tuple[str, ...], str] = {}
        self._names = tuple(dict.fromkeys(name for check in checks for name in check.facets))
        self._texts = {check.name: _texts(check, code[check.name]) for check in checks}

    def facet(self, cell: Cell, name: str) -> Facet:
        """One facet of a cell; a name nobody defines is a ValueError."""
        place = (name, projection(name, cell, self._inputs))
        known = self._facets.get(place)
        if known is None:
            value = FACETS[name](cell, self._inputs)
            known = Facet(value=value, digest=digest_json(value))
            # Every cell has versions of its own: remembering them would only cost memory.
            if name != "versions":
                self._facets[place] = known
        return known

    def facets(self, cell: Cell) -> Mapping[str, Facet]:
        """Every facet that any of the checks reads."""
        return {name: self.facet(cell, name) for name in self._names}

    def key(self, check: Check, digests: Mapping[str, str]) -> str:
        """The key of `check` over facets with these digests."""
        names, pieces = self._texts[check.name]
        place = (check.name, *[digests[name] for name in names])
        known = self._keys.get(place)
        if known is None:
            text = pieces[0] + "".join(
                digest + piece for digest, piece in zip(place[1:], pieces[1:], strict=True)
            )
            known = digest_bytes(text.encode())
            if "versions" not in names:
                self._keys[place] = known
        return known

    def keys(self, cell: Cell) -> tuple[str, ...]:
        """The keys of all checks for a cell, in the order of `checks`."""
        digests = {name: facet.digest for name, facet in self.facets(cell).items()}
        return tuple([self.key(check, digests) for check in self.checks])


def _texts(check: Check, code: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The facets in the order they stand in the key's JSON, and the text around their digests."""
    names = tuple(sorted(check.facets))
    text = canonical_json(
        {
            "check": check.name,
            "code": code,
            "facets": dict.fromkeys(names, _GAP),
            "params": dict(check.params),
        }
    )
    pieces = text.split(canonical_json(_GAP)[1:-1])
    return names, tuple(pieces)
