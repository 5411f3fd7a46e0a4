"""The newest compatible versions, and what blocks newer ones, by constraints and stored outcomes."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.ledger.plan_record import PlanEntry
from harness.matrix.model.cell import Cell
from harness.matrix.model.constraints import Condition
from harness.matrix.model.versions import Version
from harness.matrix.version_matrix import Matrix
from harness.outcome import Evidence, Status, Tier
from harness.plan.feasibility.exclusion import (
    NearestCell,
    RuleViolation,
    differences,
    explain_combination,
    meets_conditions,
    nearest_cells,
    rule_violations,
)


class ProofState(str, enum.Enum):
    """The state of a cell by stored outcomes. OPEN: no check failed, and some have no outcome yet."""

    WORKS = "works"
    OPEN = "open"
    REFUTED = "refuted"


@dataclass(frozen=True, kw_only=True)
class CheckProof:
    """The status and evidence of one check of a cell; None for a check without an outcome."""

    check: str
    status: Status | None = None
    evidence: Evidence | None = None
    reasons: tuple[str, ...] = ()
    not_run: str = ""


@dataclass(frozen=True, kw_only=True)
class CellProof:
    """A cell and what is known about each of its checks."""

    cell: Cell
    checks: tuple[CheckProof, ...]

    @property
    def state(self) -> ProofState:
        """REFUTED if a check failed, WORKS if every check passed, else OPEN."""
        if any(check.status is Status.FAIL for check in self.checks):
            return ProofState.REFUTED
        if self.checks and all(check.status is Status.PASS for check in self.checks):
            return ProofState.WORKS
        return ProofState.OPEN

    @property
    def passed(self) -> int:
        """How many checks have passed."""
        return sum(check.status is Status.PASS for check in self.checks)

    @property
    def failures(self) -> tuple[CheckProof, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status is Status.FAIL)


@dataclass(frozen=True, kw_only=True)
class VersionProof:
    """One version of an axis, with its best cell or the reasons why there is none.

    objections: the rules that exclude the version, alone or together. alternative: if no rule excludes it,
    the cell with this version that is closest to the conditions.
    """

    version: Version
    proof: CellProof | None
    objections: tuple[RuleViolation, ...] = ()
    alternative: NearestCell | None = None

    @property
    def state(self) -> ProofState:
        """The state of the best cell; REFUTED if there is no cell."""
        return self.proof.state if self.proof else ProofState.REFUTED


@dataclass(frozen=True, kw_only=True)
class NewestVersions:
    """The versions of an axis, newest first, up to the newest working one, or all if none is known to work.

    The reasons why a version has no cell are given only for versions newer than the newest candidate.
    nearest: if no version has a cell, the cells closest to the conditions.
    """

    axis: str
    versions: tuple[VersionProof, ...]
    nearest: tuple[NearestCell, ...] = ()

    @property
    def works(self) -> VersionProof | None:
        """The newest version with a cell that passed every check."""
        return next(
            (version_proof for version_proof in self.versions if version_proof.state is ProofState.WORKS),
            None,
        )

    @property
    def candidate(self) -> VersionProof | None:
        """The newest version that is not refuted."""
        return next(
            (
                version_proof
                for version_proof in self.versions
                if version_proof.state is not ProofState.REFUTED
            ),
            None,
        )


@dataclass(frozen=True, kw_only=True)
class UpgradeObstacles:
    """What prevents a cell from having other values on some axes.

    objections: rules that the cell would break with these values and does not break now. nearest: the valid
    cells with these values that differ least otherwise. changes: for each of them, axis -> (value of the
    stack, value of the nearest cell).
    """

    objections: tuple[RuleViolation, ...]
    nearest: tuple[CellProof, ...]
    changes: tuple[Mapping[str, tuple[str, str]], ...]


def next_probe(
    entries: Sequence[PlanEntry], found: NewestVersions, most: Tier, tried: Collection[str] = ()
) -> tuple[str, ...]:
    """The keys to run next: those of the newest candidate in its cheapest tier without an outcome.

    Empty if the candidate is known to work, or if only tiers more expensive than `most` are left. A version
    that fails a tier is refuted, so its more expensive tiers are never run. tried: keys not to run again.
    """
    candidate = found.candidate
    if candidate is None or candidate is found.works or candidate.proof is None:
        return ()
    unknown = {check.check for check in candidate.proof.checks if check.status is None}
    open_entries = [
        entry
        for entry in entries
        if entry.cell_id == candidate.proof.cell.id
        and entry.skip is None
        and entry.check in unknown
        and entry.tier.rank <= most.rank
        and entry.key not in tried
    ]
    cheapest = min((entry.tier.rank for entry in open_entries), default=0)
    return tuple(dict.fromkeys(entry.key for entry in open_entries if entry.tier.rank == cheapest))


def newest_versions(
    matrix: Matrix, axis: str, conditions: Sequence[Condition], proofs: Mapping[str, CellProof]
) -> NewestVersions:
    """The versions of `axis` in cells that meet the conditions. proofs: cell id -> what is known about it."""
    found_versions: list[VersionProof] = []
    for version in _values(matrix, axis):
        cells = [
            cell
            for cell in matrix.all_cells
            if cell.axes.get(axis) == str(version) and meets_conditions(matrix, cell, conditions)
        ]
        best = max((proofs[cell.id] for cell in cells if cell.id in proofs), key=_strength, default=None)
        has_candidate = any(version_proof.state is not ProofState.REFUTED for version_proof in found_versions)
        found_versions.append(
            VersionProof(version=version, proof=best)
            if best or has_candidate
            else _explain_missing_cell(matrix, axis, version, conditions)
        )
        if found_versions[-1].state is ProofState.WORKS:
            break
    near: tuple[NearestCell, ...] = ()
    if all(version_proof.proof is None for version_proof in found_versions):
        near = nearest_cells(matrix, _exact(conditions), 3)
    return NewestVersions(axis=axis, versions=tuple(found_versions), nearest=near)


def upgrade_obstacles(
    matrix: Matrix, cell: Cell, wanted: Mapping[str, Version], proofs: Mapping[str, CellProof]
) -> UpgradeObstacles:
    """The rules that block `wanted` on the stack of `cell`, and the smallest changes that make it valid."""
    before = {objection.rule for objection in rule_violations(matrix, matrix.versions(cell.axes))}
    changed = {**matrix.versions(cell.axes), **wanted}
    objections = tuple(one for one in rule_violations(matrix, changed) if one.rule not in before)
    texts = {axis: str(version) for axis, version in wanted.items()}
    candidates = [
        proofs[one.id]
        for one in matrix.all_cells
        if one.id in proofs
        and not one.stack
        and all(one.axes.get(axis) == text for axis, text in texts.items())
    ]
    target = {axis: str(version) for axis, version in changed.items()}

    def distance(proof: CellProof) -> tuple[bool, int, str]:
        return proof.state is ProofState.REFUTED, len(differences(target, proof.cell)), proof.cell.id

    closest = tuple(sorted(candidates, key=distance)[:3])
    return UpgradeObstacles(
        objections=objections,
        nearest=closest,
        changes=tuple(differences(target, proof.cell) for proof in closest),
    )


def _values(matrix: Matrix, axis: str) -> list[Version]:
    texts = {cell.axes[axis] for cell in matrix.all_cells if axis in cell.axes}
    parsed = [matrix.axes[axis].parse(text) for text in texts]
    return sorted(parsed, key=lambda one: (one.order is not None, one.order or (), str(one)), reverse=True)


def _explain_missing_cell(
    matrix: Matrix, axis: str, version: Version, conditions: Sequence[Condition]
) -> VersionProof:
    exact = {name: matrix.axes[name].parse(text) for name, text in _exact(conditions).items()}
    ranges = [condition for condition in conditions if condition.axis not in exact]
    found = explain_combination(matrix, {**exact, axis: version}, count=0, conditions=ranges)
    objections = found.violated or found.contradiction

    def changes(cell: Cell) -> Mapping[str, tuple[str, str]]:
        unmet = [condition for condition in ranges if not meets_conditions(matrix, cell, [condition])]
        return {
            **differences(found.axes, cell),
            **{one.axis: (_words(one), cell.axes.get(one.axis, "none")) for one in unmet},
        }

    cells = [cell for cell in matrix.all_cells if cell.axes.get(axis) == str(version)]
    closest = min(cells, key=lambda cell: (len(changes(cell)), cell.id), default=None)
    return VersionProof(
        version=version,
        proof=None,
        objections=objections,
        alternative=NearestCell(cell=closest, changes=changes(closest)) if closest else None,
    )


def _words(condition: Condition) -> str:
    return " or ".join(str(specifier) for specifier in condition.specifiers)


def _exact(conditions: Sequence[Condition]) -> dict[str, str]:
    """The values of conditions that name exactly one."""
    exact = {}
    for condition in conditions:
        clauses = [clause for one in condition.specifiers for clause in one.clauses]
        if len(clauses) == 1 and clauses[0].operator == "==" and clauses[0].version is not None:
            exact[condition.axis] = str(clauses[0].version)
    return exact


def _strength(proof: CellProof) -> tuple[int, int, int, str]:
    order = [ProofState.REFUTED, ProofState.OPEN, ProofState.WORKS]
    evidence = max((check.evidence.rank for check in proof.checks if check.evidence), default=-1)
    return order.index(proof.state), evidence, proof.passed, proof.cell.id
