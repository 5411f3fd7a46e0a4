"""What pydantic says of a value that the type of a field does not take: class, field, value and type."""

from __future__ import annotations

import re

from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause

#: `1 validation error for ParallelConfig data_parallel_backend Input should be 'ray' or 'mp'
#: [type=literal_error, input_value='x', input_type=str]`; it prints them on three lines.
_REFUSED = re.compile(
    r"\d+ validation errors? for (?P<owner>\w{1,80})\s+(?P<field>[\w.]{1,120})\s+"
    r"(?P<wanted>Input should be .{1,300}?) \[type=\w{1,40}, input_value=(?P<value>.{1,200}?), input_type="
)
_CONFIGURATION = re.compile(r"(?:Config|Args|Arguments|Settings|Options)$")


def refused_value(text: str) -> DerivedCause | None:
    """The field of a configuration and what it takes, from pydantic's message; None for another text.

    Of data, such as a request of a client, it says nothing about settings.
    """
    found = _REFUSED.search(text)
    if found is None or not _CONFIGURATION.search(found["owner"]):
        return None
    field, value = found["field"], found["value"]
    wanted = found["wanted"].replace("Input should be", "it should be")
    return DerivedCause(
        degree=Degree.PROVEN,
        sentence=f"`{found['owner']}` refuses the value {value} of its field `{field}`: {wanted}",
        proof=("message of pydantic",),
        packages=(),
        remedy=f"change the setting or option `{field}`; scripts for other releases may use other values",
    )
