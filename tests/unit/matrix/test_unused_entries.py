from __future__ import annotations

import pytest

from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.reading.unused_entries import find_unused_entries

USED = """\
format: 1
axes:
  verl: {title: t, scheme: pep440, source: s}
  soc: {title: t, scheme: name, source: s, values: {a2: {}, a3: {}}}
stacks:
  row: {title: t, source: s, recipe: child, axes: {verl: 1, soc: a2}}
constraints:
  old: {forbid: {verl: "<2", soc: a3}, reason: r, source: s}
pins: [{when: {verl: "<2"}, require: "x=={verl}", reason: r, source: s}]
overrides: [{when: {soc: a2}, of: y, override: x, reason: r, source: s}]
recipes:
  base: {title: t, algorithm: grpo, entry: e, model: m, source: s}
  child: {title: t, algorithm: grpo, entry: e, model: m, source: s, base: base}
profiles:
  default: {title: t, select: [{stacks: [row]}, {product: {verl: [1, 2], soc: [a2, a3]}}]}
expectations:
  known: {cells: {verl: 1}, check: c, state: fail, reason: r, source: s, owner: o, until: 2027-01-01}
"""


def warnings(old: str = "", new: str = "") -> list[str]:
    assert old in USED
    matrix = parse_matrix(USED.replace(old, new, 1), "m.yaml")
    return [f"{problem.where}: {problem.what}" for problem in find_unused_entries(matrix)]


def test_a_file_whose_parts_all_have_an_effect_warns_of_nothing() -> None:
    assert warnings() == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a3: {}}", "a3: {}, a5: {}}", "m.yaml:4:3: no cell uses value 'a5' of axis 'soc'"),
        (
            "  soc:",
            "  cann: {title: t, scheme: cann, source: s}\n  soc:",
            "m.yaml:4:3: axis 'cann' has no value in any cell",
        ),
        ('forbid: {verl: "<2"', 'forbid: {verl: ">2"', "m.yaml:8:3: constraint 'old' excludes nothing"),
        ('{verl: "<2", soc: a3}', "{soc: a3}", "m.yaml:15:84: no cell of profile 'default' has soc a3"),
        (
            'forbid: {verl: "<2", soc: a3}',
            'forbid: {verl: ">0"}',
            "m.yaml:15:3: constraints exclude every cell of the products of profile 'default'",
        ),
        ("stacks: [row]", "product: {verl: [3]}, recipe: child", "m.yaml:6:3: stack 'row' is in no profile"),
        ("recipe: child, ", "", "m.yaml:13:3: no cell uses recipe 'child'"),
        ("cells: {verl: 1}", "cells: rwo*", "m.yaml:17:3: expectation 'known' covers no cell"),
        (
            'when: {verl: "<2"}',
            'when: {verl: "<1"}',
            "m.yaml:9:8: rule 'x=={verl}' applies to no cell and no published release",
        ),
    ],
)
def test_what_has_no_effect_is_pointed_at(old: str, new: str, expected: str) -> None:
    assert expected in warnings(old, new)


def test_a_constraint_that_another_one_hides_is_not_idle() -> None:
    twin = "constraints:\n  first: {forbid: {verl: 1, soc: a3}, reason: r, source: s}\n"
    assert warnings("constraints:\n", twin) == []


def test_a_rule_for_a_release_that_a_table_lists_has_an_effect() -> None:
    old, rule = "constraints:\n", 'when: {verl: "<2"}'
    table = "published: {p: {title: t, source: s, date: 2026-01-01, key: verl, columns: [verl, x], rows: [[9.1, 1]]}}\n"
    text = USED.replace(rule, 'when: {verl: ">=9"}').replace(old, table + old, 1)
    assert list(find_unused_entries(parse_matrix(text, "m.yaml"))) == []


def test_a_rule_for_a_pair_that_a_row_lists_has_an_effect() -> None:
    old, rule = "constraints:\n", 'when: {verl: "<2"}'
    table = "published: {p: {title: t, source: s, date: 2026-01-01, key: verl, columns: [verl, soc], rows: [[9.1, a3]]}}\n"
    text = USED.replace(rule, 'when: {verl: ">=9", soc: a3}').replace(old, table + old, 1)
    assert list(find_unused_entries(parse_matrix(text, "m.yaml"))) == []
    assert list(find_unused_entries(parse_matrix(text.replace("[9.1, a3]", "[9.1, a2]"), "m.yaml")))
