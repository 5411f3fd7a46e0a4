"""Cells that differ in our patches: what an end of a search is called, and the stages between two of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_samples import INPUTS, cell, check, plan

from harness.errors import InputError
from harness.matrix.reading.load_matrix import load_matrix
from harness.plan.bisection.cells_between import bisection_cells
from harness.plan.bisection.search import Bisection, Culprit
from harness.plan.keys.variant import omitted_patches, patch_series, without_patches

SHIPPED = Path(__file__).parents[3] / "matrix.yaml"
SERIES = ("verl/a", "verl/b", "verl/c", "verl/d")


@pytest.fixture(scope="module")
def ends():
    matrix = load_matrix(SHIPPED)
    cells = {one.axes["verl"]: one for one in matrix.cells("default").cells if one.device == "sim"}
    return matrix, cells["0.6.1"], cells["0.9.1"]


@pytest.mark.parametrize(
    ("words", "off"),
    [
        ("none", SERIES),
        ("0", SERIES),
        ("3", ("verl/d",)),
        ("4", ()),
        ("verl/c,verl/a", ("verl/b", "verl/d")),
    ],
)
def test_the_patches_of_an_end_are_a_number_or_names(words, off):
    assert omitted_patches(words, SERIES, "steady") == off


@pytest.mark.parametrize(
    ("words", "patches", "said"),
    [
        ("5", SERIES, "has 4 patches, not 5"),
        ("verl/cc", SERIES, "no patch 'verl/cc'"),
        ("none", (), "no patch for the versions of steady"),
    ],
)
def test_an_end_that_cannot_be_is_refused(words, patches, said):
    with pytest.raises(InputError, match=said):
        omitted_patches(words, patches, "steady")


def test_a_variant_has_an_id_of_its_own_and_only_the_keys_that_read_its_patches_change():
    chosen = {
        "0.9.1": [{"id": "verl/a", "digest": "1"}, {"id": "verl/b", "digest": "2"}],
    }
    inputs = replace(INPUTS, patches=lambda upstream, axes: chosen.get(axes[upstream], []))
    checks = [check("lint"), check("patched", facets=("verl_tree", "patches[verl]"))]
    whole, fewer = cell(), without_patches(cell(), ("verl/b",))
    assert patch_series(whole.axes, inputs) == ("verl/a", "verl/b")
    assert fewer.id != whole.id
    assert without_patches(whole, ()) is whole
    keys = {
        (entry.cell_id, entry.check): entry.key
        for entry in plan([whole, fewer], checks, inputs=inputs).entries
    }
    assert keys[whole.id, "lint"] == keys[fewer.id, "lint"]
    assert keys[whole.id, "patched"] != keys[fewer.id, "patched"]
    # A patch that is not for its versions cannot be missed.
    other = plan([without_patches(whole, ("verl/zzz",))], checks, inputs=inputs).entries
    assert [entry.key for entry in other] == [keys[whole.id, "lint"], keys[whole.id, "patched"]]


def test_patches_come_one_by_one_in_the_order_of_their_series(ends):
    matrix, _, bad = ends
    good = without_patches(bad, SERIES)
    space = bisection_cells(matrix, good, bad, series=lambda _axes: SERIES)
    (span,) = space.spans
    assert (span.axis, span.values[0], span.values[2]) == ("patches", None, "verl/a,verl/b")
    assert [one.without for one in space.cells] == [SERIES[stage:] for stage in range(5)]
    assert (space.cells[0], space.cells[-1]) == (good, bad)
    assert space.name(Culprit(span=0, step=3)) == "patch verl/c"


def test_any_two_subsets_are_ends(ends):
    matrix, _, cell = ends
    good, bad = without_patches(cell, ("verl/b",)), without_patches(cell, ("verl/a", "verl/d"))
    space = bisection_cells(matrix, good, bad, series=lambda _axes: SERIES)
    assert [set(SERIES) - set(one.without) for one in space.cells] == [
        {"verl/a", "verl/c", "verl/d"},
        {"verl/a", "verl/c"},
        {"verl/c"},
        {"verl/b", "verl/c"},
    ]
    assert [space.name(Culprit(span=0, step=step)) for step in (1, 2, 3)] == [
        "without verl/d",
        "without verl/a",
        "patch verl/b",
    ]


def test_a_version_and_the_patch_that_came_with_it_are_told_apart(ends):
    matrix, good, bad = ends
    by_version = {"0.6.1": ("verl/old", "verl/both"), "0.9.1": ("verl/new", "verl/both")}
    space = bisection_cells(
        matrix, good, bad, series=lambda axes: by_version.get(axes["verl"], ("verl/both",))
    )
    assert [span.axis for span in space.spans] == ["verl", "patches"]
    search = Bisection([span.steps for span in space.spans], probes=space.probes)
    names = [{space.name(one) for one in group} for group in search.culprits]
    for alone in ("without verl/old", "patch verl/new", "verl 0.9.0 -> 0.9.1"):
        assert {alone} in names
    for one in space.cells:
        assert "verl/both" not in one.without
        assert set(one.without) <= set(by_version.get(one.axes["verl"], ()))
    # The version in between is asked as it is everywhere else, so that its outcomes count.
    between_ends = [one for one in space.cells if one.axes["verl"] == "0.8.0"]
    assert {one.without for one in between_ends} == {()}


@given(st.data())
def test_every_probe_has_the_patches_its_stage_says(ends, data):
    matrix, good, bad = ends
    patches = [f"verl/{name}" for name in "abcdef"]
    versions = ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
    have = {
        version: [one for one in patches if data.draw(st.booleans(), label=f"{one} is for {version}")]
        for version in versions
    }
    drop = data.draw(st.sets(st.sampled_from(patches)))
    first = without_patches(good, drop.intersection(have["0.6.1"]))
    space = bisection_cells(matrix, first, bad, series=lambda axes: have[axes["verl"]])
    assert first in space.cells
    assert bad in space.cells
    at = [span.axis for span in space.spans].index("patches") if len(space.spans) > 1 else None
    for vector, one in zip(space.probes, space.cells, strict=True):
        assert set(one.without) <= set(have[one.axes["verl"]])
        if at is not None:
            wanted = set((space.spans[at].values[vector[at]] or "").split(",")) - {""}
            applied = set(have[one.axes["verl"]]) - set(one.without)
            moving = {label.split(" ")[1] for label in space.spans[at].labels}
            assert applied & moving == wanted
