"""One use of another package, as the text of the user shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.compat.surface.call_signature import CallArguments, CallSignature


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of another package.

    kind: `import`, `attribute`, `call`, `subclass`, `super` (a method of the base class), `override` (a
    method of the base class is written anew) or `patch` (the name is assigned).
    guarded: why it may be missing without harm, or "". at_import: it runs as the file is imported.
    holder: as in `Meaning`. offers: of an override, how it is called on its object.
    written: a subclass's name. defines: the names in it, unless it is abstract itself.
    """

    kind: str
    target: str
    file: str
    line: int
    arguments: CallArguments | None = None
    guarded: str = ""
    at_import: bool = False
    holder: str = ""
    offers: CallSignature | None = None
    written: str = ""
    defines: frozenset[str] | None = None

    def to_json(self) -> list[Any]:
        """All fields in a compact form for the cache: a package has tens of thousands of uses."""
        given, offers = self.arguments, self.offers
        return [
            *(self.kind, self.target, self.file, self.line, self.guarded, self.at_import, self.holder),
            given
            and [given.positional, list(given.keywords), given.unpacks_positional, given.unpacks_keywords],
            offers
            and [
                *(list(offers.positional_only), list(offers.positional), list(offers.keyword_only)),
                *(sorted(offers.needed), offers.var_positional, offers.var_keywords),
            ],
            self.written,
            None if self.defines is None else sorted(self.defines),
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Use:
        """The inverse; ValueError or TypeError for anything else."""
        kind, target, file, line, guarded, at_import, holder, given, offers, written, defines = data
        return cls(
            kind=kind,
            target=target,
            file=file,
            line=line,
            guarded=guarded,
            at_import=at_import,
            holder=holder,
            arguments=given
            and CallArguments(
                positional=given[0],
                keywords=tuple(given[1]),
                unpacks_positional=given[2],
                unpacks_keywords=given[3],
            ),
            offers=offers
            and CallSignature(
                positional_only=tuple(offers[0]),
                positional=tuple(offers[1]),
                keyword_only=tuple(offers[2]),
                needed=frozenset(offers[3]),
                var_positional=offers[4],
                var_keywords=offers[5],
            ),
            written=written,
            defines=None if defines is None else frozenset(defines),
        )
