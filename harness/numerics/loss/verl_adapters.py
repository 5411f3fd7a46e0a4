"""verl's loss functions as a candidate, for releases from 0.5.0 on and for commits between and after
releases.

The capabilities of a release are detected from its functions (names, signatures, a call on two numbers), not
from its version number. The arithmetic has verl's contract: inputs in the io format, computation in fp32,
gradients in the io format.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.digest import digest_file
from harness.numerics.loss.candidate import CandidateResult, UnsupportedCaseError
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.loss_measurements import SourceFile

IO_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}

#: Input of the case -> torch tensor on the device.
Tensors = Mapping[str, Any]


class VerlCandidate:
    """Evaluates cases with the verl that can be imported here, on one device.

    The attributes `core_algos` and `functional` are verl's modules. `capabilities` lists what the release
    offers.
    """

    def __init__(self, device: str) -> None:
        kind = device.split(":", maxsplit=1)[0]
        if kind != "npu":
            # verl uses an NPU kernel for log-probabilities wherever torch_npu can be imported, also for CPU
            # tensors.
            sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
        self.torch = import_module("torch")
        if kind == "npu":
            import_module("torch_npu")
        self.core_algos = import_module("verl.trainer.ppo.core_algos")
        self.functional = import_module("verl.utils.torch_functional")
        self.rollout = _import_optional("verl.trainer.ppo.rollout_corr_helper")
        self.device = device
        self.version = version("verl")
        self.capabilities = self._capabilities()

    @property
    def source(self) -> SourceFile:
        """The file of verl's losses."""
        file = Path(str(self.core_algos.__file__))
        return SourceFile(file=str(file), digest=digest_file(file))

    def __call__(self, case: LossCase) -> CandidateResult:
        """Forward and backward pass of one case; UnsupportedCaseError if this release does not offer it."""
        for need in case.requires:
            if need not in self.capabilities:
                raise UnsupportedCaseError(f"verl {self.version} has no {need}")
        tensors = {name: self._tensor(case, name) for name in case.inputs}
        leaf = tensors.get(case.gradient_of)
        if leaf is not None:
            leaf.requires_grad_()
        computed = {name: self._as_fp32(tensor) for name, tensor in tensors.items()}
        value = getattr(self, f"_{case.operation}")(case, computed)
        if leaf is None:
            return CandidateResult(value=_array(value))
        value.backward()
        if leaf.grad is None:
            return CandidateResult(value=_array(value), error=f"no gradient reached {case.gradient_of}")
        if leaf.grad.dtype != leaf.dtype:
            return CandidateResult(error=f"gradient has dtype {leaf.grad.dtype}, not {leaf.dtype}")
        return CandidateResult(value=_array(value), gradient=_array(leaf.grad))

    def _tensor(self, case: LossCase, name: str) -> Any:
        array = case.inputs[name]
        tensor = self.torch.from_numpy(np.ascontiguousarray(array))
        if name == "response_mask":
            return tensor.to(self.torch.int64).to(self.device)
        if array.dtype.kind == "f":
            tensor = tensor.to(getattr(self.torch, IO_DTYPES[case.contract.io]))
        return tensor.to(self.device)

    def _as_fp32(self, tensor: Any) -> Any:
        return tensor.to(self.torch.float32) if tensor.dtype.is_floating_point else tensor

    def _policy(self, case: LossCase, tensors: Tensors) -> Any:
        mode = case.settings["loss_mode"]
        arguments = {
            "old_log_prob": tensors["old_log_prob"],
            "log_prob": tensors["log_prob"],
            "advantages": tensors["advantages"],
            "response_mask": tensors["response_mask"],
            "loss_agg_mode": case.settings["loss_agg_mode"],
        }
        if "rollout_is_weights" in tensors:
            arguments["rollout_is_weights"] = tensors["rollout_is_weights"]
        name = f"compute_policy_loss_{mode}"
        if hasattr(self.core_algos, name):
            loss = getattr(self.core_algos, name)(**arguments, config=self._config(case))[0]
        else:
            loss = self.core_algos.compute_policy_loss(
                **arguments,
                cliprange=case.settings["clip_ratio_low"],
                cliprange_low=case.settings["clip_ratio_low"],
                cliprange_high=case.settings["clip_ratio_high"],
                clip_ratio_c=case.settings["clip_ratio_c"],
            )[0]
        return loss * case.setting("scale", 1.0)

    def _config(self, case: LossCase) -> Any:
        """The actor configuration of this release, a dataclass whose fields differ between releases."""
        settings = case.settings
        actor_settings = {
            "strategy": "fsdp",
            "rollout_n": 4,
            "ppo_mini_batch_size": 8,
            "ppo_micro_batch_size_per_gpu": 8,
            "clip_ratio": settings["clip_ratio_low"],
            "clip_ratio_low": settings["clip_ratio_low"],
            "clip_ratio_high": settings["clip_ratio_high"],
            "clip_ratio_c": settings["clip_ratio_c"],
            "loss_agg_mode": settings["loss_agg_mode"],
            "global_batch_info": _global_batch(case),
        }
        config = getattr(_import_optional("verl.workers.config"), "ActorConfig", None)
        if config is None:
            return SimpleNamespace(
                **actor_settings, get=lambda name, default=None: actor_settings.get(name, default)
            )
        return config(
            **{name: value for name, value in actor_settings.items() if name in config.__dataclass_fields__}
        )

    def _aggregation(self, case: LossCase, tensors: Tensors) -> Any:
        return self.core_algos.agg_loss(
            tensors["losses"], tensors["response_mask"], case.settings["loss_agg_mode"], **_global_batch(case)
        )

    def _kl(self, case: LossCase, tensors: Tensors) -> Any:
        divergence = self.core_algos.kl_penalty(
            tensors["log_prob"], tensors["ref_log_prob"], case.settings["kl_penalty"]
        )
        return self.core_algos.agg_loss(divergence, tensors["response_mask"], case.settings["loss_agg_mode"])

    def _advantage(self, case: LossCase, tensors: Tensors) -> Any:
        mask = tensors["response_mask"]
        last = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
        rewards = self.torch.zeros(mask.shape, dtype=self.torch.float32, device=self.device)
        rewards.scatter_(1, last, tensors["rewards"][:, None])
        return self.core_algos.compute_grpo_outcome_advantage(
            token_level_rewards=rewards,
            response_mask=mask,
            index=case.inputs["index"].astype(str).astype(object),
            norm_adv_by_std_in_grpo=case.setting("norm_adv_by_std_in_grpo", True),
        )[0]

    def _entropy(self, case: LossCase, tensors: Tensors) -> Any:
        return self.core_algos.compute_entropy_loss(
            tensors["logits"], tensors["response_mask"], case.settings["loss_agg_mode"]
        )

    def _logprob(self, _case: LossCase, tensors: Tensors) -> Any:
        log_probs = self.functional.logprobs_from_logits(tensors["logits"], tensors["labels"])
        return (log_probs * tensors["weights"]).sum()

    def _weights(self, case: LossCase, tensors: Tensors) -> Any:
        settings = case.settings
        upper, lower = settings["upper"], case.setting("lower")
        return self.rollout.compute_rollout_correction_weights(
            tensors["old_log_prob"] - tensors["rollout_log_prob"],
            tensors["response_mask"],
            rollout_is=settings["rollout_is"],
            rollout_is_threshold=upper if lower is None else f"{lower}_{upper}",
        )[0]

    def _capabilities(self) -> frozenset[str]:
        core = self.core_algos
        offered = {
            "vanilla": hasattr(core, "compute_policy_loss_vanilla") or hasattr(core, "compute_policy_loss"),
            "gspo": hasattr(core, "compute_policy_loss_gspo"),
            "rollout_is_weights": _has_parameter(core, "compute_policy_loss_vanilla", "rollout_is_weights"),
            "global_denominators": _has_parameter(core, "agg_loss", "batch_num_tokens"),
            "token-sum": self._accepts(lambda two: core.agg_loss(two, two, "token-sum")),
            "kl:k3+": self._accepts(lambda two: core.kl_penalty(two, two, "k3+")),
            "weights": hasattr(self.rollout, "compute_rollout_correction_weights"),
            "weights:icepop": hasattr(self.rollout, "_parse_rollout_is_threshold"),
        }
        return frozenset(name for name, present in offered.items() if present)

    def _accepts(self, call: Any) -> bool:
        try:
            call(self.torch.ones(1, 2))
        except (NotImplementedError, ValueError):
            return False
        return True


def _global_batch(case: LossCase) -> dict[str, str | float | bool]:
    names = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    return {name: case.settings[name] for name in names if name in case.settings}


def _has_parameter(module: Any, function: str, parameter: str) -> bool:
    found = getattr(module, function, None)
    return found is not None and parameter in inspect.signature(found).parameters


def _import_optional(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().double().numpy()
