"""The folder that installs the simulated device in the processes of vLLM."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from harness.devices import sim

FOLDER = Path(sim.__file__).parent / "start" / "vllm_platform"


def test_vllm_finds_a_platform_plugin_there_that_this_project_has():
    entries = [
        entry
        for distribution in importlib.metadata.distributions(path=[str(FOLDER)])
        for entry in distribution.entry_points
    ]
    assert [entry.group for entry in entries] == ["vllm.platform_plugins"]
    module, _, function = entries[0].value.partition(":")
    source = Path(sim.__file__).parents[3] / Path(*module.split(".")).with_suffix(".py")
    assert f"def {function}() -> None:" in source.read_text(encoding="utf-8")


def test_a_cells_own_process_does_not_count_it_among_the_cells_packages():
    names = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}
    assert "npu-matrix-simulated-device" not in names
