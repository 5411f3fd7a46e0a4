"""Word splitting of bash: the words of a text between the characters of `IFS`."""

from __future__ import annotations

import re

DEFAULT_IFS = " \t\n"


def split_fields(text: str, separators: str, count: int = 0) -> list[str]:
    """The words of a text between separators, as bash splits it. count: at most; the last has the rest."""
    white = "".join(char for char in separators if char in " \t\n")
    others = "".join(char for char in separators if char not in " \t\n")
    text = text.strip(white) if white else text
    if not separators or not text:
        return [text] if text else []
    blank = f"[{re.escape(white)}]" if white else "(?!)"
    mark = rf"{blank}*[{re.escape(others)}]{blank}*|{blank}+" if others else f"{blank}+"
    words = re.split(mark, text, maxsplit=max(count - 1, 0)) if count != 1 else [text]
    # A separator at the end ends the last word and begins no other.
    if words[-1] == "" and others:
        words.pop()
    elif (
        count
        and len(words) == count
        and others
        and re.fullmatch(rf"[^{re.escape(separators)}]*[{re.escape(others)}]", words[-1])
    ):
        words[-1] = words[-1][:-1]
    return words
