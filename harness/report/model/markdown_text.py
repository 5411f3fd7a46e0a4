"""Text inside Markdown: escaped, or as a code block."""

from __future__ import annotations

import re
from functools import lru_cache

from harness.report.model.visible_text import clip, visible
from harness.verdict.gate.mention import without_mentions

_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")
_FENCE = re.compile(r"`{3,}")


@lru_cache(maxsize=16_384)
def escape(text: str) -> str:
    """Escaped text: it contains no markup, link, mention or end of a table cell."""
    flat = without_mentions(" ".join(visible(clip(text, 400)).split()))
    return _SPECIAL.sub(r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def code_block(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any in the text."""
    shown = visible(text)
    fence = "`" * max([3, *(len(found) + 1 for found in _FENCE.findall(shown))])
    return f"{fence}{language}\n{shown}\n{fence}"
