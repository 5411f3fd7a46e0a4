from __future__ import annotations

from gate_checkout import parsed_code
from wheelhouse import wheels

__all__ = ["parsed_code", "wheels"]
