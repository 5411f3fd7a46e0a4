"""Do with a rollout engine what a trainer does between two steps: sleep, wake up, sync weights.

    python -m harness.rollout.generation.plumbing_program --folder F --out plumbing.json

Tests both sleep levels, wake-up as a whole and by parts, and loading the same and other weights. The engine
generates after each of them. Two settings that are not allowed with sleep mode must be rejected by
vllm-ascend. In-cell module.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from harness.cell_program.torch_device import device_facts, package_version
from harness.cell_program.unsimulated_operators import unsimulated_operators
from harness.rollout.generation import vllm_engine
from harness.rollout.generation.generation_measurements import (
    BytesInUse,
    CaseRun,
    GeneratedRequest,
    PlumbingFile,
    PlumbingStep,
)
from harness.rollout.generation.generation_program import LAST_LINES, PACKAGES, simulated
from harness.rollout.generation.tiny_checkpoints import make_checkpoint
from harness.serialisation import to_json

FORMAT = "npu-matrix-plumbing/1"
KIND, DTYPE = "qwen2", "float32"
CHECKPOINTS: Mapping[str, int] = {"first": 0, "second": 1}
"""Folder -> seed of the weights with which the engine starts, and of those that are synced later."""

LEFT_OUT = "model.layers.1.mlp.down_proj.weight"
"""The tensor that a faulty weight sync omits; the check must detect it."""

StateDict = Mapping[str, Any]
"""Name -> tensor."""


class Session:
    """Runs steps on one engine and records them."""

    def __init__(self, llm: Any, weights: Mapping[str, StateDict]) -> None:
        self.llm = llm
        self.weights = weights
        self.steps: list[PlumbingStep] = []
        self.cases: list[CaseRun] = []
        self.before = self.generated("healthy", "first")

    def generated(self, name: str, checkpoint: str) -> tuple[GeneratedRequest, ...]:
        """Generate, and record a case that is later compared with the checkpoint's CPU reference."""
        requests = vllm_engine.generate(self.llm)
        self.cases.append(
            CaseRun(name=name, dtype=DTYPE, checkpoint=checkpoint, state="generated", rounds=(requests,))
        )
        return requests

    def compared(
        self,
        name: str,
        expect: Literal["same", "different"],
        requests: tuple[GeneratedRequest, ...],
        used: BytesInUse | None = None,
    ) -> None:
        """Record whether tokens and log-probabilities are bitwise equal to those of the first generation."""
        same = [_content(request) for request in requests] == [_content(request) for request in self.before]
        outcome: Literal["same", "different"] = "same" if same else "different"
        self.steps.append(PlumbingStep(name=name, expect=expect, found=outcome, bytes=used))

    def slept(self, level: int, *parts: str) -> BytesInUse:
        """Sleep, and wake up unless the caller wakes up `parts` itself. Returns the memory in use."""
        before = bytes_in_use()
        self.llm.sleep(level=level)
        asleep = bytes_in_use()
        if parts:
            return BytesInUse(before=before, asleep=asleep)
        self.llm.wake_up()
        return BytesInUse(before=before, asleep=asleep, awake=bytes_in_use())

    def load(self, name: str, *, without: str = "") -> None:
        """Load the checkpoint's state dict into the engine's model, except the tensor `without`."""
        state = [(key, value) for key, value in self.weights[name].items() if key != without]
        self.llm.apply_model(lambda model: _load(model, state))
        self.llm.reset_prefix_cache()


def steps(session: Session) -> None:
    """Run all steps, in an order in which each step starts with correct weights."""
    used = session.slept(1)
    session.compared("sleep 1, wake up", "same", vllm_engine.generate(session.llm), used)
    used = session.slept(2)
    session.compared("sleep 2, wake up, nothing loaded", "different", vllm_engine.generate(session.llm), used)
    session.load("first")
    session.compared("the same weights loaded", "same", vllm_engine.generate(session.llm))
    used = session.slept(2, "weights", "kv_cache")
    session.llm.wake_up(tags=["weights"])
    session.load("first")
    session.llm.wake_up(tags=["kv_cache"])
    session.compared("sleep 2, weights, load, cache", "same", vllm_engine.generate(session.llm), used)
    session.steps.append(_refused_wake_up(session))
    session.llm.wake_up()
    session.compared("wake up after the refusal", "same", vllm_engine.generate(session.llm))
    session.load("second")
    session.compared("new weights", "different", session.generated("new weights", "second"))
    session.load("first")
    session.load("second", without=LEFT_OUT)
    session.generated("one tensor forgotten", "second")


def run(folder: Path) -> PlumbingFile:
    """Run all steps. An error is recorded, and ends the steps of its engine."""
    vllm_engine.prepare()
    started = time.monotonic()
    weights = {name: _weights(folder / name, seed) for name, seed in CHECKPOINTS.items()}
    first = folder / "first"
    # The allocator of sleep mode reads this setting once per process, so this step comes first.
    found = [_refused_start(first)]
    cases: list[CaseRun] = []
    try:
        with vllm_engine.engine(first, DTYPE, enable_sleep_mode=True) as llm:
            session = Session(llm, weights)
            try:
                steps(session)
            finally:
                found += session.steps
                cases += session.cases
    except Exception as error:  # noqa: BLE001 - whatever the stack raises is the measurement
        vllm_engine.tear_down()
        found.append(_raised("the steps after", error))
    return PlumbingFile(
        format=FORMAT,
        steps=tuple(found),
        cases=tuple(cases),
        device=device_facts("npu:0"),
        packages={name: package_version(name) for name in PACKAGES},
        seconds=round(time.monotonic() - started, 3),
    )


def _refused_start(checkpoint: Path) -> PlumbingStep:
    """Start with sleep mode and expandable segments, whose memory the allocator cannot unmap."""
    name = "expandable segments with sleep mode"
    with _set("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"):
        try:
            with vllm_engine.engine(checkpoint, DTYPE, enable_sleep_mode=True):
                return PlumbingStep(name=name, expect="refused", found="accepted")
        except Exception as error:  # noqa: BLE001
            vllm_engine.tear_down()
            return _refusal(name, "xpandable segments", error)


def _refused_wake_up(session: Session) -> PlumbingStep:
    """Wake up with weights in FRACTAL_NZ, a layout that a trainer's tensors do not have."""
    name = "VLLM_ASCEND_ENABLE_NZ=1 at wake-up"
    session.llm.sleep(level=1)
    with _set("VLLM_ASCEND_ENABLE_NZ", "1"), _configured_nz():
        try:
            session.llm.wake_up()
        except Exception as error:  # noqa: BLE001
            return _refusal(name, "FRACTAL_NZ", error)
    return PlumbingStep(name=name, expect="refused", found="accepted")


def _refusal(name: str, words: str, error: Exception) -> PlumbingStep:
    """A step that was refused, if the error contains `words`; any other error counts as raised."""
    text = "".join(traceback.format_exception(error))
    if words not in text:
        return _raised(name, error, "refused")
    line = next(line.strip() for line in text.splitlines()[::-1] if words in line)
    return PlumbingStep(name=name, expect="refused", found="refused", message=line[:300])


def _raised(name: str, error: Exception, expect: Literal["same", "refused"] = "same") -> PlumbingStep:
    text = "".join(traceback.format_exception(error))
    return PlumbingStep(
        name=name,
        expect=expect,
        found="raised",
        message=f"{type(error).__name__}: {str(error).strip()[:300]}",
        trace=tuple(text.strip().splitlines()[-LAST_LINES:]),
        not_simulated=tuple(unsimulated_operators(text)) if simulated() else (),
    )


def _weights(folder: Path, seed: int) -> StateDict:
    """Make the checkpoint if it does not exist, and return its state dict."""
    if not folder.is_dir():
        make_checkpoint(folder, KIND, DTYPE, seed)
    model = import_module("transformers").AutoModelForCausalLM.from_pretrained(folder)
    return dict(model.state_dict())


def _load(model: Any, state: Sequence[tuple[str, Any]]) -> None:
    model.load_weights([(name, value.to("npu")) for name, value in state])


def bytes_in_use() -> int:
    """The device memory in use, in bytes."""
    import torch

    free, total = torch.npu.mem_get_info()
    return int(total - free)


def _content(request: GeneratedRequest) -> tuple[object, object]:
    return request.tokens, request.logprobs


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    """Set an environment variable until the end of the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _configured_nz() -> Iterator[None]:
    """Enable NZ also in releases that read the setting when the engine starts (0.11.0 and 0.23.0)."""
    settings = (
        (import_module("vllm_ascend.utils"), "_ENABLE_NZ"),
        (import_module("vllm_ascend.ascend_config").get_ascend_config(), "weight_nz_mode"),
    )
    before = [(owner, name, getattr(owner, name, None)) for owner, name in settings]
    before = [(owner, name, value) for owner, name, value in before if value is not None]
    for owner, name, _ in before:
        setattr(owner, name, 1)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and write the results. Exit code 0 also when steps raised an error."""
    parser = argparse.ArgumentParser(prog="harness.rollout.generation.plumbing_program")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.out.write_text(json.dumps(to_json(run(options.folder))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
