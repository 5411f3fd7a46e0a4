"""The table of benchmarks: its rows, its limits, and the figures that pages state."""

import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.figures import CannotRunError, Figure, run_benchmark

ROOT = Path(__file__).parents[2]
LATE = 'early acceptance: fault "late collapse" found'
EARLY = "early acceptance: steps saved on healthy stacks"
#: (file, sentence with the names of figures in it, name -> claim)
STATED = (
    ("docs/en/decision-rule.md", "would save {saved} % of the steps of a correct run", {"saved": EARLY}),
    (
        "docs/en/decision-rule.md",
        "detected in {late} % of the runs instead of {late_rival} %",
        {"late": LATE},
    ),
    ("docs/zh/decision-rule.md", "正确运行的 {saved} % 的步数", {"saved": EARLY}),
    ("docs/zh/decision-rule.md", "检出率会从 {late_rival} % 降到 {late} %", {"late": LATE}),
)


@pytest.mark.parametrize(("file", "sentence", "claims"), STATED)
def test_a_figure_that_a_page_states_is_the_measured_one(file, sentence, claims):
    rows = json.loads((ROOT / "benchmarks/figures.json").read_text("utf-8"))
    figures = {row["figure"]["claim"]: row["figure"] for row in rows if row["figure"]}
    values = {name: f"{figures[claim]['measured']:g}" for name, claim in claims.items()}
    values |= {f"{name}_rival": f"{figures[claim]['rival'] or 0:g}" for name, claim in claims.items()}
    text = re.sub(r"\s+", " ", (ROOT / file).read_text("utf-8"))
    assert sentence.format(**values) in text


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_every_benchmark_can_be_imported_and_says_what_it_measures(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert callable(module.figures)
    assert module.__doc__


def test_every_module_with_figures_is_registered():
    files = [
        file for file in (ROOT / "benchmarks").glob("*.py") if "\ndef figures(" in file.read_text("utf-8")
    ]
    assert {file.stem for file in files} == set(bench.BENCHMARKS)


def test_the_readme_names_every_benchmark_and_no_other():
    table = (ROOT / "benchmarks/README.md").read_text("utf-8").partition(bench.TABLE_START)[2]
    rows = set(re.findall(r"^\| (\w+) ", table, re.MULTILINE)) - {"benchmark"}
    missing = re.search(r"^Not measured on this machine yet: (.*)\.$", table, re.MULTILINE)
    assert rows == {row.benchmark for row in bench.read_stored()}
    assert rows | set(missing[1].split(", ") if missing else ()) == set(bench.BENCHMARKS)


def figures_of(monkeypatch, *figures, error=None):
    def yielded():
        yield from figures
        if error:
            raise error

    module = type("Module", (), {"figures": staticmethod(yielded)})
    monkeypatch.setattr(importlib, "import_module", lambda _name: module)
    return run_benchmark("any")


def test_what_was_measured_before_the_benchmark_had_to_stop_is_kept(monkeypatch):
    figure = Figure(claim="speed", measured=1)
    found, not_run, failed = figures_of(
        monkeypatch, figure, error=CannotRunError("no docker", "install docker")
    )
    assert (found, failed) == ([figure], "")
    assert not_run == "not run: no docker. To run it: install docker"


def test_a_benchmark_that_fails_is_a_row_that_is_not_good(monkeypatch, capsys):
    _found, not_run, failed = figures_of(monkeypatch, error=ValueError("broken"))
    assert not not_run
    assert "broken" in failed
    assert not bench.Row(benchmark="any", date="", load=0, failed=failed).is_good
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("measured", "is_lower_limit", "kept"),
    [(1, False, True), (3, False, False), (1, True, False), (2, True, True)],
)
def test_a_limit_is_the_largest_or_the_smallest_figure_that_keeps_it(measured, is_lower_limit, kept):
    figure = Figure(claim="c", measured=measured, unit="s", limit=2, is_lower_limit=is_lower_limit)
    row = bench.Row(benchmark="any", date="", load=0, figure=figure)
    assert row.is_good is kept
    assert ("| yes" if kept else "| NO") in bench.table([row])


def test_writing_keeps_an_older_figure_that_this_machine_cannot_measure(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "STORED", tmp_path / "figures.json")
    monkeypatch.setattr(bench, "HERE", tmp_path)
    (tmp_path / "README.md").write_text(f"before\n{bench.TABLE_START}old\n{bench.TABLE_END}after\n", "utf-8")
    name = bench.BENCHMARKS[0]
    measured = bench.Row(benchmark=name, date="2026-11-22", load=1, figure=Figure(claim="a", measured=1))
    bench.write([measured])
    bench.write([bench.Row(benchmark=name, date="2026-11-23", load=1, not_run="not run: no docker")])
    assert bench.read_stored() == [measured]
    text = (tmp_path / "README.md").read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
