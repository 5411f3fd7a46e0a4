"""What is known of real releases, asked again: `python -m benchmarks.compat --known`.

Each row is a sentence people know to be true and the answer the checks give; `MISSED` is another answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.check import Completed
from harness.cli.lint import run_command
from harness.compat import resolve
from harness.compat.npu_ops import misuses, read_torch_npu, read_uses
from harness.compat.published import fetch_sources

# vllm-ascend releases around the borders of what verl 0.9.1's metadata goes with. The vendor's index,
# which has triton-ascend 3.2.1 and later, is left out: what only it has is `missing-version`
# and no contradiction.
BORDERS = {
    "0.18.0": False,
    "0.19.1rc1": False,
    "0.20.2rc1": True,
    "0.23.0": True,
    "0.23.0.post1": True,
    "0.24.0rc1": False,
    "0.30.0rc1": False,
}
DOZENS = 24
ALMOST_NONE = 3


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a running check is given, as far as `resolve` asks for it."""

    facets: Mapping[str, Any]
    cache: Path
    workdir: Path
    params: Mapping[str, Any] = field(default_factory=dict)

    def log(self, text: str) -> None:
        """Nobody reads it."""

    def command(self, argv: Sequence[str], **options: Any) -> Completed:
        """Run a program."""
        return run_command(argv, **options)


def problems(cache: Path, requirements: list[str], python: str = "3.11") -> list[dict[str, Any]]:
    """What keeps requirements from being resolved for x86_64."""
    with tempfile.TemporaryDirectory() as folder:
        task = Task(
            facets={
                "pins": {"requirements": requirements, "overrides": []},
                "platform": {"python": python, "arch": "x86_64"},
            },
            cache=cache,
            workdir=Path(folder),
        )
        found: list[dict[str, Any]] = resolve.run(task).measurements["problems"]  # type: ignore[arg-type]
        return found


def wrong_operators(cache: Path, consumer: str, torch_npu: str) -> list[str]:
    """Names of the operators that a release uses unguarded and that are not there or do not fit."""
    name, _, version = consumer.partition("==")
    uses = read_uses(fetch_sources(name, version, cache=cache, command=run_command))
    sources = fetch_sources("torch-npu", torch_npu, cache=cache, command=run_command)
    found = misuses(name, uses, read_torch_npu(torch_npu, sources))
    return [use.name for use in found if not use.guarded]


def first_pair(cache: Path) -> tuple[str, bool]:
    """vllm 0.11.0 and vllm-ascend 0.11.0 without overrides."""
    found = problems(cache, ["vllm==0.11.0", "vllm-ascend==0.11.0"])
    text = " ".join(problem["text"] for problem in found)
    return text, any(problem["kind"] == "conflict" and "torch" in problem["contested"] for problem in found)


def verl_range(cache: Path) -> tuple[str, bool]:
    """verl 0.9.1 with each vllm-ascend around the borders."""
    said, right = [], True
    for version, expected in BORDERS.items():
        found = problems(cache, ["verl==0.9.1", f"vllm-ascend=={version}"])
        clash = [one for one in found if one["kind"] not in ("missing-version", "unknown-package")]
        right = right and (not clash) is expected
        contested = {name for one in clash for name in one["contested"]}
        said.append(f"{version} {'no: ' + ', '.join(sorted(contested)) if clash else 'yes'}")
    return "; ".join(said), right


def verl_operator(cache: Path) -> tuple[str, bool]:
    """Operators of verl 0.9.1 that torch_npu lacks, before and from 2.10."""
    before = wrong_operators(cache, "verl==0.9.1", "2.9.0.post2")
    after = wrong_operators(cache, "verl==0.9.1", "2.10.0.post4")
    lacking = sorted(set(before) - set(after))
    return f"2.9.0.post2 lacks {', '.join(lacking)}; 2.10.0.post4 {len(after)} wrong", bool(lacking)


def ascend_operators(cache: Path) -> tuple[str, bool]:
    """vllm-ascend 0.23.0 has dozens of bad operators on torch_npu 2.9.0, almost none on its own": ascend_operators,
    "verl 0.9.1 limits Python to below 3.13": python_limit,
    "triton-ascend 3.2.0 has no wheel for Python 3.12": target,
    "vllm-ascend 0.23.0.post1 is a source package only": source_only,
    "wheels of vllm-ascend on the index are for A2 only": one_chip,
}


def known_table(cache: Path) -> int:
    """Print each sentence with the answer; returns how many are missed."""
    missed = 0
    for sentence, ask in KNOWN.items():
        answer, right = ask(cache)
        missed += not right
        print(f"{'ok    ' if right else 'MISSED'}  {sentence}\n        {answer}")
    return missed
