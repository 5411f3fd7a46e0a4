"""Names the function of verl that returned a container without the key that another function reads.

An exception about a missing key is raised where the key is read. The container came from a function that
should have stored it: the values that functions return are recorded while the call is repeated, and the
position of the failing instruction says which variable was read.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


def returned_without_key(call: Callable[[], object]) -> CodeType | None:
    """The function of verl whose result lacks the key because of which `call` raises KeyError; None if it
    raises none, or the container was made elsewhere."""
    returned: dict[int, tuple[object, CodeType]] = {}

    def watch(frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and value is not None and _is_of_verl(frame):
            # The values are kept, so that no other one gets their identity.
            for one in (value, *(value if isinstance(value, tuple) else ())):
                returned[id(one)] = (one, frame.f_code)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    except KeyError as error:
        sys.setprofile(before)
        container = _container(error)
        _, function = returned.get(id(container), (None, None))
        return function
    except Exception:  # noqa: BLE001 - not what was asked for
        return None
    finally:
        sys.setprofile(before)
    return None


def _is_of_verl(frame: FrameType) -> bool:
    code = frame.f_code
    return "/verl/" in code.co_filename and not code.co_name.startswith("<")


def _container(error: KeyError) -> object:
    """The value of the variable in which the innermost function of verl looked for the key."""
    tracebacks = [error.__traceback__]
    while (last := tracebacks[-1]) is not None:
        tracebacks.append(last.tb_next)
    inner = next((one for one in reversed(tracebacks) if one is not None and _is_of_verl(one.tb_frame)), None)
    if inner is None or not hasattr(inner.tb_frame.f_code, "co_positions"):  # Python 3.10
        return None
    code = inner.tb_frame.f_code
    line, _, column, _ = list(code.co_positions())[inner.tb_lasti // 2]
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError:
        return None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    indent = len(lines[0]) - len(lines[0].lstrip())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Subscript, ast.Call)) and (line, column) == (
            node.lineno + first - 1,
            node.col_offset + indent,
        ):
            return inner.tb_frame.f_locals.get(_root(node))
    return None


def _root(node: ast.expr) -> str:
    """The variable with which an expression of attributes, subscripts and calls begins."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
