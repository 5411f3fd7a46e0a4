"""verl's engine below its training worker, which splits a batch into mini-batches and runs the engine on
each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.numerics.actor.actor_case import PROMPT, RESPONSE
from harness.numerics.actor.verl_workers import (
    ENGINE_WORKER,
    PADDING,
    EngineActor,
    LegacyActor,
    Tensors,
    with_whole_masks,
)
from harness.numerics.loss.verl_helpers import array
from harness.numerics.update.replaced import replaced
from harness.numerics.update.sequence_ranks import SequenceRanks
from harness.numerics.update.trainer_glue import ROW, PaddedTrainer, QueueTrainer, trainer_method
from harness.numerics.update.update_cases import INFERENCE_TOKENS, UpdateCase, draw

UPDATE_SETTINGS = ("temperature", "global_batch_size", "mini_batch_size", "epochs")
"""Settings of an update that the trainer passes with the batch."""


class EngineInWorker(EngineActor):
    """`TrainingWorker.infer_batch` and `train_mini_batch` on verl's engine, with batches as the trainer of
    this release passes them. trainer: verl's trainer, which calls the worker; None if the steps of this
    release are no methods. scheduled: after how many optimizer steps the learning rate was updated, for each
    update of it. steps_made: returns the number of optimizer steps. note: records a quantity.
    blame: names a function that passed an incomplete batch."""

    case: UpdateCase

    def __init__(self, model: Any, optimizer: Any, case: Any, device: str) -> None:
        super().__init__(model, optimizer, case, device)
        self.nested = case.nested and passes_nested_tensors()
        self.scheduled: list[int] = []
        self.steps_made: Callable[[], int] = lambda: 0
        self.engine.lr_scheduler = SimpleNamespace(step=self._scheduled, get_last_lr=lambda: [0.0])
        self.worker = _plain_worker(self)
        self.note: Callable[[str, Any], None] = lambda _name, _values: None
        self.blame: Callable[[Any], None] = lambda _function: None
        self.engine.forward_step = self._noting_rows(self.engine.forward_step)
        self.inferred = ""
        mask = draw(case).attention_mask
        self.lengths = np.stack([mask[:, :PROMPT].sum(axis=1), mask[:, PROMPT:].sum(axis=1)], axis=1)
        self.trainer: PaddedTrainer | QueueTrainer | None = None
        if trainer_method(self.nested, "_update_actor") is not None:
            self.trainer = QueueTrainer(self, self._fields) if self.nested else PaddedTrainer(self)

    def run_on_each(self, ranks: SequenceRanks) -> None:
        """Run the forward step of a micro-batch on each of these ranks."""
        if ranks.size > 1:
            self.engine.ulysses_device_mesh, self.engine.ulysses_parallel_group = ranks.mesh, ranks
        self.engine.forward_step = ranks.on_each(self.engine.forward_step)

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, (batch, response)."""
        if self.trainer is None:
            return self._called("", tokens)
        found = self.trainer.log_probs(tokens)
        return padded(found[0]), padded(found[1])

    def reference_log_probs(self, tokens: Tensors) -> Any:
        """Log-probabilities as a reference policy computes them, without entropies."""
        if self.trainer is None:
            return self._called("reference_", tokens)[0]
        self.inferred = "reference_"
        return padded(self.trainer.reference_log_probs(tokens))

    def update(self, tokens: Tensors, targets: Tensors) -> dict[str, list[float]]:
        """Run all mini-batches of one update; returns metrics as lists."""
        if self.trainer is not None:
            self.trainer.update(tokens, targets)
            return dict(self.worker.metrics)
        size = self.case.update.ppo_mini_batch_size * self.case.dp_size
        data = self.batch({**tokens, **targets})
        import_module("verl.utils.tensordict_utils").assign_non_tensor(
            data,
            calculate_entropy=self.case.update.entropy_coeff != 0.0,
            global_batch_size=size,
            mini_batch_size=size,
            epochs=self.case.epochs,
            seed=1,
            dataloader_kwargs={"shuffle": False},
            compute_loss=True,
        )
        self.train(data)
        return dict(self.worker.metrics)

    def infer(self, data: Any) -> Any:
        """`TrainingWorker.infer_batch`, as the trainer calls it in the processes of the workers."""
        utilities = import_module("verl.utils.tensordict_utils")
        self._note_settings(data, self.inferred, "temperature")
        method = "_compute_ref_log_prob" if self.inferred else "_compute_old_log_prob"
        if self._is_incomplete(data, "temperature") or (
            self.trainer is not None and utilities.get(data, "compute_loss", True)
        ):
            self.blame(trainer_method(self.nested, method))
        utilities.assign_non_tensor(data, disable_auto_offload=True)
        if self.trainer is not None and utilities.get(data, "no_lora_adapter", False):
            self.blame(trainer_method(self.nested, method))
        asked = bool(utilities.get(data, "calculate_entropy", False))
        output = self.worker.infer_batch(with_whole_masks(data))
        if asked and utilities.get(output, "entropy") is None:
            self.blame(type(self.engine).prepare_model_outputs)
        for name in ("log_probs", "entropy"):
            found = utilities.get(output, name)
            if found is not None:
                self.note(f"worker {self.inferred}{name.removesuffix('s')}", self._of_responses(found))
        utilities.assign_non_tensor(output, metrics={"mfu": 0.0})
        return output

    def infer_reference(self, data: Any) -> Any:
        """The same; the caller says before that it is the reference policy."""
        return self.infer(data)

    def train(self, data: Any) -> Any:
        """`TrainingWorker.train_mini_batch`, as the trainer calls it in the processes of the workers."""
        utilities = import_module("verl.utils.tensordict_utils")
        self._note_settings(data, "update ", *UPDATE_SETTINGS)
        if self._is_incomplete(data, *UPDATE_SETTINGS):
            self.blame(trainer_method(self.nested, "_update_actor"))
        utilities.assign_non_tensor(data, disable_auto_offload=True)
        with _single_process():
            self.worker.train_mini_batch(with_whole_masks(data))
        metrics = {name: list(found) for name, found in self.worker.metrics.items()}
        return utilities.get_tensordict(
            tensor_dict={}, non_tensor_dict={"metrics": {"mfu": [0.0], **metrics}}
        )

    def _noting_rows(self, forward_step: Callable[..., Any]) -> Callable[..., Any]:
        """verl's step of a micro-batch; what the trainer passed of its rows besides tensors is recorded."""
        utilities = import_module("verl.utils.tensordict_utils")

        def noting(micro_batch: Any, *args: Any, **kwargs: Any) -> Any:
            rows = utilities.get(micro_batch, ROW)
            if rows is not None:
                self.note("row_numbers", np.atleast_1d(np.array(rows, dtype=np.int64)))
            return forward_step(micro_batch, *args, **kwargs)

        return noting

    def _called(self, kind: str, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of a pass, where the trainer has no method for it."""
        utilities = import_module("verl.utils.tensordict_utils")
        self.inferred = kind
        data = self.batch(tokens)
        utilities.assign_non_tensor(data, calculate_entropy=not kind, compute_loss=False)
        output = self.infer(data)
        found = [utilities.get(output, name) for name in ("log_probs", "entropy")]
        padding: Any = import_module(PADDING)

        def restored(one: Any) -> Any:
            if self.nested:
                return padding.response_from_nested(one, data["response_mask"])
            return padding.no_padding_2_padding(one, data)

        first, second = (None if one is None else padded(restored(one)) for one in found)
        return first, second

    def batch(self, tensors: Tensors) -> Any:
        """The batch. How it is split is configured in the worker."""
        data = self.unpadded(tensors)
        if self.nested:
            fields = self._fields(tensors)
            data = import_module("tensordict").TensorDict(fields, batch_size=[len(self.lengths)])
        import_module("verl.utils.tensordict_utils").assign_non_tensor(
            data, temperature=self.case.update.temperature
        )
        return data

    def _is_incomplete(self, data: Any, *settings: str) -> bool:
        """Whether the trainer passed a batch that is not nested, or left out a setting."""
        utilities = import_module("verl.utils.tensordict_utils")
        is_nested = getattr(utilities.get(data, "input_ids"), "is_nested", False)
        complete = is_nested and all(utilities.get(data, name) is not None for name in settings)
        return self.trainer is not None and not complete

    def _note_settings(self, data: Any, kind: str, *names: str) -> None:
        """Record settings that the trainer passes with a batch for this kind of pass."""
        utilities = import_module("verl.utils.tensordict_utils")
        for name in names:
            value = utilities.get(data, name)
            if isinstance(value, (int, float)):
                self.note(f"setting {kind}{name}", value)

    def _of_responses(self, found: Any) -> Any:
        """Outputs of all tokens, nested, as those that predict the response tokens, (batch, response).
        Anything that is not one number for each token is recorded as it is."""
        values = array(found)
        ends = np.cumsum(self.lengths.sum(axis=1))
        if values.shape != (ends[-1],):
            return values
        rows = np.zeros((len(ends), RESPONSE))
        for row, (end, length) in enumerate(zip(ends, self.lengths[:, 1], strict=True)):
            rows[row, :length] = values[end - length - 1 : end - 1]
        return rows

    def _fields(self, tensors: Tensors) -> dict[str, Any]:
        """The fields of a batch as the transfer queue of the trainer stores them."""
        torch: Any = import_module("torch")
        mask = tensors["attention_mask"].bool()
        responses = mask[:, PROMPT:]

        def rows(tensor: Any, kept: Any) -> Any:
            of_rows = [row[own] for row, own in zip(tensor, kept, strict=True)]
            return torch.nested.as_nested_tensor(of_rows, layout=torch.jagged)

        fields = {
            "prompts": rows(tensors["input_ids"][:, :PROMPT], mask[:, :PROMPT]),
            "responses": rows(tensors["input_ids"][:, PROMPT:], responses),
            "input_ids": rows(tensors["input_ids"], mask),
            "position_ids": rows(tensors["position_ids"], mask),
            "loss_mask": rows(tensors["response_mask"], responses),
        }
        of_responses = tensors.keys() - {"input_ids", "position_ids", "attention_mask"}
        return fields | {name: rows(tensors[name], responses) for name in of_responses}

    def _scheduled(self) -> None:
        self.scheduled.append(self.steps_made())


class LegacyInTrainer(LegacyActor):
    """`DataParallelPPOActor` below the methods of the trainer, if there are any. note: records a quantity."""

    case: UpdateCase

    def __init__(self, model: Any, optimizer: Any, case: Any, device: str) -> None:
        super().__init__(model, optimizer, case, device)
        self.case, self.nested = case, False
        # The actor reads these from a batch for a pass without gradients only.
        self.micro = case.inference_rows
        self.max_tokens = INFERENCE_TOKENS // case.sp_size if case.max_tokens else 0
        self.note: Callable[[str, Any], None] = lambda _name, _values: None
        self.blame: Callable[[Any], None] = lambda _function: None
        self.metrics: dict[str, list[float]] = {}
        has_methods = trainer_method(False, "_update_actor") is not None
        self.trainer = PaddedTrainer(self, "auto") if has_methods else None

    def run_on_each(self, ranks: SequenceRanks) -> None:
        """Run the forward step of a micro-batch on each of these ranks."""
        self.actor._forward_micro_batch = ranks.on_each(self.actor._forward_micro_batch)  # noqa: SLF001

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, (batch, response)."""
        return super().log_probs(tokens) if self.trainer is None else self.trainer.log_probs(tokens)

    def reference_log_probs(self, tokens: Tensors) -> Any:
        """Log-probabilities as a reference policy computes them, without entropies."""
        if self.trainer is None:
            return super().reference_log_probs(tokens)
        return self.trainer.reference_log_probs(tokens)

    def update(self, tokens: Tensors, targets: Tensors) -> dict[str, list[float]]:
        """Run all mini-batches of one update; returns metrics as lists."""
        if self.trainer is None:
            return super().update(tokens, targets)
        self.trainer.update(tokens, targets)
        return self.metrics

    def infer(self, data: Any) -> Any:
        """What the process of the worker does with a batch of the trainer."""
        log_probs, entropies = super().log_probs(dict(data.batch))
        self.note("worker log_prob", log_probs)
        self.note("worker entropy", entropies)
        return _batch_of({"old_log_probs": log_probs, "entropys": entropies})

    def infer_reference(self, data: Any) -> Any:
        """The same of the reference policy."""
        log_probs = super().reference_log_probs(dict(data.batch))
        self.note("worker reference_log_prob", log_probs)
        return _batch_of({"ref_log_prob": log_probs})

    def train(self, data: Any) -> Any:
        """All mini-batches, with the temperature of the trainer."""
        self.temperature = data.meta_info["temperature"]
        self.note("setting update temperature", self.temperature)
        self.metrics = super().update(dict(data.batch), {})
        return _batch_of({}, self.metrics)


def _batch_of(tensors: Tensors, metrics: dict[str, list[float]] | None = None) -> Any:
    batch: Any = import_module("verl").DataProto
    return batch.from_single_dict(dict(tensors), meta_info={"metrics": metrics or {}})


def passes_nested_tensors() -> bool:
    """Whether the trainer of the installed verl passes nested tensors, from a transfer queue."""
    return hasattr(import_module(PADDING), "response_from_nested")


def padded(tensor: Any) -> Any:
    """A tensor (rows, response tokens), nested or cut after the longest row, with all response tokens."""
    functional: Any = import_module("torch.nn.functional")
    if getattr(tensor, "is_nested", False):
        tensor = tensor.to_padded_tensor(0)
    if tensor.dim() != 2:  # a wrong tensor, which is recorded as it is
        return tensor
    missing = RESPONSE - tensor.shape[1]
    return functional.pad(tensor, (0, missing)) if missing > 0 else tensor


def _plain_worker(actor: EngineInWorker) -> Any:
    """verl's worker without Ray and without measurements of speed and memory; its loop is verl's."""
    workers = import_module(ENGINE_WORKER)
    utilities = import_module("verl.utils.tensordict_utils")
    case = actor.case
    micro, tokens = case.update.ppo_micro_batch_size_per_gpu, case.max_tokens or None

    class Plain(workers.TrainingWorker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.engine = actor.engine
            self.loss_fn = actor.loss
            self.metrics: dict[str, list[float]] = {"loss": [], "grad_norm": []}
            settings = import_module("omegaconf").OmegaConf
            self.model_config = settings.create({"use_remove_padding": case.packed})
            self.engine_config = SimpleNamespace(
                forward_only=False,
                use_dynamic_bsz=tokens is not None,
                max_token_len_per_gpu=tokens,
                micro_batch_size_per_gpu=micro,
                infer_max_token_len_per_gpu=INFERENCE_TOKENS // case.sp_size if tokens else None,
                infer_micro_batch_size_per_gpu=case.inference_rows,
                use_fused_kernels=False,
            )
            self.enable_routing_replay = False
            self.profiler = _NoProfiler()

        def _postprocess_output(self, output: Any, *, forward_only: bool, **_: Any) -> Any:
            if forward_only:
                return utilities.get_tensordict(
                    tensor_dict=output["model_output"], non_tensor_dict={"metrics": {}}
                )
            self.metrics["loss"].extend(output["loss"])
            self.metrics["grad_norm"].append(output["metrics"]["grad_norm"])
            return utilities.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": {}})

    return Plain()


class _NoProfiler:
    rank = 0

    def step(self) -> None:
        """Called after each mini-batch."""

    def check_enable(self) -> bool:
        """Profiling is off."""
        return False


def _single_process() -> AbstractContextManager[None]:
    """This process gathers from itself instead of all data-parallel ranks."""

    def gather(found: list[Any], mine: Any, *_: Any) -> None:
        found[:] = [mine] * len(found)

    return replaced(import_module("torch.distributed"), "all_gather_object", gather)
