"""The text that bash's `printf` makes of a format and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.compat.lint.shell.escapes import decoded
from harness.compat.lint.shell.values import MAX_TEXT, Expansion, TooLargeError, joined

_PIECE = re.compile(
    r"(?P<escape>\\(?:x[0-9a-fA-F]{1,2}|[uU][0-9a-fA-F]{1,8}|[0-7]{1,3}|.))|%%"
    r"|%(?P<flags>[-+ #0]*\d{0,4}(?:\.\d{1,4})?)(?P<kind>[a-zA-Z])",
    re.DOTALL,
)
MAX_ROUNDS = 1_000


def printed(words: Sequence[Expansion]) -> Expansion | None:
    """The text of `printf FORMAT ARGUMENTS`; None if it is not known. It is used again for the rest."""
    if not words or words[0].unknown:
        return None
    pieces: list[Expansion] = []
    waiting = list(words[1:])
    for _ in range(MAX_ROUNDS):
        before = len(waiting)
        found = _round(words[0].text, waiting)
        if found is None:
            return None
        pieces += found
        if not waiting or len(waiting) == before:
            return joined(pieces)
    raise TooLargeError(f"printf uses its format more than {MAX_ROUNDS:,} times")


def _round(template: str, waiting: list[Expansion]) -> list[Expansion] | None:
    """The format used once, with the first of the waiting arguments, which are taken away."""
    pieces: list[Expansion] = []
    position = 0
    for match in _PIECE.finditer(template):
        pieces.append(Expansion(text=template[position : match.start()]))
        position = match.end()
        if match["escape"] is not None:
            pieces.append(Expansion(text=decoded(match["escape"])))
        elif match["kind"] is None:
            pieces.append(Expansion(text="%"))
        else:
            value = _converted(
                match["flags"], match["kind"], waiting.pop(0) if waiting else Expansion(text="")
            )
            if value is None:
                return None
            pieces.append(value)
    return [*pieces, Expansion(text=template[position:])]


def _converted(flags: str, kind: str, value: Expansion) -> Expansion | None:
    if value.unknown:
        return value if kind in "sbdi" else None
    try:
        match kind:
            case "s" | "b":
                text = decoded(value.text) if kind == "b" else value.text
                if flags:
                    text = f"%{flags.replace('0', '') if '.' not in flags else flags}s" % text
            case "d" | "i" | "x" | "X" | "o":
                text = f"%{flags}{kind}" % int(value.text.strip() or "0", 0)
            case "e" | "f" | "g" | "E" | "G":
                text = f"%{flags}{kind}" % float(value.text or "0")
            case "q" if re.fullmatch(r"[\w./:=,@%+-]+", value.text):
                text = value.text
            case _:
                return None
    except ValueError:
        return None
    if len(text) > MAX_TEXT:
        raise TooLargeError(f"a value has more than {MAX_TEXT >> 10} KiB")
    return Expansion(text=text)
