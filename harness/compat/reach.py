"""What a package takes from others, by its sources."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from harness.compat.module_names import parse
from harness.compat.reference import Reference
from harness.compat.surface import Surface
from harness.compat.visitor import references_in

NOT_SHIPPED = ("tests", "test", "examples", "docs", "benchmarks", "tools")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The uses found, and the files that name a provider and that this Python cannot parse."""

    uses: tuple[Reference, ...]
    unparsed: tuple[str, ...]


def reach(consumer: Surface, providers: Collection[str], mention: bytes = b"") -> Reach:
    """Every use of the `providers` (top-level names) in a package's own modules that contain `mention`."""
    found: list[Reference] = []
    unparsed = []
    wanted = re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name).encode() for name in sorted(providers)))
    for module, file in consumer.files():
        if file.partition("/")[0] in NOT_SHIPPED or module.partition(".")[0] in providers:
            continue
        source = consumer.source(module)
        if mention in source and wanted.search(source):
            tree = parse(source)
            if tree:
                found.extend(references_in(tree, source, module, file, providers))
            else:
                unparsed.append(file)
    return Reach(uses=tuple(found), unparsed=tuple(unparsed))
