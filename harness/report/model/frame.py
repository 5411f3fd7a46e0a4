"""The frame of a report: green only if all that was planned is decided, and as expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import EXIT_BAD_INPUT, EXIT_CODES, EXIT_OK, EXIT_UNEXPECTED
from harness.report.model.marks import Mark

EXIT_WORDS = {0: "as expected", 1: "unexpected", 2: "bad input", 3: "nothing selected", 130: "interrupted"}
INCOMPLETE = "incomplete"
#: The marks that say whether the cell has the property. An error says nothing, also an expected one.
DECIDED = frozenset({Mark.PASS, Mark.FAIL, Mark.KNOWN_FAIL, Mark.UNEXPECTED_PASS, Mark.UNSUPPORTED})


@dataclass(frozen=True, kw_only=True)
class Frame:
    """kind: `ok` (green), `bad` (red) or `open` (dashed). word: in the frame. meaning: why, as a sentence."""

    kind: str
    word: str
    meaning: str


def frame_of(counts: Mapping[Mark, int], *, exit_code: int | None, selection: str) -> Frame:
    """The frame for the results by mark.

    exit_code: None if the run recorded none. selection: options that selected a part of the profile.
    """
    planned = sum(counts.values())
    undecided = sum(count for mark, count in counts.items() if mark not in DECIDED)
    unexpected = counts.get(Mark.FAIL, 0) + counts.get(Mark.UNEXPECTED_PASS, 0)
    if unexpected or exit_code in {EXIT_UNEXPECTED, EXIT_BAD_INPUT}:
        code = EXIT_BAD_INPUT if exit_code == EXIT_BAD_INPUT else EXIT_UNEXPECTED
        return Frame(kind="bad", word=EXIT_WORDS[code], meaning=f"Exit code {code}: {EXIT_CODES[code]}.")
    if exit_code not in {None, EXIT_OK}:
        meaning = f"Exit code {exit_code}: {EXIT_CODES.get(exit_code or 0, 'unknown')}."
        return Frame(kind="open", word=EXIT_WORDS.get(exit_code or 0, INCOMPLETE), meaning=meaning)
    if not planned:
        return Frame(
            kind="open", word="nothing planned", meaning="No check was planned, so nothing was proved."
        )
    if undecided:
        meaning = f"{undecided} of {planned} planned checks are not decided, so this is no green."
        return Frame(kind="open", word="not all decided", meaning=meaning)
    if selection:
        meaning = f"Only a part of the profile was run ({selection})."
        return Frame(kind="open", word="a part only", meaning=meaning)
    return Frame(kind="ok", word=EXIT_WORDS[EXIT_OK], meaning="Every planned check is decided, as expected.")
