"""Known facts about real releases, and whether the static checks find each of them.

Packages and the index's answers come from the caches or from the package index.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, user_cache
from harness.check import Completed
from harness.compat.operators.operator_analysis import find_misuses, read_torch_npu_api, read_torch_npu_uses
from harness.compat.resolve import resolve_check
from harness.compat.resolve.archive_metadata import ArchiveMetadata, read_archive_metadata
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_pairs import Package
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.resolve_measurements import ResolveMeasured, ResolveProblem
from harness.sources.packages.uv_errors import UvFailureKind
from harness.workspace.downloads import run_quietly

MISSING = (UvFailureKind.MISSING_VERSION, UvFailureKind.UNKNOWN_PACKAGE)

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
    """The parts of a task's context that the check `resolve` uses."""

    facets: Mapping[str, Any]
    cache: Path
    workdir: Path
    params: Mapping[str, Any] = field(default_factory=dict)

    def log(self, text: str) -> None:
        """Not used by `resolve`."""

    def command(self, argv: Sequence[str], **options: Any) -> Completed:
        """Run a program."""
        return run_quietly(argv, **options)


def resolved(cache: Path, requirements: list[str], python: str = "3.11") -> ResolveMeasured:
    """The measurements of check `resolve` for requirements on x86_64."""
    with tempfile.TemporaryDirectory() as folder:
        task = Task(
            facets={
                "pins": {"requirements": requirements, "overrides": []},
                "platform": {"python": python, "arch": "x86_64"},
            },
            cache=cache,
            workdir=Path(folder),
        )
        return resolve_check.run(task).measurements  # type: ignore[arg-type]


def problems(cache: Path, requirements: list[str], python: str = "3.11") -> tuple[ResolveProblem, ...]:
    """Why requirements cannot be resolved."""
    return resolved(cache, requirements, python).problems


def sources(cache: Path, name: str, version: str) -> Path:
    """The sources of a release."""
    return ReleaseFetcher(cache=cache, command=run_quietly).sources(name, version).file


def archive(cache: Path, name: str, version: str) -> ArchiveMetadata:
    """The metadata of a release."""
    return read_archive_metadata(name, version, sources(cache, name, version))


def wrong_operators(cache: Path, consumer: str, torch_npu: str) -> list[str]:
    """Names of the operators that a release uses unguarded and that are not there or do not fit."""
    name, _, version = consumer.partition("==")
    file = sources(cache, name, version)
    with tempfile.TemporaryDirectory() as folder:
        answers = AnalysisCache(folder=Path(folder), code="benchmark")
        uses = read_torch_npu_uses(Package(name=name, version=version, file=file), answers)
    provider = read_torch_npu_api(torch_npu, sources(cache, "torch-npu", torch_npu))
    found = find_misuses(name, uses, provider)
    return [use.name for use in found if not use.guarded]


def first_pair(cache: Path) -> tuple[str, bool]:
    """vllm 0.11.0 and vllm-ascend 0.11.0 without overrides."""
    found = problems(cache, ["vllm==0.11.0", "vllm-ascend==0.11.0"])
    text = " ".join(problem.text for problem in found)
    return text, any(
        problem.kind is UvFailureKind.CONFLICT and "torch" in problem.contested for problem in found
    )


def verl_range(cache: Path) -> tuple[str, bool]:
    """verl 0.9.1 with the first and last compatible versions of vllm-ascend and their neighbours."""
    said, right = [], True
    for version, expected in BORDERS.items():
        found = problems(cache, ["verl==0.9.1", f"vllm-ascend=={version}"])
        clash = [one for one in found if one.kind not in MISSING]
        right = right and (not clash) is expected
        contested = {name for one in clash for name in one.contested}
        said.append(f"{version} {'no: ' + ', '.join(sorted(contested)) if clash else 'yes'}")
    return "; ".join(said), right


def verl_operator(cache: Path) -> tuple[str, bool]:
    """Operators of verl 0.9.1 that torch_npu 2.9.0 lacks and 2.10.0 has."""
    lacking = wrong_operators(cache, "verl==0.9.1", "2.9.0")
    posted = wrong_operators(cache, "verl==0.9.1", "2.9.0.post2")
    after = wrong_operators(cache, "verl==0.9.1", "2.10.0.post2")
    text = f"2.9.0 lacks {', '.join(sorted(set(lacking)))}; wrong on 2.9.0.post2: {len(posted)}"
    return f"{text}, on 2.10.0.post2: {len(after)}", bool(set(lacking) - set(after))


def ascend_operators(cache: Path) -> tuple[str, bool]:
    """vllm-ascend 0.23.0 on torch_npu 2.9.0 and on its own pin."""
    before = wrong_operators(cache, "vllm-ascend==0.23.0", "2.9.0")
    own = wrong_operators(cache, "vllm-ascend==0.23.0", "2.10.0.post4")
    text = f"{len(before)} wrong uses on 2.9.0, {len(own)} on 2.10.0.post4 ({', '.join(sorted(set(own)))})"
    return text, len(before) >= DOZENS and len(own) <= ALMOST_NONE


def python_limit(cache: Path) -> tuple[str, bool]:
    """The reasons for verl 0.9.1 on Python 3.13."""
    said = archive(cache, "verl", "0.9.1").refusals("3.13")
    return " ".join(said), any("pip refuses" in text for text in said)


def target(cache: Path) -> tuple[str, bool]:
    """triton-ascend 3.2.0 has wheels up to Python 3.11."""
    found = problems(cache, ["triton-ascend==3.2.0"], python="3.12")
    return " ".join(one.text for one in found), any(one.kind is UvFailureKind.WRONG_TARGET for one in found)


def source_only(cache: Path) -> tuple[str, bool]:
    """vllm-ascend 0.23.0.post1 has no wheel; its source package says what it needs."""
    remarks = resolved(cache, ["vllm-ascend==0.23.0.post1"]).from_sdist
    return f"read from source packages: {', '.join(remarks)}", "vllm-ascend" in remarks


def one_chip(cache: Path) -> tuple[str, bool]:
    """The wheels of vllm-ascend are for A2."""
    said = archive(cache, "vllm-ascend", "0.23.0").remarks()
    return " ".join(said), any("A2 only" in text for text in said)


KNOWN: Mapping[str, Callable[[Path], tuple[str, bool]]] = {
    "vllm 0.11.0 + vllm-ascend 0.11.0 do not resolve without overrides, because of torch": first_pair,
    "verl 0.9.1 goes with vllm-ascend 0.20.2rc1 to 0.23.0.post1 only": verl_range,
    "verl 0.9.1 needs an operator that torch_npu 2.9.0 lacks and 2.10.0 has": verl_operator,
    "vllm-ascend 0.23.0: dozens of bad operators on torch_npu 2.9.0, on its pin few": ascend_operators,
    "verl 0.9.1 limits Python to below 3.13": python_limit,
    "triton-ascend 3.2.0 has no wheel for Python 3.12": target,
    "vllm-ascend 0.23.0.post1 is a source package only": source_only,
    "wheels of vllm-ascend on the index are for A2 only": one_chip,
}


def figures() -> Iterator[Figure]:
    cache = user_cache()
    for sentence, check in KNOWN.items():
        _answer, is_right = check(cache)
        yield Figure(claim=f"missed: {sentence}", measured=0 if is_right else 1, limit=0)
