"""`npu-matrix status` and `npu-matrix report` on stored runs: filters, following, comparison with other runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.ledger.run_record import Disposition
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Evidence, Outcome, State, Status
from harness.plan.tasks.task import Plan
from harness.settings import load_settings
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolvedPackage, ResolveMeasured
from harness.workspace.planning.open_plan import open_plan

LOCKED = (ResolvedPackage(name="torch", version="2.7.1"),)
MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: made up}
  torch: {title: torch, scheme: pep440, package: torch, source: made up}
  torch_npu: {title: torch_npu, scheme: pep440, package: torch-npu, source: made up}
  python: {title: Python, scheme: python, source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  first: {title: the first, source: made up, axes: {verl: 0.6.1, torch: 2.7.1, torch_npu: 2.7.1, python: host, device: sim}}
  second: {title: the second, source: made up, axes: {verl: 0.9.1, torch: 2.7.1, torch_npu: 2.7.1, python: host, device: sim}}
profiles:
  default: {title: all, select: [{stacks: all}]}
"""


class Bench:
    """A checkout with a matrix of two cells, and runs of its `resolve` check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
        self.settings = load_settings({}, {}, root)
        self.plan: Plan = open_plan(self.settings, checks=("resolve",)).plan
        self.clock = 1_790_000_000.0

    def go(self, *resolves: bool, finished: bool = True, revision: str = "") -> str:
        """A run in which the first cells resolve or not; of the other cells nothing is known."""
        self.clock += 3600
        with Ledger.open(self.settings.path("state")) as ledger:
            run_id = ledger.begin_run(self.plan.record(), ["run"], {"revision": revision}, now=self.clock)
            for entry, value in zip(self.plan.entries, resolves, strict=False):
                ledger.record(
                    Outcome(
                        key=entry.key,
                        check="resolve",
                        tier=entry.tier,
                        state=State.COMPLETED,
                        evidence=Evidence.STATIC,
                        facets={},
                        measurements=RESOLVE_FORMAT.write(
                            ResolveMeasured(resolved=value, packages=LOCKED if value else ())
                        ),
                        started=self.clock,
                        finished=self.clock + 1,
                        run_id=run_id,
                    )
                )
            left = self.plan.entries[len(resolves) :] if finished else ()
            ledger.record_dispositions(
                run_id,
                [
                    Disposition(
                        cell_id=entry.cell_id,
                        check=entry.check,
                        key=entry.key,
                        status=Status.NOT_RUN,
                        reason="left out",
                    )
                    for entry in left
                ],
            )
            if finished:
                ledger.finish_run(run_id, 0, now=self.clock + 60)
        return run_id

    def ask(self, *arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["--root", str(self.root), *arguments])
        return int(ended.value.code or 0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_filter_shows_what_it_selects_and_keeps_the_exit_code(bench: Bench, capsys) -> None:
    bench.go(True, False)
    assert bench.ask("status", "--filter", "verl:0.6") == 1
    out = capsys.readouterr().out
    assert "first-" in out
    assert "second-" not in out
    assert bench.ask("status", "--filter", "!pass", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [verdict["status"] for verdict in report["verdicts"]] == ["fail"]
    assert report["counts"] == {"pass": 1, "fail": 1}


def test_the_report_of_a_selection_is_not_green(bench: Bench, capsys) -> None:
    """The bench selects the check `resolve`, and all its outcomes pass."""
    bench.go(True, True)
    assert bench.ask("report") == 0
    folder = bench.root / "reports"
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert stored["run"]["selection"] == "--check resolve"
    assert "This is a part of the profile (--check resolve)" in stored["headline"]
    for name in ("status", "static"):
        assert "part of the profile" in (folder / "badges" / f"{name}.svg").read_text(encoding="utf-8")


def test_a_bad_query_is_bad_usage(bench: Bench, capsys) -> None:
    bench.go(True, True)
    assert bench.ask("status", "--filter", "verll:0.9") == 2
    assert "There is no field verll. Did you mean verl?" in capsys.readouterr().err


def test_what_an_unfinished_run_has_not_come_to_is_no_error(bench: Bench, capsys) -> None:
    bench.go(True, finished=False)
    bench.ask("status", "--filter", "error")
    assert "No cell matches." in capsys.readouterr().out
    bench.ask("status", "--filter", "not-run")
    assert "second-" in capsys.readouterr().out


def test_watching_a_run_whose_process_is_gone_ends(bench: Bench, capsys) -> None:
    bench.go(False, finished=False)
    bench.ask("status", "--watch")
    out = capsys.readouterr().out
    assert "resolve: unexpected failure (static)" in out
    assert "this run has not finished" in out


def test_a_report_shows_the_changes_since_the_named_run(bench: Bench, capsys) -> None:
    first = bench.go(True, True)
    bench.go(False, True)
    assert bench.ask("report") == 0
    assert "1 newly broken since" in (bench.root / "reports" / "changes.html").read_text()
    bench.go(False, True)
    assert bench.ask("report") == 0
    assert "1 still broken since" in (bench.root / "reports" / "changes.html").read_text()
    assert bench.ask("report", "--since", first[:-3]) == 0
    assert f"run <code>{first}</code>" in (bench.root / "reports" / "changes.html").read_text()
    assert bench.ask("report", "--since", "nothing") == 2
    assert "there is no run and no commit 'nothing'" in capsys.readouterr().err
    assert bench.ask("report", "--since", first[0]) == 2
    assert "3 runs begin with" in capsys.readouterr().err


def test_a_followed_run_is_shown_during_and_after_the_run(
    bench: Bench, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.cli import report_command as module

    bench.go(True, finished=False)
    seen = []

    def run_goes_on(_settings: object) -> bool:
        return len(seen) < 2

    def one_more_answer(_seconds: float) -> None:
        data = json.loads((bench.root / "reports" / "report.json").read_text(encoding="utf-8"))
        seen.append(data["counts"])
        with Ledger.open(bench.settings.path("state")) as ledger:
            run = ledger.latest_run()
            assert run
            first = ledger.history(run_id=run.run_id)[-1]
            ledger.record(dataclasses.replace(first, key=bench.plan.entries[1].key))

    monkeypatch.setattr("harness.workspace.results.stored_run.is_running", run_goes_on)
    monkeypatch.setattr(module.time, "sleep", one_more_answer)
    assert bench.ask("report", "--watch") == 0
    assert "following run" in capsys.readouterr().out
    assert [(counts["pass"], counts["not-run"], counts["error"]) for counts in seen] == [(1, 1, 0), (2, 0, 0)]
    whole = json.loads((bench.root / "reports" / "report.json").read_text(encoding="utf-8"))
    assert whole["counts"]["pass"] == 2
    assert (bench.root / "reports" / "junit.xml").is_file()


def test_a_merged_report_has_what_all_machines_stored(bench: Bench, tmp_path: Path, capsys) -> None:
    bench.go(True)
    other = Bench(_folder(tmp_path / "other"))
    other.go(True, True)
    far = other.settings.path("state") / FILE_NAME
    # Only the second cell comes from there: here the first one has an outcome already.
    with Ledger.open(bench.settings.path("state")) as ledger:
        ledger.merge(far)
    assert bench.ask("report") == 0
    assert _counts(bench)["pass"] == 1, "the run of this machine knows one cell only"
    assert bench.ask("report", "--merged") == 0
    counts = _counts(bench)
    assert counts["pass"] == 2
    data = json.loads((bench.root / "reports" / "report.json").read_text(encoding="utf-8"))
    assert not data["missing"]
    rest = [one for cell in data["cells"] for one in cell["results"] if one["status"] == "not-run"]
    assert rest
    assert all(one["reasons"] and one["remedies"] for one in rest)
    # The next report of a run is again that of the run.
    assert bench.ask("report") == 0
    assert _counts(bench)["pass"] == 1


def test_a_merged_report_is_of_no_single_run(bench: Bench, capsys) -> None:
    run = bench.go(True)
    assert bench.ask("report", "--merged", "--run", run) == 2
    assert "--merged reports no single run" in capsys.readouterr().err


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _counts(bench: Bench) -> dict[str, int]:
    counts: dict[str, int] = json.loads((bench.root / "reports" / "report.json").read_text())["counts"]
    return counts
