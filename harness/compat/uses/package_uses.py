"""Find everything that a package uses from other packages. Each file is parsed only once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.operator_calls import OperatorCall, find_operator_calls
from harness.compat.uses.use import Use
from harness.compat.uses.use_visitor import own_imports_in_file, uses_in_file
from harness.digest import digest_bytes, digest_json
from harness.sources.python_syntax import parse_source

NOT_SHIPPED = ("tests", "test", "examples", "docs", "benchmarks", "tools")


@dataclass(frozen=True, kw_only=True)
class PackageUses:
    """What a package, or one file of it, uses.

    unparsed: files that mention a provider and that this Python version cannot parse.
    calls: calls of NPU operators.
    imports: module -> the modules and names of its own package that it imports when it is imported.
    """

    uses: tuple[Use, ...]
    unparsed: tuple[str, ...]
    calls: tuple[OperatorCall, ...]
    imports: Mapping[str, tuple[str, ...]]


def find_uses(
    consumer: ApiSurface, providers: Collection[str], cache: AnalysisCache | None = None
) -> PackageUses:
    """Every use of the `providers` (top-level names) in a package's own modules.

    cache: stores the uses of each file, by its text, its name and the providers.
    """
    names_provider = re.compile(
        rb"\b(?:%s)\b" % b"|".join(re.escape(name).encode() for name in sorted(providers))
    )
    computations: dict[str, Callable[[], PackageUses]] = {}
    for module, file in consumer.files():
        if file.partition("/")[0] in NOT_SHIPPED or module.partition(".")[0] in providers:
            continue
        source = consumer.source(module)
        if names_provider.search(source):
            key = digest_json([sorted(providers), module, file, digest_bytes(source)])
            computations[key] = partial(_uses_in_file, source, module, file, providers)
    if cache is None:
        found = {key: compute() for key, compute in computations.items()}
    else:
        found = cache.get_many(PackageUses, computations)
    parts = [found[key] for key in computations]
    return PackageUses(
        uses=tuple(use for part in parts for use in part.uses),
        unparsed=tuple(file for part in parts for file in part.unparsed),
        calls=tuple(call for part in parts for call in part.calls),
        imports={module: targets for part in parts for module, targets in part.imports.items()},
    )


def _uses_in_file(source: bytes, module: str, file: str, providers: Collection[str]) -> PackageUses:
    tree = parse_source(source)
    if tree is None:
        return PackageUses(uses=(), unparsed=(file,), calls=(), imports={module: ()})
    return PackageUses(
        uses=uses_in_file(tree, source, module, file, providers),
        unparsed=(),
        calls=find_operator_calls(tree, file) if b"npu" in source else (),
        imports={module: own_imports_in_file(tree, source, module, file)},
    )


def imported_modules(
    consumer: ApiSurface, roots: Sequence[str], known: Mapping[str, Sequence[str]]
) -> frozenset[str]:
    """The modules of the package that are imported with `roots`, without imports behind a guard.

    known: module -> its imports, for modules that were parsed already.
    """
    files = dict(consumer.files())
    waiting = [root for root in roots if root in files]
    imported: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in imported or module not in files:
            continue
        imported.add(module)
        waiting.append(module.rpartition(".")[0])
        for target in known[module] if module in known else _imports(consumer, module, files[module]):
            waiting += [target, target.rpartition(".")[0]]
    return frozenset(imported)


def importing_modules(
    consumer: ApiSurface, module: str, known: Mapping[str, Sequence[str]], most: int
) -> frozenset[str]:
    """Modules of the package that cannot be imported without `module`; the search ends with `most` of them.

    known: as in `imported_modules`.
    """
    files = dict(consumer.files())
    waiting, found = [module], {module}
    while waiting and len(found) <= most:
        target = waiting.pop()
        word = re.compile(rb"\b%s\b" % re.escape(target.rpartition(".")[2].encode()))
        for other, file in files.items():
            if (
                other in found
                or file.partition("/")[0] in NOT_SHIPPED
                or not word.search(consumer.source(other))
            ):
                continue
            imports = known[other] if other in known else _imports(consumer, other, file)
            if any(target in {one, one.rpartition(".")[0]} for one in imports):
                found.add(other)
                waiting.append(other)
    return frozenset(found - {module})


def _imports(consumer: ApiSurface, module: str, file: str) -> tuple[str, ...]:
    source = consumer.source(module)
    tree = parse_source(source)
    return own_imports_in_file(tree, source, module, file) if tree else ()
