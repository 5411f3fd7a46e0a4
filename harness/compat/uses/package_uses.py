"""What a package takes from others, by its sources: each file is parsed once for all that is asked of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from harness.compat.operators.operator_calls import OperatorCall, operator_calls
from harness.compat.surface.api_surface import Surface
from harness.compat.surface.syntax_walk import parse
from harness.compat.uses.use import Reference
from harness.compat.uses.use_visitor import own_imports, references_in
from harness.digest import digest_bytes, digest_json

NOT_SHIPPED = ("tests", "test", "examples", "docs", "benchmarks", "tools")

#: Answers for questions: those that are known, the others made from the questions left and then kept.
Shelf = Callable[[Mapping[str, Callable[[], Any]]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The uses found, and the files that name a provider and that this Python cannot parse.

    calls: of NPU operators. imports: module -> what it imports of its own package as it is imported.
    """

    uses: tuple[Reference, ...]
    unparsed: tuple[str, ...]
    calls: tuple[OperatorCall, ...]
    imports: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            "uses": [use.to_json() for use in self.uses],
            "unparsed": list(self.unparsed),
            "calls": [asdict(call) for call in self.calls],
            "imports": {module: list(targets) for module, targets in self.imports.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reach:
        """The inverse; ValueError, KeyError or TypeError for anything else."""
        return cls(
            uses=tuple(map(Reference.from_json, data["uses"])),
            unparsed=tuple(data["unparsed"]),
            calls=tuple(
                OperatorCall(**{**call, "keywords": tuple(call["keywords"])}) for call in data["calls"]
            ),
            imports={module: tuple(targets) for module, targets in data["imports"].items()},
        )


def _make_all(questions: Mapping[str, Callable[[], Any]]) -> Mapping[str, Any]:
    return {key: make() for key, make in questions.items()}


def reach(consumer: Surface, providers: Collection[str], shelf: Shelf = _make_all) -> Reach:
    """Every use of the `providers` (top-level names) in a package's own modules.

    shelf: where what was found in a file of the same text and place is kept.
    """
    wanted = re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name).encode() for name in sorted(providers)))
    questions: dict[str, Callable[[], Any]] = {}
    modules = {}
    for module, file in consumer.files():
        if file.partition("/")[0] in NOT_SHIPPED or module.partition(".")[0] in providers:
            continue
        source = consumer.source(module)
        if wanted.search(source):
            key = digest_json([sorted(providers), module, file, digest_bytes(source)])
            modules[key] = module
            questions[key] = partial(_in_file, source, module, file, providers)
    answers = shelf(questions)
    parts = [answers[key] for key in questions]
    return Reach.from_json(
        {
            **{
                name: [item for part in parts for item in part[name]]
                for name in ("uses", "unparsed", "calls")
            },
            "imports": {modules[key]: answers[key]["imports"] for key in questions},
        }
    )


def _in_file(source: bytes, module: str, file: str, providers: Collection[str]) -> dict[str, Any]:
    """One file's part of a `Reach`, as JSON."""
    tree = parse(source)
    if tree is None:
        return {"uses": [], "unparsed": [file], "calls": [], "imports": []}
    return {
        "uses": [use.to_json() for use in references_in(tree, source, module, file, providers)],
        "unparsed": [],
        "calls": [asdict(call) for call in operator_calls(tree, file)] if b"npu" in source else [],
        "imports": list(own_imports(tree, source, module, file)),
    }
