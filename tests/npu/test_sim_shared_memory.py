"""Device memory that several processes use, as verl sends weights to its engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.devices.sim.start.sim_environment import LAUNCHER  # noqa: E402

pytestmark = [
    pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device"),
    pytest.mark.timeout(300),
]

PROGRAM = """
import os, sys, torch, torch_npu, torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

def receive(queue, answers):
    rebuild, arguments = queue.get()
    part = rebuild(*arguments)
    whole = queue.get()
    answers.put((part.tolist(), whole.sum().item()))
    part.mul_(2)
    whole.add_(1)
    torch.npu.synchronize()
    answers.put("written")
    queue.get()

if __name__ == "__main__":
    if not hasattr(torch_npu._C, "_share_npu_"):
        print("no sharing")
        sys.exit()
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(queue, answers))
    child.start()
    x = torch.arange(6.0, device="npu")
    neighbour, whole = torch.full((6,), 7.0, device="npu"), torch.ones(1024, 1024, device="npu")
    queue.put(reduce_tensor(x[2:]))
    queue.put(whole)
    print(*answers.get(timeout=200), answers.get(timeout=200))
    print(x.tolist(), neighbour.tolist(), whole.min().item(), whole.max().item())
    queue.put(None)
    child.join()
    print(child.exitcode)
"""


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_another_process_reads_and_writes_a_tensor_and_not_its_neighbour(
    tmp_path: Path, allocator: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *LAUNCHER, str(tmp_path / "program.py")],
        env={**os.environ, "PYTORCH_NPU_ALLOC_CONF": allocator, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = [line for line in done.stdout.splitlines() if "ASCEND_HOME_PATH" not in line]
    if lines == ["no sharing"]:
        pytest.skip("this release of torch_npu shares no memory between processes")
    assert lines == [
        "[2.0, 3.0, 4.0, 5.0] 1048576.0 written",
        "[0.0, 1.0, 4.0, 6.0, 8.0, 10.0] [7.0, 7.0, 7.0, 7.0, 7.0, 7.0] 2.0 2.0",
        "0",
    ], done.stderr[-2000:]


KEYS = """
import ctypes, os, subprocess, sys, torch
from harness.evidence import runtime_library
runtime = runtime_library()
key, found = ctypes.create_string_buffer(65), ctypes.c_void_p()
if len(sys.argv) > 1:
    torch.npu.init()
    found = runtime.aclrtIpcMemImportByKey(ctypes.byref(found), sys.argv[1].encode(), ctypes.c_uint64(0))
    print(found)
    sys.exit()
x = torch.ones(3, device="npu")
pointer = ctypes.c_void_p(x.data_ptr())
print(runtime.aclrtIpcMemGetExportKey(ctypes.c_void_p(x.data_ptr() + 512), ctypes.c_size_t(12), key, ctypes.c_size_t(65), ctypes.c_uint64(1)))
print(runtime.aclrtIpcMemGetExportKey(pointer, ctypes.c_size_t(12), key, ctypes.c_size_t(65), ctypes.c_uint64(1)))
print(key.value.decode())
print(runtime.aclrtIpcMemClose(key), runtime.aclrtIpcMemClose(key))
"""


def test_keys_of_nothing_and_of_ended_programs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(KEYS)

    def run(*arguments: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, *LAUNCHER, str(tmp_path / "program.py"), *arguments],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=140,
            check=True,
        )
        return [line for line in done.stdout.splitlines() if "ASCEND_HOME_PATH" not in line]

    of_the_middle, exported, key, closed = run()
    assert (of_the_middle, exported, closed) == ("107000", "0", "0 107000")
    assert run(key) == ["107000"]
    assert run("npu-sim:1:0; anything") == ["107000"]
