"""Builds the simulated CANN runtime for an installed torch_npu, or reuses an earlier build."""

from __future__ import annotations

import contextlib
import functools
import json
import platform
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.devices.sim.runtime_build import cuda_stubs
from harness.devices.sim.runtime_build.cann_toolkit import CHECKS_FOLDER, CHECKS_LIBRARY, temporary_folder
from harness.devices.sim.runtime_build.compiler import compile_library, find_compiler, require_function_name
from harness.devices.sim.runtime_build.wheel_symbols import (
    RUNTIME_SONAME,
    Expectations,
    expectations,
    operator_functions,
)
from harness.digest import digest_json
from harness.errors import InfrastructureError, InputError, Location
from harness.package import data_folder

MANIFEST = "simulated-runtime.json"
STUB_ERROR = 107000

# torch_npu opens these when an operator is called. They exist, so that only the lookup of the operator fails,
# with an error that contains the operator's name.
OPENED_AT_CALL_TIME = (
    "libaclnn_math.so",
    "libaclnn_ops_infer.so",
    "libaclnn_ops_train.so",
    "libopapi.so",
    "libruntime.so",
)

_CHECKS = data_folder("devices/sim/runtime_build/checks")
_RUNTIME = data_folder("devices/sim/runtime_build/runtime")
_STUB = '#define SIM_STUB __attribute__((weak, visibility("default")))\n'
_BUILD_PREFIX = ".build-"
_ABANDONED_AFTER_S = 3600.0


def build_runtime(site_packages: Path, cache: Path, compiler: Sequence[str] | None = None) -> Path:
    """Build the runtime unless it exists, and return its folder, which belongs on LD_LIBRARY_PATH.

    site_packages: where torch and torch_npu are installed. Their files are read, but not imported. cache: the
    folder becomes `sim/DIGEST` in it; several processes may build at once. compiler: command of a C compiler,
    for example ("cc",); None searches one. InputError when torch_npu is missing, corrupt or built for another
    architecture. InfrastructureError without a working compiler or when the cache cannot be written.
    """
    expected = expectations(site_packages)
    if expected.machine != platform.machine():
        raise InputError(
            f"this torch_npu is built for {expected.machine}, this machine is {platform.machine()}",
            where=Location(site_packages),
            fix="run the cell on a machine of that architecture",
        )
    target = cache / "sim" / _digest(expected)
    if (target / RUNTIME_SONAME).is_file():
        return target
    command = tuple(compiler) if compiler else find_compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with temporary_folder(_BUILD_PREFIX, target.parent) as work:
            _build(expected, command, work)
            _build_checks(site_packages, command, work)
            _publish(work, target)
    except OSError as error:
        raise InfrastructureError(
            "the simulated runtime could not be stored",
            where=Location(target),
            why=str(error),
            fix="free disk space, or set NPU_MATRIX_CACHE to a writable folder",
        ) from error
    return target


@functools.cache
def _builder_digest() -> str:
    """Digest of the code that builds runtimes, computed once per process."""
    # Imported here because cells do not contain harness.code_graph. This function runs on the host only.
    from harness.code_graph.stored_facts import code_digest

    return code_digest(f"{__name__}:build_runtime")


def _digest(expected: Expectations) -> str:
    return digest_json(
        {
            "machine": expected.machine,
            "torch_npu": expected.torch_npu,
            "sonames": expected.sonames,
            "symbols": expected.symbols,
            "cuda": [expected.cuda.sonames, dict(expected.cuda.symbols)],
            "code": _builder_digest(),
        }
    )[:32]


def _build(expected: Expectations, compiler: Sequence[str], work: Path) -> None:
    stubs = work / "stubs.c"
    stubs.write_text(stub_source(expected.symbols), encoding="utf-8")
    compile_library(compiler, [*sorted(_RUNTIME.glob("*.c")), stubs], work / RUNTIME_SONAME)
    for name in {*expected.sonames, *OPENED_AT_CALL_TIME} - {RUNTIME_SONAME}:
        # All names are links to one library. The loader loads it once and finds each symbol by any name.
        (work / name).symlink_to(RUNTIME_SONAME)
    if expected.cuda.sonames:
        _build_absent_cuda(expected.cuda, compiler, work)
    manifest = {
        "schema": "npu-matrix/simulated-runtime/1",
        "simulated": True,
        "machine": expected.machine,
        "torch": expected.torch,
        "torch_npu": expected.torch_npu,
        "sonames": expected.sonames,
        "symbols": expected.symbols,
        "cuda": expected.cuda.sonames,
        "compiler": list(compiler),
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    work.chmod(0o755)


def _build_absent_cuda(absent: cuda_stubs.AbsentCuda, compiler: Sequence[str], work: Path) -> None:
    stubs, versions = work / "absent-cuda.c", work / "absent-cuda.map"
    stubs.write_text(cuda_stubs.absent_source(absent.symbols), encoding="utf-8")
    versions.write_text(cuda_stubs.version_script(absent.symbols), encoding="utf-8")
    compile_library(compiler, [cuda_stubs.SOURCE, stubs], work / cuda_stubs.LIBRARY, versions)
    for name in absent.sonames:
        (work / name).symlink_to(cuda_stubs.LIBRARY)


def _build_checks(site_packages: Path, compiler: Sequence[str], work: Path) -> None:
    """Build the library of operators that succeed and do nothing, which `refusals.check_server` loads."""
    folder = work / CHECKS_FOLDER
    folder.mkdir()
    stubs = folder / "operators.c"
    stubs.write_text(operator_source(sorted(operator_functions(site_packages))), encoding="utf-8")
    # The runtime, which has the counter, is linked like a source.
    sources = [*sorted(_CHECKS.glob("*.c")), stubs, work / RUNTIME_SONAME]
    compile_library(compiler, sources, folder / CHECKS_LIBRARY)


def stub_source(symbols: Iterable[str]) -> str:
    """C source of weak functions that return an error. The runtime's C files override some of them.

    In a process that only verifies calls (`dry.c`), they succeed and do nothing.
    """
    lines = []
    for name in symbols:
        require_function_name(name, "torch_npu")
        lines.append(f"SIM_STUB long {name}(void) {{ return npu_sim_dry ? {_dry(name)} : {STUB_ERROR}; }}\n")
    return f"extern int npu_sim_dry;\nstatic long sim_made;\n{_STUB}" + "".join(lines)


def operator_source(symbols: Iterable[str]) -> str:
    """C source of operators of CANN that succeed and do nothing, and of what torch_npu needs to call them."""
    lines = []
    for name in symbols:
        require_function_name(name, "torch_npu")
        counted = "npu_sim_reads++; " if name.startswith("aclGet") else ""
        lines.append(f"SIM_STUB long {name}(void) {{ {counted}return {_dry(name)}; }}\n")
    head = "#include <stdatomic.h>\nextern atomic_int npu_sim_reads;\nstatic long sim_made;\n"
    return head + _STUB + "".join(lines)


def _dry(name: str) -> str:
    """What a function returns that does nothing: a pointer if it creates something, else success."""
    return "(long)&sim_made" if re.match(r"aclCreate|aclopCreateAttr$", name) else "0"


def _publish(work: Path, target: Path) -> None:
    try:
        work.rename(target)
    except OSError:
        # Another process was faster. It built the same content.
        if not (target / RUNTIME_SONAME).is_file():
            raise


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(_BUILD_PREFIX + "*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
