"""The messages of exceptions, with their functions and conditions."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from harness.compat.knowledge.raised_messages import VALUE, RaisedMessage, message_lines, raised_messages

SOURCE = """
class Config:
    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"rollout.n must be positive, not {self.n}.")
        elif self.mode == "sync":
            message = "mode sync is not supported by this engine"
            raise errors.ConfigError(message)

def check(a, b):
    assert a % b == 0, "train batch %d cannot be divided by %s" % (a, b)
    try:
        use(a)
    except KeyError as error:
        raise RuntimeError("no model registered " + "under the name {}".format(a)) from error
    raise ValueError("short")
"""


def found(source: str) -> list[tuple[str, str, str, str]]:
    messages = raised_messages("lib/a.py", ast.parse(source))
    return [(one.function, one.error, one.template, one.condition) for one in messages]


def test_each_exception_has_its_function_its_message_and_its_condition() -> None:
    assert found(SOURCE) == [
        ("Config.__post_init__", "ValueError", f"rollout.n must be positive, not {VALUE}.", "self.n < 1"),
        (
            "Config.__post_init__",
            "ConfigError",
            "mode sync is not supported by this engine",
            "not (self.n < 1) and self.mode == 'sync'",
        ),
        (
            "check",
            "AssertionError",
            f"train batch {VALUE} cannot be divided by {VALUE}",
            "not (a % b == 0)",
        ),
        ("check", "RuntimeError", f"no model registered under the name {VALUE}", ""),
    ]


def test_a_message_without_words_and_a_file_that_is_no_python_have_none() -> None:
    assert found('raise ValueError(f"{a}: {b}")') == []
    assert message_lines("a.py", b"def (") == b""


@given(st.lists(st.text(), min_size=5, max_size=5))
def test_a_line_gives_the_message_back(parts: list[str]) -> None:
    message = RaisedMessage(*parts)
    line = message.to_line()
    assert "\n" not in line
    assert RaisedMessage.from_line(line.encode("utf-8", "surrogatepass")) == message
