"""Keeps GitHub from reading mentions and issue references in texts of a cell."""

from __future__ import annotations

import re

# GitHub looks for these after Markdown is rendered: neither a backslash nor an entity keeps it from one
# (github/cmark-gfm issue 181). What stands right behind a word, as in `0.7.0@COMMIT`, is none.
_CALLS = re.compile(r"(?<![\w`])@(?=\w)|#(?=\d)|\bGH-(?=\d)|\bwww(?=\.)", re.IGNORECASE)
ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"


def without_mentions(text: str) -> str:
    """`text` with a zero-width space where GitHub would see a mention, a reference or a bare address."""
    return _CALLS.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, text)
