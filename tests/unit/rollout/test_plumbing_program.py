"""What `plumbing` sets so that vllm-ascend must refuse it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from harness.rollout.generation import plumbing_program


@pytest.mark.parametrize(
    ("utils", "config"),
    [
        pytest.param({"_ENABLE_NZ": 0}, {}, id="0.11.0 keeps it in a global"),
        pytest.param({}, {"weight_nz_mode": 0}, id="0.23.0 keeps it in its configuration"),
        pytest.param({}, {}, id="0.18.0 asks the environment each time"),
    ],
)
def test_the_forbidden_layout_is_set_where_a_release_reads_it_and_only_meanwhile(monkeypatch, utils, config):
    module, configured, package = (
        ModuleType("vllm_ascend.utils"),
        SimpleNamespace(**config),
        ModuleType("vllm_ascend"),
    )
    vars(module).update(utils)
    ascend_config = ModuleType("vllm_ascend.ascend_config")
    ascend_config.get_ascend_config = lambda: configured  # type: ignore[attr-defined]
    for one in (package, module, ascend_config):
        monkeypatch.setitem(sys.modules, one.__name__, one)

    with plumbing_program._configured_nz():
        assert {name: getattr(module, name) for name in utils} == dict.fromkeys(utils, 1)
        assert vars(configured) == dict.fromkeys(config, 1)
    assert {name: getattr(module, name) for name in utils} == utils
    assert vars(configured) == config
