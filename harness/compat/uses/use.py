"""One use of another package in a source file."""

from __future__ import annotations

from dataclasses import dataclass

from harness.compat.surface.call_signature import CallArguments, CallSignature


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of another package.

    kind: `import`, `module` (the module that an import statement names), `attribute`, `call`, `subclass`,
    `super` (a call of a method of the base class), `override` (a method of the base class is redefined) or
    `patch` (the name is assigned).
    target: the dotted name that is used.
    arguments: the arguments of a call.
    guarded: the guard that makes a missing name harmless, or "".
    at_import: whether the line runs when its module is imported.
    instance: as in `Binding`.
    signature: the signature of an override, as a bound method.
    class_name: the name of a subclass.
    defines: the names in the body of a subclass, None when the subclass is abstract itself.
    """

    kind: str
    target: str
    file: str
    line: int
    arguments: CallArguments | None = None
    guarded: str = ""
    at_import: bool = False
    instance: str = ""
    signature: CallSignature | None = None
    class_name: str = ""
    defines: frozenset[str] | None = None
