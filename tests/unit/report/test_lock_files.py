"""The lock of a cell in a report, from what a ledger has stored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from harness.report.model.lock_files import exports_of


def test_facets_of_an_earlier_version_give_no_lock_instead_of_an_internal_error(tmp_path: Path) -> None:
    stored = tmp_path / "lock.txt"
    stored.write_text("torch==2.7.1\n")
    facets = {"pins": {"index": ["https://example.org/simple"]}, "platform": {}}
    plan = SimpleNamespace(
        entries=[SimpleNamespace(cell_id="cell", key="k", check="resolve")],
        tasks={"k": SimpleNamespace(facets=facets)},
        cells=[SimpleNamespace(id="cell", title="a cell", axes={}, findings=())],
    )
    outcome = SimpleNamespace(artifact=lambda name: name)
    ledger = SimpleNamespace(artifacts=SimpleNamespace(get=lambda _ref: stored))
    assert exports_of("cell", plan, {"k": outcome}, ledger) == {}
