"""Writes a tiny random model, its tokenizer and a verifiable task as files for transformers and verl.

The task: a prompt contains a digit from 0 to 4 and one from 5 to 9, and the response must repeat both and
stop. The prompts are a pure function of the seed; the model is the same for all seeds. Both are written
without transformers, so that only numpy determines the content of the files. In-cell module; `write` needs
pyarrow for the prompts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

# The end token is also the padding and the unknown token. It is the only special token, so verl, which
# removes special tokens from decoded responses, removes nothing before the end of a response.
END, START = "<|im_end|>", "<bos>"
DIGITS = tuple("0123456789")
# Byte-level spelling of the line break, which no text contains: verl 0.9's token builder for Qwen requires
# that the line break and the name of the end token are one token each.
LINE_BREAK = "\u010a"
VOCABULARY = (END, START, "=", LINE_BREAK, *DIGITS)
# The digits that can occur at each position of the response. If both positions could have any digit, a policy
# would first learn to answer one digit twice, and learn to distinguish them at a step that varies between
# runs: the between-run deviation of the final reward was then 13 to 15 % of its rise, and a verdict on a
# healthy stack needed 1.4 to 1.8 runs.
PLACES = (DIGITS[:5], DIGITS[5:])
ANSWER_DIGITS = len(PLACES)
PROMPT_TOKENS = ANSWER_DIGITS + 2
RESPONSE_TOKENS = ANSWER_DIGITS + 1
CHAT_TEMPLATE = (
    "{{ '<bos> ' }}{% for message in messages %}{{ message['content'] }}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '=' }}{% endif %}"
)

HIDDEN, LAYERS, HEADS, KEY_HEADS = 64, 2, 4, 2
# Large enough for learning in 30 steps at the recipe's learning rate (measured); transformers' default is
# 0.02.
INITIAL_STD = 0.08
# All runs start from the same model; they differ in their prompts and samples.
MODEL_SEED = 0

EXPERTS = 4

JsonObject = dict[str, Any]

_EXPERT_OPTIONS: JsonObject = {
    "head_dim": HIDDEN // HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS // 2,
    "moe_intermediate_size": 2 * HIDDEN,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "output_router_logits": False,
}


def best_blind_reward() -> float:
    """The largest mean reward of a policy that does not read its prompt: 0.467.

    Each position of the response, including its end, contributes 1 / (ANSWER_DIGITS + 1) (see `reward`).
    Without the prompt, one of five digits is correct by chance; ending correctly does not depend on the
    prompt.
    """
    return (sum(1 / len(words) for words in PLACES) + 1) / (ANSWER_DIGITS + 1)


def write(folder: Path, *, seed: int, prompts: int, experts: bool = False) -> None:
    """Write `model/`, `train.parquet` and `val.parquet` into an existing folder.

    experts: the model is a mixture of experts (Qwen3-MoE) instead of Qwen2.
    """
    model = folder / "model"
    model.mkdir()
    _write_json(model / "config.json", model_config(experts=experts))
    _write_json(model / "generation_config.json", {"do_sample": True, **_token_numbers()})
    _write_json(model / "tokenizer.json", tokenizer())
    _write_json(model / "tokenizer_config.json", _tokenizer_config())
    (model / "model.safetensors").write_bytes(safetensors(weights(MODEL_SEED, experts=experts)))
    rows = examples(seed, prompts)
    _write_parquet(folder / "train.parquet", rows)
    _write_parquet(folder / "val.parquet", rows[:1])


def examples(seed: int, number: int) -> list[JsonObject]:
    """Rows in verl's dataset format (verl docs, preparation/prepare_data): one prompt of two digits each."""
    # Planning imports this module for its constants, but not numpy.
    import numpy as np

    choices = [len(words) for words in PLACES]
    drawn = np.random.default_rng([seed, 0]).integers(0, choices, (number, ANSWER_DIGITS))
    rows = []
    for index, digits in enumerate(drawn):
        text = " ".join(words[digit] for words, digit in zip(PLACES, digits, strict=True))
        rows.append(
            {
                "data_source": "repeat-digits",
                "prompt": [{"role": "user", "content": text}],
                "ability": "repeat",
                "reward_model": {"style": "rule", "ground_truth": text},
                "extra_info": {"index": index, "split": "train"},
            }
        )
    return rows


def model_config(*, experts: bool = False) -> JsonObject:
    """The model's config.json: Qwen2 with 0.07 million parameters and the vocabulary of the tokenizer.

    experts: Qwen3-MoE of the same size, whose tokens use half of its experts each.
    """
    return {
        "architectures": ["Qwen3MoeForCausalLM" if experts else "Qwen2ForCausalLM"],
        "model_type": "qwen3_moe" if experts else "qwen2",
        **(_EXPERT_OPTIONS if experts else {}),
        "vocab_size": len(VOCABULARY),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "initializer_range": INITIAL_STD,
        "torch_dtype": "float32",
        **_token_numbers(),
    }


def weights(seed: int, *, experts: bool = False) -> dict[str, Floats]:
    """Initial weights, by transformers' names: normally distributed, biases zero, norms one."""
    import numpy as np

    rng = np.random.default_rng([seed, 1])

    def normal(*shape: int) -> Floats:
        return (INITIAL_STD * rng.standard_normal(shape)).astype(np.float32)

    keys = HIDDEN // HEADS * KEY_HEADS
    found = {"model.embed_tokens.weight": normal(len(VOCABULARY), HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, size in (("q", HIDDEN), ("k", keys), ("v", keys)):
            found[f"{prefix}.self_attn.{name}_proj.weight"] = normal(size, HIDDEN)
            if not experts:
                found[f"{prefix}.self_attn.{name}_proj.bias"] = np.zeros(size, np.float32)
        found[f"{prefix}.self_attn.o_proj.weight"] = normal(HIDDEN, HIDDEN)
        blocks = [f"{prefix}.mlp.experts.{number}" for number in range(EXPERTS)]
        for block in blocks if experts else [f"{prefix}.mlp"]:
            for name in ("gate", "up"):
                found[f"{block}.{name}_proj.weight"] = normal(2 * HIDDEN, HIDDEN)
            found[f"{block}.down_proj.weight"] = normal(HIDDEN, 2 * HIDDEN)
        if experts:
            found[f"{prefix}.mlp.gate.weight"] = normal(EXPERTS, HIDDEN)
            for name in ("q", "k"):
                found[f"{prefix}.self_attn.{name}_norm.weight"] = np.ones(HIDDEN // HEADS, np.float32)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    return {**found, "model.norm.weight": np.ones(HIDDEN, np.float32)}


def safetensors(tensors: Mapping[str, Floats]) -> bytes:
    """The safetensors file of float32 tensors (format: README of huggingface/safetensors, "Format")."""
    import numpy as np

    header: JsonObject = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = np.ascontiguousarray(tensor, "<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tokenizer() -> JsonObject:
    """The tokenizer.json: one token for each word of the vocabulary, words separated by spaces.

    transformers 5 reads only its vocabulary and splits text like Qwen's tokenizer. The tokens are the same,
    because all words are single characters.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": content == END,
            }
            for number, content in enumerate((END, START))
        ],
        # Splitting at white space would remove line breaks.
        "normalizer": {"type": "Replace", "pattern": {"String": "\n"}, "content": LINE_BREAK},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(VOCABULARY)},
            "unk_token": END,
        },
    }


def _tokenizer_config() -> JsonObject:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": END,
        "pad_token": END,
        "eos_token": END,
        "padding_side": "left",
        "model_max_length": 128,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _token_numbers() -> dict[str, int]:
    end = VOCABULARY.index(END)
    return {"pad_token_id": end, "eos_token_id": end, "bos_token_id": VOCABULARY.index(START)}


def _write_json(path: Path, value: JsonObject) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _write_parquet(path: Path, rows: Sequence[JsonObject]) -> None:
    import pyarrow as pa  # type: ignore[import-not-found,unused-ignore]
    from pyarrow import parquet  # type: ignore[import-not-found,unused-ignore]

    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
