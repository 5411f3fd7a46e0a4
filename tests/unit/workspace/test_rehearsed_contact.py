"""What a first contact in the way of something must not do is noticed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from harness.workspace.execution.rehearsed_contact import Situation, why_wrong

SITUATION = Situation(name="x", told="the disk is full", codes=(4,))
CREDENTIALS = {"HF_TOKEN": "hf_abcdef0123456789", "INDEX": "https://somebody:verysecret99@index.invalid/"}
OUTPUT = "error: the disk is full\n"


def _archive(path: Path, data: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("first-contact.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return path


def test_what_was_said_and_written_as_expected_is_no_problem(tmp_path: Path) -> None:
    out = _archive(tmp_path / "x.tar.gz", b"{}")
    assert why_wrong(SITUATION, 4, OUTPUT, out, CREDENTIALS) == ""


@pytest.mark.parametrize(
    ("code", "output", "data", "problem"),
    [
        (4, f"{OUTPUT}Traceback (most recent call last):\n", b"{}", "a traceback"),
        (0, OUTPUT, b"{}", "exit 0"),
        (4, "error: it went wrong\n", b"{}", "it does not say: the disk is full"),
        (4, OUTPUT, None, "it wrote no file"),
        (4, f"{OUTPUT}hf_abcdef0123456789\n", b"{}", "the output contains a credential"),
        (4, f"{OUTPUT}verysecret99\n", b"{}", "the output contains a credential"),
        (4, OUTPUT, b"x=verysecret99", "the file contains a credential"),
    ],
)
def test_each_wrong_is_named(
    code: int, output: str, data: bytes | None, problem: str, tmp_path: Path
) -> None:
    out = tmp_path / "x.tar.gz"
    if data is not None:
        _archive(out, data)
    assert why_wrong(SITUATION, code, output, out, CREDENTIALS).startswith(problem)
