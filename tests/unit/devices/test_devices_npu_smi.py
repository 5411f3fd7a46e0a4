import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.devices.npu_smi import parse_npu_smi
from harness.errors import InfrastructureError

A2 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4-1             | OK            | 91.3        33                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3197 / 65536         |
+===========================+===============+====================================================+
| 1     910B4-1             | Alarm         | 88.1        32                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3197 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       0                 | 4242          | python3                  | 30500                   |
+===========================+===============+====================================================+
"""

A3 = """\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -                    34                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
+===========================+===============+======================================================================+
| 1     Ascend910           | OK            | 188.5                36                      0    / 0                |
| 0     2                   | 0000:99:00.0  | 0                    0    / 0                3414 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
"""


def test_a2_cards_have_one_chip_each_and_are_numbered_in_order():
    report = parse_npu_smi(A2)
    assert report.version == "25.2.0"
    assert [(chip.card, chip.chip, chip.index, chip.name) for chip in report.chips] == [
        (0, 0, 0, "910B4-1"),
        (1, 0, 1, "910B4-1"),
    ]
    assert [chip.healthy for chip in report.chips] == [True, False]
    assert report.chips[0].hbm_total == 65536
    assert report.chips[0].hbm_used == 3197


def test_a3_cards_have_two_chips_with_physical_ids_in_wide_columns():
    report = parse_npu_smi(A3)
    assert [(chip.card, chip.chip, chip.index) for chip in report.chips] == [(0, 0, 0), (0, 1, 1), (1, 0, 2)]


def test_foreign_processes_are_listed():
    (process,) = parse_npu_smi(A2).processes
    assert (process.card, process.chip, process.pid, process.name) == (1, 0, 4242, "python3")


@pytest.mark.parametrize(
    "text",
    ["", "dcmi module initialize failed. ret is -8005", "| npu-smi |"],
)
def test_what_is_not_the_table_is_an_error_that_quotes_it(text):
    with pytest.raises(InfrastructureError, match="not its table"):
        parse_npu_smi(text)


@given(st.text(max_size=400))
def test_no_text_makes_it_crash(noise):
    with contextlib.suppress(InfrastructureError):
        parse_npu_smi(noise)


@given(st.integers(0, len(A3)))
def test_a_truncated_table_never_invents_chips(cut):
    whole = parse_npu_smi(A3).chips
    try:
        part = parse_npu_smi(A3[:cut]).chips
    except InfrastructureError:
        return
    assert part == whole[: len(part)]
