"""A failed resolution as sentences: what the problem is, and what can be done about it."""

from __future__ import annotations

from collections.abc import Collection

from harness.compat.resolve.resolve_request import ResolveRequest, pinned_releases
from harness.sources.packages.resolve_measurements import ResolveProblem
from harness.sources.packages.uv_errors import UvFailure, UvFailureKind
from harness.sources.redact import redact_url

# The compiler that triton-ascend needs is part of CANN: see its override in matrix.yaml.
TRITON_ON_SIM = (
    " On a simulated device triton-ascend is not used: there, an entry under `overrides` with a published "
    "version is enough."
)
UNAVAILABLE_TEXT = {
    UvFailureKind.MISSING_VERSION: "is not available from any package index that was searched",
    UvFailureKind.UNKNOWN_PACKAGE: "is unknown to every package index that was searched",
    UvFailureKind.WRONG_TARGET: "has no file for this platform",
    UvFailureKind.NO_WHEEL: (
        "has no wheel for this platform, and its source package does not declare its requirements"
    ),
    UvFailureKind.BUILD: "could not be built from its source package",
}
#: What uv says of a release whose wheels are all variants.
ONLY_VARIANTS = "only unsupported wheel variants"
VENDOR_PACKAGES = ("torch-npu", "triton-ascend", "vllm-ascend")


def resolve_problem(
    failure: UvFailure, request: ResolveRequest, unreachable: Collection[str] = ()
) -> ResolveProblem:
    """The problem that uv's failure shows. unreachable: indexes that did not respond, without credentials."""
    is_missing = failure.kind in (UvFailureKind.MISSING_VERSION, UvFailureKind.UNKNOWN_PACKAGE)
    indexes = request.indexes.get(failure.subject, ()) if is_missing else ()
    return ResolveProblem(
        kind=failure.kind,
        subject=failure.subject + failure.subject_versions,
        blamed=failure.blamed,
        contested=failure.contested,
        chain=failure.chain,
        dependencies=failure.dependencies,
        hints=failure.hints,
        text=_sentence(failure, request),
        remedy=remedy(failure, request),
        undecided=any(redact_url(url) in unreachable for url in indexes),
    )


def _sentence(failure: UvFailure, request: ResolveRequest) -> str:
    if failure.subject:
        dependents = [d for d in failure.dependencies if d.needs == failure.subject and d.package]
        by = f", required by {dependents[0].package}{dependents[0].versions}," if dependents else ""
        why = UNAVAILABLE_TEXT.get(failure.kind, "is not available")
        return f"{failure.subject}{failure.subject_versions}{by} {why} ({request.target})."
    if failure.kind is UvFailureKind.CONFLICT and failure.contested:
        name = failure.contested[0]
        required = [
            f"{d.package + d.versions if d.package else 'the stack'} requires {name}{d.needed_versions}"
            for d in failure.dependencies
            if d.needs == name
        ]
        return f"No version of {name} satisfies all requirements: {'; '.join(dict.fromkeys(required))}."
    if failure.chain:
        return " ".join(f"{step.facts}: {step.conclusion}." for step in failure.chain)
    return failure.text.splitlines()[0] if failure.text else "The pins cannot be resolved."


def remedy(failure: UvFailure, request: ResolveRequest) -> str:
    """What usually helps, in one or two sentences; "" when nothing is known."""
    if failure.kind is UvFailureKind.CONFLICT:
        return _conflict_remedy(failure)
    if failure.kind in (UvFailureKind.MISSING_VERSION, UvFailureKind.UNKNOWN_PACKAGE):
        version = pinned_releases(request.requirements).get(failure.subject, "")
        return f"{_missing_remedy(failure)}{_tag_remedy(failure.subject, version)}"
    if failure.kind is UvFailureKind.WRONG_TARGET:
        hint = failure.hints[0] if failure.hints else ""
        text = f"Choose a Python version that {failure.subject} has files for, or another version of it."
        return f"{text} {hint}".strip()
    if failure.kind is UvFailureKind.NO_WHEEL and ONLY_VARIANTS in failure.text:
        return (
            f"The index has only wheel variants of {failure.subject}, of which uv and pip choose none. "
            "`npu-matrix advise --soc SOC --cann VERSION` names the file for an NPU; or add an index with "
            "ordinary wheels, or build it from source."
        )
    if failure.kind is UvFailureKind.NO_WHEEL:
        return (
            f"Declare in the stack that {failure.subject} is built from source, or choose a version with a "
            f"wheel for {request.arch}."
        )
    if failure.kind is UvFailureKind.REQUIREMENT:
        return "Correct the requirement in matrix.yaml."
    return ""


def _conflict_remedy(failure: UvFailure) -> str:
    contested = failure.contested[0] if failure.contested else ""
    dependents = {d.package for d in failure.dependencies if d.needs == contested and d.package}
    if "vllm" in dependents and contested.startswith("torch"):
        # vllm-ascend's installation guide: the "empty" target removes vLLM's own pins of torch.
        return (
            f"Install vllm with VLLM_TARGET_DEVICE=empty, which removes its pin of {contested}, and install "
            f"{contested} last. In matrix.yaml, an entry for {contested} under `overrides` has the same "
            "effect."
        )
    if not contested:
        return ""
    parties = " and ".join(sorted(dependents)) or "the stack"
    return (
        f"Choose versions of {parties} that agree on {contested}. If these versions are known to work "
        f"together nevertheless, add an entry for {contested} with the reason under `overrides` of "
        "matrix.yaml."
    )


def _missing_remedy(failure: UvFailure) -> str:
    if failure.subject == "torch" and failure.subject_versions.endswith("+cpu"):
        return (
            "On x86_64, torch-npu up to 2.11.0 requires PyTorch's own +cpu build: add PyTorch's CPU index to "
            "pip's extra-index-url, or a folder with that wheel to its find-links."
        )
    if failure.subject in VENDOR_PACKAGES:
        return (
            f"If the vendor's package index has {failure.subject}{failure.subject_versions}, add that index "
            "to pip's extra-index-url or to `extra_index` of its axis in matrix.yaml. Otherwise choose a "
            f"published version.{TRITON_ON_SIM if failure.subject == 'triton-ascend' else ''}"
        )
    return f"Choose a published version of {failure.subject}, or add the package index that has it."


def _tag_remedy(package: str, version: str) -> str:
    """What to write for a version that only the git repository has; "" for a local or unknown version."""
    if not version or "+" in version:
        return ""
    return (
        f" If {version} is only a tag in git, and the axis of {package} in matrix.yaml has a `repository`, "
        f"write the version with the tag, for example `{version}@v{version}`: it is then built from source."
    )
