"""Compute the expected log-probabilities of generated tokens with transformers on the CPU.

    python -m harness.rollout.generation.reference_log_probs --results dense.json --folder F --out J

Each generated sequence is evaluated once, as a whole, in float64, without cache, batching or decoding. The
tolerance is measured as the largest deviation of eight perturbed evaluations: for fp32, every operation is
perturbed by the error that the numerics contract permits (`stochastic_arithmetic`); for bf16, every bf16
result is rounded again (`bf16_rounding`). Runs with the cell's packages, but torch_npu cannot be imported.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import FP32
from harness.rollout.generation.bf16_rounding import AnotherRounding
from harness.rollout.generation.generation_measurements import (
    CaseRun,
    FaultRun,
    GeneratedRequest,
    LogProbTolerance,
    ReferenceCase,
    ReferenceFault,
    ReferenceFile,
    ReferenceRequest,
    ReferenceRounds,
    Rounds,
)
from harness.serialisation import to_json

FORMAT = "npu-matrix-generation-reference/1"
SAMPLES = 8
"""As in the check `actor`."""


class ReferenceModel:
    """A checkpoint on the CPU, in float64 and as it is stored."""

    def __init__(self, checkpoint: Path) -> None:
        import torch

        self._torch = torch
        self._checkpoint = checkpoint
        # Buffers were computed in fp32, as in vLLM, before they are converted.
        self._wide = self._load(torch.float64).to(torch.float64)
        self._stored: Any = None
        self._exact: dict[tuple[int, ...], Any] = {}

    def exact(self, sequence: Sequence[int]) -> Any:
        """The log-probabilities (positions, vocabulary) of every next token."""
        key = tuple(sequence)
        if key not in self._exact:
            self._exact[key] = self._evaluate(self._wide, key, stochastic_arithmetic.exact(FP32))
        return self._exact[key]

    def perturbed(self, sequence: Sequence[int], dtype: str, seed: int) -> Any:
        """The same with the rounding errors of another implementation in `dtype`."""
        if dtype == "float32":
            return self._evaluate(self._wide, sequence, stochastic_arithmetic.perturbed(FP32, seed))
        if self._stored is None:
            self._stored = self._load(getattr(self._torch, dtype))
        return self._evaluate(self._stored, sequence, AnotherRounding(seed))

    def _load(self, dtype: Any) -> Any:
        transformers = import_module("transformers")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self._checkpoint, dtype=dtype, attn_implementation="eager"
        )
        if hasattr(model, "set_experts_implementation"):
            # The default of transformers 5, a grouped matmul, does not support float64.
            model.set_experts_implementation("eager")
        return model.eval()

    def _evaluate(self, model: Any, sequence: Sequence[int], mode: Any) -> Any:
        torch = self._torch
        with torch.no_grad(), mode:
            logits = model(torch.tensor([list(sequence)]), use_cache=False).logits[0]
            # vLLM samples in fp32, whatever the model's dtype is.
            return torch.log_softmax(logits.float(), -1)


def describe(reference: ReferenceModel, request: GeneratedRequest) -> ReferenceRequest:
    """The reference of each generated token.

    Its log-probabilities of the listed tokens, the most likely token, and the rank of the generated token.
    """
    rows = _generated(reference.exact(_sequence(request)), request)
    listed, best, ranks = [], [], []
    for row, token, place in zip(rows, request.tokens, request.logprobs, strict=True):
        listed.append({name: float(row[int(name)]) for name in place})
        likeliest = int(row.argmax())
        best.append((likeliest, float(row[likeliest])))
        ranks.append(int((row > row[token]).sum()))
    return ReferenceRequest(logprobs=tuple(listed), best=tuple(best), ranks=tuple(ranks))


def tolerance(
    reference: ReferenceModel, requests: Sequence[GeneratedRequest], dtype: str
) -> LogProbTolerance:
    """The largest and the root mean square error of log-probabilities in eight perturbed evaluations."""
    largest, length = 0.0, 0.0
    unique = {tuple(_sequence(request)): request for request in requests}
    for seed in range(SAMPLES):
        total, count = 0.0, 0
        for sequence, request in unique.items():
            moved = _generated(reference.perturbed(sequence, dtype, seed), request)
            exact = _generated(reference.exact(sequence), request)
            for far, true, place in zip(moved, exact, request.logprobs, strict=True):
                for name in place:
                    error = abs(float(far[int(name)] - true[int(name)]))
                    largest, total, count = max(largest, error), total + error * error, count + 1
        length = max(length, (total / max(count, 1)) ** 0.5)
    return LogProbTolerance(largest=largest, rms=length)


def evaluate(cases: Iterable[CaseRun], folder: Path) -> dict[str, ReferenceCase]:
    """The reference of every case that was generated, by name."""
    found: dict[str, ReferenceCase] = {}
    models: dict[str, ReferenceModel] = {}
    for case in cases:
        if case.state != "generated":
            continue
        if case.checkpoint not in models:
            models[case.checkpoint] = ReferenceModel(folder / case.checkpoint)
        model = models[case.checkpoint]
        found[case.name] = ReferenceCase(
            safety=FP32.safety,
            tolerance=tolerance(model, [request for one in case.rounds for request in one], case.dtype),
            rounds=_described(model, case.rounds),
            faults=tuple(
                ReferenceFault(family=fault.family, rounds=_described(model, fault.rounds))
                for fault in case.faults
            ),
        )
    return found


def _described(model: ReferenceModel, rounds: Rounds) -> ReferenceRounds:
    return tuple(tuple(describe(model, request) for request in requests) for requests in rounds)


def _sequence(request: GeneratedRequest) -> list[int]:
    """Prompt and tokens without the last token, which has no successor."""
    return [*request.prompt, *request.tokens][:-1]


def _generated(rows: Any, request: GeneratedRequest) -> Any:
    return rows[len(request.prompt) - 1 :]


def read_cases(results: Path) -> tuple[CaseRun, ...]:
    """The cases of a results file. It is read without pydantic, which cells need not have."""
    return tuple(
        CaseRun(
            **{
                **case,
                "rounds": _rounds(case["rounds"]),
                "faults": tuple(
                    FaultRun(**{**fault, "rounds": _rounds(fault["rounds"])}) for fault in case["faults"]
                ),
            }
        )
        for case in json.loads(results.read_text(encoding="utf-8"))["cases"]
    )


def _rounds(stored: Any) -> Rounds:
    return tuple(tuple(GeneratedRequest(**request) for request in requests) for requests in stored)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute and write the reference of a results file."""
    parser = argparse.ArgumentParser(prog="harness.rollout.generation.reference_log_probs")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
    started = time.monotonic()
    cases = evaluate(read_cases(options.results), options.folder)
    seconds = round(time.monotonic() - started, 3)
    reference = ReferenceFile(format=FORMAT, samples=SAMPLES, cases=cases, seconds=seconds)
    options.out.write_text(json.dumps(to_json(reference)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
