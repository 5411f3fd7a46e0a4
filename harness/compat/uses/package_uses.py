"""What a package takes from others, by its sources: each file is parsed once for all that is asked of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.syntax_walk import parse
from harness.compat.uses.operator_calls import OperatorCall, find_operator_calls
from harness.compat.uses.use import Use
from harness.compat.uses.use_visitor import own_imports_in_file, uses_in_file
from harness.digest import digest_bytes, digest_json

NOT_SHIPPED = ("tests", "test", "examples", "docs", "benchmarks", "tools")

#: Answers for questions: those that are known, the others made from the questions left and then kept.
ComputeAll = Callable[[Mapping[str, Callable[[], Any]]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PackageUses:
    """The uses found, and the files that name a provider and that this Python cannot parse.

    calls: of NPU operators. imports: module -> what it imports of its own package as it is imported.
    """

    uses: tuple[Use, ...]
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
    def from_json(cls, data: Mapping[str, Any]) -> PackageUses:
        """The inverse; ValueError, KeyError or TypeError for anything else."""
        return cls(
            uses=tuple(map(Use.from_json, data["uses"])),
            unparsed=tuple(data["unparsed"]),
            calls=tuple(
                OperatorCall(**{**call, "keywords": tuple(call["keywords"])}) for call in data["calls"]
            ),
            imports={module: tuple(targets) for module, targets in data["imports"].items()},
        )


def _make_all(questions: Mapping[str, Callable[[], Any]]) -> Mapping[str, Any]:
    return {key: make() for key, make in questions.items()}


def find_uses(consumer: ApiSurface, providers: Collection[str], shelf: ComputeAll = _make_all) -> PackageUses:
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
    return PackageUses.from_json(
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
        "uses": [use.to_json() for use in uses_in_file(tree, source, module, file, providers)],
        "unparsed": [],
        "calls": [asdict(call) for call in find_operator_calls(tree, file)] if b"npu" in source else [],
        "imports": list(own_imports_in_file(tree, source, module, file)),
    }


def imported_modules(
    consumer: ApiSurface, roots: Sequence[str], known: Mapping[str, Sequence[str]]
) -> frozenset[str]:
    """The package's modules that importing the roots imports, unless a guard stands before it.

    known: of modules that somebody has read already, what each imports.
    """
    files = dict(consumer.files())
    waiting = [root for root in roots if root in files]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in reached or module not in files:
            continue
        reached.add(module)
        waiting.append(module.rpartition(".")[0])
        for target in known[module] if module in known else _read(consumer, module, files[module]):
            waiting += [target, target.rpartition(".")[0]]
    return frozenset(reached)


def _read(consumer: ApiSurface, module: str, file: str) -> tuple[str, ...]:
    source = consumer.source(module)
    tree = parse(source)
    return own_imports_in_file(tree, source, module, file) if tree else ()
