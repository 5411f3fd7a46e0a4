"""`advise` compared with every row of the tables that vllm-ascend and verl publish for CANN 8.2 and later."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InputError
from harness.matrix.model.constraints import Condition, PublishedTable, ViolationKind, published_specifiers
from harness.matrix.model.versions import Scheme, parse_specifier, parse_version
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.plan.feasibility.stack_advice import (
    AdviceRequest,
    AdvisedStack,
    Publication,
    advise_stacks,
    stacks_of_authors,
)

ROOT = Path(__file__).parents[3]
OLDEST = parse_version(Scheme.CANN, "8.2.RC1")


@functools.cache
def shipped() -> Matrix:
    return load_matrix(ROOT / "matrix.yaml")


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a table that name a release and a CANN that the benchmark is about."""
    found: PublishedTable = shipped().published[table]
    kept = []
    for row in found.rows:
        fields = {name: value for name, value in zip(found.columns, row, strict=True) if value}
        try:
            parse_version(Scheme.PEP440, fields[found.key])
            cann = parse_version(Scheme.CANN, fields["cann"])
        except (ValueError, KeyError):
            continue
        if not cann < OLDEST:
            kept.append(fields)
    return kept


def only(axis: str, value: str) -> Condition:
    return Condition(axis=axis, specifiers=(parse_specifier(shipped().axes[axis].scheme, value),))


def advised(soc: str, cann: str, *conditions: Condition, needs: tuple[str, ...]) -> tuple[AdvisedStack, ...]:
    request = AdviceRequest(soc=soc, cann=cann, needs=needs, conditions=conditions)
    return advise_stacks(shipped(), request).stacks


def agrees(stack: AdvisedStack, axis: str, text: str) -> bool:
    """Whether a stack has what a field of a table lists, or says which requirement overrules it."""
    specifiers = published_specifiers(shipped().axes[axis].scheme, text)
    if not specifiers or any(one.contains(stack.axes[axis]) for one in specifiers):
        return True
    return any(one.axis == axis and one.text == text for one in stack.overruled)


@pytest.mark.parametrize("soc", ["a2", "a3"])
@pytest.mark.parametrize("row", rows("vllm-ascend"), ids=lambda row: row["vllm_ascend"])
def test_every_row_of_vllm_ascend(row: dict[str, str], soc: str) -> None:
    stacks = advised(soc, row["cann"], only("vllm_ascend", row["vllm_ascend"]), needs=("vllm",))
    assert stacks
    for axis in ("vllm", "torch", "torch_npu", "python", "triton_ascend"):
        if axis in row and axis in stacks[0].axes:
            assert agrees(stacks[0], axis, row[axis]), (axis, row[axis], str(stacks[0].axes[axis]))


@pytest.mark.parametrize("soc", ["a2", "a3"])
@pytest.mark.parametrize("cann", sorted({row["cann"] for row in rows("vllm-ascend")}))
def test_the_newest_row_of_each_cann_is_advised(cann: str, soc: str) -> None:
    listed = [
        parse_version(Scheme.PEP440, row["vllm_ascend"]) for row in rows("vllm-ascend") if row["cann"] == cann
    ]
    newest = max(listed)
    stacks = advised(soc, cann, needs=("vllm",))
    published = [one for one in stacks if one.level is Publication.PUBLISHED]
    assert newest in {one.axes["vllm_ascend"] for one in published}


@pytest.mark.parametrize("row", rows("verl-quickstart"), ids=lambda row: row["verl"])
def test_every_row_of_verl(row: dict[str, str]) -> None:
    conditions = [only("verl", row["verl"])]
    stacks = advised("a2", row["cann"], *conditions, needs=("gspo", "vllm"))
    named = [one for one in stacks if agrees(one, "vllm_ascend", row["vllm_ascend"])]
    assert named, [one.values for one in stacks]
    for axis in ("vllm", "torch", "torch_npu", "python"):
        assert agrees(named[0], axis, row[axis]), (axis, row[axis], str(named[0].axes[axis]))


@pytest.mark.parametrize("soc", ["a2", "a3"])
@pytest.mark.parametrize(
    "cann", ["8.2.RC1", "8.2.RC2", "8.3.RC1", "8.3.RC2", "8.5.0", "8.5.1", "9.0.0", "9.0.2", "9.1.0"]
)
def test_no_advised_stack_violates_a_rule_and_none_is_older_than_a_better_one(cann: str, soc: str) -> None:
    stacks = advised(soc, cann, needs=("gspo", "vllm"))
    assert stacks
    for one in stacks:
        found = shipped().violations.of(one.axes, ())
        assert all(violation.kind is ViolationKind.UNLISTED for violation in found)
        assert str(one.axes["device"]) == "npu"
        assert ".dev" not in str(one.axes["verl"])
        assert not any(
            other.departures <= one.departures
            and one.axes["verl"] < other.axes["verl"]
            and one.axes["vllm_ascend"] < other.axes["vllm_ascend"]
            and other.cann_distance <= one.cann_distance
            for other in stacks
        )
    assert [one.departures for one in stacks] == sorted(one.departures for one in stacks)


@pytest.mark.parametrize(
    ("cann", "engine"),
    # The nearest CANN that a row lists: 9.0.0, 9.0.1, 8.5.1 and 8.2.RC1.
    [("9.0.0-beta.2", "0.22.1rc1"), ("9.0.2", "0.23.0rc1"), ("8.5.2", "0.18.0"), ("8.2.RC2", "0.9.1")],
)
def test_kernels_for_the_nearest_cann_come_first(cann: str, engine: str) -> None:
    first = advised("a2", cann, needs=("gspo", "vllm"))[0]
    assert str(first.axes["vllm_ascend"]) == engine


def test_kernels_for_an_older_cann_are_nearer_than_those_for_a_newer_one() -> None:
    def distance(cann: str, release: str) -> tuple[bool, int]:
        (stack, *_rest) = advised("a2", cann, only("vllm_ascend", release), needs=("vllm",))
        return stack.cann_distance

    assert distance("8.5.1", "0.18.0") == (False, 0)
    assert distance("8.5.2", "0.18.0") == (False, 1)
    assert distance("8.5.2", "0.13.0") == (False, 2)
    assert distance("8.5.0", "0.18.0") == (True, 1)
    assert advised("a2", "8.3.RC1", only("vllm_ascend", "0.18.0"), needs=("vllm",)) == ()


def test_stacks_of_authors_for_the_host_are_listed() -> None:
    def names(**more: Any) -> list[str]:
        request = AdviceRequest(**{"soc": "a2", "cann": "8.2.RC2", "needs": ("gspo", "megatron"), **more})
        return [one.name for one in stacks_of_authors(shipped(), request)]

    assert names() == ["gspo-qwen25-3b", "gspo-qwen3-30b-a3b"]
    assert names(python="3.10") == names()
    for other in ({"python": "3.11"}, {"soc": "a3"}, {"arch": "x86_64"}, {"device": "sim"}):
        assert names(**other) == []
    assert names(conditions=(only("verl", ">=0.8"),)) == []
    # A migration is not published by anybody.
    assert names(cann="9.1.0", needs=("grpo",)) == ["verl-main"]
    assert names(cann="9.0.0") == ["verl-0-9-0", "verl-0-8-0"]


def test_a_cann_that_nobody_publishes_for_has_no_stack() -> None:
    assert advised("a2", "12.3.0", needs=("gspo", "vllm")) == ()


def test_what_is_newer_but_excluded_is_named_with_its_rule() -> None:
    advice = advise_stacks(shipped(), AdviceRequest(soc="a2", cann="9.1.0", needs=("gspo", "vllm")))
    assert any("transformers" in reason for one in advice.rejected for reason in one.reasons)


def test_a_need_decides_what_is_in_a_stack() -> None:
    (without, *_rest) = advised("a2", "8.5.0", needs=("grpo",))
    assert "vllm" not in without.axes
    assert "torch_npu" in without.axes
    gspo = advised("a2", "8.2.RC1", needs=("gspo", "vllm"))
    assert all(str(one.axes["verl"]) >= "0.6.0" for one in gspo)
    with pytest.raises(InputError, match="unknown need"):
        AdviceRequest(soc="a2", cann="8.5.0", needs=("grp",))


def test_the_python_of_the_host_is_kept_or_there_is_no_stack() -> None:
    request = AdviceRequest(soc="a2", cann="8.5.0", python="3.10", needs=("gspo", "vllm"))
    assert {str(one.axes["python"]) for one in advise_stacks(shipped(), request).stacks} == {"3.10"}
    request = AdviceRequest(soc="a2", cann="8.5.0", python="3.13", needs=("gspo", "vllm"))
    found = advise_stacks(shipped(), request)
    assert all(one.level is Publication.DEPARTS for one in found.stacks)


def test_a_release_on_the_index_that_no_table_lists_is_a_candidate_and_called_undocumented() -> None:
    newest = shipped().axes["verl"].parse("0.10.0")
    request = AdviceRequest(soc="a2", cann="9.1.0", needs=("gspo", "vllm"))
    found = advise_stacks(shipped(), request, {"verl": [newest]})
    (stack,) = [one for one in found.stacks if one.axes["verl"] == newest][:1]
    assert "verl" in stack.undocumented
    assert stack.level is not Publication.PUBLISHED
