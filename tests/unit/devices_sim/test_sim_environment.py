from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cell_program.built_environment import CellDevice
from harness.devices.sim.faults.fault_spec import parse_faults
from harness.devices.sim.start.sim_environment import LAUNCHER, simulated_environment
from harness.devices.sim.start.sim_launch import parse_program
from harness.errors import InputError


def test_the_device_facet_reaches_the_process() -> None:
    environment = simulated_environment(
        Path("/cache/sim/abc"), CellDevice(kind="sim", soc="Ascend910_9391", cann="8.3.RC1", count=2)
    )
    assert environment["LD_LIBRARY_PATH"] == "/cache/sim/abc"
    assert environment["NPU_SIM_SOC"] == "Ascend910_9391"
    assert environment["NPU_SIM_CANN"] == "8.3.RC1"
    assert environment["NPU_SIM_COUNT"] == "2"
    assert "NPU_SIM_FAULTS" not in environment
    assert "NPU_SIM_MEMORY_GB" not in environment


def test_defaults_and_extras() -> None:
    environment = simulated_environment(
        Path("/r"), CellDevice(kind="sim", memory_gb=1.5), faults=[{"op": "mm", "kind": "sign"}]
    )
    assert environment["NPU_SIM_SOC"] == "Ascend910B3"
    assert environment["NPU_SIM_MEMORY_GB"] == "1.5"
    assert json.loads(environment["NPU_SIM_FAULTS"]) == [{"op": "mm", "kind": "sign"}]
    assert parse_faults(environment["NPU_SIM_FAULTS"])[0].kind == "sign"


def test_a_path_the_loader_would_split_is_refused() -> None:
    with pytest.raises(InputError, match="colon"):
        simulated_environment(Path("/a:b"), CellDevice(kind="sim"))


def test_programs_of_the_launcher() -> None:
    module = parse_program(["-m", "pkg.mod", "-x", "--out", "f"])
    assert (module.target, module.is_module, module.arguments) == ("pkg.mod", True, ("-x", "--out", "f"))
    script = parse_program(["run.py", "-m"])
    assert (script.target, script.is_module, script.arguments) == ("run.py", False, ("-m",))
    for arguments in ([], ["-m"], ["--help"]):
        with pytest.raises(InputError):
            parse_program(arguments)


def launched(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *LAUNCHER, *arguments],
        env={"PYTHONPATH": str(Path.cwd()), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_a_runtime_the_launcher_fails_with_a_message() -> None:
    done = launched("-m", "this")
    assert done.returncode == 4
    assert "finds no libascendcl.so" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_real_runtime_is_refused(compile_c, tmp_path: Path) -> None:
    compile_c("int aclInit(const char *p){return 0;}", tmp_path / "libascendcl.so")
    done = launched("-m", "this", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 4
    assert "this is a real CANN runtime: simulated evidence refused" in done.stderr
    assert done.stdout == ""


def test_bad_usage_of_the_launcher() -> None:
    done = launched()
    assert done.returncode == 2
    assert "usage:" in done.stderr
    done = launched("absent.py")
    assert done.returncode == 2
    assert "there is no script 'absent.py'" in done.stderr


def test_host_modules_need_no_torch() -> None:
    code = (
        "import sys, harness.devices.sim.start.sim_environment, harness.devices.sim.runtime_build.runtime_library, harness.devices.sim.start.sim_probe,"
        " harness.devices.sim.faults.fault_spec, harness.devices.sim.start.sim_launch\n"
        "print(sorted(m for m in ('torch', 'torch_npu', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
