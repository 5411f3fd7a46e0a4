"""`npu-matrix patches runtime`: check monkey patches against the package that they patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.patch_output import ANY, CODES, FILE, json_option, print_facts, say
from harness.errors import EXIT_OK, EXIT_UNEXPECTED, NothingSelectedError
from harness.serialisation import json_object

if TYPE_CHECKING:
    from harness.patchstack.runtime.monkey_patches import RuntimeVerdict


@click.command(
    "runtime",
    epilog="\b\nExamples:\n  npu-matrix patches runtime vllm_ascend.whl --against vllm.whl\n"
    "  npu-matrix patches runtime vllm-ascend.git --ref v0.13.0 --against vllm.whl\n"
    "  npu-matrix patches runtime ours/ --against vllm.whl --version 0.13.0 --record registry.json"
    + CODES.format(ok="every patched attribute exists", unexpected="one is missing or changed"),
)
@click.argument("patching", type=ANY)
@click.option("--ref", help="PATCHING is a clone or bare mirror: use this commit.")
@click.option(
    "--against", "upstream", type=ANY, required=True, help="The patched package: a folder, wheel or sdist."
)
@click.option("--package", default="vllm", show_default=True, help="Import name of the patched package.")
@click.option("--below", default="", help="Look for patches only in this folder of PATCHING.")
@click.option("--version", default="", help="Version of --against. Default: from its metadata.")
@click.option(
    "--registry", type=FILE, help="Also compare with the targets that --record stored for other versions."
)
@click.option(
    "--record", type=FILE, help="Store the definition of each target, for --registry and for cells."
)
@json_option
def runtime(
    *,
    patching: Path,
    ref: str | None,
    upstream: Path,
    package: str,
    below: str,
    version: str,
    registry: Path | None,
    record: Path | None,
    as_json: bool,
) -> int:
    """Check that every attribute a runtime patch replaces exists.

    Assignments to attributes of another package are found in the code. A replacement must accept the
    arguments of its target. With --registry, a target that disappeared or whose arguments changed since the
    previous version is a problem too. Nothing is imported or run.
    """
    from harness.patchstack.runtime.monkey_patches import check_runtime, find_runtime_patches
    from harness.patchstack.runtime.target_registry import (
        read_registry,
        record_targets,
        registry_differences,
        write_registry,
    )
    from harness.patchstack.stacks.upstream_tree import commit_target, folder_target
    from harness.sources.git.git_repository import Repository

    source = commit_target(Repository(patching), ref, package) if ref else folder_target(patching, package)
    target = folder_target(upstream, package, version)
    # Builds of one release differ in the local part alone, and have one source.
    release = target.version.partition("+")[0]
    patches = find_runtime_patches(source.tree, below, package)
    if not patches:
        raise NothingSelectedError(f"nothing in {source.tree.label} assigns to an attribute of {package}")
    verdicts = check_runtime(patches, target.tree)
    known = read_registry(registry) if registry else None
    problems = [
        f"{verdict.patch.file}:{verdict.patch.line}: {verdict.problem}"
        for verdict in verdicts
        if verdict.problem
    ]
    if known:
        problems += registry_differences(known, verdicts, release)
    if record:
        before = read_registry(record) if record.is_file() else None
        write_registry(record, record_targets(before, package, release, verdicts, target.tree))
    if as_json:
        print_facts("patch-runtime", _facts(package, release, verdicts, problems))
    else:
        say(*problems, _summary(source.tree.label, target.tree.label, verdicts, len(problems)))
    return EXIT_UNEXPECTED if problems else EXIT_OK


def _summary(source: str, target: str, verdicts: Sequence[RuntimeVerdict], problems: int) -> str:
    states = Counter(verdict.target.state.value for verdict in verdicts)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"{source} on {target}: {len(verdicts)} runtime patches, {counts}; {problems} problems"


def _facts(
    package: str, version: str, verdicts: Sequence[RuntimeVerdict], problems: Sequence[str]
) -> dict[str, object]:
    patches = [
        {
            "file": verdict.patch.file,
            "line": verdict.patch.line,
            "replacement": verdict.patch.replacement,
            "replacement_signature": verdict.patch.signature,
            "problem": verdict.problem,
            **json_object(verdict.target),
        }
        for verdict in verdicts
    ]
    return {"package": package, "version": version or None, "patches": patches, "problems": list(problems)}
