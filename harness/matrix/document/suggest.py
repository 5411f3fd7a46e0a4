"""The nearest known word to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known words, or lists them all when there are few, or ""."""
    import difflib

    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {_either(near)}?"
    return f"known: {', '.join(names)}" if 0 < len(names) <= 20 else ""


def _either(words: list[str]) -> str:
    return " or ".join(repr(word) for word in words)
