"""The check `update` on recorded runs of the real verl, and on the same runs with one quantity changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.check import Completed
from harness.digest import canonical_json
from harness.evidence import DeviceFacts
from harness.numerics.loss.loss_measurements import UNCALLABLE
from harness.numerics.loss.release_objectives import release_objective
from harness.numerics.loss.verl_losses_source import REJECTION_ESTIMATORS, InstalledLosses
from harness.numerics.update.rank_batches import WAITS
from harness.numerics.update.rejection import LONE_ROW, REJECTIONS, WEIGHTINGS
from harness.numerics.update.update_cases import CASES, PARAMETERS, draw, exact_log_probs
from harness.numerics.update.update_check import judge, run
from harness.numerics.update.update_compare import judge_faults, judge_record
from harness.numerics.update.update_faults import UPDATE_FAULTS
from harness.numerics.update.update_measurements import UPDATE_FORMAT, UpdateDeviceRun
from harness.numerics.update.update_record import Quantity, UpdateRecord, load_records, save_records
from harness.outcome import Evidence, Status
from harness.serialisation import json_object

FOLDER = Path(__file__).parent / "updates"
RECORDS = {
    (version, record.case): record
    for version in ("0.6.1", "0.9.1")
    for record in load_records(FOLDER / f"{version}.npz")
}
LEGACY = RECORDS["0.6.1", "dr-grpo"]
ENGINE = RECORDS["0.9.1", "grpo"]
DYNAMIC = RECORDS["0.9.1", "dynamic-packed"]
ULYSSES = RECORDS["0.9.1", "ulysses"]
DAPO = RECORDS["0.9.1", "dapo"]


def judged(record: UpdateRecord, version: str = "0.9.1"):
    return judge_record(record, release_objective(version))


def changed(record: UpdateRecord, name: str, change, step: int | None = None) -> UpdateRecord:
    """The record with the values of one quantity changed; None for `change` removes it."""
    quantities = []
    for quantity in record.quantities:
        if quantity.name == name and step in {None, quantity.step}:
            if change is None:
                continue
            values = np.asarray(change(np.array(quantity.values, dtype=np.float64)))
            quantity = replace(quantity, values=values)
        quantities.append(quantity)
    return replace(record, quantities=tuple(quantities))


@pytest.mark.parametrize(("version", "case"), RECORDS, ids="-".join)
def test_what_verl_computed_is_in_the_intervals(version, case):
    outcome = judged(RECORDS[version, case], version)
    assert outcome.wrong == ()
    assert outcome.judged > 40
    assert 0 < outcome.worst_budget < 0.5


def test_the_objective_of_another_release_is_wrong():
    """Dr.GRPO divides by sequences only from 0.7.1 on, so this run is wrong for a later release."""
    wrong = judged(LEGACY, "0.7.1").wrong
    assert wrong[0].quantity == "policy_loss"


def test_a_release_that_lost_sessions_or_nested_tensors_is_wrong():
    sessions = RECORDS["0.9.1", "sessions"]
    for name in ("sessions", "nested"):
        lost = changed(sessions, name, lambda values: values * 0)
        wrong = judged(lost).wrong
        assert wrong[0].quantity == name
        assert wrong[0].place.startswith("verl/")


def test_advantages_of_earlier_outputs_are_those_of_the_last_output_of_their_session():
    sessions = RECORDS["0.9.1", "sessions"]
    own = changed(sessions, "advantages", lambda values: values * (np.arange(len(values)) % 2 == 0)[:, None])
    assert judged(own).wrong[0].quantity == "advantages"


def test_a_trainer_that_changes_what_its_functions_or_workers_return_is_named():
    """Rewards, advantages, weights and log-probabilities are right, and the trainer stores others."""
    queue = RECORDS["0.9.1", "dynamic-packed"]
    for name in ("stored advantages", "stored rollout_is_weights", "stored response_mask", "kept stored"):
        first = judged(changed(queue, name, lambda values: values * 0)).wrong[0]
        assert first.quantity == name
        assert first.place.endswith("_compute_advantage")
    of_sessions = RECORDS["0.9.1", "sessions"]
    for change in (lambda values: values * 0, None):
        first = judged(changed(of_sessions, "stored token_level_rewards", change)).wrong[0]
        assert first.quantity == "stored token_level_rewards"
        assert first.place.endswith("_compute_advantage")
    lost = judged(changed(queue, "stored advantages", None)).wrong[0]
    assert (lost.quantity, lost.detail) == ("stored advantages", "it was not computed")
    first = judged(changed(ENGINE, "log_prob", lambda values: np.roll(values, 1, axis=-1))).wrong[0]
    assert first.place.endswith("_compute_old_log_prob")


@pytest.mark.parametrize(
    ("name", "method"),
    [("bypass old_log_probs", "_compute_old_log_prob"), ("bypass correction", "_compute_advantage")],
)
def test_a_trainer_that_bypasses_the_old_policy_takes_the_rollouts_log_probabilities(name, method):
    first = judged(changed(DYNAMIC, name, lambda values: values + 1)).wrong[0]
    assert first.quantity == name
    assert first.place.endswith(method)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("setting temperature", "_compute_old_log_prob"),
        ("setting reference_temperature", "_compute_ref_log_prob"),
        ("setting update temperature", "_update_actor"),
        ("setting update mini_batch_size", "_update_actor"),
        ("setting update epochs", "_update_actor"),
    ],
)
def test_a_setting_that_the_trainer_passes_wrongly_is_named_with_its_method(name, method):
    first = judged(changed(ENGINE, name, lambda values: values + 1)).wrong[0]
    assert first.quantity == name
    assert first.place.endswith(method)


def test_a_release_whose_trainer_lost_its_steps_is_wrong():
    wrong = judged(changed(ENGINE, "trainer", lambda values: values * 0)).wrong
    assert [one.quantity for one in wrong] == ["trainer"]


def test_a_gradient_that_is_wrong_although_the_loss_is_right_names_the_loss_function():
    first = judged(changed(ENGINE, "policy_gradient", lambda values: values * 2)).wrong[0]
    assert first.quantity == "policy_gradient"
    assert "core_algos.py" in first.place


def test_ranks_that_disagree_on_the_number_of_dynamic_micro_batches_are_wrong():
    merged = [one for one in DYNAMIC.quantities if (one.name, one.step) != ("input_ids", 0)]
    ids = [one for one in DYNAMIC.quantities if (one.name, one.step) == ("input_ids", 0)]
    rows = np.concatenate([one.values for one in ids[:2]], axis=-1)
    fewer = [replace(ids[0], values=rows), *(replace(one, micro=one.micro - 1) for one in ids[2:])]
    wrong = judged(replace(DYNAMIC, quantities=(*merged, *fewer))).wrong
    assert wrong[0].quantity == "input_ids"


def test_micro_batches_of_several_ranks_are_judged_by_what_the_release_has():
    for name, change in (
        ("ranks split", lambda ends: ends * 0 + WAITS),
        ("ranks impossible", lambda ends: ends * 0),
        ("rows split", lambda rows: np.minimum(rows, [[9, 1, 9, 9]])),
        ("rows few", lambda rows: rows[:-1]),
        ("ranks few", None),
    ):
        first = judged(changed(DYNAMIC, name, change)).wrong[0]
        assert first.quantity == f"ranks {name.partition(' ')[2]}"
        assert first.place.endswith("rearrange_micro_batches")
    before = judged(DYNAMIC, "0.9.0").wrong
    assert {"ranks split", "ranks impossible"} <= {one.quantity for one in before}, "0.9.0 exceeds the limit"


@pytest.mark.parametrize(
    "name",
    [
        "response_mask",
        "advantages",
        "log_prob",
        "reference_log_prob",
        "entropy",
        "input_ids",
        "position_ids",
        "training_log_prob",
        "training_entropy",
        "argument old_log_prob",
        "argument advantages",
        "argument response_mask",
        "policy_loss",
        "entropy_loss",
        "kl_loss",
        "loss",
        "logits_gradient",
        "gradient_norm",
        "start head",
        "gradient position",
        "parameter embedding",
    ],
)
def test_a_quantity_that_is_one_percent_off_is_the_first_that_is_named(name):
    wrong = judged(changed(ENGINE, name, lambda values: values * 1.01 + (values.dtype.kind == "i"))).wrong
    assert wrong[0].quantity == name
    assert wrong[0].place.startswith("verl/"), wrong[0]


def test_a_penalty_in_the_rewards_with_the_wrong_sign_is_named():
    rewards = draw(CASES[3]).response_mask * 0.0
    wrong = judged(changed(LEGACY, "token_level_rewards", lambda values: rewards - values), "0.6.1").wrong
    assert wrong[0].quantity == "token_level_rewards"
    assert "apply_kl_penalty" in wrong[0].place


def test_a_coefficient_that_the_kl_controller_adapts_wrongly_is_named():
    wrong = judged(changed(LEGACY, "kl_coefficient", lambda values: values * 1.001), "0.6.1").wrong
    assert [one.quantity for one in wrong] == ["kl_coefficient"]


def test_a_learning_rate_that_is_not_updated_after_the_last_mini_batch_is_wrong():
    wrong = judged(changed(ENGINE, "scheduler_steps", lambda values: values * 2)).wrong
    assert [one.quantity for one in wrong] == ["scheduler_steps"]


@pytest.mark.parametrize("name", ["advantages", "policy_loss", "logits_gradient", "gradient head", "loss"])
def test_a_quantity_that_was_not_computed_is_named(name):
    first = judged(changed(ENGINE, name, None)).wrong[0]
    assert (first.quantity, first.detail) == (name, "it was not computed")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_wrong(bad):
    def spoil(values):
        values.flat[0] = bad
        return values

    assert judged(changed(ENGINE, "logits_gradient", spoil)).wrong[0].quantity == "logits_gradient"
    assert judged(changed(ENGINE, "gradient_norm", lambda values: values * bad)).wrong


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("advantages", lambda values: -values),
        ("training_log_prob", lambda values: np.roll(values, 1, axis=-1)),
        ("logits_gradient", lambda values: 2 * values),
        ("logits_gradient", lambda values: values[:, ::-1]),
        ("gradient head", lambda values: -values),
        ("gradient head", lambda values: np.zeros_like(values)),
    ],
)
def test_wrong_values_of_the_right_size_are_wrong(name, change):
    assert judged(changed(ENGINE, name, change)).wrong[0].quantity == name


def test_a_gradient_that_is_kept_for_the_next_step_is_wrong():
    """As without zero_grad: the second step has the sum of both gradients."""
    first = ENGINE.find("gradient head", 0)
    assert first is not None
    wrong = judged(changed(ENGINE, "gradient head", lambda values: values + first, step=1)).wrong
    assert (wrong[0].quantity, wrong[0].where) == ("gradient head", "step 2")
    assert wrong[0].place.endswith("train_batch")


def test_a_step_that_was_not_made_is_wrong():
    quantities = tuple(one for one in ENGINE.quantities if one.step < 1)
    wrong = judged(replace(ENGINE, quantities=quantities)).wrong
    assert wrong[0].where.startswith("step 2")


def swapped_rows(record: UpdateRecord, name: str) -> UpdateRecord:
    """The record with two tokens of different rows exchanged in the first micro-batch."""

    def change(values):
        values.flat[[0, -1]] = values.flat[[-1, 0]]
        return values

    return changed(record, name, change, step=0)


def test_dynamic_micro_batches_are_rows_of_the_mini_batch():
    assert judged(DYNAMIC).wrong == ()
    first = judged(swapped_rows(DYNAMIC, "input_ids")).wrong[0]
    assert first.quantity == "input_ids"
    assert "not made of rows" in first.detail

    last = max(one.micro for one in DYNAMIC.quantities if one.step == 0)
    lost = tuple(one for one in DYNAMIC.quantities if (one.step, one.micro) != (0, last))
    first = judged(replace(DYNAMIC, quantities=lost)).wrong[0]
    assert (first.quantity, first.where) == ("input_ids", f"step 1, micro-batch {last + 1}")
    assert "are in no micro-batch" in first.detail

    case = next(one for one in CASES if one.name == "dynamic-packed")
    wide = replace(case, max_tokens=1000, dp_size=1)
    places = {one.detail: one.place for one in judge_record(DYNAMIC, release_objective("0.9.1"), wide).wrong}
    place = places[f"there are {last + 1} micro-batches, and 1 are enough"]
    assert place.endswith(" rearrange_micro_batches")
    # 38 and 40 tokens would fit into two micro-batches of 20, but no two of the three into one.
    packing = replace(case, max_tokens=20, dp_size=1)
    wrong = judge_record(DYNAMIC, release_objective("0.9.1"), packing).wrong
    assert not [one for one in wrong if one.quantity == "input_ids" and "are enough" in one.detail]


def test_a_step_that_the_optimizer_does_not_make_is_named():
    first = judged(changed(ENGINE, "parameter head", None)).wrong[0]
    assert (first.quantity, first.detail) == ("parameter", "the optimizer made no step")
    # A step is also left out if a gradient is not finite; then what made it so is the first.
    spoilt = changed(changed(ENGINE, "parameter head", None), "policy_loss", lambda values: values * np.nan)
    assert judged(spoilt).wrong[0].quantity == "policy_loss"


@pytest.mark.parametrize("name", ["rollout_is_weights", "corrected_mask"])
def test_wrong_rollout_weights_are_the_first_that_is_named(name):
    first = judged(changed(DYNAMIC, name, lambda values: values * 1.01)).wrong[0]
    assert first.quantity == name
    assert "compute_rollout_correction_and_rejection_mask" in first.place


def test_a_wrong_rejection_is_named_with_its_function():
    """Each option keeps tokens and rejects some, so that neither an empty nor a full mask is right."""
    dapo = RECORDS["0.9.1", "dapo"]
    options = [one.name for one in REJECTIONS if one.capability == REJECTION_ESTIMATORS]
    assert len(options) == 14
    for name in (f"kept {option}" for option in options):
        for wrong in (lambda values: values * 0, lambda values: np.ones_like(values)):
            first = judged(changed(dapo, name, wrong)).wrong[0]
            assert first.quantity == name
            assert "compute_rollout_rejection_mask" in first.place
    lost = judged(changed(dapo, "kept token_k1", None)).wrong[0]
    assert lost.detail == "it was not computed"


def test_a_batch_of_one_row_in_which_nothing_is_rejected_is_wrong():
    dapo = RECORDS["0.9.1", "dapo"]
    own = draw(next(case for case in CASES if case.rejection)).response_mask[LONE_ROW]
    of_tokens = [one for one in REJECTIONS if one.over == "token" and one.capability == REJECTION_ESTIMATORS]
    assert len(of_tokens) == 5
    for option in of_tokens:
        first = judged(changed(dapo, f"kept one row {option.name}", lambda _: own)).wrong[0]
        assert first.quantity == f"kept one row {option.name}"
        assert "compute_rollout_rejection_mask" in first.place


@pytest.mark.parametrize("change", [lambda values: values[::-1], None])
def test_what_is_no_tensor_must_stay_with_its_row(change):
    first = judged(changed(ENGINE, "row_numbers", change)).wrong[0]
    assert (first.quantity, first.where) == ("row_numbers", "step 1, micro-batch 1")
    assert first.place.startswith("verl/")


@pytest.mark.parametrize("option", WEIGHTINGS, ids=lambda option: option.name)
def test_wrong_weights_of_an_option_are_named_with_the_function_that_passes_it_on(option):
    dapo = RECORDS["0.9.1", "dapo"]
    plain = next(one.values for one in dapo.quantities if one.name == "rollout_is_weights")
    for wrong in (lambda values: values * 1.01, lambda _: plain, None):
        first = judged(changed(dapo, option.name, wrong)).wrong[0]
        assert first.quantity == option.name
        assert "compute_rollout_correction_and_rejection_mask" in first.place


def test_two_options_have_their_own_thresholds():
    inputs = draw(next(case for case in CASES if case.rejection))
    both = next(one for one in REJECTIONS if one.too and "," in str(one.settings["rollout_rs_threshold"]))
    kept, sure = both.kept(inputs)
    exchanged = replace(both, upper=both.too.upper, too=replace(both.too, upper=both.upper))
    assert ((exchanged.kept(inputs)[0] != kept) & sure).any()


@pytest.mark.parametrize(
    ("tokens", "detail"),
    [
        ([78], "micro-batches have [78] of 78 tokens; 60 are allowed"),
        ([25, 27, 25], "micro-batches have [25, 27, 25] of 78 tokens; 60 are allowed"),
        ([20, 20, 20, 18], "there are 4 micro-batches, and 3 are enough"),
        (None, "it was not computed"),
    ],
)
def test_dynamic_micro_batches_without_gradients_have_a_size_of_their_own(tokens, detail):
    wrong = None if tokens is None else lambda _: tokens
    first = judged(changed(DYNAMIC, "inference_tokens", wrong)).wrong[0]
    assert (first.quantity, first.detail) == ("inference_tokens", detail)
    assert first.place.endswith("infer_batch")


def test_every_rejection_keeps_and_rejects_tokens_other_than_another_estimator():
    inputs = draw(next(case for case in CASES if case.rejection))
    estimators = [one for one in REJECTIONS if one.capability == REJECTION_ESTIMATORS]
    for option in estimators:
        for statistic in {"k1", "k2", "k3"} - {option.statistic}:
            kept, sure = option.kept(inputs)
            other, _ = replace(option, statistic=statistic).kept(inputs)
            assert ((kept != other) & sure).any() or option.too, (option.name, statistic)
    for option in REJECTIONS:
        kept, sure = option.kept(inputs)
        assert 0 < kept.sum() < inputs.response_mask.sum(), option.name
        assert (sure | (inputs.response_mask == 0)).all(), option.name


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("kl_controller", lambda values: values * 1.01),
        ("inference_graph", lambda values: values + 1),
        ("inference_mode", lambda values: values + 1),
        ("inference_cache", lambda values: values + 1),
        ("inference_tokens", lambda values: values[::-1]),
        ("training_cache", lambda values: values + 1),
        ("step_without_gradient", lambda values: values + 1),
    ],
)
def test_the_controller_and_how_models_and_optimizers_are_called_are_judged(name, change):
    first = judged(changed(LEGACY, name, change), "0.6.1").wrong[0]
    assert first.quantity == name
    assert first.place


def test_a_worker_that_does_not_enter_its_autocast_is_wrong():
    record = changed(RECORDS["0.6.1", "on-policy"], "autocast", lambda values: values * 0)
    first = judged(record, "0.6.1").wrong[0]
    assert first.quantity == "autocast"
    assert first.place.endswith("_forward_micro_batch")


def test_log_probabilities_that_the_trainer_passes_on_in_bf16_are_wrong():
    record = RECORDS["0.6.1", "on-policy"]
    for name in ("log_prob", "reference_log_prob"):
        quantities = (*record.quantities, Quantity(name=f"precision of {name}", values=np.array(0)))
        assert (
            judged(replace(record, quantities=quantities), "0.6.1").wrong[0].quantity
            == f"precision of {name}"
        )


def test_weights_that_no_configuration_asks_for_are_wrong():
    values = np.ones_like(draw(CASES[0]).old_log_probs)
    more = replace(
        ENGINE, quantities=(*ENGINE.quantities, Quantity(name="rollout_is_weights", values=values))
    )
    first = judged(more).wrong[0]
    assert (first.quantity, first.detail) == ("rollout_is_weights", "it was computed, and is not configured")


def test_the_reference_agrees_with_differences_of_its_own_loss():
    """d(log-probability)/d(parameter) by central differences, so that the model's gradient is not only assumed."""
    case = CASES[0]
    inputs = draw(case)
    rng = np.random.default_rng(1)
    weights = rng.normal(size=inputs.old_log_probs.shape) * inputs.attended
    direction = {name: rng.normal(size=shape) for name, shape in PARAMETERS.items()}

    def loss(distance: float) -> float:
        moved = {name: inputs.parameters[name] + distance * direction[name] for name in PARAMETERS}
        found = exact_log_probs(moved, inputs.input_ids, inputs.position_ids, case.update.temperature)
        return float((found * weights).sum())

    from harness.numerics.arithmetic.error_bounds import Bounded
    from harness.numerics.arithmetic.precision_contract import FP32
    from harness.numerics.update.update_intervals import (
        Interval,
        LossTerms,
        UpdateReference,
        parameter_gradients,
    )

    reference = UpdateReference(
        case=case, inputs=inputs, path=ENGINE.path, objective=release_objective("0.9.1")
    )
    rows = np.arange(8)
    nothing = Interval.within(np.zeros(()), np.zeros(()))
    terms = LossTerms(
        policy_loss=nothing,
        entropy_loss=None,
        kl_loss=None,
        loss=nothing,
        policy_gradient=Bounded.exact(weights, FP32),
        by_log_prob=Bounded.exact(weights, FP32),
        by_entropy=np.zeros_like(weights),
    )
    response = reference.logits_gradient(terms, inputs.parameters, rows).value
    whole = np.zeros((8, 16, response.shape[-1]))
    whole[:, 5:-1] = response
    gradients = parameter_gradients([(whole, rows)], reference, inputs.parameters)
    slope = sum(float((gradients[name][0] * direction[name]).sum()) for name in PARAMETERS)
    assert slope == pytest.approx((loss(1e-5) - loss(-1e-5)) / 2e-5, rel=1e-6)


def faulty() -> list[UpdateRecord]:
    """Records as the program writes them with each fault, made from clean ones."""
    quantities = {"gradient": "gradient embedding"}
    records = []
    for fault in UPDATE_FAULTS:
        record = replace(RECORDS.get(("0.9.1", fault.case), ENGINE), fault=fault.id)
        wanted = quantities.get(fault.found_in, fault.found_in)
        name = next(one.name for one in record.quantities if one.name.startswith(wanted))
        records.append(changed(record, name, lambda values: values * 2 + 1))
    return records


def test_faults_must_be_found_where_they_are():
    objective = release_objective("0.9.1")
    outcomes = [judged(one) for one in (ENGINE, ULYSSES, DAPO)]
    records = faulty()
    assert all(one.caught for one in judge_faults(records, outcomes, objective))
    shift = next(one for one in records if one.fault == "response-shift")
    in_worker = changed(shift, "worker log_prob", lambda values: values * 2 + 1)
    assert judge_faults([in_worker], outcomes, objective)[0].caught
    undetected = [replace(records[0], quantities=ENGINE.quantities)]
    assert not judge_faults(undetected, outcomes, objective)[0].caught
    elsewhere = [changed(replace(ENGINE, fault="advantage-sign"), "loss", lambda values: -values)]
    assert not judge_faults(elsewhere, outcomes, objective)[0].caught
    broken = [judged(replace(ENGINE, error="RuntimeError: no"))]
    assert not judge_faults(records, broken, objective)[0].caught


@dataclass
class Context:
    """The part of a TaskContext that the check uses; the "cell" writes stored records."""

    workdir: Path
    records: list[UpdateRecord]
    on_cpu: list[UpdateRecord] = field(default_factory=list)
    returncode: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    source: InstalledLosses | None = None
    facets: dict[str, Any] = field(
        default_factory=lambda: {"device": {"kind": "sim"}, "verl_tree": {"version": "0.9.1"}}
    )

    def in_cell(self, _module: str, *args: str, on_cpu: bool = False, **_: Any) -> Completed:
        options = dict(argument.split("=") for argument in args if "=" in argument)
        if not self.returncode:
            save_records(Path(options["--records"]), self.on_cpu if on_cpu else self.records)
            facts = UpdateDeviceRun(
                device=DeviceFacts(device="npu:0", kind="npu", simulated=True),
                verl="0.9.1",
                paths=(ENGINE.path,),
                seconds=1.0,
                source=self.source,
            )
            Path(options["--out"]).write_text(json.dumps(json_object(facts)))
        return Completed(argv=args, returncode=self.returncode, tail="aicore error\n", seconds=1.0)


def test_right_updates_pass_and_are_stored_as_json(tmp_path):
    measured = run(Context(tmp_path, [ENGINE, ULYSSES, DAPO, *faulty()]))
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.PASS, judgement.reasons
    assert "from rewards to updated parameters" in judgement.reasons[0]
    assert measured.evidence is Evidence.SIMULATED
    stored = json.loads(canonical_json(UPDATE_FORMAT.write(measured.measurements)))
    assert judge(UPDATE_FORMAT.read(stored), {}) == judgement


@pytest.mark.parametrize(
    ("on_cpu", "remedy"), [("wrong", "verl's code is wrong"), ("right", "The device is wrong")]
)
def test_a_wrong_update_names_the_first_quantity_and_verls_function(tmp_path, on_cpu, remedy):
    wrong = changed(ENGINE, "policy_loss", lambda values: values * 1.001)
    context = Context(tmp_path, [wrong, *faulty()], on_cpu=[wrong if on_cpu == "wrong" else ENGINE])
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.FAIL
    reason = judgement.reasons[1]
    assert "the first wrong quantity is policy_loss in step 1, micro-batch 1" in reason
    assert "verl/trainer/ppo/core_algos.py:" in reason
    assert remedy in judgement.remedies[0]


def test_an_exception_of_verl_is_red(tmp_path):
    raised = replace(ENGINE, quantities=(), error="TypeError: unexpected keyword argument")
    judgement = judge(run(Context(tmp_path, [raised], on_cpu=[raised])).measurements, {})
    assert judgement.status is Status.FAIL
    assert "verl raised TypeError" in judgement.reasons[1]


RAISED = replace(ENGINE, quantities=(), error="AttributeError: 'Plain' object has no attribute 'scaler'")


@pytest.mark.parametrize("record", [RAISED, changed(ENGINE, "advantages", None)])
def test_an_exception_of_an_unknown_commit_is_not_called_an_error_of_verl(tmp_path, record):
    context = Context(tmp_path, [record], on_cpu=[record])
    assert judge(run(context).measurements, {}).status is Status.FAIL
    context.facets["verl_tree"] = {"version": "0.10.0.dev0", "commit": "f" * 40}
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.INCONCLUSIVE
    assert "the cause may be how it calls verl" in judgement.reasons[0]
    # A value that was computed and is wrong is an error of verl, or of a patch.
    wrong = changed(ENGINE, "policy_loss", lambda values: values * 1.001)
    context.records = context.on_cpu = [wrong, RAISED]
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.FAIL
    assert "policy_loss" in judgement.reasons[1]


def test_the_source_of_an_unknown_commit_says_what_it_computes(tmp_path):
    known = release_objective("0.9.1")
    context = Context(tmp_path, [ENGINE, ULYSSES, DAPO, *faulty()])
    context.facets["verl_tree"] = {"version": "0.9.1.dev0", "commit": "f" * 40}
    no_method = f"{UNCALLABLE}AttributeError: type object 'Plain' has no attribute 'train_mini_batch'"
    for left_out, status in ((set(), Status.PASS), ({"mini_batches"}, Status.UNSUPPORTED)):
        if left_out:
            context.records = [replace(one, quantities=(), error=no_method) for one in context.records]
        # With the capabilities of its neighbours alone, nothing is known to be lost.
        context.facets["verl_tree"]["version"] = "0.6.1.dev0" if left_out else "0.9.1.dev0"
        context.source = InstalledLosses(
            capabilities=tuple(known.capabilities - left_out), differences=("dp-size-divides",)
        )
        judgement = judge(run(context).measurements, {})
        assert judgement.status is status, judgement
        expected = "does not split a batch into mini-batches" if left_out else "dp_size"
        assert expected in judgement.reasons[-1]


def test_what_only_the_cpu_raises_does_not_blame_verl(tmp_path):
    wrong = changed(ENGINE, "policy_loss", lambda values: values * 1.001)
    no_function = replace(ENGINE, quantities=(), error="NameError: name 'unpad_input' is not defined")
    judgement = judge(run(Context(tmp_path, [wrong], on_cpu=[no_function])).measurements, {})
    assert judgement.status is Status.FAIL
    assert "verl's code is wrong" not in judgement.remedies[0]
    assert not [reason for reason in judgement.reasons if "On the CPU" in reason]


def test_a_step_that_was_left_out_because_of_nan_is_named_by_the_nan():
    """Without a step, the micro-batches of the next mini-batch seem to belong to this one."""
    micro = max(one.micro for one in DYNAMIC.quantities if one.step == 0)
    spoiled = changed(DYNAMIC, "policy_loss", lambda values: values * np.nan)
    first_step = [one for one in spoiled.quantities if one.step < 0 or (one.step == 0 and one.micro >= 0)]
    more = [
        replace(one, step=0, micro=one.micro + micro + 1)
        for one in spoiled.quantities
        if one.step == 1 and one.micro >= 0
    ]
    first = judged(replace(spoiled, quantities=(*first_step, *more))).wrong[0]
    assert (first.quantity, first.where) == ("policy_loss", "step 1, micro-batch 1")


def test_what_was_wrong_before_an_exception_names_the_function():
    shape = changed(ENGINE, "training_log_prob", lambda values: values[:, :-1])
    raised = replace(shape, error="RuntimeError: sizes", places={**ENGINE.places, "raised": "verl/x.py:1 f"})
    outcome = judged(raised)
    assert outcome.wrong == ()
    assert outcome.error.endswith("prepare_model_outputs")
    nothing = judged(replace(raised, quantities=()))
    assert nothing.error == "RuntimeError: sizes in verl/x.py:1 f"


def test_a_helper_that_is_wrong_is_named_instead_of_the_step():
    wrong = changed(ENGINE, "policy_loss", lambda values: values * 2)
    helper = "verl/utils/torch_functional.py:273 masked_sum"
    assert judged(replace(wrong, places={**wrong.places, "helper": helper})).wrong[0].place == helper
    assert judged(replace(ENGINE, places={**ENGINE.places, "helper": helper})).wrong == ()


@pytest.mark.parametrize(
    ("names", "function"),
    [
        (("log_prob", "entropy"), "_compute_old_log_prob"),
        (("worker log_prob", "worker entropy", "log_prob", "entropy"), "postprocess_batch_func"),
        (("worker log_prob", "log_prob"), "prepare_model_outputs"),
        (("worker log_prob", "worker entropy", "training_log_prob"), "prepare_model_outputs"),
    ],
)
def test_a_wrong_forward_pass_is_told_from_what_joins_and_passes_on_its_outputs(names, function):
    """What joins micro-batches does the same to log-probabilities and entropies."""
    wrong = ENGINE
    for name in names:
        wrong = changed(wrong, name, lambda values: np.roll(values, 1, axis=-1))
    found = judged(wrong).wrong
    assert found[0].quantity == names[0]
    assert found[0].place.endswith(function)


def test_a_missed_fault_is_inconclusive(tmp_path):
    missed = replace(faulty()[0], quantities=ENGINE.quantities)
    judgement = judge(run(Context(tmp_path, [ENGINE, missed])).measurements, {})
    assert judgement.status is Status.INCONCLUSIVE


def test_a_crash_is_red(tmp_path):
    judgement = judge(run(Context(tmp_path, [], returncode=1)).measurements, {})
    assert judgement.status is Status.FAIL
    assert "aicore error" in judgement.reasons[1]
