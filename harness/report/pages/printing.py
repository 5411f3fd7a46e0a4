"""Makes every value that templates print safe: hidden characters, length and markup, in one function.

Jinja calls two functions for every value, `finalize` and `escape`. A large report prints millions of values,
most of them repeated names and numbers, so that one cached function is much faster.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.compiler import CodeGenerator
from markupsafe import Markup, escape

from harness.report.model.visible_text import clip, visible

HARD_LIMIT = 20_000
#: Longer texts are not cached, because they rarely repeat.
MAX_CACHED = 120
#: Texts that are the same as HTML: names, versions, digests, commands. Most texts of a large report are such.
_SAFE = re.compile(r"[A-Za-z0-9 _./:=+,@()*%#-]{0,200}").fullmatch


def finalize(value: Any) -> Any:
    """`value` with visible hidden characters and limited length; Jinja escapes it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(clip(value, HARD_LIMIT))


def printed(value: Any) -> str:
    """`value` as HTML: Markup stays unchanged, everything else is escaped."""
    if type(value) is str:
        if _SAFE(value):
            return value
        return _cached(value) if len(value) <= MAX_CACHED else _escaped(value)
    return value if type(value) is Markup else str(escape(finalize(value)))


def _escaped(text: str) -> str:
    return str(escape(finalize(text)))


_cached = lru_cache(maxsize=16_384)(_escaped)


class _Generator(CodeGenerator):
    """Makes compiled templates call `printed` instead of `escape(finalize(...))`."""

    def _output_child_pre(self, node: Any, frame: Any, finalize: Any) -> None:
        if frame.eval_ctx.volatile or not frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.printed(")

    def _output_child_post(self, node: Any, frame: Any, finalize: Any) -> None:
        if frame.eval_ctx.volatile or not frame.eval_ctx.autoescape:
            super()._output_child_post(node, frame, finalize)
        else:
            self.write(")")


class Templates(jinja2.Environment):
    """Templates with autoescape that pass every value to `printed`."""

    code_generator_class = _Generator
    printed = staticmethod(printed)

    def __init__(self, loader: jinja2.BaseLoader, cache: jinja2.BytecodeCache) -> None:
        super().__init__(
            loader=loader,
            autoescape=True,
            bytecode_cache=cache,
            undefined=jinja2.StrictUndefined,
            finalize=finalize,
            trim_blocks=True,
        )
