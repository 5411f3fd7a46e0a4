"""The report as metrics in the text form of OpenMetrics 1.0, for a scraper or a text collector."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from harness.outcome import Evidence
from harness.report.model.failure_owners import NOBODY
from harness.report.model.marks import RAN, Mark
from harness.report.model.report_model import ReportModel
from harness.report.model.turn_groups import hardware_lines
from harness.report.model.visible_text import clip, visible

#: How many stacks have series of their own; each series costs the scraper memory.
MOST_STACKS = 200
MAX_LABEL = 120

Labels = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A family of gauges. name: without the unit. unit: its last part, or "". values: by labels."""

    name: str
    unit: str = ""
    help: str
    values: Sequence[tuple[Labels, float]]


def open_metrics(model: ReportModel) -> str:
    """The text, with all families in a fixed order and `# EOF` at the end."""
    return "".join(map(_family, _gauges(model))) + "# EOF\n"


def _gauges(model: ReportModel) -> Iterable[Gauge]:
    run = model.inputs.run
    yield Gauge(
        name="npu_matrix_report_generated_timestamp",
        unit="seconds",
        help="When the report was made.",
        values=[({}, model.inputs.generated)],
    )
    yield Gauge(
        name="npu_matrix_run_started_timestamp",
        unit="seconds",
        help="When the reported run started.",
        values=[({"run": run.run_id, "profile": run.profile, "revision": run.revision}, run.started)],
    )
    yield Gauge(
        name="npu_matrix_complete",
        help="1 if every planned check has an outcome and none is an infrastructure error.",
        values=[({}, float(model.complete))],
    )
    yield Gauge(
        name="npu_matrix_planned_checks", help="Planned checks of cells.", values=[({}, float(model.planned))]
    )
    yield Gauge(
        name="npu_matrix_checks",
        help="Checks of cells by verdict, tier and evidence; evidence is none if nothing was executed.",
        values=_by_tier(model),
    )
    yield Gauge(
        name="npu_matrix_stack_checks",
        help="Checks of a stack by verdict and evidence.",
        values=_by_stack(model),
    )
    yield from _owned(model)
    yield Gauge(
        name="npu_matrix_hardware_last_run_timestamp",
        unit="seconds",
        help="When hardware last ran a check of any cell; stale if an input of all of them has changed.",
        values=_hardware(model),
    )


def _owned(model: ReportModel) -> Iterable[Gauge]:
    owners = model.owners
    yield Gauge(
        name="npu_matrix_unowned_failures",
        help="Kinds of failures that no expectation covers.",
        values=[({}, float(len(owners.get(NOBODY, ()))))],
    )
    yield Gauge(
        name="npu_matrix_expected_failures",
        help="Expected failures by owner.",
        values=[({"owner": owner}, float(len(found))) for owner, found in owners.items() if owner != NOBODY],
    )
    yield Gauge(
        name="npu_matrix_expectation_expiry_timestamp",
        unit="seconds",
        help="When an expected failure expires.",
        values=[
            ({"expectation": one.id, "owner": one.owner, "check": one.check}, expiry)
            for one in model.inputs.known
            if (expiry := _timestamp(one.until)) is not None
        ],
    )


def _by_tier(model: ReportModel) -> list[tuple[Labels, float]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for (tier, mark, evidence), count in model.kinds.items():
        counts[mark.value, tier.value, _evidence(mark, evidence)] += count
    return [
        ({"verdict": verdict, "tier": tier, "evidence": evidence}, float(count))
        for (verdict, tier, evidence), count in sorted(counts.items())
    ]


def _by_stack(model: ReportModel) -> list[tuple[Labels, float]]:
    found: list[tuple[Labels, float]] = []
    for stack, counts in islice(model.by_stack.items(), MOST_STACKS):
        found += [
            (
                {"stack": stack, "verdict": mark.value, "evidence": evidence.value if evidence else "none"},
                float(count),
            )
            for (mark, evidence), count in counts.items()
        ]
    return found


def _hardware(model: ReportModel) -> list[tuple[Labels, float]]:
    latest: dict[str, tuple[float, bool]] = {}
    for line in hardware_lines(model):
        when, stale = latest.get(line.result.check, (0.0, True))
        latest[line.result.check] = (max(when, line.run.time), stale and line.run.stale)
    return [
        ({"check": check, "stale": "true" if stale else "false"}, when)
        for check, (when, stale) in latest.items()
    ]


def _evidence(mark: Mark, evidence: Evidence | None) -> str:
    """The evidence of a check that ran to a verdict; none for all others."""
    return evidence.value if evidence and mark in RAN else "none"


def _timestamp(until: str) -> float | None:
    try:
        return dt.datetime.strptime(until, "%Y-%m-%d").replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None


def _family(family: Gauge) -> str:
    name = f"{family.name}_{family.unit}" if family.unit else family.name
    head = f"# TYPE {name} gauge\n" + (f"# UNIT {name} {family.unit}\n" if family.unit else "")
    lines: dict[str, float] = {}
    for labels, value in family.values:
        text = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        # Names that differ only in what is cut off are counted together: a series must not occur twice.
        sample = f"{name}{{{text}}}" if text else name
        lines[sample] = lines.get(sample, 0.0) + value
    samples = "".join(f"{sample} {_number(value)}\n" for sample, value in lines.items())
    return f"{head}# HELP {name} {_escaped(family.help)}\n{samples}"


def _escaped(text: str) -> str:
    shown = visible(clip(text, MAX_LABEL)).encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"').replace("\r", " ")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
