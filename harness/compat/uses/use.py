"""One use of another package in a source file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.compat.surface.call_signature import CallArguments, CallSignature


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of another package.

    kind: `import`, `attribute`, `call`, `subclass`, `super` (a call of a method of the base class),
    `override` (a method of the base class is redefined) or `patch` (the name is assigned).
    target: the dotted name. arguments: those of a call.
    guarded: the guard that makes a missing name harmless, or "". at_import: whether it runs during the
    import.
    instance: as in `Binding`. signature: that of an override, as a bound method.
    class_name: the name of a subclass. defines: the names in its body, None when it is abstract itself.
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

    def to_json(self) -> list[Any]:
        """All fields in a compact form for the cache: a package has tens of thousands of uses."""
        given, signature = self.arguments, self.signature
        return [
            *(self.kind, self.target, self.file, self.line, self.guarded, self.at_import, self.instance),
            given
            and [given.positional, list(given.keywords), given.unpacks_positional, given.unpacks_keywords],
            signature
            and [
                *(list(signature.positional_only), list(signature.positional), list(signature.keyword_only)),
                *(sorted(signature.needed), signature.var_positional, signature.var_keywords),
            ],
            self.class_name,
            None if self.defines is None else sorted(self.defines),
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Use:
        """The inverse; ValueError or TypeError for anything else."""
        kind, target, file, line, guarded, at_import, instance, given, signature, class_name, defines = data
        return cls(
            kind=kind,
            target=target,
            file=file,
            line=line,
            guarded=guarded,
            at_import=at_import,
            instance=instance,
            arguments=given
            and CallArguments(
                positional=given[0],
                keywords=tuple(given[1]),
                unpacks_positional=given[2],
                unpacks_keywords=given[3],
            ),
            signature=signature
            and CallSignature(
                positional_only=tuple(signature[0]),
                positional=tuple(signature[1]),
                keyword_only=tuple(signature[2]),
                needed=frozenset(signature[3]),
                var_positional=signature[4],
                var_keywords=signature[5],
            ),
            class_name=class_name,
            defines=None if defines is None else frozenset(defines),
        )
