"""A cell without a lock: what its user can do."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest

from harness.errors import NothingSelectedError
from harness.outcome import Judgement, Status
from harness.settings import Settings
from harness.workspace.results import stored_lock


@pytest.mark.parametrize(
    ("status", "advice"),
    [(Status.FAIL, "npu-matrix advise"), (Status.NOT_RUN, "wait until these indexes respond")],
)
def test_the_advice_fits_the_reason(status: Status, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        SimpleNamespace(id="row"),
        SimpleNamespace(plan=SimpleNamespace(tasks={"k": SimpleNamespace(check=None)})),
        SimpleNamespace(artifact=lambda _name: None, key="k"),
    )
    judgement = Judgement(status=status, reasons=("a requires b<2; the stack requires b==2.",))
    monkeypatch.setattr(stored_lock, "open_ledger", lambda _settings: nullcontext())
    monkeypatch.setattr(stored_lock, "_resolve_outcome", lambda *_: found)
    monkeypatch.setattr(stored_lock, "judge_outcome", lambda *_: judgement)
    settings = cast(Settings, SimpleNamespace(run_command="npu-matrix run"))
    with pytest.raises(NothingSelectedError) as caught:
        stored_lock.lock_of_cell(settings, "row", "")
    assert advice in (caught.value.problems[0].fix or "")
