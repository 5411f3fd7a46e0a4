"""Tests of the CPU reference of generation: a correct decoder is within tolerance, one that rounds is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from harness.rollout.generation.bf16_rounding import AnotherRounding  # noqa: E402
from harness.rollout.generation.generation_compare import compare_case  # noqa: E402
from harness.rollout.generation.generation_measurements import (  # noqa: E402
    CaseRun,
    GeneratedCase,
    GeneratedRequest,
)
from harness.rollout.generation.reference_log_probs import evaluate  # noqa: E402
from harness.rollout.generation.tiny_checkpoints import VOCABULARY, make_checkpoint  # noqa: E402

PROMPTS = ([5, 17, 300], [7])
TOKENS = 6


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(dtype: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    make_checkpoint(checkpoints / "qwen3", "qwen3", dtype, 0)
    return checkpoints


def decode(model: Any, prompt: list[int]) -> GeneratedRequest:
    """Greedy decoding, one token at a time."""
    tokens: list[int] = []
    log_probs: list[dict[str, float]] = []
    for _ in range(TOKENS):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, -1]
        row = torch.log_softmax(logits.float(), -1)
        values, names = row.topk(5)
        log_probs.append({str(int(name)): float(value) for name, value in zip(names, values, strict=True)})
        tokens.append(int(names[0]))
    return GeneratedRequest(prompt=tuple(prompt), tokens=tuple(tokens), logprobs=tuple(log_probs))


@contextmanager
def rounded(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Round the values of the first layer's attention to `dtype`."""
    handle = model.model.layers[0].self_attn.v_proj.register_forward_hook(
        lambda _module, _inputs, output: output.to(dtype).to(output.dtype)
    )
    try:
        yield
    finally:
        handle.remove()


def judged(folder: Path, dtype: str, low: torch.dtype | None = None) -> GeneratedCase:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "qwen3", dtype=getattr(torch, dtype), attn_implementation="eager"
    ).eval()
    with rounded(model, low or getattr(torch, dtype)):
        requests = tuple(decode(model, prompt) for prompt in PROMPTS)
    case = CaseRun(name="qwen3", checkpoint="qwen3", dtype=dtype, state="generated", rounds=(requests,))
    return compare_case(case, evaluate((case,), folder)["qwen3"])[0]


def test_a_correct_decoder_is_within_tolerance(folder: Path, dtype: str) -> None:
    entry = judged(folder, dtype)
    assert entry.budget <= 1
    assert entry.choice == ""
    assert entry.tokens == len(PROMPTS) * TOKENS


def test_values_in_a_lower_precision_are_noticed(folder: Path, dtype: str) -> None:
    low = {"float32": torch.bfloat16, "bfloat16": torch.float8_e5m2}[dtype]
    assert judged(folder, dtype, low).budget > 1


def test_the_tokenizer_is_as_long_as_the_vocabulary(folder: Path) -> None:
    assert len(transformers.AutoTokenizer.from_pretrained(folder / "qwen3")) == VOCABULARY


def test_the_same_seed_makes_the_same_checkpoint(folder: Path, dtype: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "again", "qwen3", dtype, 0)
    names = "model.safetensors"
    assert (tmp_path / "again" / names).read_bytes() == (folder / "qwen3" / names).read_bytes()


def test_another_rounding_moves_bf16_and_nothing_else() -> None:
    wide, low = torch.linspace(1, 2, 50), torch.linspace(1, 2, 50).bfloat16()
    with AnotherRounding(0):
        fp32, moved = wide * 3, low * 3
    assert torch.equal(fp32, torch.linspace(1, 2, 50) * 3)
    exact = torch.linspace(1, 2, 50).bfloat16() * 3
    relative = ((moved - exact).float() / exact.float()).abs()
    assert 0 < float(relative.max()) <= 2 * 2.0**-7
