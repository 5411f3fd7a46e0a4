"""What `npu-matrix advise AXIS` finds, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping

from harness.cli.explain_output import violation_json
from harness.errors import InputError, NothingSelectedError, did_you_mean
from harness.matrix.version_matrix import Matrix
from harness.plan.feasibility.exclusion import NearestCell, RuleViolation, parse_axes
from harness.plan.feasibility.newest_versions import (
    CellProof,
    NewestVersions,
    newest_versions,
    upgrade_obstacles,
)
from harness.settings import Settings
from harness.workspace.execution.version_probe import (
    known_proofs,
    parse_conditions,
    probe_versions,
    profile_of_cell,
)
from harness.workspace.planning.plan_selection import find_cell, relative_location


def describe_newest_versions(
    settings: Settings, matrix: Matrix, axis: str, given: tuple[str, ...], probe: str | None = None
) -> tuple[dict[str, object], list[str]]:
    """The newest versions of an axis and what is known of them, as JSON and as lines of text.

    probe: the most expensive tier up to which missing checks are run; None runs nothing.
    """
    if axis not in matrix.axes:
        raise InputError(f"unknown axis {axis!r}", fix=did_you_mean(axis, matrix.axes))
    given = _with_device(matrix, given, axis)
    conditions = parse_conditions(matrix, given)
    context, proofs = known_proofs(settings, matrix, conditions)
    found = newest_versions(matrix, axis, conditions, proofs)
    if not found.versions:
        raise NothingSelectedError(f"no cell has a value of {axis}")
    if probe:
        context, found = probe_versions(settings, matrix, axis, conditions, probe)
    report: dict[str, object] = {
        "axis": axis,
        "with": list(given),
        "works": str(found.works.version) if found.works else None,
        "candidate": str(found.candidate.version) if found.candidate else None,
        "versions": [
            {
                "version": str(candidate.version),
                "stand": candidate.state.value,
                "cell": _proof_json(candidate.proof) if candidate.proof else None,
                "objections": [violation_json(one, settings.root) for one in candidate.objections],
                "instead": _near_json(candidate.alternative) if candidate.alternative else None,
            }
            for candidate in found.versions
        ],
        "nearest": [_near_json(near) for near in found.nearest],
    }
    lines = [_headline(found, axis, given)]
    last = found.works or found.candidate
    shown = found.versions[: found.versions.index(last) + 1] if last else found.versions
    for candidate in shown:
        lines.append(f"  {axis} {candidate.version.short}: {_stand(candidate.state.value, candidate.proof)}")
        lines += _proof_lines(candidate.proof) if candidate.proof else []
        lines += [line for one in candidate.objections for line in _objection_lines(one, settings)]
        if not candidate.objections and candidate.alternative:
            changes = _change_text(candidate.alternative.changes)
            lines.append(f"      its nearest cell has {changes}: {candidate.alternative.cell.id}")
    for near in found.nearest:
        lines.append(f"  nearest: {near.cell.id}: {_change_text(near.changes)}")
    if found.candidate and found.candidate.proof and found.candidate is not found.works:
        cell_id = found.candidate.proof.cell.id
        profile = profile_of_cell(context.matrix, cell_id)
        lines.append(f"to test it: npu-matrix --profile {profile} run --only {cell_id}")
    return report, lines


def _with_device(matrix: Matrix, given: tuple[str, ...], axis: str = "") -> tuple[str, ...]:
    """The conditions, and `device=npu` unless they name a device: simulated cells prove nothing of NPUs."""
    if axis == "device" or any(condition.axis == "device" for condition in parse_conditions(matrix, given)):
        return given
    has_hardware = any(cell.device == "npu" and "device" in cell.axes for cell in matrix.all_cells)
    return (*given, "device=npu") if has_hardware else given


def _headline(found: NewestVersions, axis: str, given: tuple[str, ...]) -> str:
    under = f" with {', '.join(given)}" if given else ""
    if found.works:
        version, evidence = found.works.version.short, _evidence(found.works.proof)
        return f"newest {axis}{under} that passed every check: {version} (evidence: {evidence})"
    if found.candidate:
        version = found.candidate.version.short
        return f"no {axis}{under} is known to work; the newest that has not failed: {version}"
    return f"no {axis}{under}: every version is excluded or has failed"


def describe_obstacles(
    settings: Settings, matrix: Matrix, wanted: str, stack: str
) -> tuple[dict[str, object], list[str]]:
    """What blocks `wanted` (AXIS=VALUE) on a cell or stack, as JSON and as lines of text."""
    axes = parse_axes(matrix, [wanted])
    context, proofs = known_proofs(settings, matrix, ())
    cell = find_cell(context.matrix, settings["profile"], stack)
    found = upgrade_obstacles(matrix, cell, axes, proofs)
    report: dict[str, object] = {
        "wanted": {axis: str(version) for axis, version in axes.items()},
        "on": cell.id,
        "objections": [violation_json(one, settings.root) for one in found.objections],
        "nearest": [
            {**_proof_json(proof), "changes": {axis: list(pair) for axis, pair in changes.items()}}
            for proof, changes in zip(found.nearest, found.changes, strict=True)
        ],
    }
    what = f"{wanted} on {cell.stack or cell.id}"
    lines = [
        f"{what}: blocked by {len(found.objections)} rules"
        if found.objections
        else f"{what}: not blocked by any rule"
    ]
    lines += [line for one in found.objections for line in _objection_lines(one, settings)]
    for proof, changes in zip(found.nearest, found.changes, strict=True):
        lines.append(f"  with {_change_text(changes)}: {_stand(proof.state.value, proof)}")
        lines += _proof_lines(proof)
    if not found.nearest:
        lines.append(f"  no cell of the matrix has {wanted}")
    return report, lines


def _stand(stand: str, proof: CellProof | None) -> str:
    if proof is None:
        return "no cell"
    known = [
        f"{check.check} {check.status.value} ({check.evidence.value})"
        for check in proof.checks
        if check.status and check.evidence
    ]
    total = len(proof.checks)
    return (
        f"{stand}: {proof.passed} of {total} checks passed{'; known: ' + ', '.join(known) if known else ''}"
    )


def _evidence(proof: CellProof | None) -> str:
    """The evidence of the most expensive check; a proof on a simulated device is not one on hardware."""
    found = [check.evidence for check in proof.checks if check.evidence] if proof else []
    return found[-1].value if found else "none"


def _near_json(near: NearestCell) -> dict[str, object]:
    return {"cell": near.cell.id, "changes": {axis: list(pair) for axis, pair in near.changes.items()}}


def _proof_lines(proof: CellProof) -> list[str]:
    lines = [f"      {proof.cell.id}  {proof.cell.title}"]
    lines += [
        f"      rule {finding.constraint}: {finding.what}"
        for finding in proof.cell.findings
        if finding.constraint
    ]
    for check in proof.failures:
        lines += [f"      {check.check} failed: {reason}" for reason in check.reasons[:2]]
    return lines


def _proof_json(proof: CellProof) -> dict[str, object]:
    return {
        "cell": proof.cell.id,
        "axes": dict(proof.cell.axes),
        "stand": proof.state.value,
        "checks": [
            {
                "check": check.check,
                "status": check.status.value if check.status else "not-run",
                "evidence": check.evidence.value if check.evidence else None,
                "reasons": list(check.reasons) or ([check.not_run] if check.not_run else []),
            }
            for check in proof.checks
        ],
    }


def _objection_lines(objection: RuleViolation, settings: Settings) -> list[str]:
    where = relative_location(objection.where, settings.root)
    found = [f"      {objection.what}"] if objection.what else []
    return [*found, f"      {where} {objection.rule}: {objection.reason} ({objection.source})"]


def _change_text(changes: Mapping[str, tuple[str, str]]) -> str:
    return ", ".join(f"{axis} {old} -> {new}" for axis, (old, new) in changes.items()) or "nothing changed"
