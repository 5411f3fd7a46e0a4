"""A CUDA build of torch without the NVIDIA libraries loads and finds no device."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.devices.sim.runtime_build.cuda_stubs import absent_cuda, absent_source, version_script
from harness.devices.sim.runtime_build.runtime_library import build_runtime
from harness.errors import InputError

CUDA_RUNTIME = """
int cudaGetDeviceCount(int *n){*n = 8; return 0;}
int cudaMalloc(void **p, unsigned long n){(void)p; (void)n; return 0;}
void **__cudaRegisterFatBinary(void *b){(void)b; return 0;}
int cudaGetDriverEntryPointByVersion(const char *s, void **f, unsigned v, unsigned long long g, void *q) {
    (void)s; (void)v; (void)g; (void)q; *f = 0; return 0;
}
"""
TORCH = """
int cudaGetDeviceCount(int *); int cudaMalloc(void **, unsigned long); void **__cudaRegisterFatBinary(void *);
int ncclGetVersion(int *); int from_torch(void);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, void *);
static void **handle;
__attribute__((constructor)) static void load(void) { handle = __cudaRegisterFatBinary(0); }
int devices(void) { int n = 9; int error = cudaGetDeviceCount(&n); return 1000 * error + n; }
int registered(void) { return handle != 0; }
int driver(void) {
    void *f = (void *)1;
    int error = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &f, 12000, 0, 0);
    return f ? -1 : error;
}
int use(void) { void *p; return cudaMalloc(&p, 8); }
int speak(void) { int n; return ncclGetVersion(&n) + from_torch(); }
"""


ALLOCATOR = """
struct list { void *buckets; unsigned long count; void *first; unsigned long size; char rest[24]; };
extern struct list keys __asm__("_ZZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig7getKeysB5cxx11EvE4keys");
extern long filled __asm__("_ZGVZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig7getKeysB5cxx11EvE4keys");
struct list keys;
long filled;
int registered_options(void) {
    if (!filled) { keys.size = 7; filled = 1; }
    return keys.first ? -1 : (int)keys.size;
}
"""


@pytest.fixture(scope="session")
def cuda_build(pretended: Path, compile_c, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """site-packages whose torch needs a versioned CUDA runtime and an unversioned NCCL; both are missing."""
    site = tmp_path_factory.mktemp("cuda") / "lib" / "python3.11" / "site-packages"
    shutil.copytree(pretended, site)
    elsewhere = tmp_path_factory.mktemp("vendor")
    script = elsewhere / "map"
    script.write_text("libcudart.so.12 { global: *; };")
    cudart = compile_c(
        CUDA_RUNTIME,
        elsewhere / "libcudart.so.12",
        "-Wl,-soname,libcudart.so.12",
        f"-Wl,--version-script={script}",
    )
    nccl = compile_c(
        "int ncclGetVersion(int *v){*v = 1; return 0;}",
        elsewhere / "libnccl.so.2",
        "-Wl,-soname,libnccl.so.2",
    )
    compile_c(
        TORCH,
        site / "torch/lib/libtorch_python.so",
        *("-Wl,--no-as-needed", str(cudart), str(nccl), str(site / "torch/lib/libtorch_x.so")),
    )
    return site


def call(site: Path, runtime: Path, function: str) -> subprocess.CompletedProcess[str]:
    folder = site / "torch/lib"
    code = f"""
import ctypes
ctypes.CDLL({str(folder / "libtorch_x.so")!r}, ctypes.RTLD_GLOBAL)
print(ctypes.CDLL({str(folder / "libtorch_python.so")!r}, ctypes.RTLD_GLOBAL).{function}())
"""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_LIBRARY_PATH": str(runtime)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_torch_asks_of_nvidia_is_read_from_its_libraries(cuda_build: Path, pretended: Path) -> None:
    absent = absent_cuda(cuda_build)
    assert absent.sonames == ("libcudart.so.12", "libnccl.so.2")
    assert absent.symbols == {
        "__cudaRegisterFatBinary": "libcudart.so.12",
        "cudaGetDeviceCount": "libcudart.so.12",
        "cudaGetDriverEntryPointByVersion": "libcudart.so.12",
        "cudaMalloc": "libcudart.so.12",
        "ncclGetVersion": "",
    }
    assert absent_cuda(pretended).sonames == ()


def test_vendor_libraries_that_are_there_are_used(cuda_build: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(cuda_build, site)
    for name in ("nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/nccl/lib/libnccl.so.2"):
        (site / name).parent.mkdir(parents=True)
        (site / name).touch()
    assert absent_cuda(site).sonames == ()


def test_libraries_that_lack_more_than_cuda_are_ignored(cuda_build: Path, compile_c, tmp_path: Path) -> None:
    """torchaudio has optional libraries for sox and ffmpeg, which are not loaded if these are missing."""
    site = tmp_path / "site"
    shutil.copytree(cuda_build, site)
    sox = compile_c("int sox_init(void){return 0;}", tmp_path / "libsox.so", "-Wl,-soname,libsox.so")
    compile_c(
        "int sox_init(void); int load(void){return sox_init();}",
        site / "torchaudio/lib/libtorchaudio_sox.so",
        *("-Wl,--no-as-needed", str(sox)),
    )
    absent = absent_cuda(site)
    assert absent == absent_cuda(cuda_build)


def test_torch_loads_and_finds_no_device(cuda_build: Path, tmp_path: Path) -> None:
    runtime = build_runtime(cuda_build, tmp_path)
    # 1000 * cudaErrorNoDevice (100) + 0 devices.
    assert call(cuda_build, runtime, "devices").stdout.strip() == "100000"
    assert call(cuda_build, runtime, "registered").stdout.strip() == "1"


def test_the_lookup_of_the_driver_reports_that_there_is_no_device(cuda_build: Path, tmp_path: Path) -> None:
    """Since 2.14, torch does this to test whether a stream is being captured. An error means "no"."""
    assert call(cuda_build, build_runtime(cuda_build, tmp_path), "driver").stdout.strip() == "100"


def test_cuda_registers_no_options_of_its_allocator(cuda_build: Path, compile_c, tmp_path: Path) -> None:
    """torch_npu registers an option with the same name, and two options of one name end the process."""
    allocator = compile_c(ALLOCATOR, tmp_path / "libc10_cuda.so")
    runtime = build_runtime(cuda_build, tmp_path)
    outputs = []
    for first in ((), (runtime / "libcudart.so.12",)):
        code = "import ctypes\n" + "".join(
            f"ctypes.CDLL({str(path)!r}, ctypes.RTLD_GLOBAL)\n" for path in first
        )
        code += f"print(ctypes.CDLL({str(allocator)!r}).registered_options())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        outputs.append(done.stdout.strip())
    assert outputs == ["7", "0"]


@pytest.mark.parametrize(("function", "name"), [("use", "cudaMalloc"), ("speak", "ncclGetVersion")])
def test_what_would_compute_ends_the_process_with_its_name(
    cuda_build: Path, tmp_path: Path, function: str, name: str
) -> None:
    done = call(cuda_build, build_runtime(cuda_build, tmp_path), function)
    assert done.returncode < 0
    assert f"{name} was called: this environment has no CUDA" in done.stderr


def test_a_torch_without_cuda_gets_no_stand_ins(pretended: Path, cuda_build: Path, tmp_path: Path) -> None:
    plain, with_cuda = build_runtime(pretended, tmp_path), build_runtime(cuda_build, tmp_path)
    assert plain != with_cuda
    assert not list(plain.glob("*cuda*"))


def test_generated_sources() -> None:
    symbols = {"cudaGetDeviceCount": "libcudart.so.12", "cudaMalloc": "libcudart.so.12", "ncclSend": ""}
    source = absent_source(symbols)
    assert "ABSENT(cudaMalloc)" in source
    assert "ABSENT(ncclSend)" in source
    assert "ABSENT(cudaGetDeviceCount)" not in source, "cuda.c defines this function"
    assert version_script(symbols) == "libcudart.so.12 { global: cudaGetDeviceCount; cudaMalloc; };\n"
    with pytest.raises(InputError, match="cannot be a C function"):
        absent_source({"evil(){}": ""})
