"""Check uses against the API surface of a provider: missing names, wrong arguments, broken overrides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.compat.surface.api_surface import ApiDefinition, ApiSurface, NameLookup, Presence
from harness.compat.surface.call_signature import CallSignature
from harness.compat.uses.method_overrides import missing_abstract_methods, override_problem
from harness.compat.uses.use import Use
from harness.compat.uses.use_finding import UseFinding

# Names that torch_npu adds to torch when it is imported (`rename_privateuse1_backend`, `is_hccl_available`).
NPU_NAME = re.compile(r"(?i)npu|hccl|cann|ascend")


def check_uses(
    uses: Iterable[Use],
    providers: Mapping[str, tuple[str, ApiSurface]],
    consumer: ApiSurface,
    made_for: Mapping[str, ApiSurface] | None = None,
) -> tuple[UseFinding, ...]:
    """Find the uses that the providers do not support, sorted by place.

    providers: top-level name -> "name version" and API surface.

    made_for: top-level name -> the API surface of the version that the consumer was published for, where the
    providers have another version.
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
                    breaks=not use.guarded and kind not in ("patch", "dead-patch"),
                )
            )
    # A missing name makes every use of it fail; only the first is reported.
    unique: dict[tuple[str, str, str], UseFinding] = {}
    for finding in sorted(found, key=lambda f: (f.file, bool(f.guarded), f.line)):
        key = (finding.file, finding.text, "" if finding.kind == "missing" else str(finding.line))
        unique.setdefault(key, finding)
    return tuple(sorted(unique.values(), key=lambda f: (f.file, f.line, f.name)))


@dataclass(frozen=True)
class _UseCheck:
    """One use, the result of looking up its target, and the two packages."""

    use: Use
    answer: NameLookup
    surface: ApiSurface
    consumer: ApiSurface
    made_for: ApiSurface | None

    def problem(self) -> tuple[str, str]:
        """Kind and text of the problem, or two empty strings."""
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
        # An object may be an instance of a subclass with more attributes.
        if self.use.instance and self._bound(missing):
            return "", ""
        text = f"{self.answer.where} has no {missing}"
        # An assigned name need not exist before; its module or class must.
        if self.use.kind != "patch" or self.use.target != f"{self.answer.where}.{missing}":
            return "missing", text
        then = self.made_for.find(self.use.target).presence if self.made_for else Presence.UNKNOWN
        if then is Presence.FOUND and not self._own("is_read", missing):
            return (
                "lost-patch",
                f"{text}, which this assignment replaces in the version it was written for",
            )
        if self._read(missing):
            return "patch", text
        return "dead-patch", f"{text}, and nothing reads the value assigned here"

    def _bound(self, word: str) -> bool:
        top = self.use.target.partition(".")[0]
        theirs = self.surface.mentions(top)
        # The object is an instance of exactly this class, so only code that sets the name adds it. Functions
        # that are assigned to a class also call the object `self`.
        if self.use.instance == "created" and self._makes_itself():
            return theirs.is_set(word) or self._own("is_given", word)
        if theirs.is_bound(word):
            return True
        class_name = self.use.target.removesuffix(f".{word}").rpartition(".")[2]
        another = self.use.instance != "declared" or self._own("is_derived_from", class_name)
        return self._own("is_bound" if another else "is_given", word)

    def _makes_itself(self) -> bool:
        """Whether calling the class creates an instance of it, and not of another class (`__new__`)."""
        made = self.surface.find(self.answer.where).definition
        return made is not None and self.surface.member(made, "__new__").presence is Presence.MISSING

    def _read(self, word: str) -> bool:
        top = self.use.target.partition(".")[0]
        return self.surface.mentions(top).is_mentioned(word) or self._own("is_read", word)

    def _own(self, search: str, word: str) -> bool:
        """Whether a search in the consumer's own text (a method of `PackageText`) succeeds."""
        return any(
            getattr(self.consumer.mentions(package), search)(word) for package in self.consumer.packages
        )

    def _of_override(self) -> tuple[str, str]:
        if self.made_for is None or self.use.signature is None or self.answer.presence is Presence.UNKNOWN:
            return "", ""
        name = self.use.target.rpartition(".")[2]
        if self.answer.presence is Presence.MISSING:
            theirs = self.surface.mentions(self.use.target.partition(".")[0])
            if self.answer.missing != name or theirs.is_mentioned(name) or self._own("is_read", name):
                return "", ""
        elif self.answer.definition is None:
            return "", ""
        then = self.made_for.find(self.use.target).definition
        text = override_problem(name, self.use.signature, self.answer.definition, then, self.surface)
        return ("override", text) if text else ("", "")

    def _of_subclass(self) -> tuple[str, str]:
        definition = self.answer.definition
        if definition is None or not definition.is_class or not self._own("is_called", self.use.class_name):
            return "", ""
        left = missing_abstract_methods(definition, self.use.defines or frozenset(), self.surface)
        if not left:
            return "", ""
        return (
            "abstract",
            f"the class does not define {', '.join(left)}, which {self.use.target} declares abstract",
        )

    def _of_call(self, definition: ApiDefinition) -> tuple[str, str]:
        use = self.use
        signatures = self._signatures(definition)
        problems = [signature.problem(use.arguments) for signature in signatures if use.arguments]
        if not problems or not all(problems) or self._may_be_another():
            return "", ""
        return "arguments", f"{use.target.rpartition('.')[2]}{signatures[0]} {problems[0]}"

    def _may_be_another(self) -> bool:
        """Whether the object may be of a subclass that redefines the method."""
        top, name = self.use.target.partition(".")[0], self.use.target.rpartition(".")[2]
        if self.use.instance not in ("declared", "inherited"):
            return False
        return self.surface.mentions(top).definitions(name) > 1 or self._own("is_bound", name)

    def _signatures(self, definition: ApiDefinition) -> tuple[CallSignature, ...]:
        """The signatures of the definition, one of which a call must fit; none when they are not known."""
        bound = self.use.kind == "super" or bool(self.use.instance)
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
