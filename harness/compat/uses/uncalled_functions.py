"""Functions that nothing in their package calls, such as helpers for debugging.

What such a function uses breaks only for those who call it from outside. A function that only runs when the
interpreter exits counts too: by then the job is done.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Mapping

from harness.compat.surface.api_surface import ApiSurface
from harness.sources.python_syntax import parse_source

_AT_EXIT = re.compile(rb"\batexit\.register\(\s*(\w+)")


def uncalled_functions(
    surface: ApiSurface, files: Collection[str], started: str = ""
) -> Mapping[str, tuple[range, ...]]:
    """File -> the lines of its functions that no other line of the package names.

    Only functions of the top level without a decorator: a method or a decorated function can be called by
    whoever has the object. started: the entry points of the package, whose functions count as called.
    """
    texts = {file: surface.source(module) for module, file in surface.files()}
    functions = {
        (file, one.name): range(one.lineno, (one.end_lineno or one.lineno) + 1)
        for file in files
        if file in texts and (tree := parse_source(texts[file])) is not None
        for one in tree.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.decorator_list
    }
    names = {name.encode() for _file, name in functions}
    if not names:
        return {}
    word = re.compile(rb"\b(?:%s)\b" % b"|".join(map(re.escape, names)))
    named = Counter(word.findall(started.encode()))
    at_exit: Counter[bytes] = Counter()
    for text in texts.values():
        named.update(word.findall(text))
        at_exit.update(_AT_EXIT.findall(text))
    found: dict[str, tuple[range, ...]] = {}
    for (file, name), lines in functions.items():
        own = b"\n".join(texts[file].splitlines()[lines.start - 1 : lines.stop - 1])
        inside = len(re.findall(rb"\b%s\b" % re.escape(name.encode()), own))
        if named[name.encode()] - at_exit[name.encode()] <= inside:
            found[file] = (*found.get(file, ()), lines)
    return found
