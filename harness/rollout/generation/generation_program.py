"""Generate from tiny checkpoints with vLLM on the device, optionally with injected faults.

    python -m harness.rollout.generation.generation_program --group dense --folder F --out J [--faults]

Writes tokens and log-probabilities. `reference_log_probs` computes the expected ones in another process.
In-cell module.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.cell_program.torch_device import device_facts, package_version
from harness.cell_program.unsimulated_operators import unsimulated_operators
from harness.devices.sim.faults.fault_spec import OF_UPDATES, parse_faults
from harness.devices.sim.start import overlay
from harness.rollout.generation import engine_workers, vllm_engine
from harness.rollout.generation.generation_measurements import CaseRun, FaultRun, GenerationFile
from harness.rollout.generation.tiny_checkpoints import make_checkpoint
from harness.rollout.operators.operator_result import OperatorMeasurement
from harness.serialisation import to_json

FORMAT = "npu-matrix-generation/1"
PACKAGES = ("vllm", "vllm-ascend", "torch", "torch-npu", "transformers", "numpy")
SEED = 0
LAST_LINES = 12

_LONG = tuple(3 + (7 * place) % 500 for place in range(140))
"""Longer than a cache block of vllm-ascend (128 tokens), so that a second request can reuse a block."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A case: a checkpoint of `kind` and `dtype`, and an engine with `options`.

    sampling: vLLM's sampling parameters, greedy if empty. repeats: number of rounds with the same prompts.
    devices: number of devices that the engine needs. expects_cached: the second round must find prompts in
    the prefix cache. sinks: the model has attention sinks, which some releases of vllm-ascend do not compute.
    graphs: the engine must replay captured graphs.
    """

    name: str
    kind: str
    dtype: str = "float32"
    options: vllm_engine.EngineOptions = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    prompts: Sequence[Sequence[int]] = vllm_engine.PROMPTS
    repeats: int = 1
    devices: int = 1
    expects_cached: bool = False
    sinks: bool = False
    graphs: bool = False

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint's folder."""
        return f"{self.kind}-{self.dtype}"


_CHUNKED: vllm_engine.EngineOptions = {
    "max_num_batched_tokens": 32,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
}
#: Each decoding step replays a graph. The sizes are numbers of requests.
_GRAPHS: vllm_engine.EngineOptions = {
    "enforce_eager": False,
    "compilation_config": {
        "mode": 3,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4],
    },
}
_SAMPLED: Mapping[str, float] = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "seed": 7}

GROUPS: Mapping[str, tuple[Generation, ...]] = {
    "dense": (
        Generation(name="qwen2", kind="qwen2"),
        Generation(name="qwen2 sampled", kind="qwen2", sampling=_SAMPLED),
        Generation(
            name="qwen2 chunked prefill, prefix cache",
            kind="qwen2",
            options=_CHUNKED,
            prompts=(*vllm_engine.PROMPTS, _LONG),
            repeats=2,
            expects_cached=True,
        ),
        Generation(name="qwen3", kind="qwen3"),
        Generation(name="qwen3 bf16", kind="qwen3", dtype="bfloat16"),
        Generation(
            name="llama on two devices",
            kind="llama",
            options={"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
            devices=2,
        ),
    ),
    # A global variable of vllm-ascend stores whether the model is a MoE, so these need a separate process.
    "experts": (Generation(name="qwen3_moe", kind="qwen3_moe"),),
    # An engine that fits into the memory pool of the previous engine is rejected, so each has its own
    # process.
    "experts-bf16": (Generation(name="qwen3_moe bf16", kind="qwen3_moe", dtype="bfloat16"),),
    "gpt_oss": (Generation(name="gpt_oss", kind="gpt_oss", sinks=True),),
    # An engine compiles its model for graphs only in a process in which dynamo is enabled. vllm-ascend
    # refuses a second engine with graphs in the same process.
    "graphs": (Generation(name="qwen2 in graphs", kind="qwen2", options=_GRAPHS, graphs=True),),
    "graphs-bf16": (
        Generation(name="qwen3 bf16 in graphs", kind="qwen3", dtype="bfloat16", options=_GRAPHS, graphs=True),
    ),
}

FAULTS: Mapping[str, Mapping[str, str]] = {
    "qwen2": {
        "attention": "round",
        "norm": "round",
        "activation": "scale;any;factor=1.005",
        "rotary": "round",
        "cache": "stale;any;output=1",
        "product": "round",
        "sampling": "round",
        "embedding": "round",
    },
    "qwen2 sampled": {"choice": "zero"},
    # This operator is called only if the rows of the embedding are distributed over several devices.
    "llama on two devices": {"vocabulary": "round"},
    # The error of one bf16 rounding is within the bf16 tolerance, so this fault is coarser.
    "qwen3 bf16": {"activation": "scale;any;factor=1.25"},
    "qwen3_moe": {"routing": "round", "experts": "round", "dispatch": "round"},
    # Rounding can change expert routing, so the tolerance is wide and only gross errors are detected.
    "qwen3_moe bf16": {"experts": "sign"},
    "gpt_oss": {"attention": "round"},
    # Before each replay, vllm-ascend updates the sequence lengths and block tables of attention.
    "qwen2 in graphs": {"attention": OF_UPDATES, "norm": "round", "product": "round", "activation": "round"},
    "qwen3 bf16 in graphs": {"attention": OF_UPDATES},
}
"""Case -> family of operators (`operator_cases`) -> the fault for the called operators of this family.

Most faults change no token.
"""


def run(group: str, folder: Path, *, faults: bool) -> GenerationFile:
    """Run all cases of the group. If a case raises an error, the error is recorded and the next case runs."""
    vllm_engine.prepare(compiles=any(case.graphs for case in GROUPS[group]))
    import torch

    started = time.monotonic()
    device = "npu:0"
    entries: list[CaseRun] = []
    shared: dict[str, list[Generation]] = {}
    for case in GROUPS[group]:
        shared.setdefault(json.dumps([case.checkpoint, dict(case.options)]), []).append(case)
    named = _battery(device) if faults else None
    with _counted_calls() as calls:
        for cases in shared.values():
            entries += _on_one_engine(cases, folder, torch.npu.device_count(), named)
    return GenerationFile(
        format=FORMAT,
        group=group,
        cases=tuple(entries),
        calls={name: count for name, count in calls.items() if not name.startswith("aten::")},
        operators=() if named is None else named(),
        device=device_facts(device),
        packages={name: package_version(name) for name in PACKAGES},
        seconds=round(time.monotonic() - started, 3),
    )


Measure = Callable[[], tuple[OperatorMeasurement, ...]]
"""Measures every operator of the test battery."""


def _on_one_engine(
    cases: Sequence[Generation], folder: Path, devices: int, named: Measure | None
) -> list[CaseRun]:
    """Run cases that share an engine. named: measures the operators while a fault is injected, or None."""
    first = cases[0]
    why = _impossible(first, devices)
    if why:
        return [_case_run(case, state="skipped", why=why) for case in cases]
    generated: dict[str, CaseRun] = {}
    try:
        with vllm_engine.engine(_checkpoint(folder, first), first.dtype, **first.options) as llm:
            called = {}
            for case in cases:
                before = _calls(llm, case)
                with vllm_engine.counted_replays() as replays:
                    rounds = tuple(
                        vllm_engine.generate(llm, case.prompts, case.sampling) for _ in range(case.repeats)
                    )
                generated[case.name] = _case_run(
                    case, state="generated", rounds=rounds, replays=next(replays)
                )
                called[case.name] = (_calls(llm, case) - before).keys()
            if named is not None:
                for case in cases:
                    faults = tuple(
                        _under_fault(
                            llm, case, family, seeded_fault(family, effect, called[case.name]), named
                        )
                        for family, effect in FAULTS.get(case.name, {}).items()
                    )
                    generated[case.name] = replace(generated[case.name], faults=faults)
    except Exception as error:  # noqa: BLE001 - whatever the stack raises is the measurement
        vllm_engine.tear_down()
        text = "".join(traceback.format_exception(error))
        failure = partial(
            _case_run,
            state="raised",
            error=f"{type(error).__name__}: {str(error).strip()[:500]}",
            trace=tuple(text.strip().splitlines()[-LAST_LINES:]),
            # On a real device, an operator that CANN lacks is a failure of the cell.
            not_simulated=tuple(unsimulated_operators(text)) if simulated() else (),
        )
        return [generated.get(case.name) or failure(case) for case in cases]
    return [generated[case.name] for case in cases]


def _case_run(case: Generation, **facts: Any) -> CaseRun:
    return CaseRun(
        name=case.name,
        kind=case.kind,
        dtype=case.dtype,
        checkpoint=case.checkpoint,
        sampling=dict(case.sampling),
        expects_cached=case.expects_cached,
        expects_replays=case.graphs,
        **facts,
    )


def simulated() -> bool:
    """Whether this process computes on the simulated device."""
    return overlay.installed() is not None


def _impossible(case: Generation, devices: int) -> str:
    """Why this cell cannot run the case, or ""."""
    if case.devices > devices:
        return f"it needs {case.devices} devices, and there is {devices}"
    if case.sinks and not vllm_engine.computes_sinks():
        return "this vllm-ascend has no attention with sinks"
    return ""


def seeded_fault(family: str, effect: str, called: Collection[str]) -> str:
    """The specification of a fault in every called operator of `family`, "" if none of them was called.

    called: the operators that a clean run called. Releases use different operators for the same purpose.
    """
    from harness.rollout.operators.operator_cases import CASES

    names = {case.operator for case in CASES if case.family == family}
    return "|".join(f"{name};{effect}" for name in sorted(names & set(called)))


def _under_fault(llm: Any, case: Generation, family: str, text: str, named: Measure) -> FaultRun:
    """Generate while a fault is injected, and measure which operators the test battery finds wrong."""
    simulation = overlay.installed()
    if simulation is None:
        why = "faults need the simulated device"
        return FaultRun(family=family, fault=text, state="skipped", why=why)
    if not text:
        return FaultRun(family=family, fault=text, state="unplaced")
    with simulation.faults.injected(*parse_faults(text)) as faults:
        if case.devices > 1:
            engine_workers.total(llm, engine_workers.inject_fault, text)
        found = vllm_engine.generate(llm, case.prompts, case.sampling)
        # Counted before the test battery runs, because it calls the operators too.
        hit = (
            engine_workers.total(llm, engine_workers.release)
            if case.devices > 1
            else sum((fault.hit_operators for fault in faults), Counter())
        )
        wrong = sorted({result.operator for result in named() if result.budget > 1})
    return FaultRun(
        family=family,
        fault=text,
        state="generated",
        rounds=(found,),
        hit=dict(hit),
        named=tuple(wrong),
        only_in_graphs=all(fault.spec.kind == OF_UPDATES for fault in faults),
    )


def _battery(device: str) -> Measure:
    """Compute the expected values of the test battery (fp32). The result measures its operators."""
    import torch

    from harness.rollout.operators.operator_battery import Battery

    return Battery(device, torch.float32).measure


def _checkpoint(folder: Path, case: Generation) -> Path:
    checkpoint = folder / case.checkpoint
    if not checkpoint.is_dir():
        make_checkpoint(checkpoint, case.kind, case.dtype, SEED)
    return checkpoint


def _calls(llm: Any, case: Generation) -> Counter[str]:
    """How often the engine called each operator so far; empty on a real device."""
    if case.devices > 1:
        return engine_workers.total(llm, engine_workers.calls)
    simulation = overlay.installed()
    return Counter() if simulation is None else Counter(simulation.faults.calls)


@contextmanager
def _counted_calls() -> Iterator[dict[str, int]]:
    """At the end of the block: how often each operator was called in it; empty on a real device."""
    calls: dict[str, int] = {}
    simulation = overlay.installed()
    if simulation is not None:
        simulation.faults.count_calls()
    yield calls
    if simulation is not None:
        calls.update(simulation.faults.report()["calls"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the group and write the results. Exit code 0 also when cases raised an error."""
    parser = argparse.ArgumentParser(prog="harness.rollout.generation.generation_program")
    parser.add_argument("--group", choices=sorted(GROUPS), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args(arguments)
    results = run(options.group, options.folder, faults=options.faults)
    options.out.write_text(json.dumps(to_json(results)), encoding="utf-8")
    return 0


if __name__ == "__mp_main__":
    # A worker spawned by vLLM imports the main module again; it needs the device before it imports vLLM.
    from harness.devices.sim.start import sim_plugin  # noqa: F401
if __name__ == "__main__":
    sys.exit(main())
