"""Tests inside a cell, with the plugin that users have too. The harness package must be importable there.

python -m pytest tests/npu --npu-device npu:0
"""

from __future__ import annotations

pytest_plugins = ["harness.fixtures.plugin"]
