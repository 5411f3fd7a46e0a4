"""What a module imports of its own package as it is imported itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.compat.surface.api_surface import Surface
from harness.compat.surface.syntax_walk import parse
from harness.compat.uses.use_visitor import own_imports


def imported_modules(
    consumer: Surface, roots: Sequence[str], known: Mapping[str, Sequence[str]]
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


def _read(consumer: Surface, module: str, file: str) -> tuple[str, ...]:
    source = consumer.source(module)
    tree = parse(source)
    return own_imports(tree, source, module, file) if tree else ()
