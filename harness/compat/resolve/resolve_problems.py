"""What to do about a stack that does not resolve: what people on Ascend do, where that is known."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.compat.resolve.resolve_request import ResolveRequest
from harness.sources.packages.uv_errors import UvFailure, UvFailureKind

# Its compiler is part of CANN: see the override in matrix.yaml.
NOT_ON_SIM = (
    " A simulated device does without triton-ascend: there an entry under `overrides` that asks for a "
    "published version is enough."
)
UNAVAILABLE_TEXT = {
    UvFailureKind.MISSING_VERSION: "is on no index that was asked",
    UvFailureKind.UNKNOWN_PACKAGE: "is unknown to every index that was asked",
    UvFailureKind.WRONG_TARGET: "has no file for this target",
    UvFailureKind.NO_WHEEL: "has no wheel for this target and its source package does not say what it needs",
    UvFailureKind.BUILD: "could not be built from its source package",
}


VENDOR_PACKAGES = ("torch-npu", "triton-ascend", "vllm-ascend")


def problem_json(problem: UvFailure, request: ResolveRequest) -> dict[str, Any]:
    """A problem as it is stored: kind, packages to blame, uv's chain of causes, a sentence and a remedy."""
    return {
        "kind": problem.kind.value,
        "subject": problem.subject + problem.subject_versions,
        "blamed": list(problem.blamed),
        "contested": list(problem.contested),
        "chain": [asdict(step) for step in problem.chain],
        "dependencies": [asdict(dependency) for dependency in problem.dependencies],
        "hints": list(problem.hints),
        "text": _sentence(problem, request),
        "remedy": remedy(problem, request),
    }


def _sentence(problem: UvFailure, request: ResolveRequest) -> str:
    if problem.subject:
        wanting = [d for d in problem.dependencies if d.needs == problem.subject and d.package]
        by = f", wanted by {wanting[0].package}{wanting[0].versions}," if wanting else ""
        why = UNAVAILABLE_TEXT.get(problem.kind, "cannot be had")
        return f"{problem.subject}{problem.subject_versions}{by} {why} ({request.target})."
    if problem.kind is UvFailureKind.CONFLICT and problem.contested:
        name = problem.contested[0]
        wishes = [
            f"{d.package + d.versions if d.package else 'the stack'} wants {name}{d.needed_versions}"
            for d in problem.dependencies
            if d.needs == name
        ]
        return f"No version of {name} satisfies everyone: {'; '.join(dict.fromkeys(wishes))}."
    if problem.chain:
        return " ".join(f"{step.facts}: {step.conclusion}." for step in problem.chain)
    return problem.text.splitlines()[0] if problem.text else "The pins cannot be resolved."


def remedy(problem: UvFailure, request: ResolveRequest) -> str:
    """One sentence or two, or "" when nothing useful is known."""
    if problem.kind is UvFailureKind.CONFLICT:
        return _of_conflict(problem)
    if problem.kind in (UvFailureKind.MISSING_VERSION, UvFailureKind.UNKNOWN_PACKAGE):
        return _of_missing(problem)
    if problem.kind is UvFailureKind.WRONG_TARGET:
        hint = _first(problem.hints)
        return f"Choose a Python that {problem.subject} has files for, or another version. {hint}".strip()
    if problem.kind is UvFailureKind.NO_WHEEL:
        return (
            f"Name {problem.subject} as built from source in the stack, or choose a version with a wheel for "
            f"{request.arch}."
        )
    if problem.kind is UvFailureKind.REQUIREMENT:
        return "Correct the requirement in matrix.yaml."
    return ""


def _of_conflict(problem: UvFailure) -> str:
    contested = problem.contested[0] if problem.contested else ""
    wishing = {d.package for d in problem.dependencies if d.needs == contested and d.package}
    if "vllm" in wishing and contested.startswith("torch"):
        # vllm-ascend's installation guide: the "empty" target drops vLLM's own pins of torch.
        return (
            f"Install vllm with VLLM_TARGET_DEVICE=empty, which drops its pin of {contested}, and install "
            f"{contested} last: an entry for {contested} under `overrides` of matrix.yaml says the same."
        )
    if not contested:
        return ""
    parties = " and ".join(sorted(wishing)) or "the stack"
    return (
        f"Choose versions of {parties} that agree on {contested}; if they are known to work all the same, "
        f"say so, and why, with an entry for {contested} under `overrides` of matrix.yaml."
    )


def _of_missing(problem: UvFailure) -> str:
    if problem.subject == "torch" and problem.subject_versions.endswith("+cpu"):
        return (
            "torch-npu up to 2.9.0 asks on x86_64 for PyTorch's own +cpu build: add PyTorch's CPU index to "
            "pip's extra-index-url, or a folder with that wheel to its find-links."
        )
    if problem.subject in VENDOR_PACKAGES:
        return (
            "Add the vendor's package index to pip's extra-index-url, or to `extra_index` of its axis in "
            f"matrix.yaml, if it has {problem.subject}{problem.subject_versions}, or choose a published "
            f"version.{NOT_ON_SIM if problem.subject == 'triton-ascend' else ''}"
        )
    return f"Choose a published version of {problem.subject}, or add the index that has it."


def _first(hints: tuple[str, ...]) -> str:
    return hints[0] if hints else ""
