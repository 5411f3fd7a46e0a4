"""Text inside Markdown: escaped, or as a code block."""

from __future__ import annotations

import re
from functools import lru_cache

from harness.report.model.visible_text import clip, visible
from harness.verdict.gate.mention import without_mentions

_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")
#: A command in a text; what Markdown or a mention could read otherwise is no such command.
_CODE = re.compile(r"`([A-Za-z0-9 ._=:/,+-]+)`")
_FENCE = re.compile(r"`{3,}")


@lru_cache(maxsize=16_384)
def escape(text: str) -> str:
    """Escaped text: it contains no markup, link, mention or end of a table cell."""
    flat = without_mentions(" ".join(visible(clip(text, 400)).split()))
    return _SPECIAL.sub(r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def prose(text: str, limit: int = 400) -> str:
    """Escaped text in which commands in backticks stay code."""
    parts = _CODE.split(clip(text, limit))
    return "".join(f"`{part}`" if at % 2 else _escaped(part) for at, part in enumerate(parts)).strip()


def _escaped(part: str) -> str:
    """`escape`, which keeps one space at each end."""
    ends = [" " if part[at : at + 1 or None].isspace() else "" for at in (0, -1)]
    return f"{ends[0]}{escape(part)}{ends[1]}" if part.strip() else " " * bool(part)


def code_block(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any in the text."""
    shown = visible(text)
    fence = "`" * max([3, *(len(found) + 1 for found in _FENCE.findall(shown))])
    return f"{fence}{language}\n{shown}\n{fence}"
