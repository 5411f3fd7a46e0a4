"""Compares the record of an update with the reference, quantity by quantity in the order of computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import PROMPT
from harness.numerics.arithmetic.precision_contract import FP32
from harness.numerics.loss.loss_measurements import UNCALLABLE
from harness.numerics.loss.release_objectives import ReleaseObjective
from harness.numerics.loss.verl_losses_source import MICRO_BATCH_LIMIT, MINI_BATCHES
from harness.numerics.update.rank_batches import RANK_ROWS, wrong_ranks
from harness.numerics.update.rank_dispatch import dispatched_rows
from harness.numerics.update.rejection import LONE_ROW, REJECTIONS, STORED_REJECTION, WEIGHTINGS
from harness.numerics.update.sequence_attention import ATTENTIONS
from harness.numerics.update.update_cases import (
    CASES,
    INFERENCE_TOKENS,
    OTHER_MICRO_BATCHES,
    PARAMETERS,
    ROWS,
    UpdateCase,
    draw,
)
from harness.numerics.update.update_faults import UPDATE_FAULTS
from harness.numerics.update.update_intervals import (
    LEGACY,
    AdamW,
    Interval,
    UpdateReference,
    clipped,
    parameter_gradients,
)
from harness.numerics.update.update_measurements import (
    MISSING,
    LocatedUpdateFault,
    UpdateOutcome,
    WrongQuantity,
)
from harness.numerics.update.update_record import BACKWARD, BEFORE, HELPER, RAISED, UpdateRecord

MAX_WRONG = 20
HUGE = 1e300

COUNTED = ("parameter", "input_ids")
"""Quantities that are also wrong if fewer of them were recorded than there should be."""

SCORES = ("log_prob", "reference_log_prob", "entropy")
WORKER = "worker "
INFERRED = (*SCORES, *(f"{WORKER}{name}" for name in SCORES))
"""Quantities that the same function computes in a forward pass without and with gradients."""

TERMS = ("policy_loss", "entropy_loss", "kl_loss")
"""Terms of the loss. If one was not computed, the function that adds them did not call its function."""


def judge_record(
    record: UpdateRecord, objective: ReleaseObjective, case: UpdateCase | None = None
) -> UpdateOutcome:
    """The outcome of one recorded run. case: the one that was run, by default the one of that name."""
    case = case or next(one for one in CASES if one.name == record.case)
    comparison = _Comparison(record, objective, case)
    error = record.error
    # A record that an exception ended may have anything in it.
    with suppress(Exception) if error else nullcontext():
        comparison.compare()
    wrong = comparison.located()
    if error:
        # What was computed before the exception tells more than where verl noticed it.
        before = [one.place for one in wrong if one.detail != MISSING and one.quantity not in COUNTED]
        place = record.places.get(HELPER) or next(iter(before), "") or record.places.get(RAISED, "")
        error, wrong = " in ".join(filter(None, (error, place))), []
    return UpdateOutcome(
        case=record.case,
        path=record.path,
        judged=0 if error else comparison.judged,
        wrong=tuple(wrong[:MAX_WRONG]),
        error=error,
        worst_budget=float(f"{comparison.worst:.4g}"),
    )


def judge_faults(
    records: Iterable[UpdateRecord], outcomes: Sequence[UpdateOutcome], objective: ReleaseObjective
) -> tuple[LocatedUpdateFault, ...]:
    """For each injected fault, whether it was found first in the quantity in which it was injected.

    A fault in a case that is wrong without it says nothing, and counts as missed.
    """
    clean = {(one.case, one.path) for one in outcomes if not (one.wrong or one.error)}
    faults = {fault.id: fault for fault in UPDATE_FAULTS}
    found = []
    for record in records:
        if not_offered(record, objective):
            continue
        fault = faults[record.fault]
        wrong = judge_record(record, objective).wrong
        first = wrong[0].quantity if wrong else ""
        found.append(
            LocatedUpdateFault(
                fault=fault.id,
                what=fault.what,
                caught=first.removeprefix(WORKER).startswith(fault.found_in)
                and (record.case, record.path) in clean,
                path=record.path,
                found_in=first,
            )
        )
    return tuple(found)


@dataclass
class _Comparison:
    record: UpdateRecord
    objective: ReleaseObjective
    case: UpdateCase
    wrong: list[WrongQuantity] = field(default_factory=list)
    judged: int = 0
    worst: float = 0.0

    def located(self) -> list[WrongQuantity]:
        """What is wrong. If forward passes without gradients are wrong and those with gradients, too, the
        function that both call computes the first one."""
        places = self.record.places
        training = places.get("training_log_prob", "")
        if HELPER in places:
            return self.wrong
        names = {one.quantity for one in self.wrong}
        from_worker = self.record.count("worker log_prob") > 0
        # Where the outputs of the worker are right, the trainer changed them.
        inferred = {name for name in names & {*INFERRED} if not from_worker or WORKER in name} | {
            name for name in names & {*SCORES} if f"{WORKER}{name}" in names
        }
        kinds = {"entropy" if name.endswith("entropy") else "log_prob" for name in inferred}
        # What joins the outputs of micro-batches does the same to both kinds.
        if len(kinds) == 1 or any(name.startswith("training_") for name in names):
            return [replace(one, place=training) if one.quantity in inferred else one for one in self.wrong]
        return self.wrong

    def compare(self) -> None:
        """Compare everything; the first wrong quantity is the first in `wrong`."""
        case = self.case
        self.inputs = draw(case)
        self.reference = UpdateReference(
            case=case, inputs=self.inputs, path=self.record.path, objective=self.objective
        )
        every = np.arange(ROWS)
        self._equal("response_mask", self.inputs.attended.astype(np.int64))
        rewards = self._within("token_level_rewards", self.reference.rewards())
        if case.kl_in_reward:
            self._within("kl_controller", self.reference.kl_controller())
            self._within("kl_coefficient", self.reference.kl_coefficient())
        self._equal("sessions", np.array(self.reference.knows_sessions))
        advantages = (
            rewards if rewards is None else self._within("advantages", self.reference.advantages(rewards))
        )
        self._settings()
        log_prob, entropy = self.reference.scores(self.inputs.parameters, every)
        for worker in (WORKER, "") if self.record.count("worker log_prob") else ("",):
            self._within(f"{worker}log_prob", log_prob)
            self._within(f"{worker}entropy", entropy)
            if case.has_reference_policy:
                self._within(f"{worker}reference_log_prob", log_prob)
        for name in ("graph", "mode", "cache"):
            self._equal(f"inference_{name}", np.array(0))
        self._inference_batches()
        if case.autocast:
            self._equal("autocast", np.array(1))
            for name in ("log_prob", "reference_log_prob"):
                if self.record.count(f"precision of {name}"):
                    self._equal(f"precision of {name}", np.array(1))
        self._rollout_correction()
        if advantages is None:
            return
        if self.reference.nested and self.reference.has_trainer_steps and not self.reference.legacy:
            self._stored(advantages)
        optimizer = AdamW(case.update.lr)
        parameters: dict[str, Any] = dict(self.inputs.parameters)
        for step in range(case.steps):
            after = self._step(step, parameters, advantages, optimizer)
            if after is None:
                return
            parameters = after
        self._equal("step_without_gradient", np.array(0))
        if case.sp_size > 1:
            for heads in ATTENTIONS:
                for name, exact in heads.expected().items():
                    self._equal(heads.named(name), exact)
        if case.dp_size > 1:
            for name, rows in dispatched_rows(legacy=self.reference.legacy).items():
                self._equal(name, rows)
        if self.reference.agrees_on_micro_batches:
            self._rank_batches()
        if not self.reference.legacy:
            self._equal("nested", np.array(self.reference.nested))
            self._equal("trainer", np.array(self.reference.has_trainer_steps))
            self._equal("scheduler_steps", np.array([case.steps]))
        if self.record.count("parameter head") != case.steps:
            self._report(
                "parameter",
                BEFORE,
                BEFORE,
                f"{self.record.count('parameter head')} optimizer steps were made, not {case.steps}",
            )

    def _inference_batches(self) -> None:
        """Compare the number of tokens of each micro-batch in passes without gradients."""
        lengths, name = self.inputs.attention_mask.sum(axis=1), "inference_tokens"
        passes = 1 + self.case.has_reference_policy
        if not self.case.max_tokens:
            size = self.case.inference_rows
            self._equal(name, np.tile(lengths.reshape(-1, size).sum(axis=1), passes))
            return
        found = self.record.find(name)
        if found is None:
            self._report(name, BEFORE, BEFORE, MISSING)
            return
        self.judged += 1
        for one in range(passes):
            # Each pass has the tokens of all rows.
            place = np.searchsorted(found.cumsum(), lengths.sum() * np.arange(one, one + 2), side="right")
            detail = self._dynamic_inference(found[place[0] : place[1]].tolist(), int(lengths.sum()))
            if detail:
                self._report(name, BEFORE, BEFORE, detail)

    def _rank_batches(self) -> None:
        """Compare the micro-batches that ranks with other rows make."""
        keeps_limit = MICRO_BATCH_LIMIT in self.objective.capabilities
        for case in RANK_ROWS:
            self.judged += 1
            name = f"ranks {case.name}"
            ends, rows = self.record.find(name), self.record.find(f"rows {case.name}")
            detail = MISSING
            if ends is not None and rows is not None:
                ends, rows = ends.astype(np.int64), rows.astype(np.int64)
                detail = wrong_ranks(case, ends, rows, keeps_limit=keeps_limit)
            if detail:
                self._report(name, BEFORE, BEFORE, detail)

    def _dynamic_inference(self, found: list[int], total: int) -> str:
        """What is wrong with the numbers of tokens of the micro-batches of a pass, "" if nothing is."""
        needed = max(-(-total // INFERENCE_TOKENS), self._agreed)
        if sum(found) != total or max(found, default=0) > INFERENCE_TOKENS:
            return f"micro-batches have {found} of {total} tokens; {INFERENCE_TOKENS} are allowed"
        if len(found) > needed and sum(sorted(found)[:2]) <= INFERENCE_TOKENS:
            return f"there are {len(found)} micro-batches, and {needed} are enough"
        return ""

    def _settings(self) -> None:
        """Compare the settings that the trainer passed with its batches. What it left out has its effect on
        other quantities."""
        update = self.case.update
        size = update.ppo_mini_batch_size * self.case.dp_size
        expected = {
            "temperature": update.temperature,
            "global_batch_size": size,
            "mini_batch_size": size,
            "epochs": self.case.epochs,
        }
        for kind, name in product(("", "reference_", "update "), expected):
            at = (0, 0) if kind.startswith("update") else (BEFORE, BEFORE)
            if self.record.find(f"setting {kind}{name}", *at) is not None:
                exact = np.array(float(expected[name]))
                self._within(f"setting {kind}{name}", Interval.within(exact, 4 * FP32.unit * exact), *at)

    def _stored(self, advantages: NDArray[Any]) -> None:
        """Compare what the trainer stored for the update with what its functions returned."""
        self._equal("stored advantages", advantages)
        self._equal("stored response_mask", self.inputs.response_mask)
        if self.case.kl_in_reward:
            rewards = self.record.find("token_level_rewards")
            self._equal("stored token_level_rewards", np.zeros(0) if rewards is None else rewards)
        attended = self.inputs.attended
        self._equal("bypass correction", np.array(0))
        self._equal("bypass old_log_probs", self.inputs.rollout_log_probs, valid=attended)
        if self.case.weights:
            kept, sure = STORED_REJECTION.kept(self.inputs)
            self._equal("kept stored", kept, valid=sure)
            self._equal("stored rollout_is_weights", self.weights)

    def _rollout_correction(self) -> None:
        """Compare rejections, weights, and the mask, which no case changes for the update."""
        self.weights = self.inputs.rollout_is_weights
        if "weights" not in self.objective.capabilities:
            return
        for option in REJECTIONS if self.case.rejection else ():
            if option.capability in self.objective.capabilities:
                kept, sure = option.kept(self.inputs)
                self._equal(f"kept {option.name}", kept, valid=sure)
                if option.over == "token":
                    self._equal(f"kept one row {option.name}", kept[LONE_ROW], valid=sure[LONE_ROW])
        for weighting in WEIGHTINGS if self.case.rejection else ():
            if weighting.capability in self.objective.capabilities:
                self._within(weighting.name, self.reference.weighted_by(weighting))
        if self.case.weights:
            weights = self._within("rollout_is_weights", self.reference.weights())
            self.weights = self.weights if weights is None else weights
        elif self.record.count("rollout_is_weights"):
            self._report("rollout_is_weights", BEFORE, BEFORE, "it was computed, and is not configured")
        self._equal("corrected_mask", self.inputs.response_mask)

    def _step(
        self, step: int, parameters: dict[str, Any], advantages: NDArray[Any], optimizer: AdamW
    ) -> dict[str, Any] | None:
        """Compare one optimizer step; returns the recorded parameters after it, None if some are missing."""
        update = self.case.update
        gradients = []
        batches, problem = self._micro_batches(step)
        for micro, rows in enumerate(batches):
            gradient = self._micro(step, micro, rows, parameters, advantages)
            if gradient is None:
                return None
            gradients.append((gradient, rows))
        if problem:
            self._report("input_ids", step, len(batches), problem, blamed="micro-batches")
            return None
        if self.record.find("parameter head", step) is None:
            self._report("parameter", step, BEFORE, "the optimizer made no step")
            return None
        if self.record.find("loss", step, len(batches)) is not None:
            self._report("loss", step, len(batches), "there is one micro-batch too many")
        expected = parameter_gradients(gradients, self.reference, parameters)
        norm, after_clipping = clipped(expected, update.grad_clip)
        self._within("gradient_norm", norm, step)
        recorded: dict[str, NDArray[Any]] = {}
        for name in PARAMETERS:
            self._equal(f"start {name}", parameters[name], step)
            found = self._within(f"gradient {name}", after_clipping[name], step)
            if found is None:
                return None
            recorded[name] = found
        after: dict[str, Any] = {}
        for name, interval in optimizer.step(parameters, recorded).items():
            after[name] = self._within(f"parameter {name}", interval, step)
        return None if any(found is None for found in after.values()) else after

    def _micro_batches(self, step: int) -> tuple[list[NDArray[np.int64]], str]:
        """The rows of each micro-batch of a step, and what is wrong with those that follow."""
        update = self.case.update
        size, mini = update.ppo_micro_batch_size_per_gpu, update.ppo_mini_batch_size
        first = step % self.case.mini_batches * mini
        rows = np.arange(first, first + mini)
        if not self.case.max_tokens:
            return list(rows.reshape(-1, size)), ""
        batches: list[NDArray[np.int64]] = []
        left = set(rows.tolist())
        while (ids := self.record.find("input_ids", step, len(batches))) is not None:
            found = self._rows_in(ids, left)
            lengths = self.inputs.attention_mask[found].sum()
            if not found or (lengths > self.case.most_tokens and len(found) > 1):
                return batches, "it is not made of rows of the mini-batch, or it is longer than allowed"
            batches.append(np.array(found))
            left -= set(found)
        if left:
            return batches, f"rows {sorted(left)} are in no micro-batch"
        others = OTHER_MICRO_BATCHES if self.reference.agrees_on_micro_batches else 0
        self._could_be_joined(step, rows, batches)
        if len(batches) < others:
            detail = f"there are {len(batches)} micro-batches, and another rank would wait for its {others}"
            self._report("input_ids", step, len(batches), detail, blamed="micro-batches")
        return batches, ""

    @property
    def _agreed(self) -> int:
        """How many dynamic micro-batches other ranks may require."""
        return OTHER_MICRO_BATCHES if self.case.dp_size > 1 else 0

    def _could_be_joined(self, step: int, rows: NDArray[np.int64], batches: list[NDArray[np.int64]]) -> None:
        """Report more micro-batches than tokens and ranks require, if two of them fit into one.

        A packing that needs more because rows are not divided has none that do.
        """
        lengths = self.inputs.attention_mask.sum(-1)
        needed = max(-(-int(lengths[rows].sum()) // self.case.most_tokens), self._agreed)
        shortest = sum(sorted(int(lengths[one].sum()) for one in batches)[:2])
        if len(batches) > needed and shortest <= self.case.most_tokens:
            detail = f"there are {len(batches)} micro-batches, and {needed} are enough"
            self._report("input_ids", step, len(batches), detail, blamed="micro-batches")

    def _rows_in(self, ids: NDArray[Any], left: set[int]) -> list[int]:
        """The rows of which a micro-batch consists, in their order; empty if it has other tokens."""
        rows = {row: self._tokens_of(row) for row in left}
        if not self.case.packed:
            given = [[one for one in line.tolist() if one] for line in ids]
            found = [next((row for row, own in rows.items() if own == line), -1) for line in given]
            return [] if -1 in found or len(set(found)) < len(found) else found
        found, tokens = [], ids.reshape(-1).tolist()
        padding = -len(np.trim_zeros(tokens, "b")) % self.case.sp_size
        tokens = tokens[: len(tokens) - padding]
        while tokens:
            fitting = (row for row, own in rows.items() if row not in found and tokens[: len(own)] == own)
            row = next(fitting, -1)
            if row == -1:
                return []
            found.append(row)
            del tokens[: len(rows[row])]
        return found

    def _tokens_of(self, row: int) -> list[int]:
        inputs = self.inputs
        return [int(one) for one in inputs.input_ids[row][inputs.attention_mask[row] != 0]]

    def _micro(
        self,
        step: int,
        micro: int,
        rows: NDArray[np.int64],
        parameters: dict[str, Any],
        advantages: NDArray[Any],
    ) -> NDArray[np.float64] | None:
        """Compare one micro-batch; returns the recorded gradient by logits (rows, positions, vocabulary)."""
        at = (step, micro)
        self._equal("training_mode", np.array(1), *at)
        self._equal("training_cache", np.array(0), *at)
        if self.reference.has_trainer_steps and not (self.reference.legacy or self.reference.nested):
            self._equal("row_numbers", rows, *at)
        layout = self._layout(*at, rows)
        if layout is None:
            return None
        log_prob, entropy = self.reference.scores(parameters, rows)
        new = self._within("training_log_prob", log_prob, *at)
        if new is None:
            return None
        seen = self.record.find("training_entropy", *at)
        if seen is not None or self.case.update.entropy_coeff:
            seen = self._within("training_entropy", entropy, *at)
        entropies = np.zeros_like(new) if seen is None else seen
        attended = self.inputs.attended[rows]
        new, entropies = (np.where(attended, one, 0.0) for one in (new, entropies))
        self._arguments(*at, rows, new, advantages)
        terms = self.reference.loss_terms(new, entropies, advantages[rows], self.weights[rows], rows, step)
        self._within("policy_loss", terms.policy_loss, *at)
        if self.record.find("policy_gradient", *at) is not None:
            self._within("policy_gradient", Interval.around(terms.policy_gradient), *at)
        for name, interval in (("entropy_loss", terms.entropy_loss), ("kl_loss", terms.kl_loss)):
            if interval is not None:
                self._within(name, interval, *at)
        self._within("loss", terms.loss, *at)
        response = self.reference.logits_gradient(terms, parameters, rows)
        return self._logits_gradient(*at, rows, Interval.around(response), layout)

    def _arguments(
        self, step: int, micro: int, rows: NDArray[np.int64], new: NDArray[Any], advantages: NDArray[Any]
    ) -> None:
        inputs = self.inputs
        old = new if self.reference.on_policy else inputs.old_log_probs[rows]
        valid = inputs.response_mask[rows] != 0
        self._equal("argument old_log_prob", old, step, micro, valid)
        self._equal("argument advantages", advantages[rows], step, micro, valid)
        self._equal("argument response_mask", inputs.response_mask[rows], step, micro)
        if self.reference.weighted:
            self._equal("argument rollout_is_weights", self.weights[rows], step, micro, valid)

    def _layout(self, step: int, micro: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The index in the flattened (rows, positions) of each token that the model got, -1 for padding.

        The model gets padded rows as they are, rows padded on the right, or all rows packed into one.
        """
        found = self.record.find("input_ids", step, micro)
        places = np.arange(len(rows) * self.inputs.input_ids.shape[1]).reshape(len(rows), -1)
        mask = self.inputs.attention_mask[rows] != 0
        if found is not None and self.reference.legacy and not self.case.packed:
            layout = np.where(mask, places, -1)
        elif self.case.packed:
            padding = -int(mask.sum()) % self.case.sp_size
            layout = np.pad(places[mask], (0, padding), constant_values=-1)[None]
        else:
            longest = int(mask.sum(axis=1).max())
            layout = np.full((len(rows), longest), -1)
            for row, valid in enumerate(mask):
                layout[row, : valid.sum()] = places[row][valid]
        is_token = layout >= 0
        for name, values in (
            ("input_ids", self.inputs.input_ids),
            ("position_ids", self.inputs.position_ids),
        ):
            expected = np.where(is_token, values[rows].reshape(-1)[layout], 0)
            if not self._equal(name, expected, step, micro, is_token):
                return None
        if self.record.find("attention_mask", step, micro) is not None:
            self._equal("attention_mask", is_token.astype(np.int64), step, micro)
        return layout

    def _logits_gradient(
        self, step: int, micro: int, rows: NDArray[np.int64], response: Interval, layout: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        positions, vocabulary = self.inputs.input_ids.shape[1], response.exact.shape[-1]

        def placed(values: NDArray[np.float64]) -> NDArray[np.float64]:
            whole = np.zeros((len(rows), positions, vocabulary))
            whole[:, PROMPT - 1 : -1] = values
            found = whole.reshape(-1, vocabulary)[layout]
            return np.asarray(np.where((layout >= 0)[..., None], found, 0.0))

        low, high = (np.minimum(response.low, 0.0), np.maximum(response.high, 0.0))
        sure = np.where(response.exact == 0, 0.0, 1.0)
        interval = Interval(
            exact=placed(response.exact),
            low=placed(np.where(sure, response.low, low)),
            high=placed(np.where(sure, response.high, high)),
        )
        found = self._within("logits_gradient", interval, step, micro)
        if found is None:
            return None
        whole = np.zeros((len(rows) * positions, vocabulary))
        whole[layout[layout >= 0]] = found[layout >= 0]
        return whole.reshape(len(rows), positions, vocabulary)

    def _equal(
        self,
        name: str,
        expected: NDArray[Any],
        step: int = BEFORE,
        micro: int = BEFORE,
        valid: NDArray[np.bool_] | None = None,
    ) -> bool:
        """Compare exactly where `valid`; returns whether the shapes agree."""
        expected = np.asarray(expected, dtype=np.float64)
        anything = np.full_like(expected, np.nan)
        limits = expected if valid is None else np.where(valid, expected, anything)
        found = self._within(name, Interval(exact=expected, low=limits, high=limits), step, micro)
        return found is not None

    def _within(
        self, name: str, interval: Interval, step: int = BEFORE, micro: int = BEFORE
    ) -> NDArray[np.float64] | None:
        """Compare with an interval; returns the recorded values if they have the right shape."""
        self.judged += 1
        found = self.record.find(name, step, micro)
        if found is None:
            self._report(name, step, micro, MISSING)
            return None
        values = np.asarray(found, dtype=np.float64)
        exact = np.asarray(interval.exact)
        if values.shape != exact.shape:
            self._report(name, step, micro, f"it has shape {values.shape}, not {exact.shape}")
            return None
        judged = ~np.isnan(np.broadcast_to(interval.low, exact.shape))
        # Written as "not inside", because comparisons with NaN are false.
        outside = judged & ~((values >= interval.low) & (values <= interval.high))
        width = np.maximum(np.asarray(interval.high) - np.asarray(interval.low), 1 / HUGE) / 2
        error = np.where(judged, np.nan_to_num(np.abs(values - exact), nan=HUGE, posinf=HUGE), 0.0)
        if not outside.any():
            with np.errstate(over="ignore", invalid="ignore"):
                ratios = np.where(judged & (error > 0), error / np.where(judged, width, 1.0), 0.0)
            self.worst = max(self.worst, min(float(np.max(ratios, initial=0.0)), 1.0))
            return values
        worst = np.unravel_index(int(np.argmax(np.where(outside, error, -1.0))), values.shape)
        detail = (
            f"{int(outside.sum())} of {int(judged.sum())} values are wrong, the worst is {values[worst]:.7g} "
            f"at {[int(axis) for axis in worst]}, not {exact[worst]:.7g}"
        )
        self._report(name, step, micro, detail)
        return values if np.isfinite(values).all() else None

    def _report(self, name: str, step: int, micro: int, detail: str, blamed: str = "") -> None:
        """Add a wrong quantity. blamed: another one with the function that is to be named."""
        blamed = blamed or ("loss" if detail == MISSING and name in TERMS else name)
        if (
            name.startswith("gradient")
            and step > 0
            and not any("gradient" in one.quantity for one in self.wrong)
        ):
            # The gradient of the first step was right, so something of it was kept.
            blamed = "kept gradient"
        place = _place(self.record, blamed)
        where = [f"step {step + 1}"] if step != BEFORE else []
        where += [f"micro-batch {micro + 1}"] if micro != BEFORE else []
        self.wrong.append(WrongQuantity(quantity=name, where=", ".join(where), detail=detail, place=place))


def _place(record: UpdateRecord, name: str) -> str:
    places = record.places
    if HELPER in places:
        return places[HELPER]
    if name == "loss" and not record.count("loss"):
        return places.get(BACKWARD, places.get(name, ""))
    if name in {"input_ids", "position_ids", "attention_mask"}:
        return places.get("model_input", places.get("training_log_prob", ""))
    kind = name.partition(" ")[0]
    return places.get(name) or places.get({"argument": "arguments", "start": "parameter"}.get(kind, kind), "")


def outcome_is_wrong(outcome: UpdateOutcome) -> bool:
    """Whether the case failed: a wrong quantity or an exception."""
    return bool(outcome.wrong or outcome.error)


def not_offered(record: UpdateRecord, objective: ReleaseObjective) -> str:
    """Why a record of an engine is not judged, "" if it is."""
    offered = record.path == LEGACY or MINI_BATCHES in objective.capabilities
    if offered or not record.error.startswith(UNCALLABLE):
        return ""
    return (
        f"Updates through {record.path} were not judged: the worker of this verl does not split a batch into "
        "mini-batches."
    )


def judged_outcomes(records: Iterable[UpdateRecord], objective: ReleaseObjective) -> Iterator[UpdateOutcome]:
    """The outcomes of records without an injected fault, of what this release has."""
    return (
        judge_record(record, objective)
        for record in records
        if not record.fault and not not_offered(record, objective)
    )
