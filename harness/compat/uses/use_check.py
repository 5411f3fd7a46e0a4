"""Check uses against the API surface of a provider: missing names, wrong arguments, broken overrides."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.compat.surface.api_surface import ApiDefinition, ApiSurface, NameLookup, Presence
from harness.compat.surface.call_signature import CallSignature
from harness.compat.surface.module_names import has_plain_metaclass
from harness.compat.surface.package_text import PackageText
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
    """Find the uses that the providers do not support, sorted by file and line.

    providers: top-level name -> "name version" and API surface.
    made_for: top-level name -> the API surface of the version that the consumer was published for, where
    `providers` has another version.
    """
    lookups: dict[tuple[str, bool], NameLookup] = {}
    found = []
    for use in uses:
        top = use.target.partition(".")[0]
        if top not in providers:
            continue
        label, surface = providers[top]
        is_module = use.kind == "module"
        key = (use.target, is_module)
        if key not in lookups:
            lookups[key] = surface.find_module(use.target) if is_module else surface.find(use.target)
        lookup = lookups[key]
        if lookup.presence is Presence.UNKNOWN and use.kind in ("call", "super"):
            lookup = surface.find_method(use.target)
        kind, text = _UseCheck(use, lookup, surface, consumer, (made_for or {}).get(top)).problem()
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
    # Every use of a missing name fails; only the first one in a file is reported.
    unique: dict[tuple[str, str, str], UseFinding] = {}
    for finding in sorted(found, key=lambda f: (f.file, bool(f.guarded), f.line)):
        place = "" if finding.kind == "missing" else str(finding.line)
        unique.setdefault((finding.file, finding.text, place), finding)
    return tuple(sorted(unique.values(), key=lambda f: (f.file, f.line, f.name)))


@dataclass(frozen=True)
class _UseCheck:
    """One use, the result of looking up its target, and the API surfaces of provider and consumer."""

    use: Use
    lookup: NameLookup
    surface: ApiSurface
    consumer: ApiSurface
    made_for: ApiSurface | None

    def problem(self) -> tuple[str, str]:
        """Kind and text of the problem, or two empty strings."""
        if self.use.kind == "override":
            return self._override_problem()
        if self.lookup.presence is Presence.MISSING:
            return self._missing_problem()
        if self.use.kind == "subclass" and self.use.defines is not None:
            return self._subclass_problem()
        if self.use.arguments is not None and self.lookup.definition is not None:
            return self._call_problem(self.lookup.definition)
        return "", ""

    def _missing_problem(self) -> tuple[str, str]:
        missing = self.lookup.missing
        if self.use.target.startswith("torch.") and NPU_NAME.search(missing):
            return "", ""
        # An object may be an instance of a subclass with more attributes.
        if self.use.instance and self._may_have(missing):
            return "", ""
        text = f"{self.lookup.where} has no {missing}"
        # A name need not exist before it is assigned, but its module or class must exist.
        if self.use.kind != "patch" or self.use.target != f"{self.lookup.where}.{missing}":
            return "missing", text
        original = self.made_for.find(self.use.target).presence if self.made_for else Presence.UNKNOWN
        read_by_consumer = self._any_consumer_text(PackageText.is_read, missing)
        if original is Presence.FOUND and not read_by_consumer:
            return (
                "lost-patch",
                f"{text}, which this assignment replaces in the version it was written for",
            )
        if read_by_consumer or self._provider_text.is_mentioned(missing):
            return "patch", text
        return "dead-patch", f"{text}, and nothing reads the value assigned here"

    @property
    def _provider_text(self) -> PackageText:
        return self.surface.mentions(self.use.target.partition(".")[0])

    def _any_consumer_text(self, test: Callable[[PackageText, str], bool], word: str) -> bool:
        """Whether a test of `PackageText` is true for the word in one of the consumer's packages."""
        return any(test(self.consumer.mentions(package), word) for package in self.consumer.packages)

    def _may_have(self, word: str) -> bool:
        """Whether the object may have an attribute that its class does not define."""
        # An instance of exactly this class has an additional attribute only if some code assigns it, for
        # example a function that is assigned to the class and calls the object `self`.
        if self.use.instance == "created" and self._creates_own_instance():
            return self._provider_text.is_set(word) or self._any_consumer_text(PackageText.is_assigned, word)
        if self._provider_text.is_bound(word):
            return True
        class_name = self.use.target.removesuffix(f".{word}").rpartition(".")[2]
        may_be_subclass = self.use.instance != "declared" or self._any_consumer_text(
            PackageText.is_derived_from, class_name
        )
        return self._any_consumer_text(
            PackageText.is_bound if may_be_subclass else PackageText.is_assigned, word
        )

    def _creates_own_instance(self) -> bool:
        """Whether calling the class creates an instance of it, and not of another class (`__new__`)."""
        definition = self.surface.find(self.lookup.where).definition
        return definition is not None and (
            self.surface.member(definition, "__new__").presence is Presence.MISSING
        )

    def _override_problem(self) -> tuple[str, str]:
        if self.made_for is None or self.use.signature is None or self.lookup.presence is Presence.UNKNOWN:
            return "", ""
        name = self.use.target.rpartition(".")[2]
        if self.lookup.presence is Presence.MISSING:
            is_used = self._provider_text.is_mentioned(name) or self._any_consumer_text(
                PackageText.is_read, name
            )
            if self.lookup.missing != name or is_used:
                return "", ""
        elif self.lookup.definition is None:
            return "", ""
        original = self.made_for.find(self.use.target).definition
        text = override_problem(name, self.use.signature, self.lookup.definition, original, self.surface)
        return ("override", text) if text else ("", "")

    def _subclass_problem(self) -> tuple[str, str]:
        definition = self.lookup.definition
        if definition is None or not definition.is_class:
            return "", ""
        if not self._any_consumer_text(PackageText.is_called, self.use.class_name):
            return "", ""
        missing = missing_abstract_methods(definition, self.use.defines or frozenset(), self.surface)
        if not missing:
            return "", ""
        return (
            "abstract",
            f"the class does not define {', '.join(missing)}, which {self.use.target} declares abstract",
        )

    def _call_problem(self, definition: ApiDefinition) -> tuple[str, str]:
        use = self.use
        signatures = self._signatures(definition)
        problems = [signature.problem(use.arguments) for signature in signatures if use.arguments]
        if not problems or self._may_be_redefined():
            return "", ""
        if not all(problems):
            moved = self._moved_argument(signatures)
            return ("arguments", f"{use.target.rpartition('.')[2]} {moved}") if moved else ("", "")
        return "arguments", f"{use.target.rpartition('.')[2]}{signatures[0]} {problems[0]}"

    def _moved_argument(self, signatures: Sequence[CallSignature]) -> str:
        """Which positional argument means something else than in the version that the use was written for."""
        definition = self.made_for.find(self.use.target).definition if self.made_for else None
        before = self._signatures(definition, self.made_for) if definition else ()
        if self.use.arguments is None or len(before) != 1 or len(signatures) != 1:
            return ""
        if before[0].problem(self.use.arguments):
            return ""
        moved = signatures[0].moved(self.use.arguments, before[0])
        return f"{moved} in the version it was written for" if moved else ""

    def _may_be_redefined(self) -> bool:
        """Whether the object may be an instance of a subclass that redefines the method."""
        if self.use.instance not in ("declared", "inherited"):
            return False
        name = self.use.target.rpartition(".")[2]
        return self._provider_text.definitions(name) > 1 or self._any_consumer_text(
            PackageText.is_bound, name
        )

    def _signatures(
        self, definition: ApiDefinition, surface: ApiSurface | None = None
    ) -> tuple[CallSignature, ...]:
        """The signatures of the definition, one of which a call must fit; empty when they are not known."""
        if definition.is_class:
            return _constructor_signatures(definition, surface or self.surface)
        decorators = {ast.unparse(decorator) for decorator in getattr(definition.node, "decorator_list", ())}
        on_instance = self.use.kind == "super" or bool(self.use.instance)
        is_bound = "classmethod" in decorators or (on_instance and "staticmethod" not in decorators)
        return tuple(signature.bound() if is_bound else signature for signature in definition.signatures)


def _constructor_signatures(definition: ApiDefinition, surface: ApiSurface) -> tuple[CallSignature, ...]:
    if any(
        surface.member(definition, name).presence is not Presence.MISSING for name in ("__new__", "__call__")
    ):
        return ()
    node = definition.node
    if not (isinstance(node, ast.ClassDef) and has_plain_metaclass(node)) or node.decorator_list:
        return ()
    constructor = surface.member(definition, "__init__").definition
    return tuple(signature.bound() for signature in constructor.signatures) if constructor else ()
