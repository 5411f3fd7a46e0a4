"""The draft of a report to an upstream project about one check of a stored run."""

from __future__ import annotations

import os

from harness.errors import InputError
from harness.ledger.store import Ledger
from harness.report.model.marks import RAN, Mark
from harness.report.model.report_model import build_model
from harness.report.pages.upstream_draft import upstream_draft
from harness.settings import Settings
from harness.sources.secrets.masking import Masker
from harness.workspace.results.run_report import gather_report_inputs
from harness.workspace.results.stored_run import StoredRun


def report_draft(
    settings: Settings,
    ledger: Ledger,
    stored: StoredRun,
    cell: str,
    check: str,
    *,
    language: str = "en",
    bisected: str = "",
) -> str:
    """The draft as Markdown, without the secrets of this host. InputError if the check did not fail."""
    model = build_model(gather_report_inputs(settings, ledger, stored))
    row = model.row(cell)
    if row is None or check not in row.results:
        offered = ", ".join(row.results if row else [one.cell.id for one in model.rows][:10])
        what = f"run {stored.run.run_id} has no check {check!r} of {cell!r}"
        raise InputError(what, fix=f"name one of: {offered}" if offered else "npu-matrix run")
    result = row.results[check]
    if result.mark not in RAN or result.mark in {Mark.PASS, Mark.UNEXPECTED_PASS}:
        raise InputError(
            f"{check} of {cell} did not fail in run {stored.run.run_id}, so there is nothing to report",
            why=f"its verdict is {result.mark.value}",
            fix="npu-matrix status --filter 'fail | known'",
        )
    return Masker.of_command(os.environ).text(upstream_draft(model, row, result, language, bisected))
