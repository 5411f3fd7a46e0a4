"""The check `collectives` on the simulated device: exact without a fault, red with each of two faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.measurements import read_shape  # noqa: E402 - needs the guards above
from harness.outcome import Status  # noqa: E402
from harness.rollout.contact.collective_program import start_ranks  # noqa: E402
from harness.rollout.contact.contact_checks import judge_collectives  # noqa: E402
from harness.rollout.contact.contact_measurements import CollectivesMeasured  # noqa: E402

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")


def _measured(folder: Path) -> CollectivesMeasured:
    out = folder / "collectives.json"
    assert start_ranks(2, folder, out) == 0
    return read_shape(CollectivesMeasured, out)


def test_the_collectives_of_the_simulated_device_are_exact(tmp_path: Path) -> None:
    judgement = judge_collectives(_measured(tmp_path), {"cards": 2})
    assert judgement.status is Status.PASS
    assert "8 operations between 2 ranks are exact" in judgement.reasons[0]


def test_a_wrong_collective_is_red_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"op": "allreduce_", "kind": "scale", "factor": 1.25}
    monkeypatch.setenv("NPU_SIM_FAULTS", json.dumps([fault]))
    measured = _measured(tmp_path)
    judgement = judge_collectives(measured, {"cards": 2})
    assert judgement.status is Status.FAIL
    assert {one.name for one in measured.results if one.wrong} >= {
        "all_reduce sum float32",
        "all_reduce sum bfloat16",
    }
    assert "broadcast" not in {one.name for one in measured.results if one.wrong}


def test_a_collective_that_raises_ends_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_SIM_FAULTS", json.dumps([{"op": "broadcast_", "kind": "raise"}]))
    assert start_ranks(2, tmp_path, tmp_path / "collectives.json") != 0
    assert not (tmp_path / "collectives.json").exists()
