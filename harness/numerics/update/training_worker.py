"""verl's engine below its training worker, which splits a batch into mini-batches and runs the engine on
each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from harness.numerics.actor.actor_case import PROMPT, RESPONSE
from harness.numerics.actor.verl_workers import ENGINE_WORKER, PADDING, EngineActor, Tensors


class EngineInWorker(EngineActor):
    """`TrainingWorker.infer_batch` and `train_mini_batch` on verl's engine, with batches as the trainer of
    this release passes them. scheduled: after how many optimizer steps the learning rate was updated, for
    each update of it. steps_made: returns the number of optimizer steps."""

    def __init__(self, model: Any, optimizer: Any, case: Any, device: str) -> None:
        super().__init__(model, optimizer, case, device)
        self.nested = case.nested and passes_nested_tensors()
        self.scheduled: list[int] = []
        self.steps_made: Callable[[], int] = lambda: 0
        self.engine.lr_scheduler = SimpleNamespace(step=self._scheduled, get_last_lr=lambda: [0.0])
        self.worker = _plain_worker(self)

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, (batch, response)."""
        found = self._infer(tokens, calculate_entropy=True)
        return found["log_probs"], found["entropy"]

    def reference_log_probs(self, tokens: Tensors) -> Any:
        """Log-probabilities as a reference policy computes them, without entropies."""
        return self._infer(tokens, calculate_entropy=False)["log_probs"]

    def update(self, tokens: Tensors, targets: Tensors) -> dict[str, list[float]]:
        """Run all mini-batches of one update; returns metrics as lists."""
        utilities = import_module("verl.utils.tensordict_utils")
        size = self.case.update.ppo_mini_batch_size * self.case.dp_size
        data = self._data({**tokens, **targets})
        utilities.assign_non_tensor(
            data,
            calculate_entropy=self.case.update.entropy_coeff != 0.0,
            global_batch_size=size,
            mini_batch_size=size,
            epochs=self.case.epochs,
            seed=1,
            dataloader_kwargs={"shuffle": False},
            disable_auto_offload=True,
            compute_loss=True,
        )
        with _single_process():
            self.worker.train_mini_batch(data)
        return dict(self.worker.metrics)

    def _infer(self, tokens: Tensors, *, calculate_entropy: bool) -> dict[str, Any]:
        utilities = import_module("verl.utils.tensordict_utils")
        data = self._data(tokens)
        utilities.assign_non_tensor(
            data, calculate_entropy=calculate_entropy, compute_loss=False, disable_auto_offload=True
        )
        output = self.worker.infer_batch(data)
        padding: Any = import_module(PADDING)
        found = {name: utilities.get(output, name) for name in ("log_probs", "entropy")}
        if self.nested:
            mask = data["response_mask"]
            return {
                name: tensor if tensor is None else padded(padding.response_from_nested(tensor, mask))
                for name, tensor in found.items()
            }
        return {
            name: tensor if tensor is None else padding.no_padding_2_padding(tensor, data)
            for name, tensor in found.items()
        }

    def _data(self, tensors: Tensors) -> Any:
        """The batch. How it is split is configured in the worker."""
        data = self._nested_batch(tensors) if self.nested else self.unpadded(tensors)
        import_module("verl.utils.tensordict_utils").assign_non_tensor(
            data, temperature=self.case.update.temperature
        )
        return data

    def _nested_batch(self, tensors: Tensors) -> Any:
        """The batch as the transfer queue of the trainer stores it, with advantages that the trainer made
        nested."""
        torch: Any = import_module("torch")
        mask = tensors["attention_mask"].bool()
        responses = mask[:, PROMPT:]

        def rows(tensor: Any, kept: Any) -> Any:
            of_rows = [row[own] for row, own in zip(tensor, kept, strict=True)]
            return torch.nested.as_nested_tensor(of_rows, layout=torch.jagged)

        response_mask = rows(tensors["response_mask"], responses)
        fields = {
            "prompts": rows(tensors["input_ids"][:, :PROMPT], mask[:, :PROMPT]),
            "responses": rows(tensors["input_ids"][:, PROMPT:], responses),
            "response_mask": response_mask,
            "loss_mask": response_mask,
            "input_ids": rows(tensors["input_ids"], mask),
            "position_ids": rows(tensors["position_ids"], mask),
        }
        to_nested = import_module(PADDING).response_to_nested
        for name, tensor in tensors.items():
            if name in {"advantages", "rollout_is_weights"}:
                fields[name] = to_nested(tensor, response_mask)
            elif name in {"old_log_probs", "ref_log_prob"}:
                fields[name] = rows(tensor, responses)
        return import_module("tensordict").TensorDict(fields, batch_size=[len(mask)])

    def _scheduled(self) -> None:
        self.scheduled.append(self.steps_made())


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
    micro, tokens = actor.case.update.ppo_micro_batch_size_per_gpu, actor.case.max_tokens or None

    class Plain(workers.TrainingWorker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.engine = actor.engine
            self.loss_fn = actor.loss
            self.metrics: dict[str, list[float]] = {"loss": [], "grad_norm": []}
            settings = import_module("omegaconf").OmegaConf
            self.model_config = settings.create({"use_remove_padding": actor.case.packed})
            self.engine_config = SimpleNamespace(
                forward_only=False,
                use_dynamic_bsz=tokens is not None,
                max_token_len_per_gpu=tokens,
                micro_batch_size_per_gpu=micro,
                infer_max_token_len_per_gpu=tokens,
                infer_micro_batch_size_per_gpu=micro,
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


@contextmanager
def _single_process() -> Iterator[None]:
    """This process gathers from itself instead of all data-parallel ranks."""
    distributed: Any = import_module("torch.distributed")
    original = distributed.all_gather_object

    def gather(found: list[Any], mine: Any, *_: Any) -> None:
        found[:] = [mine] * len(found)

    distributed.all_gather_object = gather
    try:
        yield
    finally:
        distributed.all_gather_object = original
