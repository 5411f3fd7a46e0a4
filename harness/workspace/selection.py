"""The cells and checks that a command selects, and the errors for names that match nothing."""

from __future__ import annotations

from harness.errors import InputError


def no_match(what: str, wanted: str, known: list[str]) -> InputError:
    """The error for a name that matches nothing, with the nearest known names."""
    import difflib

    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
    if near:
        fix = f"nearest: {', '.join(near)}"
    elif what in {"cell", "check"}:
        fix = f"see `npu-matrix plan` for the {what}s there are"
    else:
        fix = f"one of: {', '.join(known) or 'none'}"
    return InputError(f"no {what} matches {wanted!r}", fix=fix)
