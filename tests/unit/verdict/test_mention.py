"""Text of a log must not mention anybody in a comment or a summary."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.report.formats.markdown import escape
from harness.verdict.gate.gate_format import _escaped
from harness.verdict.gate.mention import without_mentions

#: The patterns that GitHub's filters search for in the text of a rendered page.
MENTION = re.compile(r"(?<![\w`])@[A-Za-z0-9]")
REFERENCE = re.compile(r"#\d|\bGH-\d", re.IGNORECASE)


def rendered(markdown: str) -> str:
    return html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown))


@pytest.mark.parametrize("escaped", [escape, _escaped])
@given(
    text=st.lists(
        st.sampled_from(["@octocat", "@org/team", "#12", "GH-3", "a@b", " ", "(", "\\", "&#64;x"])
    ).map("".join)
)
@example(text="RuntimeError: @octocat broke org/repo#12, see GH-3")
def test_nobody_is_called_and_nothing_linked_once_markdown_is_rendered(escaped, text):
    said = rendered(escaped(text))
    assert not MENTION.search(said)
    assert not REFERENCE.search(said)


def test_versions_with_a_commit_and_addresses_of_people_are_left_alone():
    assert (
        without_mentions("verl 0.7.0.dev0@ccd7d934 by me@example.org")
        == "verl 0.7.0.dev0@ccd7d934 by me@example.org"
    )
