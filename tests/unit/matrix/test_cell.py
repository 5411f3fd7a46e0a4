from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from harness.matrix.model.cell import Cell, CellSet, cell_id

SAFE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", fullmatch=True)
AXES = st.dictionaries(
    st.sampled_from(["verl", "torch", "cann", "device", "x"]), st.text(max_size=80), max_size=5
)


@given(st.just("") | NAMES, AXES)
def test_an_id_is_safe_as_a_file_label_job_and_kubernetes_name(stack: str, axes: dict[str, str]) -> None:
    assert SAFE.fullmatch(cell_id(stack, axes))
    assert "--" not in cell_id("", axes)


@given(AXES, AXES)
def test_cells_with_other_values_have_other_ids(one: dict[str, str], other: dict[str, str]) -> None:
    assert (cell_id("", one) == cell_id("", other)) == (one == other)
    assert (cell_id("row", one) == cell_id("row", other)) == (one == other)


@given(AXES, NAMES, NAMES)
def test_stacks_with_the_same_values_have_ids_of_their_own(
    axes: dict[str, str], one: str, other: str
) -> None:
    assert (cell_id(one, axes) == cell_id(other, axes)) == (one == other)


@given(AXES, st.randoms())
def test_the_order_of_axes_does_not_matter(axes: dict[str, str], random: object) -> None:
    items = list(axes.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert cell_id("", dict(items)) == cell_id("", axes)


def test_an_id_is_readable_and_stays_what_it_is() -> None:
    assert cell_id("gspo-async", {"verl": "0.7.0"}).startswith("gspo-async-")
    assert cell_id("", {"verl": "0.6.1@d62da4950573", "device": "sim"}).startswith("verl-0-6-1-sim-")
    assert cell_id("", {"verl": "0.6.1", "device": "sim"}) == "verl-0-6-1-sim-855bedf3c88b"


def test_a_set_finds_cells_by_id_and_by_stack() -> None:
    cell = Cell(id="row-1", stack="row", title="t", axes={}, provenance={})
    cells = CellSet(
        profile="p", cells=(cell, Cell(id="x-1", stack="", title="t", axes={}, provenance={})), excluded=()
    )
    assert cells.get("row") is cells.get("row-1") is cell
    assert cells.get("") is None
    assert cells.get("other") is None
    assert [found.device for found in cells] == ["npu", "npu"]
    assert len({cell, cell}) == 1
