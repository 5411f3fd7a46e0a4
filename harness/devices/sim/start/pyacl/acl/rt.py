"""The module `acl.rt`: devices and memory."""

from __future__ import annotations

import ctypes


def library() -> ctypes.CDLL:
    """The simulated runtime; RuntimeError when the loader finds a real one, which has its own pyACL."""
    runtime = ctypes.CDLL("libascendcl.so")
    if not hasattr(runtime, "npu_sim_sentinel"):
        raise RuntimeError("this is a real CANN runtime; use its own package acl")
    return runtime


def get_device_count() -> tuple[int, int]:
    """Number of visible devices, error code."""
    count = ctypes.c_uint32(0)
    error = library().aclrtGetDeviceCount(ctypes.byref(count))
    return count.value, error


def set_device(device: int) -> int:
    """Make a device current; returns the error code."""
    return int(library().aclrtSetDevice(device))


def get_device() -> tuple[int, int]:
    """The current device, error code."""
    device = ctypes.c_int32(0)
    error = library().aclrtGetDevice(ctypes.byref(device))
    return device.value, error


def get_mem_info(attribute: int) -> tuple[int, int, int]:
    """Free bytes, total bytes, error code."""
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    error = library().aclrtGetMemInfo(attribute, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value, error


def memcpy(target: int, room: int, source: int, size: int, kind: int) -> int:
    """Copy between pointers given as numbers; returns the error code."""
    function = library().aclrtMemcpy
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return int(function(target, room, source, size, kind))


def memcpy_async(target: int, room: int, source: int, size: int, kind: int, stream: int) -> int:  # noqa: ARG001
    """The same as `memcpy`, because streams are synchronous."""
    return memcpy(target, room, source, size, kind)
