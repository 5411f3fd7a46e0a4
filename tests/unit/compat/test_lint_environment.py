"""Environment variables of a script: misspelt names, values that are refused, and those that get lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_scripts import lint_script
from harness.sources.tree import TreeFile

JOB = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8"


def found(text: str) -> list[str]:
    """The findings about the environment, as `RULE line`."""
    result = lint_script(parse_script(text), {"verl": "0.9.1", "cann": "9.0.0"})
    return [f"{one.rule} {one.line}" for one in result.findings if one.rule.startswith("ENV-")]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("export ASCEND_RT_VISIBLE_DEVICE=0,1,2,3", "ENV-NAME 1"),
        ("export HCCL_CONECT_TIMEOUT=1500", "ENV-NAME 1"),
        ("export RAY_EXPERIMENTAL_NOSET_ASCEND_VISIBLE_DEVICES=1", "ENV-NAME 1"),
        ("export CUDA_MAX_DEVICE_CONNECTIONS=1", "ENV-NAME 1"),
        ("export ASCEND_RT_VISIBLE_DEVICES=0-7", "ENV-VALUE 1"),
        ("export ASCEND_RT_VISIBLE_DEVICES=0,1,1", "ENV-VALUE 1"),
        ("export ASCEND_RT_VISIBLE_DEVICES=3,2,1,0", "ENV-VALUE 1"),
        ("export HCCL_HOST_SOCKET_PORT_RANGE=60050-60000", "ENV-VALUE 1"),
        ("export HCCL_NPU_SOCKET_PORT_RANGE=61000:61050", "ENV-VALUE 1"),
        ("export HCCL_CONNECT_TIMEOUT=30m", "ENV-VALUE 1"),
        ("export HCCL_CONNECT_TIMEOUT=60", "ENV-VALUE 1"),
        ("export HCCL_OP_EXPANSION_MODE=AVI", "ENV-VALUE 1"),
        # HCCL compares the letters as they are, and CANN stops reading at a space.
        ("export HCCL_OP_EXPANSION_MODE=aiv", "ENV-VALUE 1"),
        ('export ASCEND_RT_VISIBLE_DEVICES="0, 1, 2, 3"', "ENV-VALUE 1"),
        ("export HCCL_EXEC_TIMEOUT=-1", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segment:True", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments=True", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:true", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:1GB", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:20", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF='page_size:1g max_split_size_mb:64'", "ENV-VALUE 1"),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64", "ENV-VALUE 1"),
        ("export CPU_AFFINITY_CONF=yes", "ENV-VALUE 1"),
        # `int("True")` in vllm/envs.py.
        ("export VLLM_USE_V1=True", "ENV-VALUE 1"),
        ("export HCCL_IF_BASE_PORT=65533", "ENV-VALUE 1"),
        ("export HCCL_DETERMINISTIC=1", "ENV-VALUE 1"),
        ("export ASCEND_GLOBAL_LOG_LEVEL=ERROR", "ENV-VALUE 1"),
        ("export WANDB_MODE=off", "ENV-VALUE 1"),
        ("export HCCL_IF_IP=85", "ENV-VALUE 1"),
        # Spelt like no variable of vLLM.
        ("export VLLM_NUMBERS=float32", "ENV-NAME 1"),
        ("HCCL_BUFFSIZE=200", "ENV-LOST 1"),
    ],
)
def test_a_variable_that_does_not_do_what_it_should(line: str, rule: str) -> None:
    assert found(f"{line}\n{JOB}") == [rule]


@pytest.mark.parametrize(
    "line",
    [
        "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
        "export ASCEND_RT_VISIBLE_DEVICES=$CARDS",
        "export ASCEND_RT_VISIBLE_DEVICES=2,4,10",
        "export HCCL_HOST_SOCKET_PORT_RANGE=60000-60050,61000\nexport HCCL_NPU_SOCKET_PORT_RANGE=auto",
        "export HCCL_CONNECT_TIMEOUT=1500",
        "export HCCL_OP_EXPANSION_MODE=AICPU_TS",
        "export VLLM_LOGGING_LEVEL=debug",
        "export VLLM_USE_V1=1\nexport HCCL_DETERMINISTIC=TRUE\nexport HCCL_IF_BASE_PORT=64033",
        "export HCCL_EXEC_TIMEOUT=0.5",
        "export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:250,expandable_segments:False",
        "export PYTORCH_NPU_ALLOC_CONF='roundup_power2_divisions:[256:1,512:2], page_size:1g'",
        "export CPU_AFFINITY_CONF=1",
        "export CPU_AFFINITY_CONF=mode:1,npu0:0-1",
        "export CPU_AFFINITY_CONF=2,force:1",
        "export PYTORCH_NPU_ALLOC_CONF=large_segment_size_mb:50,per_process_memory_fraction:0.5",
        # Variables of PyTorch for GPUs, and of NCCL: no misspellings of those for NPUs.
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800",
        "export NCCL_BUFFSIZE=8388608",
        # Names of the user, which are like nothing that is known.
        "export EXPERIMENT_NAME=grpo",
        "HCCL_BUFFSIZE=200\nexport HCCL_BUFFSIZE",
        "export HCCL_IF_IP=10.1.2.3",
        "export VLLM_USE_V1=1",
        # The script uses it itself.
        "export VLLM_FOLDER=/data\ncd $VLLM_FOLDER",
        "export HCCL_IF_IP=fe80::1",
        "export HCCL_IF_IP=$(hostname -I)",
        "set -a\nHCCL_BUFFSIZE=200\nset +a",
        "set -o allexport\nHCCL_BUFFSIZE=200",
        # The script uses it itself.
        "HCCL_BUFFSIZE=200\necho $HCCL_BUFFSIZE",
        "HCCL_BUFFSIZE=200 \\",
    ],
)
def test_a_variable_that_is_right(line: str) -> None:
    assert found(f"{line}\n{JOB}") == []


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("", ["$CARDS"]),
        ("CARDS=8", []),
        ("CARDS=${CARDS:-8}", []),
        (": ${CARDS:?the cards}", []),
        ('if [ -z "$CARDS" ]; then exit 1; fi', []),
        ("[[ -n $CARDS ]] || exit 1", []),
        ("read CARDS < file", []),
        ("for CARDS in 8 16; do :; done", []),
        ("let CARDS=8", []),
        ("((CARDS = 8))", []),
        ("for ((CARDS=1; CARDS<8; CARDS++)); do :; done", []),
        ("(( CARDS == 8 ))", ["$CARDS"]),
        ("[[ -v CARDS ]] || exit 1", []),
        ("[ -v CARDS ] || exit 1", []),
        ('for setting in "$@"; do export "$setting"; done', []),
        ('for setting in "$@"; do eval "$setting"; done', []),
        ("RUN=true; eval $RUN", ["$CARDS"]),
        # The file can set it.
        ("source ./settings.sh", []),
    ],
)
def test_a_variable_that_nothing_sets(lines: str, names: list[str]) -> None:
    job = 'python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$CARDS data.train_files=$HOME/a.parquet "$@"'
    result = lint_script(parse_script(f"{lines}\n{job}"), {"verl": "0.9.1"})
    assert [f"${one.message.split()[2]}" for one in result.findings if one.rule == "UNSET-VARIABLE"] == names


def test_an_export_after_the_program_comes_too_late() -> None:
    assert found(f"{JOB}\nexport HCCL_BUFFSIZE=200") == ["ENV-LOST 2"]


@pytest.mark.parametrize(
    ("option", "torch_npu", "is_refused"),
    [
        ("segment_size_mb:64", "2.7.1", True),
        ("segment_size_mb:64", "2.7.1.post1", False),
        ("roundup_power2_divisions:4", "2.7.1.post1", True),
        ("roundup_power2_divisions:4", "2.7.1.post2", False),
        ("pin_memory_expandable_segments:True", "2.7.1.post2", True),
        ("pin_memory_expandable_segments:True", "2.9.0.post1", False),
        # A release of torch that is later than all in the list, one that is earlier, and no version.
        ("throw_on_npumalloc_oom:True", "2.14.0", False),
        ("throw_on_npumalloc_oom:True", "2.5.1", True),
        ("segment_size_mb:64", "", False),
    ],
)
def test_options_of_the_allocator_depend_on_torch_npu(option: str, torch_npu: str, is_refused: bool) -> None:
    script = parse_script(f"export PYTORCH_NPU_ALLOC_CONF={option}\n{JOB}")
    result = lint_script(script, {"verl": "0.9.1", **({"torch_npu": torch_npu} if torch_npu else {})})
    assert ("ENV-VALUE" in {one.rule for one in result.findings}) is is_refused


@pytest.mark.parametrize(
    ("name", "versions", "told"),
    [
        (
            "VLLM_ASCEND_ENABLE_FLASHCOMM",
            {"vllm_ascend": "0.23.0"},
            "vllm-ascend 0.23.0 does not read the environment variable VLLM_ASCEND_ENABLE_FLASHCOMM",
        ),
        ("VLLM_ASCEND_ENABLE_FLASHCOMM", {"vllm_ascend": "0.11.0"}, ""),
        ("VLLM_ASCEND_ENABLE_FLASHCOMM", {}, ""),
        # A release and a commit that the pack does not have.
        ("VLLM_ASCEND_ENABLE_FLASHCOMM", {"vllm_ascend": "9.9.9"}, ""),
        ("VLLM_ASCEND_ENABLE_FLASHCOMM", {"vllm_ascend": "0.23.0@0123456"}, ""),
        # Of vLLM itself, whose release is that of vllm-ascend.
        (
            "VLLM_ATTENTION_BACKEND",
            {"vllm_ascend": "0.23.0"},
            "vllm 0.23.0 does not read the environment variable VLLM_ATTENTION_BACKEND",
        ),
        ("VLLM_ATTENTION_BACKEND", {"vllm_ascend": "0.23.0", "vllm": "0.11.0"}, ""),
        # Only releases read it that are newer than the rules.
        ("VLLM_GDN_DECODE_KERNEL", {}, ""),
        (
            "VLLM_GDN_DECODE_KERNEL",
            {"vllm_ascend": "0.18.0"},
            "vllm 0.18.0 does not read the environment variable VLLM_GDN_DECODE_KERNEL",
        ),
    ],
)
def test_a_variable_of_vllm_that_only_other_releases_read(
    name: str, versions: Mapping[str, str], told: str
) -> None:
    result = lint_script(parse_script(f"export {name}=1\n{JOB}"), {"verl": "0.9.1", **versions})
    messages = [one.message for one in result.findings if one.rule == "ENV-NAME"]
    assert messages == ([told] if told else [])


@pytest.mark.parametrize(
    ("name", "near"),
    [("VERL_LOGGING_LEVL", "VERL_LOGGING_LEVEL"), ("VERL_LOGGING_LEVEL", ""), ("VERL_HOME", "")],
)
def test_a_variable_of_verl_that_is_misspelt(name: str, near: str) -> None:
    files = {
        "verl/trainer/main_ppo.py": 'import os\nlevel = os.getenv("VERL_LOGGING_LEVEL", "WARN")\n',
        "verl/trainer/config/ppo_trainer.yaml": "trainer: {nnodes: 1}\n",
    }
    tree = MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in files.items()})
    with VerlConfiguration(tree).unpacked() as verl:
        result = lint_script(parse_script(f"export {name}=INFO\n{JOB}"), {"verl": "0.9.1"}, verl)
    fixes = [one.fix for one in result.findings if one.rule == "ENV-NAME"]
    assert fixes == ([f"export {near}=INFO"] if near else [])


@pytest.mark.parametrize(
    ("name", "versions", "told"),
    [
        (
            "RAY_worker_register_timeout_second",
            {},
            "looks like a misspelling of RAY_worker_register_timeout_seconds",
        ),
        ("RAY_worker_register_timeout_seconds", {}, ""),
        ("RAY_SERVE_DEFAULT_HTTP_HOSTS", {}, "looks like a misspelling of RAY_SERVE_DEFAULT_HTTP_HOST"),
        ("NPU_ASD_ENABLED", {"torch_npu": "2.9.0"}, "looks like a misspelling of NPU_ASD_ENABLE"),
        # A name of the script's own.
        ("NPU_PER_NODE", {"torch_npu": "2.9.0"}, ""),
        ("RAY_HEAD_IP", {}, ""),
        # A release, a release that the pack does not have, and none.
        (
            "INDUCTOR_ASCEND_LOG_LEVEL",
            {"torch_npu": "2.1.0.post6"},
            "torch-npu 2.1.0.post6 does not read the environment variable INDUCTOR_ASCEND_LOG_LEVEL",
        ),
        ("INDUCTOR_ASCEND_LOG_LEVEL", {"torch_npu": "2.14.0"}, ""),
        ("INDUCTOR_ASCEND_LOG_LEVEL", {"torch_npu": "99.0"}, ""),
        ("INDUCTOR_ASCEND_LOG_LEVEL", {}, ""),
    ],
)
def test_a_variable_of_torch_npu_or_ray(name: str, versions: Mapping[str, str], told: str) -> None:
    result = lint_script(parse_script(f"export {name}=1\n{JOB}"), {"verl": "0.9.1", **versions})
    messages = [one.message for one in result.findings if one.rule == "ENV-NAME"]
    assert [told in message for message in messages] == ([True] if told else [])
