from __future__ import annotations

from gate_checkout import parsed_code

__all__ = ["parsed_code"]
