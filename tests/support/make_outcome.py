"""An outcome for tests that only care about some of its fields."""

from __future__ import annotations

from typing import Any

from harness.outcome import Evidence, Outcome, State, Tier


def make_outcome(key: str = "k", check: str = "probe", **fields: Any) -> Outcome:
    """A completed static outcome; `fields` replace the defaults."""
    defaults = {"tier": Tier.STATIC, "state": State.COMPLETED, "evidence": Evidence.STATIC, "facets": {}}
    return Outcome(key=key, check=check, **{**defaults, **fields})
