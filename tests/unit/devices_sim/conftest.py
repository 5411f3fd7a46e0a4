"""Compiles small shared objects and a fake installation of torch_npu."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_c() -> Compile:
    if COMPILER is None:
        pytest.skip("there is no C compiler on this machine")

    def build(source: str, output: Path, *flags: str) -> Path:
        output.parent.mkdir(parents=True, exist_ok=True)
        file = output.with_suffix(".c")
        file.write_text(source)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(output), str(file), *flags], check=True)
        file.unlink()
        return output

    return build


@pytest.fixture(scope="session")
def pretended(compile_c: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """site-packages with a torch_npu that needs a missing CANN, and a torch that defines one symbol."""
    site = tmp_path_factory.mktemp("env") / "lib" / "python3.11" / "site-packages"
    elsewhere = tmp_path_factory.mktemp("cann")
    torch = compile_c(
        "int from_torch(void){return 1;}", site / "torch/lib/libtorch_x.so", "-Wl,-soname,libtorch_x.so"
    )
    missing = [
        compile_c(
            f"int {name}_anchor(void){{return 0;}}", elsewhere / f"lib{name}.so", f"-Wl,-soname,lib{name}.so"
        )
        for name in ("ascendcl", "hccl")
    ]
    compile_c(
        """
        #include <stdlib.h>
        int from_torch(void); int aclInit(const char *); int aclUnknownThing(void); int HcclDoIt(void);
        int own(void) { return 0; }
        int use(void) { free(malloc(1)); return from_torch() + aclInit(0) + aclUnknownThing() + HcclDoIt() + own(); }
        """,
        site / "torch_npu/lib/libtorch_npu.so",
        *("-Wl,--no-as-needed", *map(str, missing), str(torch), "-Wl,--unresolved-symbols=ignore-all"),
    )
    for name in ("torch-2.13.0+cpu", "torch_npu-2.13.0"):
        (site / f"{name}.dist-info").mkdir()
    return site
