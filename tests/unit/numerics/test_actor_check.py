"""The check `actor`: which tensor diverges first, what a pass proves, and why an update was not measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from environments import location_json

from harness.check import Completed
from harness.digest import canonical_json
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, InfrastructureError
from harness.evidence import DeviceFacts
from harness.numerics.actor.actor_case import BATCH, PROMPT, RESPONSE, ActorCase
from harness.numerics.actor.actor_check import judge, run
from harness.numerics.actor.actor_faults import ACTOR_FAULTS
from harness.numerics.actor.actor_measurements import (
    ACTOR_FORMAT,
    ActorDeviceRun,
    ActorReference,
    ActorReferenceFacts,
    Matmul,
    PackedErrors,
    RecomputedMatmuls,
    RecordedTensor,
)
from harness.numerics.actor.actor_reference import ReferenceTensors, save_reference
from harness.numerics.actor.clip_decisions import clip_margin
from harness.numerics.actor.tensor_recorder import TensorEvent, require_comparable
from harness.numerics.arithmetic.precision_contract import BF16_AUTOCAST, FP32
from harness.outcome import Evidence, Status
from harness.serialisation import json_object

HEAD_GRADIENT = TensorEvent(kind="gradient", name="lm_head.weight")
NORM_GRADIENT = TensorEvent(kind="gradient", name="model.norm.weight")
EVENTS = [
    TensorEvent(kind="forward", name="model.rotary_emb", part="output 2", operators=("sin",)),
    TensorEvent(kind="forward", name="model.norm", part="output", operators=("npu::npu_rms_norm",)),
    TensorEvent(kind="forward", name="lm_head", part="output", operators=("mm",)),
    TensorEvent(kind="output", name="log_prob", operators=("npu::npu_cross_entropy_loss",)),
    TensorEvent(kind="loss", name="the loss", operators=("sub_",)),
    TensorEvent(
        kind="backward", name="lm_head", part="output", operators=("npu::npu_cross_entropy_loss_backward",)
    ),
    HEAD_GRADIENT,
    NORM_GRADIENT,
    TensorEvent(kind="parameter", name="lm_head.weight"),
]
PLACES = [
    TensorEvent(kind="gradient", name=ACTOR_FAULTS["float32"][0].target),
    TensorEvent(kind="forward", name=ACTOR_FAULTS["float32"][1].target, part="output"),
]
PACKED = {event.label: 1e-6 for event in [*EVENTS, *PLACES] if event.kind not in {"forward", "backward"}}
ENGINE = "FSDPEngineWithLMHead"
MATMUL = Matmul(
    name=ACTOR_FAULTS["bfloat16"][1].target, what="the output", call=0, elements=64, wrong=9, worst=1.5
)
DONE = Completed(argv=(), returncode=0, tail="", seconds=1.0)


@dataclass
class Context:
    workdir: Path
    errors: dict[str, float | None] = field(default_factory=dict)
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    blind: bool = False
    slack: float | None = None
    unbounded: tuple[str, ...] = ()
    strict: float = 2e-6
    norms: dict[str, float] = field(default_factory=dict)
    events: list[TensorEvent] = field(default_factory=lambda: EVENTS)
    paths: tuple[str, ...] = (ENGINE,)
    wrong_matmuls: tuple[Matmul, ...] = ()
    finding: str = ""
    asked: list[str] = field(default_factory=list)
    packed: PackedErrors = field(
        default_factory=lambda: PackedErrors(errors=PACKED, faulty={PLACES[0].label: 1.0})
    )
    reference: Completed = DONE
    device: Completed = DONE
    params: dict[str, Any] = field(default_factory=dict)
    facets: dict[str, Any] = field(default_factory=lambda: {"device": {"kind": "sim"}})
    inputs: dict[str, Any] = field(
        default_factory=lambda: {"environment": SimpleNamespace(measurements=location_json(python="python"))}
    )

    def reference_of(self, argv: Any, *, env: Any) -> Completed:
        assert env["OMP_NUM_THREADS"] == "1"
        labels = [event.label for event in [*self.events, *PLACES]]
        reference = ActorReference(
            facts=ActorReferenceFacts(
                verl="0.9.1",
                torch="2.7.1",
                samples=8,
                seconds=1.0,
                paths=self.paths,
                slack=self.slack,
                unbounded_operators=self.unbounded,
                frameworks_loaded=(),
                contract=(FP32 if self.compute == "float32" else BF16_AUTOCAST).name,
            ),
            tolerances=dict.fromkeys(labels, 1e-5),
            strict=dict.fromkeys(labels, self.strict) if self.unbounded else {},
            norms={label: self.norms.get(label, 1.0) for label in labels},
            labels=tuple(labels),
        )
        if self.reference.returncode == 0:
            tensors = ReferenceTensors(exact={"label": np.zeros(1)}, targets={})
            save_reference(Path(_options(argv)["--out"]), reference, tensors)
        return self.reference

    def in_cell(self, _module: str, *args: str, env: Any, timeout: Any, on_cpu: bool = False) -> Completed:
        if on_cpu:
            return self.reference_of(args, env=env)
        options = _options(args)
        self.asked.append(options["--path"])
        wrong = {} if self.blind else {PLACES[0].label: 1.0}
        run = ActorDeviceRun(
            device=DeviceFacts(device=options["--device"], kind="npu", simulated=True),
            verl="0.9.1",
            path=options["--path"] or self.paths[0],
            compute=options["--compute"],
            finding=self.finding,
            events=tuple(
                RecordedTensor(
                    label=event.label,
                    kind=event.kind,
                    sentence=event.sentence,
                    operators=event.operators,
                    error=self.errors.get(event.label, 1e-6),
                )
                for event in self.events
            ),
            packed=self.packed,
            missing=self.missing,
            differing=self.differing,
            faults={"gradient-sign": wrong, "activation-bf16": {PLACES[1].label: None}},
            matmuls=RecomputedMatmuls(
                count=3,
                elements=192,
                wrong=self.wrong_matmuls,
                faults={"accumulation-bf16": () if self.blind else (MATMUL,)},
            ),
            seconds=1.0,
        )
        if self.device.returncode == 0 and not self.device.timed_out:
            Path(options["--out"]).write_text(json.dumps(json_object(run)))
        return self.device

    @property
    def compute(self) -> str:
        return str(self.params.get("compute", "float32"))


def _options(args: Any) -> dict[str, str]:
    return dict(arg.split("=", 1) for arg in args if arg.startswith("--") and "=" in arg)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(workdir=tmp_path)


def judged(context):
    return judged_as_stored(run(context))


def judged_as_stored(measured):
    stored = json.loads(canonical_json(ACTOR_FORMAT.write(measured.measurements)))
    return judge(ACTOR_FORMAT.read(stored), {})


def test_an_update_within_its_tolerances_passes(context):
    measured = run(context)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.PASS, judgement.reasons
    assert measured.evidence is Evidence.SIMULATED
    assert "2 gradients and 1 updated parameters" in judgement.reasons[0]
    assert "would have detected an error of 1e-05 of the norm of one gradient" in judgement.reasons[0]
    assert "of 1e-05 of the norm of all gradients together" in judgement.reasons[0]
    assert set(measured.artifacts) == {"reference.npz", "device.json"}


@pytest.mark.parametrize("error", [2e-5, None])
@pytest.mark.parametrize("place", range(len(EVENTS)))
def test_a_wrong_tensor_is_red_and_the_first_one_is_named(context, place, error):
    context.errors = {event.label: error for event in EVENTS[place:]}
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert EVENTS[place].sentence in judgement.reasons[1]
    for operator in EVENTS[place].operators:
        assert operator in judgement.reasons[2]


def test_one_wrong_gradient_is_red_whatever_its_norm(context):
    context.errors = {NORM_GRADIENT.label: 2.0}
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert any("1 of 2 gradients are wrong (model.norm.weight" in reason for reason in judgement.reasons)


def test_a_missing_gradient_is_red_a_fused_module_is_not(context):
    context.missing = ("forward/0/model.layers.0.mlp.act_fn/output",)
    assert judged(context).status is Status.PASS
    context.missing = ("gradient/0/lm_head.bias/",)
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "gradient/0/lm_head.bias/" in judgement.reasons[-1]


def test_a_self_test_that_misses_its_fault_withholds_green(context):
    context.blind = True
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "gradient-sign" in judgement.reasons[0]


def test_runs_that_differ_within_tolerance_are_told(context):
    context.differing = ("forward/0/model.norm/output",)
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "Two runs on the device differ" in judgement.reasons[-1]


def test_a_crash_on_the_device_is_red_with_its_last_words(context):
    context.device = Completed(argv=(), returncode=1, tail="Traceback\nRuntimeError: aicore", seconds=1.0)
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert judgement.reasons == (
        "The actor's update on npu:0 ended with exit code 1.",
        "Its last line of output: RuntimeError: aicore",
    )


def test_a_hang_is_red(context):
    context.device = Completed(argv=(), returncode=-9, tail="", seconds=1.0, timed_out=True)
    assert judged(context).reasons == ("The actor's update on npu:0 hung.",)


def test_a_release_without_a_known_actor_is_unsupported(context):
    context.reference = Completed(argv=(), returncode=EXIT_NOTHING_SELECTED, tail="no actor", seconds=1.0)
    judgement = judged(context)
    assert judgement.status is Status.UNSUPPORTED
    assert judgement.reasons == ("no actor",)


def test_what_could_not_be_set_up_is_no_measurement(context):
    context.device = Completed(argv=(), returncode=EXIT_BAD_INPUT, tail="not a fault", seconds=1.0)
    with pytest.raises(InfrastructureError, match="could not be set up"):
        run(context)


@pytest.mark.parametrize("distance", [np.inf, np.nan])
def test_no_tolerance_follows_from_a_reference_that_cannot_be_compared(context, distance):
    require_comparable({"output/0/log_prob/": 0.1})
    with pytest.raises(InfrastructureError, match="not comparable") as raised:
        require_comparable({"output/0/log_prob/": 0.1, "gradient/0/lm_head.weight/": distance})
    assert "gradient/0/lm_head.weight/" in str(raised.value)
    context.reference = Completed(argv=(), returncode=EXIT_INCOMPLETE, tail=str(raised.value), seconds=1.0)
    with pytest.raises(InfrastructureError, match="the CPU reference could not be set up"):
        run(context)


def test_the_case_is_the_same_everywhere_and_exact_in_fp32():
    first, second = ActorCase(), ActorCase()
    tokens, again = first.tokens(), second.tokens()
    assert all((tokens[name] == again[name]).all() for name in tokens)
    assert tokens["input_ids"].shape == (BATCH, PROMPT + RESPONSE)
    assert (tokens["attention_mask"][:, PROMPT - 1 : PROMPT + 1] == 1).all()
    assert first.draw("a.weight", (4, 3)).dtype == np.float32
    assert (first.draw("a.weight", (4, 3)) == second.draw("a.weight", (4, 3))).all()
    assert (first.draw("a.weight", (4, 3)) != first.draw("b.weight", (4, 3))).any()


def test_no_ratio_lies_at_a_clip_bound():
    case = ActorCase()
    log_probs = np.full((BATCH, RESPONSE), -1.5)
    log_ratio = log_probs - case.targets(log_probs)["old_log_probs"]
    assert clip_margin(case, log_ratio).min() > 0.8
    update = case.update
    assert (log_ratio > np.log(1 + update.clip_ratio_high)).any()
    assert (log_ratio < np.log(1 - update.clip_ratio_low)).any()


def test_packed_rows_are_told_apart_from_padded_ones(context):
    assert f"{len(PACKED)} tensors agree" in judge(run(context).measurements, {}).reasons[1]
    wrong = NORM_GRADIENT.label
    context.packed = PackedErrors(errors={**PACKED, wrong: 1.0}, faulty={PLACES[0].label: 1.0})
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "the first is the gradient of model.norm.weight" in judgement.reasons[0]


def test_a_gradient_that_packed_rows_lose_is_wrong(context):
    kept = {label: error for label, error in PACKED.items() if label != HEAD_GRADIENT.label}
    context.packed = PackedErrors(errors=kept, faulty={PLACES[0].label: 1.0})
    assert "the gradient of lm_head.weight" in judged(context).reasons[0]


def test_packed_rows_that_raise_are_red_and_a_package_that_is_not_there_is_told(context):
    context.packed = PackedErrors(error="RuntimeError: aclnnFlashAttentionVarLen not in libopapi.so")
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "aclnnFlashAttentionVarLen" in judgement.reasons[0]
    context.packed = PackedErrors(skipped="ModuleNotFoundError: No module named 'einops'")
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "was not run: ModuleNotFoundError: No module named 'einops'" in judgement.reasons[1]


def test_green_is_withheld_when_a_fault_in_packed_rows_is_missed(context):
    context.packed = PackedErrors(errors=PACKED, faulty=PACKED)
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "the one in packed rows" in judgement.reasons[0]


def test_the_reference_finds_what_a_cuda_build_of_torch_needs(context):
    context.inputs = {"environment": SimpleNamespace(measurements=location_json(runtime="/r"))}
    assert judged(context).status is Status.PASS


def test_every_path_of_a_release_is_run_and_a_fault_in_the_second_is_named_with_it(context):
    context.paths = ("DataParallelPPOActor", ENGINE)
    measured = run(context)
    judgement = judged_as_stored(measured)
    assert context.asked == ["", ENGINE]
    assert judgement.status is Status.PASS
    assert "through DataParallelPPOActor" in judgement.reasons[0]
    assert any(reason.startswith(f"{ENGINE}: ") for reason in judgement.reasons)
    assert f"device-{ENGINE}.json" in measured.artifacts
    (other,) = measured.measurements.others
    wrong = replace(other, outcome=replace(other.outcome, missing=("gradient/0/lm_head.weight/",)))
    judgement = judge(replace(measured.measurements, others=(wrong,)), {})
    assert judgement.status is Status.FAIL
    assert all(reason.startswith(f"{ENGINE}: ") for reason in judgement.reasons)


def test_a_path_that_fails_on_a_cpu_is_told_and_says_nothing_of_the_device(context):
    context.paths = ("DataParallelPPOActor", ENGINE)
    failed = Completed(argv=(), returncode=1, tail="RuntimeError: slice(): not supported", seconds=1.0)
    whole = context.reference_of

    def reference_of(argv: Any, **given: Any) -> Completed:
        return failed if f"--path={ENGINE}" in argv else whole(argv, **given)

    context.reference_of = reference_of
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert judgement.reasons[-1] == (
        f"{ENGINE}: Not run, because it fails on a CPU too. Its last line of output: RuntimeError: slice(): "
        "not supported"
    )
    # A failure of the actor class that verl uses by default is not excused.
    context.reference_of, context.reference = whole, failed
    assert judged(context).status is Status.FAIL


def test_what_verl_itself_gets_wrong_is_told(context):
    context.finding = "a mask is short"
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "Finding: a mask is short." in judgement.reasons


def test_bf16_tells_the_products_it_recomputed(context):
    context.params = {"compute": "bfloat16"}
    judgement = judged(context)
    assert judgement.status is Status.PASS, judgement.reasons
    assert "All 3 matmuls of linear layers (192 elements) have exactly" in judgement.reasons[2]


def test_coarse_partial_sums_are_red_with_the_layer(context):
    context.params = {"compute": "bfloat16"}
    context.wrong_matmuls = (MATMUL,)
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "the output of model.layers.1.mlp.down_proj (pass 1): 9 of 64 elements" in judgement.reasons[1]


def test_green_is_withheld_when_coarse_partial_sums_are_missed(context):
    context.params = {"compute": "bfloat16"}
    context.blind = True
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "missed gradient-sign, accumulation-bf16" in judgement.reasons[0]


@pytest.mark.parametrize("errors", [{}, {EVENTS[-1].label: 1.0}])
def test_decisions_that_rounding_takes_are_ill_posed_whatever_the_device_gives(context, errors):
    context.params = {"compute": "bfloat16"}
    context.slack = 0.8
    context.errors = errors
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.reasons[0].startswith("The case is ill-posed: rounding in bfloat16")
    context.slack = 1.2
    assert judged(context).status is (Status.FAIL if errors else Status.PASS)


def test_a_red_tells_which_operations_have_no_error_bound(context):
    context.errors = {EVENTS[2].label: 1.0}
    assert not any("No error bound" in reason for reason in judged(context).reasons)
    context.unbounded = ("erf",)
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert any(reason.startswith("No error bound is known for erf") for reason in judgement.reasons)
    context.errors = {}
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "No error bound is known for erf; all tensors agree without it." in judgement.reasons


@pytest.mark.parametrize("packed", [False, True])
def test_green_is_withheld_where_it_leans_on_a_guess(context, packed):
    context.unbounded = ("erf",)
    if packed:
        context.packed = PackedErrors(
            errors={**PACKED, HEAD_GRADIENT.label: 4e-6}, faulty={PLACES[0].label: 1.0}
        )
    else:
        context.errors = {HEAD_GRADIENT.label: 4e-6}
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert f"the first is {HEAD_GRADIENT.sentence}" in judgement.reasons[0]
    assert ("with packed rows" in judgement.reasons[0]) is packed
    assert judgement.remedies


def test_a_kind_of_parameter_whose_gradients_could_be_anything_is_no_green(context):
    context.params = {"compute": "bfloat16"}
    context.norms = {NORM_GRADIENT.label: 9e-6}
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert (
        "The gradient of model.norm.weight was not verified: in every layer and step" in judgement.reasons[0]
    )
    assert judgement.remedies
    # Only rounding errors of float64 in a zero: there is nothing to observe.
    context.norms = {NORM_GRADIENT.label: 1e-20}
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert not any("Not observable" in reason for reason in judgement.reasons)


@pytest.mark.parametrize("norm", [1e-5, 9e-6, 1e-20, 0.0])
def test_an_update_whose_whole_gradient_drowns_is_no_green(context, norm):
    context.params = {"compute": "bfloat16"}
    context.norms = {HEAD_GRADIENT.label: norm, NORM_GRADIENT.label: norm}
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.reasons[0].startswith(
        "The bfloat16 tolerance is as large as the whole gradient of step 1"
    )


def test_a_gradient_that_drowns_is_told_where_its_kind_is_judged_elsewhere(context):
    layers = [
        TensorEvent(kind="gradient", name=f"model.layers.{layer}.mlp.up_proj.weight") for layer in (0, 1)
    ]
    context.events = [*EVENTS, *layers]
    context.packed = PackedErrors(skipped="there is no fused attention here")
    context.norms = {layers[1].label: 1e-5}
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "would have detected an error of 1e-05 of the norm of one gradient" in judgement.reasons[0]
    assert any(
        reason.startswith("1 of 4 gradients were not verified") and "layers.1.mlp" in reason
        for reason in judgement.reasons
    )
    context.norms = {layer.label: 9e-6 for layer in layers}
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "model.layers.*.mlp.up_proj.weight" in judgement.reasons[0]


def test_an_update_without_gradients_is_no_green(context):
    context.events = [event for event in EVENTS if event.kind != "gradient"]
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "computed no gradient" in judgement.reasons[0]
