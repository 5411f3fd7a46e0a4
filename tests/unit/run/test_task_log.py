from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InfrastructureError
from harness.run.programs.scrub import Scrubber
from harness.run.programs.task_log import LINE_BYTES, LineAssembler, TaskLog
from harness.sources.secrets.masking import Masker

PLAIN = Scrubber(Masker(()))


def assemble(data: bytes, sizes: list[int]) -> str:
    lines, text, at = LineAssembler(), "", 0
    for size in sizes:
        text += lines.feed(data[at : at + size])
        at += size
    return text + lines.feed(data[at:]) + lines.finish()


@given(st.text(st.characters(blacklist_characters="\r", codec="utf-8")), st.lists(st.integers(0, 5)))
def test_lines_are_whole_however_the_chunks_fall(text: str, sizes: list[int]) -> None:
    expected = text if text.endswith("\n") or not text else text + "\n"
    assert assemble(text.encode(), sizes) == expected


def test_a_progress_bar_leaves_its_last_state() -> None:
    assert assemble(b" 10%\r 50%\r100%\ndone\r\n", [3, 7]) == "100%\ndone\n"


def test_a_long_progress_bar_without_newline_takes_no_memory() -> None:
    lines = LineAssembler()
    for n in range(10_000):
        assert lines.feed(b"\r%d %%" % n) == ""
    assert lines.finish() == "9999 %\n"


def test_an_endless_line_is_cut() -> None:
    lines = LineAssembler()
    text = "".join(lines.feed(b"x" * 10_000) for _ in range(1000)) + lines.finish()
    assert text.replace("\n", "") == "x" * 10_000_000
    assert max(map(len, text.splitlines())) <= LINE_BYTES + 10_000


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert assemble(b"\xff\xfe ok\n", []) == "\ufffd\ufffd ok\n"


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60), max_size=40))
def test_a_log_is_whole_or_says_what_it_leaves_out(lines: list[str]) -> None:
    cap = 400
    with tempfile.TemporaryDirectory() as folder:
        log = TaskLog(Path(folder) / "log", PLAIN, cap)
        for line in lines:
            log.write(line)
        log.close()
        log.close()
        kept = log.path.read_text().splitlines()
    whole = [line for line in lines if line]
    notes = [n for n, line in enumerate(kept) if line.endswith("left out here]")]
    if not notes:
        assert kept == whole
        return
    (note,) = notes
    head, tail = kept[:note], kept[note + 1 :]
    assert head == whole[:note]
    assert tail == whole[len(whole) - len(tail) :]
    assert tail, "the end is what explains a failure"
    dropped = whole[note : len(whole) - len(tail)]
    assert kept[note] == f"[{sum(len(line) + 1 for line in dropped)} bytes of output are left out here]"
    assert sum(len(line) + 1 for line in kept) <= cap + 160


def test_the_last_line_is_the_last_that_says_something(tmp_path: Path) -> None:
    log = TaskLog(tmp_path / "log", PLAIN)
    log.write("one\ntwo")
    log.write("  \n")
    assert log.last_line == "two"
    log.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not run: no /dev/full here")
def test_a_full_disk_is_said() -> None:
    log = TaskLog(Path("/dev/full"), PLAIN)
    with pytest.raises(InfrastructureError, match="task's log"):
        log.write("x")
    log.close()
