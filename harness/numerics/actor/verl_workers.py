"""verl's classes for one actor update, without their launchers: no Ray, no FSDP wrapper, one process.

`DataParallelPPOActor` trains in releases up to 0.7. `FSDPEngineWithLMHead` trains in later ones, and in 0.7
with `trainer.use_legacy_worker_impl=disable`. The installed package is inspected to find out which of them it
has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource, signature
from types import SimpleNamespace
from typing import Any, Protocol

from harness.errors import NothingSelectedError
from harness.numerics.actor.actor_case import PROMPT, RESPONSE, UpdateSettings
from harness.numerics.loss.verl_configuration import verl_configuration

LEGACY = "verl.workers.actor.dp_actor"
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
ENGINE_WORKER = "verl.workers.engine_workers"
PADDING = "verl.workers.utils.padding"

SHORT_MASK = (
    "without use_remove_padding the engine of this verl builds attention masks that are only as long as the "
    "response (verl issue 6278, fixed in 0.8.0); the check passed masks for whole rows instead"
)

Tensors = Mapping[str, Any]


def actor_classes() -> tuple[type[LegacyActor | EngineActor], ...]:
    """verl's installed actor classes, the default first; NothingSelectedError if none is known."""
    paths: list[type[LegacyActor | EngineActor]] = []
    if _has(LEGACY):
        paths.append(LegacyActor)
    # Older releases have the engine, but no worker that trains a policy with it.
    if _has(ENGINE) and (not paths or _has(ENGINE_WORKER)):
        paths.append(EngineActor)
    if not paths:
        raise NothingSelectedError(
            "the check does not support any actor of this verl",
            why=f"neither {LEGACY} nor {ENGINE} is installed",
            fix="omit this check for the cell",
        )
    return tuple(paths)


def actor_class(name: str = "") -> type[LegacyActor | EngineActor]:
    """The actor class of that name, or the default one for ""; NothingSelectedError if this verl does not
    have it."""
    paths = actor_classes()
    found = next((path for path in paths if path.name == name), None) if name else paths[0]
    if found is None:
        raise NothingSelectedError(f"this verl does not train with {name}", fix="omit --path")
    return found


def finding(path: str) -> str:
    """A defect of the actor class that is worked around here, or ""."""
    return SHORT_MASK if actor_class(path) is EngineActor and _masks_are_short() else ""


def _masks_are_short() -> bool:
    padding = import_module(PADDING)
    return not hasattr(padding, "build_attention_mask_from_nested")


def with_whole_masks(data: Any) -> Any:
    """The batch with a mask of all tokens, where this release makes one of responses only."""
    if not _masks_are_short() or "attention_mask" not in data:
        return data
    torch = import_module("torch")
    counted = [
        torch.cat([torch.zeros_like(row[: len(row) - RESPONSE]), counted])[row.bool()]
        for row, counted in zip(data["attention_mask"], data["response_mask"], strict=True)
    ]
    data["loss_mask"] = torch.nested.as_nested_tensor(counted, layout=torch.jagged)
    return data


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def use_unpadding_of_cpu() -> None:
    """On CPUs, verl uses its functions for NPUs, which are plain torch: some releases have none for CPUs.
    Older commits import them for GPUs and NPUs only, and get plain ones."""
    if not _has("verl.utils.attention_utils"):
        actor: Any = import_module(LEGACY)
        for name, function in ({} if hasattr(actor, "unpad_input") else _plain_unpadding()).items():
            setattr(actor, name, function)
        return
    attention: Any = import_module("verl.utils.attention_utils")
    if hasattr(attention, "_fallback_unpad_input"):
        return
    newer = "verl.utils.npu_flash_attn_utils"
    functions = import_module(newer if _has(newer) else "verl.utils.npu_utils")
    found = tuple(
        getattr(functions, name) for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input")
    )
    attention._get_attention_functions = lambda: found  # noqa: SLF001 - verl's own name


def _plain_unpadding() -> dict[str, Callable[..., Any]]:
    """The functions of flash-attn that remove and restore padding, in plain torch."""
    torch: Any = import_module("torch")

    # The names of the parameters are those of flash-attn.
    def unpad_input(hidden_states: Any, attention_mask: Any) -> tuple[Any, Any, Any, int]:
        lengths = attention_mask.sum(-1, dtype=torch.int32)
        ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        kept = attention_mask.flatten().nonzero().flatten()
        return hidden_states.flatten(0, 1)[kept], kept, ends, int(lengths.max())

    def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
        zeros = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
        return zeros.index_put((indices,), hidden_states).unflatten(0, (batch, seqlen))

    return {
        "index_first_axis": lambda tensor, indices: tensor[indices],
        "pad_input": pad_input,
        "rearrange": import_module("einops").rearrange,
        "unpad_input": unpad_input,
    }


class WorkerCase(Protocol):
    """What the classes below read from a case. This process is one of the data-parallel ranks."""

    @property
    def update(self) -> UpdateSettings:
        """The settings of the actor."""

    @property
    def packed(self) -> bool:
        """Whether rows are passed without padding."""

    @property
    def compute(self) -> str:
        """torch's name of the format in which the model computes."""

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""

    @property
    def max_tokens(self) -> int:
        """How many tokens a micro-batch may have; 0 for a fixed number of rows."""

    @property
    def sp_size(self) -> int:
        """Number of ranks among which the tokens of packed rows are divided (Ulysses)."""

    @property
    def epochs(self) -> int:
        """Passes over the rows of an update."""


class LegacyActor:
    """`DataParallelPPOActor`: compute_log_prob and update_policy on a DataProto."""

    name = "DataParallelPPOActor"

    def __init__(self, model: Any, optimizer: Any, case: WorkerCase, device: str) -> None:
        config = import_module("verl.workers.config")
        actor_class = import_module(LEGACY).DataParallelPPOActor
        # From 0.6.0 on the actor moves micro-batches to the device, in older releases the worker around it
        # moves batches. By the whole module: a patch may remove it from one of the two methods.
        self.device = "" if "get_device_id" in getsource(import_module(LEGACY)) else device
        if case.compute == "float32" and "dtype" not in config.FSDPEngineConfig.__dataclass_fields__:
            # Up to 0.6.0 the actor always computes in bfloat16.
            _without_autocast(model, device)
        self.micro = case.update.ppo_micro_batch_size_per_gpu
        self.max_tokens = case.max_tokens
        self.temperature = case.update.temperature
        if device == "cpu":
            use_unpadding_of_cpu()
        actor_settings = {
            "strategy": "fsdp",
            "rollout_n": 1,
            "ppo_epochs": case.epochs,
            "use_dynamic_bsz": bool(case.max_tokens),
            "ppo_max_token_len_per_gpu": case.max_tokens or 16384,
            "use_torch_compile": False,
            "use_remove_padding": case.packed,
            "ulysses_sequence_parallel_size": case.sp_size,
            "policy_loss": config.PolicyLossConfig(loss_mode=case.update.loss_mode),
            "fsdp_config": verl_configuration("FSDPEngineConfig", {"dtype": case.compute}),
            **_update_settings(case, "lr", "loss_mode"),
        }
        self.actor = actor_class(verl_configuration("FSDPActorConfig", actor_settings), model, optimizer)

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, (batch, response)."""
        found = self.actor.compute_log_prob(self._data(tokens), calculate_entropy=True)
        # A pair up to 0.7.0, a dictionary in later releases.
        return (found["log_probs"], found["entropys"]) if isinstance(found, dict) else tuple(found)

    def reference_log_probs(self, tokens: Tensors) -> Any:
        """Log-probabilities as a reference policy computes them, without entropies."""
        found = self.actor.compute_log_prob(self._data(tokens), calculate_entropy=False)
        return found["log_probs"] if isinstance(found, dict) else found[0]

    def update(self, tokens: Tensors, targets: Tensors) -> dict[str, list[float]]:
        """Run all mini-batches of one update; returns metrics as lists."""
        metrics = self.actor.update_policy(self._data({**tokens, **targets}))
        return {
            name: list(found) if isinstance(found, (list, tuple)) else [found]
            for name, found in metrics.items()
        }

    def _data(self, tensors: Tensors) -> Any:
        data = import_module("verl").DataProto.from_single_dict(_with_responses(tensors))
        data.meta_info = {
            "micro_batch_size": self.micro,
            "temperature": self.temperature,
            "use_dynamic_bsz": bool(self.max_tokens),
            "max_token_len": self.max_tokens,
            "multi_turn": False,
        }
        return data.to(self.device) if self.device else data


class EngineActor:
    """`FSDPEngineWithLMHead` on a plain module: infer_batch and train_batch on a TensorDict of jagged
    tensors."""

    name = "FSDPEngineWithLMHead"

    def __init__(self, model: Any, optimizer: Any, case: WorkerCase, device: str) -> None:
        engine_module: Any = import_module(ENGINE)
        functional = import_module("verl.utils.torch_functional")
        config = import_module("verl.workers.config")
        self.case = case
        if device == "cpu":
            # verl does not support the platform CPU; this process has no other device.
            engine_module.get_device_id = lambda: "cpu"
            balancing: Any = import_module("verl.utils.seqlen_balancing")
            engine_module.get_device_name = balancing.get_device_name = lambda: "cpu"
            use_unpadding_of_cpu()
        else:
            # Commits before 0.7.0 do not have the function.
            patches = getattr(import_module("verl.workers.engine.fsdp.utils"), "apply_npu_fsdp_patches", None)
            if patches is not None:
                # In 0.7 it has no parameter, in later releases the configuration of the model.
                patches(*[None for _ in signature(patches).parameters])
        if case.compute == "float32":
            # The engine of 0.7 always computes in bfloat16.
            _without_autocast(model, device)
        self.engine = _plain_engine(engine_module.FSDPEngineWithLMHead, case)
        settings = {
            "module": model,
            "optimizer": optimizer,
            "optimizer_config": SimpleNamespace(clip_grad=case.update.grad_clip),
            "compute_entropy_from_logits": functional.entropy_from_logits,
            "_autocast_dtype": getattr(import_module("torch"), case.compute),
        }
        for name, value in settings.items():
            setattr(self.engine, name, value)
        actor_settings = {
            "strategy": "fsdp",
            "rollout_n": 1,
            "use_dynamic_bsz": False,
            "policy_loss": config.PolicyLossConfig(loss_mode=case.update.loss_mode),
            **_update_settings(case, "lr", "grad_clip", "loss_mode"),
        }
        actor = verl_configuration("ActorConfig", actor_settings)
        self.loss = partial(import_module("verl.workers.utils.losses").ppo_loss, config=actor)

    def log_probs(self, tokens: Tensors) -> tuple[Any, Any]:
        """Log-probabilities and entropies of the responses, (batch, response)."""
        padded = import_module(PADDING).no_padding_2_padding
        self.engine.module.eval()
        data = self._data(tokens)
        output = self.engine.infer_batch(data)["model_output"]
        return padded(output["log_probs"], data), padded(output["entropy"], data)

    def update(self, tokens: Tensors, targets: Tensors) -> dict[str, list[float]]:
        """Run train_batch once for each mini-batch; returns metrics as lists."""
        size = self.case.update.ppo_mini_batch_size
        batch = {**tokens, **targets}
        self.engine.module.train()
        metrics: dict[str, list[float]] = {}
        for first in range(0, len(next(iter(batch.values()))), size):
            rows = {name: tensor[first : first + size] for name, tensor in batch.items()}
            output = self.engine.train_batch(self._data(rows), self.loss)
            metrics.setdefault("loss", []).extend(output["loss"])
            metrics.setdefault("grad_norm", []).append(output["metrics"]["grad_norm"])
        return metrics

    def unpadded(self, tensors: Tensors) -> Any:
        """The TensorDict of jagged tensors that verl makes of padded ones."""
        tensordict = import_module("tensordict").TensorDict
        tensors = _with_responses(tensors)
        data = tensordict(
            {**tensors, "prompts": tensors["input_ids"][:, :PROMPT]}, batch_size=[len(tensors["input_ids"])]
        )
        return with_whole_masks(import_module(PADDING).left_right_2_no_padding(data))

    def _data(self, tensors: Tensors) -> Any:
        data = self.unpadded(tensors)
        import_module("verl.utils.tensordict_utils").assign_non_tensor(
            data,
            use_remove_padding=self.case.packed,
            use_dynamic_bsz=bool(self.case.max_tokens),
            max_token_len_per_gpu=self.case.max_tokens,
            micro_batch_size_per_gpu=self.case.update.ppo_micro_batch_size_per_gpu,
            temperature=self.case.update.temperature,
            calculate_entropy=True,
            global_batch_size=len(data) * self.case.dp_size,
            pad_token_id=0,
        )
        return data


def _without_autocast(model: Any, device: str) -> None:
    """Switch autocast off where the model starts; verl's `with torch.autocast` restores it."""
    model.register_forward_pre_hook(lambda *_: import_module("torch").set_autocast_enabled(device, False))


def _update_settings(case: WorkerCase, *omitted: str) -> dict[str, object]:
    settings = asdict(case.update)
    if settings.pop("symmetric_clip"):
        settings |= {"clip_ratio_low": None, "clip_ratio_high": None}
    return {name: value for name, value in settings.items() if name not in omitted}


def _plain_engine(engine: type[Any], case: WorkerCase) -> Any:
    """An engine around a module without a wrapper: its methods are verl's, but its set-up is not run."""

    class Plain(engine):  # type: ignore[misc]
        def __init__(self) -> None:
            self.engine_config = SimpleNamespace(
                entropy_checkpointing=False, entropy_from_logits_with_chunking=False, fsdp_size=1
            )
            self.ulysses_sequence_parallel_size = case.sp_size
            self.ulysses_device_mesh = None
            self.use_ulysses_sp = case.sp_size > 1
            self.use_remove_padding = case.packed
            self.pad_to_length = False
            self.scaler = None
            self.ulysses_parallel_group = None
            self.ulysses_sharding_manager = nullcontext()
            self.lr_scheduler = SimpleNamespace(step=lambda: None, get_last_lr=lambda: [0.0])
            self._qat_enabled = False
            self.mode = None

        def get_data_parallel_group(self) -> Any:
            """The default group, which has one process."""
            return import_module("torch.distributed").group.WORLD

        def get_data_parallel_rank(self) -> int:
            """This process is the first rank."""
            return 0

        def get_data_parallel_size(self) -> int:
            """The number of ranks of the case, although this process is the only one."""
            return case.dp_size

    return Plain()


def _with_responses(tensors: Tensors) -> dict[str, Any]:
    return {
        **tensors,
        "responses": tensors["input_ids"][:, PROMPT:],
        "response_mask": tensors.get("response_mask", tensors["attention_mask"][:, PROMPT:]),
    }
