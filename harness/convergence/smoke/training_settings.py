"""What the settings of every tiny training have in common, and the digest that says what a curve is of.

In-cell module; standard library only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.digest import digest_json


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Names follow verl's actor configuration where it has them.

    prompts, samples: prompts per step, responses per prompt (verl `train_batch_size`, `rollout.n`).
    clip_ratio_low, clip_ratio_high, loss_agg_mode: handed to verl's policy loss. learning_rate: Adam's step
    size.
    """

    program_version: ClassVar[int]
    """Raised when anything else changes what the same settings produce."""

    algorithm: str
    clip_ratio_low: float
    clip_ratio_high: float
    loss_agg_mode: str
    learning_rate: float
    prompts: int = 32
    samples: int = 8

    @property
    def rows(self) -> int:
        """Responses per training step."""
        return self.prompts * self.samples

    def as_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Identity of the settings: two runs are comparable when it is equal."""
        return digest_json({"program": self.program_version, **self.as_json()})
