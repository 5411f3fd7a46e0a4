from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InputError, Location
from harness.matrix.model.constraints import Condition, Constraint
from harness.matrix.model.versions import Scheme, parse_specifier, parse_version
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Status
from harness.plan.feasibility.exclusion import explain_combination, minimal_contradiction, parse_axes
from harness.plan.feasibility.newest_versions import (
    CellProof,
    CheckProof,
    ProofState,
    newest_versions,
    upgrade_obstacles,
)

SHIPPED = Path(__file__).parents[3] / "matrix.yaml"


@pytest.fixture(scope="module")
def matrix():
    return load_matrix(SHIPPED)


def asked(matrix, *words):
    return explain_combination(matrix, parse_axes(matrix, words))


def test_a_rule_the_values_break_is_named_with_its_place_and_proof(matrix):
    found = asked(matrix, "verl=0.9.1,vllm_ascend=0.18.0")
    (objection,) = found.violated
    assert objection.rule == "verl-numpy"
    assert objection.where.line == matrix.constraints["verl-numpy"].where.line
    assert objection.source
    assert not found.cells
    assert all(near.changes for near in found.nearest)
    assert all(near.cell.axes["verl"] == "0.9.1" for near in found.nearest)


def test_rules_that_only_together_exclude_are_named_together(matrix):
    found = asked(matrix, "verl=0.9.1", "cann=8.5.0", "device=npu")
    assert not found.violated
    assert {one.rule for one in found.contradiction} == {"verl-numpy", "vllm-ascend-cann"}


def test_a_combination_of_a_cell_is_in(matrix):
    found = asked(matrix, "verl=0.9.1", "vllm_ascend=0.23.0")
    assert found.cells
    assert found.violated == found.contradiction == ()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("verll=1", "unknown axis 'verll'"),
        ("verl", "no value"),
        ("verl=", "no value"),
        ("cann=x", "not a valid value of cann"),
    ],
)
def test_words_that_are_no_values(matrix, word, message):
    with pytest.raises(InputError) as error:
        parse_axes(matrix, [word])
    assert message in str(error.value)


AXES = ("a", "b", "c")
WORDS = ("x", "y")


@st.composite
def rules(draw):
    found = []
    for number in range(draw(st.integers(1, 7))):
        names = draw(st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True))
        forbid = tuple(
            Condition(axis=axis, specifiers=(parse_specifier(Scheme.NAME, draw(st.sampled_from(WORDS))),))
            for axis in names
        )
        found.append(
            Constraint(
                id=f"r{number}",
                when=(),
                require=(),
                forbid=forbid,
                reason="",
                source="",
                where=Location("m", 1),
            )
        )
    return found


def feasible(chosen):
    product = [{}]
    for axis in AXES:
        product = [{**one, axis: parse_version(Scheme.NAME, word)} for one in product for word in WORDS]
    return any(not any(rule.violation(one) for rule in chosen) for one in product)


@given(rules())
@settings(max_examples=150, deadline=None)
def test_a_contradiction_is_one_and_can_lose_no_rule(drawn):
    values = {axis: [parse_version(Scheme.NAME, word) for word in WORDS] for axis in AXES}
    found = minimal_contradiction(values, {}, drawn)
    assert bool(found) == (not feasible(drawn))
    if found:
        assert not feasible(found)
        assert all(feasible(rest) for rest in combinations(found, len(found) - 1))


def proofs(matrix, failed=(), passed=(), evidence=Evidence.SIMULATED):
    found = {}
    for cell in matrix.all_cells:
        answer = CheckProof(check="loss", not_run="not run yet")
        if cell.id in failed:
            answer = CheckProof(check="loss", status=Status.FAIL, evidence=evidence, reasons=("it is wrong",))
        elif cell.id in passed:
            answer = CheckProof(check="loss", status=Status.PASS, evidence=evidence)
        found[cell.id] = CellProof(cell=cell, checks=(answer,))
    return found


def condition(matrix, axis, words):
    return Condition(axis=axis, specifiers=(parse_specifier(matrix.axes[axis].scheme, words),))


def test_the_newest_that_works_and_the_newer_ones_that_do_not(matrix):
    sims = [(cell.axes["verl"], cell.id) for cell in matrix.all_cells if cell.device == "sim"]
    failed = {name for verl, name in sims if verl == "0.9.1"}
    passed = {name for verl, name in sims if verl == "0.6.1"}
    where = [condition(matrix, "device", "sim")]
    found = newest_versions(matrix, "verl", where, proofs(matrix, failed=failed, passed=passed))
    assert str(found.works.version) == "0.6.1"
    failed = next(version_proof for version_proof in found.versions if str(version_proof.version) == "0.9.1")
    assert failed.state is ProofState.REFUTED
    assert failed.proof.failures[0].reasons == ("it is wrong",)


def test_nothing_known_is_open_and_never_works(matrix):
    found = newest_versions(
        matrix,
        "verl",
        [condition(matrix, "cann", "8.5.0"), condition(matrix, "device", "npu")],
        proofs(matrix),
    )
    assert found.works is None
    assert str(found.candidate.version) == "0.8.0"
    blocked = next(version_proof for version_proof in found.versions if str(version_proof.version) == "0.9.1")
    assert {one.rule for one in blocked.objections} == {"verl-numpy", "vllm-ascend-cann"}


def test_a_range_is_a_condition_like_any_other(matrix):
    where = [condition(matrix, "torch_npu", "==2.8.*"), condition(matrix, "cann", "8.5.0")]
    found = newest_versions(matrix, "verl", where, proofs(matrix))
    assert str(found.candidate.version) == "0.8.0"
    blocked = next(version_proof for version_proof in found.versions if str(version_proof.version) == "0.9.1")
    assert blocked.proof is None
    assert blocked.objections
    assert blocked.alternative.changes["torch_npu"][0] == "==2.8.*"
    explained = explain_combination(
        matrix, parse_axes(matrix, ["verl=0.9.1"]), conditions=[condition(matrix, "torch_npu", "==2.8.*")]
    )
    assert not explained.cells
    assert "verl-numpy" in {one.rule for one in explained.contradiction}


def test_no_cell_at_all_names_the_nearest(matrix):
    found = newest_versions(matrix, "verl", [condition(matrix, "cann", "8.1.RC1")], proofs(matrix))
    assert found.candidate is None
    assert found.nearest


def test_what_blocks_a_version_on_a_stack(matrix):
    cell = matrix.stack_cell("verl-0-7-1")
    found = upgrade_obstacles(matrix, cell, parse_axes(matrix, ["verl=0.9.1"]), proofs(matrix))
    assert {one.rule for one in found.objections} == {"verl-transformers", "verl-numpy"}
    assert found.nearest
    assert all(proof.cell.axes["verl"] == "0.9.1" for proof in found.nearest)
    assert all("verl" not in changes for changes in found.changes)
