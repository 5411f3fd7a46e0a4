"""The check `actor`: which tensor diverged first, what a green is worth, what kept it from measuring."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.check import Completed
from harness.digest import canonical_json
from harness.errors import EXIT_BAD_INPUT, EXIT_NOTHING_SELECTED, InfrastructureError
from harness.numerics.actor import judge, run
from harness.numerics.actor_case import BATCH, PROMPT, RESPONSE, ActorCase
from harness.numerics.actor_run import FAULT_PLACES, FORMAT
from harness.numerics.case import write_npz
from harness.numerics.recorder import Event
from harness.outcome import Evidence, Status

EVENTS = [
    Event(kind="forward", name="model.norm", part="output", operators=("npu::npu_rms_norm",)),
    Event(kind="forward", name="lm_head", part="output", operators=("mm",)),
    Event(kind="output", name="log_prob", operators=("npu::npu_cross_entropy_loss",)),
    Event(
        kind="backward", name="lm_head", part="output", operators=("npu::npu_cross_entropy_loss_backward",)
    ),
    Event(kind="gradient", name="lm_head.weight"),
    Event(kind="gradient", name="model.norm.weight"),
    Event(kind="parameter", name="lm_head.weight"),
]
PLACES = [
    Event(kind="gradient", name=FAULT_PLACES["gradient-sign"]),
    Event(kind="forward", name=FAULT_PLACES["activation-bf16"], part="output"),
]
PACKED = {
    event.label: 1e-6 for event in [*EVENTS, *PLACES] if event.kind in {"output", "gradient", "parameter"}
}
DONE = Completed(argv=(), returncode=0, tail="", seconds=1.0)


@dataclass
class Context:
    workdir: Path
    errors: dict[str, float | None] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    blind: bool = False
    packed: dict[str, Any] = field(
        default_factory=lambda: {"errors": PACKED, "faulty": {PLACES[0].label: 1.0}}
    )
    reference: Completed = DONE
    device: Completed = DONE
    params: dict[str, Any] = field(default_factory=dict)
    facets: dict[str, Any] = field(default_factory=lambda: {"device": {"kind": "sim"}})
    inputs: dict[str, Any] = field(
        default_factory=lambda: {"environment": SimpleNamespace(measurements={"python": "python"})}
    )

    def command(self, argv: Any, *, env: Any, timeout: Any) -> Completed:
        assert env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        labels = [event.label for event in [*EVENTS, *PLACES]]
        index = {
            "format": FORMAT,
            "facts": {"seconds": 1.0},
            "tolerances": dict.fromkeys(labels, 1e-5),
            "norms": dict.fromkeys(labels, 1.0),
            "labels": labels,
        }
        if self.reference.returncode == 0:
            write_npz(Path(argv[argv.index("--out") + 1]), index, {"exact.0": np.zeros(1)})
        return self.reference

    def in_cell(self, _module: str, *args: str, timeout: Any) -> Completed:
        options = dict(zip(args[::2], args[1::2], strict=True))
        wrong = {} if self.blind else {PLACES[0].label: 1.0}
        facts = {
            "device": {"device": options["--device"], "kind": "npu", "simulated": True},
            "verl": "0.9.1",
            "path": "FSDPEngineWithLMHead",
            "events": [
                {
                    "label": event.label,
                    "kind": event.kind,
                    "sentence": event.sentence,
                    "operators": list(event.operators),
                    "error": self.errors.get(event.label, 1e-6),
                }
                for event in EVENTS
            ],
            "packed": self.packed,
            "missing": self.missing,
            "differing": self.differing,
            "faults": {"gradient-sign": wrong, "activation-bf16": {PLACES[1].label: None}},
            "seconds": 1.0,
        }
        if self.device.returncode == 0 and not self.device.timed_out:
            Path(options["--out"]).write_text(json.dumps(facts))
        return self.device


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(workdir=tmp_path)


def judged(context):
    measured = run(context)
    return judge(json.loads(canonical_json(measured.measurements)), {})


def test_an_update_within_its_tolerances_passes(context):
    measured = run(context)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.PASS, judgement.reasons
    assert measured.evidence is Evidence.SIMULATED
    assert "2 gradients and 1 updated parameters" in judgement.reasons[0]
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
    context.errors = {EVENTS[5].label: 2.0}
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert any("1 of 2 gradients are wrong (model.norm.weight" in reason for reason in judgement.reasons)


def test_a_missing_gradient_is_red_a_fused_module_is_not(context):
    context.missing = ["forward/0/model.layers.0.mlp.act_fn/output"]
    assert judged(context).status is Status.PASS
    context.missing = ["gradient/0/lm_head.bias/"]
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "gradient/0/lm_head.bias/" in judgement.reasons[-1]


def test_a_self_test_that_misses_its_fault_withholds_green(context):
    context.blind = True
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "gradient-sign" in judgement.reasons[0]


def test_runs_that_differ_within_tolerance_are_told(context):
    context.differing = ["forward/0/model.norm/output"]
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "Two runs differ" in judgement.reasons[-1]


def test_a_crash_on_the_device_is_red_with_its_last_words(context):
    context.device = Completed(argv=(), returncode=1, tail="Traceback\nRuntimeError: aicore", seconds=1.0)
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert judgement.reasons == (
        "The actor's update on npu:0 ended with code 1.",
        "Its last words: RuntimeError: aicore",
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
    ratio = np.exp(log_probs - case.targets(log_probs)["old_log_probs"])
    bounds = (1 - case.update["clip_ratio"], 1 + case.update["clip_ratio"])
    assert min(np.abs(ratio - bound).min() for bound in bounds) > 0.01
    assert {(ratio > bounds[1]).any(), (ratio < bounds[0]).any()} == {True}


def test_packed_rows_are_told_apart_from_padded_ones(context):
    assert f"{len(PACKED)} tensors agree, too" in judge(run(context).measurements, {}).reasons[1]
    wrong = EVENTS[5].label
    context.packed = {"errors": {**PACKED, wrong: 1.0}, "faulty": {PLACES[0].label: 1.0}}
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "wrong, first the gradient of model.norm.weight; with padded rows none is" in judgement.reasons[0]


def test_a_gradient_that_packed_rows_lose_is_wrong(context):
    kept = {label: error for label, error in PACKED.items() if label != EVENTS[4].label}
    context.packed = {"errors": kept, "faulty": {PLACES[0].label: 1.0}}
    assert "the gradient of lm_head.weight" in judged(context).reasons[0]


def test_packed_rows_that_raise_are_red_and_a_package_that_is_not_there_is_told(context):
    context.packed = {"error": "RuntimeError: aclnnFlashAttentionVarLen not in libopapi.so"}
    judgement = judged(context)
    assert judgement.status is Status.FAIL
    assert "aclnnFlashAttentionVarLen" in judgement.reasons[0]
    context.packed = {"why": "ModuleNotFoundError: No module named 'einops'"}
    judgement = judged(context)
    assert judgement.status is Status.PASS
    assert "was not run: ModuleNotFoundError: No module named 'einops'" in judgement.reasons[1]


def test_green_is_withheld_when_a_fault_in_packed_rows_is_missed(context):
    context.packed = {"errors": PACKED, "faulty": PACKED}
    judgement = judged(context)
    assert judgement.status is Status.INCONCLUSIVE
    assert "the one in packed rows" in judgement.reasons[0]
