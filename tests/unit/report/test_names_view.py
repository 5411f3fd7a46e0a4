"""Names over versions: what `api survival --json` prints is a view of the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import sample_inputs

from harness.compat.name_survival.name_survival import (
    BREAKS,
    FITS,
    Answer,
    NameSurvival,
    ProviderVersion,
    TurningPoint,
    UseHistory,
)
from harness.compat.uses.use import Use
from harness.errors import InputError
from harness.report.model.report_model import build_model
from harness.report.model.survival_facts import read_names
from harness.report.publish.publish import render_all


def survival() -> NameSurvival:
    """Two uses of names of vllm: one breaks at the second of three versions, the other fits again there."""
    versions = tuple(
        ProviderVersion(
            id=name * 40,
            date=f"2026-0{number}-01",
            subject=f"release {number} <b>",
            changes={},
            parent=number - 2,
        )
        for number, name in enumerate("abc", 1)
    )
    gone, back = (Use(kind="import", target=f"vllm.{name}", file="w.py", line=3) for name in ("gone", "back"))
    ends = Answer(state=BREAKS, kind="missing", text="vllm.gone does not exist")
    return NameSurvival(
        consumer="verl",
        provider="vllm",
        revisions="v1..v3",
        versions=versions,
        releases=("0.9.0",),
        uses=(
            UseHistory(
                use=gone,
                places={"0.9.0": "w.py:3"},
                runs=((0, Answer(state=FITS)), (1, ends)),
                turns=(TurningPoint(version=1, broke=True, text=ends.text),),
            ),
            UseHistory(
                use=back,
                places={"0.9.0": "w.py:3"},
                runs=((0, ends), (1, Answer(state=FITS))),
                turns=(TurningPoint(version=1, broke=False, text=""),),
            ),
        ),
        checked=12,
        pairs=36,
        distinct=14,
    )


def page_of(folder: Path, data: dict[str, object]) -> str:
    file = folder / "names.json"
    file.write_text(json.dumps(data))
    render_all(build_model(replace(sample_inputs(), names=read_names(file))), folder / "reports")
    return (folder / "reports/patches.html").read_text()


def test_the_page_names_the_version_that_took_a_name_away(tmp_path: Path) -> None:
    page = page_of(tmp_path, {**survival().to_json()})
    names = page[page.index('id="names"') :]
    assert "vllm.gone: breaks at 2 commits" in names
    assert "vllm.back: breaks at 1 commits" in names
    assert "<code>bbbbbbbbb</code> 2026-02-01 release 2 &lt;b&gt;" in names
    assert "vllm.gone does not exist" in names
    assert "33%" in names


def test_without_the_file_the_page_says_how_to_make_it(tmp_path: Path) -> None:
    render_all(build_model(sample_inputs()), tmp_path / "reports")
    assert "npu-matrix api survival CONSUMER PROVIDER" in (tmp_path / "reports/patches.html").read_text()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": {"name": "npu-matrix/survival", "version": 1}}, "its schema is npu-matrix/survival 1"),
        ({"legend": ["fits"]}, "not in the legend"),
        ({"commits": []}, "commits"),
    ],
)
def test_another_file_is_refused_with_a_reason(change: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name survival") as found:
        page_of(tmp_path, {**survival().to_json(), **change})
    assert why in str(found.value.problems[0])
