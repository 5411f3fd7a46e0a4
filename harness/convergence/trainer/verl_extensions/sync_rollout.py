"""The rollout of verl 0.6 in sync mode: a copy of the policy on the training device, inside the worker.

verl's own HFRollout cannot be made in these versions (its constructor calls its base without arguments) and
hands generate() position ids that transformers never advances. In-cell module.
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
        # verl collects garbage four times a step: 0.3 s each among the objects that imports left.
        gc.collect()
        gc.freeze()

    async def resume(self, tags: list[str]) -> None:
        """Nothing is offloaded."""

    async def release(self) -> None:
        """Nothing is offloaded."""

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], **_others: Any) -> None:
        """Take the policy's weights; a name the model does not know is an error."""
        wrong = self.model.load_state_dict(dict(weights), strict=False).unexpected_keys
        if wrong:
            raise ValueError(f"the policy has weights that its copy lacks: {', '.join(wrong[:3])}")

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response per row of `prompts` (input_ids and attention_mask (rows, prompt tokens))."""
        asked, mask = prompts.batch["input_ids"].cpu(), prompts.batch["attention_mask"].cpu()
        end, pad = prompts.meta_info["eos_token_id"], prompts.meta_info["pad_token_id"]
        rows = [row[keep.bool()].tolist() for row, keep in zip(asked, mask, strict=True)]
        self.noise.next_step()
        noise = self.noise.draw(rows, self.config.response_length, self.model.config.vocab_size)
        found = sample(
            self.model,
            rows,
            noise,
            end=end,
            pad=pad,
            temperature=prompts.meta_info.get("temperature", self.config.temperature),
        )
        answered = get_response_mask(response_id=found.tokens, eos_token=end, dtype=mask.dtype)
        whole = torch.cat([mask, answered], dim=1)
        later = prompts.batch["position_ids"].cpu()[:, -1:] + torch.arange(1, found.tokens.shape[1] + 1)
        batch = {
            "prompts": asked,
            "responses": found.tokens,
            "input_ids": torch.cat([asked, found.tokens], dim=1),
            "attention_mask": whole,
            "position_ids": torch.cat([prompts.batch["position_ids"].cpu(), later], dim=1),
            "rollout_log_probs": found.log_probs,
        }
        return DataProto(batch=TensorDict(batch, batch_size=len(rows)))
