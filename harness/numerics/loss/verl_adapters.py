"""verl's loss functions as a candidate, for releases from 0.5.0 on and for commits between and after
releases.

The functions are those that the trainer calls (`trainer_functions`). `capabilities` says what the installed
package offers, detected from its functions (names, signatures, a call on two numbers). Whether a release must
offer it is known from its source (`release_objectives`). The arithmetic has verl's contract: inputs in the io
format, computation in fp32, gradients in the io format.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.digest import digest_file
from harness.errors import NothingSelectedError
from harness.numerics.loss.candidate import CandidateResult, UnsupportedCaseError, failed
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.loss_measurements import SourceFile
from harness.numerics.loss.trainer_functions import TrainerFunctions, advantage_step
from harness.numerics.loss.verl_configuration import CONFIGURATIONS, verl_configuration
from harness.numerics.loss.verl_helpers import place_of, raised_in, watched_helpers

#: verl uses it only where clip_ratio_low and clip_ratio_high are None; the cases set both.
_REPLACED_CLIP_RATIO = 0.5
FUNCTIONS = {
    "aggregation": "agg_loss",
    "kl": "kl_penalty",
    "entropy": "entropy_from_logits",
    "logprob": "logprobs_from_logits",
}
IO_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}

#: Input of the case -> torch tensor on the device.
Tensors = Mapping[str, Any]


class VerlCandidate:
    """Evaluates cases with the verl that can be imported here, on one device.

    The attribute `core_algos` is verl's module. `capabilities` lists what the package offers.
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
        self.trainer = TrainerFunctions()
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
        helpers: list[Any] = []
        place = ""
        with watched_helpers(helpers.append):
            try:
                found = self._evaluate(case)
            except (UnsupportedCaseError, NothingSelectedError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever verl raises is a verdict on it
                place = raised_in(error)
                found = failed(error, place)
        # A helper with a wrong result, else what raised, else the function of which the result is.
        named = helpers[0] if helpers else None if place else self._function(case)
        return replace(found, place=place_of(named) if named else place)

    def _function(self, case: LossCase) -> Any:
        """The function of verl that the case tests."""
        if case.operation == "policy":
            return self.trainer.policy_loss(str(case.settings["loss_mode"]))
        if case.operation == "advantage":
            return advantage_step() or self.trainer.taken("compute_advantage")
        if case.operation == "weights":
            return self.rollout.compute_rollout_correction_weights
        return self.trainer.taken(FUNCTIONS[case.operation])

    def _evaluate(self, case: LossCase) -> CandidateResult:
        for need in case.requires:
            if need not in self.capabilities:
                raise UnsupportedCaseError(f"verl {self.version} has no {need}")
        tensors = {name: self._tensor(case, name) for name in case.inputs}
        leaf = tensors.get(case.gradient_of)
        if leaf is not None:
            leaf.requires_grad_()
        stays = {"logits"} if case.setting("native", False) else set()
        computed = {
            name: tensor if name in stays else self._as_fp32(tensor) for name, tensor in tensors.items()
        }
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
            is_boolean = case.operation != "advantage" and self.trainer.converts_mask_to_bool
            return tensor.to(self.torch.bool if is_boolean else self.torch.int64).to(self.device)
        if array.dtype.kind == "f":
            tensor = tensor.to(getattr(self.torch, IO_DTYPES[case.contract.io]))
        return tensor.to(self.device)

    def _as_fp32(self, tensor: Any) -> Any:
        return tensor.to(self.torch.float32) if tensor.dtype.is_floating_point else tensor

    def _policy(self, case: LossCase, tensors: Tensors) -> Any:
        mode = str(case.settings["loss_mode"])
        arguments = {
            "old_log_prob": tensors["old_log_prob"],
            "log_prob": tensors["log_prob"],
            "advantages": tensors["advantages"],
            "response_mask": tensors["response_mask"],
            "loss_agg_mode": case.settings["loss_agg_mode"],
        }
        if self.trainer.passes_rollout_weights:
            arguments["rollout_is_weights"] = tensors.get("rollout_is_weights")
        policy_loss = self.trainer.policy_loss(mode)
        if "cliprange" in inspect.signature(policy_loss).parameters:
            loss = policy_loss(
                **arguments,
                cliprange=_REPLACED_CLIP_RATIO,
                cliprange_low=case.settings["clip_ratio_low"],
                cliprange_high=case.settings["clip_ratio_high"],
                clip_ratio_c=case.settings["clip_ratio_c"],
            )[0]
        else:
            loss = policy_loss(**arguments, config=self._config(case))[0]
        return loss * case.setting("scale", 1.0)

    def _config(self, case: LossCase) -> Any:
        """The actor configuration of this release, a dataclass whose fields differ between releases."""
        settings = case.settings
        actor_settings = {
            "strategy": "fsdp",
            "rollout_n": 4,
            "ppo_mini_batch_size": 8,
            "ppo_micro_batch_size_per_gpu": 8,
            "clip_ratio": _REPLACED_CLIP_RATIO,
            "clip_ratio_low": settings["clip_ratio_low"],
            "clip_ratio_high": settings["clip_ratio_high"],
            "clip_ratio_c": settings["clip_ratio_c"],
            "loss_agg_mode": settings["loss_agg_mode"],
            "global_batch_info": _global_batch(case),
        }
        if not hasattr(_import_optional(CONFIGURATIONS), "ActorConfig"):
            return SimpleNamespace(
                **actor_settings, get=lambda name, default=None: actor_settings.get(name, default)
            )
        return verl_configuration("ActorConfig", actor_settings)

    def _aggregation(self, case: LossCase, tensors: Tensors) -> Any:
        return self._aggregated(case, tensors["losses"], tensors["response_mask"])

    def _aggregated(self, case: LossCase, losses: Any, mask: Any) -> Any:
        return self.trainer.taken("agg_loss")(
            loss_mat=losses,
            loss_mask=mask,
            loss_agg_mode=case.settings["loss_agg_mode"],
            **_global_batch(case),
        )

    def _kl(self, case: LossCase, tensors: Tensors) -> Any:
        divergence = self.trainer.taken("kl_penalty")(
            logprob=tensors["log_prob"],
            ref_logprob=tensors["ref_log_prob"],
            kl_penalty=case.settings["kl_penalty"],
        )
        return self._aggregated(case, divergence, tensors["response_mask"])

    def _advantage(self, case: LossCase, tensors: Tensors) -> Any:
        mask = tensors["response_mask"]
        last = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
        rewards = self.torch.zeros(mask.shape, dtype=self.torch.float32, device=self.device)
        rewards.scatter_(1, last, tensors["rewards"][:, None])
        data = import_module("verl").DataProto.from_single_dict(
            {
                "token_level_rewards": rewards,
                "response_mask": mask,
                "uid": case.inputs["index"].astype(str).astype(object),
            }
        )
        compute: Any = advantage_step() or self.trainer.taken("compute_advantage")
        arguments = {
            "adv_estimator": self.core_algos.AdvantageEstimator.GRPO,
            "norm_adv_by_std_in_grpo": case.setting("norm_adv_by_std_in_grpo", True),
        }
        if "batch_keys" in inspect.signature(compute).parameters:
            # prompt, session and number of the output in its session
            groups = case.inputs["index"]
            arguments["batch_keys"] = [f"{group}_{row}_0" for row, group in enumerate(groups)]
        return compute(data, **arguments).batch["advantages"]

    def _entropy(self, case: LossCase, tensors: Tensors) -> Any:
        entropy = self.trainer.taken("entropy_from_logits")(tensors["logits"])
        return self._aggregated(case, entropy, tensors["response_mask"])

    def _logprob(self, _case: LossCase, tensors: Tensors) -> Any:
        log_probs = self.trainer.taken("logprobs_from_logits")(tensors["logits"], tensors["labels"])
        return (log_probs * tensors["weights"]).sum()

    def _weights(self, case: LossCase, tensors: Tensors) -> Any:
        settings = case.settings
        upper, lower = settings["upper"], case.setting("lower")
        normalised = {"rollout_is_batch_normalize": True} if case.setting("normalised", False) else {}
        return self.rollout.compute_rollout_correction_weights(
            tensors["old_log_prob"] - tensors["rollout_log_prob"],
            tensors["response_mask"],
            rollout_is=settings["rollout_is"],
            rollout_is_threshold=upper if lower is None else f"{lower}_{upper}",
            **normalised,
        )[0]

    def _capabilities(self) -> frozenset[str]:
        trainer = self.trainer
        aggregate, divergence = trainer.taken("agg_loss"), trainer.taken("kl_penalty")
        offered = {
            "vanilla": trainer.offers_policy_loss("vanilla"),
            "gspo": trainer.offers_policy_loss("gspo"),
            "rollout_is_weights": trainer.passes_rollout_weights,
            "global_denominators": "batch_num_tokens" in inspect.signature(aggregate).parameters,
            "token-sum": self._accepts(lambda two: aggregate(two, two, "token-sum")),
            "kl:k3+": self._accepts(lambda two: divergence(two, two, "k3+")),
            "weights": hasattr(self.rollout, "compute_rollout_correction_weights"),
            "weights:icepop": hasattr(self.rollout, "_parse_rollout_is_threshold"),
            "weights:normalised": "rollout_is_batch_normalize"
            in _parameters(getattr(self.rollout, "compute_rollout_correction_weights", None)),
        }
        return frozenset(name for name, present in offered.items() if present)

    def _accepts(self, call: Any) -> bool:
        try:
            call(self.torch.ones(1, 2))
        except (NotImplementedError, ValueError):
            return False
        return True


def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) if function else frozenset()


def _global_batch(case: LossCase) -> dict[str, str | float | bool]:
    names = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
    return {name: case.settings[name] for name in names if name in case.settings}


def _import_optional(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().double().numpy()
