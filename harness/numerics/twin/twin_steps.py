"""The steps of one twin run: sampling with noise from the host, then log-probabilities and update by verl."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import PROMPT, RESPONSE, Arrays
from harness.numerics.actor.actor_update import TensorPlacement, build_model
from harness.numerics.actor.clip_decisions import clip_margin, watch_clip_decisions
from harness.numerics.actor.tensor_recorder import (
    BACKWARD,
    GRADIENT,
    OUTPUT,
    PARAMETER,
    TensorEvent,
    TensorRecorder,
)
from harness.numerics.actor.verl_workers import actor_class
from harness.numerics.twin.twin_case import EPSILON, TwinCase
from harness.numerics.twin.twin_faults import StepCounter, TwinFault

Values = NDArray[np.float64]


@dataclass(kw_only=True)
class TwinRun:
    """Everything that one run records, step by step.

    values: by label `step/kind/call/name/part`. decisions: for each step, the numbers that decide something
        and their distances from the boundary. tokens: the sampled tokens, (rows, RESPONSE) for each step.
    """

    values: dict[str, Values] = field(default_factory=dict)
    decisions: dict[str, tuple[Values, Values]] = field(default_factory=dict)
    tokens: list[NDArray[np.int64]] = field(default_factory=list)


def run_twin(
    case: TwinCase,
    placement: TensorPlacement,
    script: Sequence[NDArray[np.int64]] | None,
    *,
    mode: Any,
    sample: bool = True,
    steps: int | None = None,
    fault: TwinFault | None = None,
) -> TwinRun:
    """Run the steps on the device or as the float64 copy.

    script: the responses of the exact run, on which every run trains instead of its own, so that a differing
        token is one finding and does not end the comparison; None for the exact run.
    sample: whether tokens are drawn one by one; otherwise all logits are computed at once over the script,
        which is enough to measure how far rounding moves them.
    """
    torch, run = placement.torch, TwinRun()
    model = build_model(case, placement)
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.update.lr, eps=EPSILON)
    actor = actor_class()(model, optimizer, case, placement.device.split(":", maxsplit=1)[0])
    clock = StepCounter()
    injected = fault.injected(model, optimizer, clock) if fault else nullcontext()
    loss = watch_clip_decisions(
        case.update.loss_mode, partial(clip_margin, case), partial(_decide_clips, run)
    )
    with mode, loss, injected:
        for step in range(case.steps if steps is None else steps):
            clock.step = step
            prompts = case.prompts(step)
            given = None if script is None else script[step]
            scores, sampled = _sample(case, placement, model, prompts, step, None if sample else given)
            run.tokens.append(sampled)
            responses = sampled if given is None else given
            recorder = TensorRecorder(sink=partial(_store_event, run, step))
            tokens = case.batch(prompts, responses)
            log_probs = _log_probs(actor, model, tokens, placement, recorder)
            _decide_tokens(run, step, scores, tokens["attention_mask"], responses)
            _update(actor, model, optimizer, tokens, log_probs, case, placement, recorder)
    return run


def _store_event(run: TwinRun, step: int, event: TensorEvent, values: Values) -> None:
    if event.kind == BACKWARD:
        # The gradients of the parameters identify the module; recording these too would double the memory.
        return
    run.values[f"{step}/{event.label}"] = values


def _sample(
    case: TwinCase,
    placement: TensorPlacement,
    model: Any,
    prompts: NDArray[Any],
    step: int,
    script: NDArray[np.int64] | None,
) -> tuple[Values, NDArray[np.int64]]:
    """Scores (rows, RESPONSE, vocabulary), which are logits plus noise, and the tokens with the largest
    scores."""
    torch, noise = placement.torch, case.noise(step)

    def logits(ids: NDArray[Any]) -> Values:
        given = placement.tensor(ids).to(placement.device)
        with torch.no_grad():
            found = model(input_ids=given, use_cache=False).logits
        return np.asarray(found.detach().cpu().double().numpy())

    model.eval()
    if script is not None:
        ids = np.concatenate([prompts, script], axis=1)
        scores = logits(ids)[:, PROMPT - 1 : -1] + noise
        return scores, scores.argmax(axis=-1)
    ids, found = prompts, []
    for index in range(RESPONSE):
        found.append(logits(ids)[:, -1] + noise[:, index])
        ids = np.concatenate([ids, found[-1].argmax(axis=-1)[:, None]], axis=1)
    return np.stack(found, axis=1), ids[:, PROMPT:]


def _decide_tokens(
    run: TwinRun, step: int, scores: Values, mask: NDArray[Any], chosen: NDArray[np.int64]
) -> None:
    """Record the scores, and the margin of the sampled token over every other one, on valid tokens."""
    is_valid = mask[:, PROMPT:] != 0
    run.values[f"{step}/{OUTPUT}/0/scores/"] = scores * is_valid[..., None]
    own = np.take_along_axis(scores, chosen[..., None], axis=-1)
    ahead = np.where(np.arange(scores.shape[-1]) == chosen[..., None], np.inf, own - scores)[is_valid]
    run.decisions[f"{step}/tokens"] = (ahead, ahead)


def _log_probs(
    actor: Any, model: Any, tokens: Arrays, placement: TensorPlacement, recorder: TensorRecorder
) -> Any:
    """Log-probabilities of the responses by verl's actor, recorded module by module."""
    given = {name: placement.tensor(array) for name, array in tokens.items()}
    with recorder.watching(model):
        log_probs, entropy = actor.log_probs(given)
    valid = given["attention_mask"][:, -RESPONSE:].to(log_probs.device)
    recorder.note(OUTPUT, "log_prob", log_probs * valid)
    recorder.note(OUTPUT, "entropy", entropy * valid)
    return log_probs.detach().cpu().to(placement.dtype)


def _update(
    actor: Any,
    model: Any,
    optimizer: Any,
    tokens: Arrays,
    log_probs: Any,
    case: TwinCase,
    placement: TensorPlacement,
    recorder: TensorRecorder,
) -> None:
    """Run verl's update and record the tensors of its forward passes, and gradients and parameters at each
    optimizer step, in the order of computation."""
    called = {name: index for index, (_, name, _) in enumerate(recorder.calls)}
    parameters = sorted(
        model.named_parameters(), key=lambda named: called.get(named[0].rpartition(".")[0], -1)
    )

    def before_step(*_: Any) -> None:
        # Gradients flow from the module called last to the first, so the first wrong one is where the fault
        # is.
        for name, parameter in reversed(parameters):
            recorder.note(GRADIENT, name, parameter.grad)

    def after_step(*_: Any) -> None:
        for name, parameter in parameters:
            recorder.note(PARAMETER, name, parameter)

    targets = {"old_log_probs": log_probs, "advantages": placement.tensor(case.advantages(tokens))}
    handles = [
        optimizer.register_step_pre_hook(before_step),
        optimizer.register_step_post_hook(after_step),
    ]
    try:
        # A fault that begins in the middle of an update shows first in its forward pass.
        with recorder.watching(model):
            metrics = actor.update({name: placement.tensor(array) for name, array in tokens.items()}, targets)
    finally:
        for handle in handles:
            handle.remove()
    for name in sorted(metrics):
        recorder.note(OUTPUT, name, placement.torch.tensor(metrics[name], dtype=placement.torch.float64))


def _decide_clips(run: TwinRun, ratio: Values, margin: Values) -> None:
    step = len(run.tokens) - 1
    call = sum(label.startswith(f"{step}/clip") for label in run.decisions)
    run.decisions[f"{step}/clip/{call}"] = (ratio, margin)
