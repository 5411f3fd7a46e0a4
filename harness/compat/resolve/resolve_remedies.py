"""What to do about a stack that does not resolve: what people on Ascend do, where that is known."""

from __future__ import annotations

from harness.compat.resolve.resolve_request import Request
from harness.compat.resolve.resolver_errors import Explanation, Kind

# Its compiler is part of CANN: see the override in matrix.yaml.
NOT_ON_SIM = (
    " A simulated device does without triton-ascend: there an entry under `overrides` that asks for a "
    "published version is enough."
)
VENDOR_PACKAGES = ("torch-npu", "triton-ascend", "vllm-ascend")


def remedy(problem: Explanation, request: Request) -> str:
    """One sentence or two, or "" when nothing useful is known."""
    if problem.kind is Kind.CONFLICT:
        return _of_conflict(problem)
    if problem.kind in (Kind.MISSING_VERSION, Kind.UNKNOWN_PACKAGE):
        return _of_missing(problem)
    if problem.kind is Kind.WRONG_TARGET:
        hint = _first(problem.hints)
        return f"Choose a Python that {problem.subject} has files for, or another version. {hint}".strip()
    if problem.kind is Kind.NO_WHEEL:
        return (
            f"Name {problem.subject} as built from source in the stack, or choose a version with a wheel for "
            f"{request.arch}."
        )
    if problem.kind is Kind.REQUIREMENT:
        return "Correct the requirement in matrix.yaml."
    return ""


def _of_conflict(problem: Explanation) -> str:
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


def _of_missing(problem: Explanation) -> str:
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
