"""What `npu-matrix inspect` prints, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator

from harness.serialisation import to_json
from harness.workspace.inspection.inspection_report import Inspection, Problem, Stage

SCHEMA = {"schema": {"name": "npu-matrix.inspection", "version": 1}}
_WHEN = {
    Stage.INSTALL: "at the next installation",
    Stage.IMPORT: "at import",
    Stage.FIRST_STEP: "at the first step",
    Stage.NUMBERS: "as wrong numbers",
    Stage.LATER: "later, or only in some jobs",
}


def inspection_json(inspection: Inspection) -> dict[str, object]:
    """The result as JSON."""
    inventory = inspection.inventory
    return {
        **SCHEMA,
        "source": {"kind": inventory.kind.value, "where": inventory.where},
        "compatible": None if inspection.unanswered and not inspection.failing else not inspection.failing,
        "axes": dict(inspection.axes),
        "packages": {name: one.version for name, one in sorted(inventory.packages.items())},
        "problems": [to_json(problem) for problem in inspection.problems],
        "looked_at": list(inspection.looked_at),
        "not_looked_at": list(inspection.not_looked_at),
    }


def inspection_lines(inspection: Inspection) -> Iterator[str]:
    """The result as text."""
    yield f"{inspection.inventory.kind.value}: {inspection.inventory.where}"
    yield "  " + ", ".join(f"{axis} {version}" for axis, version in inspection.axes.items())
    for fails in (True, False):
        found = [one for one in inspection.problems if one.fails is fails]
        if found:
            yield ""
            yield f"wrong ({len(found)}):" if fails else f"known, and no reason to fail ({len(found)}):"
        for stage in Stage:
            yield from _stage([one for one in found if one.stage is stage], stage)
    changes = dict.fromkeys(str(one.change) for one in inspection.failing if one.change)
    if changes:
        yield ""
        yield "smallest change:"
        yield from (f"  {change}" for change in changes)
    yield ""
    yield f"looked at: {', '.join(inspection.looked_at)}"
    yield from (f"not looked at: {text}" for text in inspection.not_looked_at)
    yield ""
    if inspection.failing:
        yield f"not compatible: {len(inspection.failing)} problems"
    elif inspection.unanswered:
        yield "nothing wrong was found, but not everything could be looked at"
    else:
        yield "compatible, as far as it was looked at"


def _stage(problems: list[Problem], stage: Stage) -> Iterator[str]:
    if problems:
        yield f"  {_WHEN[stage]}:"
    for one in problems:
        yield f"    {one.check}: {one.text}" + (f" ({one.source})" if one.source else "")
        if one.remedy:
            yield f"      do: {one.remedy}"
