"""Fixtures of the tests that run inside a cell. They also use the pytest plugin for users.

The package harness must be importable there: python -m pytest tests/npu --device sim
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import device_option
import pytest

pytest_plugins = ["harness.fixtures.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    device_option.add_option(parser)


def pytest_cmdline_main(config: pytest.Config) -> None:
    device_option.use_device(config)


# Schemas of vllm-ascend 0.18.0, to test the references in cells without its extension.
ENGINE_SCHEMAS = (
    (
        "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6) "
        "-> (Tensor y, Tensor rstd, Tensor x)"
    ),
    "npu_gemma_rms_norm(Tensor x, Tensor gamma, float epsilon=1e-6) -> (Tensor y, Tensor rstd)",
    (
        "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm, "
        "int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None) "
        "-> (Tensor y, Tensor expert_idx, Tensor out)"
    ),
    (
        "npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, "
        "int active_num=-1, int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, "
        "int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, int quant_mode=0, "
        "int[2] active_expert_range=[], int row_idx_type=0) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
    "npu_apply_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor",
    (
        "get_masked_input_and_mask(Tensor input, int org_vocab_start_index, int org_vocab_end_index, "
        "int num_org_vocab_padding, int added_vocab_start_index, int added_vocab_end_index) "
        "-> (Tensor masked_input, Tensor mask)"
    ),
    "swap_blocks(Tensor(a!) x, Tensor(b!) y, Tensor z) -> ()",
)


@pytest.fixture(scope="session")
def reference_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that runs a program with `--role reference` and returns the file that it wrote.

    torch does not load torch_npu in that process. without: an operation whose error bound is removed there.
    """

    def run(program: str, *args: str, without: str = "") -> Path:
        file = tmp_path_factory.mktemp("reference") / "reference.npz"
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        environment.pop("NPU_SIM_FAULTS", None)
        unbounded = str(Path(__file__).with_name("without_bound.py"))
        command = [unbounded, without, program] if without else ["-m", program]
        done = subprocess.run(
            [sys.executable, *command, "--role", "reference", "--out", str(file), *args],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return file

    return run


@pytest.fixture(scope="session")
def engine_operators() -> Iterator[None]:
    """vllm-ascend's operators, from its extension or, in cells without it, from `ENGINE_SCHEMAS`."""
    try:
        import vllm_ascend.vllm_ascend_C  # noqa: F401
    except ImportError:
        import torch

        from harness.devices.sim.operators import serving_kernels
        from harness.devices.sim.start import overlay

        simulation = overlay.installed()
        assert simulation is not None
        definitions = torch.library.Library("_C_ascend", "FRAGMENT")
        for schema in ENGINE_SCHEMAS:
            definitions.define(schema)
        libraries = (definitions, serving_kernels.install_engine(simulation.machine))
        yield
        del libraries
        return
    yield
