"""Commands in a text stay code in Markdown, and nothing else of the text becomes markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.formats.markdown import unanswered_line
from harness.report.model.markdown_text import prose
from harness.report.model.unanswered import Unanswered


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Run `npu-matrix ledger merge FOLDER`.", "Run `npu-matrix ledger merge FOLDER`."),
        ("`extra_index` of the axis", "`extra_index` of the axis"),
        ("see a|b and `a|b`", "see a\\|b and \\`a\\|b\\`"),
        ("`<img>` and *x*", "\\`&lt;img&gt;\\` and \\*x\\*"),
        ("one ` alone", "one \\` alone"),
        ("", ""),
    ],
)
def test_only_plain_commands_are_code(text: str, shown: str) -> None:
    assert prose(text) == shown


@given(st.text(alphabet="ab `|*_<@#1\n", max_size=60))
def test_any_text_keeps_its_words_and_brings_no_markup(text: str) -> None:
    shown = prose(text)
    outside = re.sub(r"(?<!\\)`[A-Za-z0-9 ._=:/,+-]+`", "", shown)
    assert not re.search(r"(?<!\\)[`|*_]|<", outside)
    assert re.sub(r"[^ab]", "", shown.replace("&lt;", "")) == re.sub(r"[^ab]", "", text)


def test_a_reason_and_what_would_answer_it_are_two_sentences() -> None:
    one = Unanswered(
        results=3, reason="no NPU on this host.", others=0, remedy="Run `npu-matrix run` there.", checks=()
    )
    assert unanswered_line(one) == "3: no NPU on this host. Run `npu-matrix run` there."
