"""Mistakes in launch scripts that verl's own history mended: how many of them `lint` reports.

Each commit is one that corrects a script which stopped, or did not do what it should. The commits were chosen
by their messages and changes, before `lint` had read one of the scripts. A mistake is found if `lint` reports
an error or a warning of the script before the commit, or says that it did not read a part, and not of the
script after it; both are read with the files of verl at their own commit. The repository of verl must
be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.lint_agreement import verl_repository
from benchmarks.lint_script_mistakes import read, reported
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.sources.git.git_repository import Repository

#: Commit -> what it mends, the release of verl that it belongs to, and its scripts.
MENDED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "16bdafaad": (
        "a variable that is not set, with set -u",
        "0.8.0",
        (
            "examples/grpo_trainer/run_qwen2_5_32b_fsdp.sh",
            "examples/grpo_trainer/run_qwen3_4b_fsdp.sh",
        ),
    ),
    "4b838ad6c": (
        "cards of a variable that is not set",
        "0.9.0",
        ("examples/ascend_extras/grpo_trainer/run_qwen3_5_122b_a10b_32k_megatron.sh",),
    ),
    "0664ab2d4": (
        "Megatron without mbridge",
        "0.8.0",
        (
            "examples/ascend_extras/grpo_trainer/run_qwen3_235b_256k_megatron.sh",
            "examples/ascend_extras/grpo_trainer/run_qwen3_30b_a3b_megatron.sh",
        ),
    ),
    "d43594c54": (
        "attention backend of GPUs",
        "0.8.0",
        ("examples/gspo_trainer/run_qwen3_32b_gspo_npu.sh",),
    ),
    "3a9e1651f": (
        "keys of an older release",
        "0.8.0",
        (
            "examples/sft/gsm8k/run_qwen_05_sp2.sh",
            "examples/sft/gsm8k/run_qwen_05_sp2_liger.sh",
            "examples/sft/gsm8k/run_seed_oss_36b_sft.sh",
            "examples/sft/multiturn/run_qwen_05_sp2.sh",
        ),
    ),
    "dcb871f37": (
        "plus on a key that exists",
        "0.7.0",
        ("examples/sglang_multiturn/run_qwen2.5-0.5b_gsm8k_multiturn_w_interaction.sh",),
    ),
    "a93be2e2d": (
        "misspelt key with a plus",
        "0.7.0",
        ("examples/sglang_multiturn/run_qwen2.5-0.5b_gsm8k_multiturn_w_interaction.sh",),
    ),
    "395d7f67f": (
        "rollout mode that the program does not have",
        "0.7.0",
        ("recipe/one_step_off_policy/grpo_qwen3_8b_gsm8k_fsdp2_8_8_npu.sh",),
    ),
    "f2d62716a": (
        "rollout without a name",
        "0.7.0",
        ("recipe/dapo/run_dapo_qwen3_14b_base_npu.sh", "recipe/dapo/run_dapo_qwen3_8b_base_npu.sh"),
    ),
    "4d2444919": (
        "settings that were removed",
        "0.6.0",
        ("recipe/dapo/run_dapo_qwen2.5_32b_npu.sh", "recipe/dapo/run_dapo_qwen3_moe_30b_base_npu_fsdp.sh"),
    ),
    "0da1a3de0": (
        "settings of the critic that were removed",
        "0.5.0",
        (
            "examples/ppo_trainer/run_deepseek_full_hh_rlhf.sh",
            "examples/ppo_trainer/run_qwen1.5_moe_a2.7b-gsm8k_megatron.sh",
        ),
    ),
    "8888122a8": (
        "settings of the model that were removed",
        "0.5.0",
        (
            "examples/grpo_trainer/run_deepseek7b_llm_math_megatron.sh",
            "examples/ppo_trainer/run_qwen2-7b_math_gsm8k_megatron.sh",
            "examples/sglang_multiturn/geo3k/run_qwen2.5-3b_megatron_geo3k_multiturn.sh",
            "examples/tuning/32b/qwen2_32B_grpo_8_h20_megatron_vllm.sh",
        ),
    ),
    "4f913c066": (
        "plus on a key that exists",
        "0.8.0",
        ("examples/gspo_trainer/run_qwen3_32b_gspo_npu.sh", "examples/ppo_trainer/run_qwen3-8b_npu.sh"),
    ),
    "4a3881b6b": (
        "an argument that verl sets itself",
        "0.4.0",
        ("examples/grpo_trainer/run_deepseek671b_math_megatron.sh",),
    ),
    "2bcc5d121": (
        "columns that the data lacks",
        "0.5.0",
        ("examples/sft/gsm8k/run_gemma_7b.sh",),
    ),
    "58c847b17": (
        "distributed checkpoint without a path",
        "0.6.0",
        ("examples/grpo_trainer/run_qwen3moe-30b_megatron_96gb.sh",),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Mended:
    """A script that a commit corrects, and the sentences of `lint` that the correction ends."""

    commit: str
    kind: str
    script: str
    told: tuple[str, ...]


def mended(repository: Repository) -> Iterator[Mended]:
    """Read each script before and after its commit."""
    for commit, (kind, release, scripts) in MENDED.items():
        before, after = (
            _reported(repository, revision, release, scripts) for revision in (f"{commit}^", commit)
        )
        for script in scripts:
            told = tuple(sorted(before[script] - after[script]))
            yield Mended(commit=commit, kind=kind, script=script, told=told)


def _reported(
    repository: Repository, revision: str, release: str, scripts: tuple[str, ...]
) -> dict[str, frozenset[str]]:
    tree = repository.tree(repository.commit(revision))
    with VerlConfiguration(tree).unpacked() as verl:
        found = {}
        for path in scripts:
            script = read(tree.read(path).decode("utf-8", "replace"), path)
            versions = {"verl": release, "vllm_ascend": "0.13.0", "cann": "8.5.0"}
            found[path] = reported(script, versions, verl) if script else frozenset({"not read"})
    return found


def figures() -> Iterator[Figure]:
    """Count the mistakes that are found."""
    every = list(mended(verl_repository()))
    for one in every:
        logging.getLogger(__name__).info(
            "%s: %s (%s %s)", one.told or "not found", one.kind, one.commit, one.script
        )
    yield Figure(
        claim=f"of {len(every)} scripts that {len(MENDED)} commits of verl mend, those found",
        measured=round(100 * sum(bool(one.told) for one in every) / len(every), 1),
        unit="%",
        limit=80,
        is_lower_limit=True,
    )
