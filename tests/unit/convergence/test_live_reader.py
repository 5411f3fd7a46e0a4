"""A training is read along and ended once it need not go on."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("pydantic", reason="decisions are made on the host")

from harness.convergence.telemetry.live_reader import Watcher
from harness.convergence.telemetry.training_records import EarlyStop

STEPS = 10


def watcher(folder, series, verdict):
    return Watcher(read=lambda: series, stop_reason=verdict, steps=STEPS, stop_file=folder / "stop")


def test_a_run_goes_on_while_nothing_is_against_it(tmp_path):
    asked = []
    series = {"reward": (0.1, 0.2)}
    one = watcher(tmp_path, series, lambda seen: asked.append(len(seen["reward"])) or "")
    one.look()
    one.look()
    series["reward"] = (0.1, 0.2, 0.3)
    one.look()

    assert asked == [2, 3]
    assert one.stop is None
    assert not (tmp_path / "stop").exists()


def test_it_is_ended_at_the_step_that_settles_it(tmp_path):
    one = watcher(tmp_path, {"reward": (0.1,) * 4, "entropy": (1.0,) * 5}, lambda _seen: "it does not learn")
    one.look()

    assert one.stop == EarlyStop(after=4, of=STEPS, reason="it does not learn")
    assert (tmp_path / "stop").read_text() == "it does not learn"
    assert one.stop.sentence(4).endswith("saved 60% of the run.")


def test_what_is_at_its_end_is_not_ended(tmp_path):
    one = watcher(tmp_path, {"reward": (0.1,) * STEPS}, lambda _seen: "it does not learn")
    one.look()

    assert one.stop is None


def test_it_looks_by_itself_until_the_training_is_over(tmp_path):
    with watcher(tmp_path, {"reward": (0.1,)}, lambda _seen: "no") as one:
        deadline = time.monotonic() + 90
        while not (tmp_path / "stop").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    assert one.stop.after == 1
