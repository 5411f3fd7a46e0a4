"""The methods of verl's trainers that pass a batch from one step of an update to the next: as padded tensors,
or as nested tensors through a transfer queue.

The methods are verl's. The worker group below them runs verl's worker in this process instead of calling
others through Ray, and the queue is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from harness.numerics.actor.actor_case import PROMPT
from harness.numerics.actor.verl_workers import Tensors
from harness.numerics.loss.trainer_functions import has_module
from harness.numerics.update.replaced import replaced
from harness.numerics.update.update_cases import GROUP, UpdateCase

PADDED_TRAINER = "verl.trainer.ppo.ray_trainer"
QUEUE_TRAINER = "verl.trainer.ppo.v1.trainer_base"
PARTITION = "train"
ROW = "row"
"""The number of each row, which is no tensor: as uids and inputs of images, it must stay with its row."""


class Workers(Protocol):
    """verl's worker on a batch as its trainer passes it: a TensorDict of nested tensors, or a padded
    DataProto for a legacy worker."""

    case: UpdateCase

    def infer(self, data: Any) -> Any:
        """Outputs of a pass without gradients, in a batch of the same kind."""

    def infer_reference(self, data: Any) -> Any:
        """The same of the reference policy."""

    def train(self, data: Any) -> Any:
        """All mini-batches of an update; the metrics, in a batch of the same kind."""

    def blame(self, function: Any) -> None:
        """Name a function of verl that passed on something else than it got."""


def trainer_method(nested: bool, name: str) -> Any:
    """A method of the trainer of the installed verl; None if it has none of that name."""
    module, owner = (QUEUE_TRAINER, "PPOTrainer") if nested else (PADDED_TRAINER, "RayPPOTrainer")
    if not has_module(module):
        return None
    return getattr(getattr(import_module(module), owner, None), name, None)


def configuration(case: UpdateCase, correction: Mapping[str, object] | None = None) -> Any:
    """The keys of the trainer's configuration that its methods read."""
    update = case.update
    return import_module("omegaconf").OmegaConf.create(
        {
            "algorithm": {
                "adv_estimator": "grpo",
                "norm_adv_by_std_in_grpo": case.norm_adv_by_std,
                "gamma": 1.0,
                "lam": 1.0,
                "use_kl_in_reward": bool(case.kl_in_reward),
                "kl_penalty": case.reward_kl,
                "rollout_correction": None if correction is None else dict(correction),
            },
            "actor_rollout_ref": {
                "rollout": {
                    "n": GROUP,
                    "temperature": update.temperature,
                    "calculate_log_probs": True,
                    "multi_turn": {"enable": case.turns},
                },
                "actor": {
                    "ppo_mini_batch_size": update.ppo_mini_batch_size * case.dp_size // GROUP,
                    "ppo_epochs": case.epochs,
                    "data_loader_seed": 1,
                    "shuffle": False,
                    "entropy_coeff": update.entropy_coeff,
                    "calculate_entropy": False,
                    "loss_agg_mode": update.loss_agg_mode,
                    "loss_scale_factor": update.loss_scale_factor,
                },
            },
            "trainer": {"critic_warmup": 0, "balance_batch": False},
        }
    )


def _groups(
    infer: Callable[[Any], Any], reference: Callable[[Any], Any], train: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """The worker groups of the policy and of the reference policy."""
    return (
        SimpleNamespace(compute_log_prob=infer, update_actor=train),
        SimpleNamespace(compute_ref_log_prob=reference),
    )


def _trainer(module: str, owner: str, config: Any, groups: tuple[Any, Any], legacy: str = "disable") -> Any:
    """A trainer without its set-up, which starts Ray's workers."""
    base: Any = getattr(import_module(module), owner)

    class Plain(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.config = config
            self.actor_rollout_wg, self.ref_policy_wg = groups
            self.ref_in_actor = self.use_critic = False
            self.use_legacy_worker_impl = legacy
            self.global_steps = 1

    Plain.__abstractmethods__ = frozenset()
    return Plain()


def balance_batch(case: UpdateCase, group: Any, batch: Any) -> None:
    """Reorder a padded batch as the trainer does before ranks of the group get its rows."""
    trainer = _trainer(PADDED_TRAINER, "RayPPOTrainer", configuration(case), (group, group))
    trainer._balance_batch(batch, metrics={})  # noqa: SLF001 - verl's own name


@contextmanager
def _without_policy(trainer: Any) -> Iterator[None]:
    """The trainer has no worker group of the policy: only the reference policy may compute."""
    policy, trainer.actor_rollout_wg = trainer.actor_rollout_wg, None
    yield
    trainer.actor_rollout_wg = policy


class PaddedTrainer:
    """`RayPPOTrainer`, whose batches are padded."""

    def __init__(self, workers: Workers, legacy: str = "disable") -> None:
        self.case = workers.case
        groups = _groups(workers.infer, workers.infer_reference, workers.train)
        self.trainer = _trainer(PADDED_TRAINER, "RayPPOTrainer", configuration(self.case), groups, legacy)

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, (batch, response)."""
        found = self.trainer._compute_old_log_prob(self._batch(tokens))  # noqa: SLF001 - verl's own name
        batch = (found[0] if isinstance(found, tuple) else found).batch
        return batch["old_log_probs"], batch["entropys"]

    def reference_log_probs(self, tokens: Tensors) -> Any:
        """Log-probabilities of the reference policy."""
        with _without_policy(self.trainer):
            found = self.trainer._compute_ref_log_prob(self._batch(tokens))  # noqa: SLF001 - verl's own name
        return found.batch["ref_log_prob"]

    def update(self, tokens: Tensors, targets: Tensors) -> None:
        """Run all mini-batches."""
        self.trainer._update_actor(self._batch({**tokens, **targets}))  # noqa: SLF001 - verl's own name

    def _batch(self, tensors: Tensors) -> Any:
        ids = tensors["input_ids"]
        sides = {
            "prompts": ids[:, :PROMPT],
            "responses": ids[:, PROMPT:],
            ROW: np.arange(len(ids)).astype(object),
        }
        batch = import_module("verl").DataProto.from_single_dict({**tensors, **sides})
        batch.meta_info["temperature"] = self.case.update.temperature
        return batch


class Queue:
    """A transfer queue with the fields of one batch in a dictionary."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self.fields: dict[str, Any] = {}

    def kv_batch_get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        """The fields that exist of those selected, as a TensorDict."""
        self._check(keys, partition_id)
        return self.data({name: self.fields[name] for name in select_fields if name in self.fields})

    def kv_batch_put(self, keys: Sequence[str], partition_id: str, fields: Any) -> Any:
        """Store fields of the whole batch; returns its keys."""
        self._check(keys, partition_id)
        for name in fields.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            self.fields[name] = fields.get(name)
        return self.meta()

    def data(self, fields: Mapping[str, Any]) -> Any:
        """Fields of all rows."""
        return import_module("tensordict").TensorDict(dict(fields), batch_size=[len(self.keys)])

    def meta(self) -> Any:
        """The keys of the batch, as verl's trainer passes them."""
        meta: Any = import_module(QUEUE_TRAINER).KVBatchMeta
        return meta(keys=list(self.keys), tags=[{} for _ in self.keys], partition_id=PARTITION)

    def _check(self, keys: Sequence[str], partition_id: str) -> None:
        if list(keys) != self.keys or partition_id != PARTITION:
            raise KeyError(f"{keys} of {partition_id} are not in the queue")


class QueueTrainer:
    """`PPOTrainer` of `verl.trainer.ppo.v1`, whose batches are nested and pass through a transfer queue."""

    def __init__(self, workers: Workers, nested: Callable[[Tensors], Mapping[str, Any]]) -> None:
        self.case, self.workers, self.nested = workers.case, workers, nested
        self.queue = Queue(self.case.batch_keys)
        groups = _groups(self._infer, self._infer, self._train)
        self.trainer = _trainer(QUEUE_TRAINER, "PPOTrainer", configuration(self.case), groups)

    def advantages(
        self, tensors: Tensors, uid: Sequence[str], controller: Any, correction: Mapping[str, object] | None
    ) -> Mapping[str, Any]:
        """The fields of the queue after the trainer computed rewards, corrections and advantages."""
        stacked = import_module("tensordict").NonTensorStack(*uid)
        self.queue.fields = {**self._on_host(tensors), "uid": stacked}
        self.trainer.config = configuration(self.case, correction)
        self.trainer.kl_ctrl_in_reward = controller
        with self._queue_of_trainer():
            self._run("_compute_advantage")
        return self.queue.fields

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, nested."""
        with self._step(tokens) as fields:
            self._run("_compute_old_log_prob")
            return fields["old_log_probs"], fields["entropy"]

    def bypassed(self, tensors: Tensors) -> Any:
        """The old log-probabilities, nested, with the configuration of the last step, which says that they
        are those of the rollout; no worker may compute them."""
        given = {name: one for name, one in tensors.items() if name != "old_log_probs"}
        self.queue.fields = {}
        with self._step(given) as fields, _without_policy(self.trainer):
            self._run("_compute_old_log_prob")
            return fields["old_log_probs"]

    def reference_log_probs(self, tokens: Tensors) -> Any:
        """Log-probabilities of the reference policy, nested."""
        with self._step(tokens) as fields, _without_policy(self.trainer):
            self._run("_compute_ref_log_prob")
            return fields["ref_log_prob"]

    def update(self, tokens: Tensors, targets: Tensors) -> None:
        """Run all mini-batches, with the mask, advantages and weights that the trainer stored."""
        with self._step({**tokens, **targets}):
            self._run("_update_actor")

    def _run(self, step: str) -> None:
        """Run a method of the trainer, whose loop passes what it returns to the next one."""
        method = getattr(self.trainer, step)
        returned = method(self.queue.meta(), {})
        if getattr(returned, "keys", None) != self.queue.keys:
            self.workers.blame(method)
            raise KeyError(f"{step} returned {returned}, and not the batch that it got")

    def _on_host(self, tensors: Tensors) -> Mapping[str, Any]:
        """Nested tensors. The trainer has no device: workers move what they get, and return it."""
        return self.nested({name: one.cpu() for name, one in tensors.items()})

    @contextmanager
    def _step(self, tensors: Tensors) -> Iterator[dict[str, Any]]:
        """The fields of the queue during one step, which also has the tensors. What the step stores is
        forgotten: a case gives the log-probabilities of earlier policies."""
        stored = self.queue.fields
        self.queue.fields = {**self._on_host(tensors), **stored}
        with self._queue_of_trainer():
            yield self.queue.fields
        self.queue.fields = stored

    def _infer(self, meta: Any) -> Any:
        return self.queue.kv_batch_put(meta.keys, meta.partition_id, self.workers.infer(self._of(meta)).cpu())

    def _train(self, meta: Any) -> Any:
        return self.workers.train(self._of(meta))

    def _of(self, meta: Any) -> Any:
        data = self.queue.data(self.queue.fields)
        import_module("verl.utils.tensordict_utils").assign_non_tensor(data, **meta.extra_info)
        return data

    def _queue_of_trainer(self) -> AbstractContextManager[None]:
        return replaced(import_module(QUEUE_TRAINER), "tq", self.queue)
