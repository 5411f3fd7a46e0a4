from __future__ import annotations

from package_server import index, server
from wheelhouse import context, wheels

__all__ = ["context", "index", "server", "wheels"]
