"""Slips of bash in launch scripts: what they mean instead is told, and what looks like them is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compat.lint.launch_script import parse_script

RUN = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
ARRAY = "A=(data.a=1 data.b=2)\n"


def notes(text: str) -> list[str]:
    return [note.text for note in parse_script(text, Path("run.sh")).notes if note.unread]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (ARRAY + RUN + '"$A"\n', True),
        (ARRAY + RUN + '"${A}"\n', True),
        (ARRAY + RUN + '"${A[@]}"\n', False),
        (ARRAY + RUN + "${A[*]}\n", False),
        (ARRAY + 'echo "$A"\n' + RUN + '"${A[@]}"\n', False),
        ("A=(data.a=1)\n" + RUN + '"$A"\n', False),
        ("A=(one two)\necho $A\n" + RUN + "data.a=1\n", False),
    ],
)
def test_the_first_element_of_an_array_is_told(script: str, told: bool) -> None:
    assert any("only the first element of the array `A`" in text for text in notes(script)) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("$(1024 * 8)", True),
        ("$(LENGTH + 1024)", True),
        ("$($LENGTH / 2)", True),
        ("$((1024 * 8))", False),
        ("$(nproc)", False),
        ("$(ls * 8)", False),
        ("$(1024)", False),
    ],
)
def test_arithmetic_that_is_a_command_is_told(value: str, told: bool) -> None:
    script = f"LENGTH=1024\nMAX={value}\n{RUN}data.max_response_length=$MAX\n"
    assert any("computes nothing" in text for text in notes(script)) == told


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--nproc_per_nodes=$N", True),
        ("--nproc_per_node=$N", False),
        ("--nproc_per_nodes=8", True),
        ("--$OPTION=8", False),
    ],
)
def test_an_option_of_torchrun_is_read_whatever_its_value_is(option: str, told: bool) -> None:
    script = f"torchrun --standalone {option} -m verl.trainer.sft_trainer data.train_files=a.parquet\n"
    assert any("`torchrun` has no option" in text for text in notes(script)) == told


TEXT = 'ACTOR="\n  data.a=1 \\\n  data.b=2"\n'


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (TEXT + RUN + "\n", True),
        (TEXT + RUN + "$ACTOR\n", False),
        (TEXT + "export ACTOR\n" + RUN + "\n", False),
        (TEXT + RUN + '\neval "$CMD"\n', False),
        # One override may be a value for something else.
        ("ACTOR=data.a=1\n" + RUN + "\n", False),
        ("ACTOR='some words'\n" + RUN + "\n", False),
    ],
)
def test_a_text_of_overrides_that_nothing_uses_is_told(script: str, told: bool) -> None:
    assert any("overrides in the variable `ACTOR`" in text for text in notes(script)) == told
