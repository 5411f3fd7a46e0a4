"""Options of the tests that run inside a cell. The harness package must be importable there.

python -m pytest tests/npu --npu-device npu:0
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The device to test on; a simulated NPU is an NPU to torch, its launcher decides what stands behind it."""
    parser.addoption("--npu-device", default="npu:0", help="torch device: npu:0, cpu, cuda:0")


@pytest.fixture(scope="session")
def npu_device(request: pytest.FixtureRequest) -> str:
    """The torch device under test."""
    return str(request.config.getoption("--npu-device"))
