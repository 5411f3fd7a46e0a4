"""The objective that each verl release computes: known differences, and what this run measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.numerics.loss.loss_measurements import LossFinding, LossMeasured
from harness.numerics.loss.release_objectives import (
    DIFFERENCES,
    MISSING_CAPABILITIES,
    newest_release,
    parse_release,
)

SIGNATURES = "signatures of the installed package"
CAPABILITY = "no-"


@dataclass(frozen=True, kw_only=True)
class ObjectiveChange:
    """One way in which releases differ from the standard objective.

    until: the releases that differ. measured: for each column (word, kind); the kind is `differs`,
    `standard`, or `unknown` if the measurements cannot tell.
    """

    id: str
    what: str
    until: str
    source: str
    measured: tuple[tuple[str, str], ...]


def objective_changes(measured: Sequence[LossMeasured]) -> list[ObjectiveChange]:
    """The rows of the table: known differences of releases, interfaces that releases lack, other findings.

    measured: the loss measurements of each column.
    """
    findings = [{finding.id: finding for finding in column.findings} for column in measured]
    changes = [
        ObjectiveChange(
            id=difference.id,
            what=difference.what,
            until=f"up to {newest_release(difference.id)}",
            source=difference.source,
            measured=tuple(
                _difference(difference.id, column, by_id)
                for column, by_id in zip(measured, findings, strict=True)
            ),
        )
        for difference in DIFFERENCES
    ]
    changes += [
        ObjectiveChange(
            id=f"{CAPABILITY}{name}",
            what=what,
            until="where the interface is missing",
            source=SIGNATURES,
            measured=tuple(_capability(name, column) for column in measured),
        )
        for name, what in MISSING_CAPABILITIES.items()
    ]
    known = {change.id for change in changes}
    others = {name: finding for by_id in findings for name, finding in by_id.items() if name not in known}
    changes += [
        ObjectiveChange(
            id=name,
            what=finding.what,
            until="measured",
            source=finding.source,
            measured=tuple(_seen(by_id.get(name)) for by_id in findings),
        )
        for name, finding in others.items()
    ]
    return changes


def _difference(name: str, measured: LossMeasured, found: Mapping[str, LossFinding]) -> tuple[str, str]:
    if name in found:
        return _seen(found[name])
    release, last = parse_release(measured.verl), parse_release(newest_release(name))
    if release is None or last is None or release > last:
        return "standard", "standard"
    return "not seen", "unknown"


def _capability(name: str, measured: LossMeasured) -> tuple[str, str]:
    return ("has it", "standard") if name in measured.capabilities else ("lacks it", "differs")


def _seen(finding: LossFinding | None) -> tuple[str, str]:
    if finding is None:
        return "not seen", "standard"
    count = len(finding.cases)
    return f"differs in {count} cases" if count != 1 else "differs in 1 case", "differs"
