"""A million combinations: expand them, explain the excluded ones, and compute the keys of the others.

The matrix has six product axes of 10 values each; one constraint keeps torch_npu with its torch, so that one
combination in ten is valid. The rival makes every combination and evaluates every constraint, as a plain
filter does; it makes no cells, no explanations and no keys.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, peak_mb, timed
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.plan.keys.code_digests import code_digests
from harness.plan.keys.facets import FacetInputs
from harness.plan.keys.keyring import Keyring
from harness.plan.tasks.check_registry import all_checks

VALUES = 10
AXES = {
    "verl": "0.{}.0",
    "torch": "2.{}.0",
    "torch_npu": "2.{}.0",
    "vllm_ascend": "0.{}.0",
    "python": "3.{}",
    "cann": "8.{}.0",
}


def write_matrix(folder: Path, values: int) -> Path:
    """A matrix.yaml with one profile."""
    lines = ["format: 1", "axes:"]
    for axis in AXES:
        scheme = {"python": "python", "cann": "cann"}.get(axis, "pep440")
        package = f", package: {axis.replace('_', '-')}" if scheme == "pep440" else ""
        lines.append(f"  {axis}: {{title: {axis}, scheme: {scheme}, source: made up{package}}}")
    lines += [
        "  device:",
        "    title: device",
        "    scheme: name",
        "    source: made up",
        "    values: {sim: {title: simulated}, npu: {title: NPU}}",
        "constraints:",
        "  torch-npu-release:",
        "    require: {torch_npu: {same_as: torch, part: release}}",
        "    reason: a torch_npu wheel requires exactly its torch",
        "    source: made up",
        "pins:",
        '  - {when: {verl: ">=0.5"}, require: "transformers>=5", reason: made up, source: made up}',
        "profiles:",
        "  default:",
        "    title: everything",
        "    select:",
        "      - with: {device: sim}",
        "        product:",
    ]
    for axis, template in AXES.items():
        words = ", ".join(template.format(number) for number in range(1, values + 1))
        lines.append(f"          {axis}: [{words}]")
    file = folder / "matrix.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def facet_inputs(matrix: Matrix) -> FacetInputs:
    return FacetInputs(
        host_python="3.11",
        host_arch="x86_64",
        patches=lambda upstream, axes: [{"id": "p", "digest": f"{upstream}{axes[upstream]}"}],
        recipes=matrix.recipes,
        axes=matrix.axes,
    )


def cross_product(matrix: Matrix) -> float:
    """Processor seconds of the rival."""
    (selection,) = matrix.profiles["default"].select
    lists = [[matrix.axes[axis].parse(text) for text in texts] for axis, texts in selection.product.items()]
    valid = 0
    with timed() as took:
        for values in itertools.product(*lists):
            versions = dict(zip(selection.product, values, strict=True))
            valid += not any(rule.violation(versions) for rule in matrix.constraints.values())
    return took.cpu


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        matrix = load_matrix(write_matrix(Path(folder), VALUES))
    checks = all_checks()
    code = code_digests(checks)
    with timed() as took:
        found = matrix.cells("default")
        unexplained = sum(
            not (part.constraint.reason and part.constraint.where.line) for part in found.excluded
        )
        keys = Keyring(checks, facet_inputs(matrix), code).keys(found.cells)
    peak = peak_mb()
    answers = sum(len(mine) for mine in keys.values())
    combinations = sum(part.combinations for part in found.excluded) + len(found.cells)
    yield Figure(
        claim=f"expand {combinations} combinations to {len(found.cells)} cells and {answers} keys",
        measured=took.cpu,
        unit="s of CPU",
        limit=2,
        rival=cross_product(matrix),
        rival_name="filter of the cross product, no keys",
    )
    yield Figure(claim="the same, peak memory", measured=peak, unit="MB", limit=500)
    yield Figure(claim="exclusions without a reason or a line in matrix.yaml", measured=unexplained, limit=0)
    duplicates = len(found.cells) - len({cell.id for cell in found.cells})
    yield Figure(claim="cells that share an id", measured=duplicates, limit=0)
