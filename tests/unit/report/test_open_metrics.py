"""The metrics are valid OpenMetrics, by the parser of the Prometheus client, and count what the report counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from report_samples import sample_inputs
from weeks_of_runs import DAY, START, inputs_after_weeks, weeks_of_runs

from harness.report.formats.open_metrics import open_metrics
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import ReportModel, build_model

parser = pytest.importorskip(
    "prometheus_client.openmetrics.parser", reason="prometheus_client is not installed here"
)

Samples = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportInputs]:
    ledger, last = weeks_of_runs(tmp_path_factory.mktemp("metrics"))
    yield inputs_after_weeks(ledger, last)
    ledger.close()


def read(model: ReportModel) -> Samples:
    found: Samples = {}
    for family in parser.text_string_to_metric_families(open_metrics(model)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_check_of_the_report_is_counted_once() -> None:
    model = build_model(sample_inputs())
    found = read(model)
    assert sum(value for _labels, value in found["npu_matrix_checks"]) == model.planned
    for mark, count in model.counts.items():
        counted = [value for labels, value in found["npu_matrix_checks"] if labels["verdict"] == mark.value]
        assert sum(counted) == count
    assert found["npu_matrix_complete"] == [({}, float(model.complete))]


def test_a_check_that_did_not_run_has_no_evidence() -> None:
    found = read(build_model(sample_inputs()))
    for labels, _value in found["npu_matrix_checks"]:
        idle = labels["verdict"] in {"not-run", "blocked", "stale", "claimed", "unsupported", "error"}
        assert (labels["evidence"] == "none") == idle, labels


def test_owners_and_hardware(weeks: ReportInputs) -> None:
    found = read(build_model(weeks))
    assert found["npu_matrix_unowned_failures"] == [({}, 1.0)]
    assert {labels["owner"] for labels, _value in found["npu_matrix_expected_failures"]} == {
        "numerics-team",
        "patch-team",
    }
    ((labels, when),) = found["npu_matrix_hardware_last_run_timestamp_seconds"]
    assert labels == {"check": "gspo-smoke", "stale": "true"}
    assert START + 12 * DAY < when < START + 13 * DAY


@pytest.mark.parametrize(
    "text", ['"}\n# EOF\nx 1', "\\", "\ud800", "\u202e", "a" * 10_000, "", "\r\n", "\x00"]
)
def test_hostile_names_stay_labels(text: str) -> None:
    sample = sample_inputs()
    cells = tuple(replace(cell, stack=text) for cell in sample.cells)
    hostile = replace(
        sample, cells=cells, run=replace(sample.run, run_id=text, revision=text, started=float("nan"))
    )
    found = read(build_model(hostile))
    assert "x" not in found
    assert sum(value for _labels, value in found["npu_matrix_checks"]) > 0
