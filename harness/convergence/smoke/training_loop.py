"""The tiny training: sample, reward, verl's advantage, verl's loss, Adam. In-cell module."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.convergence.smoke import repeat_task
from harness.convergence.smoke.smoke_recipe import TinyRecipe
from harness.convergence.smoke.tiny_policy import Policy
from harness.convergence.smoke.training_faults import CLEAN, TrainingFault
from harness.convergence.smoke.verl_objective import Objective

# Log-probability differences are clamped to this value before exp, as in verl.
_LARGEST_DIFFERENCE = 20.0


@dataclass(frozen=True, kw_only=True)
class _Rollout:
    """The batch of a step on the device, with its rows in the order of the mini-batches."""

    digit: Tensor
    count: Tensor
    tokens: Tensor
    mask: Tensor
    advantages: Tensor
    sampled: Tensor


class Training:
    """One training of `recipe` on `device`. Iterating trains and yields the telemetry of each step."""

    def __init__(
        self, recipe: TinyRecipe, *, seed: int, device: torch.device | str, fault: TrainingFault = CLEAN
    ) -> None:
        self.recipe = fault.changed(recipe)
        self.seed = seed
        self.device = device
        self.fault = fault
        self.objective = Objective(self.recipe)
        self.policy = Policy(seed, recipe.hidden, device)
        self.policy.logit_noise = fault.logit_noise
        self._optimizer = torch.optim.Adam(self.policy.weights.values(), lr=recipe.learning_rate)
        self._history: list[Policy] = []

    def __iter__(self) -> Iterator[dict[str, float]]:
        for step in range(self.recipe.steps):
            started = time.perf_counter()
            record = self._step(step)
            record["seconds"] = time.perf_counter() - started
            yield record

    def _step(self, step: int) -> dict[str, float]:
        record: dict[str, float] = {}
        batch = self._rollout(step, record)
        with torch.no_grad():
            logits = self.policy.logits(batch.digit, batch.count, batch.tokens)
            old = self.objective.log_probs(logits, batch.tokens)
            real = batch.mask.sum()
            difference = (batch.sampled - old).clamp(-_LARGEST_DIFFERENCE, _LARGEST_DIFFERENCE)
            record["mismatch"] = float((((difference.exp() - 1).abs() * batch.mask).sum() / real).cpu())
            record["entropy"] = float(((self.objective.entropy(logits) * batch.mask).sum() / real).cpu())
        for group in self._optimizer.param_groups:
            group["lr"] = self.fault.learning_rate(self.recipe, step)
        updates = [
            self._update(step, batch, old, rows)
            for rows in torch.arange(self.recipe.rows).chunk(self.recipe.mini_batches)
        ]
        for name in updates[0]:
            record[name] = float(np.mean([update[name] for update in updates]))
        return record

    def _rollout(self, step: int, record: dict[str, float]) -> _Rollout:
        recipe, fault = self.recipe, self.fault
        asked = repeat_task.prompts(self.seed, step, number=recipe.prompts, samples=recipe.samples)
        noise = repeat_task.gumbel_noise(self.seed, step, recipe.rows) * (0.0 if fault.greedy else 1.0)
        sample = self._sampling_policy().sample(
            self._to_device(asked.digit),
            self._to_device(asked.count),
            self._to_device(noise.astype(np.float32)),
            temperature=fault.temperature,
        )
        tokens = sample.tokens.cpu()
        mask = self.objective.response_mask(tokens)
        reward, exact = repeat_task.rewards(asked, tokens.numpy(), mask.numpy())
        reward = reward + fault.reward_offset
        if fault.constant_reward is not None:
            reward = np.full_like(reward, fault.constant_reward)
        groups = np.roll(asked.group, fault.group_shift)
        advantages = self.objective.advantages(reward, mask, groups) * fault.advantage_sign
        advantages = torch.roll(advantages, fault.advantage_shift, dims=0)
        spread = reward.reshape(recipe.prompts, recipe.samples).std(axis=1)
        record.update(
            reward=float(reward.mean()),
            exact=float(exact.mean()),
            response_length=float(repeat_task.lengths(mask.numpy()).mean()),
            zero_variance_groups=float((spread < 1e-6).mean()),
        )
        rows = repeat_task.order(self.seed, step, recipe.rows)
        index = torch.from_numpy(rows)
        return _Rollout(
            digit=self._to_device(asked.digit[rows]),
            count=self._to_device(asked.count[rows]),
            tokens=tokens[index].to(self.device),
            mask=mask[index].to(self.device),
            advantages=advantages[index].to(self.device),
            sampled=sample.log_probs.cpu()[index].to(self.device),
        )

    def _update(self, step: int, batch: _Rollout, old: Tensor, rows: Tensor) -> dict[str, float]:
        fault = self.fault
        dtype = getattr(torch, fault.loss_dtype)
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        tokens = batch.tokens[part]
        new = self.objective.log_probs(
            self.policy.logits(batch.digit[part], batch.count[part], tokens), tokens
        )
        before = new.detach() if fault.on_policy_ratio else old[part]
        result = self.objective.policy_loss(
            old=before.to(dtype),
            new=new.to(dtype),
            advantages=batch.advantages[part].to(dtype),
            mask=fault.mask_of(batch.mask[part]),
        )
        loss = result.loss * fault.loss_scale
        if fault.nan_at == step:
            loss = loss * float("nan")
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.weights.values(), self.recipe.grad_clip)
        self._optimizer.step()
        return {
            "pg_loss": float(loss.detach().cpu()),
            "grad_norm": float(norm.cpu()),
            "clip_fraction": result.clip_fraction,
            "ppo_kl": result.ppo_kl,
        }

    def _sampling_policy(self) -> Policy:
        if not self.fault.stale_steps:
            return self.policy
        self._history = [*self._history, self.policy.copy()][-(self.fault.stale_steps + 1) :]
        return self._history[0]

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
