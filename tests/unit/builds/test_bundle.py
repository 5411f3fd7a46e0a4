from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import harness
from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.builds.cell.interpreter import fetch_interpreter, find_interpreter
from harness.cell_program.built_environment import CellDevice, EnvironmentLocation
from harness.code_graph.reachable_code import MISSING, WHOLE, CodeGraph
from harness.errors import InfrastructureError
from harness.plan.keys.code_digests import check_nodes, simulator_nodes
from harness.plan.tasks.check_registry import all_checks

SOURCE = Path(harness.__file__).parent


def test_a_bundle_holds_what_runs_in_cells_and_nothing_of_the_host(tmp_path: Path) -> None:
    bundle = make_bundle(SOURCE, tmp_path)
    rooms = {path.name for path in (bundle / "harness").iterdir() if path.is_dir()}
    assert rooms == {
        "cell_program",
        "convergence",
        "devices",
        "fixtures",
        "numerics",
        "rollout",
        "upstream_tests",
    }
    assert {path.name for path in (bundle / "harness/devices").iterdir()} == {"__init__.py", "sim"}
    assert not list(bundle.rglob("*.pyc"))
    assert list(bundle.rglob("*.c"))


def test_programs_of_cells_reach_nothing_outside_the_bundle(tmp_path: Path) -> None:
    """The programs are those that in-cell checks refer to: with `-m`, as plugins, in configurations.

    Seen to fail without `evidence.py` in the bundle.
    """
    bundle = make_bundle(SOURCE, tmp_path) / "harness"
    graph, checks = CodeGraph(SOURCE), all_checks()
    nodes = check_nodes(graph, checks)
    reached = simulator_nodes(graph).union(*(nodes[check.name] for check in checks if check.device))
    programs = {module for kind, module, _name in reached if kind == WHOLE}
    in_cells = {module for module in programs if (bundle / graph.file(module).relative_to(SOURCE)).is_file()}
    assert programs - in_cells == {
        "harness.builds.engines.container_run",
        "harness.run.programs.supervise",
    }, "programs outside the bundle can run on the host only: if this one does, add it here"
    # The host compiles the simulated device.
    in_cells = {module for module in in_cells if not module.startswith("harness.devices.sim.runtime_build.")}
    assert len(in_cells) > 30
    # No check starts the pytest plugin: users and tests/npu do.
    in_cells.add("harness.fixtures.plugin")
    missing = [node for node in CodeGraph(bundle).reach(in_cells) if node[0] == MISSING]
    assert not missing, "add these modules or data files to the bundle, or do not use them in cells"


def edit_module(bundle: Path) -> None:
    target = bundle / "harness/digest.py"
    target.chmod(0o644)
    target.write_text("raise SystemExit\n")


def swap_module(bundle: Path) -> None:
    target = bundle / "harness/digest.py"
    target.rename(bundle.parent / "digest.py")
    target.symlink_to(bundle.parent / "digest.py")


def compile_something_else(bundle: Path) -> None:
    folder = bundle / "harness/__pycache__"
    folder.mkdir()
    (folder / "digest.cpython-311.pyc").write_bytes(b"something else")


@pytest.mark.parametrize(
    "attack",
    [
        edit_module,
        swap_module,
        compile_something_else,
        lambda bundle: (bundle / "sitecustomize.py").write_text(""),
        lambda bundle: (bundle / "digest.py").write_text(""),
        lambda bundle: (bundle / "harness/added.py").write_text(""),
        lambda bundle: (bundle / "harness/errors.py").unlink(),
    ],
)
def test_a_bundle_that_was_changed_is_made_again(tmp_path: Path, attack: Callable[[Path], object]) -> None:
    def content() -> dict[str, bytes]:
        files = [path for path in bundle.rglob("*") if path.is_file()]
        return {str(path.relative_to(bundle)): path.read_bytes() for path in files}

    bundle = make_bundle(SOURCE, tmp_path)
    before = content()
    attack(bundle)
    assert content() != before or (bundle / "harness/digest.py").is_symlink()
    assert make_bundle(SOURCE, tmp_path) == bundle
    assert content() == before
    assert not (bundle / "harness/digest.py").is_symlink()


def test_the_same_content_is_the_same_folder_and_a_change_another(tmp_path: Path) -> None:
    copy = tmp_path / "harness"
    first = make_bundle(SOURCE, tmp_path / "cache")
    for path in (first / "harness").rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(first / "harness")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert make_bundle(copy, tmp_path / "cache") == first
    (copy / "numerics/added.py").write_text("ANSWER = 1\n")
    assert make_bundle(copy, tmp_path / "cache") != first


def test_several_makers_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: make_bundle(SOURCE, tmp_path), range(4)))
    assert len(places) == 1
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == [next(iter(places)).name]


def test_an_unwritable_cache_is_said(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("in the way")
    with pytest.raises(InfrastructureError) as caught:
        make_bundle(SOURCE, tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_modules_of_the_bundle_run_with_nothing_else_on_the_path(tmp_path: Path) -> None:
    bundle = make_bundle(SOURCE, tmp_path / "cache")
    environment = EnvironmentLocation(
        python=sys.executable, prefix=sys.prefix, requested_device=CellDevice(kind="cpu")
    )
    out = tmp_path / "probe.json"
    argv, variables = cell_command(
        environment, bundle, "harness.fixtures.environment_probe", ["--out", str(out), "--device", "cpu"]
    )
    done = subprocess.run(argv, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert out.is_file()


def test_a_simulated_cell_starts_through_the_launcher_with_its_runtime(tmp_path: Path) -> None:
    environment = EnvironmentLocation(
        python="/c/bin/python",
        prefix="/c",
        runtime="/r",
        requested_device=CellDevice(kind="sim", soc="Ascend910B3", cann="8.5.0", count=2),
    )
    argv, variables = cell_command(environment, tmp_path, "harness.numerics.loss.loss_program", ["--x"])
    assert argv == [
        "/c/bin/python",
        "-m",
        "harness.devices.sim.start.sim_launch",
        "-m",
        "harness.numerics.loss.loss_program",
        "--x",
    ]
    assert variables["LD_LIBRARY_PATH"] == "/r"
    real = replace(environment, runtime="", requested_device=CellDevice(kind="npu"))
    argv, variables = cell_command(real, tmp_path, "harness.numerics.loss.loss_program")
    assert argv == ["/c/bin/python", "-m", "harness.numerics.loss.loss_program"]
    assert "LD_LIBRARY_PATH" not in variables


def test_a_shim_without_a_python_behind_it_is_not_taken(tmp_path: Path) -> None:
    shims, good = tmp_path / "shims", tmp_path / "good"
    for folder, text in (
        (shims, "#!/bin/sh\necho 'command not found' >&2\nexit 127\n"),
        (good, "#!/bin/sh\necho 3.99.1\n"),
    ):
        folder.mkdir()
        (folder / "python3.99").write_text(text)
        (folder / "python3.99").chmod(0o755)
    environ = {"PATH": f"{shims}:{good}", "HOME": str(tmp_path)}
    assert find_interpreter("3.99", environ) == (str(good / "python3.99"), "3.99.1")
    assert find_interpreter("3.99.1", environ) == (str(good / "python3.99"), "3.99.1")
    assert find_interpreter("3.99.2", environ) is None
    assert find_interpreter("3.98", environ) is None


def test_this_interpreters_version_needs_no_search() -> None:
    found = find_interpreter(f"{sys.version_info.major}.{sys.version_info.minor}", {"PATH": ""})
    assert found is not None
    assert Path(found[0]).exists()


def test_a_python_that_nobody_has_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    why = fetch_interpreter("3.99", {})
    assert isinstance(why, str)
    assert "3.99" in why
