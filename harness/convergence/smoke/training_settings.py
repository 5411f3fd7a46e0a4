"""The settings that all tiny trainings have, and their digest. In-cell module; standard library only."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.digest import digest_json


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The names are those of verl's actor configuration where it has the setting.

    prompts, samples: prompts per step, responses per prompt (verl `train_batch_size`, `rollout.n`).
    clip_ratio_low, clip_ratio_high, loss_agg_mode: passed to verl's policy loss. learning_rate: of Adam.
    """

    program_version: ClassVar[int]
    """Increase it when a change of the program changes the curves of equal settings."""

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
        """The digest of the settings. Runs are comparable when their digests are equal."""
        return digest_json({"program": self.program_version, **self.as_json()})
