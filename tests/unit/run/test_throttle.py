"""Fast output is shortened, slow output is not, and the last lines are always written."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from harness.run.programs.scrub import Scrubber
from harness.run.programs.task_log import TaskLog
from harness.run.programs.throttle import Throttle
from harness.sources.secrets.masking import Masker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_comes_slowly_is_whole():
    clock = Clock()
    throttle = Throttle(rate=100, burst=200, delayed=50, clock=clock)
    for _ in range(1000):
        clock.now += 1.0
        assert throttle.admit("x" * 90 + "\n") == "x" * 90 + "\n"
    assert throttle.finish() == ""


def test_a_flood_is_thinned_to_the_rate_and_says_so():
    clock = Clock()
    throttle = Throttle(rate=1000, burst=1000, delayed=200, clock=clock)
    text = ""
    for number in range(10_000):
        clock.now += 0.001
        text += throttle.admit(f"line {number} of a flood\n")
    text += throttle.finish()
    assert len(text) < 1000 + 10 * 1000 + 200 + 100
    assert "bytes of output are left out here: it came too fast" in text
    assert text.startswith("line 0 of a flood\n")
    assert text.endswith("line 9999 of a flood\n")


@example(
    [
        (0, ["", "", "aa", "aaa"]),
        (0, ["", "", "a" * 10, "a" * 28]),
        (0, ["a" * 9, "a" * 28, "", ""]),
        (2, [""]),
    ]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.text("ab é", max_size=30), min_size=1, max_size=4)),
        max_size=60,
    )
)
def test_lines_stay_whole_and_in_order_and_every_byte_is_shown_or_counted(steps):
    clock = Clock()
    throttle = Throttle(rate=20, burst=60, delayed=40, clock=clock)
    given_lines, shown = [], ""
    for seconds, lines in steps:
        clock.now += seconds
        given_lines += lines
        shown += throttle.admit("".join(f"{line}\n" for line in lines))
    shown += throttle.finish()
    rest = iter(given_lines)
    counted = 0
    for line in shown.splitlines():
        if line.startswith("["):
            counted += int(line[1:].split(" ", 1)[0])
        else:
            assert any(line == one for one in rest)
    whole = sum(len(f"{line}\n".encode()) for line in given_lines)
    kept = sum(len(f"{line}\n".encode()) for line in shown.splitlines() if not line.startswith("["))
    assert kept + counted == whole


def test_a_flooding_task_keeps_its_last_words_and_no_secret(tmp_path: Path):
    clock = Clock()
    scrub = Scrubber(Masker(["hunter2hunter2"]))
    throttle = Throttle(rate=10, burst=500, delayed=300, clock=clock)
    log = TaskLog(tmp_path / "log", scrub, throttle=throttle)
    for _ in range(1000):
        log.write("\x1b[31mnoise hunter2hunter2\x1b[0m\n")
    log.write("RuntimeError: the end\n")
    log.close()
    text = (tmp_path / "log").read_text()
    assert text.endswith("RuntimeError: the end\n")
    assert len(text) < 2000
    assert "hunter2" not in text
    assert "\x1b" not in text
