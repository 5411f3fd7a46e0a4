"""Builds the simulated CANN runtime for one installed torch_npu, once per content."""

from __future__ import annotations

import contextlib
import functools
import json
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.devices.sim.runtime_build import cuda_stubs
from harness.devices.sim.runtime_build.compiler import compile_library, find_compiler, require_function_name
from harness.devices.sim.runtime_build.wheel_symbols import RUNTIME_SONAME, Expectations, expectations
from harness.digest import digest_json
from harness.errors import InfrastructureError, InputError, Location
from harness.package import data_folder

MANIFEST = "simulated-runtime.json"
STUB_ERROR = 107000

# torch_npu opens these itself when an operator is called. Opening must succeed, so that what fails is
# the look-up of the operator, with an error that names it.
OPENED_AT_CALL_TIME = (
    "libaclnn_math.so",
    "libaclnn_ops_infer.so",
    "libaclnn_ops_train.so",
    "libopapi.so",
    "libruntime.so",
)

_RUNTIME = data_folder("devices/sim/runtime_build/runtime")
_BUILD_PREFIX = ".build-"
_ABANDONED_AFTER_S = 3600.0


def build_runtime(site_packages: Path, cache: Path, compiler: Sequence[str] | None = None) -> Path:
    """Folder with libascendcl.so and its other names, to be put on LD_LIBRARY_PATH.

    site_packages: where torch and torch_npu are installed; they are read, never imported.
    cache: the folder `sim/<digest>/` appears in; safe with several builders at once.
    compiler: command of a C compiler, e.g. ("cc",); found when None.
    InputError when torch_npu is not there, corrupt or of another architecture; InfrastructureError without a
    working compiler or a folder to write to.
    """
    expected = expectations(site_packages)
    if expected.machine != platform.machine():
        raise InputError(
            f"this torch_npu is built for {expected.machine}, this machine is {platform.machine()}",
            where=Location(site_packages),
            fix="simulate the cell on a machine of its own architecture",
        )
    place = cache / "sim" / _digest(expected)
    if (place / RUNTIME_SONAME).is_file():
        return place
    command = tuple(compiler) if compiler else find_compiler()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place.parent)
        work = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=place.parent))
    except OSError as error:
        raise InfrastructureError(
            "the cache folder cannot be written",
            where=Location(cache),
            why=str(error),
            fix="free space or set NPU_MATRIX_CACHE to a folder that can be written",
        ) from error
    try:
        _build(expected, command, work)
        _publish(work, place)
    except OSError as error:
        raise InfrastructureError(
            "the simulated runtime could not be stored",
            where=Location(place),
            why=str(error),
            fix="free space or set NPU_MATRIX_CACHE to a folder that can be written",
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


@functools.cache
def _builder_digest() -> str:
    """Digest of the code that builds runtimes, as this process first found it."""
    # Imported only on the host: cells have the runtime, but not the package that reads code.
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
        # One library under all names: the loader knows it by its inode, and a symbol that is looked up
        # through any of the names is found.
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


def stub_source(symbols: Iterable[str]) -> str:
    """C text of weak functions that fail; the functional runtime overrides those it implements."""
    lines = []
    for name in symbols:
        require_function_name(name, "torch_npu")
        lines.append(f"SIM_STUB int {name}(void) {{ return {STUB_ERROR}; }}\n")
    return '#define SIM_STUB __attribute__((weak, visibility("default")))\n' + "".join(lines)


def _publish(work: Path, place: Path) -> None:
    try:
        work.rename(place)
    except OSError:
        # Somebody else was first; what they built has the same content.
        if not (place / RUNTIME_SONAME).is_file():
            raise


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(_BUILD_PREFIX + "*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
