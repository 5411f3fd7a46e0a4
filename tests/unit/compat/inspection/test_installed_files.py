"""Real environments made with uv: files against RECORD, requirements, and shared libraries."""

import base64
import hashlib
import json
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.compat.inspection.environments import (
    PROGRAM,
    folder_installation,
    installed_inventory,
    interpreter_installation,
)
from harness.compat.inspection.file_faults import FaultKind, compare_files
from harness.compat.inspection.installed_requirements import (
    is_near,
    unsatisfied_requirements,
    wrong_platforms,
)
from harness.compat.inspection.library_faults import compare_libraries
from harness.compat.inspection.stated_packages import SourceKind
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.errors import InputError
from harness.sources.packages.index_settings import uv_binary

REQUEST = ResolveRequest(
    requirements=(), overrides=(), from_source=(), indexes={}, python="3.11", arch="x86_64", host=True
)


def build_wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, bytes],
    requires: tuple[str, ...] = (),
    algorithm: str = "sha256",
) -> Path:
    """A wheel with these files."""
    info = f"{name}-{version}.dist-info"
    metadata = "".join(
        [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            *(f"Requires-Dist: {r}\n" for r in requires),
        ]
    )
    members = {
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},{algorithm}="
        f"{base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in members.items()
    )
    place = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as archive:
        for path, data in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(path, data)
    return place


def make_environment(folder: Path, *wheels: Path) -> Path:
    """A virtual environment with these wheels, without their dependencies."""
    uv = uv_binary()
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin/python"
    install(python, *wheels)
    return python


def install(python: Path, *wheels: Path) -> None:
    """Install wheels without their dependencies."""
    arguments = ["--no-deps", "--offline", "--python", str(python), "--link-mode", "copy"]
    subprocess.run([uv_binary(), "pip", "install", "-q", *arguments, *map(str, wheels)], check=True)


def opened(python: Path):
    installation = interpreter_installation(python)
    inventory, distributions = installed_inventory(installation, SourceKind.ENVIRONMENT)
    return installation, inventory, distributions


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Two packages that belong together."""
    lower = build_wheel(tmp_path, "lower", "1.0", {"lower/__init__.py": b"A = 1\n", "lower/data.txt": b"d\n"})
    upper = build_wheel(
        tmp_path, "upper", "2.0", {"upper/__init__.py": b"import lower\n"}, ("lower>=1,<2", "x; extra == 'e'")
    )
    return make_environment(tmp_path / "venv", lower, upper)


def site_of(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python3.*/site-packages"))


def test_a_consistent_environment_is_clean(environment: Path) -> None:
    installation, inventory, distributions = opened(environment)
    assert {"lower": "1.0", "upper": "2.0"}.items() <= {
        name: one.version for name, one in inventory.packages.items()
    }.items()
    found = compare_files(installation, distributions)
    assert found.faults == ()
    assert found.compared >= 3
    assert list(unsatisfied_requirements(distributions, REQUEST)) == []
    assert compare_libraries(installation, distributions).faults == ()


def test_the_same_environment_is_read_without_its_interpreter(environment: Path) -> None:
    _installation, inventory, _distributions = opened(environment)
    other, _ = installed_inventory(folder_installation(environment.parent.parent), SourceKind.ENVIRONMENT)
    assert other.packages.keys() == inventory.packages.keys()
    assert inventory.python.startswith(other.python)


def test_an_altered_file(environment: Path) -> None:
    (site_of(environment) / "lower/__init__.py").write_bytes(b"A = 2\n")
    installation, _, distributions = opened(environment)
    (fault,) = compare_files(installation, distributions).faults
    assert (fault.kind, fault.package, fault.path) == (FaultKind.ALTERED, "lower", "lower/__init__.py")
    assert fault.is_code


def test_a_removed_file(environment: Path) -> None:
    (site_of(environment) / "lower/data.txt").unlink()
    installation, _, distributions = opened(environment)
    (fault,) = compare_files(installation, distributions).faults
    assert (fault.kind, fault.path, fault.is_code) == (FaultKind.MISSING, "lower/data.txt", False)


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_other_digests_are_compared(tmp_path: Path, algorithm: str) -> None:
    wheel = build_wheel(tmp_path, "one", "1.0", {"one.py": b"A = 1\n"}, algorithm=algorithm)
    python = make_environment(tmp_path / "venv", wheel)
    record = site_of(python) / "one-1.0.dist-info/RECORD"
    assert algorithm in record.read_text()
    (site_of(python) / "one.py").write_bytes(b"A = 2\n")
    installation, _, distributions = opened(python)
    assert [fault.kind for fault in compare_files(installation, distributions).faults] == [FaultKind.ALTERED]


def test_a_package_that_lies_over_another(tmp_path: Path) -> None:
    vendor = build_wheel(tmp_path, "triton_ascend", "3.2.0", {"triton/__init__.py": b"ascend = 1\n"})
    mainline = build_wheel(tmp_path, "triton", "3.6.0", {"triton/__init__.py": b"cuda = 1\n"})
    python = make_environment(tmp_path / "venv", vendor)
    install(python, mainline)
    installation, _, distributions = opened(python)
    (fault,) = compare_files(installation, distributions).faults
    assert (fault.kind, fault.package, fault.by) == (FaultKind.OVERWRITTEN, "triton-ascend", "triton 3.6.0")


def test_a_record_does_not_lead_out_of_the_environment(environment: Path) -> None:
    record = site_of(environment) / "lower-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "../../../../../../../../etc/passwd,sha256=AAAA,1\n")
    installation, _, distributions = opened(environment)
    assert [fault.kind for fault in compare_files(installation, distributions).faults] == [FaultKind.OUTSIDE]


def test_a_wrong_version_and_a_missing_package(tmp_path: Path) -> None:
    upper = build_wheel(tmp_path, "upper", "2.0", {"upper.py": b""}, ("lower<2", "absent"))
    lower = build_wheel(tmp_path, "lower", "2.1", {"lower.py": b""})
    _, _, distributions = opened(make_environment(tmp_path / "venv", upper, lower))
    assert sorted(map(str, unsatisfied_requirements(distributions, REQUEST))) == [
        "upper 2.0 requires absent, but it is not installed",
        "upper 2.0 requires lower<2, but lower 2.1 is installed",
    ]


@pytest.mark.parametrize(
    ("package", "specifier", "installed", "near"),
    [
        ("triton-ascend", "==3.2.0", "3.2.1", True),
        ("triton-ascend", "==3.2.2", "3.2.1", True),
        ("torch-npu", "==2.8.0.post2", "2.8.0", True),
        ("torch-npu", "==2.8", "2.8.0.post1", True),
        ("torch-npu", "==2.7.1", "2.7.0", False),
        ("torch", "==2.7.1", "2.7.0", False),
        ("torch", "==2.4.0", "2.6.0", False),
        ("transformers", "==5.5.4", "5.7.0", False),
        ("transformers", "==5.5.*", "5.6.0", False),
        ("transformers", "<5", "5.0.0", False),
        ("transformers", ">=4.57.1,==4.57.3", "4.57.0", False),
        ("numpy", "!=1.26.1", "1.26.1", False),
        ("numpy", "==1.26.1", "", False),
        ("numpy", "==1!1.26.1", "1.26.1", False),
        ("numpy", "", "1.26.1", False),
    ],
)
def test_a_release_beside_the_required_one(package: str, specifier: str, installed: str, near: bool) -> None:
    assert is_near(package, specifier, installed) is near


def test_a_wheel_for_another_python(environment: Path) -> None:
    wheel = site_of(environment) / "lower-1.0.dist-info/WHEEL"
    wheel.write_text("Wheel-Version: 1.0\nTag: cp310-cp310-manylinux_2_28_aarch64\n")
    _, _, distributions = opened(environment)
    assert any("lower 1.0" in text for text in wrong_platforms(distributions, "3.11", "x86_64"))
    assert list(wrong_platforms(distributions, "3.10", "aarch64")) == []


def test_code_of_the_environment_is_not_run(environment: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (site_of(environment) / "run.pth").write_text(f"import pathlib; pathlib.Path({str(seen)!r}).touch()\n")
    (site_of(environment) / "sitecustomize.py").write_text(f"open({str(seen)!r}, 'w')\n")
    opened(environment)
    assert not seen.exists()


def test_a_program_that_is_no_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with pytest.raises(InputError, match="not a Python interpreter"):
        interpreter_installation(program)


CC = shutil.which("cc") or shutil.which("gcc")


def compile_library(place: Path, source: str, *arguments: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    code = place.with_suffix(".c")
    code.write_text(source)
    subprocess.run([str(CC), "-shared", "-fPIC", "-o", str(place), str(code), *arguments], check=True)
    code.unlink()


@pytest.mark.skipif(CC is None, reason="no C compiler")
class TestLibraries:
    """Shared libraries that were compiled here."""

    @pytest.fixture
    def site(self, environment: Path) -> Path:
        site = site_of(environment)
        compile_library(
            site / "lower/libgives.so", "int given(void) { return 1; }", "-Wl,-soname,libgives.so"
        )
        compile_library(
            site / "upper/_native.abi3.so",
            "int given(void); int use(void) { return given(); }",
            f"-L{site / 'lower'}",
            "-lgives",
        )
        return site

    def faults(self, site: Path):
        installation = folder_installation(site)
        _, distributions = installed_inventory(installation, SourceKind.ENVIRONMENT)
        return compare_libraries(installation, distributions)

    def test_libraries_that_belong_together(self, site: Path) -> None:
        found = self.faults(site)
        assert found.faults == ()
        assert found.compared == 2

    def test_a_symbol_that_nobody_gives(self, site: Path) -> None:
        compile_library(
            site / "lower/libgives.so", "int other(void) { return 1; }", "-Wl,-soname,libgives.so"
        )
        (fault,) = self.faults(site).faults
        assert fault.symbols == ("given",)
        assert fault.path == "upper/_native.abi3.so"
        assert fault.certain

    def test_a_library_that_nobody_gives(self, site: Path) -> None:
        (site / "lower/libgives.so").unlink()
        (fault,) = self.faults(site).faults
        assert fault.library == "libgives.so"

    def test_a_version_that_the_library_does_not_have(self, site: Path, tmp_path: Path) -> None:
        script = tmp_path / "versions"
        source = "int given(void) { return 1; }"
        script.write_text("NEW_2 { given; };\n")
        script_argument = f"-Wl,--version-script={script},-soname,libgives.so"
        compile_library(site / "lower/libgives.so", source, script_argument)
        compile_library(
            site / "upper/_native.abi3.so",
            "int given(void); int use(void) { return given(); }",
            f"-L{site / 'lower'}",
            "-lgives",
        )
        assert self.faults(site).faults == ()
        script.write_text("OLD_1 { given; };\n")
        compile_library(site / "lower/libgives.so", source, script_argument)
        assert [fault.needs_version for fault in self.faults(site).faults] == ["NEW_2"]

    def test_a_symbol_of_libtorch_is_missing_although_cann_is_not_here(self, site: Path) -> None:
        for name in ("libc10", "libtorch_cpu"):
            compile_library(site / f"torch/lib/{name}.so", "int x;", f"-Wl,-soname,{name}.so")
        compile_library(site / "cann/libascendcl.so", "int acl;", "-Wl,-soname,libascendcl.so")
        source = (
            "int _ZN3c103newEv(void); int atbOnly(void); int f(void) { return _ZN3c103newEv() + atbOnly(); }"
        )
        compile_library(
            site / "torch_npu/_C.abi3.so", source, f"-L{site / 'cann'}", "-Wl,--no-as-needed", "-lascendcl"
        )
        shutil.rmtree(site / "cann")
        found = self.faults(site)
        assert [fault.symbols for fault in found.faults] == [("_ZN3c103newEv",)]
        assert found.faults[0].of == "torch"
        assert "libascendcl.so" in found.unread[0]


def test_site_packages_that_the_interpreter_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under -S, Debian's site.getsitepackages names no folder of a virtual environment."""
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    packages = tmp_path / "venv" / "lib" / f"python{minor}" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("include-system-site-packages = false\n", "utf-8")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setattr(site, "getsitepackages", lambda _prefixes: [])
    exec(compile(PROGRAM, "program", "exec"), {})
    assert json.loads(capsys.readouterr().out)["sites"] == [str(packages)]
