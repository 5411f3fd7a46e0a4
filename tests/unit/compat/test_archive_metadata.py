"""Metadata of archives, and the reasons that the check `resolve` gives because of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from source_zip import write_zip

from harness.compat.resolve import resolve_check
from harness.compat.resolve.archive_metadata import read_archive_metadata
from harness.errors import InputError
from harness.outcome import Evidence, Outcome, State, Status, Tier
from harness.sources.packages.resolve_measurements import ResolveMeasured

HEAD = "Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n"


def sources(path: Path, **members: str) -> Path:
    return write_zip(path, members)


@pytest.mark.parametrize(
    ("stated", "python", "refused"),
    [
        ("<3.13,>=3.10", "3.13", True),
        ("<3.13,>=3.10", "3.12", False),
        (">=3.11", "3.10", True),
        ("", "3.13", False),
        ("no version", "3.13", False),
    ],
)
def test_a_python_limit_is_reported_for_versions_outside_it(
    tmp_path: Path, stated: str, python: str, refused: bool
) -> None:
    text = HEAD + (f"Requires-Python: {stated}\n" if stated else "")
    found = read_archive_metadata(
        "verl", "0.9.1", sources(tmp_path / "a.zip", **{"v-1.dist-info/METADATA": text})
    )
    said = found.refusals(python)
    assert bool(said) is refused
    assert not said or stated in said[0]


@pytest.mark.parametrize(
    ("text", "chip"),
    [("__device_type__ = 'A2'\n", "A2"), ('__soc_version__ = "ASCEND910B1"', "ASCEND910B1"), ("x = 1", "")],
)
def test_a_wheel_built_for_one_chip_has_a_remark(tmp_path: Path, text: str, chip: str) -> None:
    file = sources(tmp_path / "a.zip", **{"vllm_ascend/_build_info.py": text})
    found = read_archive_metadata("vllm-ascend", "0.23.0", file)
    assert found.built_for == chip
    assert bool(found.remarks()) is bool(chip)
    assert not found.refusals("3.11")


def test_metadata_that_differs_from_the_index_is_reported(tmp_path: Path) -> None:
    own = HEAD + "Requires-Dist: torch==2.7.1\nRequires-Dist: numpy<2,>=1\nRequires-Python: >=3.9\n"
    index = HEAD + "Requires-Dist: torch==2.8.0\nRequires-Dist: numpy>=1,<2\nRequires-Python: >=3.9\n"
    file = sources(tmp_path / "a.zip", **{"v-1.dist-info/METADATA": own})
    found = read_archive_metadata("verl", "0.9.1", file, index.encode())
    assert found.differences == (
        "only the archive requires torch==2.7.1",
        "only the index requires torch==2.8.0",
    )
    spelled = own.replace(">=3.9", " >=3.9").replace("numpy<2,>=1", "NumPy >=1,<2")
    assert not read_archive_metadata("verl", "0.9.1", file, spelled.encode()).differences


def test_the_metadata_of_an_sdist_is_read(tmp_path: Path) -> None:
    text = HEAD + "Requires-Dist: torch==2.10.0\nRequires-Python: >=3.10\n"
    found = read_archive_metadata(
        "vllm-ascend", "0.27.1rc1", sources(tmp_path / "a.zip", **{"PKG-INFO": text})
    )
    assert found.is_known
    assert found.release.requires == ("torch==2.10.0",)
    assert not read_archive_metadata("x", "1", sources(tmp_path / "b.zip", **{"x.py": ""})).is_known


def test_a_file_that_is_not_an_archive_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match="cannot be read"):
        read_archive_metadata("verl", "0.9.1", tmp_path / "a.zip")


def test_an_unsupported_python_fails_although_uv_installs_the_package(wheels: Any, context: Any) -> None:
    wheels.add("base", "2.0", python=">=3.8,<3.12")
    pins = {"requirements": ["base==2.0"], "overrides": []}
    platform = {"python": "3.13", "arch": "x86_64", "host": False}
    measured = resolve_check.run(context({"pins": pins, "platform": platform}))
    judgement = resolve_check.judge(measured.measurements, {})
    assert judgement.status is Status.FAIL
    assert any("base 2.0" in reason and "pip refuses" in reason for reason in judgement.reasons)
    assert judgement.remedies
    inside = resolve_check.run(context({"pins": pins, "platform": {**platform, "python": "3.11"}}))
    assert resolve_check.judge(inside.measurements, {}).status is Status.PASS


def holds(age_s: float, *unreachable: str) -> str:
    outcome = Outcome(
        key="k",
        check="resolve",
        tier=Tier.STATIC,
        state=State.COMPLETED,
        evidence=Evidence.STATIC,
        facets={},
        finished=time.time() - age_s,
    )
    return resolve_check.holds(ResolveMeasured(resolved=False, unreachable=unreachable), outcome)


def test_an_index_without_a_response_is_retried_after_a_day() -> None:
    vendor = "https://vendor.example/simple"
    assert not holds(3600, vendor)
    assert "vendor.example" in holds(25 * 3600, vendor)
    assert not holds(25 * 3600)
