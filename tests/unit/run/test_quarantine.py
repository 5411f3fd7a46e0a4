from hypothesis import given
from hypothesis import strategies as st

from harness.run.executors.quarantine import (
    ERRORS_IN_A_ROW,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Quarantine,
)


def failing(quarantine: Quarantine, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        quarantine.task_ended("h", healthy=False, now=now)


def test_errors_in_a_row_close_a_host_and_a_success_between_them_does_not():
    quarantine = Quarantine()
    failing(quarantine, ERRORS_IN_A_ROW - 1)
    quarantine.task_ended("h", healthy=True, now=0.0)
    failing(quarantine, ERRORS_IN_A_ROW - 1)
    assert quarantine.paused_hosts(["h", "other"], 0.0) == frozenset()
    failing(quarantine, 1)
    assert quarantine.paused_hosts(["h", "other"], 119.0) == {"h"}
    assert quarantine.paused_hosts(["h", "other"], 120.0) == frozenset()


def test_after_its_rest_one_canary_decides():
    quarantine = Quarantine()
    failing(quarantine, ERRORS_IN_A_ROW)
    assert quarantine.paused_hosts(["h"], FIRST_PAUSE_SECONDS) == frozenset()
    quarantine.task_sent("h", FIRST_PAUSE_SECONDS)
    assert quarantine.paused_hosts(["h"], FIRST_PAUSE_SECONDS) == {"h"}
    quarantine.task_ended("h", healthy=True, now=FIRST_PAUSE_SECONDS + 9)
    assert quarantine.paused_hosts(["h"], FIRST_PAUSE_SECONDS + 9) == frozenset()
    failing(quarantine, 1, now=FIRST_PAUSE_SECONDS + 10)
    assert quarantine.paused_hosts(["h"], FIRST_PAUSE_SECONDS + 10) == frozenset()


def test_a_canary_that_fails_doubles_the_rest_up_to_a_bound():
    quarantine, now = Quarantine(), 0.0
    failing(quarantine, ERRORS_IN_A_ROW)
    rests = []
    for _ in range(8):
        now = quarantine.records["h"].until
        quarantine.task_sent("h", now)
        quarantine.task_ended("h", healthy=False, now=now)
        rests.append(quarantine.records["h"].until - now)
    assert rests[:2] == [2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert rests[-1] == LONGEST_PAUSE_SECONDS


@given(events=st.lists(st.tuples(st.booleans(), st.floats(0, 300)), max_size=60))
def test_a_host_is_closed_only_after_errors_in_a_row_and_never_for_good(events):
    quarantine, now, row = Quarantine(), 0.0, 0
    for well, wait in events:
        now += wait
        if quarantine.paused_hosts(["h"], now):
            continue
        quarantine.task_sent("h", now)
        quarantine.task_ended("h", healthy=well, now=now)
        row = 0 if well else row + 1
        if quarantine.paused_hosts(["h"], now):
            assert row >= ERRORS_IN_A_ROW
    assert quarantine.paused_hosts(["h"], now + LONGEST_PAUSE_SECONDS + 1) == frozenset()
