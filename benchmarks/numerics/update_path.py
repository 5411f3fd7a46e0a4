"""Which functions of verl are on the path of an update, and which of their branches no recipe of
`matrix.yaml` takes. Names are those of any release; a release has some of them."""

from __future__ import annotations

from collections.abc import Mapping

PATH: Mapping[str, tuple[str, ...]] = {
    "trainer/ppo/core_algos.py": (
        "compute_grpo_outcome_advantage",
        "agg_loss",
        "compute_policy_loss_vanilla",
        "compute_policy_loss_gspo",
        "get_policy_loss_fn",
        "get_adv_estimator_fn",
        "kl_penalty",
        "kl_penalty_forward",
        "FixedKLController.__init__",
    ),
    "trainer/ppo/ray_trainer.py": ("apply_kl_penalty", "compute_response_mask", "compute_advantage"),
    "trainer/ppo/v1/utils.py": ("compute_advantage_for_multi_trajectories",),
    "trainer/ppo/rollout_corr_helper.py": (
        "compute_rollout_correction_weights",
        "compute_rollout_correction_and_rejection_mask",
        "compute_rollout_correction_and_add_to_batch",
    ),
    "utils/torch_functional.py": (
        "logprobs_from_logits",
        "logprobs_from_logits_v2",
        "entropy_from_logits",
        "masked_sum",
        "masked_mean",
        "expand_as_nested",
    ),
    "utils/seqlen_balancing.py": (
        "rearrange_micro_batches",
        "prepare_dynamic_batch",
        "restore_dynamic_batch",
        "get_reverse_idx",
    ),
    "utils/tensordict_utils.py": (
        "chunk_tensordict",
        "index_select_tensor_dict",
        "nested_tensor_from_tensor_list",
    ),
    "utils/npu_utils.py": (
        "IndexFirstAxis.forward",
        "IndexFirstAxis.backward",
        "IndexPutFirstAxis.forward",
        "IndexPutFirstAxis.backward",
        "pad_input",
        "unpad_input",
    ),
    "utils/npu_flash_attn_utils.py": (
        "IndexFirstAxis.forward",
        "IndexFirstAxis.backward",
        "IndexPutFirstAxis.forward",
        "IndexPutFirstAxis.backward",
        "pad_input",
        "unpad_input",
    ),
    "workers/actor/dp_actor.py": (
        "DataParallelPPOActor._forward_micro_batch",
        "DataParallelPPOActor._optimizer_step",
        "DataParallelPPOActor.compute_log_prob",
        "DataParallelPPOActor.update_policy",
    ),
    "workers/utils/losses.py": ("ppo_loss",),
    "workers/utils/padding.py": (
        "left_right_2_no_padding",
        "no_padding_2_padding",
        "build_attention_mask_from_nested",
    ),
    "workers/engine/utils.py": ("prepare_micro_batches", "postprocess_batch_func"),
    "workers/engine/base.py": ("BaseEngine.train_batch", "BaseEngine.infer_batch"),
    "workers/engine/fsdp/transformer_impl.py": (
        "_is_scalar_unit_temperature",
        "_scale_logits_by_temperature",
        "FSDPEngine._get_packed_pad_size",
        "FSDPEngine._gather_and_unpad_packed",
        "FSDPEngine.forward_backward_batch",
        "FSDPEngine.optimizer_zero_grad",
        "FSDPEngine.optimizer_step",
        "FSDPEngineWithLMHead.prepare_model_inputs",
        "FSDPEngineWithLMHead.prepare_model_outputs",
        "FSDPEngineWithLMHead.forward_step",
    ),
    "workers/engine_workers.py": ("TrainingWorker.train_mini_batch",),
    "protocol.py": ("DataProto.select", "DataProto.split", "DataProto.slice", "DataProto.select_idxs"),
}

ENGINE, ENGINE_WORKER = ("workers/engine/", "workers/utils/"), "workers/engine_workers.py"
"""Files of the engine. Releases without its worker do not train policies with it."""

OTHER_FEATURES: Mapping[str, str] = {
    "ulysses": "sequence parallelism, which needs several processes",
    "sp_size": "sequence parallelism, which needs several processes",
    "fused_kernels": "fused kernels of the language-model head, which need CUDA",
    "fused_linear": "fused kernels of the language-model head, which need CUDA",
    "prefix_grouper": "prefix grouper",
    "multi_modal": "inputs with images",
    "mrope": "inputs with images",
    "position_ids.dim() == 3": "inputs with images",
    "router_replay": "router replay of MoE models",
    "routed_experts": "router replay of MoE models",
    "routing_replay": "router replay of MoE models",
    "_qat_enabled": "training with simulated quantisation",
    "distillation": "distillation",
    "sum_pi_squared": "optimal token baseline",
    "scaler": "loss scaling of fp16",
    "entropy_checkpointing": "activation checkpoints of the entropy",
    "entropy_with_chunking": "entropy in chunks",
    "entropy_from_logits_with_chunking": "entropy in chunks",
    "CROSS_ENTROPY_LOSS_AVAILABLE": "kernels of flash-attn or NPUs; the benchmark runs on CPUs",
    "NPU_CROSS_ENTROPY": "a kernel of NPUs; the benchmark runs on CPUs",
    "teacher": "distillation",
    "is_mp_src_rank_with_outputs": "collects metrics",
    "meta_info_keys": "selection of meta information, which the update does not use",
    "deepcopy": "copies of a batch, which the update does not use",
    "FSDP": "parameters sharded over several processes",
    "AdvantageEstimator.GAE": "algorithms with a critic",
    "enable_gradient_checkpointing": "saves memory only",
    "lora": "adapters",
    "pf_ppo": "PF-PPO",
    "REMAX": "ReMax",
    "local_cp_size": "context parallelism",
    "same_micro_num_in_dp": "several processes",
    "mtp": "multi-token prediction",
    "NestedTensor": "a workaround for nested data of other types",
}
"""Text in the condition of a branch -> the feature for which the branch is. No recipe of `matrix.yaml` uses
these, so their branches are not mutated."""
