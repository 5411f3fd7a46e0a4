"""Writes tiny checkpoints with random weights, which are the same on every machine. In-cell module."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

VOCABULARY = 512
"""Also the tokenizer's length: verl masks tokens beyond it, but only in the rollout."""

BEGIN, END = 1, 2
SPREAD = 0.2
"""Standard deviation of the weights, ten times transformers' default, so that one token is clearly best."""

# Arguments of a configuration class of transformers.
ModelOptions = Mapping[str, Any]
_SIZES: ModelOptions = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
_EXPERTS: ModelOptions = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
# Half of the layers have sliding attention with the window of gpt-oss. No sequence is longer than the window,
# because it is not documented how the operator applies vllm-ascend's mask at the end of the window.
_GPT_OSS: ModelOptions = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    # 512 = 4 x 128: with another factor, transformers and vLLM would compute different angles.
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "pad_token_id": 0,
}
_KINDS: Mapping[str, tuple[str, ModelOptions]] = {
    # Qwen2 has no setting for the head size: 4 heads of 64 need a hidden size of 256.
    "qwen2": ("Qwen2ForCausalLM", {"hidden_size": 256, "intermediate_size": 384}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _EXPERTS),
    "llama": ("LlamaForCausalLM", {}),
    "gpt_oss": ("GptOssForCausalLM", _GPT_OSS),
}
KINDS = tuple(_KINDS)


def make_checkpoint(folder: Path, kind: str, dtype: str, seed: int) -> None:
    """Write weights, configuration and tokenizer of a model of `kind` (one of `KINDS`) into `folder`.

    Biases and norms are random too, so that a missing one is detected. Raises KeyError for an unknown kind.
    """
    import torch

    architecture, own = _KINDS[kind]
    transformers = import_module("transformers")
    config = transformers.AutoConfig.for_model(
        kind,
        **{**_SIZES, **own},
        vocab_size=VOCABULARY,
        tie_word_embeddings=False,
        bos_token_id=BEGIN,
        eos_token_id=END,
        initializer_range=SPREAD,
    )
    config.architectures = [architecture]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for _, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> Any:
    """A tokenizer with one word for each token."""
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    words = {f"w{number}": number for number in range(VOCABULARY)}
    special = {"unk_token": "w0", "bos_token": f"w{BEGIN}", "eos_token": f"w{END}"}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=special["unk_token"]))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **special)
