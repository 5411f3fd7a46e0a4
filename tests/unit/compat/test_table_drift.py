from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compat.table_drift import compatible, find_drift
from harness.matrix.model.versions import Scheme
from harness.matrix.reading.load_matrix import load_matrix
from harness.serialisation import json_object

MATRIX = Path(__file__).parents[3] / "matrix.yaml"


@pytest.fixture(scope="module")
def drift() -> set[tuple[str, str, str, str, str]]:
    return {
        (
            found.kind,
            found.left.row,
            found.left.value,
            found.right.row or found.right.table,
            found.right.value,
        )
        for found in find_drift(load_matrix(MATRIX))
    }


@pytest.mark.parametrize(
    "known",
    [
        ("differs", "vllm-ascend 0.11.0", "2.7.1.post1", "vllm-ascend-metadata 0.11.0", "==2.7.1"),
        ("differs", "vllm-ascend 0.13.0rc2", "2.8.0.post1", "vllm-ascend-metadata 0.13.0rc2", "==2.8.0"),
        ("differs", "vllm-ascend 0.18.0", "3.2.0.dev20260322", "vllm-ascend-metadata 0.18.0", "==3.2.0"),
        ("not-listed", "vllm-ascend 0.20.2rc1", "2.10.0", "torch-npu", ""),
        ("differs", "verl-quickstart 0.6.1", "2.5.1", "vllm-ascend-metadata 0.9.1", "==2.5.1.post1"),
        ("differs", "verl-quickstart 0.6.1", "8.2.RC1", "torch-npu 2.5.1", "8.1.RC1"),
        ("differs", "verl-quickstart 0.7.1", "2.8.0", "vllm-ascend-metadata 0.13.0", "==2.8.0.post2"),
        ("differs", "verl-quickstart 0.8.0", "9.0.0", "vllm-ascend 0.18.0", "8.5.1"),
        ("differs", "verl-quickstart 0.9.0", "3.2.1", "vllm-ascend 0.23.0", "3.2.2"),
        ("differs", "verl-quickstart main", "5.10.4", "vllm-ascend-metadata 0.23.0", "==5.5.4"),
        ("differs", "vllm-ascend 0.18.0", "2.9.0.post1+git4c901a4", "vllm-ascend-metadata 0.18.0", "==2.9.0"),
        ("not-listed", "vllm-ascend 0.22.1rc1", "2.10.0", "torch-npu", ""),
        ("differs", "verl-quickstart 0.8.0", "2.9.0.post2", "vllm-ascend-metadata 0.18.0", "==2.9.0"),
        ("differs", "verl-quickstart 0.9.0", "9.0.0", "vllm-ascend 0.23.0", "9.1.0"),
        ("not-listed", "mindspeed-rl-docs README.MD", "8.2.RC3", "cann-images", ""),
        ("not-listed", "mindspeed-rl-docs deepseek671b-v3.md", "25.3.RC1", "cann-images", ""),
        (
            "differs",
            "verl-dockerfile-names Dockerfile.ascend_8.5.2_a3_qwen3-5",
            "8.5.2",
            "verl-dockerfiles Dockerfile.ascend_8.5.2_a3_qwen3-5",
            "8.5.1",
        ),
        (
            "not-listed",
            "verl-image-tags latest-vllm-a3-ubuntu",
            "Dockerfile.ascend_9.0.1_a3",
            "verl-dockerfiles",
            "",
        ),
    ],
)
def test_known_contradictions_of_published_tables_are_found(
    drift: set[tuple[str, str, str, str, str]], known: tuple[str, str, str, str, str]
) -> None:
    assert known in drift


@pytest.mark.parametrize(
    "row",
    [
        "vllm-ascend 0.23.0",
        "vllm-ascend 0.11.0rc1",
        "verl-quickstart 0.7.0",
        "verl-dockerfiles Dockerfile.ascend_9.1.0_a2",
        "verl-image-tags latest-sglang-910b-ubuntu",
    ],
)
def test_rows_that_agree_are_not_reported(drift: set[tuple[str, str, str, str, str]], row: str) -> None:
    assert not [found for found in drift if found[1] == row]


def test_every_contradiction_is_reported_once_with_both_sources() -> None:
    found = find_drift(load_matrix(MATRIX))
    assert len({str(item) for item in found}) == len(found)
    assert all(item.left.source and item.right.source for item in found)
    json.dumps([json_object(item) for item in found])


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("2.7.1.post1", "==2.7.1", False),
        ("2.7.1", "==2.7.1", True),
        ("<2.0.0", ">=2.0.0", False),
        ("<5,>=4.57.4", ">=4.57.4", True),
        ("<5", ">4", True),
        (">4,<4.0.1", ">=5", False),
        ("0.10.1 / 0.10.1.1", "0.10.1.1", True),
        ("releases/v0.13.0", "0.13.0", True),
        (">=3.10,<3.12 (3.11 recommended)", "3.11", True),
        ("4.57.6 (not 5 or later)", ">=5", False),
        ("latest release", "4.57", None),
        ("*", "1.0", True),
    ],
)
def test_whether_a_version_satisfies_two_texts(left: str, right: str, expected: bool | None) -> None:
    assert compatible(left, right, Scheme.PEP440) is expected
    assert compatible(right, left, Scheme.PEP440) is expected


@given(number=st.lists(st.integers(0, 30), min_size=2, max_size=4))
def test_a_version_is_compatible_with_itself_and_its_bounds(number: list[int]) -> None:
    text = ".".join(map(str, number))
    for other in (text, f"=={text}", f">={text}", f"<={text}", "*"):
        assert compatible(text, other, Scheme.PEP440) is True
    assert compatible(text, f"<{text}", Scheme.PEP440) is False
