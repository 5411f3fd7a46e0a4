"""What the processes of a program note about calls that torch_npu may refuse, and how a verdict says it."""

from __future__ import annotations

from pathlib import Path

from harness.devices.sim.refusals.permissive_calls import (
    PermissiveCalls,
    note_permissive,
    read_permissive_calls,
    stored_permissive_calls,
)


def test_lines_of_all_processes_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    assert read_permissive_calls(path) == PermissiveCalls()
    note_permissive(path, ["npu::b", "aten::a"])
    note_permissive(path, ["aten::a"])
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"pid": 1, "hits": []}\n["permissive"]\n{"permissive": ["half')
    found = read_permissive_calls(path)
    assert found == PermissiveCalls(operators=("aten::a", "npu::b"))
    note_permissive(tmp_path / "any.jsonl", None)
    assert read_permissive_calls(tmp_path / "any.jsonl").any


def test_the_reason_has_some_names_and_the_number_of_the_others() -> None:
    few = PermissiveCalls(operators=("a", "b"))
    assert few.reasons() == ("Permissive: it is unknown whether torch_npu refuses these calls: a, b.",)
    many = PermissiveCalls(operators=("a", "b", "c", "d", "e", "f"))
    assert many.reasons()[0].endswith("a, b, c, d and 2 more.")
    assert "not verified for any operator" in PermissiveCalls(any=True).reasons()[0]
    assert PermissiveCalls().reasons() == ()


def test_an_outcome_stores_all_names() -> None:
    for calls in (PermissiveCalls(operators=("a", "b")), PermissiveCalls(any=True), PermissiveCalls()):
        assert stored_permissive_calls({"device": {}, **calls.stored()}) == calls
    # A foreign ledger can have anything there.
    assert stored_permissive_calls({"permissive": 3}) == PermissiveCalls()
    assert PermissiveCalls().stored() == {}
