"""The pages of numerics and convergence: what they show of measurements, old, odd and missing ones among them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_samples import (
    actor_measurements,
    loss_measured,
    loss_measurements,
    result,
    sample_inputs,
    training_measured,
    training_measurements,
    twin_measurements,
)

from harness.convergence.smoke.smoke_measurements import SMOKE_FORMAT
from harness.convergence.telemetry.training_records import (
    MachineLoad,
    RewardCurve,
    TelemetryCurves,
    TrainingCurves,
)
from harness.convergence.trainer.record_trainer import FOLDER
from harness.convergence.trainer.trainer_measurements import (
    TRAINER_FORMAT,
    TrainerMeasurements,
    TrainerSeconds,
)
from harness.convergence.trainer.trainer_recipe import TrainerRecipe
from harness.evidence import DeviceFacts
from harness.outcome import Status
from harness.report.model.release_facts import objective_changes
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import ReportModel, build_model
from harness.report.model.streak import EarlierVerdict, HistoryEntry
from harness.report.model.trend import figures_of, trends
from harness.report.pages.convergence_page import convergence_page
from harness.report.pages.figures import figures
from harness.report.pages.numerics_page import numerics_page
from harness.report.pages.page_templates import PageWriter

NEW, OLD = "verl-0.9.1-sim", "verl-0.6.1-sim"


def with_measurements(
    cell: str,
    check: str,
    measurements: dict[str, Any],
    made_by: str = "",
    sample: ReportInputs | None = None,
) -> ReportInputs:
    """The sample with measurements in place of those of `check`, as if the check `made_by` had measured them."""
    inputs = sample or sample_inputs()
    return dataclasses.replace(
        inputs,
        results=tuple(
            result(
                cell,
                made_by or check,
                found.verdict.status,
                tier=found.entry.tier,
                measurements=measurements,
                history=found.history,
            )
            if (found.cell_id, found.check) == (cell, check)
            else found
            for found in inputs.results
        ),
    )


def pages(model: ReportModel, folder: Path) -> tuple[str, str]:
    writer = PageWriter(folder)
    return numerics_page(model, writer), convergence_page(model, writer)


def test_budgets_are_shown_by_case_and_version(tmp_path: Path) -> None:
    inputs = with_measurements(NEW, "loss", loss_measurements(broken=True))
    numerics, _ = pages(build_model(inputs), tmp_path)
    assert 'class="num b-over"' in numerics
    assert "350% ✗" in numerics
    assert "not finite, not required" in numerics
    assert "verl 0.6.1" in numerics
    assert "gspo/seq-mean-token-mean/ragged" in numerics


def test_what_is_beyond_what_verl_promises_is_not_counted_as_wrong(tmp_path: Path) -> None:
    numerics, _ = pages(build_model(with_measurements(NEW, "loss", loss_measurements())), tmp_path)
    assert "b-over" not in numerics
    assert "b-beyond" in numerics


def test_gradients_are_shown_by_module_and_missed_faults_are_marked(tmp_path: Path) -> None:
    inputs = with_measurements(NEW, "loss", actor_measurements(), "actor")
    numerics, _ = pages(build_model(inputs), tmp_path)
    assert "model.layers.1.self_attn.o_proj.weight" in numerics
    # Of two steps the one that is farther off: 1.5e-6 * 2 * 2.
    assert "6.00e-06" in numerics
    assert "✗ missed:" in numerics


def test_a_twin_run_is_shown_step_by_step_with_its_horizon_and_faults(tmp_path: Path) -> None:
    inputs = with_measurements(NEW, "loss", twin_measurements((0.05, 1.4, None)), "twin")
    numerics, _ = pages(build_model(inputs), tmp_path)
    part = numerics[numerics.index('id="twin-title"') :]
    assert "3 of 3 steps" in part
    steps = part[: part.index("</table>")]
    assert [word in steps for word in ("5.0%", "140% ✗", "wrong ✗")] == [True, True, True]
    assert "Adam forgets its moments" in part
    clean, _ = pages(
        build_model(with_measurements(NEW, "loss", twin_measurements((0.05, 0.1)), "twin")), tmp_path
    )
    assert "b-over" not in clean


def test_objective_changes_say_what_was_measured_here() -> None:
    changes = {
        change.id: change for change in objective_changes([loss_measured("0.6.1"), loss_measured("0.9.1")])
    }
    assert changes["gspo-ignores-loss-agg-mode"].measured == (
        ("differs in 3 cases", "differs"),
        ("standard", "standard"),
    )
    assert changes["no-token-sum"].measured == (("lacks it", "differs"), ("has it", "standard"))
    # 0.6.1 is a release that differs here, but nothing measured says so.
    assert changes["sum-norm-without-sequences"].measured[0] == ("not seen", "unknown")


def test_trainings_show_looks_decision_and_cost(tmp_path: Path) -> None:
    _, convergence = pages(build_model(sample_inputs()), tmp_path)
    assert convergence.count('<svg class="chart"') == 4
    assert "step 30" in convergence
    assert '<b class="missed">alarm</b>' in convergence
    assert "below the reference by at most" in convergence
    assert "24.6 s" in convergence  # 60 steps of 0.41 s
    assert convergence.count('<svg class="chart small"') >= 4 * 4


def trainer_measured() -> TrainerMeasurements:
    """One run of verl's own trainer, with the settings of a run that was recorded."""
    file = next(iter(sorted(FOLDER.glob("gspo-*.json"))))
    recorded = json.loads(file.read_text(encoding="utf-8"))
    series = {name: tuple(values) for name, values in recorded["series"].items()}
    return TrainerMeasurements(
        schema={},
        state="measured",
        stopped="",
        returncode=0,
        where="",
        stacks=(),
        stack_problems=(),
        algorithm="gspo",
        recipe=TrainerRecipe(**recorded["recipe"]),
        digest=recorded["recipe_digest"],
        settings="",
        argv=(),
        plugins=(),
        versions=recorded["provenance"]["versions"],
        ray="",
        device=DeviceFacts(device="npu:0", kind="npu", simulated=True),
        host=MachineLoad(id="machine", load=0.5),
        processes=(),
        seconds=TrainerSeconds(prepare=1.0, start_up=41.0, whole=60.0),
        swept=0,
        series={**series, "seconds": (2.0,) * 24},
        complete=True,
        problems=(),
        curves=TrainingCurves(
            candidate=(RewardCurve(seed=0, reward=series["reward"]),),
            telemetry={"entropy": TelemetryCurves(candidate=(series["entropy"],))},
        ),
    )


def trainer_measurements() -> dict[str, Any]:
    """`trainer_measured` as the ledger stores it."""
    return TRAINER_FORMAT.write(trainer_measured())


def trainer_section(measured: TrainerMeasurements, folder: Path) -> str:
    """The page of convergence from where it shows this training."""
    inputs = with_measurements(NEW, "loss", TRAINER_FORMAT.write(measured), "trainer-gspo")
    page = convergence_page(build_model(inputs), PageWriter(folder))
    return page[page.index('id="verl-0.9.1-sim-check-trainer-gspo"') :]


def test_a_run_of_verls_trainer_is_drawn_over_the_recorded_run(tmp_path: Path) -> None:
    part = trainer_section(trainer_measured(), tmp_path)
    chart = part[: part.index("</figure>")]
    assert "curve candidate" in chart
    assert "curve reference" in chart
    assert "48.0 s" in part  # 24 steps of 2 s
    assert dict(figures_of("trainer-gspo", trainer_measurements()))["last reward"] > 0.5


def test_a_trainer_run_without_a_recorded_run_is_drawn_alone(tmp_path: Path) -> None:
    part = trainer_section(dataclasses.replace(trainer_measured(), digest="other"), tmp_path)
    assert "curve reference" not in part[: part.index("</figure>")]


def test_numbers_are_followed_over_runs(tmp_path: Path) -> None:
    numerics, convergence = pages(build_model(sample_inputs()), tmp_path)
    assert "Curves appear here from the second run on." in numerics
    assert "Over runs" in convergence


def test_figures_are_taken_from_what_checks_measure() -> None:
    assert dict(figures_of("loss", loss_measurements())) == {"share of the error budget": 0.59}
    assert dict(figures_of("actor", actor_measurements())) == {"share of the error budget": 0.086}
    assert dict(figures_of("grpo", training_measurements()))["seconds per step"] == 0.41
    assert figures_of("resolve", {"anything": "else"}) == ()


def test_a_run_that_did_not_measure_leaves_no_point() -> None:
    past = tuple(
        HistoryEntry(time=place, verdict=EarlierVerdict(status=Status.PASS), figures=figures)
        for place, figures in enumerate([(("share of the error budget", 0.2),), ()])
    )
    found = trends(result(NEW, "loss", Status.PASS, measurements=loss_measurements(), history=past))
    assert [value for value in found[0].values if value == value] == [0.2, 0.59]


ODD: list[Any] = [None, 7, "text", [], {}, [1, 2], {"a": 1}, [{}], [None], {"candidate": 3}, float("nan")]


MEASURED_BY: dict[str, Callable[[], dict[str, Any]]] = {
    "loss": loss_measurements,
    "actor": actor_measurements,
    "grpo": training_measurements,
    "trainer-gspo": trainer_measurements,
    "twin": lambda: twin_measurements((0.1, None)),
}


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("check", MEASURED_BY)
def test_half_written_and_older_measurements_do_not_break_the_pages(
    tmp_path: Path, check: str, odd: Any
) -> None:
    whole = MEASURED_BY[check]()
    # Without the trainings of the sample, whose charts take most of the time. The next test draws them too.
    sample = sample_inputs()
    losses = dataclasses.replace(
        sample, results=tuple(found for found in sample.results if found.check == "loss")
    )
    for name in whole:
        changed = {**whole, name: odd}
        model = build_model(with_measurements(NEW, "loss", changed, check, losses))
        assert all(page.endswith("</html>") for page in pages(model, tmp_path))
        figures(changed, check)
        figures_of(check, changed)


@pytest.mark.parametrize("check", MEASURED_BY)
def test_measurements_may_lack_any_of_their_parts(tmp_path: Path, check: str) -> None:
    whole = MEASURED_BY[check]()
    for name in whole:
        without = {key: value for key, value in whole.items() if key != name}
        model = build_model(with_measurements(NEW, "loss", without, check))
        assert all(page.endswith("</html>") for page in pages(model, tmp_path))
        figures(without, check)


@pytest.mark.parametrize(
    ("verl", "word"),
    [("0.9.0", ("not seen", "unknown")), ("0.9.1", ("standard", "standard"))],
)
def test_the_last_release_that_differs_is_not_called_standard(verl: str, word: tuple[str, str]) -> None:
    [change] = [
        one
        for one in objective_changes([dataclasses.replace(loss_measured(verl), findings=())])
        if one.id == "gspo-ignores-loss-agg-mode"
    ]
    assert change.measured == (word,)


def test_the_numbers_of_a_look_are_shown_and_a_missing_one_is_a_dash(tmp_path: Path) -> None:
    measured = training_measured()
    assert measured.decision
    first, *others = measured.decision.looks
    decision = dataclasses.replace(
        measured.decision, looks=(dataclasses.replace(first, statistic=None), *others)
    )
    changed = SMOKE_FORMAT.write(dataclasses.replace(measured, decision=decision))
    page = pages(build_model(with_measurements(NEW, "grpo", changed)), tmp_path)[1]
    assert page.count('<td class="num">—</td><td class="num">—</td>') == 1
    assert page.count('<td class="num">0.31</td><td class="num">0.92</td>') >= 3
