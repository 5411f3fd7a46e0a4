"""One use of another package, as the text of the user shows it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.compat.signature import Arguments, Signature


@dataclass(frozen=True, kw_only=True)
class Reference:
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
    arguments: Arguments | None = None
    guarded: str = ""
    at_import: bool = False
    holder: str = ""
    offers: Signature | None = None
    written: str = ""
    defines: frozenset[str] | None = None
