"""Prevents GitHub from finding mentions and issue references in texts of a cell."""

from __future__ import annotations

import re

# GitHub searches for these after it has rendered Markdown, so neither a backslash nor an entity prevents it
# (github/cmark-gfm issue 181). Directly after a word, as in `0.7.0@COMMIT`, it is not a mention.
_MENTIONS = re.compile(r"(?<![\w`])@(?=\w)|#(?=\d)|\bGH-(?=\d)|\bwww(?=\.)", re.IGNORECASE)
ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"


def without_mentions(text: str) -> str:
    """`text` with a zero-width space in each mention, issue reference and bare address."""
    return _MENTIONS.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, text)
