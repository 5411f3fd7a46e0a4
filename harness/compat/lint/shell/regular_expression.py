"""Regular expressions of `[[ text =~ pattern ]]`, for those that can be matched in bounded time."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Steps that a match may take at most: the length of the text for each repetition in the pattern, and for
#: each place where a match can begin.
MAX_WORK = 200_000
MAX_PATTERN = 500
_CLASS = re.compile(r"\[\^?\]?(?:\[:\w+:\]|[^\]])*\]")
_NAMED_CLASS = re.compile(r"\[:(\w+):\]")
_NAMED = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "blank": r" \t",
    "xdigit": "0-9A-Fa-f",
    "punct": r"!-/:-@\[-`{-~",
}
_REPEATED = re.compile(r"[*+]|\{\d*,\d*\}")


def match_groups(pieces: Sequence[tuple[str, bool]], text: str) -> tuple[str, ...] | bool | None:
    """The text of the match and of its groups, or False without a match.

    None: it is not known. True: it matches, but bash may choose other groups. pieces: the parts of the
    pattern, and whether each was quoted.
    """
    pattern = "".join(re.escape(part) if quoted else _for_python(part) for part, quoted in pieces)
    written = "".join(part for part, quoted in pieces if not quoted)
    repeated = len(_REPEATED.findall(_CLASS.sub("x", written)))
    if (
        len(pattern) > MAX_PATTERN
        or max(len(text), 2) ** (repeated + 1) > MAX_WORK
        or re.search(r"\)[*+?{]", written)
    ):
        return None
    try:
        found = re.search(pattern, text)
    except (re.error, OverflowError):
        return None
    if found is None:
        return False
    # bash takes the longest alternative, Python the first one.
    return True if "|" in written else tuple(one or "" for one in (found[0], *found.groups()))


def _for_python(part: str) -> str:
    """The part of an extended regular expression of POSIX, as Python writes it."""
    pieces, position = [], 0
    for found in _CLASS.finditer(part):
        pieces += [part[position : found.start()], _class(found[0])]
        position = found.end()
    pieces.append(part[position:])
    return re.sub(r"\$(?=\Z|\))", r"\\Z", "".join(pieces))


def _class(text: str) -> str:
    start = 2 if text.startswith("[^") else 1
    inside = _NAMED_CLASS.split(text[start:-1])
    made = [
        _NAMED.get(one, "")
        if index % 2
        else one.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
        for index, one in enumerate(inside)
    ]
    return f"{text[:start]}{''.join(made)}]"
