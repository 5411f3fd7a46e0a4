"""Program in the cell: what a trainer does to its rollout engine between two steps.

    python -m harness.rollout.generation.plumbing_program --folder F --out plumbing.json

Sleep at both levels, wake-up as a whole and by parts, weights loaded again and replaced; each followed by
generation. Two settings that vllm-ascend forbids beside sleep mode are tried too: they must be refused.
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
"""Folder -> seed: what the engine starts with, and what the trainer has learned since."""

LEFT_OUT = "model.layers.1.mlp.down_proj.weight"
"""The tensor a careless trainer forgets: what then is generated must not pass for the new model."""


class Session:
    """Steps on one engine, each recorded."""

    def __init__(self, llm: Any, weights: Mapping[str, Mapping[str, Any]]) -> None:
        self.llm = llm
        self.weights = weights
        self.steps: list[PlumbingStep] = []
        self.cases: list[CaseRun] = []
        self.before = self.generated("healthy", "first")

    def generated(self, name: str, checkpoint: str) -> tuple[GeneratedRequest, ...]:
        """Generate; the CPU says later whether these are the checkpoint's log-probabilities."""
        found = vllm_engine.generate(self.llm)
        self.cases.append(
            CaseRun(name=name, dtype=DTYPE, checkpoint=checkpoint, state="generated", rounds=(found,))
        )
        return found

    def compared(
        self,
        name: str,
        expect: Literal["same", "different"],
        found: tuple[GeneratedRequest, ...],
        used: BytesInUse | None = None,
    ) -> None:
        """Note whether what is generated equals, bit for bit, what was before."""
        same = [_content(request) for request in found] == [_content(request) for request in self.before]
        outcome: Literal["same", "different"] = "same" if same else "different"
        self.steps.append(PlumbingStep(name=name, expect=expect, found=outcome, bytes=used))

    def slept(self, level: int, *parts: str) -> BytesInUse:
        """Sleep, and wake up unless parts are woken by the caller; bytes in use around it."""
        before = bytes_in_use()
        self.llm.sleep(level=level)
        asleep = bytes_in_use()
        if parts:
            return BytesInUse(before=before, asleep=asleep)
        self.llm.wake_up()
        return BytesInUse(before=before, asleep=asleep, awake=bytes_in_use())

    def load(self, name: str, *, without: str = "") -> None:
        """Give the model a trainer's state dict, tensors on the device under the trainer's names."""
        state = [(key, value) for key, value in self.weights[name].items() if key != without]
        self.llm.apply_model(lambda model: _load(model, state))
        self.llm.reset_prefix_cache()


def steps(session: Session) -> None:
    """Everything a trainer does, in an order in which each step starts from healthy weights."""
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
    """All steps; one that raises is recorded and ends those of its engine."""
    vllm_engine.prepare()
    from harness.cell_program.torch_device import device_facts

    started = time.monotonic()
    weights = {name: _weights(folder / name, seed) for name, seed in CHECKPOINTS.items()}
    first = folder / "first"
    # The allocator of sleep mode is one per process, and asks this once: so first.
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
        packages={name: vllm_engine.installed_version(name) for name in PACKAGES},
        seconds=round(time.monotonic() - started, 3),
    )


def _refused_start(checkpoint: Path) -> PlumbingStep:
    """Sleep mode with expandable segments, which an unmappable memory pool cannot be made of."""
    name = "expandable segments with sleep mode"
    with _set("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"):
        try:
            with vllm_engine.engine(checkpoint, DTYPE, enable_sleep_mode=True):
                return PlumbingStep(name=name, expect="refused", found="accepted")
        except Exception as error:  # noqa: BLE001
            vllm_engine.tear_down()
            return _refusal(name, "xpandable segments", error)


def _refused_wake_up(session: Session) -> PlumbingStep:
    """Waking up with weights in FRACTAL_NZ, whose layout a trainer's tensors do not have."""
    name = "VLLM_ASCEND_ENABLE_NZ=1 at wake-up"
    session.llm.sleep(level=1)
    with _set("VLLM_ASCEND_ENABLE_NZ", "1"), _configured_nz():
        try:
            session.llm.wake_up()
        except Exception as error:  # noqa: BLE001
            return _refusal(name, "FRACTAL_NZ", error)
    return PlumbingStep(name=name, expect="refused", found="accepted")


def _refusal(name: str, words: str, error: Exception) -> PlumbingStep:
    """A refusal counts only in the words that say why."""
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


def _weights(folder: Path, seed: int) -> Mapping[str, Any]:
    """A checkpoint, and the state dict of a trainer that holds it."""
    if not folder.is_dir():
        make_checkpoint(folder, KIND, DTYPE, seed)
    model = import_module("transformers").AutoModelForCausalLM.from_pretrained(folder)
    return dict(model.state_dict())


def _load(model: Any, state: Sequence[tuple[str, Any]]) -> None:
    model.load_weights([(name, value.to("npu")) for name, value in state])


def bytes_in_use() -> int:
    """Bytes of the device that are not free."""
    import torch

    free, total = torch.npu.mem_get_info()
    return int(total - free)


def _content(request: GeneratedRequest) -> tuple[object, object]:
    return request.tokens, request.logprobs


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    """An environment variable for a while."""
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
    """The same setting where a release has read it when the engine started: 0.11.0 and 0.23.0."""
    places = (
        (import_module("vllm_ascend.utils"), "_ENABLE_NZ"),
        (import_module("vllm_ascend.ascend_config").get_ascend_config(), "weight_nz_mode"),
    )
    read = [(place, name, getattr(place, name, None)) for place, name in places]
    read = [(place, name, value) for place, name, value in read if value is not None]
    for place, name, _ in read:
        setattr(place, name, 1)
    try:
        yield
    finally:
        for place, name, value in read:
            setattr(place, name, value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the results; 0 also when a step raised, which is a result."""
    parser = argparse.ArgumentParser(prog="harness.rollout.generation.plumbing_program")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.out.write_text(json.dumps(to_json(run(options.folder))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
