from __future__ import annotations

import datetime as dt
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import EXIT_BAD_INPUT, InputError
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix

AXES = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, source: s, package: verl}
  torch: {title: torch, scheme: pep440, source: s, package: torch}
  torch_npu: {title: torch_npu, scheme: pep440, source: s, package: torch-npu}
  cann: {title: CANN, scheme: cann, source: s}
  soc: {title: SoC, scheme: name, source: s, values: {a2: {soc_name: Ascend910B3}, a3: {soc_name: Ascend910_9392}}}
  device: {title: device, scheme: name, source: s, values: {npu: {}, sim: {}}}
"""
REST = """\
constraints:
  same-release:
    require: {torch_npu: {same_as: torch, part: release}}
    reason: the wheel is built against it
    source: the wheel's metadata
recipes:
  smoke: {title: t, algorithm: grpo, entry: e, model: m, source: s}
  other: {title: t, algorithm: gspo, entry: e, model: m, source: s}
"""
STACKS = """\
stacks:
  good: {title: good, source: d, recipe: smoke, axes: {verl: 0.7.1, torch: 2.7.1, torch_npu: 2.7.1, soc: a2}}
  odd:
    title: odd
    source: d
    recipe: other
    axes: {verl: 0.6.1, torch: 2.8.0, torch_npu: 2.7.1, soc: a3}
    findings: [{what: stated so, source: d, axes: [torch]}]
    notes: [a note]
"""
PROFILES = """\
profiles:
  default:
    title: t
    select:
      - product: {verl: [0.6.1, 0.9.1], torch: [2.7.1, 2.8.0], torch_npu: [2.7.1, 2.8.0.post2]}
        with: {device: sim, soc: a2}
        recipe: smoke
      - {stacks: all}
"""


def load(*, axes: str = AXES, stacks: str = STACKS, rest: str = REST, profiles: str = PROFILES) -> Matrix:
    return parse_matrix(axes + stacks + rest + profiles, "m.yaml")


def test_a_product_leaves_out_what_constraints_forbid_and_says_why() -> None:
    cells = load().cells("default")
    assert [cell.title for cell in cells][:2] == [
        "verl 0.6.1, torch_npu 2.7.1, simulated device",
        "verl 0.6.1, torch_npu 2.8.0.post2, simulated device",
    ]
    assert len(cells) == 4 + 2
    assert len(cells.excluded) == 4
    first = cells.excluded[0]
    assert first.axes == {
        "verl": "0.6.1",
        "torch": "2.7.1",
        "torch_npu": "2.8.0.post2",
        "device": "sim",
        "soc": "a2",
    }
    assert first.what == "torch_npu 2.8.0.post2 and torch 2.7.1 differ in release"
    assert (first.constraint.id, first.constraint.reason, first.constraint.source) == (
        "same-release",
        "the wheel is built against it",
        "the wheel's metadata",
    )
    assert str(first.constraint.where) == "m.yaml:19:3"


def test_every_value_of_a_cell_knows_where_it_is_written() -> None:
    matrix = load()
    text = (AXES + STACKS + REST + PROFILES).splitlines()
    for cell in matrix.cells("default"):
        for axis, value in cell.axes.items():
            where = cell.provenance[axis]
            assert text[where.line - 1][where.column - 1 :].startswith(value)


def test_a_stack_its_authors_state_stays_and_carries_the_finding() -> None:
    odd = load().cells("default").get("odd")
    assert odd is not None
    assert [finding.constraint for finding in odd.findings] == ["", "same-release"]
    assert odd.findings[1].what == (
        "torch_npu 2.7.1 and torch 2.8.0 differ in release: the wheel is built against it"
    )
    assert (odd.recipe, odd.notes, odd.source, odd.device) == ("other", ("a note",), "d", "npu")
    good = load().cells("default").get("good")
    assert good is not None
    assert not good.findings


def test_an_unknown_profile_is_bad_usage() -> None:
    with pytest.raises(InputError, match="no profile 'defalt'") as caught:
        load().cells("defalt")
    assert caught.value.exit_code == EXIT_BAD_INPUT
    assert "did you mean 'default'?" in str(caught.value)


def test_the_same_cell_with_two_recipes_is_refused() -> None:
    again = PROFILES.replace(
        "      - {stacks: all}",
        "      - {product: {verl: [1]}}\n      - {product: {verl: [1]}, recipe: smoke}",
    )
    with pytest.raises(InputError, match="two cells have the id") as caught:
        load(profiles=again).cells("default")
    assert "m.yaml" in str(caught.value)


def test_a_cell_selected_twice_is_there_once() -> None:
    twice = (
        PROFILES
        + "      - {stacks: [good]}\n      - {product: {verl: [1]}}\n      - {product: {verl: [1]}}\n"
    )
    assert len(load(profiles=twice).cells("default")) == len(load().cells("default")) + 1


def ids(matrix: Matrix) -> set[str]:
    return {cell.id for cell in matrix.cells("default")}


def test_a_new_stack_value_or_axis_changes_no_other_id() -> None:
    before = ids(load())
    more = STACKS.replace("stacks:\n", "stacks:\n  new: {title: n, source: s, axes: {verl: 1}}\n")
    assert ids(load(stacks=more)) > before
    assert ids(load(profiles=PROFILES.replace("0.9.1]", "0.9.1, 0.10.0]"))) > before
    wider = AXES.replace("axes:\n", "axes:\n  new: {title: t, scheme: name, source: s}\n")
    assert ids(load(axes=wider)) == before


@settings(deadline=None)
@given(st.randoms())
def test_the_order_of_keys_changes_no_cell(random_: random.Random) -> None:
    def shuffled(block: str) -> str:
        head, *lines = block.splitlines()
        random_.shuffle(lines)
        return "\n".join([head, *lines]) + "\n"

    pairs = ["verl: [0.6.1, 0.9.1]", "torch: [2.7.1, 2.8.0]", "torch_npu: [2.7.1, 2.8.0.post2]"]
    product = ", ".join(pairs)
    random_.shuffle(pairs)
    axes = "format: 1\n" + shuffled(AXES.removeprefix("format: 1\n"))
    reordered = PROFILES.replace(product, ", ".join(pairs))
    assert [cell.id for cell in load(profiles=reordered).cells("default")] == list(
        dict.fromkeys(cell.id for cell in load().cells("default"))
    )
    other = load(axes=axes, profiles=reordered)
    assert ids(other) == ids(load())
    by_id = {cell.id: cell for cell in load().cells("default")}
    assert all(cell == by_id[cell.id] for cell in other.cells("default"))


EXPECTATIONS = """\
expectations:
  by-glob: {cells: "odd*", check: resolve, state: fail, reason: r, source: s, owner: me, until: 2026-12-31}
  by-axes: {cells: {verl: "<0.8", soc: a2}, check: loss, state: unsupported, reason: r, source: s, owner: me, until: "verl >=0.7.2"}
  by-version: {cells: "*", check: lint, state: fail, reason: r, source: s, owner: me, until: "verl >=0.7.0"}
"""


def test_expectations_match_by_glob_axes_and_version() -> None:
    matrix = load(rest=REST + EXPECTATIONS)
    good, odd = matrix.stack_cell("good"), matrix.stack_cell("odd")
    by_glob = matrix.expectation_for(odd, "resolve")
    assert by_glob is not None
    assert (by_glob.id, by_glob.state, by_glob.owner) == ("by-glob", "fail", "me")
    assert matrix.expectation_for(good, "resolve") is None
    assert matrix.expectation_for(odd, "patches") is None
    found = matrix.expectation_for(good, "loss")
    assert found is not None
    assert found.id == "by-axes"
    assert matrix.expectation_for(odd, "loss") is None
    assert matrix.expectation_for(odd, "lint") is not None
    assert matrix.expectation_for(good, "lint") is None


def test_an_expectation_expires_after_its_date() -> None:
    expectations = load(rest=REST + EXPECTATIONS).expectations
    assert not expectations["by-glob"].expired(dt.date(2026, 12, 31))
    assert expectations["by-glob"].expired(dt.date(2027, 1, 1))
    assert not expectations["by-axes"].expired(dt.date(2100, 1, 1))
