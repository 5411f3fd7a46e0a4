"""What an environment will take of the disk, before it is built."""

import re
from pathlib import Path

import pytest

from harness.plan.cost.disk import MEASURED_MIB, estimate_environment_disk

DOCS = Path(__file__).parents[3] / "docs"
ROW = re.compile(r"^\| (?P<version>\d+\.\d+\.\d+) \| (?P<size>[\d.]+) GiB \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("vllm_ascend", "like"),
    [
        ("", "without vllm-ascend"),
        ("0.18.0", "with vllm-ascend 0.18.0"),
        ("0.12.0rc1.dev0@941d54a2ce1ce387e4bf5d80003c098ff6d44841", "with vllm-ascend 0.11.0"),
        ("0.30.0rc2", "with vllm-ascend 0.23.0"),
        ("0.9.1", "with vllm-ascend 0.11.0"),
        ("main", "with vllm-ascend 0.23.0"),
    ],
)
def test_a_version_that_was_not_measured_is_taken_for_the_nearest_before_it(vllm_ascend, like):
    axes = {"vllm_ascend": vllm_ascend} if vllm_ascend else {}
    disk = estimate_environment_disk(axes, "sim")
    assert disk is not None
    assert like in disk.basis
    assert disk.mib == MEASURED_MIB[like.partition("ascend ")[2]]


def test_nothing_is_said_of_real_devices_where_nothing_was_measured():
    assert estimate_environment_disk({"vllm_ascend": "0.18.0"}, "npu") is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_documented_figures_are_those_of_the_estimate(language):
    text = (DOCS / language / "read-red-generation.md").read_text("utf-8")
    told = {row["version"]: row["size"] for row in ROW.finditer(text)}
    assert told == {version: f"{mib / 1024:.1f}" for version, mib in MEASURED_MIB.items() if version}
