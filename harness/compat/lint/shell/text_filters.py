"""Programs that only change a text: `tr`, `cut`, `sed` and the like, for a text that is known."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

_CLASSES = {
    "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz",
    "[:digit:]": "0123456789",
    "[:space:]": " \t\n\r\v\f",
    "[:blank:]": " \t",
}
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
_RANGE = re.compile(r"(\[:\w+:\])|(\\.)|(.)-(.)|(.)", re.DOTALL)
#: `s` with a pattern that is a text: no character of it is special in a regular expression.
_PLAIN_SUBSTITUTION = re.compile(
    r"s(?P<mark>[/|#,:@])(?P<old>[\w ./=-]+)(?P=mark)(?P<new>[\w ./='\"-]*)(?P=mark)(?P<all>g?)"
)
_INTEGER = re.compile(r"[+-]?\d{1,18}")
#: `seq` makes at most one number more than loops are read.
MAX_NUMBERS = 201
#: Characters of a range of `tr`.
MAX_RANGE = 128
Words = Sequence[str]


def filtered(name: str, words: Words, text: str | None) -> str | None:
    """What a program prints; None if it is not known. text: its standard input, None if it is not known."""
    if name in _WITHOUT_INPUT:
        return _WITHOUT_INPUT[name](words)
    found = _FILTERS.get(name)
    return found(words, text) if found is not None and text is not None else None


def _basename(words: Words) -> str | None:
    if not words or words[0].startswith("-"):
        return None
    name = posixpath.basename(words[0].rstrip("/"))
    return (name.removesuffix(words[1]) if len(words) > 1 else name) + "\n"


def _dirname(words: Words) -> str | None:
    if len(words) != 1:
        return None
    folder = posixpath.dirname(words[0].rstrip("/"))
    return (folder or ("/" if words[0].startswith("/") else ".")) + "\n"


def _seq(words: Words) -> str | None:
    if not 1 <= len(words) <= 3 or not all(_INTEGER.fullmatch(word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    if not step:
        return None
    every = range(first, numbers[-1] + (1 if step > 0 else -1), step)[:MAX_NUMBERS]
    return "".join(f"{number}\n" for number in every)


def _expr(words: Words) -> str | None:
    if len(words) != 3 or not all(_INTEGER.fullmatch(word) for word in (words[0], words[2])):
        return None
    left, right = int(words[0]), int(words[2])
    if words[1] in ("/", "%") and (right == 0 or left < 0 or right < 0):
        return None
    results: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left // right,
        "%": lambda: left % right,
    }
    return f"{results[words[1]]()}\n" if words[1] in results else None


def _conda(words: Words) -> str | None:
    """The hook defines conda's own functions."""
    return "" if words and words[0].startswith("shell.") else None


def _characters(text: str) -> str:
    found = []
    for named, escape, first, last, one in _RANGE.findall(text):
        if named:
            found.append(_CLASSES.get(named, ""))
        elif escape:
            found.append(_ESCAPES.get(escape, escape[1]))
        elif first and ord(last) - ord(first) < MAX_RANGE:
            found.append("".join(map(chr, range(ord(first), ord(last) + 1))))
        else:
            found.append(one)
    return "".join(found)


def _tr(words: Words, text: str) -> str | None:
    if len(words) != 2 or words[0] in ("-s", "-c", "-cd", "-dc"):
        return None
    if words[0] == "-d":
        return text.translate({ord(char): None for char in _characters(words[1])})
    before, after = _characters(words[0]), _characters(words[1])
    if words[0].startswith("-") or not after:
        return None
    after += after[-1] * (len(before) - len(after))
    # The last of several characters that are the same in the first set counts.
    return text.translate(dict(zip(map(ord, before), after, strict=False)))


def _cut(words: Words, text: str) -> str | None:
    given = re.fullmatch(r"(?:-d ?(?P<mark>.) )?-f ?(?P<field>\d+)(?: -d ?(?P<other>.))?", " ".join(words))
    if given is None or given["field"] == "0":
        return None
    mark, place = given["mark"] or given["other"] or "\t", int(given["field"]) - 1
    lines = []
    for line in text.splitlines():
        fields = line.split(mark)
        lines.append(line if len(fields) == 1 else fields[place] if place < len(fields) else "")
    return "".join(f"{line}\n" for line in lines)


def _sed(words: Words, text: str) -> str | None:
    given = [word for word in words if word not in ("-e", "-E", "-r")]
    match = _PLAIN_SUBSTITUTION.fullmatch(given[0]) if len(given) == 1 else None
    if match is None or "." in match["old"]:
        return None
    count = -1 if match["all"] else 1
    return "".join(line.replace(match["old"], match["new"], count) for line in text.splitlines(keepends=True))


def _cat(words: Words, text: str) -> str | None:
    return text if not words or list(words) == ["-"] else None


def _tee(_words: Words, text: str) -> str | None:
    return text


def _ends(words: Words, text: str) -> tuple[list[str], int] | None:
    given = re.fullmatch(r"-(?:n ?)?(\d{1,6})|", " ".join(words))
    return (text.splitlines(keepends=True), int(given[1] or 10)) if given else None


def _head(words: Words, text: str) -> str | None:
    found = _ends(words, text)
    return "".join(found[0][: found[1]]) if found else None


def _tail(words: Words, text: str) -> str | None:
    found = _ends(words, text)
    return "".join(found[0][-found[1] :] if found[1] else []) if found else None


def _wc(words: Words, text: str) -> str | None:
    counts = {"-w": len(text.split()), "-l": text.count("\n"), "-c": len(text.encode())}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


def _sort(words: Words, text: str) -> str | None:
    """`sort`, of numbers or lower case letters: the order of others depends on the language."""
    options = set("".join(word[1:] for word in words if re.fullmatch(r"-[nru]+", word)))
    lines = text.splitlines()
    if len(words) != sum(word.startswith("-") for word in words) or not options <= set("nru"):
        return None
    if "n" in options and all(_INTEGER.fullmatch(line) for line in lines):
        found = sorted(lines, key=lambda line: (int(line), line), reverse="r" in options)
    elif "n" not in options and all(re.fullmatch(r"[a-z]*|\d*", line) for line in lines):
        found = sorted(lines, reverse="r" in options)
    else:
        return None
    return "".join(f"{line}\n" for line in (dict.fromkeys(found) if "u" in options else found))


def _rev(words: Words, text: str) -> str | None:
    return "".join(f"{line[::-1]}\n" for line in text.splitlines()) if not words else None


def _paste(words: Words, text: str) -> str | None:
    given = re.fullmatch(r"-s ?-?d ?(.)(?: -)?|-s -d ?(.)(?: -)?|-d ?(.) -s(?: -)?", " ".join(words))
    mark = next(filter(None, given.groups()), "") if given else ""
    return f"{mark.join(text.splitlines())}\n" if given else None


def _awk(words: Words, text: str) -> str | None:
    """`awk '{print $N}'`, also with `-F MARK`."""
    given = re.fullmatch(
        r"(?:-F ?(?P<mark>[^ .*+?|\\^$()\[\]{}]) )?\{ *print \$(?P<field>\d+|NF) *;? *\}", " ".join(words)
    )
    if given is None:
        return None
    lines = []
    for line in text.splitlines():
        fields = line.split(given["mark"]) if given["mark"] else line.split()
        place = len(fields) if given["field"] == "NF" else int(given["field"])
        lines.append(line if not place else fields[place - 1] if place <= len(fields) else "")
    return "".join(f"{line}\n" for line in lines)


def _xargs(words: Words, text: str) -> str | None:
    return f"{' '.join(text.split())}\n" if not words and not re.search(r"['\"\\]", text) else None


def _bc(words: Words, text: str) -> str | None:
    parts = text.split() if not words else []
    return _expr(parts) if len(parts) == 3 and parts[1] in ("+", "-", "*") else None


_WITHOUT_INPUT: dict[str, Callable[[Words], str | None]] = {
    "basename": _basename,
    "dirname": _dirname,
    "seq": _seq,
    "expr": _expr,
    "conda": _conda,
}
_FILTERS: dict[str, Callable[[Words, str], str | None]] = {
    "tr": _tr,
    "cut": _cut,
    "sed": _sed,
    "cat": _cat,
    "tee": _tee,
    "head": _head,
    "tail": _tail,
    "wc": _wc,
    "sort": _sort,
    "rev": _rev,
    "paste": _paste,
    "awk": _awk,
    "xargs": _xargs,
    "bc": _bc,
}

#: The programs above.
FILTERS = frozenset((*_WITHOUT_INPUT, *_FILTERS))
