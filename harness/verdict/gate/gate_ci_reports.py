"""Reports of a gate for CI systems: JUnit, and code quality of GitLab.

In both, a failure is what blocks the change. Known failures and awaited outcomes are skipped tests.
"""

from __future__ import annotations

import hashlib
import json

from harness.errors import EXIT_OK
from harness.ledger.junit.junit_writer import JUnitCase, junit_xml
from harness.outcome import Status
from harness.verdict.gate.gate_format import scope_lines, verdict_text
from harness.verdict.gate.gate_report import Blocks, GateClass, GateItem, GateReport
from harness.verdict.triage.log_line import masked, shown

#: The suite of what concerns the change as a whole.
WHOLE = "gate"
#: Severities of GitLab's code quality report, the most severe first: blocker, critical, major, minor, info.
SEVERITIES = {Blocks.UNEXPECTED: "blocker", Blocks.INCOMPLETE: "critical", Blocks.NO: "minor"}


def as_junit(report: GateReport) -> str:
    """JUnit XML: a suite for each cell, and one for the change as a whole, whose case has the verdict."""
    cases = [_case(item) for item in report.items]
    cases += [_problem(text, Status.FAIL) for text in report.problems]
    cases += [_problem(text, Status.ERROR) for text in report.unverified]
    verdict = JUnitCase(
        suite=WHOLE,
        name="verdict",
        status=Status.PASS if report.exit_code == EXIT_OK else Status.FAIL,
        reasons=(verdict_text(report), *map(masked, scope_lines(report))),
    )
    return junit_xml(
        [verdict, *cases], {WHOLE: {"base": report.base, "profile": report.scope.profile}}
    ).decode()


def _case(item: GateItem) -> JUnitCase:
    status = Status.PASS
    if item.blocks is Blocks.UNEXPECTED:
        status = Status.FAIL
    elif item.blocks is Blocks.INCOMPLETE:
        status = Status.ERROR
    elif item.gate_class is not GateClass.PASSED:
        status = Status.NOT_RUN
    title = f"{item.gate_class.value} ({item.status.value})"
    return JUnitCase(
        suite=item.cell_id,
        name=item.check,
        status=status,
        reasons=(title, *map(masked, (*item.reasons, *item.evidence, *item.changes, *item.remedies))),
        properties={"class": item.gate_class.value, "verdict": item.status.value},
    )


def _problem(text: str, status: Status) -> JUnitCase:
    return JUnitCase(suite=WHOLE, name=shown(text)[:120], status=status, reasons=(masked(text),))


def as_code_quality(report: GateReport) -> str:
    """GitLab's code quality report: an entry for each item that blocks or is flaky, and for each problem.

    A problem without a line of a file is at the first line of matrix.yaml: GitLab shows no others.
    """
    items = [
        item for item in report.items if item.blocks is not Blocks.NO or item.gate_class is GateClass.FLAKY
    ]
    entries = [
        _entry(
            name=item.check,
            text=f"{item.gate_class.value}: {item.cell_id}: " + " ".join(map(shown, item.reasons)),
            identity=f"{item.cell_id}/{item.check}/{item.gate_class.value}",
            severity=SEVERITIES[item.blocks],
            place=(item.place.file, item.place.line) if item.place else ("matrix.yaml", 1),
        )
        for item in items
    ]
    entries += [
        _entry(name=WHOLE, text=shown(text), identity=text, severity="blocker", place=("matrix.yaml", 1))
        for text in (*report.problems, *report.unverified)
    ]
    return json.dumps(entries, indent=2) + "\n"


def _entry(
    *, name: str, text: str, identity: str, severity: str, place: tuple[str, int]
) -> dict[str, object]:
    return {
        "description": masked(text),
        "check_name": name,
        "fingerprint": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(),
        "severity": severity,
        "location": {"path": place[0], "lines": {"begin": place[1]}},
    }
