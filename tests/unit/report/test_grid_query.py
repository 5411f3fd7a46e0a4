"""The query language in Python; the browser's tests ask the page the same vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import sample_inputs

from harness.errors import InputError
from harness.report.formats.terminal import plain_grid, rich_grid
from harness.report.model.failure_patterns import natural
from harness.report.model.marks import EVIDENCE, STYLES
from harness.report.model.report_model import build_model
from harness.report.pages.grid import grid_data
from harness.report.query.grid_query import CHANGE, PROOF, STATUS, select

MODEL = build_model(sample_inputs())
VECTORS = json.loads(Path(__file__).with_name("query_vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["query"][:40])
def test_vectors(vector: dict[str, Any]) -> None:
    if "error" in vector:
        with pytest.raises(InputError) as found:
            select(MODEL, vector["query"])
        assert found.value.problems[0].what == vector["error"]
        return
    selection = select(MODEL, vector["query"])
    assert [row.cell.id for row, _ in selection.rows] == vector["cells"]
    assert selection.checks == vector["checks"]


@given(st.text(max_size=60))
def test_any_text_is_evaluated_or_rejected(text: str) -> None:
    try:
        selection = select(MODEL, text)
    except InputError:
        return
    assert selection.checks <= MODEL.planned


@given(st.sampled_from(sorted(STATUS)), st.sampled_from(sorted(PROOF)))
def test_not_and_and_or_are_those_of_sets(status: str, evidence: str) -> None:
    def hits(query: str) -> set[tuple[str, str]]:
        return {(row.cell.id, check) for row, checks in select(MODEL, query).rows for check in checks}

    a, b, everything = hits(status), hits(f"evidence:{evidence}"), hits("")
    assert hits(f"!{status}") == everything - a
    assert hits(f"{status} & evidence:{evidence}") == hits(f"{status} evidence:{evidence}") == a & b
    assert hits(f"{status} | evidence:{evidence}") == a | b


def test_words_cover_every_mark_and_evidence() -> None:
    assert set("".join(STATUS.values())) == {style.code for style in STYLES.values()}
    assert set("".join(PROOF.values())) == {style.code for style in EVIDENCE.values()} | {"-"}
    assert grid_data(MODEL)["words"] == {"status": STATUS, "evidence": PROOF, "change": CHANGE}


def test_versions_are_ordered_as_people_mean_them() -> None:
    versions = [
        "0.9",
        "0.10.0rc1",
        "0.10.0",
        "0.10.0+abc",
        "0.10.0.post1",
        "0.10.1",
        "8.3.RC1.alpha2",
        "8.3.RC1",
        "8.3",
    ]
    assert sorted(versions, key=natural) == versions


def test_a_terminal_shows_what_is_selected() -> None:
    selection = select(MODEL, "gspo-async & error")
    text = plain_grid(MODEL, selection)
    lines = text.splitlines()
    assert lines[1].startswith("gspo-async")
    assert "ERROR" in lines[1]
    assert "(pass static)" in lines[1]
    assert "1 of 12 cells, 1 checks" in text
    assert plain_grid(MODEL, select(MODEL, "")) == plain_grid(MODEL)
    assert "No cell matches." in plain_grid(MODEL, select(MODEL, "no such thing"))
    assert rich_grid(MODEL, 200, selection)
