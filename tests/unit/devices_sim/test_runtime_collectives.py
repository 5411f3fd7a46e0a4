"""HCCL of the simulated runtime, streams that wait for it, and memory that the host must not touch.

The processes use the C functions with ctypes, without torch.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.devices.sim.operators import host_memory_address
from harness.devices.sim.runtime_build.runtime_library import build_runtime

FP16, FP32, INT32, BF16 = 3, 4, 2, 11
SUM, MAX = 0, 2
START = """
import ctypes, json, sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
rank, size, shared = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
acl = ctypes.CDLL("libascendcl.so"); acl.aclrtSetDevice(0)
stream, comm = c_void_p(), c_void_p()
acl.aclrtCreateStream(byref(stream))
root = ctypes.create_string_buffer(4108)
if rank == 0:
    assert acl.HcclGetRootInfo(root) == 0
    open(shared + ".part", "wb").write(root.raw); import os; os.rename(shared + ".part", shared)
else:
    import os, time
    while not os.path.exists(shared): time.sleep(0.005)
    ctypes.memmove(root, open(shared, "rb").read(), 4108)
assert acl.HcclCommInitRootInfo(size, root, rank, byref(comm)) == 0
def device(values, kind=ctypes.c_float):
    host = (kind * len(values))(*values); p = c_void_p(); n = c_size_t(ctypes.sizeof(host))
    assert acl.aclrtMalloc(byref(p), n, 0) == 0 and acl.aclrtMemcpy(p, n, host, n, 1) == 0
    return p
def host(p, count, kind=ctypes.c_float):
    out = (kind * count)(); n = c_size_t(ctypes.sizeof(out))
    assert acl.aclrtMemcpy(out, n, p, n, 2) == 0
    return list(out)
def done(error):
    assert error == 0, error
    return acl.aclrtSynchronizeStream(stream)
"""


@pytest.fixture(scope="session")
def runtime(pretended: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runtime(pretended, tmp_path_factory.mktemp("cache"))


def run_ranks(runtime: Path, folder: Path, code: str, size: int = 2, **environment: str) -> list[object]:
    """What each rank prints as JSON in its last line."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START + code, str(rank), str(size), str(folder / "root")],
            env={"LD_LIBRARY_PATH": str(runtime), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * size, outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_collectives_move_and_reduce_what_hccl_h_says(runtime: Path, tmp_path: Path) -> None:
    code = f"""
found = {{}}
own = device([rank + 1.0, 10.0 * rank]); out = device([0.0] * 2 * size)
assert done(acl.HcclAllReduce(own, out, c_uint64(2), {FP32}, {SUM}, comm, stream)) == 0
found["all_reduce"] = host(out, 2)
assert done(acl.HcclAllGather(own, out, c_uint64(2), {FP32}, comm, stream)) == 0
found["all_gather"] = host(out, 2 * size)
parts = device([float(10 * rank + j) for j in range(size)])
assert done(acl.HcclReduceScatter(parts, out, c_uint64(1), {FP32}, {MAX}, comm, stream)) == 0
found["reduce_scatter"] = host(out, 1)
assert done(acl.HcclAlltoAll(parts, c_uint64(1), {FP32}, out, c_uint64(1), {FP32}, comm, stream)) == 0
found["all_to_all"] = host(out, size)
assert done(acl.HcclBroadcast(own, c_uint64(2), {FP32}, 1, comm, stream)) == 0
found["broadcast"] = host(own, 2)
assert done(acl.HcclScatter(parts, out, c_uint64(1), {FP32}, 0, comm, stream)) == 0
found["scatter"] = host(out, 1)
whole = device([rank + 1] * 3, ctypes.c_int32); total = device([0] * 3, ctypes.c_int32)
assert done(acl.HcclReduce(whole, total, c_uint64(3), {INT32}, {SUM}, 0, comm, stream)) == 0
found["reduce"] = host(total, 3, ctypes.c_int32)
peer = (rank + 1) % size
if rank == 0: assert done(acl.HcclSend(parts, c_uint64(2), {FP32}, 1, comm, stream)) == 0
if rank == 1: assert done(acl.HcclRecv(out, c_uint64(2), {FP32}, 0, comm, stream)) == 0
found["received"] = host(out, 2) if rank == 1 else []
assert acl.HcclCommDestroy(comm) == 0
print(json.dumps(found))
"""
    found = run_ranks(runtime, tmp_path, code, size=3)
    for rank, own in enumerate(found):
        assert isinstance(own, dict)
        assert own["all_reduce"] == [6.0, 30.0]
        assert own["all_gather"] == [1.0, 0.0, 2.0, 10.0, 3.0, 20.0]
        assert own["reduce_scatter"] == [20.0 + rank]
        assert own["all_to_all"] == [10.0 * sender + rank for sender in range(3)]
        assert own["broadcast"] == [2.0, 10.0]
        assert own["scatter"] == [float(rank)]
        assert own["reduce"] == ([6, 6, 6] if rank == 0 else [0, 0, 0])
        assert own["received"] == ([0.0, 1.0] if rank == 1 else [])


@pytest.mark.parametrize(
    ("kind", "bits", "total"),
    [
        # 1 + 2**-11 rounds to even in float16; 65504 + 65504 overflows; a subnormal number doubles.
        (FP16, (0x3C00, 0x1000), 0x3C00),
        (FP16, (0x7BFF, 0x7BFF), 0x7C00),
        (FP16, (0x0003, 0x0003), 0x0006),
        (FP16, (0x3C01, 0x1000), 0x3C02),
        # 1 + 2**-8 rounds to even in bfloat16, 1.0078125 + 2**-8 rounds up.
        (BF16, (0x3F80, 0x3B80), 0x3F80),
        (BF16, (0x3F81, 0x3B80), 0x3F82),
    ],
)
def test_sums_of_narrow_types_are_rounded_to_nearest_even(
    runtime: Path, tmp_path: Path, kind: int, bits: tuple[int, int], total: int
) -> None:
    code = f"""
own = device([{bits!r}[rank]], ctypes.c_uint16)
assert done(acl.HcclAllReduce(own, own, c_uint64(1), {kind}, {SUM}, comm, stream)) == 0
print(json.dumps(host(own, 1, ctypes.c_uint16)))
"""
    assert run_ranks(runtime, tmp_path, code) == [[total], [total]]


def test_a_collective_does_not_block_its_caller_and_events_wait_for_it(runtime: Path, tmp_path: Path) -> None:
    """Both ranks submit on two communicators' streams in opposite order, which would deadlock otherwise."""
    code = f"""
first, second = device([1.0]), device([2.0])
other = c_void_p(); acl.aclrtCreateStream(byref(other))
event, status = c_void_p(), c_int(-1); acl.aclrtCreateEvent(byref(event))
if rank == 0:
    acl.HcclRecv(first, c_uint64(1), {FP32}, 1, comm, stream)
    acl.aclrtRecordEvent(event, stream); acl.aclrtQueryEventStatus(event, byref(status))
    pending = c_int.in_dll(acl, "npu_sim_pending").value
    # The other stream waits for the event, and a copy on it sees what was received.
    acl.aclrtStreamWaitEvent(other, event)
    acl.HcclSend(second, c_uint64(1), {FP32}, 1, comm, stream)
else:
    import time; time.sleep(0.3)
    acl.HcclSend(first, c_uint64(1), {FP32}, 0, comm, stream)
    acl.HcclRecv(second, c_uint64(1), {FP32}, 0, comm, stream); pending = 1; status.value = 0
    acl.aclrtSynchronizeStream(stream)
read, n = (ctypes.c_float * 1)(), c_size_t(4)
assert acl.aclrtMemcpyAsync(read, n, first, n, 2, other) == 0
assert acl.aclrtSynchronizeDevice() == 0
acl.aclrtQueryEventStatus(event, byref(done_now := c_int()))
print(json.dumps([status.value, pending > 0, read[0], done_now.value, c_int.in_dll(acl, "npu_sim_pending").value]))
"""
    assert run_ranks(runtime, tmp_path, code)[0] == [0, True, 1.0, 1, 0]


@pytest.mark.parametrize("difference", ["counts", "collectives", "types", "gone"])
def test_ranks_that_disagree_fail_and_the_stream_stays_failed(
    runtime: Path, tmp_path: Path, difference: str
) -> None:
    calls = {
        "counts": f"acl.HcclAllReduce(own, own, c_uint64(1 + rank), {FP32}, {SUM}, comm, stream)",
        "types": f"acl.HcclAllReduce(own, own, c_uint64(2), {FP32} if rank else {INT32}, {SUM}, comm, stream)",
        "collectives": (
            f"acl.HcclAllReduce(own, own, c_uint64(2), {FP32}, {SUM}, comm, stream) if rank else "
            f"acl.HcclBroadcast(own, c_uint64(2), {FP32}, 0, comm, stream)"
        ),
        "gone": (
            f"acl.HcclCommDestroy(comm) if rank else "
            f"acl.HcclAllReduce(own, own, c_uint64(2), {FP32}, {SUM}, comm, stream)"
        ),
    }
    code = f"""
own = device([1.0] * 4)
assert ({calls[difference]}) == 0
errors = [acl.aclrtSynchronizeStream(stream) for _ in range(2)] if not (rank and {difference == "gone"}) else []
print(json.dumps(errors))
"""
    found = run_ranks(runtime, tmp_path, code)
    assert [507048, 507048] in found


def test_a_rank_that_never_comes_is_a_timeout(runtime: Path, tmp_path: Path) -> None:
    code = """
import ctypes, sys
acl = ctypes.CDLL("libascendcl.so")
root, comm = ctypes.create_string_buffer(4108), ctypes.c_void_p()
print(acl.HcclGetRootInfo(root), acl.HcclCommInitRootInfo(2, root, 0, ctypes.byref(comm)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_LIBRARY_PATH": str(runtime), "HCCL_CONNECT_TIMEOUT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["0", "9"]
    assert "could not connect to the other ranks" in done.stderr


def test_the_host_cannot_touch_device_memory_without_a_copy(runtime: Path) -> None:
    code = """
import ctypes, sys
acl = ctypes.CDLL("libascendcl.so"); acl.aclrtSetDevice(0)
p = ctypes.c_void_p(); assert acl.aclrtMalloc(ctypes.byref(p), ctypes.c_size_t(64), 0) == 0
address = p.value if sys.argv[1] == "device" else p.value & HOST_ADDRESS
ctypes.memset(address, 1, 1)
"""
    code = code.replace("HOST_ADDRESS", str(host_memory_address.HOST_ADDRESS))
    ends = [
        subprocess.run(
            [sys.executable, "-c", code, address],
            env={"LD_LIBRARY_PATH": str(runtime)},
            capture_output=True,
            timeout=60,
        ).returncode
        for address in ("host", "device")
    ]
    assert ends == [0, -signal.SIGSEGV]


def test_pointers_say_where_they_are(runtime: Path) -> None:
    code = """
import ctypes
acl = ctypes.CDLL("libascendcl.so"); acl.aclrtSetDevice(1)
device, pinned, plain = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(64)
n = ctypes.c_size_t(64); acl.aclrtMalloc(ctypes.byref(device), n, 0); acl.aclrtMallocHost(ctypes.byref(pinned), n)
def kind(pointer):
    found = (ctypes.c_uint32 * 7)(); assert acl.aclrtPointerGetAttributes(pointer, found) == 0
    return found[1], found[0] if found[1] == 1 else 0
inner = ctypes.c_void_p(device.value + 40)
print(kind(device), kind(inner), kind(pinned), kind(plain))
acl.aclrtHostRegister(plain, n, 0, ctypes.byref(ctypes.c_void_p())); print(kind(plain))
print(acl.aclrtHostUnregister(plain), acl.aclrtHostUnregister(plain), kind(plain))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_LIBRARY_PATH": str(runtime), "NPU_SIM_COUNT": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["(1, 1) (1, 1) (0, 0) (2, 0)", "(0, 0)", "0 107000 (2, 0)"], (
        done.stderr
    )
