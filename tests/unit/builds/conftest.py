from __future__ import annotations

from wheelhouse import context, wheels

__all__ = ["context", "wheels"]
