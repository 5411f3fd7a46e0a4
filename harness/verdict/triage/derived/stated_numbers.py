"""Causes that the numbers in a message prove: two that do not divide, and the sizes of a type of numpy."""

from __future__ import annotations

import re

from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause

_NAME = r"[A-Za-z][\w .\[\]'-]{0,80}?"
_NUMBER = r"[ (=:]{{1,3}}(?P<{}>\d{{1,9}})\b\)?"
#: Up to numpy 1.14 the type had 88 bytes too, but Cython did not write this message yet.
_DTYPE_SIZES = re.compile(r"numpy\.dtype size changed.{0,60}Expected 96 from C header, got 88 from PyObject")
_DIVIDED = re.compile(
    rf"(?P<what>{_NAME}){_NUMBER.format('number')}"
    r" (?:(?:must|should|has to|needs to) be (?:evenly )?(?:divisible by|(?:a )?multiple of)"
    r"|is not (?:evenly )?(?:divisible by|a multiple of)) "
    rf"(?:the )?(?P<by>{_NAME}){_NUMBER.format('divisor')}"
)


def divided_numbers(text: str) -> DerivedCause | None:
    """The two values of a message that refuses them, if the second one does not divide the first one."""
    found = _DIVIDED.search(text)
    if found is None or not int(found["divisor"]) or int(found["number"]) % int(found["divisor"]) == 0:
        return None
    what, by = found["what"].strip(), found["by"].strip()
    divisor = int(found["divisor"])
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=f"{what} is {found['number']}, which is no multiple of {by}, which is {divisor}",
        proof=("both numbers stand in the message",),
        packages=(),
        remedy=(
            f"choose a value of {by} that divides {found['number']}, or another value of {what}; such values "
            "come from parallel sizes (tensor_model_parallel_size), batch sizes and numbers of cards"
        ),
    )


def numpy_sizes(text: str) -> DerivedCause | None:
    """A package that was built for numpy 1 with numpy 2 installed, by the sizes of numpy.dtype."""
    if not _DTYPE_SIZES.search(text):
        return None
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence="the package that is imported was built for numpy 1, and numpy 2 is installed",
        proof=("numpy.dtype has 96 bytes in numpy 1 and 88 in numpy 2; both sizes stand in the message",),
        packages=("numpy",),
        remedy="install numpy 1.26.4, or a release of the package that was built for numpy 2",
    )
