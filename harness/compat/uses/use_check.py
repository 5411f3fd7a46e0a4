"""Uses of one package held against what another one offers: what is missing, what is called wrongly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.compat.surface.api_surface import ApiDefinition, ApiSurface, NameLookup, Presence
from harness.compat.surface.call_signature import CallSignature
from harness.compat.uses.method_overrides import missing_abstract_methods, override_problem
from harness.compat.uses.use import Use

# Names that torch_npu adds to torch as it is imported (`rename_privateuse1_backend`, `is_hccl_available`).
NPU_NAME = re.compile(r"(?i)npu|hccl|cann|ascend")


@dataclass(frozen=True, kw_only=True)
class UseFinding:
    """A use that this version of the provider does not bear.

    kind: `missing` (an import or attribute), `arguments` (a call), `override` (the provider calls a method
    as the consumer's own cannot be called), `abstract` (a class that cannot be made), `lost-patch` (an
    assignment to a name that the provider had in the version the consumer was made for), `patch` (to another
    name that is not there, which something reads) or `dead-patch` (nothing reads it). guarded and at_import
    as in `Reference`.
    """

    kind: str
    file: str
    line: int
    provider: str
    name: str
    text: str
    guarded: str
    at_import: bool

    @property
    def breaks(self) -> bool:
        """Whether what the line is for fails when it is reached."""
        return not self.guarded and self.kind not in ("patch", "dead-patch")


def check_uses(
    uses: Iterable[Use],
    providers: Mapping[str, tuple[str, ApiSurface]],
    consumer: ApiSurface,
    made_for: Mapping[str, ApiSurface] | None = None,
) -> tuple[UseFinding, ...]:
    """What the `providers` (top-level name -> "name version" and its surface) do not have, by place.

    made_for: of providers that the consumer was published with another version of, that one's surface.
    """
    answers: dict[str, NameLookup] = {}
    found = []
    for use in uses:
        top = use.target.partition(".")[0]
        if top not in providers:
            continue
        label, surface = providers[top]
        if use.target not in answers:
            answers[use.target] = surface.find(use.target)
        answer = answers[use.target]
        if answer.presence is Presence.UNKNOWN and use.kind in ("call", "super"):
            answer = surface.find_method(use.target)
        then = (made_for or {}).get(top)
        kind, text = _UseCheck(use, answer, surface, consumer, then).problem()
        if text:
            found.append(
                UseFinding(
                    kind=kind,
                    file=use.file,
                    line=use.line,
                    provider=label,
                    name=use.target,
                    text=text,
                    guarded=use.guarded,
                    at_import=use.at_import,
                )
            )
    # One missing import makes every use of that name wrong; the first says it.
    unique: dict[tuple[str, str, str], UseFinding] = {}
    for finding in sorted(found, key=lambda f: (f.file, bool(f.guarded), f.line)):
        key = (finding.file, finding.text, "" if finding.kind == "missing" else str(finding.line))
        unique.setdefault(key, finding)
    return tuple(sorted(unique.values(), key=lambda f: (f.file, f.line, f.name)))


@dataclass(frozen=True)
class _UseCheck:
    """One use, what stands at its target, and the two packages."""

    use: Use
    answer: NameLookup
    surface: ApiSurface
    consumer: ApiSurface
    made_for: ApiSurface | None

    def problem(self) -> tuple[str, str]:
        """Kind and text of what is wrong, or two empty strings."""
        if self.use.kind == "override":
            return self._of_override()
        if self.answer.presence is Presence.MISSING:
            return self._of_missing()
        if self.use.kind == "subclass" and self.use.defines is not None:
            return self._of_subclass()
        if self.use.arguments is not None and self.answer.definition is not None:
            return self._of_call(self.answer.definition)
        return "", ""

    def _of_missing(self) -> tuple[str, str]:
        missing = self.answer.missing
        if self.use.target.startswith("torch.") and NPU_NAME.search(missing):
            return "", ""
        # An object may be of a class that has more than the one the text speaks of.
        if self.use.holder and self._bound(missing):
            return "", ""
        text = f"{self.answer.where} has no {missing}"
        # What is assigned need not be there before; what holds it must.
        if self.use.kind != "patch" or self.use.target != f"{self.answer.where}.{missing}":
            return "missing", text
        then = self.made_for.find(self.use.target).presence if self.made_for else Presence.UNKNOWN
        if then is Presence.FOUND and not self._own("is_read", missing):
            return "lost-patch", f"{text}, which this assignment replaces in the version it was made for"
        if self._read(missing):
            return "patch", text
        return "dead-patch", f"{text}, and nothing reads what is assigned here"

    def _bound(self, word: str) -> bool:
        top = self.use.target.partition(".")[0]
        theirs = self.surface.mentions(top)
        # Of this very class: only who sets the name on it gives it one. Functions put into a class also call
        # the object `self`.
        if self.use.holder == "made" and self._makes_itself():
            return theirs.is_set(word) or self._own("is_given", word)
        if theirs.is_bound(word):
            return True
        holder = self.use.target.removesuffix(f".{word}").rpartition(".")[2]
        another = self.use.holder != "declared" or self._own("is_derived_from", holder)
        return self._own("is_bound" if another else "is_given", word)

    def _makes_itself(self) -> bool:
        """Whether what the class makes is of it, and not of another that it chooses."""
        made = self.surface.find(self.answer.where).definition
        return made is not None and self.surface.member(made, "__new__").presence is Presence.MISSING

    def _read(self, word: str) -> bool:
        top = self.use.target.partition(".")[0]
        return self.surface.mentions(top).is_there(word) or self._own("is_read", word)

    def _own(self, question: str, word: str) -> bool:
        """Whether the user's own text answers a question of `Mentions` with yes."""
        return any(
            getattr(self.consumer.mentions(package), question)(word) for package in self.consumer.packages
        )

    def _of_override(self) -> tuple[str, str]:
        if self.made_for is None or self.use.offers is None or self.answer.presence is Presence.UNKNOWN:
            return "", ""
        name = self.use.target.rpartition(".")[2]
        if self.answer.presence is Presence.MISSING:
            theirs = self.surface.mentions(self.use.target.partition(".")[0])
            if self.answer.missing != name or theirs.is_there(name) or self._own("is_read", name):
                return "", ""
        elif self.answer.definition is None:
            return "", ""
        then = self.made_for.find(self.use.target).definition
        text = override_problem(name, self.use.offers, self.answer.definition, then, self.surface)
        return ("override", text) if text else ("", "")

    def _of_subclass(self) -> tuple[str, str]:
        definition = self.answer.definition
        if definition is None or not definition.is_class or not self._own("is_called", self.use.written):
            return "", ""
        left = missing_abstract_methods(definition, self.use.defines or frozenset(), self.surface)
        if not left:
            return "", ""
        return (
            "abstract",
            f"a class without {', '.join(left)}, which {self.use.target} leaves to its subclasses",
        )

    def _of_call(self, definition: ApiDefinition) -> tuple[str, str]:
        use = self.use
        signatures = self._signatures(definition)
        problems = [signature.problem(use.arguments) for signature in signatures if use.arguments]
        if not problems or not all(problems) or self._may_be_another():
            return "", ""
        return "arguments", f"{use.target.rpartition('.')[2]}{signatures[0]} {problems[0]}"

    def _may_be_another(self) -> bool:
        """Whether the method of an object of a class, or of a subclass, may be another of this name."""
        top, name = self.use.target.partition(".")[0], self.use.target.rpartition(".")[2]
        if self.use.holder not in ("declared", "inherited"):
            return False
        return self.surface.mentions(top).definitions(name) > 1 or self._own("is_bound", name)

    def _signatures(self, definition: ApiDefinition) -> tuple[CallSignature, ...]:
        """The signatures a call of the definition must fit one of; none when they are not known."""
        bound = self.use.kind == "super" or bool(self.use.holder)
        if not definition.is_class:
            decorators = {ast.unparse(one) for one in getattr(definition.node, "decorator_list", ())}
            drop = "classmethod" in decorators or (bound and "staticmethod" not in decorators)
            return tuple(s.bound() if drop else s for s in definition.signatures)
        return _makers(definition, self.surface)


def _makers(definition: ApiDefinition, surface: ApiSurface) -> tuple[CallSignature, ...]:
    if any(
        surface.member(definition, name).presence is not Presence.MISSING for name in ("__new__", "__call__")
    ):
        return ()
    if getattr(definition.node, "keywords", ()) or getattr(definition.node, "decorator_list", ()):
        return ()
    maker = surface.member(definition, "__init__").definition
    return tuple(s.bound() for s in maker.signatures) if maker else ()
