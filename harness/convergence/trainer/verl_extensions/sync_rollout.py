"""The rollout of verl 0.6 in sync mode: a copy of the policy on the training device, inside the worker.

verl's own HFRollout cannot be constructed in these versions (it calls its base class without arguments), and
passes position ids to generate() that transformers does not advance. In-cell module.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl import DataProto
from verl.utils.device import get_device_name
from verl.utils.torch_functional import get_response_mask
from verl.workers.rollout.base import BaseRollout

from harness.convergence.trainer.trainer_environment import SEED
from harness.convergence.trainer.verl_extensions.sampler import Noise, sample


class SyncRollout(BaseRollout):  # type: ignore[misc]
    """Registered as ("hf", "sync")."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any = None) -> None:
        super().__init__(config, model_config, device_mesh)
        model = AutoModelForCausalLM.from_config(self.model_config.hf_config, attn_implementation="eager")
        self.model = model.float().to(get_device_name()).eval()
        self.noise = Noise(int(os.environ.get(SEED, "0")) + int(os.environ.get("RANK", "0")))
        # verl collects garbage four times a step. Scanning the objects of imported modules takes 0.3 s each
        # time; frozen objects are not scanned.
        gc.collect()
        gc.freeze()

    async def resume(self, tags: list[str]) -> None:
        """Nothing is offloaded."""

    async def release(self) -> None:
        """Nothing is offloaded."""

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], **_others: Any) -> None:
        """Load the policy's weights. Raises ValueError for a name that the model does not have."""
        unknown = self.model.load_state_dict(dict(weights), strict=False).unexpected_keys
        if unknown:
            raise ValueError(f"the policy has weights that its copy lacks: {', '.join(unknown[:3])}")

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response per row of `prompts` (input_ids and attention_mask (rows, prompt tokens))."""
        prompt_ids, mask = prompts.batch["input_ids"].cpu(), prompts.batch["attention_mask"].cpu()
        end, pad = prompts.meta_info["eos_token_id"], prompts.meta_info["pad_token_id"]
        rows = [row[keep.bool()].tolist() for row, keep in zip(prompt_ids, mask, strict=True)]
        self.noise.next_step()
        noise = self.noise.draw(rows, self.config.response_length, self.model.config.vocab_size)
        sampled = sample(
            self.model,
            rows,
            noise,
            end=end,
            pad=pad,
            temperature=prompts.meta_info.get("temperature", self.config.temperature),
        )
        response_mask = get_response_mask(response_id=sampled.tokens, eos_token=end, dtype=mask.dtype)
        positions = prompts.batch["position_ids"].cpu()
        response_positions = positions[:, -1:] + torch.arange(1, sampled.tokens.shape[1] + 1)
        batch = {
            "prompts": prompt_ids,
            "responses": sampled.tokens,
            "input_ids": torch.cat([prompt_ids, sampled.tokens], dim=1),
            "attention_mask": torch.cat([mask, response_mask], dim=1),
            "position_ids": torch.cat([positions, response_positions], dim=1),
            "rollout_log_probs": sampled.log_probs,
        }
        return DataProto(batch=TensorDict(batch, batch_size=len(rows)))
