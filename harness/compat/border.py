"""Uses of one package held against what another one offers: what is missing, what is called wrongly."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.compat.reach import Reference
from harness.compat.signature import Signature
from harness.compat.surface import Answer, Definition, Standing, Surface


@dataclass(frozen=True, kw_only=True)
class BorderFinding:
    """A use that this version of the provider does not bear.

    kind: `missing` (an import or attribute), `arguments` (a call), or `patch` (an assignment to a name that
    is not there, which fails nowhere and changes nothing). guarded and at_import as in `Reference`.
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
        """Whether the line fails when it is reached."""
        return not self.guarded and self.kind != "patch"

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {**asdict(self), "breaks": self.breaks}


def check_border(
    uses: Iterable[Reference], providers: Mapping[str, tuple[str, Surface]]
) -> tuple[BorderFinding, ...]:
    """What the `providers` (top-level name -> "name version" and its surface) do not have, by place."""
    answers: dict[str, Answer] = {}
    found = []
    for use in uses:
        if use.target.partition(".")[0] not in providers:
            continue
        label, surface = providers[use.target.partition(".")[0]]
        if use.target not in answers:
            answers[use.target] = surface.find(use.target)
        text, kind = _problem(use, answers[use.target], surface)
        if text:
            found.append(
                BorderFinding(
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
    unique: dict[tuple[str, str, str], BorderFinding] = {}
    for finding in sorted(found, key=lambda f: (f.file, bool(f.guarded), f.line)):
        key = (finding.file, finding.text, "" if finding.kind == "missing" else str(finding.line))
        unique.setdefault(key, finding)
    return tuple(sorted(unique.values(), key=lambda f: (f.file, f.line, f.name)))


def _problem(use: Reference, answer: Answer, surface: Surface) -> tuple[str, str]:
    if answer.standing is Standing.MISSING:
        text = f"{answer.where} has no {answer.missing}"
        # What is assigned need not be there before; what holds it must.
        whole = f"{answer.where}.{answer.missing}"
        return text, "patch" if use.kind == "patch" and use.target == whole else "missing"
    if answer.standing is Standing.UNKNOWN or use.arguments is None or answer.definition is None:
        return "", ""
    signatures = _callable(answer.definition, surface, bound=use.kind == "super")
    problems = [signature.problem(use.arguments) for signature in signatures]
    if not problems or not all(problems):
        return "", ""
    name = use.target.rpartition(".")[2]
    return f"{name}{signatures[0]} {problems[0]}", "arguments"


def _callable(definition: Definition, surface: Surface, *, bound: bool) -> tuple[Signature, ...]:
    """The signatures a call of the definition must fit one of; none when they are not known."""
    if not definition.is_class:
        decorators = {ast.unparse(one) for one in getattr(definition.node, "decorator_list", ())}
        drop = "classmethod" in decorators or (bound and "staticmethod" not in decorators)
        return tuple(s.bound() if drop else s for s in definition.signatures)
    if any(
        surface.member(definition, name).standing is not Standing.MISSING for name in ("__new__", "__call__")
    ):
        return ()
    if getattr(definition.node, "keywords", ()) or getattr(definition.node, "decorator_list", ()):
        return ()
    maker = surface.member(definition, "__init__").definition
    return tuple(s.bound() for s in maker.signatures) if maker else ()
