"""Tables with the layouts of `npu-smi info` of several driver generations. The values are invented.

A comment at each table names the public source of its columns and widths.
"""

from __future__ import annotations

RULE = "+---------------------------+---------------+----------------------------------------------------+"
DOUBLE = "+===========================+===============+====================================================+"
OUTER = "+------------------------------------------------------------------------------------------------+"
HEAD = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip{phy}| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"""
PROCESSES = (
    "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
)


def _top(version: str, *, phy: bool = False) -> list[str]:
    head = HEAD.format(phy="  Phy-ID              " if phy else " " * 22)
    return [OUTER, f"| npu-smi {version:<24} Version: {version:<45}|", RULE, *head.splitlines(), DOUBLE]


def _card(card: int, name: str, health: str, bus: str, used: int, total: int) -> list[str]:
    return [
        f"| {card:<5} {name:<20}| {health:<13} | {95.1:<11.1f} {38:<17d} {0:<5}/ {0:<13} |",
        f"| {0:<26}| {bus:<13} | {0:<11} {0:<5}/ {0:<10} {used:<5}/ {total:<13} |",
        DOUBLE,
    ]


def _sections(card_processes: dict[int, list[tuple[int, int, str, int]]]) -> list[str]:
    lines = [RULE, PROCESSES, DOUBLE]
    for card, processes in card_processes.items():
        lines += [
            f"| {card:<7} {chip:<18}| {pid:<13} | {name:<24} | {used:<23} |"
            for chip, pid, name, used in processes
        ]
        if not processes:
            lines.append(f"| {f'No running processes found in NPU {card}':<95}|")
        lines.append(DOUBLE)
    return lines


def _text(*parts: list[str]) -> str:
    return "\n".join(line for part in parts for line in part) + "\n"


BUSES = ("C1", "C2", "81", "82", "01", "02", "41", "42")

#: 23.0.rc3 and 23.0.3: github.com/vllm-project/vllm-ascend/issues reports of 910B2 and 910B4 hosts.
A2_EIGHT = _text(
    _top("23.0.3"),
    *[_card(n, "910B2", "OK", f"0000:{bus}:00.0", 3332, 65536) for n, bus in enumerate(BUSES)],
    _sections({number: [] for number in range(8)}),
)
#: 24.1.0.3 as in vllm-project/vllm-ascend#900; health words of `npu-smi info` in Huawei's npu-smi reference.
A2_UNHEALTHY = _text(
    _top("24.1.0.3"),
    *[
        _card(number, "910B3", health, f"0000:{BUSES[number]}:00.0", 3382, 65536)
        for number, health in enumerate(("OK", "Warning", "Alarm", "Critical", "UNKNOWN"))
    ],
)
#: 25.0.rc1 and later, used memory of five digits: "59718/ 65536" has no space before the stroke
#: (vllm-ascend's issue template output; also 1Panel-dev/1Panel#9472 for 24.1.1). Names of processes of
#: other containers are empty.
A2_FOREIGN = _text(
    _top("25.0.rc1.b010"),
    _card(0, "910B3", "OK", "0000:C1:00.0", 59718, 65536),
    _card(1, "910B3", "OK", "0000:C2:00.0", 3383, 65536),
    _sections({0: [(0, 1333928, "", 37709), (0, 1333930, "python3", 101)], 1: []}),
)
#: One card of eight in a container, with the number 5: 25.5.2.
A2_ONE_OF_EIGHT = _text(
    _top("25.5.2"), _card(5, "910B4", "OK", "0000:41:00.0", 2922, 32768), _sections({5: []})
)

A3 = f"""\
{OUTER}
| npu-smi 24.1.rc3.7               Version: 24.1.rc3.7                                           |
{RULE}
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
{DOUBLE}
| 2     Ascend910           | OK            | 176.3       36                0    / 0             |
| 0     4                   | 0000:95:00.0  | 0           0    / 0          62449/ 65536         |
{OUTER}
| 2     Ascend910           | OK            | -           36                0    / 0             |
| 1     5                   | 0000:97:00.0  | 12          0    / 0          3208 / 65536         |
{DOUBLE}
{RULE}
{PROCESSES}
{DOUBLE}
| 2       0                 | 824166        | VLLMWorker_TP            | 59316                   |
{DOUBLE}
"""
"""One card of two dies in a container: vllm-project/vllm-ascend#2035 and #2534."""

A3_WIDE = """\
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
"""vllm-project/vllm-ascend#12980."""

P310 = """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                                 Version: 24.1.rc2                                     |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 1       310P3                 | OK              | NA           59                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1397 / 44280                            |
+-------------------------------+-----------------+------------------------------------------------------+
| 1       310P3                 | OK              | NA           58                0     / 0             |
| 1       1                     | 0000:01:00.0    | 0            1520 / 43693                            |
+===============================+=================+======================================================+
| 32768   310P3                 | OK              | NA           57                15    / 15            |
| 0       2                     | NA              | 0            NA / 44280                              |
+===============================+=================+======================================================+
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| No running processes found in NPU 1                                                                    |
+===============================+=================+======================================================+
| 32768   0                     | 77              | ollama                   | 1200                      |
+===============================+=================+======================================================+
"""
"""310P cards number their devices in a column of their own: ollama/ollama#5315, and npu-smi's source."""

A5 = """\
+-------------------------------------------------------------------------------------------------+
| npu-smi 25.7.rc1                                 Version: 25.7.rc1                              |
+--------+------------------+---------------+-----------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |
|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |
+========+==================+===============+=====================================================+
| 0      | Ascend950PR      | Alarm         | 205.7       71                0     / 0             |
|        |                  | 0000:71:00.0  | 100         0    / 0          90633 / 114688        |
+========+==================+===============+=====================================================+
| 1      | Ascend950PR      | OK            | 192.7       57                0     / 0             |
|        |                  | 0000:61:00.0  | 0           0    / 0          5239  / 131072        |
+========+==================+===============+=====================================================+
+---------------------------+---------------+-----------------------------------------------------+
| NPU ID                    | Process id    | Process name             | Process memory(MB)       |
+===========================+===============+=====================================================+
| 0                         | 3728646       | pytest                   | 396                      |
+===========================+===============+=====================================================+
| No running processes found in NPU 1                                                             |
+===========================+===============+=====================================================+
"""
"""950 cards from 25.7 on: `print_total_info_header_950` in npu-smi's source."""

ALL = {
    "a2 eight": A2_EIGHT,
    "a2 unhealthy": A2_UNHEALTHY,
    "a2 foreign": A2_FOREIGN,
    "a2 one of eight": A2_ONE_OF_EIGHT,
    "a3": A3,
    "a3 wide": A3_WIDE,
    "310p": P310,
    "a5": A5,
}

#: What is printed instead of a table, and a part of the error message for it. From `handle_dcmi_initialization` and
#: `print_mapping_info` of npu-smi's source; the message of the loader is glibc's.
OTHER_OUTPUTS = {
    "dcmi module initialize failed. ret is -8005": "the driver is not running",
    "DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005\n": "-8005",
    "dcmi model initialized failed, because the device is used. ret is -8020": "other containers use",
    "dcmi module initialize failed. ret is -9005": "the driver cannot be reached",
    "There is no NPU card on this server.": "the driver finds no card",
    "npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object file: "
    "No such file or directory": "cannot load a library",
    "npu-smi: 未找到命令": "printed no table",
    "": "printed no table",
    "| npu-smi |": "printed no table",
}
