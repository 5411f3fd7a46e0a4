"""The tables of what torch_npu's code refuses, and how a kernel refuses it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.devices.sim.probing import refusal_probe
from harness.devices.sim.refusals.refusal_table import parse_table, refusal_table
from harness.package import data_folder

TABLES = sorted(data_folder("devices/sim/refusals/tables").glob("*.json"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_shipped_tables_say_which_wheel_they_were_measured_on(path: Any) -> None:
    stored = json.loads(path.read_text("utf-8"))
    assert stored["torch_npu"] == path.stem
    assert "checks of this torch_npu" in stored["source"]
    table = refusal_table(path.stem)
    assert table.measured
    assert stored["checked"] > 1000 > len(stored["unknown"])
    assert not table.unknown & set(table.refused)
    for name, refusals in table.refused.items():
        for refusal in refusals:
            assert refusal.message, name
            assert refusal.arguments, name
            assert refusal.dtype in refusal_probe.DTYPES


def test_a_release_without_a_table_is_permissive() -> None:
    table = refusal_table("1.0.0")
    assert (table.measured, table.of("aten::sort.stable")) == (False, ())
    assert table.is_permissive("aten::sort.stable")


def test_a_refusal_of_2_7_1_is_in_its_table() -> None:
    table = refusal_table("2.7.1")
    assert {"int8", "bool", "complex64"} <= {refusal.dtype for refusal in table.of("aten::exponential_")}
    assert not {"float32", "float16"} & {refusal.dtype for refusal in table.of("aten::exponential_")}
    # This one depends on the number of decimals, which no table can say: it must not be refused.
    assert not table.of("aten::round.decimals")


def test_records_become_a_table() -> None:
    records = [
        {"name": "aten::a", "refused": [[["self"], "int8", "RuntimeError", "no int8"]]},
        {"name": "aten::b", "refused": [[["self", "other"], "bool", "TypeError", "no int8"]]},
        {"name": "aten::c", "refused": []},
        {"name": "aten::d", "unknown": "crashed"},
    ]
    stored = refusal_probe.table_of(records)
    table = parse_table(stored)
    assert (stored["checked"], table.unknown, len(stored["messages"])) == (3, {"aten::d"}, 1)
    (refusal,) = table.of("aten::b")
    assert (refusal.arguments, refusal.error, refusal.message) == (("self", "other"), "TypeError", "no int8")
    assert [table.is_permissive(name) for name in ("aten::c", "aten::d")] == [False, True]


@pytest.mark.parametrize(
    ("message", "is_complaint"),
    [
        ("\"exponential_\" not implemented for 'Int'", True),
        ("bmm is not support int8 dtype", True),
        ("all only supports torch.float16 and torch.float32", True),
        ("x\n[ERROR] 2026 ERR01002 OPS invalid type", True),
        ("The shapes of the input query should be 3 or 4 dimensional", False),
        ("ERR01001 OPS invalid parameter", False),
    ],
)
def test_complaints_about_types_are_told_from_others(message: str, is_complaint: bool) -> None:
    assert bool(refusal_probe.COMPLAINT.search(message)) is is_complaint
