"""Tables of several driver generations, damaged tables, and errors that are printed instead."""

import contextlib

import npu_smi_layouts as layouts
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.devices.host.npu_smi import NpuReport, parse_npu_smi
from harness.errors import InfrastructureError


def numbers(report: NpuReport) -> list[tuple[int, int, int]]:
    return [(chip.card, chip.chip, chip.index) for chip in report.chips]


def test_eight_a2_cards_of_one_chip_each():
    report = parse_npu_smi(layouts.A2_EIGHT)
    assert report.version == "23.0.3"
    assert numbers(report) == [(number, 0, number) for number in range(8)]
    assert {(chip.name, chip.healthy) for chip in report.chips} == {("910B2", True)}
    assert (report.processes, report.silent) == ((), ())


def test_only_ok_is_healthy():
    report = parse_npu_smi(layouts.A2_UNHEALTHY)
    assert [chip.healthy for chip in report.chips] == [True, False, False, False, False]
    assert [chip.health for chip in report.chips][1:] == ["Warning", "Alarm", "Critical", "UNKNOWN"]
    assert report.processes == ()


def test_foreign_processes_are_listed_also_without_a_name():
    report = parse_npu_smi(layouts.A2_FOREIGN)
    assert [(process.card, process.chip, process.pid, process.name) for process in report.processes] == [
        (0, 0, 1333928, ""),
        (0, 0, 1333930, "python3"),
    ]


def test_a_card_alone_in_a_container_keeps_its_number():
    assert numbers(parse_npu_smi(layouts.A2_ONE_OF_EIGHT)) == [(5, 0, 5)]


def test_a3_cards_have_two_dies_with_physical_ids():
    report = parse_npu_smi(layouts.A3)
    assert numbers(report) == [(2, 0, 4), (2, 1, 5)]
    assert [(process.card, process.chip) for process in report.processes] == [(2, 0)]


def test_wider_columns_are_the_same_columns_and_an_open_end_is_no_card():
    report = parse_npu_smi(layouts.A3_WIDE)
    assert numbers(report) == [(0, 0, 0), (0, 1, 1), (1, 0, 2)]


def test_310p_cards_have_a_device_column_and_no_hbm():
    report = parse_npu_smi(layouts.P310)
    assert numbers(report) == [(1, 0, 0), (1, 1, 1), (32768, 0, 2)]
    assert [(process.card, process.pid) for process in report.processes] == [(32768, 77)]


def test_950_cards_have_a_column_for_the_number_and_no_chips():
    report = parse_npu_smi(layouts.A5)
    assert numbers(report) == [(0, 0, 0), (1, 0, 1)]
    assert [chip.healthy for chip in report.chips] == [False, True]
    assert [(process.card, process.pid, process.name) for process in report.processes] == [
        (0, 3728646, "pytest")
    ]


def test_a_newer_table_tells_the_number_inside_the_container_too():
    line = "| 1      | 107304 | python | 39912 | NA |"
    assert [process.pid for process in parse_npu_smi(layouts.A5 + line).processes] == [3728646, 107304]


def test_a_card_without_its_second_line_is_silent():
    lines = layouts.A2_UNHEALTHY.splitlines()
    without = [line for line in lines if "0000:82" not in line]
    report = parse_npu_smi("\n".join(without))
    assert report.silent == (3,)
    assert [chip.card for chip in report.chips] == [0, 1, 2, 4]


def test_a_table_without_cards_is_read_as_such():
    report = parse_npu_smi("| npu-smi 25.5.0   Version: 25.5.0 |\n")
    assert (report.chips, report.silent) == ((), ())


@pytest.mark.parametrize("name", layouts.ALL)
def test_colours_and_what_surrounds_the_table_change_nothing(name: str):
    text = layouts.ALL[name]
    coloured = text.replace("| OK ", "| \x1b[32mOK\x1b[0m ").replace("| Alarm", "|\x1b[1;31m Alarm\x1b[m")
    noisy = f"警告 日志级别获取失败\r\n[WARNING]DrvMng: 3\n{coloured}\n(base) root@主机:~# \n"
    assert parse_npu_smi(noisy) == parse_npu_smi(text)
    assert parse_npu_smi(text.replace("\n", "\r\n")) == parse_npu_smi(text)
    indented = "\n".join(f"    {line}" for line in text.splitlines())
    assert parse_npu_smi(indented) == parse_npu_smi(text)


@pytest.mark.parametrize(("output", "expected"), layouts.OTHER_OUTPUTS.items())
def test_what_is_printed_instead_of_a_table_has_a_name_and_a_fix(output: str, expected: str):
    with pytest.raises(InfrastructureError) as caught:
        parse_npu_smi(output)
    assert expected in str(caught.value)
    assert caught.value.problems[0].fix


@given(st.text(max_size=400))
def test_no_text_makes_it_crash(noise):
    with contextlib.suppress(InfrastructureError):
        parse_npu_smi(noise)


@given(st.sampled_from(sorted(layouts.ALL)), st.data())
def test_a_truncated_table_never_invents_chips(name, data):
    text = layouts.ALL[name]
    whole = parse_npu_smi(text)
    try:
        part = parse_npu_smi(text[: data.draw(st.integers(0, len(text)))])
    except InfrastructureError:
        return
    assert part.chips == whole.chips[: len(part.chips)]
    assert part.processes == whole.processes[: len(part.processes)]
    # A missing card is either after the cut or listed as silent.
    assert not part.silent or part.silent == (whole.chips[len(part.chips)].card,)


@given(st.sampled_from(sorted(layouts.ALL)), st.data())
def test_damaged_lines_cost_their_own_card_and_no_other(name, data):
    text = layouts.ALL[name]
    lines = text.splitlines()
    index = data.draw(st.integers(6, len(lines) - 1))
    junk = data.draw(st.text(max_size=60).filter(lambda value: "|" not in value))
    damaged = "\n".join([*lines[:index], junk, *lines[index + 1 :]])
    whole, part = parse_npu_smi(text), parse_npu_smi(damaged)
    assert set(part.chips) <= set(whole.chips)
    assert len(part.chips) >= len(whole.chips) - 1
    assert set(part.processes) <= set(whole.processes)


@given(
    st.lists(
        st.tuples(st.sampled_from(["OK", "Alarm", "Critical"]), st.integers(0, 65536)),
        min_size=1,
        max_size=16,
    )
)
def test_any_number_of_cards_comes_back_as_it_was_printed(cards):
    lines = ["| npu-smi 25.5.0    Version: 25.5.0    |"]
    for number, (health, used) in enumerate(cards):
        lines += [
            f"| {number:<5} 910B3               | {health:<13} | 90.1        40                0    / 0   |",
            f"| 0                         | 0000:{number:02X}:00.0  | 0           0    / 0  {used:<5}/ 65536 |",
        ]
    report = parse_npu_smi("\n".join(lines))
    assert [(chip.index, chip.health) for chip in report.chips] == [
        (number, health) for number, (health, _used) in enumerate(cards)
    ]
