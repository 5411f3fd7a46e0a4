"""Stand-in for CANN's Python package `acl`: what Ray and vllm-ascend call of it, on the simulated runtime.

Its folder goes on PYTHONPATH, because the name is CANN's. Functions return what those of pyACL return:
values, then the error code. Start with `rt.py`, the device and its memory.
"""

from __future__ import annotations

import ctypes

from . import rt

__all__ = ["finalize", "get_soc_name", "init", "rt"]


def init(config_path: str = "") -> int:  # noqa: ARG001 - pyACL's signature
    """Start the runtime: 0."""
    return int(rt.library().aclInit(None))


def finalize() -> int:
    """Stop the runtime: 0."""
    return int(rt.library().aclFinalize())


def get_soc_name() -> str:
    """The SoC, for example "Ascend910B3"."""
    name = rt.library().aclrtGetSocName
    name.restype = ctypes.c_char_p
    return (name() or b"").decode()
