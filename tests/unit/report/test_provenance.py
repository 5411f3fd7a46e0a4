"""For each square: who measured it, where, when, on what lock, signed or claimed, and the outcome file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import sample_inputs
from weeks_of_runs import CI, inputs_after_weeks, weeks_of_runs

from harness.outcome import Origin, Trust
from harness.report.model.provenance import provenance
from harness.report.model.report_inputs import ReportInputs, ReportResult
from harness.report.model.report_model import build_model
from harness.report.pages.cell_pages import CellPages
from harness.report.pages.page_templates import PageWriter


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportInputs]:
    ledger, last = weeks_of_runs(tmp_path_factory.mktemp("proved"))
    yield inputs_after_weeks(ledger, last)
    ledger.close()


def measured(check: str = "loss", **changes: object) -> ReportResult:
    found = next(
        one for one in sample_inputs().results if one.check == check and one.verdict.outcome is not None
    )
    outcome = found.verdict.outcome
    assert outcome
    return replace(found, verdict=replace(found.verdict, outcome=replace(outcome, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trust", "said"),
    [
        (Trust(), "this machine, so no signature is needed"),
        (Trust(foreign=True, signer="npu-1"), "signed by the runner npu-1"),
        (Trust(foreign=True, unsigned="x"), "another machine, not signed"),
        (Trust(foreign=True, claimed="no runner signed it"), "claimed, not believed: no runner signed it"),
    ],
)
def test_signed_claimed_and_unsigned_are_told_apart(trust: Trust, said: str) -> None:
    found = provenance(measured(trust=trust), {})
    assert found
    assert found.trust == said


def test_the_machine_is_its_runner_and_its_fingerprint() -> None:
    origin = Origin(host="f" * 64, runner="npu-1", version="0.3")
    found = provenance(measured(origin=origin), {})
    assert found
    assert (found.machine, found.version) == ("npu-1 (ffffffffffff)", "0.3")
    nobody = provenance(measured(origin=None), {})
    assert nobody
    assert nobody.machine == ""


def test_the_lock_is_that_of_the_environment_it_was_measured_in() -> None:
    resolve = measured("resolve")
    lock = resolve.verdict.outcome.content_digest if resolve.verdict.outcome else ""
    environment = measured("environment", inputs={"resolve": lock})
    built = environment.verdict.outcome.content_digest if environment.verdict.outcome else ""
    others = {"resolve": resolve, "environment": environment}
    found = provenance(measured(inputs={"environment": built}), others)
    assert found
    assert (found.lock, found.lock_today) == (lock[:12], True)
    assert found.made_from == (("environment", built[:12]),)
    other = provenance(measured(inputs={"environment": "0" * 64}), others)
    assert other
    assert (other.lock, other.lock_today) == ("", False), "an environment that is gone has no known lock"
    older = provenance(measured(inputs={"resolve": "1" * 64}), others)
    assert older
    assert (older.lock, older.lock_today) == ("1" * 12, False)


def test_the_page_of_a_cell_says_it(weeks: ReportInputs, tmp_path: Path) -> None:
    model = build_model(weeks)
    writer = PageWriter(tmp_path)
    page = CellPages(model, writer).render(model.rows[0]).decode()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "measured by npu-1 (npu-host-111)" in text
    assert "this machine, so no signature is needed" in text
    assert CI
    links = re.findall(r'href="\.\./(outcomes/[^"]+)"', page)
    assert links
    stored = json.loads((tmp_path / links[0]).read_text())
    assert stored["run_id"]
    assert "Owner: numerics-team" in text
