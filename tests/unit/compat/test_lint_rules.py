"""Every rule reports a recipe that has its problem, and not the same recipe with one setting corrected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.ruleset import RULES_FOLDER, load_ruleset
from harness.errors import InputError

A, R, REF, ALG = (
    "actor_rollout_ref.actor.",
    "actor_rollout_ref.rollout.",
    "actor_rollout_ref.ref.",
    "algorithm.",
)
OVERLONG = "+reward_model.reward_kwargs."
NOW = {
    "verl": "0.9.1",
    "vllm_ascend": "0.23.0",
    "vllm": "0.23.0",
    "torch_npu": "2.10.0",
    "megatron_core": "0.16.0",
}
# A recipe without findings.
GOOD: dict[str, Any] = {
    "name": "good",
    "entry": "verl.trainer.main_ppo",
    "nodes": 1,
    "cards": 8,
    "model": "Qwen/Qwen3-8B",
    "overrides": {
        ALG + "adv_estimator": "grpo",
        "data.train_batch_size": 512,
        A + "ppo_mini_batch_size": 128,
        A + "ppo_micro_batch_size_per_gpu": 8,
        A + "use_torch_compile": False,
        A + "fsdp_config.use_torch_compile": False,
        A + "clip_ratio_low": 0.0003,
        A + "clip_ratio_high": 0.0004,
        R + "n": 16,
        R + "name": "vllm",
        R + "log_prob_micro_batch_size_per_gpu": 8,
        R + "calculate_log_probs": True,
        "trainer.n_gpus_per_node": 8,
    },
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "facts": {"purpose": "training", "reward_values": "binary"},
}
GSPO = {A + "policy_loss.loss_mode": "gspo", A + "loss_agg_mode": "seq-mean-token-mean"}
TOKEN = {**GSPO, A + "loss_agg_mode": "token-mean"}


def change(**parts: Any) -> dict[str, Any]:
    return parts


# rule -> (changes of GOOD that cause the finding, further changes that remove it). `o`: overrides, `e`: environment,
# `v`: versions, `f`: facts, other names: members of the recipe. `...` removes a setting.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GSPO-AGG": (change(o=TOKEN), change(v={"verl": "0.9.0"})),
    "GSPO-AGG-IGNORED": (change(o=TOKEN, v={"verl": "0.9.0"}), change(o=GSPO)),
    "GSPO-AGG-UNSET": (change(o={A + "policy_loss.loss_mode": "gspo"}), change(o=GSPO)),
    "GSPO-CLIP": (change(o={**GSPO, A + "clip_ratio_low": 0.2}), change(o={A + "clip_ratio_low": 3e-4})),
    "GSPO-DUALCLIP": (change(o={**GSPO, A + "clip_ratio_c": 10.0}), change(o={A + "clip_ratio_c": None})),
    "GSPO-BF16-LOSS": (change(o=GSPO, f={"loss_dtype": "bfloat16"}), change(f={"loss_dtype": "float32"})),
    "GSPO-RESOLUTION": (
        change(o=GSPO, f={"logp_noise_sd": 0.01, "root_mean_length": 8.0}),
        change(f={"root_mean_length": 90.0}),
    ),
    "GSPO-ONPOLICY": (change(o={**GSPO, A + "ppo_mini_batch_size": 512}), change(o={A + "ppo_epochs": 2})),
    "GSPO-KL": (
        change(o={**GSPO, A + "use_kl_loss": True, REF + "log_prob_micro_batch_size_per_gpu": 8}),
        change(o={A + "use_kl_loss": False}),
    ),
    "CLIP-DEAD": (
        change(o={A + "clip_ratio": 0.1, A + "clip_ratio_low": None, A + "clip_ratio_high": None}),
        change(o={A + "clip_ratio_low": 0.1, A + "clip_ratio_high": 0.1}),
    ),
    "KL-TWICE": (
        change(
            o={A + "use_kl_loss": True, ALG + "use_kl_in_reward": True, REF + "log_prob_micro_batch_size": 8}
        ),
        change(o={ALG + "use_kl_in_reward": False}),
    ),
    "KL-COEF-DEAD": (change(o={A + "kl_loss_coef": 0.001}), change(o={A + "kl_loss_coef": 0.0})),
    "GROUP-1": (change(o={R + "n": 1}), change(o={R + "n": 8})),
    "SUM-PI-OFF": (
        change(
            o={ALG + "adv_estimator": "optimal_token_baseline", A + "calculate_sum_pi_squared": False},
        ),
        change(o={A + "calculate_sum_pi_squared": True}),
    ),
    "DYNBSZ-LOGP": (
        change(o={R + "log_prob_use_dynamic_bsz": True, R + "log_prob_max_token_len_per_gpu": 512}),
        change(o={R + "log_prob_max_token_len_per_gpu": 16384}),
    ),
    "DYNBSZ-REF": (
        change(
            o={
                A + "use_kl_loss": True,
                REF + "log_prob_use_dynamic_bsz": True,
                REF + "ulysses_sequence_parallel_size": 1,
                REF + "log_prob_max_token_len_per_gpu": 512,
            }
        ),
        change(o={REF + "log_prob_max_token_len_per_gpu": 16384}),
    ),
    "EXPERTS-DENSE": (
        change(o={A + "strategy": "megatron", A + "megatron.expert_model_parallel_size": 2}),
        change(model="Qwen/Qwen3-30B-A3B"),
    ),
    "VAL-TRAIN": (
        change(o={"data.train_files": "/data/train.parquet", "data.val_files": "/data/train.parquet"}),
        change(o={"data.val_files": "/data/test.parquet"}),
    ),
    "SEPARATE-NAIVE": (
        change(o={"actor_rollout_ref.hybrid_engine": False, R + "checkpoint_engine.backend": "naive"}),
        change(o={R + "checkpoint_engine.backend": "nccl"}),
    ),
    "LORA-SUMMON": (
        change(
            o={
                "actor_rollout_ref.model.lora_rank": 32,
                R + "layered_summon": True,
                R + "load_format": "dummy",
            }
        ),
        change(o={R + "load_format": "safetensors"}),
    ),
    "FP8-NPU": (
        change(o={R + "quantization": "fp8"}, v={"vllm_ascend": "0.18.0", "vllm": "0.18.0"}),
        change(v={"vllm_ascend": "0.23.0", "vllm": "0.23.0"}),
    ),
    "REWARD-NAME": (
        change(o={"custom_reward_function.name": "my_score"}),
        change(o={"custom_reward_function.path": "/data/reward.py"}),
    ),
    "BUCKET-WEIGHT": (
        change(
            model="Qwen/Qwen3-32B",
            nodes=4,
            v={"verl": "0.7.1"},
            o={R + "mode": "async", R + "checkpoint_engine.update_weights_bucket_megabytes": 512},
        ),
        change(o={R + "checkpoint_engine.update_weights_bucket_megabytes": 4096}),
    ),
    "TORCHAIR-EAGER": (
        change(
            v={"vllm_ascend": "0.11.0"},
            o={
                R + "enforce_eager": True,
                R + "engine_kwargs.vllm.additional_config.torchair_graph_config.enabled": True,
            },
        ),
        change(o={R + "enforce_eager": False}),
    ),
    "GRAPHS-OFF": (
        change(
            o={
                R + "enforce_eager": True,
                R + "engine_kwargs.vllm.compilation_config.cudagraph_mode": "FULL_DECODE_ONLY",
            }
        ),
        change(o={R + "enforce_eager": False}),
    ),
    "ROUTER-DTYPE": (
        change(o={A + "megatron.override_transformer_config.moe_router_dtype": "float32"}),
        change(o={A + "megatron.override_transformer_config.moe_router_dtype": "fp32"}),
    ),
    "GROUP-SMALL": (change(o={R + "n": 2}), change(o={R + "n": 4})),
    "ADV-EQUAL": (
        change(f={"reward_values": "continuous"}),
        change(o={ALG + "norm_adv_by_std_in_grpo": False}),
    ),
    "MB-DENOM": (change(v={"verl": "0.6.1"}), change(o={A + "loss_agg_mode": "seq-mean-token-mean"})),
    "SUMNORM": (
        change(o={A + "loss_agg_mode": "seq-mean-token-sum-norm"}),
        change(o={A + "loss_agg_mode": "token-mean"}),
    ),
    "SEQ-DP": (
        change(
            o={"trainer.use_legacy_worker_impl": "disable", A + "loss_agg_mode": "seq-mean-token-mean"},
            v={"verl": "0.8.0.dev0@0123abc"},
        ),
        change(v={"verl": "0.7.1"}),
    ),
    "ALLMASK-NAN": (
        change(o={ALG + "rollout_correction.rollout_rs": "token"}, v={"verl": "0.7.1"}),
        change(o={"trainer.use_legacy_worker_impl": "disable"}),
    ),
    "KL-REWARD-COEF-DEAD": (
        change(o={ALG + "kl_ctrl.kl_coef": 0.001}),
        change(o={ALG + "use_kl_in_reward": True}),
    ),
    "LOGP-OFF": (
        change(o={R + "calculate_log_probs": ...}, v={"verl": "0.8.0"}),
        change(v={"verl": "0.9.0"}),
    ),
    "IS-NOLOGP": (
        change(o={ALG + "rollout_correction.rollout_is": "token", R + "calculate_log_probs": False}),
        change(o={R + "calculate_log_probs": True}),
    ),
    "DYNBSZ": (change(o={A + "ppo_micro_batch_size_per_gpu": None}), change(o={A + "use_dynamic_bsz": True})),
    "DYNBSZ-LEN": (
        change(o={A + "use_dynamic_bsz": True, "data.max_response_length": 32768}, v={"verl": "0.7.1"}),
        change(o={A + "ulysses_sequence_parallel_size": 4}),
    ),
    "DYNBSZ-LEN-NESTED": (
        change(o={A + "use_dynamic_bsz": True, "data.max_response_length": 32768}),
        change(o={A + "fsdp_config.ulysses_sequence_parallel_size": 4}),
    ),
    "LEN-CHUNKED": (
        change(o={"data.max_response_length": 8192, R + "mode": "sync"}, v={"verl": "0.6.1"}),
        change(o={R + "max_num_batched_tokens": 16384}),
    ),
    "LEN-UNCHUNKED": (
        change(
            o={R + "enable_chunked_prefill": False, R + "max_model_len": 16384, R + "mode": "sync"},
            v={"verl": "0.6.1"},
        ),
        change(o={R + "max_model_len": 8192}),
    ),
    "LEN-MODEL": (change(o={R + "max_model_len": 1000}), change(o={R + "max_model_len": 1024})),
    "LEN-MODEL-PROMPT": (change(o={R + "max_model_len": 512}), change(o={R + "max_model_len": 1024})),
    "LEN-MODEL-SGLANG": (
        change(o={R + "name": "sglang", R + "max_model_len": 1000}, v={"verl": "0.6.1"}),
        change(o={R + "max_model_len": 1024}),
    ),
    "LEN-POSITIONS": (
        change(o={R + "max_model_len": 8192}, model="Qwen/Qwen2.5-Math-7B"),
        change(o={R + "max_model_len": 4096}),
    ),
    "LEN-CONTEXT": (
        change(o={"data.max_response_length": 8192}, model="Qwen/Qwen2.5-Math-7B"),
        change(model="Qwen/Qwen2.5-7B"),
    ),
    "ROLLOUT-N": (change(o={R + "n": 0}), change(o={R + "n": 8})),
    "DYNBSZ-NOLEN": (
        change(o={A + "use_dynamic_bsz": True, A + "ppo_max_token_len_per_gpu": None}),
        change(o={A + "ppo_max_token_len_per_gpu": 16384}),
    ),
    "SEQS-TOKENS": (
        change(o={R + "max_num_batched_tokens": 512, R + "max_num_seqs": 1024}),
        change(o={R + "max_num_seqs": 256}),
    ),
    "CHUNKED-FALSE": (
        change(o={R + "enable_chunked_prefill": False, R + "max_model_len": 4096}),
        change(o={R + "enable_chunked_prefill": True}),
    ),
    "PREFIX-FALSE": (
        change(o={R + "enable_prefix_caching": False}),
        change(o={R + "enable_prefix_caching": True}),
    ),
    "MODEL-ADDRESS": (
        change(o={"actor_rollout_ref.model.path": "https://huggingface.co/Qwen/Qwen3-8B"}),
        change(o={"actor_rollout_ref.model.path": "Qwen/Qwen3-8B"}),
    ),
    "LORA-ALPHA": (
        change(o={"actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.model.lora_alpha": 0}),
        change(o={"actor_rollout_ref.model.lora_alpha": 32}),
    ),
    "LORA-RANK": (
        change(o={"actor_rollout_ref.model.lora_rank": 1000}),
        change(o={"actor_rollout_ref.model.lora_rank": 64}),
    ),
    "MEM-WEIGHTS": (
        change(model="Qwen/Qwen2.5-72B", o={"trainer.nnodes": 4}),
        change(o={R + "tensor_model_parallel_size": 8}),
    ),
    "MEM-TRAIN": (
        change(model="Qwen/Qwen2.5-72B", o={"trainer.nnodes": 2}),
        change(o={"trainer.nnodes": 4}),
    ),
    "TP-GQA": (
        change(
            o={A + "megatron.tensor_model_parallel_size": 8},
            model="/w/Qwen3_30B/Qwen3_30B",
            v={"megatron_core": "0.12.1"},
        ),
        change(o={A + "megatron.tensor_model_parallel_size": 4}),
    ),
    "FILTER-GROUPS": (
        change(o={ALG + "filter_groups.enable": True}, v={"verl": "0.8.0"}),
        change(entry="recipe.dapo.main_dapo"),
    ),
    "RANGE-CARDS": (change(o={"trainer.nnodes": 0}), change(o={"trainer.nnodes": 1})),
    "RANGE-COUNT": (
        change(o={"actor_rollout_ref.rollout.val_kwargs.n": 0}),
        change(o={"actor_rollout_ref.rollout.val_kwargs.n": 1}),
    ),
    "ROLLOUT-DTYPE": (
        change(o={"actor_rollout_ref.rollout.dtype": "bf16"}),
        change(o={"actor_rollout_ref.rollout.dtype": "bfloat16"}),
    ),
    "RANGE-MEMORY": (
        change(o={"actor_rollout_ref.rollout.gpu_memory_utilization": 60}),
        change(o={"actor_rollout_ref.rollout.gpu_memory_utilization": 1.0}),
    ),
    "RANGE-SAMPLING": (
        change(o={"actor_rollout_ref.rollout.val_kwargs.top_p": 1.5}),
        change(o={"actor_rollout_ref.rollout.val_kwargs.top_p": 0.7}),
    ),
    "HOST-CARDS": (change(o={"trainer.nnodes": 2}), change(o={"trainer.nnodes": 1})),
    "ROLLOUT-WORLD": (
        change(o={R + "tensor_model_parallel_size": 4, R + "data_parallel_size": 8}),
        change(o={R + "data_parallel_size": 2}),
    ),
    "AGENT-DIVIDES": (
        change(
            o={
                R + "name": "vllm",
                R + "n": 1,
                R + "agent.num_workers": 7,
                A + "ppo_mini_batch_size": 512,
            },
            v={"verl": "0.8.0", "vllm_ascend": "0.18.0", "vllm": "0.18.0"},
        ),
        change(o={R + "agent.num_workers": 8}),
    ),
    "ROLLOUT-DIVIDES": (
        change(
            o={
                R + "name": "vllm",
                R + "tensor_model_parallel_size": 6,
                R + "data_parallel_size": 1,
                R + "pipeline_model_parallel_size": 1,
            }
        ),
        change(o={R + "tensor_model_parallel_size": 4}),
    ),
    "ULYSSES-DIVIDES": (
        change(o={A + "ulysses_sequence_parallel_size": 3}),
        change(o={A + "ulysses_sequence_parallel_size": 4}),
    ),
    "RANGE-EPOCHS": (change(o={A + "ppo_epochs": 0}), change(o={A + "ppo_epochs": 1})),
    "RANGE-LR": (change(o={A + "optim.lr": -1e-6}), change(o={A + "optim.lr": 1e-6})),
    "GREEDY-TRAIN": (change(o={R + "temperature": 0}), change(o={R + "temperature": 1.0})),
    "RANGE-SEQS": (
        change(o={R + "name": "vllm", R + "max_num_seqs": 0}),
        change(o={R + "max_num_seqs": 256}),
    ),
    "VISIBLE-CARDS": (
        change(e={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}),
        change(e={"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}),
    ),
    "RANGE-STEPS": (
        change(o={"trainer.total_training_steps": -1}),
        change(o={"trainer.total_training_steps": "null"}),
    ),
    "RESUME-IGNORED": (
        change(o={"trainer.resume_mode": "auto", "trainer.resume_from_path": "/ckpts/global_step_100"}),
        change(o={"trainer.resume_mode": "resume_path"}),
    ),
    "LORA-IGNORED": (
        change(o={"actor_rollout_ref.model.lora_alpha": 64, "actor_rollout_ref.model.lora_rank": 0}),
        change(o={"actor_rollout_ref.model.lora_rank": 32}),
    ),
    "GAE-NO-CRITIC": (
        change(o={ALG + "adv_estimator": "gae", "critic.enable": False}),
        change(o={ALG + "adv_estimator": "grpo"}),
    ),
    "ROLLOUT-HEADS": (
        change(model="Qwen/Qwen2.5-7B", o={R + "tensor_model_parallel_size": 8}),
        change(o={R + "tensor_model_parallel_size": 4}),
    ),
    "DATA-FORMAT": (
        change(o={"data.train_files": "/data/train.csv"}),
        change(o={"data.train_files": "['/data/train.parquet', '$FILE']"}),
    ),
    "DATA-MISSING": (
        change(o={"data.val_files": "null"}),
        change(o={"data.val_files": "/data/test.parquet"}),
    ),
    "VAL-GREEDY": (
        change(o={R + "val_kwargs.n": 4, R + "val_kwargs.temperature": 0, R + "val_kwargs.do_sample": False}),
        change(o={R + "val_kwargs.n": 1}),
    ),
    "LOOPBACK": (
        change(o={"trainer.nnodes": 2}, nodes=2, e={"GLOO_SOCKET_IFNAME": "lo"}),
        change(o={"trainer.nnodes": 1}, nodes=1),
    ),
    "CLASS-NAME": (change(o={"data.custom_cls.path": "/w/a.py"}), change(o={"data.custom_cls.name": "Data"})),
    "MULTI-TURN-SYNC": (
        change(o={R + "multi_turn.enable": True, R + "mode": "sync"}, v={"verl": "0.6.1"}),
        change(o={R + "mode": "async"}),
    ),
    "PIPELINE-LAYERS": (
        change(
            model="Qwen/Qwen3-30B-A3B",
            o={
                A + "strategy": "megatron",
                A + "megatron.pipeline_model_parallel_size": 2,
                A + "megatron.virtual_pipeline_model_parallel_size": 5,
            },
        ),
        change(o={A + "megatron.virtual_pipeline_model_parallel_size": 4}),
    ),
    "RAY-CARDS": (change(f={"ray_cards": 4}), change(o={"trainer.n_gpus_per_node": 4})),
    "SLURM-NODES": (change(f={"slurm_nodes": 2}, nodes=2), change(o={"trainer.nnodes": 2})),
    "CLIP-DUAL": (change(o={A + "clip_ratio_c": 0.2}), change(o={A + "clip_ratio_c": 3.0})),
    "CLIP-WIDE": (change(o={A + "clip_ratio_high": 1.28}), change(o={A + "clip_ratio_high": 0.28})),
    "OVERLONG-BUFFER": (
        change(o={OVERLONG + "overlong_buffer_cfg.len": 9000, OVERLONG + "max_resp_len": 8192}),
        change(o={OVERLONG + "overlong_buffer_cfg.len": 4096}),
    ),
    "OVERLONG-LIMIT": (
        change(
            o={
                OVERLONG + "overlong_buffer_cfg.enable": "True",
                OVERLONG + "max_resp_len": 4096,
                "data.max_response_length": 8192,
            }
        ),
        change(o={"data.max_response_length": 4096}),
    ),
    "COUNT-ZERO": (change(o={A + "ppo_mini_batch_size": 0}), change(o={A + "ppo_mini_batch_size": 128})),
    "LR-ZERO": (change(o={A + "optim.lr": 0}), change(o={A + "optim.lr": "1e-6"})),
    "CLIP-GRAD-ZERO": (change(o={A + "grad_clip": 0}, v={"verl": "0.6.1"}), change(o={A + "grad_clip": 1.0})),
    "KL-COEF-NEGATIVE": (
        change(o={A + "use_kl_loss": "True", A + "kl_loss_coef": -0.001}),
        change(o={A + "kl_loss_coef": 0.001}),
    ),
    "RIS-THRESHOLD": (
        change(
            o={
                "algorithm.rollout_correction.rollout_is": "token",
                "algorithm.rollout_correction.rollout_is_threshold": -1,
            },
            v={"verl": "0.7.1"},
        ),
        change(o={"algorithm.rollout_correction.rollout_is_threshold": 2.0}),
    ),
    "LR-LARGE": (change(o={A + "optim.lr": "1e6"}), change(o={A + "optim.lr": "1e-6"})),
    "WARMUP-RATIO": (
        change(o={A + "optim.lr_warmup_steps_ratio": 10}),
        change(o={A + "optim.lr_warmup_steps_ratio": 0.1}),
    ),
    "CRITIC-WARMUP": (
        change(o={"trainer.critic_warmup": 200, "trainer.total_training_steps": 100}),
        change(o={"trainer.critic_warmup": 20}),
    ),
    "MEGATRON-SHARED": (
        change(
            o={
                A + "strategy": "megatron",
                ALG + "adv_estimator": "gae",
                A + "megatron.pipeline_model_parallel_size": 2,
                "critic.megatron.pipeline_model_parallel_size": 1,
            }
        ),
        change(o={"critic.megatron.pipeline_model_parallel_size": 2}),
    ),
    "LEN-SFT": (
        change(
            entry="verl.trainer.sft_trainer",
            o={"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": 1024, "data.max_length": 2048},
        ),
        change(o={"data.max_token_len_per_gpu": 8192}),
    ),
    "CLIP-REVERSED": (
        change(o={A + "clip_ratio_low": 0.28, A + "clip_ratio_high": 0.2}),
        change(o={A + "clip_ratio_low": 0.2, A + "clip_ratio_high": 0.28}),
    ),
    "CARDS-IGNORED": (
        change(e={"ASCEND_VISIBLE_DEVICES": "0,1"}),
        change(e={"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}),
    ),
    "DEVICE-NAME": (
        change(o={"trainer.device": "ascend"}, v={"verl": "0.6.1"}),
        change(o={"trainer.device": "npu"}),
    ),
    "DEVICE-REPLACED": (change(o={"trainer.device": "ascend"}), change(o={"trainer.device": "npu"})),
    "ATTN-GPU": (
        change(o={"+actor_rollout_ref.model.override_config.attn_implementation": "flash_attention_3"}),
        change(o={"+actor_rollout_ref.model.override_config.attn_implementation": "flash_attention_2"}),
    ),
    "MODEL-DTYPE": (
        change(o={A + "fsdp_config.model_dtype": "fp61"}),
        change(o={A + "fsdp_config.model_dtype": "fp32"}),
    ),
    "GPUS-MISMATCH": (change(e={"GPUS_PER_NODE": "16"}), change(o={"trainer.n_gpus_per_node": 16})),
    "TESTFREQ": (
        change(o={"data.train_files": "/d/t.parquet", "data.val_files": "/d/t.parquet"}),
        change(o={"trainer.test_freq": 10}),
    ),
    "CI-ONE-STEP": (
        change(o={"trainer.total_training_steps": 1}),
        change(o={"trainer.total_training_steps": 15}),
    ),
    "DETERMINISM": (
        change(f={"purpose": "alignment"}),
        change(
            e={
                "HCCL_DETERMINISTIC": "'true'",
                "CLOSE_MATMUL_K_SHIFT": "1",
                "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
            }
        ),
    ),
    "COMPILE-NPU": (
        change(o={A + "use_torch_compile": ...}, v={"verl": "0.7.1"}),
        change(o={A + "strategy": "megatron"}),
    ),
    "COMPILE-NPU-ENGINE": (
        change(o={A + "fsdp_config.use_torch_compile": ...}),
        change(o={A + "strategy": "megatron"}),
    ),
    "ATTN-PACKED": (
        change(
            o={
                "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
                "actor_rollout_ref.model.use_remove_padding": True,
            }
        ),
        change(o={"+actor_rollout_ref.model.override_config.attn_implementation": "flash_attention_2"}),
    ),
    "CKPT-HCCL": (
        change(o={R + "checkpoint_engine.backend": "hccl"}),
        change(o={R + "checkpoint_engine.backend": "nccl"}),
    ),
    "DEVICE-CUDA": (change(v={"verl": "0.6.1"}), change(o={"trainer.device": "npu"})),
    "ENV-CUDA": (change(e={"CUDA_VISIBLE_DEVICES": "0,1"}), change(e={"CUDA_VISIBLE_DEVICES": ...})),
    "ATTN-BACKEND-ENV": (change(e={"VLLM_ATTENTION_BACKEND": "XFORMERS"}), change(o={R + "name": "sglang"})),
    # A release candidate that casts float weights, or a wake-up that refuses the layout.
    "NZ": (
        change(e={"VLLM_ASCEND_ENABLE_NZ": ...}, v={"verl": "0.7.0"}),
        change(e={"VLLM_ASCEND_ENABLE_NZ": "0"}),
    ),
    "SLEEP-EXPANDABLE": (
        change(e={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}),
        change(o={R + "free_cache_engine": False}),
    ),
    "SLEEP-LEVEL2": (change(e={"VLLM_SLEEP_LEVEL": "2"}), change(v={"vllm_ascend": "0.26.0rc1"})),
    "CAMEM-BUILD": (change(e={"COMPILE_CUSTOM_KERNELS": "0"}), change(e={"COMPILE_CUSTOM_KERNELS": "1"})),
    "MOE-WAKE": (change(model="Qwen/Qwen3-30B-A3B"), change(model="Qwen/Qwen3-8B")),
    "HCCL-ONESTEP": (
        change(entry="recipe.one_step_off_policy.main_ppo", v={"verl": "0.7.0.dev0@ccd7d934"}),
        change(v={"verl": "0.7.0"}),
    ),
    "GRAPH-QUEUE": (change(e={"TASK_QUEUE_ENABLE": "2"}), change(o={R + "enforce_eager": True})),
}


def findings(*changes: dict[str, Any]) -> set[str]:
    recipe = {
        **GOOD,
        "overrides": dict(GOOD["overrides"]),
        "env": dict(GOOD["env"]),
        "facts": dict(GOOD["facts"]),
    }
    versions = dict(NOW)
    for parts in changes:
        for part, value in parts.items():
            if part == "v":
                versions |= value
            elif part in ("o", "e", "f"):
                recipe[{"o": "overrides", "e": "env", "f": "facts"}[part]] |= value
            else:
                recipe[part] = value
    for part in ("overrides", "env"):
        recipe[part] = {name: value for name, value in recipe[part].items() if value is not ...}
    return {finding.rule for finding in lint_job(JobSettings.from_facet(recipe), versions).findings}


def test_every_rule_has_a_case() -> None:
    rules = {rule.id for rule in load_ruleset().rules}
    assert not rules - set(CASES), "add a case to CASES for each of these rules"
    assert not set(CASES) - rules, "no file of harness/compat/lint/rules has these rules"


def test_a_good_recipe_has_no_findings() -> None:
    assert findings() == set()


@pytest.mark.parametrize("rule", sorted(CASES))
def test_a_rule_reports_its_problem_and_not_its_fix(rule: str) -> None:
    wrong, right = CASES[rule]
    assert rule in findings(wrong), (
        "the first change of the case does not cause the finding: compare its keys with those in names.yaml"
    )
    assert rule not in findings(wrong, right), "the second change of the case does not remove the finding"


@pytest.mark.parametrize("rule", load_ruleset().rules, ids=lambda rule: rule.id)
def test_every_rule_has_a_reason_a_fix_and_a_source(rule: Any) -> None:
    assert all((rule.message, rule.why, rule.fix, rule.source, rule.verified))


def test_a_rule_without_its_version_is_undecided() -> None:
    recipe = JobSettings.from_facet({**GOOD, "overrides": {**GOOD["overrides"], **TOKEN}})
    result = lint_job(recipe, {})
    assert not {finding.rule for finding in result.findings} & {"GSPO-AGG", "GSPO-AGG-IGNORED"}
    assert {item.rule: item.unknown for item in result.undecided}["GSPO-AGG"] == ("verl",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- {id: X, severity: fatal, when: 'true', message: m, why: w, fix: f, source: s, verified: code}",
            "severity",
        ),
        (
            "- {id: X, severity: error, when: 'tru ==', message: m, why: w, fix: f, source: s, verified: code}",
            "unexpected end",
        ),
        (
            "- {id: X, severity: error, when: 'nowhere', message: m, why: w, fix: f, source: s, verified: code}",
            "nowhere",
        ),
        ("- {id: X, severity: error", "cannot be read"),
    ],
)
def test_an_invalid_rule_is_reported_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    for name in (path.name for path in RULES_FOLDER.glob("*.yaml")):
        (tmp_path / name).write_text("{}" if name == "names.yaml" else "[]")
    (tmp_path / "gspo.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_ruleset(tmp_path)
    assert message in str(caught.value)
    assert "gspo.yaml" in str(caught.value)


def test_the_change_of_a_rule_is_what_its_fix_says() -> None:
    ruleset = load_ruleset()
    for rule in ruleset.rules:
        for name, value in rule.change.items():
            assert f"{ruleset.names.get(name, name.removeprefix('env.'))}={value}" in rule.fix


@pytest.mark.parametrize(
    ("version", "layout", "sleeps", "reported"),
    [
        ("0.11.0rc1", "1", False, True),
        ("0.11.0", "1", False, False),
        ("0.11.0", "1", True, True),
        ("0.23.0", "2", False, True),
        ("0.23.0", "0", True, False),
    ],
)
def test_the_nz_layout_matters_to_sleep_mode_and_to_float_weights(
    version: str, layout: str, sleeps: bool, reported: bool
) -> None:
    job = change(
        e={"VLLM_ASCEND_ENABLE_NZ": layout}, o={R + "free_cache_engine": sleeps}, v={"vllm_ascend": version}
    )
    assert ("NZ" in findings(job)) is reported


@pytest.mark.parametrize("version", ["0.6.1", "0.7.0", "0.9.0"])
def test_a_server_of_vllm_gets_no_option_that_is_false(version: str) -> None:
    unchunked, _fixed = CASES["LEN-UNCHUNKED"]
    server = change(o={R + "mode": "async", R + "max_model_len": 16384}, v={"verl": version})
    assert "LEN-UNCHUNKED" not in findings(unchunked, server)


@pytest.mark.parametrize(
    ("vllm", "environment", "reported"),
    [
        ("0.10.1", {}, False),
        ("0.10.1@38217877aa70041c0115ee367b75197af9cbc5ad", {"VLLM_USE_V1": "1"}, False),
        ("0.10.1", {"VLLM_USE_V1": "0"}, True),
        ("0.11.0", {}, True),
    ],
)
def test_the_v1_engine_up_to_vllm_0_10_1_always_has_chunked_prefill(
    vllm: str, environment: dict[str, str], reported: bool
) -> None:
    unchunked, _fixed = CASES["LEN-UNCHUNKED"]
    job = change(e=environment, v={"vllm": vllm})
    assert ("LEN-UNCHUNKED" in findings(unchunked, job)) is reported


@pytest.mark.parametrize(
    ("entry", "folder"),
    [
        ("verl.trainer.main_ppo", "config"),
        ("recipe.dapo.main_dapo", "../../verl/trainer/config"),
        ("main", "verl/trainer/config"),
    ],
)
def test_a_megatron_recipe_has_the_configuration_of_verls_trainer_wherever_its_program_is(
    entry: str, folder: str
) -> None:
    recipe = {"name": "r", "entry": entry, "overrides": {A + "megatron.context_parallel_size": 8}}
    job = JobSettings.from_facet(recipe)
    assert job.options == {"--config-name": "ppo_megatron_trainer", "--config-path": folder}
    assert JobSettings.from_facet({**recipe, "overrides": {}}).options == {}
    assert JobSettings.from_facet({**recipe, "config": "own"}).options == {"--config-name": "own"}


@pytest.mark.parametrize(
    ("verl", "file", "reported"),
    [
        # Before 0.7.0 verl reads a file as parquet, whatever its ending is.
        ("0.6.1", "/data/train-*", False),
        ("0.6.1", "/data/train.pq", False),
        ("0.6.1", "/data/train.csv", True),
        ("0.7.0", "/data/train-*", True),
        ("0.9.0", "/data/train.pq", True),
        ("0.9.0", "/data/train.jsonl", False),
    ],
)
def test_later_releases_of_verl_read_data_by_the_ending_of_its_file(
    verl: str, file: str, reported: bool
) -> None:
    assert ("DATA-FORMAT" in findings(change(o={"data.train_files": file}, v={"verl": verl}))) is reported


def test_a_finding_stands_at_the_setting_that_is_wrong() -> None:
    settings = f"{R}top_p=1.0 {R}temperature=1.0 {R}val_kwargs.top_p=70"
    script = parse_script(f"python -m verl.trainer.main_ppo {R}name=vllm {settings}")
    [finding] = [one for one in lint_job(script.jobs[0], NOW).findings if one.rule == "RANGE-SAMPLING"]
    assert finding.column == script.jobs[0].overrides[f"{R}val_kwargs.top_p"].where.column


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        ("run.sh", "trainer.device=npu", True),
        ("run.sh", "", False),
        ("run_qwen_npu.sh", "", True),
        ("run_input.sh", "trainer.device=cuda", False),
    ],
)
def test_variables_of_gpus_are_told_in_scripts_that_say_that_they_are_for_npus(
    tmp_path: Path, name: str, line: str, told: bool
) -> None:
    script = tmp_path / name
    script.write_text(
        f"export CUDA_VISIBLE_DEVICES=0,1\npython -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {line}\n"
    )
    assert ("ENV-CUDA" in {one.rule for one in lint_file(script, {}).findings}) == told


def test_a_variable_of_cann_says_that_a_script_is_for_npus(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "export NCCL_DEBUG=INFO HCCL_CONNECT_TIMEOUT=1800\n"
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo\n"
    )
    assert "ENV-CUDA" in {one.rule for one in lint_file(script, {}).findings}
