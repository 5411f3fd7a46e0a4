"""A fault on one of several hosts counts as named only with its host, and never if the check passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.devices.stand_in.host_network import NetworkHost
from harness.workspace.execution.rehearsed_hosts import Scenario, StandInHost, why_unexpected

LAST = StandInHost(
    network=NetworkHost(namespace="n", address="198.18.7.2"), place=Path(), files=(), environ={}
)
CARD = Scenario(name="a card becomes unhealthy", bring=lambda _host: None, told="Critical", is_fault=True)
SOUND = Scenario(name="no fault", bring=lambda _host: None, told="", is_fault=False)
NAMED = ["host 198.18.7.2, 2 of 2: card 1 was lost while the task ran", "1: health is Critical"]


@pytest.mark.parametrize(
    ("scenario", "status", "reasons", "problem"),
    [
        (SOUND, "pass", [], ""),
        (SOUND, "error", NAMED, "the check does not pass"),
        (SOUND, "no report", [], "the check does not pass"),
        (CARD, "error", NAMED, ""),
        (CARD, "pass", NAMED, "the check passes"),
        (CARD, "error", NAMED[:1], "the run does not say: Critical"),
        (CARD, "error", NAMED[1:], "the run does not say: 198.18.7.2"),
        (CARD, "no report", [], "the run does not say: 198.18.7.2, Critical"),
    ],
)
def test_what_is_unexpected(scenario: Scenario, status: str, reasons: Sequence[str], problem: str) -> None:
    assert why_unexpected(scenario, status, reasons, LAST) == problem
