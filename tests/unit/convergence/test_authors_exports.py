"""A rendered launch has every variable that the launch scripts of a recipe's authors export.

The values were read from the scripts with git show: those of the plugin from the files that `source` of the
recipe names, the others from the articles and the report that it names. A value in capital words is a place
for a value of the host.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.convergence.recipes.recipe_launch import render
from harness.convergence.recipes.recipe_script import script_text
from harness.matrix.reading.load_matrix import load_matrix

MATRIX = load_matrix(Path(__file__).parents[3] / "matrix.yaml")
HOST = "HOST"
TIMEOUTS = "HCCL_ASYNC_ERROR_HANDLING=0 HCCL_EXEC_TIMEOUT=3600 HCCL_CONNECT_TIMEOUT=3600"
PORTS = f"HCCL_SOCKET_IFNAME={HOST} GLOO_SOCKET_IFNAME={HOST}"
QWEN25 = (
    "RAY_DEDUP_LOGS=0 HYDRA_FULL_ERROR=1 TASK_QUEUE_ENABLE=2 VLLM_USE_V1=1 HCCL_OP_EXPANSION_MODE=AIV "
    f"VLLM_ASCEND_ENABLE_FLASHCOMM=1 {TIMEOUTS} {PORTS}"
)
EXPORTS = {
    "gptoss-20b-grpo": f"HCCL_CONNECT_TIMEOUT=3000 HCCL_HOST_SOCKET_PORT_RANGE={HOST} "
    f"HCCL_NPU_SOCKET_PORT_RANGE={HOST} VLLM_ASCEND_ENABLE_NZ=0 VLLM_USE_V1=1",
    "plugin-dapo-qwen3-30b": "RAY_DEDUP_LOGS=0 HYDRA_FULL_ERROR=1 TASK_QUEUE_ENABLE=1 CPU_AFFINITY_CONF=1 "
    f"VLLM_USE_V1=1 VLLM_VERSION=0.10.0 HCCL_OP_EXPANSION_MODE=AIV VLLM_ASCEND_ENABLE_FLASHCOMM=1 {TIMEOUTS} "
    f"{PORTS}",
    "plugin-grpo-qwen3-235b": "CUDA_DEVICE_MAX_CONNECTIONS=1 RAY_DEDUP_LOGS=0 HYDRA_FULL_ERROR=1 "
    f"TASK_QUEUE_ENABLE=2 {TIMEOUTS} {PORTS}",
    "plugin-dapo-qwen25-32b-20k": QWEN25,
    "plugin-dapo-qwen25-32b-4k": QWEN25,
    "plugin-dapo-qwen3-32b": f"RAY_DEDUP_LOGS=0 HYDRA_FULL_ERROR=1 TASK_QUEUE_ENABLE=1 {TIMEOUTS} {PORTS}",
    "plugin-dapo-qwen3-235b": "RAY_DEDUP_LOGS=0 HCCL_EXEC_TIMEOUT=17340 HCCL_CONNECT_TIMEOUT=7200 VLLM_USE_V1=1 "
    "VLLM_VERSION=0.9.1 HCCL_IF_BASE_PORT=23999 VLLM_ASCEND_ENABLE_MOE_ALL2ALL_SEQ=1 "
    f"HCCL_ASYNC_ERROR_HANDLING=0 P2P_HCCL_BUFFSIZE=20 HYDRA_FULL_ERROR=1 TP_SOCKET_IFNAME={HOST} {PORTS}",
    "one-step-off-2card": "VLLM_ASCEND_ENABLE_NZ=0 HCCL_EXEC_TIMEOUT=60000 HCCL_CONNECT_TIMEOUT=7200",
    "gspo-async": "VLLM_ASCEND_ENABLE_NZ=0 VLLM_USE_V1=1",
    "gspo-engine-worker": "VLLM_ASCEND_ENABLE_NZ=0 VLLM_USE_V1=1",
}


@pytest.mark.parametrize("name", EXPORTS)
def test_a_rendered_launch_exports_what_the_authors_export(name: str) -> None:
    recipe = MATRIX.recipes[name]
    names = ("name", "kind", "algorithm", "entry", "overrides", "env", "nodes", "cards", "model")
    launch = render({field: getattr(recipe, field) for field in names}, locations={})
    exported = {one.name: one.value for one in launch.environment}
    wanted = dict(word.split("=", 1) for word in EXPORTS[name].split())
    found = {key: HOST if value.startswith("${") else value for key, value in exported.items()}
    assert found == wanted
    script, command = script_text(name, launch), " ".join(launch.submit)
    assert all(f"export {key}=" in script and key in command for key in wanted)


def test_the_recipes_without_exports_are_those_whose_sources_have_none() -> None:
    without = {name for name, recipe in MATRIX.recipes.items() if not recipe.env}
    assert without == {
        "quickstart",
        "quickstart-one-card",
        "gptoss-infer",
        "gspo-qwen25-3b",
        "gspo-qwen3-30b-a3b",
    }
