from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest
import tomllib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from harness.compat.resolve.replaced_requirements import (
    ReleaseMetadata,
    contradicting_requirements,
    replaced_requirement,
    required_extras,
    target_environment,
    violated_requirements,
)
from harness.sources.packages.index_settings import uv_binary

HOST = target_environment(f"{sys.version_info.major}.{sys.version_info.minor}", "x86_64", host=True)
ASCEND = target_environment("3.11", "aarch64", host=False)
VERSIONS = (
    "2.7.1",
    "2.7.1+cpu",
    "2.7.1.post1",
    "2.7.1.post1+git4c901a4",
    "2.7.1.dev20250724",
    "2.7.1rc1",
    "2.8.0",
    "2.8.0.post2",
    "2.10.0",
    "1!2.7.1",
)
Installed = Mapping[str, tuple[str, Sequence[str]]]


def violated(requirement: str, version: str, environment: Mapping[str, str] = ASCEND) -> bool:
    return bool(violated_requirements([requirement], {"torch": version}, environment))


@pytest.mark.parametrize(
    ("requirement", "version", "wrong"),
    [
        ("torch==2.7.1", "2.7.1+cpu", False),
        ("torch==2.7.1+cpu", "2.7.1", True),
        ("torch==2.7.1", "2.7.1.post1", True),
        ("torch==2.7.1.*", "2.7.1.post1", False),
        ("torch>=2.7.1", "2.7.1.dev20250724", True),
        ("torch>=2.7", "2.7.1.dev20250724", False),
        ("torch<2.8", "2.8.0rc1", True),
        ("torch>2.7.1", "2.7.1.post1", True),
        ("Torch", "2.7.1rc1", False),
        ("torch==2.8.0; platform_machine == 'x86_64'", "2.7.1", False),
        ("torch==2.8.0; platform_machine == 'aarch64' and sys_platform == 'linux'", "2.7.1", True),
        ("torch==2.8.0; extra == 'gpu'", "2.7.1", False),
        ("torch==2.8.0; python_full_version < '3.11.1'", "2.7.1", True),
    ],
)
def test_requirements_are_compared_as_installers_do(requirement: str, version: str, wrong: bool) -> None:
    assert violated(requirement, version) is wrong


def test_a_missing_package_violates_its_requirement_and_extras_are_evaluated() -> None:
    requires = ["ray>=2", "torch==2.8.0; extra == 'gpu'", "not a requirement !"]
    found = violated_requirements(requires, {"torch": "2.7.1"}, ASCEND, {"gpu"})
    assert [str(one).partition(";")[0] for one in found] == ["ray>=2", "torch==2.8.0"]
    assert required_extras(["verl[gpu]==1", "VERL[vllm]"]) == {"verl": {"gpu", "vllm"}}


def test_a_replacement_keeps_extras_and_marker() -> None:
    replacements = {"torch": SpecifierSet("==2.7.1"), "ray": SpecifierSet()}
    assert replaced_requirement("torch[a]==2.8.0; python_version > '3'", replacements) == (
        'torch[a]==2.7.1; python_version > "3"'
    )
    assert replaced_requirement("Ray @ https://example.org/ray.whl", replacements) == "Ray"
    assert replaced_requirement("numpy<2", replacements) == "numpy<2"
    assert replaced_requirement("not a requirement !", replacements) == "not a requirement !"


def test_the_replaced_metadata_is_an_entry_of_uvs_settings() -> None:
    release = ReleaseMetadata(
        name="vllm",
        version="0.11.0",
        requires=("torch==2.8.0", 'ray>=2; extra == "more"'),
        requires_python=">=3.9",
    )
    table = release.with_replacements({"torch": SpecifierSet()}).uv_table()
    assert tomllib.loads(table)["dependency-metadata"] == [
        {
            "name": "vllm",
            "version": "0.11.0",
            "requires-dist": ["torch", 'ray>=2; extra == "more"'],
            "requires-python": ">=3.9",
            "provides-extra": ["more"],
        }
    ]


@pytest.fixture(scope="module")
def pip_check(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Installed], bool]:
    """Whether `uv pip check` accepts an environment with these packages: name -> version, requirements."""
    folder = tmp_path_factory.mktemp("oracle")
    uv = uv_binary()
    subprocess.run(
        [uv, "venv", "--quiet", "--python", sys.executable, "--no-project", "venv"], cwd=folder, check=True
    )
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")

    def check(installed: Installed) -> bool:
        for old in packages.glob("*.dist-info"):
            shutil.rmtree(old)
        for name, (version, requires) in installed.items():
            info = packages / f"{name}-{version}.dist-info"
            info.mkdir()
            lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
            (info / "METADATA").write_text("\n".join(("Metadata-Version: 2.1", *lines, "")))
            (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            (info / "RECORD").write_text("")
        python = folder / "venv" / "bin" / "python"
        done = subprocess.run([uv, "pip", "check", "--python", python], capture_output=True, check=False)
        return done.returncode == 0

    return check


@st.composite
def specifiers(draw: st.DrawFn) -> str:
    operator = draw(st.sampled_from(["==", "!=", ">=", "<=", ">", "<", "~="]))
    version = draw(st.sampled_from(VERSIONS))
    if operator not in ("==", "!="):
        version = version.partition("+")[0]
    return operator + version


MARKERS = st.sampled_from(
    ["", "; python_version >= '3'", "; sys_platform == 'win32'", "; extra == 'x'", "; os_name == 'posix'"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    version=st.sampled_from(VERSIONS),
    parts=st.lists(specifiers(), min_size=1, max_size=2),
    marker=MARKERS,
    name=st.sampled_from(["torch", "Torch", "absent"]),
)
def test_violations_are_those_of_uv_pip_check(
    pip_check: Callable[[Installed], bool], version: str, parts: list[str], marker: str, name: str
) -> None:
    requirement = f"{name}{','.join(parts)}{marker}"
    found = violated_requirements([requirement], {"torch": version, "vllm": "1"}, HOST)
    assert bool(found) is not pip_check({"torch": (version, ()), "vllm": ("1", [requirement])})


@settings(max_examples=200, deadline=None)
@given(requirement=st.tuples(specifiers(), MARKERS).map(lambda pair: f"torch{pair[0]}{pair[1]}"))
def test_an_override_without_a_version_removes_every_violation(requirement: str) -> None:
    free = replaced_requirement(requirement, {"torch": SpecifierSet()})
    assert not any(violated_requirements([free], {"torch": version}, ASCEND, {"x"}) for version in VERSIONS)


@pytest.mark.parametrize(
    ("earlier", "later", "contradicts"),
    [
        ("x==0.1.27", "x>=0.1.30", True),
        ("x>=0.133", "x<0.124", True),
        ("x>=0.133", "x<0.134", False),
        ("x>1.0", "x<1.1", False),
        ("x>1.0", "x<=1.0", True),
        ("x==1.*", "x<1.0", True),
        ("x==1.*", "x>=1.5", False),
        ("x~=1.4", "x<1.5,!=1.4", False),
        ("x", "x==1", False),
        ("x==2", "y==1", False),
        ("x==2; python_version < '3'", "x==1", False),
        ("x==2; extra == 'all'", "x==1", False),
    ],
)
def test_requirements_contradict_if_no_version_satisfies_both(
    earlier: str, later: str, contradicts: bool
) -> None:
    environment = target_environment("3.11", "aarch64", host=False)
    assert contradicting_requirements([earlier], [later], environment) == (("x",) if contradicts else ())
