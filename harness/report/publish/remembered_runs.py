"""The verdicts of earlier runs on every check, for comparing any two runs in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.report.model.marks import STYLES
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.streak import History
from harness.report.model.visible_text import clip, moment, visible
from harness.report.pages.page_templates import anchor_of

ABSENT = "-"
CODES = {mark: style.code for mark, style in STYLES.items()}


def run_ids(model: ReportModel) -> tuple[str, ...]:
    """The ids of the earlier runs, oldest first, and of the reported run."""
    return (*(run.run_id for run in reversed(model.inputs.runs)), model.inputs.run.run_id)


class RowHistory(NamedTuple):
    """The verdicts of all runs on a cell: for each check one letter per run (the code in `marks.STYLES`),
    or `-` if the run did not plan the check."""

    name: str
    page: str
    verdicts: Mapping[str, str]


class RowHistories:
    """Makes the histories of rows. runs: the ids of all runs, the reported one last."""

    def __init__(self, runs: Sequence[str]) -> None:
        self._indices = {run_id: index for index, run_id in enumerate(runs)}
        self._count = len(runs)
        #: Id of a history -> the history, which keeps the id, and its letters.
        self._letters: dict[int, tuple[History, str]] = {}

    def of(self, row: ReportRow) -> RowHistory:
        """The history of a row."""
        found = {
            check: self._before(result.history) + CODES[result.mark] for check, result in row.results.items()
        }
        return RowHistory(name=visible(clip(row.cell.name, 300)), page=row.slug, verdicts=found)

    def _before(self, history: History) -> str:
        """The letters of all runs but the reported one."""
        known = self._letters.get(id(history))
        if known is None:
            letters = [ABSENT] * self._count
            for past in history:
                index = self._indices.get(past.run_id)
                if index is not None:
                    letters[index] = CODES[past.mark]
            known = self._letters[id(history)] = (history, "".join(letters[:-1]))
        return known[1]


def runs_script(model: ReportModel, by_row: Iterable[RowHistory]) -> str:
    """A script with the data for the page of changes; repeated texts are stored once."""
    pool: dict[str, int] = {}
    checks = [check.name for check in model.checks]
    rows = []
    for row in by_row:
        numbers = [
            pool.setdefault(row.verdicts[name], len(pool)) if name in row.verdicts else -1 for name in checks
        ]
        rows.append([row.name, row.page, numbers])
    now = model.inputs.run
    remembered = [(run.run_id, run.started, run.revision) for run in reversed(model.inputs.runs)]
    remembered.append((now.run_id, now.started or model.inputs.generated, now.revision))
    data = {
        "runs": [
            [visible(clip(run_id, 80)), moment(started), visible(clip(revision, 50))]
            for run_id, started, revision in remembered
        ],
        "checks": [[visible(clip(check.name, 60)), anchor_of(check.name)] for check in model.checks],
        "marks": {style.code: [mark.value, style.word, style.glyph] for mark, style in STYLES.items()},
        "verdicts": list(pool),
        "rows": rows,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"window.NPU_MATRIX_RUNS={text.replace('<', chr(92) + 'u003c')};\n"
