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


def words_around_sources(text: str) -> list[str]:
    """The words of a text in which unknown parts stand as they are written, which end no word.

    The value of `$(( (A + B) / C ))` has no blanks, although its source has.
    """
    words: list[str] = []
    start = at = 0
    is_balanced = True
    while at < len(text):
        if text[at].isspace():
            words += [text[start:at]] if start < at else []
            start = at = at + 1
            continue
        end = _source_end(text, at) if is_balanced else 0
        # After one without an end, no other is searched: that would take quadratic time.
        is_balanced, at = end > 0, max(end, at + 1)
    return [*words, text[start:]] if start < len(text) else words


def _source_end(text: str, start: int) -> int:
    """The end of an expansion that starts here, else of this character; 0 if the expansion has no end."""
    if text[start] == "`":
        return text.find("`", start + 1) + 1
    opening = text[start + 1 : start + 2]
    if text[start] != "$" or opening not in ("(", "{"):
        return start + 1
    closing = ")" if opening == "(" else "}"
    depth, at = 0, start + 1
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"":
            at = text.find(char, at + 1)
            if at < 0:
                return 0
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return 0
