from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compat.lint.rule_expression import (
    UNKNOWN,
    UNSET,
    ExpressionError,
    evaluate,
    names_in,
    parse_expression,
)
from harness.matrix.model.versions import Scheme, parse_version


class Values(dict[str, Any]):
    def value(self, name: str) -> Any:
        return self.get(name, UNSET)

    def is_set(self, name: str) -> bool:
        return name in self


FACTS = Values(
    mode="gspo",
    low=3e-4,
    n=2,
    yes=True,
    no=False,
    lost=UNKNOWN,
    verl=parse_version(Scheme.PEP440, "0.10.0"),
    core=parse_version(Scheme.PEP440, "0.16"),
    cann=parse_version(Scheme.CANN, "8.3.RC1"),
)


def truth(text: str) -> Any:
    return evaluate(parse_expression(text), FACTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode == 'gspo'", True),
        ("mode != 'gspo'", False),
        ("mode in ('grpo', 'gspo')", True),
        ("not mode in ('grpo')", True),
        ("low <= 0.0003", True),
        ("n * 2 + 1 == 5", True),
        ("-n < 0", True),
        ("7 % n == 1", True),
        ("verl >= 0.9.1", True),
        ("verl < 0.9", False),
        ("core < 0.16", False),
        ("core == 0.16.0", True),
        ("cann < 8.3.RC2", True),
        ("yes == true and no == false", True),
        ("yes and not no", True),
        ("set(mode) and unset(nothing)", True),
        ("nothing == 1", False),
        ("nothing != 1", True),
        ("nothing < 1", False),
        ("contains(mode, 'sp')", True),
        ("startswith(mode, 'sp')", False),
        ("lost == 1", UNKNOWN),
        ("lost == 1 and no", False),
        ("lost == 1 or yes", True),
        ("lost == 1 or no", UNKNOWN),
        ("not lost", UNKNOWN),
        ("lost in (1, 2)", UNKNOWN),
        ("known(lost)", False),
        ("n / 0 == 1", UNKNOWN),
        ("mode < 3", UNKNOWN),
        ("(yes or no) and no", False),
        ("yes or no and no", True),
    ],
)
def test_values_of_conditions(text: str, expected: Any) -> None:
    assert truth(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode ==", "unexpected end"),
        ("mode == 'gspo' extra", "unexpected 'extra'"),
        ("(mode", "expected ')'"),
        ("exec('x')", "unknown function 'exec'"),
        ("set('x')", "takes a name"),
        ("contains(mode)", "takes 2"),
        ("mode ; other", "cannot be read"),
        ("__import__('os').system('x')", "cannot be read"),
        ("(" * 200 + "yes" + ")" * 200, "too deeply"),
    ],
)
def test_syntax_errors_have_their_column(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text)
    assert message in str(caught.value)
    assert "column" in str(caught.value)


@given(text=st.text(alphabet="ab01.'()=<>!+-*/%, notrdse", max_size=60))
def test_any_text_is_a_condition_or_an_expression_error(text: str) -> None:
    try:
        node = parse_expression(text)
    except ExpressionError:
        return
    evaluate(node, Values())


def test_names_in_a_condition() -> None:
    assert names_in(parse_expression("a.b == 1 and (set(c) or d in (e, 2))")) == {"a.b", "c", "d", "e"}


@given(left=st.sampled_from(["yes", "no", "lost"]), right=st.sampled_from(["yes", "no", "lost"]))
def test_de_morgan_holds_with_three_values(left: str, right: str) -> None:
    assert truth(f"not ({left} and {right})") is truth(f"not {left} or not {right}")
