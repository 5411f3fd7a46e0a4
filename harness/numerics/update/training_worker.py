"""verl's engine below its training worker, which splits a batch into mini-batches and runs the engine on
each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from harness.numerics.actor.verl_workers import ENGINE_WORKER, EngineActor, Tensors


class EngineInWorker(EngineActor):
    """`TrainingWorker.train_mini_batch` on verl's engine; log-probabilities come from the engine itself."""

    def update(self, tokens: Tensors, targets: Tensors) -> dict[str, list[float]]:
        """Run all mini-batches of one update; returns metrics as lists."""
        utilities = import_module("verl.utils.tensordict_utils")
        size = self.case.update.ppo_mini_batch_size * self.case.dp_size
        data = self._data({**tokens, **targets})
        utilities.assign_non_tensor(
            data,
            global_batch_size=size,
            mini_batch_size=size,
            epochs=1,
            seed=1,
            dataloader_kwargs={"shuffle": False},
            disable_auto_offload=True,
        )
        worker = _plain_worker(self)
        with _single_process():
            worker.train_mini_batch(data)
        return dict(worker.metrics)


def _plain_worker(actor: EngineActor) -> Any:
    """verl's worker without Ray and without measurements of speed and memory; its loop is verl's."""
    workers = import_module(ENGINE_WORKER)
    utilities = import_module("verl.utils.tensordict_utils")

    class Plain(workers.TrainingWorker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.engine = actor.engine
            self.loss_fn = actor.loss
            self.metrics: dict[str, list[float]] = {"loss": [], "grad_norm": []}
            settings = import_module("omegaconf").OmegaConf
            self.model_config = settings.create({"use_remove_padding": actor.case.packed})
            self.engine_config = SimpleNamespace(
                forward_only=False,
                use_dynamic_bsz=False,
                max_token_len_per_gpu=None,
                micro_batch_size_per_gpu=actor.case.update.ppo_micro_batch_size_per_gpu,
                use_fused_kernels=False,
            )
            self.enable_routing_replay = False
            self.profiler = _NoProfiler()

        def _postprocess_output(self, output: Any, **_: Any) -> Any:
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
