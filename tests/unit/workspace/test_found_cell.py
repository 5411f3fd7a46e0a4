"""An environment is used as it was found: it is read and compared, and every difference is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.builds.cell.environment_judge import judge
from harness.builds.checks import as_found
from harness.builds.installed.found_python import (
    FoundPackage,
    FoundPython,
    changed_files,
    compared,
    found_python,
    read_found,
    why_other,
)
from harness.cell_program.built_environment import (
    CellDevice,
    EnvironmentBuilt,
    EnvironmentProbe,
    FailedImport,
    ProbedDevice,
)
from harness.cell_program.found_packages import ANSWER
from harness.devices.host.host_inspection import HostReport
from harness.errors import InputError
from harness.evidence import Runtime
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet, PlatformFacet
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Status
from harness.package import shipped_file
from harness.plan.tasks.check_registry import all_checks
from harness.workspace.planning.found_cell import AS_FOUND, left_out_as_found, with_found_stack

COMMIT = "796871d7f3d5f0d4f7e2a1b5c8d9e0f1a2b3c4d5"
FOUND = FoundPython(
    python="/usr/bin/python3",
    version="3.11.7",
    prefix="/usr",
    site_packages="/usr/lib/python3/site-packages",
    packages={
        "torch": FoundPackage(version="2.7.1+cpu", record="a"),
        "torch-npu": FoundPackage(version="2.7.1", record="b"),
        "verl": FoundPackage(version="0.7.0.dev0", record="c", commit=COMMIT, folder="/somewhere/verl"),
    },
)
PINS = PinsFacet(
    requirements=("torch==2.7.1", "torch-npu==2.7.1"),
    from_source=(PinnedSource(package="verl", version="0.7.0.dev0", commit=COMMIT),),
)
PLATFORM = PlatformFacet(python="3.11", arch="aarch64")
HOST = HostReport(
    npu=None,
    npu_error="",
    davinci=(),
    missing_nodes=(),
    cann="8.3.RC1",
    compiler="",
    git="",
    container_engines=(),
    cpus=1,
    machine="aarch64",
)


def test_what_is_installed_as_the_cell_has_it_differs_in_nothing() -> None:
    assert list(compared(FOUND, PINS, PLATFORM)) == []


@pytest.mark.parametrize(
    ("name", "package", "sentence"),
    [
        ("torch-npu", FoundPackage(version="2.7.1.post1", record=""), "the cell has torch-npu==2.7.1"),
        ("torch", None, "torch==2.7.1 is not installed"),
        ("torch", FoundPackage(version="2.7.1", record="", folder="/src"), "installed from the folder /src"),
        ("verl", FoundPackage(version="0.7.0.dev0", record=""), "nothing states its commit"),
        ("verl", FoundPackage(version="0.7.0.dev0", record="", commit="b" * 40), f"the cell has {COMMIT}"),
        (
            "verl",
            FoundPackage(version="0.7.0.dev0", record="", commit=f"{COMMIT}+changed"),
            "+changed; the cell has",
        ),
    ],
)
def test_each_difference_is_a_sentence(name: str, package: FoundPackage | None, sentence: str) -> None:
    packages = {key: one for key, one in FOUND.packages.items() if key != name}
    if package is not None:
        packages[name] = package
    (said,) = compared(replace(FOUND, packages=packages), PINS, PLATFORM)
    assert sentence in said


def test_another_python_is_a_difference() -> None:
    (said,) = compared(FOUND, PINS, PlatformFacet(python="3.10", arch="aarch64"))
    assert said == "Python is 3.11.7; the cell has 3.10."


def test_a_changed_file_is_named_and_changes_the_identity(tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = str(home / "bin" / "python")
    empty = read_found(python)
    site = Path(empty.site_packages)
    (site / "one-1.0.dist-info").mkdir(parents=True)
    (site / "one.py").write_text("x = 1\n")
    (site / "one-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: One\nVersion: 1.0\n")
    digest = "_YPBCBn0KVrwyfeKj3RCDcKiGWvQGuqZ0ykp-Iq9hUg"
    record = site / "one-1.0.dist-info" / "RECORD"
    record.write_text(f"one.py,sha256={digest},6\none-1.0.dist-info/RECORD,,\n")
    found = read_found(python)
    assert found.packages["one"].version == "1.0"
    assert found.identity != empty.identity
    (said,) = changed_files(found, ["one", "absent"])
    assert said == "Files of one are not those that were published: one.py."


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def put_package(site: Path, name: str, text: str) -> Path:
    """A package with one module, installed as an installer does it."""
    (site / f"{name}-1.0.dist-info").mkdir(parents=True)
    (site / f"{name}.py").write_text(text)
    metadata = site / f"{name}-1.0.dist-info" / "METADATA"
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    rows = []
    for file in (site / f"{name}.py", metadata):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
        rows.append(f"{file.relative_to(site)},sha256={digest},{file.stat().st_size}\n")
    (metadata.parent / "RECORD").write_text("".join(rows) + f"{metadata.parent.name}/RECORD,,\n")
    return site / f"{name}.py"


def test_an_edit_after_the_installation_changes_the_identity(image: Path) -> None:
    """Else outcomes of the environment before the edit count for the one after it."""
    site = site_of(image)
    module = put_package(site, "one", "x = 1\n")
    installed = read_found(str(image))
    assert dict(installed.deviations) == {}
    later = module.stat().st_mtime + 10
    module.write_text("x = 2\n")
    os.utime(module, (later, later))
    edited = read_found(str(image))
    assert list(edited.deviations) == [str(module)]
    assert str(module) in why_other(edited, installed.identity, installed.deviations)
    module.write_text("x = 3\n")
    os.utime(module, (later, later))
    again = read_found(str(image))
    assert len({installed.identity, edited.identity, again.identity}) == 3
    module.write_text("x = 1\n")
    assert read_found(str(image)).identity == installed.identity
    module.unlink()
    assert dict(read_found(str(image)).deviations) == {str(module): ""}


def test_a_file_that_no_package_brought_changes_the_identity(image: Path) -> None:
    site = site_of(image)
    put_package(site, "one", "x = 1\n")
    installed = read_found(str(image))
    (site / "__pycache__").mkdir()
    (site / "__pycache__" / "one.cpython-311.pyc").touch()
    assert read_found(str(image)).identity == installed.identity
    (site / "zz.pth").write_text("import sys\n")
    assert list(read_found(str(image)).deviations) == [str(site / "zz.pth")]


@pytest.mark.parametrize("committed", [True, False])
def test_each_edit_of_a_checkout_is_another_identity(image: Path, tmp_path: Path, committed: bool) -> None:
    """`pip install -e`: between two edits, neither RECORD nor the commit changes."""
    checkout = tmp_path / "verl"
    (checkout / "verl").mkdir(parents=True)
    module = checkout / "verl" / "a.py"
    module.write_text("x = 1\n")
    if committed:
        (checkout / ".gitignore").write_text("*.so\noutputs\n")
        git(checkout, "init", "-q")
        git(checkout, "add", ".")
        git(checkout, "commit", "-qm", "one")
    site = put_metadata(
        site_of(image), "verl-1.0.dist-info", "Metadata-Version: 2.1\nName: verl\nVersion: 1.0\n"
    )
    url = json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    (site / "verl-1.0.dist-info" / "direct_url.json").write_text(url)
    seen = [read_found(str(image)).identity]
    for text in ("x = 2\n", "x = 3\n"):
        module.write_text(text)
        found = read_found(str(image))
        assert str(module) in found.deviations
        seen.append(found.identity)
    # Built in place, and ignored by git.
    (checkout / "verl" / "kernel.so").write_bytes(b"\x7fELF")
    seen.append(read_found(str(image)).identity)
    assert len(set(seen)) == 4
    (checkout / "outputs").mkdir()
    (checkout / "outputs" / "checkpoint.bin").write_bytes(bytes(2 << 20))
    assert read_found(str(image)).identity == seen[-1]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The interpreter of an environment that somebody made; `put_metadata` installs packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    return tmp_path / "venv" / "bin" / "python"


def put_metadata(folder: Path, name: str, text: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "METADATA").write_text(text)
    return folder


def site_of(image: Path) -> Path:
    return Path(read_found(str(image)).site_packages)


TORCH_NPU = "Metadata-Version: 2.1\nName: torch_npu\nVersion: {}\n"


def test_what_the_environment_prints_itself_does_not_matter(image: Path) -> None:
    """Images greet in sitecustomize or in a .pth file."""
    site = put_metadata(site_of(image), "torch_npu-2.7.1.dist-info", TORCH_NPU.format("2.7.1"))
    (site / "sitecustomize.py").write_text(
        "import atexit\nprint('{\"a\": 1}')\natexit.register(print, 'bye')\n"
    )
    assert read_found(str(image)).packages["torch-npu"].version == "2.7.1"
    assert changed_files(read_found(str(image)), ["torch-npu"]) == [
        "torch-npu has no RECORD, so its files cannot be compared with what was published."
    ]


def test_remains_of_interrupted_installations_are_no_packages(image: Path) -> None:
    """pip leaves `~orch_npu-...` behind; an installation that was killed has no METADATA yet."""
    site = put_metadata(site_of(image), "~orch_npu-2.6.0.dist-info", TORCH_NPU.format("2.6.0"))
    (site / "verl-0.9.1.dist-info").mkdir()
    put_metadata(site, "torch-2.7.1.dist-info", "Name: torch\n")
    assert dict(read_found(str(image)).packages) == {}
    put_metadata(site, "torch_npu-2.7.1.dist-info", TORCH_NPU.format("2.7.1"))
    found = read_found(str(image)).packages
    assert [(name, one.version, one.others) for name, one in found.items()] == [("torch-npu", "2.7.1", ())]


def test_a_package_with_the_metadata_of_two_versions_is_a_difference(image: Path) -> None:
    site = put_metadata(site_of(image), "torch_npu-2.7.1.dist-info", TORCH_NPU.format("2.7.1"))
    put_metadata(site, "torch_npu-2.9.0.dist-info", TORCH_NPU.format("2.9.0"))
    said = " ".join(compared(read_found(str(image)), replace(PINS, from_source=()), PLATFORM))
    assert "torch-npu has the metadata of several versions" in said
    assert "2.7.1" in said
    assert "2.9.0" in said


def test_a_checkout_on_pythonpath_is_named_because_checks_do_not_import_it(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual way to work on verl in an image: PYTHONPATH=/workspace/verl."""
    (tmp_path / "work" / "verl").mkdir(parents=True)
    (tmp_path / "work" / "verl" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'work'}:{tmp_path / 'nowhere'}")
    put_metadata(site_of(image), "torch_npu-2.7.1.dist-info", TORCH_NPU.format("2.7.1"))
    found = read_found(str(image))
    assert dict(found.elsewhere) == {"verl": str(tmp_path / "work")}
    said = " ".join(compared(found, PINS, PLATFORM))
    assert f"verl is also in {tmp_path / 'work'}" in said
    host = replace(HOST, cann="8.3.RC1")
    stack = with_found_stack(load_matrix(shipped_file("matrix.yaml")), found, host).stacks[AS_FOUND]
    assert ["verl is in" in note for note in stack.notes] == [True]


def _installed(site: Path, name: str, file: str, text: str) -> Path:
    """A package with one file, as an installer writes it: RECORD last."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    info = put_metadata(site, f"{name}-1.0.dist-info", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (site / file).write_text(text)
    (info / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{file},sha256={digest},\n")
    return site / file


def _later(path: Path) -> None:
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 60))


def test_files_that_were_changed_after_the_installation_are_known_when_a_run_is_planned(image: Path) -> None:
    site = site_of(image)
    patched, touched = (_installed(site, name, f"{name}.py", "x = 1\n") for name in ("verl", "vllm"))
    patched.write_text("x = 2\n")
    for path in (patched, touched):
        _later(path)
    found = read_found(str(image)).packages
    assert found["verl"].changed == (str(patched),)
    assert found["vllm"].changed == ()


@pytest.mark.parametrize(
    ("package", "why"),
    [
        (FoundPackage(version="0.9.1", record="", changed=("verl/core.py",)), "verl/core.py"),
        (FoundPackage(version="0.9.1", record="", folder="/src/verl"), "nothing states the commit"),
        (
            FoundPackage(
                version="0.9.1",
                record="",
                folder="/src/verl",
                commit=f"{COMMIT}+changed",
                changed=("/src/verl/x.py",),
            ),
            "/src/verl/x.py",
        ),
    ],
)
def test_of_a_patched_environment_the_device_is_measured_and_nothing_is_said_of_the_rest(
    package: FoundPackage, why: str
) -> None:
    found = replace(FOUND, packages={**FOUND.packages, "verl": package})
    matrix = with_found_stack(load_matrix(shipped_file("matrix.yaml")), found, HOST)
    stack = matrix.stacks[AS_FOUND]
    assert "verl" not in stack.axes
    assert stack.axes["torch_npu"] == "2.7.1"
    assert why in " ".join(stack.notes)
    left_out = left_out_as_found(matrix, found, all_checks())
    assert why in left_out["loss"]
    assert not {"environment", "device-sample", "collectives"} & left_out.keys()


def test_what_a_version_tells_is_checked_whole() -> None:
    matrix = load_matrix(shipped_file("matrix.yaml"))
    assert left_out_as_found(matrix, FOUND, all_checks()) == {}
    # Every check imports torch, so a changed torch is a failure of the environment.
    torch = replace(FOUND.packages["torch"], changed=("torch/x.py",))
    changed = replace(FOUND, packages={**FOUND.packages, "torch": torch})
    assert "torch" in with_found_stack(matrix, changed, HOST).stacks[AS_FOUND].axes


def test_only_the_environment_needs_nothing_else() -> None:
    changed = [check.name for check in all_checks() if as_found(check) != check]
    assert changed == ["environment"]
    assert as_found(next(check for check in all_checks() if check.name == "environment")).needs == ()


def test_the_stack_has_the_versions_of_the_environment_and_the_host() -> None:
    host = HOST
    matrix = with_found_stack(load_matrix(shipped_file("matrix.yaml")), FOUND, host)
    axes = matrix.stack_cell(AS_FOUND).axes
    assert (axes["torch"], axes["torch_npu"], axes["cann"]) == ("2.7.1", "2.7.1", "8.3.RC1")
    assert (axes["python"], axes["device"]) == ("3.11", "npu")
    assert axes["verl"] == f"0.7.0.dev0@{COMMIT}"
    with pytest.raises(InputError, match="no package that the matrix names"):
        with_found_stack(matrix, replace(FOUND, packages={}), host)


def test_an_interpreter_that_does_not_exist_is_bad_input() -> None:
    with pytest.raises(InputError, match="no Python 'nothing-here'"):
        found_python({"NPU_MATRIX_FOUND_PYTHON": "nothing-here", "PATH": "/usr/bin"})


def _measured(*differences: str, **modules: FailedImport) -> EnvironmentBuilt:
    device = ProbedDevice(
        kind="npu", available=True, count=1, sum_of_ones=4.0, runtime=Runtime.CANN, cann="8.3.RC1"
    )
    return EnvironmentBuilt(
        requested_device=CellDevice(kind="npu", cann="8.3.RC1", engine="found", found=FOUND.identity),
        python=FOUND.python,
        prefix=FOUND.prefix,
        runtime="",
        site_packages=FOUND.site_packages,
        digest=FOUND.identity,
        reused=False,
        expected={"torch": "2.7.1+cpu"},
        left_out={},
        built_here=(),
        patched={},
        # It has more packages than the cell names: that is no difference.
        probe=EnvironmentProbe(
            packages={"torch": "2.7.1", "pip": "24"}, files={}, modules=modules, device=device
        ),
        seconds={},
        differences=differences,
    )


def test_a_difference_or_an_import_that_fails_is_red() -> None:
    assert judge(_measured(), {}).status is Status.PASS
    assert judge(_measured("torch 2.8 is installed."), {}).status is Status.FAIL
    failed = judge(_measured(verl=FailedImport(error="ImportError: x", traceback="", seconds=0.1)), {})
    assert (failed.status, failed.reasons) == (Status.FAIL, ("`import verl` fails: ImportError: x",))


def test_the_program_needs_only_the_standard_library() -> None:
    program = Path(__file__).parents[3] / "harness/cell_program/found_packages.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.partition(ANSWER)[2])["version"] == ".".join(map(str, sys.version_info[:3]))
