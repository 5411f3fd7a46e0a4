"""Replacement for CANN's Python package `acl`: the functions that Ray and vllm-ascend call.

The folder above is added to PYTHONPATH, because the package must have the name `acl`. Each function returns
the same as in pyACL: values, then the error code. Start with `rt.py`, which has devices and memory.
"""

from __future__ import annotations

import ctypes

from . import rt

__all__ = ["finalize", "get_soc_name", "init", "rt"]


def init(config_path: str = "") -> int:  # noqa: ARG001 - pyACL's signature
    """Start the runtime; returns the error code."""
    return int(rt.library().aclInit(None))


def finalize() -> int:
    """Stop the runtime; returns the error code."""
    return int(rt.library().aclFinalize())


def get_soc_name() -> str:
    """The SoC, for example "Ascend910B3"."""
    name = rt.library().aclrtGetSocName
    name.restype = ctypes.c_char_p
    return (name() or b"").decode()
