from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.devices.sim.runtime_build import compiler
from harness.devices.sim.runtime_build import runtime_library as build_module
from harness.devices.sim.runtime_build.cann_toolkit import CHECKS_FOLDER, CHECKS_LIBRARY
from harness.devices.sim.runtime_build.runtime_library import (
    MANIFEST,
    build_runtime,
    operator_source,
    stub_source,
)
from harness.devices.sim.runtime_build.wheel_symbols import expectations
from harness.errors import InfrastructureError, InputError


def run_on(runtime: Path, code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_LIBRARY_PATH": str(runtime), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def runtime(pretended: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runtime(pretended, tmp_path_factory.mktemp("cache"))


def test_expectations_name_what_nobody_provides(pretended: Path) -> None:
    expected = expectations(pretended)
    assert expected.sonames == ("libascendcl.so", "libhccl.so")
    assert expected.symbols == ("HcclDoIt", "aclInit", "aclUnknownThing")
    assert expected.torch_npu == "2.13.0"


def test_torch_npu_loads_on_the_runtime(pretended: Path, runtime: Path) -> None:
    library = pretended / "torch_npu/lib/libtorch_npu.so"
    torch = pretended / "torch/lib"
    code = f"""
import ctypes
ctypes.CDLL({str(torch / "libtorch_x.so")!r}, ctypes.RTLD_GLOBAL)
print(ctypes.CDLL({str(library)!r}).use())
"""
    # from_torch returns 1, aclInit and own 0, and two stubs fail with 107000.
    assert run_on(runtime, code) == str(1 + 2 * 107000)


def test_the_sentinel_is_found_through_every_name(runtime: Path) -> None:
    names = sorted(path.name for path in runtime.glob("lib*.so"))
    assert {"libascendcl.so", "libhccl.so", "libopapi.so"} <= set(names)
    code = f"import ctypes\nprint([ctypes.CDLL(n).npu_sim_sentinel() for n in {names!r}])"
    assert run_on(runtime, code) == str([1] * len(names))


LOOKS_UP = """
#include <dlfcn.h>
static void *library;
int open_it(void) { library = dlopen("libopapi.so", RTLD_LAZY); return library != 0; }
int has(const char *name) { return dlsym(library, name) != 0; }
"""


def test_operators_that_do_nothing_are_found_in_a_library_that_was_opened_before(
    compile_c, runtime: Path, tmp_path: Path
) -> None:
    """torch_npu 2.9.0 opens it when it is imported, and refuses lists of groups if it finds no operator."""
    looks_up = compile_c(LOOKS_UP, tmp_path / "torch_npu/lib/libtorch_npu.so")
    other = compile_c(LOOKS_UP, tmp_path / "other/lib/libother.so")
    code = f"""
import ctypes
for name in {[str(looks_up), str(other)]!r}:
    library = ctypes.CDLL(name)
    assert library.open_it()
names = [b"aclnnInlined", b"aclNothing", b"other"]
looks_up, other = (ctypes.CDLL(name) for name in {[str(looks_up), str(other)]!r})
found = [[looks_up.has(name) for name in names]]
checks = ctypes.CDLL({str(runtime / CHECKS_FOLDER / CHECKS_LIBRARY)!r})
assert checks.npu_sim_lead_lookups_here() > 0
found += [[library.has(name) for name in names] for library in (looks_up, other)]
print(found)
"""
    assert run_on(runtime, code) == str([[0, 0, 0], [1, 0, 0], [0, 0, 0]])


def test_a_stub_is_no_sentinel(compile_c, tmp_path: Path) -> None:
    compile_c("int aclInit(void){return 0;}", tmp_path / "libascendcl.so")
    assert (
        run_on(
            tmp_path,
            "from harness.devices.sim.start.sim_probe import is_simulated; print(is_simulated())",
            PYTHONPATH=str(Path.cwd()),
        )
        == "False"
    )


def test_facts_come_from_the_runtime(runtime: Path) -> None:
    code = "import json\nfrom dataclasses import asdict\nfrom harness.devices.sim.start.sim_probe import device_facts\nprint(json.dumps(asdict(device_facts())))"
    facts = json.loads(
        run_on(
            runtime,
            code,
            PYTHONPATH=str(Path.cwd()),
            NPU_SIM_SOC="Ascend910_9391",
            NPU_SIM_CANN="8.3.RC1.alpha002",
            NPU_SIM_COUNT="3",
        )
    )
    assert facts["simulated"] is True
    assert facts["soc"] == "Ascend910_9391"
    assert facts["cann"] == "8.3.RC1.alpha002"
    assert facts["count"] == 3


def test_facts_without_a_runtime() -> None:
    code = "from harness.devices.sim.start.sim_probe import device_facts as f\nx = f()\nprint(x.simulated, x.count, x.soc == '')"
    assert run_on(Path("/nonexistent"), code, PYTHONPATH=str(Path.cwd())) == "False 0 True"


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("0", 1), ("1,3", 2), ("2,9,1", 1), ("-1", 0), ("x", 0), ("0,1,2,3", 4)],
)
def test_visible_devices(runtime: Path, visible: str | None, count: int) -> None:
    code = """
import ctypes
n = ctypes.c_uint32(9)
acl = ctypes.CDLL("libascendcl.so")
error = acl.aclrtGetDeviceCount(ctypes.byref(n))
print(n.value, error != 0, [acl.aclrtSetDevice(i) for i in range(-1, n.value + 1)])
"""
    environment = {"NPU_SIM_COUNT": "4"} | ({} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible})
    usable = [107001] + [0] * count + [107001]
    assert run_on(runtime, code, **environment) == f"{count} {count == 0} {usable}"


def test_memory_is_limited_and_given_back(runtime: Path) -> None:
    code = """
import ctypes
acl = ctypes.CDLL("libascendcl.so")
acl.aclrtSetDevice(0)
free, total, p, q = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_void_p()
def left():
    acl.aclrtGetMemInfo(1, ctypes.byref(free), ctypes.byref(total)); return free.value
malloc = lambda x, n: acl.aclrtMalloc(ctypes.byref(x), ctypes.c_size_t(n), 0)
start = left()
print(malloc(p, 700 << 20), malloc(q, 700 << 20), malloc(q, (1 << 64) - 1), start - left() >= 700 << 20)
acl.aclrtSetDevice(1); print(malloc(q, 700 << 20)); acl.aclrtFree(p); acl.aclrtSetDevice(0)
print(left() == start == total.value == 1 << 30)
"""
    out = run_on(runtime, code, NPU_SIM_MEMORY_GB="1", NPU_SIM_COUNT="2").split()
    assert out == ["0", "207001", "207001", "True", "0", "True"]


def test_memory_accounting_survives_threads(runtime: Path) -> None:
    code = """
import ctypes, threading
acl = ctypes.CDLL("libascendcl.so")
def work():
    acl.aclrtSetDevice(0)
    for _ in range(300):
        p = ctypes.c_void_p()
        assert acl.aclrtMalloc(ctypes.byref(p), ctypes.c_size_t(4096), 0) == 0
        acl.aclrtFree(p)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
free, total = ctypes.c_size_t(), ctypes.c_size_t()
acl.aclrtGetMemInfo(1, ctypes.byref(free), ctypes.byref(total)); print(free.value == total.value)
"""
    assert run_on(runtime, code) == "True"


def test_virtual_memory_keeps_what_was_written_until_it_is_freed(runtime: Path) -> None:
    code = """
import ctypes
acl = ctypes.CDLL("libascendcl.so"); acl.aclrtSetDevice(0)
size = ctypes.c_size_t(4 << 20)
p, h = ctypes.c_void_p(), ctypes.c_void_p()
print(acl.aclrtReserveMemAddress(ctypes.byref(p), size, 0, None, 0), acl.aclrtMallocPhysical(ctypes.byref(h), size, None, 0))
print(acl.aclrtMapMem(p, size, 0, h, 0), acl.aclrtMemset(p, size, 7, ctypes.c_size_t(100)))
print(acl.aclrtUnmapMem(p), acl.aclrtUnmapMem(p), acl.aclrtMapMem(p, size, 0, h, 0))
read = ctypes.create_string_buffer(1); one = ctypes.c_size_t(1)
print(acl.aclrtMemcpy(read, one, p, one, 2), read.raw == b"\\x07")
print(acl.aclrtUnmapMem(p), acl.aclrtFreePhysical(h), acl.aclrtReleaseMemAddress(p), acl.aclrtReleaseMemAddress(p))
"""
    out = run_on(runtime, code).split()
    assert out == ["0", "0", "0", "0", "0", "107000", "0", "0", "True", "0", "0", "0", "107000"]


@pytest.mark.parametrize(
    ("environment", "codes"),
    [
        ({}, [0, 0, 0]),
        ({"NPU_SIM_SYNC_FAIL": "2"}, [0, 507015, 507015]),
        ({"NPU_SIM_SYNC_FAIL": "1:507054"}, [507054, 507054, 507054]),
        ({"NPU_SIM_HANG": "2:0.01"}, [0, 0, 0]),
    ],
)
def test_synchronising_can_fail(runtime: Path, environment: dict[str, str], codes: list[int]) -> None:
    code = """
import ctypes
acl = ctypes.CDLL("libascendcl.so")
print([acl.aclrtSynchronizeStream(None) for _ in range(3)])
"""
    assert run_on(runtime, code, **environment) == str(codes)


def test_a_hang_ends_with_a_timeout_or_not_at_all(runtime: Path) -> None:
    code = 'import ctypes\nacl = ctypes.CDLL("libascendcl.so")\nprint(acl.{})'
    waited = code.format("aclrtSynchronizeStreamWithTimeout(None, 20)")
    assert run_on(runtime, waited, NPU_SIM_HANG="1") == "507046"
    process = subprocess.Popen(
        [sys.executable, "-c", code.format("aclrtSynchronizeDevice()")],
        env={"LD_LIBRARY_PATH": str(runtime), "NPU_SIM_HANG": "1"},
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.kill()
    process.wait()


def test_trace_names_the_calls(runtime: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", 'import ctypes; ctypes.CDLL("libascendcl.so").aclInit(None)'],
        env={"LD_LIBRARY_PATH": str(runtime), "NPU_SIM_TRACE": "1"},
        capture_output=True,
        text=True,
    )
    assert "[npu-sim] aclInit" in done.stderr


def test_the_log_header_is_an_empty_string_of_the_old_abi(runtime: Path) -> None:
    """Compiled extensions of vllm-ascend 0.11.0 read it while they load."""
    code = """
import ctypes
acl = ctypes.CDLL("libascendcl.so")
header = acl._ZN12ErrorManager12GetLogHeaderEv
header.restype = ctypes.POINTER(ctypes.c_char_p)
acl._Z10DlogRecordiiPKcz(57, 3, b"%s", b"text")
print(header()[0], acl._Z13CheckLogLevelii(57, 3))
"""
    assert run_on(runtime, code) == "b'' 0"


def test_the_same_content_is_built_once(pretended: Path, tmp_path: Path) -> None:
    first = build_runtime(pretended, tmp_path)
    stamp = (first / "libascendcl.so").stat().st_mtime_ns
    # The second call does not start the compiler, which does not exist.
    assert build_runtime(pretended, tmp_path, ("no-such-compiler",)) == first
    assert (first / "libascendcl.so").stat().st_mtime_ns == stamp
    assert json.loads((first / MANIFEST).read_text())["simulated"] is True


def test_other_expectations_are_another_runtime(pretended: Path, tmp_path: Path) -> None:
    other = tmp_path / "lib" / "python3.11" / "site-packages"
    shutil.copytree(pretended, other)
    (other / "torch_npu-2.13.0.dist-info").rename(other / "torch_npu-2.13.1.dist-info")
    assert build_runtime(pretended, tmp_path).name != build_runtime(other, tmp_path).name


def test_builders_at_the_same_time_agree(pretended: Path, tmp_path: Path) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(build_runtime(pretended, tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert [path.name for path in (tmp_path / "sim").iterdir()] == [results[0].name]


def test_a_failed_build_leaves_nothing(pretended: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="failed with exit code"):
        build_runtime(pretended, tmp_path, ("false",))
    with pytest.raises(InfrastructureError, match="cannot be started"):
        build_runtime(pretended, tmp_path, ("no-such-compiler",))
    assert list((tmp_path / "sim").iterdir()) == []


def test_an_abandoned_build_is_removed(pretended: Path, tmp_path: Path) -> None:
    folder = build_runtime(pretended, tmp_path)
    shutil.rmtree(folder)
    (tmp_path / "sim" / ".build-abandoned").mkdir()
    os.utime(tmp_path / "sim" / ".build-abandoned", (0, 0))
    assert build_runtime(pretended, tmp_path) == folder
    assert (folder / "libascendcl.so").is_file()
    assert not (tmp_path / "sim" / ".build-abandoned").exists()


def test_without_torch_npu_it_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="torch_npu is not installed"):
        build_runtime(tmp_path, tmp_path / "cache")


def test_a_corrupt_library_is_bad_input(pretended: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(pretended, site)
    library = site / "torch_npu/lib/libtorch_npu.so"
    library.write_bytes(library.read_bytes()[:700])
    with pytest.raises(InputError, match="cannot be read"):
        build_runtime(site, tmp_path / "cache")


def test_another_architecture_is_refused(
    pretended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module.platform, "machine", lambda: "riscv64")
    with pytest.raises(InputError, match="this machine is riscv64"):
        build_runtime(pretended, tmp_path)


def test_without_a_compiler_the_error_says_what_to_install(
    pretended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InfrastructureError) as caught:
        build_runtime(pretended, tmp_path)
    assert f"{sys.executable} -m pip install ziglang" in str(caught.value)


def test_the_wheel_compiler_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda _name: object())
    assert compiler.find_compiler({"PATH": str(tmp_path)}) == (sys.executable, "-m", "ziglang", "cc")
    named = tmp_path / "mycc"
    named.touch(0o755)
    assert compiler.find_compiler({"PATH": str(tmp_path), "CC": "mycc -O0"}) == ("mycc", "-O0")
    (tmp_path / "gcc").touch(0o755)
    assert compiler.find_compiler({"PATH": str(tmp_path)}) == (str(tmp_path / "gcc"),)


def test_a_symbol_that_is_no_c_name_is_refused() -> None:
    assert "long aclX(void)" in stub_source(["aclX"])
    for source in (stub_source, operator_source):
        with pytest.raises(InputError, match="cannot be a C function"):
            source(["evil(){}"])


def test_every_source_file_counts_for_the_digest() -> None:
    sources = {path.name for path in (Path(build_module.__file__).parent / "runtime").iterdir()}
    assert {
        "config.c",
        "device.c",
        "error_manager.c",
        "memory.c",
        "sim.h",
        "stream.c",
        "virtual.c",
    } <= sources


def test_ctypes_reads_the_runtime_in_process(runtime: Path) -> None:
    assert ctypes.CDLL(str(runtime / "libascendcl.so")).npu_sim_sentinel() == 1
