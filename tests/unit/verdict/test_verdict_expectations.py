import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InputError
from harness.matrix.reading.load_matrix import parse_matrix
from harness.outcome import Judgement, Status
from harness.verdict.expectations import (
    ExpectationDetails,
    ExpectationsEdit,
    NewExpectation,
    apply_edit,
    plan_expectations_edit,
    survey_expectations,
    unified_difference,
)
from harness.verdict.verdict import ExpectedFailure, judge_against_expectation

HEAD = """\
# The file's own head, kept.
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: a test, repository: "https://example.org/verl"}
  python: {title: Python, scheme: python, source: a test}
profiles:
  default:
    title: a test   # a comment behind a value
    select:
      - product: {verl: [0.6.1, 0.8.0, 0.9.1]}
        with: {python: host}
"""
ONE = """\
  # why this one is here
  {name}:
    cells: "{cells}"   # which
    check: {check}
    state: fail
    reason: >-
      moved upstream, and this
      is a folded text
    source: https://example.org/1
    owner: tests
    until: {until}
"""
TAIL = "\n# the end, kept\nrunners:\n  here: {title: here, kind: local, devices: [cpu]}\n"


def one(name="known", cells="verl-0-9-1*", check="patches", until="2099-01-01"):
    return ONE.format(name=name, cells=cells, check=check, until=until)


def text(*entries):
    return HEAD + ("expectations:\n" + "".join(entries) if entries else "") + TAIL


def entry(name="added", cells="verl-0-6-1*", **more):
    details = {
        "reason": "it: fails # really",
        "source": "https://example.org/2",
        "owner": "me",
        "until": "2099-01-01",
        **more,
    }
    return NewExpectation(
        id=name, cells=cells, check="patches", state="fail", details=ExpectationDetails(**details)
    )


def test_an_addition_leaves_every_other_line_as_it_was():
    before = text(one())
    after = apply_edit(before, ExpectationsEdit(add=(entry(),)))
    changed = unified_difference(before, after, "matrix.yaml").splitlines()[2:]
    assert not [line for line in changed if line.startswith("-")]
    added = parse_matrix(after).expectations["added"]
    assert (added.reason, added.owner) == ("it: fails # really", "me")


def test_a_removal_takes_its_lines_and_no_others():
    before = text(one("first"), one("second"), one("third"))
    after = apply_edit(before, ExpectationsEdit(remove=("second",)))
    assert list(parse_matrix(after).expectations) == ["first", "third"]
    assert "# the end, kept" in after
    assert after.startswith(HEAD)
    changed = unified_difference(before, after, "matrix.yaml").splitlines()[2:]
    assert len([line for line in changed if line.startswith("-")]) == len(one().splitlines()) - 1
    assert not [line for line in changed if line.startswith("+")]


def test_the_last_one_takes_the_list_with_it_and_the_first_one_brings_it():
    emptied = apply_edit(text(one()), ExpectationsEdit(remove=("known",)))
    assert "expectations" not in emptied
    filled = apply_edit(emptied, ExpectationsEdit(add=(entry(),)))
    assert list(parse_matrix(filled).expectations) == ["added"]
    assert list(
        parse_matrix(apply_edit(text() + "expectations: {}\n", ExpectationsEdit(add=(entry(),)))).expectations
    ) == ["added"]


def test_a_list_in_flow_style_can_be_edited_too():
    flow = 'expectations:\n  {known: {cells: "verl-0-9-1*", check: patches, state: fail, reason: x, source: y, owner: z, until: 2099-01-01},\n   other: {cells: "verl-0-6-1*", check: patches, state: fail, reason: x, source: y, owner: z, until: 2099-01-01}}\n'
    after = apply_edit(HEAD + flow, ExpectationsEdit(remove=("known",)))
    assert list(parse_matrix(after).expectations) == ["other"]
    assert "# a comment behind a value" in after


names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=5)


@given(names, st.data())
@settings(max_examples=40, deadline=None)
def test_any_edit_yields_exactly_the_list_wanted(present, data):
    remove = data.draw(st.lists(st.sampled_from(present), unique=True)) if present else []
    add = data.draw(st.lists(st.sampled_from(["x", "y", "z"]), unique=True))
    before = text(*(one(name) for name in present))
    after = apply_edit(before, ExpectationsEdit(remove=tuple(remove), add=tuple(entry(name) for name in add)))
    assert list(parse_matrix(after).expectations) == [name for name in present if name not in remove] + add
    assert TAIL in after


@given(
    st.text(
        st.characters(
            exclude_categories=["Cs", "Cc", "Zl", "Zp", "Cn", "Co"], exclude_characters="\ufeff\u2028"
        ),
        min_size=1,
        max_size=80,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_reason_survives_being_written_and_read(reason):
    try:
        after = apply_edit(text(one()), ExpectationsEdit(add=(entry(reason=reason),)))
    except InputError:
        return
    assert parse_matrix(after).expectations["added"].reason.split() == reason.split()


def test_an_edit_that_would_not_load_is_refused():
    with pytest.raises(InputError):
        apply_edit(text(one()), ExpectationsEdit(add=(entry(until="someday"),)))


def surveyed(*entries, today=dt.date(2026, 11, 20)):
    return {
        found.id: found
        for found in survey_expectations(
            parse_matrix(text(*entries), Path("/x/matrix.yaml")), {"patches"}, Path("/x"), today
        )
    }


def test_the_survey_names_cells_and_every_kind_of_fault():
    found = surveyed(
        one("good"),
        one("old", cells="verl-0-8-0*", until="2020-01-01"),
        one("nothing", cells="sglang-*"),
        one("unasked", check="nosuch"),
        one("shadowed"),
    )
    assert found["good"].fault == ""
    assert found["good"].where == "matrix.yaml:14:3"
    assert [cell[:10] for cell in found["good"].cells] == ["verl-0-9-1"]
    assert "expired" in found["old"].fault
    assert "covers no cell" in found["nothing"].fault
    assert "not a check" in found["unasked"].fault
    assert "has no effect" in found["shadowed"].fault


SAID = ExpectationDetails(owner="me", until="2099-01-01", reason="it broke", source="https://example.org/3")


def update(matrix_text, statuses, said=None):
    matrix = parse_matrix(matrix_text)
    cells = {cell.id: cell for cell in matrix.all_cells}
    verdicts = []
    for cell, status in zip(cells.values(), statuses, strict=True):
        covering = matrix.expectation_for(cell, "patches")
        expected = ExpectedFailure(state=covering.state, reason="r", source="s") if covering else None
        verdicts.append(
            judge_against_expectation(cell.id, "patches", Judgement(status=status), expected=expected)
        )
    edit = plan_expectations_edit(matrix, cells, verdicts, said)
    return edit, parse_matrix(apply_edit(matrix_text, edit))


def test_what_passes_is_taken_off_without_anybody_being_asked():
    edit, _after = update(text(one()), [Status.PASS, Status.PASS, Status.PASS])
    assert edit == ExpectationsEdit(remove=("known",))


def test_what_newly_fails_is_added_only_with_an_owner():
    statuses = [Status.FAIL, Status.PASS, Status.FAIL]
    assert update(text(one()), statuses)[0] == ExpectationsEdit()
    _edit, after = update(text(one()), statuses, SAID)
    added = next(found for name, found in after.expectations.items() if name != "known")
    assert added.cells.startswith("verl-0-6-1")
    assert added.owner == "me"


def test_a_broad_one_that_came_true_in_part_is_narrowed():
    _edit, after = update(text(one(cells="verl-*")), [Status.FAIL, Status.PASS, Status.FAIL])
    assert sorted(found.cells[:10] for found in after.expectations.values()) == ["verl-0-6-1", "verl-0-9-1"]
    assert {found.owner for found in after.expectations.values()} == {"tests"}


def test_one_that_fails_in_another_way_is_written_anew_and_the_others_keep_what_they_say():
    told = "    state: fail\n    because: [moved]\n"
    listed = text(one(cells="verl-*").replace("    state: fail\n", told))
    matrix = parse_matrix(listed)
    cells = {cell.id: cell for cell in matrix.all_cells}
    verdicts = []
    for cell, reason in zip(cells.values(), ["moved", "moved", "burnt"], strict=True):
        covering = matrix.expectation_for(cell, "patches")
        expected = ExpectedFailure(state="fail", because=covering.because, reason="r", source="s")
        judgement = Judgement(status=Status.FAIL, reasons=(reason,))
        verdicts.append(judge_against_expectation(cell.id, "patches", judgement, expected=expected))
    assert plan_expectations_edit(matrix, cells, verdicts, None) == ExpectationsEdit()
    after = parse_matrix(apply_edit(listed, plan_expectations_edit(matrix, cells, verdicts, SAID)))
    because = [after.expectation_for(cell, "patches").because for cell in after.all_cells]
    assert because == [("moved",), ("moved",), ()]


@given(st.lists(st.sampled_from(Status), min_size=3, max_size=3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_update_puts_what_has_no_answer_on_the_list(statuses, broad):
    edit, _after = update(text(one(cells="verl-*" if broad else "verl-0-9-1*")), statuses, SAID)
    for added in edit.add:
        assert added.state not in {"error", "stale", "blocked", "not-run", "pass"}


def test_after_an_update_nothing_is_unexpected():
    statuses = [Status.FAIL, Status.PASS, Status.FAIL]
    _edit, after = update(text(one(cells="verl-0-8-0*")), statuses, SAID)
    for cell, status in zip(after.all_cells, statuses, strict=True):
        assert (after.expectation_for(cell, "patches") is not None) == (status is Status.FAIL)
