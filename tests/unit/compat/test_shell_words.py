"""Braces and patterns are what bash makes of them, in bounded time."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.compat.lint.shell.braces import expand_braces
from harness.compat.lint.shell.glob_pattern import TooMuchWorkError, parse_glob
from harness.compat.lint.shell.values import TooLargeError
from harness.compat.lint.shell.word_splitting import words_around_sources


def bash(script: str, *arguments: str) -> str:
    command = ["bash", "--norc", "--noprofile", "-c", f"LC_ALL=C\n{script}", "bash", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={}).stdout


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([*"{{{}}},,ab$", "..", "1", "3", "09", "-2", "c", "e"]), max_size=12).map(
        "".join
    )
)
@example("{a,{b,c}d}e{1..3}{x}")
@example("{10..1..4}{-01..2}{c..a..2}")
@example("a{b,c}{,d}{}{e}")
def test_braces_become_what_bash_makes_of_them(text: str) -> None:
    if "$" in text.replace("${", ""):
        text = text.replace("$", "")
    if "${" in text:
        # What bash makes of a parameter is another step.
        return
    words = ["".join(parts) for parts in expand_braces([text])]
    assert [word for word in words if word] == bash(f"printf '%s\\n' {text}").split()


@pytest.mark.parametrize(
    "text",
    [
        "{a,b}" * 30,
        "{1..1000000000}",
        "{1..999999}" * 3,
        "{a," * 200 + "b" + "}" * 200,
        "{" * 30_000 + "{a,b}" * 20,
    ],
)
def test_words_without_bound_are_refused(text: str) -> None:
    with pytest.raises(TooLargeError):
        expand_braces(text)


PATTERNS = st.lists(
    st.sampled_from(
        ["*", "**", "?", "a", "b", "-", "[ab]", "[!a]", "[^b-z]", "[z-a]", "[]a]", "[a", "]", "\\*", "\\a"]
    )
    | st.sampled_from(["[[:alpha:]]", "[[:digit:]-]", "[a-]"]),
    max_size=6,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=st.text("ab*-]1", max_size=8), pattern=PATTERNS)
@example(text="aab", pattern="*[a")
@example(text="", pattern="*")
def test_patterns_match_as_in_bash(text: str, pattern: str) -> None:
    glob = parse_glob([(pattern, False)])
    script = """
        if [[ $1 == $2 ]]; then echo yes; else echo no; fi
        printf '%s\\n' "${1#$2}" "${1##$2}" "${1%$2}" "${1%%$2}" "${1/$2/X}" "${1//$2/X}" "${1/#$2/X}" "${1/%$2/X}"
    """
    expected = bash(script, text, pattern).split("\n")[:9]
    found = [
        "yes" if glob.matches(text) else "no",
        glob.without_start(text, longest=False),
        glob.without_start(text, longest=True),
        glob.without_end(text, longest=False),
        glob.without_end(text, longest=True),
        glob.replaced(text, "X", every=False),
        glob.replaced(text, "X", every=True),
        glob.replaced_start(text, "X"),
        glob.replaced_end(text, "X"),
    ]
    assert found == expected


def test_quoted_characters_are_not_special() -> None:
    glob = parse_glob([("a*", True), ("*", False)])
    assert glob.matches("a*b")
    assert not glob.matches("ab")


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*c", "*?*?*?*?c", "*" * 3000 + "c"])
def test_patterns_that_would_backtrack_are_matched(pattern: str) -> None:
    glob, text = parse_glob([(pattern, False)]), "a" * 5000
    assert not glob.matches(text)
    assert glob.without_start(text, longest=True) == glob.without_end(text, longest=False) == text


def test_texts_that_are_too_long_are_not_matched() -> None:
    glob = parse_glob([("*a" * 1000, False)])
    for match in (glob.matches, lambda text: glob.replaced(text, "", every=True)):
        with pytest.raises(TooMuchWorkError):
            match("a" * 100_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$(( (A + B) / C ))", 1),
        ("x$(((A + B) / C))-y z", 2),
        ('$(date "+%s )" -d "$(cat (x) y)")', 1),
        ("${a:-b {c} d} `e f` g", 3),
        ("$(open $(a b) c", 4),
        (" $(a b)\n${c d} ", 2),
        ("$( \\) b)", 1),
        ("$ { a", 3),
    ],
)
def test_the_source_of_an_unknown_part_is_no_word_boundary(text: str, words: int) -> None:
    assert len(words_around_sources(text)) == words
    assert "".join("".join(words_around_sources(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["$(" * 60_000, "${'" * 60_000, "`" * 60_001, "$(a)b " * 20_000])
def test_long_sources_are_split_in_linear_time(text: str) -> None:
    assert words_around_sources(text)
