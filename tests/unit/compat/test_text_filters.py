"""What text programs print, compared with the programs themselves."""

from __future__ import annotations

import subprocess

import pytest
from missing_programs import required_program

from harness.compat.lint.shell.text_filters import filtered

TEXT = "Qwen/Qwen2.5-7B Instruct\nb,c,d e\n\n  last: 1,2 \n"
COMMANDS = [
    ["tr", "/", "_"],
    ["tr", "A-Z", "a-z"],
    ["tr", "[:upper:]", "[:lower:]"],
    ["tr", "-d", " ,"],
    ["tr", "abc", "xy"],
    ["tr", "\\n", ","],
    ["cut", "-d/", "-f2"],
    ["cut", "-d", ",", "-f", "3"],
    ["cut", "-f1"],
    ["sed", "s/Qwen/q/"],
    ["sed", "-e", "s#Qwen#q#g"],
    ["sed", "s/ //g"],
    ["head", "-n", "1"],
    ["head", "-2"],
    ["tail", "-n1"],
    ["tail"],
    ["wc", "-l"],
    ["wc", "-w"],
    ["cat"],
    ["xargs"],
    ["basename", "a/b.parquet", ".parquet"],
    ["basename", "a/b/"],
    ["dirname", "/a"],
    ["dirname", "a/b/"],
    ["seq", "2", "2", "7"],
    ["seq", "3"],
    ["seq", "3", "-1", "1"],
    ["expr", "7", "*", "6"],
    ["expr", "7", "%", "4"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_text_program_prints_what_it_really_prints(command: list[str]) -> None:
    program = required_program(command[0], command[0])
    done = subprocess.run([program, *command[1:]], input=TEXT, capture_output=True, text=True, check=True)
    assert filtered(command[0], command[1:], TEXT) == done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["tr", "-s", " "],
        ["cut", "-c1-3"],
        ["sed", "s/a.*b/c/"],
        ["sed", "-n", "1p"],
        ["head", "-c", "3"],
        ["wc"],
        ["cat", "file"],
        ["xargs", "echo"],
        ["seq", "1", "0", "2"],
        ["expr", "1", "/", "0"],
        ["basename"],
        ["python3"],
    ],
    ids=" ".join,
)
def test_what_is_not_computed_is_not_known(command: list[str]) -> None:
    assert filtered(command[0], command[1:], TEXT) is None


def test_without_its_input_nothing_is_known() -> None:
    assert filtered("tr", ["a", "b"], None) is None
    assert filtered("basename", ["a/b"], None) == "b\n"
