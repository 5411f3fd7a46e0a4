"""The fast check against the committed schema never accepts data that the models reject."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.matrix.document import form
from harness.matrix.document.matrix_schema import MatrixFile, json_schema
from harness.matrix.document.yaml_positions import load_yaml, parse_yaml

ROOT = Path(__file__).parents[3]
SHIPPED = load_yaml(ROOT / "matrix.yaml").data
SCHEMA = json_schema()
SMALL = parse_yaml(
    """
format: 1
axes:
  verl: {title: verl, scheme: pep440, source: index, package: verl, tag: "v{version}", values: {a: {b: c}}}
stacks:
  one: {title: t, source: s, axes: {verl: 1}, recipe: r, findings: [{what: w, source: s, axes: [verl]}]}
published:
  t: {title: t, source: s, date: 2026-01-01, key: verl, columns: [verl, x], rows: [[1, null]]}
constraints:
  c: {when: {verl: "<1"}, require: {verl: {same_as: verl, part: release}, x: {table: t, column: x}, y: [1]},
      reason: r, source: s}
  d: {forbid: {verl: [1, 2]}, reason: r, source: s}
pins: [{require: x, reason: r, source: s}]
overrides: [{of: y, override: x, when: {verl: 1}, reason: r, source: s}]
recipes:
  r: {title: t, algorithm: grpo, entry: e, model: m, source: s, nodes: 2, base: r, overrides: {a: 1, b: null}}
profiles:
  default: {title: t, select: [{stacks: all}, {stacks: [one]}, {product: {verl: [1]}, with: {x: 1}}]}
runners:
  local: {title: t, kind: local, devices: [sim], labels: {a: b}}
expectations:
  e: {cells: "*", check: c, state: fail, reason: r, source: s, owner: o, until: 2027-01-01}
""",
    "small.yaml",
).data
ODD = [None, True, False, 0, -1, 2, 10**9, "", "x", "X", "all", "host", "a\n", "2026-01-01\n", "x" * 3000]
ODD += [[], {}, [[]], [None], [""], {"x": {}}, {"X": "y"}, {"verl": []}, {"": "x"}, ["x", 1]]


def accepted(data: object) -> bool:
    try:
        MatrixFile.model_validate(data)
    except ValidationError:
        return False
    return True


def test_committed_schema_is_current() -> None:
    committed = json.loads((ROOT / form.SCHEMA_FILE).read_text(encoding="utf-8"))
    assert committed == SCHEMA, "write json_schema() to it, indented by 2, keys sorted"


@pytest.mark.parametrize("data", [SHIPPED, SMALL], ids=["shipped", "small"])
def test_a_good_file_passes_both_ways(data: object) -> None:
    assert form.matches_schema(data, SCHEMA, SCHEMA)
    assert accepted(data)


def places(data: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for name, item in below for place in places(item, (*path, name)))]


PLACES = places(SMALL)[1:]


def changed(choose: random.Random) -> object:
    """`SMALL` with one part removed, renamed, added or replaced."""
    data = copy.deepcopy(SMALL)
    *parents, last = choose.choice(PLACES)
    node = data
    for part in parents:
        node = node[part]
    change = choose.randrange(4)
    if change == 0:
        del node[last]
    elif change == 1 and isinstance(node, dict):
        node[choose.choice(["extra", "Title", "a b", "", "tilte", "x\n"])] = node.pop(last)
    elif change == 2 and isinstance(node, list):
        node.append(choose.choice(ODD))
    else:
        node[last] = choose.choice(ODD)
    return data


def test_what_the_models_refuse_the_quick_check_refuses() -> None:
    choose = random.Random(20261120)
    verdicts = []
    for _ in range(3000):
        data = changed(choose)
        verdicts.append((form.matches_schema(data, SCHEMA, SCHEMA), accepted(data)))
        assert verdicts[-1] != (True, False), data
    assert verdicts.count((True, True)) > 200
    # Rejecting valid data only costs time, but it should be rare.
    assert verdicts.count((False, True)) < 60


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_no_data_at_all_upsets_it(data: object) -> None:
    assert not form.matches_schema(data, SCHEMA, SCHEMA)


def test_an_unknown_keyword_is_left_to_the_models() -> None:
    assert not form.matches_schema("x", {"type": "string", "format": "uri"}, {})


def test_without_the_committed_file_the_models_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "_committed_schema", lambda: None)
    document = load_yaml(ROOT / "matrix.yaml")
    assert form.check_form(document) == (document.data, [])
