"""What a package takes from others, by its sources."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness.compat.module_names import parse
from harness.compat.reference import Reference
from harness.compat.surface import Surface
from harness.compat.visitor import references_in

NOT_SHIPPED = ("tests", "test", "examples", "docs", "benchmarks", "tools")


def references(consumer: Surface, providers: Collection[str], mention: bytes = b"") -> tuple[Reference, ...]:
    """Every use of the `providers` (top-level names) in a package's own modules that contain `mention`.

    Files this Python cannot parse are left out; `unread` names them.
    """
    found: list[Reference] = []
    wanted = re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name).encode() for name in sorted(providers)))
    for module, file in consumer.files():
        if file.partition("/")[0] in NOT_SHIPPED or module.partition(".")[0] in providers:
            continue
        source = consumer.source(module)
        if mention in source and wanted.search(source):
            tree = parse(source)
            if tree:
                found.extend(references_in(tree, source, module, file, providers))
    return tuple(found)


def unread(consumer: Surface) -> tuple[str, ...]:
    """Files of a package that this Python cannot parse."""
    return tuple(file for module, file in consumer.files() if consumer.names(module) is None)
