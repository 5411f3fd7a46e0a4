from __future__ import annotations

import pytest

from harness.matrix.model.constraints import Constraint
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix

TEXT = """
format: 1
axes:
  verl: {{title: t, scheme: pep440, source: s}}
  torch: {{title: t, scheme: pep440, source: s}}
  torch_npu: {{title: t, scheme: pep440, source: s}}
  cann: {{title: t, scheme: cann, source: s}}
  python: {{title: t, scheme: python, source: s}}
  soc: {{title: t, scheme: name, source: s}}
published:
  npu:
    title: t
    source: s
    date: 2026-01-01
    key: torch_npu
    columns: [torch_npu, cann, python, other]
    rows:
      - [2.7.1, 8.3.RC1, ">=3.9,<3.12", x]
      - [2.9.0, 8.5.0 / 8.5.1, null, x]
constraints:
  rule: {{{rule}, reason: because, source: s}}
profiles:
  default: {{title: t, select: [{{product: {{verl: [1]}}}}]}}
"""


def matrix(rule: str) -> Matrix:
    return parse_matrix(TEXT.format(rule=rule))


def violation(rule: str, **axes: str) -> str:
    loaded = matrix(rule)
    return loaded.constraints["rule"].violation(loaded.versions(axes))


def test_when_decides_whether_a_constraint_speaks() -> None:
    rule = "when: {verl: '>=0.9', soc: [a2, a3]}, require: {python: '<3.13'}"
    assert violation(rule, verl="0.9.1", soc="a3", python="3.13") == "python 3.13 is not <3.13"
    assert not violation(rule, verl="0.9.1", soc="a3", python="3.12")
    assert not violation(rule, verl="0.8.0", soc="a3", python="3.13")
    assert not violation(rule, verl="0.9.1", soc="a5", python="3.13")


def test_an_axis_without_a_value_violates_nothing() -> None:
    assert not violation("when: {verl: '*'}, require: {python: '<3'}", python="3.13")
    assert not violation("require: {python: '<3'}", verl="1")
    assert not violation("forbid: {python: '*', verl: '*'}", verl="1")
    assert not violation("require: {torch_npu: {same_as: torch}}", torch="1")


def test_the_host_interpreter_violates_nothing_yet() -> None:
    assert not violation("require: {python: '<3'}", python="host")
    assert not violation("forbid: {python: '<4'}", python="host")
    assert not violation("when: {python: '<4'}, forbid: {verl: '*'}", python="host", verl="1")
    assert not violation("require: {python: {table: npu}}", python="host", torch_npu="2.7.1")


def test_forbid_needs_all_of_its_conditions() -> None:
    rule = "forbid: {verl: 1, soc: a2}"
    assert violation(rule, verl="1", soc="a2") == "verl 1 with soc a2"
    assert not violation(rule, verl="1", soc="a3")


def test_agreement_of_releases_and_of_whole_versions() -> None:
    release = "require: {torch_npu: {same_as: torch, part: release}}"
    assert not violation(release, torch="2.7.1", torch_npu="2.7.1.post2")
    assert not violation(release, torch="2.7.1+cpu", torch_npu="2.7.1@v7")
    assert (
        violation(release, torch="2.8.0", torch_npu="2.7.1")
        == "torch_npu 2.7.1 and torch 2.8.0 differ in release"
    )
    minor = "require: {torch_npu: {same_as: torch, part: minor}}"
    assert not violation(minor, torch="2.7.0", torch_npu="2.7.1.post2")
    assert violation(minor, torch="2.8.0", torch_npu="2.7.1")
    whole = "require: {torch_npu: {same_as: torch}}"
    assert violation(whole, torch="2.7.1", torch_npu="2.7.1.post2")
    assert not violation(whole, torch="2.7.1", torch_npu="2.7.1")


def test_a_published_table_decides_for_the_rows_it_has() -> None:
    rule = "require: {cann: {table: npu}}"
    assert violation(rule, torch_npu="2.7.1", cann="8.5.0") == (
        "torch_npu 2.7.1 is published with cann 8.3.RC1, not 8.5.0"
    )
    assert not violation(rule, torch_npu="2.7.1", cann="8.3.rc1")
    assert violation(rule, torch_npu="2.7.1@v7.2", cann="8.5.0")
    assert not violation(rule, torch_npu="2.8.0", cann="8.5.0")


def test_a_field_may_hold_alternatives_or_a_specifier_or_nothing() -> None:
    assert not violation("require: {cann: {table: npu}}", torch_npu="2.9.0", cann="8.5.1")
    assert "8.5.0 or 8.5.1" in violation("require: {cann: {table: npu}}", torch_npu="2.9.0", cann="9.0.0")
    rule = "require: {python: {table: npu}}"
    assert not violation(rule, torch_npu="2.7.1", python="3.10.12")
    assert violation(rule, torch_npu="2.7.1", python="3.12")
    assert not violation(rule, torch_npu="2.9.0", python="3.12")


def test_a_column_may_have_another_name_than_the_axis() -> None:
    assert violation("require: {soc: {table: npu, column: other}}", torch_npu="2.7.1", soc="y")
    assert not violation("require: {soc: {table: npu, column: other}}", torch_npu="2.7.1", soc="x")


@pytest.mark.parametrize(
    ("rule", "axes"),
    [
        ("when: {verl: 1}, require: {cann: {table: npu}}", ("verl", "cann", "torch_npu")),
        ("forbid: {verl: 1, soc: a2}", ("verl", "soc")),
        ("require: {torch_npu: {same_as: torch}}", ("torch_npu", "torch")),
    ],
)
def test_a_constraint_names_every_axis_it_reads(rule: str, axes: tuple[str, ...]) -> None:
    constraint: Constraint = matrix(rule).constraints["rule"]
    assert constraint.axes == axes
