"""Runs one case through verl: the trainer's reward and advantage steps, then the worker's log-probabilities
and update, on a model that can be differentiated by hand. Everything that passes between verl's functions is
recorded."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from harness.numerics.actor.verl_workers import EngineActor, LegacyActor, actor_class
from harness.numerics.loss.candidate import StandInError, is_own_call
from harness.numerics.loss.loss_measurements import UNCALLABLE
from harness.numerics.loss.returned_values import returned_without_key
from harness.numerics.loss.trainer_functions import (
    ENGINE_WORKER,
    LEGACY_WORKER,
    advantage_step,
    has_module,
)
from harness.numerics.loss.verl_helpers import place_in, place_of, raised_in, watched_helpers
from harness.numerics.update.rank_batches import RANK_ROWS, micro_batches_of_ranks
from harness.numerics.update.rank_dispatch import ROW_NUMBER, RankDispatch
from harness.numerics.update.rejection import LONE_ROW, REJECTIONS, STORED_REJECTION, WEIGHTINGS, Rejection
from harness.numerics.update.replaced import replaced
from harness.numerics.update.sequence_attention import ATTENTIONS, SequenceAttention
from harness.numerics.update.sequence_ranks import SequenceRanks
from harness.numerics.update.trainer_glue import QUEUE_TRAINER, PaddedTrainer, QueueTrainer, trainer_method
from harness.numerics.update.training_worker import UPDATE_SETTINGS, EngineInWorker, LegacyInTrainer, padded
from harness.numerics.update.update_cases import (
    KL_HORIZON,
    KL_RATIOS,
    OTHER_MICRO_BATCHES,
    ROWS,
    WEIGHT_LIMIT,
    UpdateCase,
    UpdateInputs,
    draw,
    kl_target,
)
from harness.numerics.update.update_faults import UpdateFault
from harness.numerics.update.update_record import BEFORE, HELPER, RAISED, STEP, Quantity, UpdateRecord

LONGEST_ERROR = 300
ROLLOUT_CORRECTION = "verl.trainer.ppo.rollout_corr_helper"
STORED = ("advantages", "rollout_is_weights", "response_mask", "token_level_rewards")
"""What a trainer with a transfer queue stores of its own step."""


@dataclass(kw_only=True)
class Recorder:
    """Collects quantities. step, micro: the current ones; places: where verl computes each quantity; ranks:
    those of the sequence-parallel group, of which the first is recorded."""

    quantities: list[Quantity] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    step: int = BEFORE
    micro: int = BEFORE
    ranks: SequenceRanks | None = None

    def note(self, name: str, tensor: Any) -> None:
        """Record a tensor now, if the first rank runs."""
        if self.ranks is None or self.ranks.is_first:
            self.note_of_all(name, tensor)

    def note_of_all(self, name: str, tensor: Any, *, micro: int | None = None) -> None:
        """Record a tensor of all ranks now; `micro` if it belongs to an earlier micro-batch."""
        values = tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
        values = np.array(values, dtype=np.int64 if values.dtype.kind in "biu" else np.float64)
        number = self.micro if micro is None else micro
        self.quantities.append(Quantity(name=name, values=values, step=self.step, micro=number))

    def at(self, function: Any, *names: str) -> None:
        """Quantities are computed by this function of verl."""
        self.places.update(dict.fromkeys(names, place_of(function)))

    def blame(self, function: Any) -> None:
        """The first helper that did not return what it is defined to return."""
        self.places.setdefault(HELPER, place_of(function))


def run_case(
    case: UpdateCase, torch: Any, device: str, path: str, fault: UpdateFault | None = None
) -> UpdateRecord:
    """Run a case with the worker class named `path`. An exception of verl becomes the error of the record."""
    recorder = Recorder()
    error = ""

    def run(recorder: Recorder) -> None:
        with ExitStack() as stack:
            worker = actor_class(path)
            modules = worker_modules(worker is LegacyActor)
            if fault:
                stack.enter_context(fault.injected(torch, modules, replaced))
            stack.enter_context(watched_helpers(recorder.blame))
            _Run(case, draw(case), torch, device, path, recorder, modules).run()

    try:
        run(recorder)
    except Exception as raised:  # noqa: BLE001 - whatever verl raises is a verdict on it
        own = UNCALLABLE if is_own_call(raised) else ""
        error = own + " ".join(f"{type(raised).__name__}: {raised}".split())[:LONGEST_ERROR]
        recorder.places[RAISED] = raised_in(raised) or recorder.places.get(STEP, "")
        lacking = returned_without_key(lambda: run(Recorder())) if isinstance(raised, KeyError) else None
        if lacking is not None:
            recorder.places[RAISED] = place_in(lacking, lacking.co_firstlineno)
    return UpdateRecord(
        case=case.name,
        path=path,
        fault=fault.id if fault else "",
        quantities=tuple(recorder.quantities),
        places=recorder.places,
        error=error,
    )


def worker_modules(legacy: bool) -> tuple[ModuleType, ...]:
    """verl's modules whose functions a worker calls."""
    names = LEGACY_WORKER if legacy else ENGINE_WORKER
    return tuple(import_module(name) for name in names)


def worker_class(path: str) -> Any:
    """The class that runs an update, below verl's trainer."""
    return EngineInWorker if actor_class(path) is EngineActor else LegacyInTrainer


@dataclass
class _Run:
    case: UpdateCase
    inputs: UpdateInputs
    torch: Any
    device: str
    path: str
    recorder: Recorder
    modules: tuple[ModuleType, ...]

    def run(self) -> None:
        case, recorder = self.case, self.recorder
        model = build_model(self.torch, self.inputs.parameters, self.device)
        ranks = recorder.ranks = SequenceRanks(self.torch, case.sp_size)
        model.register_forward_hook(ranks.average)
        optimizer = self.torch.optim.AdamW(model.parameters(), lr=case.update.lr)
        worker = worker_class(self.path)(model, optimizer, case, self.device.partition(":")[0])
        worker.note, worker.blame = recorder.note, recorder.blame
        worker.run_on_each(ranks)
        self._watch_input(worker, model)
        self._locate(worker)
        if case.sp_size > 1:
            # Earlier cases compare the gradient without it.
            recorder.at(ranks.gathering, "logits_gradient")
        advantages, mask, weights = self._trainer_step(worker)
        # Batches reach a worker from the trainer's process, on the host.
        tokens = {
            "input_ids": self._on_host(self.inputs.input_ids),
            "attention_mask": self._on_host(self.inputs.attention_mask),
            "position_ids": self._on_host(self.inputs.position_ids),
            "response_mask": _from_device(mask),
        }
        with ExitStack() as inner:
            inner.enter_context(self._other_ranks())
            inner.enter_context(ranks.active())
            targets = {
                "old_log_probs": self._on_host(self.inputs.old_log_probs),
                "advantages": _from_device(advantages),
            }
            with self._graphs_are_noted(model):
                log_probs, entropy = worker.log_probs(dict(tokens))
                recorder.note("log_prob", log_probs)
                recorder.note("entropy", entropy)
                if case.has_reference_policy:
                    recorder.note("reference_log_prob", worker.reference_log_probs(dict(tokens)))
                    targets["ref_log_prob"] = self._on_host(self.inputs.ref_log_prob)
            if case.weights:
                targets["rollout_is_weights"] = _from_device(weights)
            if case.autocast:
                self._note_autocast(dict(tokens))
            self._watch(inner, model, optimizer)
            recorder.step, recorder.micro = 0, 0
            worker.steps_made = lambda: recorder.step
            with self._batches_of_ranks_are_noted(worker):
                metrics = worker.update(dict(tokens), targets)
        for step, norm in enumerate(_grad_norms(metrics)):
            recorder.step, recorder.micro = step, BEFORE
            recorder.note("gradient_norm", np.float64(norm))
        recorder.step, recorder.micro = BEFORE, BEFORE
        self._note_step_without_gradient(worker, model)
        if case.sp_size > 1:
            self._note_attention()
        if case.dp_size > 1:
            self._note_dispatch(worker, tokens)
        if isinstance(worker, EngineInWorker):
            recorder.note("scheduler_steps", np.array(worker.scheduled, dtype=np.int64))
            recorder.note("nested", np.int64(worker.nested))
            recorder.note("trainer", np.int64(worker.trainer is not None))

    @property
    def ranks(self) -> SequenceRanks:
        """The ranks among which tokens are divided."""
        assert self.recorder.ranks is not None
        return self.recorder.ranks

    def _watch_input(self, worker: Any, model: Any) -> None:
        """Name what prepares the input of the model if this is not padded or packed: it may raise then."""
        if isinstance(worker, LegacyInTrainer):
            return
        prepare = type(worker.engine).prepare_model_inputs

        def before_forward(_module: Any, _args: Any, kwargs: Any) -> None:
            tokens = kwargs.get("input_ids")
            if tokens is None or tokens.is_nested or tokens.dim() != 2:
                self.recorder.blame(prepare)

        model.register_forward_pre_hook(before_forward, with_kwargs=True)

    @contextmanager
    def _graphs_are_noted(self, model: Any) -> Iterator[None]:
        """Record whether a forward pass in this block keeps what a backward pass needs, and whether it runs
        in training mode or with a cache of keys and values; also the number of tokens of each.

        Without a forward pass nobody looked, so that counts as a graph.
        """
        kept: list[bool] = []
        tokens: list[int] = []
        modes: list[bool] = []
        cached: list[bool] = []

        def after_forward(module: Any, _args: Any, kwargs: Any, output: Any) -> None:
            if self.ranks.previews:
                return
            mask = kwargs.get("attention_mask")
            ids = self.ranks.whole("input_ids", kwargs["input_ids"])
            if ids is not None:
                tokens.append(self._tokens_in(ids) if mask is None else int(mask.sum()))
            kept.append(output.logits.requires_grad)
            modes.append(module.training)
            cached.append(uses_cache(module, kwargs))

        hook = model.register_forward_hook(after_forward, with_kwargs=True)
        yield
        hook.remove()
        for name, found in (("graph", kept), ("mode", modes), ("cache", cached)):
            self.recorder.note(f"inference_{name}", np.int64(not found or any(found)))
        self.recorder.note("inference_tokens", np.array(tokens, dtype=np.int64))

    def _tokens_in(self, ids: Any) -> int:
        """The number of packed tokens. Where ranks divide them, the last ones may be padding, which is 0."""
        return int(ids.numel() if self.ranks.size == 1 else ids.count_nonzero())

    @contextmanager
    def _batches_of_ranks_are_noted(self, worker: Any) -> Iterator[None]:
        """After the block, record the micro-batches of several ranks, which are made by the function that the
        engine called in the block, with the arguments that it passed."""
        if isinstance(worker, LegacyActor) or not (self.case.max_tokens and self.case.dp_size > 1):
            yield
            return
        engine: Any = self.modules[1]
        passed: dict[str, Any] = {}
        prepare = engine.prepare_micro_batches

        def watching(*args: Any, **kwargs: Any) -> Any:
            passed.update(inspect.signature(prepare).bind(*args, **kwargs).arguments)
            return prepare(*args, **kwargs)

        with replaced(engine, "prepare_micro_batches", watching):
            yield
        passed.pop("data", None)
        self.recorder.step, self.recorder.micro = BEFORE, BEFORE
        for rows in RANK_ROWS:
            ends, listed = micro_batches_of_ranks(self.torch, prepare, passed, rows, self.device)
            self.recorder.note(f"ranks {rows.name}", ends)
            self.recorder.note(f"rows {rows.name}", listed)

    def _note_step_without_gradient(self, worker: Any, model: Any) -> None:
        """Record whether a step changes the parameters if a gradient is not finite."""
        torch, changed = self.torch, []
        for bad in (torch.inf, torch.nan):
            before = [one.detach().clone() for one in model.parameters()]
            for one in model.parameters():
                one.grad = torch.full_like(one, bad)
            legacy = isinstance(worker, LegacyActor)
            step = worker.actor._optimizer_step if legacy else worker.engine.optimizer_step  # noqa: SLF001
            step()
            pairs = zip(model.parameters(), before, strict=True)
            changed.append(any(not torch.equal(one.detach(), old) for one, old in pairs))
        self.recorder.note("step_without_gradient", np.int64(any(changed)))

    def _note_attention(self) -> None:
        """Record what the ranks exchange around attention, which the model of this check does not have."""
        for heads in ATTENTIONS:
            found = SequenceAttention(self.torch, heads, self.recorder.at).run()
            for name, values in found.items():
                self.recorder.note(heads.named(name), values)

    def _note_dispatch(self, worker: Any, tokens: dict[str, Any]) -> None:
        """Record which rows of a batch the ranks of a job get, and the order of what they return."""
        numbers, recorder = np.arange(ROWS).astype(object), self.recorder
        padded_batch = import_module("verl").DataProto.from_single_dict(
            {**tokens, ROW_NUMBER: numbers}, meta_info={"temperature": self.case.update.temperature}
        )
        data = padded_batch
        if not isinstance(worker, LegacyActor):
            data = worker.batch(tokens)
            data[ROW_NUMBER] = import_module("tensordict").NonTensorStack(*numbers)
        RankDispatch(
            self.torch, self.case, padded_batch, data, recorder.note, recorder.at, recorder.blame
        ).run()

    def _note_autocast(self, tokens: dict[str, Any]) -> None:
        """Record whether the model of a worker in bf16 runs under the autocast to bf16, and whether the
        trainer passes on what it gets from an engine in single precision."""
        torch, kind = self.torch, self.device.partition(":")[0]
        model = build_model(torch, self.inputs.parameters, self.device)
        entered: list[bool] = []

        def before_forward(*_: Any) -> None:
            is_on = torch.is_autocast_enabled(kind)
            entered.append(is_on and torch.get_autocast_dtype(kind) == torch.bfloat16)

        model.register_forward_pre_hook(before_forward)
        optimizer = torch.optim.AdamW(model.parameters())
        worker = worker_class(self.path)(model, optimizer, replace(self.case, compute="bfloat16"), kind)
        known = dict(self.recorder.places)
        converts = isinstance(worker, EngineInWorker) and isinstance(worker.trainer, PaddedTrainer)
        precise = {}
        try:
            found = {"log_prob": worker.log_probs(tokens)[0]}
            if converts:
                found["reference_log_prob"] = worker.reference_log_probs(tokens)
            precise = {name: one.dtype == torch.float32 for name, one in found.items()}
        finally:
            # What helpers return in bf16 is not what they are defined to return in fp32.
            self.recorder.places = known
        self.recorder.note("autocast", np.int64(bool(entered) and all(entered)))
        for name, is_precise in precise.items() if converts else ():
            self.recorder.note(f"precision of {name}", np.int64(is_precise))

    def _on_host(self, array: Any) -> Any:
        tensor = self.torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.torch.float32) if tensor.dtype.is_floating_point else tensor

    def _tensor(self, array: Any) -> Any:
        return self._on_host(array).to(self.device)

    def _trainer_step(self, worker: Any) -> tuple[Any, Any, Any]:
        """Advantages, response mask and rollout weights, as the trainer computes them."""
        trainer: Any = import_module("verl.trainer.ppo.ray_trainer")
        core: Any = import_module("verl.trainer.ppo.core_algos")
        case, inputs, recorder = self.case, self.inputs, self.recorder
        data = import_module("verl").DataProto.from_single_dict(
            {
                "responses": self._tensor(inputs.input_ids[:, -inputs.response_mask.shape[1] :]),
                "attention_mask": self._tensor(inputs.attention_mask),
                "old_log_probs": self._tensor(inputs.old_log_probs),
                "ref_log_prob": self._tensor(inputs.ref_log_prob),
                "rollout_log_probs": self._tensor(inputs.rollout_log_probs),
                "uid": inputs.index.astype(str).astype(object),
            }
        )
        mask = trainer.compute_response_mask(data)
        recorder.note("response_mask", mask)
        recorder.at(trainer.compute_response_mask, "response_mask")
        if case.turns:
            mask = self._tensor(inputs.response_mask)
        data.batch["response_mask"] = mask
        scores = self.torch.zeros(mask.shape, dtype=self.torch.float32, device=self.device)
        last = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
        scores.scatter_(1, last, self._tensor(inputs.rewards)[:, None])
        data.batch["token_level_scores"] = data.batch["token_level_rewards"] = scores
        controller = None
        if case.kl_in_reward:
            controller = core.AdaptiveKLController(case.kl_in_reward, kl_target(case, inputs), KL_HORIZON)
            recorder.at(trainer.apply_kl_penalty, "token_level_rewards", "kl_coefficient")
            self._note_controller(core)
        queue = getattr(worker, "trainer", None)
        if isinstance(queue, QueueTrainer):
            advantages, weights = self._queue_step(queue, data, controller)
        else:
            advantages, weights = self._padded_step(data, controller)
        if controller is not None:
            recorder.note("kl_coefficient", np.float64(controller.value))
        return advantages, mask, weights

    def _padded_step(self, data: Any, controller: Any) -> tuple[Any, Any]:
        """Advantages and rollout weights, in the order of the loop of the trainer, which is no function."""
        trainer: Any = import_module("verl.trainer.ppo.ray_trainer")
        if controller is not None:
            data, _ = trainer.apply_kl_penalty(data, controller, kl_penalty=self.case.reward_kl)
        data, weights = self._rollout_weights(data)
        return self._advantages(data).batch["advantages"], weights

    def _queue_step(self, trainer: QueueTrainer, data: Any, controller: Any) -> tuple[Any, Any]:
        """Advantages and rollout weights, by the method of the trainer with a transfer queue."""
        recorder, module = self.recorder, import_module(QUEUE_TRAINER)
        names = ("responses", "attention_mask", "response_mask", "rollout_log_probs", "old_log_probs")
        tensors = {name: data.batch[name] for name in names} | {"rm_scores": data.batch["token_level_scores"]}
        tensors["input_ids"] = self._tensor(self.inputs.input_ids)
        tensors["position_ids"] = self._tensor(self.inputs.position_ids)
        if self.case.has_reference_policy:
            tensors["ref_log_prob"] = data.batch["ref_log_prob"]
        recorder.at(module.PPOTrainer._compute_advantage, *(f"stored {name}" for name in STORED))  # noqa: SLF001
        recorder.at(module.PPOTrainer._compute_advantage, STEP)  # noqa: SLF001
        uid = data.non_tensor_batch["uid"]
        self._locate_correction(import_module(ROLLOUT_CORRECTION))
        rejects = {**self._correction(), **STORED_REJECTION.settings} if self.case.weights else None
        # With a rejection, or without any configuration of rollout correction.
        first = trainer.advantages(tensors, uid, copy.deepcopy(controller), rejects)
        if rejects:
            recorder.note("kept stored", padded(first["response_mask"]))
            recorder.at(module.PPOTrainer._compute_advantage, "kept stored")  # noqa: SLF001
        self._note_bypass(trainer, tensors, uid, copy.deepcopy(controller))
        with (
            replaced(module, advantage_step().__name__, self._advantages),
            replaced(module, "compute_rollout_correction_and_add_to_batch", self._corrected),
        ):
            stored = trainer.advantages(tensors, uid, controller, self._correction())
        for name in STORED:
            if name in stored:
                recorder.note(f"stored {name}", padded(stored[name]))
        weights = stored.get("rollout_is_weights")
        return padded(stored["advantages"]), weights if weights is None else padded(weights)

    def _note_bypass(self, trainer: QueueTrainer, tensors: dict[str, Any], uid: Any, controller: Any) -> None:
        """Record the old log-probabilities that the trainer stores if it takes those of the rollout, and
        whether it corrects them then."""
        recorder, module = self.recorder, import_module(QUEUE_TRAINER)
        recorder.at(module.PPOTrainer._compute_old_log_prob, "bypass")  # noqa: SLF001
        recorder.at(module.PPOTrainer._compute_advantage, "bypass correction")  # noqa: SLF001
        bypassing = {**self._correction(), "rollout_is": "token", "bypass_mode": True}
        stored = trainer.advantages(tensors, uid, controller, bypassing)
        recorder.note("bypass correction", np.int64("rollout_is_weights" in stored))
        recorder.note("bypass old_log_probs", padded(trainer.bypassed(tensors)))

    def _advantages(self, data: Any, **given: Any) -> Any:
        """Run the trainer's function of advantages, and record what it gets and returns. given: the arguments
        of the trainer, if it is verl's that calls."""
        core: Any = import_module("verl.trainer.ppo.core_algos")
        compute, recorder = advantage_step(), self.recorder
        recorder.note("token_level_rewards", data.batch["token_level_rewards"])
        arguments: dict[str, Any] = given or {
            "adv_estimator": core.AdvantageEstimator.GRPO,
            "norm_adv_by_std_in_grpo": self.case.norm_adv_by_std,
        }
        knows_sessions = "batch_keys" in inspect.signature(compute).parameters
        if not given and knows_sessions:
            arguments["batch_keys"] = self.case.batch_keys
        recorder.note("sessions", np.int64(knows_sessions))
        recorder.at(compute, "sessions", "advantages")
        found = compute(data, **arguments)
        recorder.note("advantages", found.batch["advantages"])
        return found

    def _note_controller(self, core: Any) -> None:
        """Record what the adaptive controller makes of KL divergences near to the target and far from it."""
        values = []
        for ratio in KL_RATIOS:
            controller = core.AdaptiveKLController(self.case.kl_in_reward, 1.0, KL_HORIZON)
            controller.update(ratio, ROWS)
            values.append(controller.value)
        self.recorder.note("kl_controller", np.array(values))
        self.recorder.at(core.AdaptiveKLController.update, "kl_controller")

    def _rollout_weights(self, data: Any) -> tuple[Any, Any]:
        """Rollout importance weights; those of the case if this release has no function for them."""
        of_case = self._tensor(self.inputs.rollout_is_weights) if self.case.weights else None
        if not has_module(ROLLOUT_CORRECTION):
            return data, of_case
        correction: Any = import_module(ROLLOUT_CORRECTION)
        recorder = self.recorder
        self._locate_correction(correction)
        for option in REJECTIONS if self.case.rejection else ():
            with self._option_may_be_refused(f"kept {option.name}"):
                rejected = self._rejected(correction, data, option)
                recorder.note(f"kept {option.name}", rejected.batch["response_mask"])
                if option.over == "token":
                    rejected = self._rejected(correction, data, option, LONE_ROW)
                    recorder.note(f"kept one row {option.name}", rejected.batch["response_mask"])
        if self.case.rejection:
            self._note_weightings(correction, data)
        data, _ = self._corrected(data, self._correction())
        weights = data.batch.get("rollout_is_weights", None)
        return data, weights if self.case.weights else None

    def _note_weightings(self, correction: Any, data: Any) -> None:
        """Record importance weights with each option. Each response has a token, because releases differ in
        whether responses without tokens count in the mean."""
        needed = ("old_log_probs", "rollout_log_probs", "response_mask")
        for option in WEIGHTINGS:
            batch = {name: data.batch[name].clone() for name in needed}
            batch["response_mask"][:, 0] = 1
            given = import_module("verl").DataProto.from_single_dict(batch)
            with self._option_may_be_refused(option.name):
                found, _ = correction.compute_rollout_correction_and_add_to_batch(given, option.settings)
                self.recorder.note(option.name, found.batch["rollout_is_weights"])

    @contextmanager
    def _option_may_be_refused(self, name: str) -> Iterator[None]:
        """Releases refuse options that they do not have. An option that one refuses wrongly is missing, and
        what refused it is named."""
        try:
            yield
        except Exception as raised:  # noqa: BLE001 - see above
            self.recorder.places[name] = raised_in(raised)

    def _corrected(self, data: Any, settings: Any) -> Any:
        """The batch after rollout correction, and metrics; records what is used of the batch."""
        correction: Any = import_module(ROLLOUT_CORRECTION)
        found = correction.compute_rollout_correction_and_add_to_batch(data, settings)
        batch = found[0].batch
        if batch.get("rollout_is_weights", None) is not None:
            self.recorder.note("rollout_is_weights", batch["rollout_is_weights"])
        self.recorder.note("corrected_mask", batch["response_mask"])
        return found

    def _locate_correction(self, correction: Any) -> None:
        """The functions that reject tokens and compute weights."""
        both = correction.compute_rollout_correction_and_rejection_mask
        self.recorder.at(both, "rollout_is_weights", "weights", "corrected_mask", "kept veto")
        self.recorder.at(correction.compute_rollout_rejection_mask, "kept")

    def _correction(self) -> dict[str, object]:
        """The configuration of rollout correction. The default one has a threshold, but neither weights nor a
        rejection."""
        return {
            "rollout_is": "token" if self.case.weights else None,
            "rollout_is_threshold": WEIGHT_LIMIT,
        }

    def _rejected(self, correction: Any, data: Any, option: Rejection, rows: slice = slice(None)) -> Any:
        """The batch of some rows after a rejection, without what is not needed for it."""
        needed = ("old_log_probs", "rollout_log_probs", "response_mask")
        own = {name: data.batch[name][rows] for name in needed}
        batch = import_module("verl").DataProto.from_single_dict(own)
        settings = {"rollout_is": None, "rollout_is_threshold": WEIGHT_LIMIT, **option.settings}
        reject = correction.compute_rollout_rejection_mask
        expected = {name: value for name, value in option.settings.items() if name.startswith("rollout_rs")}
        ratio = batch.batch["old_log_probs"] - batch.batch["rollout_log_probs"]

        def watching(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(reject).bind(*args, **kwargs).arguments
            same = all(given.get(name) == value for name, value in expected.items())
            if not (same and self.torch.equal(given["log_ratio"], ratio)):
                caller = correction.compute_rollout_correction_and_rejection_mask
                self.recorder.at(caller, f"kept {option.name}")
            return reject(*args, **kwargs)

        with replaced(correction, "compute_rollout_rejection_mask", watching):
            return correction.compute_rollout_correction_and_add_to_batch(batch, settings)[0]

    def _locate(self, worker: Any) -> None:
        """The functions of the worker that compute what is recorded around them."""
        recorder, modules = self.recorder, self.modules
        balancing: Any = import_module("verl.utils.seqlen_balancing")
        recorder.at(balancing.rearrange_micro_batches, "ranks", "micro-batches", "row_numbers")
        if isinstance(worker, LegacyInTrainer):
            actor = type(worker.actor)
            inferred = ("log_prob", "reference_log_prob", "entropy")
            recorder.at(actor.compute_log_prob, *inferred, *(f"worker {name}" for name in inferred))
            recorder.at(actor.compute_log_prob, "inference_graph", "inference_mode", "inference_tokens")
            self._locate_trainer(worker)
            forward = actor._forward_micro_batch  # noqa: SLF001 - verl's own name
            recorder.at(forward, "training_log_prob", "training_entropy", "model_input", "autocast")
            recorder.at(actor.update_policy, "loss", "arguments", "training_mode", "kept gradient")
            recorder.at(forward, "logits_gradient", "inference_cache", "training_cache")
            stepped = ("gradient", "gradient_norm", "parameter", "step_without_gradient")
            recorder.at(actor._optimizer_step, *stepped)  # noqa: SLF001
            return
        recorder.at(type(worker.worker).train_mini_batch, "nested", "scheduler_steps", "trainer")
        engine = type(worker.engine)
        names = ("log_prob", "reference_log_prob", "entropy")
        both = (*names, *(f"worker {name}" for name in names))
        recorder.at(self.modules[1].postprocess_batch_func, *both)
        self._locate_trainer(worker)
        recorder.at(engine.infer_batch, "inference_graph")
        recorder.at(type(worker.worker).infer_batch, "inference_tokens")
        recorder.at(engine.eval_mode, "inference_mode")
        recorder.at(engine.forward_step, "autocast")
        recorder.at(engine.prepare_model_outputs, "training_log_prob", "training_entropy")
        recorder.at(engine.prepare_model_inputs, "model_input", "inference_cache", "training_cache")
        recorder.at(engine.forward_backward_batch, "backward")
        recorder.at(engine.train_mode, "training_mode")
        losses: Any = modules[0]
        recorder.at(losses.ppo_loss, "loss", "arguments")
        recorder.at(engine.prepare_model_outputs, "logits_gradient")
        recorder.at(engine.train_batch, "kept gradient")
        stepped = ("gradient", "gradient_norm", "parameter", "step_without_gradient")
        recorder.at(engine.optimizer_step, *stepped)

    def _locate_trainer(self, worker: EngineInWorker | LegacyInTrainer) -> None:
        """The methods of the trainer that call the worker."""
        if worker.trainer is None:
            return
        for method, names in (
            (
                "_compute_old_log_prob",
                ("log_prob", "entropy", "setting temperature", "precision of log_prob"),
            ),
            (
                "_compute_ref_log_prob",
                ("reference_log_prob", "setting reference_temperature", "precision of reference_log_prob"),
            ),
            ("_update_actor", tuple(f"setting update {name}" for name in UPDATE_SETTINGS)),
        ):
            found = trainer_method(worker.nested, method)
            if found is not None:
                self.recorder.at(found, *names)

    def _watch(self, stack: ExitStack, model: Any, optimizer: Any) -> None:
        """Record what the worker's functions get and return, and the tensors of the model and optimizer."""
        recorder, worker = self.recorder, self.modules[0]
        kl_matrices: list[Any] = []

        def get_policy_loss(name: str) -> Callable[..., Any]:
            function = policy_losses(name)
            recorder.at(function, "policy_loss", "policy_gradient")

            def policy_loss(**arguments: Any) -> Any:
                recorder.note("training_log_prob", padded(arguments["log_prob"]))
                for argument in ("old_log_prob", "advantages", "response_mask", "rollout_is_weights"):
                    if arguments.get(argument) is not None:
                        recorder.note(f"argument {argument}", padded(arguments[argument]))
                found = function(**arguments)
                recorder.note("policy_loss", found[0])
                self._note_policy_gradient(found[0], arguments["log_prob"])
                return found

            return policy_loss

        def aggregate(*args: Any, **arguments: Any) -> Any:
            found = aggregation(*args, **arguments)
            matrix = args[0] if args else arguments["loss_mat"]
            is_kl = any(matrix is kept for kept in kl_matrices)
            if not is_kl:
                recorder.note("training_entropy", padded(matrix))
            recorder.note("kl_loss" if is_kl else "entropy_loss", found)
            return found

        def divergence(*args: Any, **arguments: Any) -> Any:
            found = divergences(*args, **arguments)
            kl_matrices.append(found)
            return found

        functions: Any = worker
        policy_losses, aggregation, divergences = (
            functions.get_policy_loss_fn,
            functions.agg_loss,
            functions.kl_penalty,
        )
        recorder.at(aggregation, "entropy_loss")
        recorder.at(divergences, "kl_loss")
        for name, value in (
            ("get_policy_loss_fn", get_policy_loss),
            ("agg_loss", aggregate),
            ("kl_penalty", divergence),
        ):
            stack.enter_context(replaced(worker, name, value))
        self._watch_torch(stack, model, optimizer)

    def _note_policy_gradient(self, loss: Any, log_prob: Any) -> None:
        """Record the gradient of the policy loss alone. The graph is kept for verl."""
        if getattr(loss, "requires_grad", False) and log_prob.requires_grad and not log_prob.is_nested:
            (gradient,) = self.torch.autograd.grad(loss, log_prob, retain_graph=True, allow_unused=True)
            if gradient is not None:
                self.recorder.note("policy_gradient", padded(gradient))

    def _watch_torch(self, stack: ExitStack, model: Any, optimizer: Any) -> None:
        recorder, ranks = self.recorder, self.ranks

        def note_part(name: str, part: Any, rank: int | None = None, micro: int | None = None) -> None:
            whole = ranks.whole(name, part, rank)
            if whole is not None:
                recorder.note_of_all(name, whole, micro=micro)

        backward = self.torch.Tensor.backward

        def recording_backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.note("loss", loss)
            found = backward(loss, *args, **kwargs)
            recorder.micro += 1
            return found

        def after_forward(module: Any, _args: Any, kwargs: Any, output: Any) -> None:
            if not output.logits.requires_grad:
                return
            recorder.note("training_mode", np.int64(module.training))
            recorder.note("training_cache", np.int64(uses_cache(module, kwargs)))
            note_part("input_ids", kwargs["input_ids"])
            note_part("position_ids", kwargs["position_ids"])
            if kwargs.get("attention_mask") is not None:
                recorder.note("attention_mask", kwargs["attention_mask"])
            micro, rank = recorder.micro, ranks.rank
            output.logits.register_hook(
                lambda gradient: note_part("logits_gradient", gradient, rank, micro=micro)
            )

        def before_step(*_: Any) -> None:
            recorder.micro = BEFORE
            for name, parameter in model.named_parameters():
                recorder.note(f"gradient {name}", parameter.grad)
                recorder.note(f"start {name}", parameter)

        def after_step(*_: Any) -> None:
            for name, parameter in model.named_parameters():
                recorder.note(f"parameter {name}", parameter)
            recorder.step, recorder.micro = recorder.step + 1, 0

        stack.enter_context(replaced(self.torch.Tensor, "backward", recording_backward))
        for handle in (
            model.register_forward_hook(after_forward, with_kwargs=True),
            optimizer.register_step_pre_hook(before_step),
            optimizer.register_step_post_hook(after_step),
        ):
            stack.callback(handle.remove)

    @contextmanager
    def _other_ranks(self) -> Iterator[None]:
        """The other data-parallel ranks: sums over ranks contain their number of valid tokens, and the ranks
        agree on the number of micro-batches."""
        if self.case.dp_size == 1:
            yield
            return
        operations = self.torch.distributed.ReduceOp
        largest = {1: (OTHER_MICRO_BATCHES,), 2: (1, -ROWS)}

        def all_reduce(tensor: Any, op: Any = operations.SUM, **_: Any) -> None:
            if tensor.device.type != self.device.partition(":")[0]:
                raise StandInError(f"a collective of a tensor that is on {tensor.device}")
            if op == operations.SUM:
                tensor += self.case.other_tokens
            elif op == operations.MAX:
                others = self.torch.tensor(largest[tensor.numel()], dtype=tensor.dtype).to(tensor.device)
                tensor.copy_(self.torch.maximum(tensor, others))

        with replaced(self.torch.distributed, "all_reduce", all_reduce):
            yield


def _grad_norms(metrics: dict[str, list[float]]) -> list[float]:
    return next((found for name, found in metrics.items() if name.endswith("grad_norm")), [])


def uses_cache(model: Any, given: Mapping[str, Any]) -> bool:
    """Whether a forward pass keeps keys and values. As in transformers, the argument has precedence over the
    configuration, and without both it does."""
    argument = given.get("use_cache")
    return bool(getattr(model.config, "use_cache", True) if argument is None else argument)


def build_model(torch: Any, parameters: Any, device: str) -> Any:
    """The model of `update_cases.PARAMETERS` with the interface of transformers' models."""

    class Tiny(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace()
            for name, values in parameters.items():
                tensor = torch.tensor(values, dtype=torch.float32)
                setattr(self, name, torch.nn.Parameter(tensor))

        def forward(self, input_ids: Any, position_ids: Any, **_: Any) -> Any:
            hidden = self.embedding[input_ids] + self.position[position_ids]
            return SimpleNamespace(logits=hidden @ self.head.T)

    return Tiny().to(device)


def _from_device(values: Any) -> Any:
    """Tensors on the host. Other values, which only faulty code returns, are left to the worker to refuse."""
    return values.cpu() if hasattr(values, "cpu") else values
