from __future__ import annotations

import json
import math
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from edit_ledger import NEW_PLAN_DIGESTS, edit_ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from make_outcome import make_outcome
from small_disk import small_disk

from harness.digest import digest_bytes, digest_file
from harness.errors import InfrastructureError, InputError
from harness.ledger.database import open_database
from harness.ledger.ledger_schema import APPLICATION_ID, LATEST, MIGRATIONS
from harness.ledger.outcome_record import outcome_body, outcome_uid
from harness.ledger.plan_record import PlanRecord, TaskRecord
from harness.ledger.run_record import Disposition
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import ArtifactRef, Evidence, Failure, Outcome, State, Status, Tier
from harness.serialisation import as_object, dumps, load


def outcome(key: str = "k1", **changes: object) -> Outcome:
    defaults = {
        "facets": {"pins": "abc"},
        "measurements": {"resolved": True},
        "started": 100.0,
        "finished": 101.5,
    }
    return make_outcome(key, **{"check": "resolve", **defaults, **changes})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
refs = st.builds(
    ArtifactRef,
    name=st.text(),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    size=st.integers(0, 2**40),
)
outcomes = st.builds(
    Outcome,
    key=st.text("abcdef0123456789", min_size=1, max_size=64),
    check=st.text(min_size=1),
    tier=st.sampled_from(Tier),
    state=st.sampled_from(State),
    evidence=st.sampled_from(Evidence),
    facets=st.dictionaries(st.text(), st.text(), max_size=3),
    measurements=st.dictionaries(st.text(), json_values, max_size=3),
    artifacts=st.lists(refs, max_size=2).map(tuple),
    log=st.none() | refs,
    environment=st.dictionaries(st.text(), json_values, max_size=2),
    failure=st.none() | st.builds(Failure, kind=st.text(), message=st.text(), fix=st.text()),
    started=st.floats(0, 4e9),
    finished=st.floats(0, 4e9),
    run_id=st.text(),
)


def uid(one: Outcome) -> str:
    return outcome_uid(outcome_body(one))


@given(outcomes)
def test_an_outcome_survives_json(before: Outcome) -> None:
    assert load(Outcome, outcome_body(before)) == before


@settings(max_examples=20, deadline=None)
@given(st.lists(outcomes, max_size=4))
def test_what_is_recorded_is_read_again(recorded: list[Outcome]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Ledger.open(Path(folder)) as ledger:
            written = [ledger.record(one) for one in recorded]
        with Ledger.open(Path(folder)) as ledger:
            assert ledger.notices == ()
            read = {uid(one) for one in ledger.history()}
            assert read == {uid(one) for one in written}
            assert ledger.damaged_rows == 0


def test_number_keys_and_tuples_in_measurements_are_believed_when_read(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.record(outcome(measurements={"losses": (1.0, 2.0), "by_step": {10: "b", 9: "a"}}))
        found = ledger.get("k1")
    assert found is not None
    assert found.measurements == {"losses": [1.0, 2.0], "by_step": {"10": "b", "9": "a"}}


def test_not_a_number_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        with pytest.raises(ValueError, match="JSON"):
            ledger.record(outcome(measurements={"loss": math.nan}))
        assert ledger.history() == ()


def test_only_completed_outcomes_are_reused_and_the_last_one_counts(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        for n, state in enumerate([State.ERROR, State.COMPLETED, State.COMPLETED, State.INTERRUPTED]):
            ledger.record(outcome(state=state, measurements={"n": n}))
        reused = ledger.get("k1")
        assert reused is not None
        assert reused.measurements == {"n": 2}
        assert [one.attempt for one in ledger.history(key="k1")] == [4, 3, 2, 1]
        assert ledger.latest(["k1"])["k1"].state is State.INTERRUPTED
        assert ledger.next_attempt("k1") == 5
        assert ledger.next_attempt("k2") == 1
        assert ledger.get_many(["k2", "k1", "k1"]) == {"k1": reused}


@pytest.mark.parametrize("state", [State.TIMEOUT, State.ERROR])
def test_no_outcome_is_reused_after_a_later_failure_of_its_key(tmp_path: Path, state: State) -> None:
    with Ledger.open(tmp_path) as ledger:
        first = ledger.begin_run(PlanRecord(), ["run"], {})
        passed = ledger.record(outcome(run_id=first))
        second = ledger.begin_run(PlanRecord(), ["run"], {})
        # The clock was set back meanwhile.
        ledger.record(outcome(state=state, measurements={}, started=1.0, finished=2.0, run_id=second))
        assert ledger.get("k1") is None
        assert ledger.reusable_in_run(["k1"], first) == {"k1": passed}
        assert ledger.reusable_in_run(["k1"], second) == {}
        ledger.record(outcome(finished=3.0))
        assert ledger.get("k1") is not None


def test_a_failure_elsewhere_leaves_an_outcome_of_this_machine(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "other") as other:
        other.record(outcome(state=State.TIMEOUT, measurements={}))
    with Ledger.open(tmp_path / "own") as ledger:
        passed = ledger.record(outcome())
        ledger.merge(tmp_path / "other" / FILE_NAME)
        assert ledger.get("k1") == passed


def test_history_filters(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.record(outcome("a", run_id="r1"))
        ledger.record(outcome("b", check="loss", run_id="r1"))
        ledger.record(outcome("b", check="loss", run_id="r2"))
        assert len(ledger.history()) == 3
        assert [one.run_id for one in ledger.history(check="loss")] == ["r2", "r1"]
        assert [one.key for one in ledger.history(run_id="r1")] == ["b", "a"]
        assert len(ledger.history(limit=1)) == 1


def test_a_search_of_its_own_is_not_the_latest_run(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        probe = ledger.begin_run(PlanRecord(profile="0"), ["bisect", "good", "bad"], {}, now=500.0)
        assert ledger.latest_run().run_id == probe  # type: ignore[union-attr]
        asked = ledger.begin_run(PlanRecord(), ["--profile", "full", "run"], {}, now=1000.0)
        for argv in (["patches", "ablate", "cell"], ["bisect", "good", "bad"], ["gate", "--reruns", "3"]):
            ledger.begin_run(PlanRecord(profile="1"), argv, {}, now=2000.0)
        assert ledger.latest_run().run_id == asked  # type: ignore[union-attr]


def test_runs_and_dispositions(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        first = ledger.begin_run(PlanRecord(), ["run"], {"name": "h"}, now=1000.0)
        second = ledger.begin_run(PlanRecord(profile="1"), ["run", "--keep-going"], {"name": "h"}, now=2000.0)
        ledger.finish_run(first, 4, now=1010.0)
        blocked = Disposition(cell_id="c", check="loss", key="k", status=Status.BLOCKED, reason="lint failed")
        ledger.record_dispositions(second, [blocked])
        ledger.record_dispositions(second, [replace(blocked, reason="patches failed")])
        assert [run.run_id for run in ledger.runs()] == [second, first]
        finished = ledger.run(first)
        assert finished is not None
        assert (finished.exit_code, finished.finished) == (4, 1010.0)
        latest = ledger.latest_run()
        assert latest is not None
        assert (latest.finished, latest.argv, latest.plan) == (
            None,
            ("run", "--keep-going"),
            PlanRecord(profile="1"),
        )
        assert [one.reason for one in ledger.dispositions(second)] == ["patches failed"]
        assert ledger.run("nobody") is None
        with pytest.raises(KeyError):
            ledger.finish_run("nobody", 0)


def test_a_command_with_a_name_that_is_not_utf_8_is_recorded(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        run = ledger.run(ledger.begin_run(PlanRecord(), ["run", "--reports", "a\udcff"], {"cwd": "b\udcff"}))
        assert run is not None
        assert (run.argv[-1], run.host) == ("a\\udcff", {"cwd": "b\\udcff"})
        assert ledger.run("\udcff") is None


def test_the_plan_of_many_runs_is_kept_once(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        for n in range(5):
            ledger.begin_run(PlanRecord(profile=str(n // 4)), ["run"], {}, now=float(n))
        assert ledger._db.execute("SELECT count(*) FROM plans").fetchone() == (2,)
        assert [run.plan.profile for run in ledger.runs()] == ["1", "0", "0", "0", "0"]


def test_a_ledger_of_any_older_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    for version in range(1, LATEST):
        path = tmp_path / str(version) / FILE_NAME
        path.parent.mkdir()
        old = sqlite3.connect(path, isolation_level=None)
        for step in MIGRATIONS[:version]:
            for statement in step:
                old.execute(statement)
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute(f"PRAGMA user_version = {version}")
        plan = '{"entries":[]}'
        if version >= 2:
            old.execute("INSERT INTO plans (digest, body) VALUES (?, ?)", (digest_bytes(plan.encode()), plan))
            plan = digest_bytes(plan.encode())
        old.execute(
            "INSERT INTO runs (run_id, started, argv, host, plan) VALUES ('r', 1.0, '[]', '{}', ?)", (plan,)
        )
        old.close()
        with Ledger.open(path.parent) as ledger:
            run = ledger.run("r")
            assert run is not None
            assert run.plan == PlanRecord()
            assert ledger.record(outcome()).attempt == 1


def test_merge_appends_by_identity_and_numbers_anew(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a") as a, Ledger.open(tmp_path / "b") as b:
        a.record(outcome("k", measurements={"from": "a"}, run_id="ra"))
        b.record(outcome("k", measurements={"from": "b"}, run_id="rb", finished=500.0))
        b.record(outcome("only-b", run_id="rb"))
        assert a.merge(b.path).added == 2
        assert a.merge(b.path).added == 0
        assert [(one.attempt, one.run_id) for one in a.history(key="k")] == [(2, "rb"), (1, "ra")]
        own = a.get("k")
        assert own is not None
        assert own.measurements == {"from": "a"}, "what this machine recorded outranks what was merged"
        assert a.get("only-b") is not None
        assert b.merge(a.path).added == 1, "merging back brings only what was missing"


def test_merge_brings_logs_and_artifacts_that_are_still_what_they_were(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a") as a, Ledger.open(tmp_path / "b") as b:
        log, good, bad, gone = (b.artifacts.put(text, "x") for text in (b"log", b"good", b"bad", b"gone"))
        for ref, change in ((bad, b"BAD"), (gone, None)):
            path = b.artifacts.path(ref.digest)
            path.unlink()
            if change:
                path.write_bytes(change)
        b.record(outcome("k", log=log, artifacts=(good, bad, gone)))
        assert a.merge(b.path).added == 1
        assert a.artifacts.get(log).read_text() == "log"
        assert a.artifacts.is_intact(good)
        assert not a.artifacts.is_intact(bad)
        assert not a.artifacts.is_intact(gone)
        a.artifacts.path(log.digest).unlink()
        assert a.merge(b.path).added == 0
        assert a.artifacts.is_intact(log), "a later merge brings what was missing before"


def test_merge_brings_runs_and_their_plans_and_the_latest_stays_ones_own(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a") as a, Ledger.open(tmp_path / "b") as b:
        own = a.begin_run(PlanRecord(profile="mine"), ["run"], {}, now=100.0)
        theirs = b.begin_run(PlanRecord(profile="theirs"), ["run"], {"machine": "x"}, now=900.0)
        b.finish_run(theirs, 1, now=901.0)
        b._db.execute("INSERT INTO plans (digest, body) VALUES ('forged', '{}')")
        b._db.execute(
            "INSERT INTO runs (run_id, started, argv, host, plan) VALUES ('bad', 1.0, '[]', '{}', 'forged')"
        )
        a.merge(b.path)
        assert [run.run_id for run in a.runs()] == [theirs, own]
        found = a.run(theirs)
        assert found is not None
        assert (found.exit_code, found.plan) == (1, PlanRecord(profile="theirs"))
        latest = a.latest_run()
        assert latest is not None
        assert latest.run_id == own
    with Ledger.open(tmp_path / "c") as c:
        c.merge(tmp_path / "b" / FILE_NAME)
        merged = c.latest_run()
        assert merged is not None
        assert merged.run_id == theirs


def test_of_merged_outcomes_the_one_merged_last_counts(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a") as a, Ledger.open(tmp_path / "b") as b, Ledger.open(tmp_path / "c") as c:
        b.record(outcome("k", finished=900.0, run_id="late"))
        c.record(outcome("k", finished=300.0, run_id="early"))
        a.merge(b.path)
        a.merge(c.path)
        found = a.get("k")
        assert found is not None
        assert found.run_id == "early", "clocks of other machines do not count"


def test_of_one_key_what_was_merged_last_comes_first(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "old") as old:
        old.record(outcome(measurements={"good": False}, started=10.0, finished=20.0))
    with Ledger.open(tmp_path / "late") as late:
        late.record(outcome(measurements={"good": None}, started=300.0, finished=310.0))
    with Ledger.open(tmp_path / "here") as here:
        here.record(outcome(measurements={"good": True}, started=100.0, finished=110.0))
        here.merge(tmp_path / "late" / FILE_NAME)
        here.merge(tmp_path / "old" / FILE_NAME)
        assert [one.measurements["good"] for one in here.history(key="k1")] == [False, None, True]
        assert [one.measurements["good"] for one in here.history(key="k1", limit=1)] == [False]


def test_a_clock_that_was_set_back_hides_no_later_outcome_and_no_later_run(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.begin_run(PlanRecord(), ["run"], {}, now=9000.0)
        ledger.record(outcome(measurements={"good": True}, started=9000.0, finished=9001.0))
        later = ledger.begin_run(PlanRecord(), ["run"], {}, now=100.0)
        ledger.record(outcome(measurements={"good": False}, started=100.0, finished=101.0))
        latest = ledger.latest_run()
        assert latest is not None
        assert latest.run_id == later
        assert [one.measurements["good"] for one in ledger.history(key="k1")] == [False, True]


@pytest.mark.parametrize(
    ("started", "said"), [(100.0, True), (9009.0, True), (9009.5, False), (9011.0, False)]
)
def test_a_run_whose_clock_is_earlier_than_its_predecessors_says_so(
    tmp_path: Path, started: float, said: bool
) -> None:
    with Ledger.open(tmp_path) as ledger:
        before = ledger.begin_run(PlanRecord(), ["run"], {}, now=9000.0)
        ledger.finish_run(before, 0, now=9011.25)
        later = ledger.begin_run(PlanRecord(), ["run"], {}, now=started)
        notice = ledger.clock_notice(later)
        assert (notice is not None) == said
        assert notice is None or before in notice.what
        assert ledger.clock_notice(before) is None


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with its artifacts"])
def test_an_empty_file_is_no_ledger_without_outcomes(tmp_path: Path, beside: bool) -> None:
    far = tmp_path / "far"
    with Ledger.open(far) as ledger:
        if beside:
            ledger.artifacts.put(b"x", "lock.txt")
    (far / FILE_NAME).write_bytes(b"")
    with (
        Ledger.open(tmp_path / "here") as here,
        pytest.raises(InputError, match="cannot be read as a ledger"),
    ):
        here.merge(far / FILE_NAME)
    with pytest.raises(InputError, match="cannot be read as a ledger"):
        Ledger.read(far / FILE_NAME)


def test_a_ledger_that_is_not_there_is_neither_read_nor_created(tmp_path: Path) -> None:
    missing = tmp_path / "far" / FILE_NAME
    with Ledger.open(tmp_path / "here") as here, pytest.raises(InputError, match="there is no ledger here"):
        here.merge(missing)
    with pytest.raises(InputError, match="there is no ledger here"):
        Ledger.read(missing)
    assert not missing.parent.exists()


def test_merging_what_is_no_ledger_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello" * 200)
    with Ledger.open(tmp_path / "a") as ledger:
        for other in (tmp_path / "absent", tmp_path / "text"):
            with pytest.raises(InputError):
                ledger.merge(other)


def filled(folder: Path, count: int = 200) -> Path:
    with Ledger.open(folder) as ledger:
        ledger.artifacts.put(b"a log", "log")
        for n in range(count):
            ledger.record(outcome(f"key-{n}", measurements={"text": "x" * 300, "n": n}))
    return folder / FILE_NAME


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2 + 17]


def zero_header(data: bytes) -> bytes:
    return bytes(100) + data[100:]


def random_bytes(data: bytes) -> bytes:
    return random.Random(1).randbytes(len(data))


def empty(_data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncate, zero_header, random_bytes, empty])
def test_a_damaged_ledger_is_kept_aside_and_said_so(tmp_path: Path, damage) -> None:
    path = filled(tmp_path)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with Ledger.open(tmp_path) as ledger:
        (notice,) = ledger.notices
        saved = ledger.history(limit=1000)
        assert f"{len(saved)} readable outcomes" in notice.fix
        assert all(one.measurements["text"] == "x" * 300 for one in saved), "only what is whole is taken over"
        ledger.record(outcome("new"))
        assert ledger.artifacts.folder.is_dir()
    (aside,) = [
        one for one in tmp_path.glob(f"{FILE_NAME}.corrupt-*") if not one.name.endswith(("-wal", "-shm"))
    ]
    assert aside.read_bytes() == damaged
    assert aside.name in str(notice)
    with Ledger.open(tmp_path) as again:
        assert again.notices == ()
        assert again.get("new") is not None


def test_two_damaged_ledgers_in_one_second_are_both_kept(tmp_path: Path) -> None:
    for _ in range(2):
        path = filled(tmp_path, count=1)
        path.write_bytes(b"nonsense" * 100)
        Ledger.open(tmp_path).close()
    assert len(list(tmp_path.glob(f"{FILE_NAME}.corrupt-*"))) == 2


def test_what_can_still_be_read_of_a_damaged_ledger_is_taken_over(tmp_path: Path) -> None:
    path = filled(tmp_path)
    raw = sqlite3.connect(path)
    (page_size,) = raw.execute("PRAGMA page_size").fetchone()
    (page,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'outcomes_by_check'").fetchone()
    raw.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * page_size : page * page_size] = bytes(page_size)
    path.write_bytes(data)
    with Ledger.open(tmp_path) as ledger:
        assert len(ledger.notices) == 1
        assert len(ledger.history(limit=1000)) == 200, "one broken index page loses no outcome"
        found = ledger.get("key-7")
        assert found is not None
        assert found.measurements["n"] == 7


def test_a_row_whose_content_changed_is_not_believed(tmp_path: Path) -> None:
    path = filled(tmp_path, count=2)
    raw = sqlite3.connect(path)
    raw.execute("UPDATE outcomes SET body = replace(body, '\"n\":0', '\"n\":7') WHERE key = 'key-0'")
    raw.commit()
    raw.close()
    with Ledger.open(tmp_path) as ledger:
        assert ledger.get("key-0") is None
        assert ledger.get("key-1") is not None
        (notice,) = ledger.notices
        assert "the outcome of resolve with key key-0" in notice.why
    with Ledger.open(tmp_path) as again:
        assert again.notices == ()
        assert again.get("key-0") is None
        again.record(outcome("key-0"))
        assert again.get("key-0") is not None


def test_an_outcome_that_is_not_that_of_its_digest_is_not_believed(tmp_path: Path) -> None:
    """A seal can be computed by anybody, and signatures are found by the digest."""
    path = filled(tmp_path, count=2)
    edit_ledger(path, "UPDATE outcomes SET body = replace(body, '\"n\":0', '\"n\":7') WHERE key = 'key-0'")
    with Ledger.open(tmp_path) as ledger:
        assert not ledger.notices
        assert ledger.get("key-0") is None
        assert ledger.get("key-1") is not None
        assert ledger.damaged_rows == 1


@pytest.mark.parametrize("column", ["key", "check_name", "state", "run_id"])
def test_a_column_that_contradicts_the_text_of_its_outcome_is_not_believed(
    tmp_path: Path, column: str
) -> None:
    """Whoever can seal a row could otherwise show the outcome of one key as that of another one."""
    with Ledger.open(tmp_path) as ledger:
        ledger.record(outcome("k1"))
    edit_ledger(tmp_path / FILE_NAME, f"UPDATE outcomes SET {column} = 'timeout'")
    with Ledger.open(tmp_path) as ledger:
        assert ledger.get_many(["k1", "timeout"]) == {}
        assert ledger.history() == ()


ODD = [None, -1, 1e300, "x", [], [1], {}, {"a": 1}]


def odd_ledger(folder: Path, bodies: list[str]) -> Path:
    """A ledger with one row for each body; the digests of valid bodies match."""
    with Ledger.open(folder) as ledger:
        for number in range(len(bodies)):
            ledger.record(outcome(f"k{number}"))
    for number, body in enumerate(bodies, 1):
        uid = outcome_uid(body) if body.startswith("{") else "0"
        edit_ledger(
            folder / FILE_NAME,
            "UPDATE outcomes SET body = ?, uid = ? WHERE id = ?",
            values=(body, uid, number),
        )
    return folder / FILE_NAME


def test_rows_whose_fields_have_other_types_are_not_believed(tmp_path: Path) -> None:
    ref = ArtifactRef(name="log", digest="0" * 64, size=1)
    good = json.loads(outcome_body(outcome(log=ref, failure=Failure(kind="x", message="y"))))
    pairs = [(name, value) for name in good for value in ODD]
    odd = [{**good, "key": f"k{number}", name: value} for number, (name, value) in enumerate(pairs)]
    file = odd_ledger(tmp_path / "a", [json.dumps(body) for body in odd])
    with Ledger.open(tmp_path / "b") as into:
        into.merge(file)
        believed = into.history()
        assert into.damaged_rows == len(odd) - len(believed) > 80
    for one in believed:
        assert load(Outcome, outcome_body(one)) == one
        assert 0 <= one.seconds <= 1e12
        assert {type(text) for text in one.facets.values()} <= {str}


def test_a_row_that_is_nested_too_deeply_is_not_believed(tmp_path: Path) -> None:
    file = odd_ledger(tmp_path / "a", ["[" * 100_000])
    with Ledger.open(tmp_path / "b") as into:
        assert into.merge(file).added == 0
        assert into.damaged_rows == 1


TASK = TaskRecord(
    key="k",
    check="c",
    tier=Tier.STATIC,
    facets={},
    facet_digests={},
    code_digest="d",
    params={},
)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("started", "long ago"),
        ("started", 1e300),
        ("finished", "x"),
        ("exit_code", "x"),
        ("argv", "1"),
        ("argv", "[1]"),
        ("argv", "[" * 100_000),
        ("host", "[1]"),
        ("plan", 1),
        ("plan", {"cells": [1]}),
        ("plan", {"cells": 1.5}),
        ("plan", {"entries": ["x"]}),
        ("plan", {"entries": [{"cell": "c", "check": "c", "key": "", "skip": {"status": "green"}}]}),
        ("plan", {"tasks": [{**as_object(TASK), "facets": None}]}),
    ],
)
def test_a_run_that_no_command_could_read_stays_where_it_is(
    tmp_path: Path, column: str, value: object
) -> None:
    with Ledger.open(tmp_path / "a") as a:
        a.record(outcome())
        a.begin_run(PlanRecord(tasks=(TASK,)), ["run"], {}, now=1.0)
    file = tmp_path / "a" / FILE_NAME
    if column == "plan":
        edit_ledger(file, "UPDATE plans SET body = ?", *NEW_PLAN_DIGESTS, values=(dumps(value),))
    else:
        edit_ledger(file, f"UPDATE runs SET {column} = ?", values=(value,))
    with Ledger.open(tmp_path / "b") as b:
        assert b.merge(tmp_path / "a" / FILE_NAME).added == 1
        assert b.runs() == ()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = filled(tmp_path, count=1)
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE of_a_newer_version (x)")
    raw.execute(f"PRAGMA user_version = {LATEST + 1}")
    raw.close()
    with pytest.raises(InputError, match="schema") as caught:
        Ledger.open(tmp_path)
    assert caught.value.problems[0].fix
    assert list(tmp_path.glob("*.corrupt-*")) == []


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / FILE_NAME)
    raw.execute("CREATE TABLE bookmarks (url TEXT)")
    raw.close()
    with pytest.raises(InputError, match="not a ledger"):
        Ledger.open(tmp_path)
    assert list(tmp_path.glob("*.corrupt-*")) == []


def test_a_state_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(InfrastructureError) as caught:
        Ledger.open(tmp_path / "state")
    assert "--state" in str(caught.value)


@pytest.mark.parametrize(("make", "why"), [(Path.mkdir, "it is a folder"), (os.mkfifo, "it is not a file")])
def test_what_is_no_file_in_the_place_of_the_ledger_is_not_called_unwritable(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path / FILE_NAME)
    with pytest.raises(InfrastructureError, match=why) as caught:
        Ledger.open(tmp_path)
    assert "move it away" in caught.value.problems[0].fix


def intact(_file: Path) -> None:
    pass


def with_the_journal_of_a_killed_writer(file: Path) -> None:
    copies = {}
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        for pragma in ("cache_size = 1", "cache_spill = 1"):
            writer.execute(f"PRAGMA {pragma}")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE outcomes SET body = body || ' '")
        copies = {one: one.read_bytes() for one in file.parent.glob(f"{FILE_NAME}*")}
        writer.execute("ROLLBACK")
    assert len(copies) == 2
    for path, data in copies.items():
        path.write_bytes(data)


def with_a_changed_row(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE outcomes SET body = body || ' ' WHERE key = 'key-7'")


@pytest.fixture(params=[intact, with_the_journal_of_a_killed_writer, with_a_changed_row])
def as_nobody(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A read-only ledger; the process runs as the user nobody, because root can write everywhere."""
    if os.geteuid() != 0:
        pytest.skip("not run: needs root to become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        closed = [above for above in folder.parents if not above.stat().st_mode & stat.S_IXOTH]
        if closed:
            pytest.skip(f"not run: only its owner may look into {closed[0]}")
        request.param(filled(folder))
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)


def test_a_read_only_folder(as_nobody: Path) -> None:
    with Ledger.open(as_nobody) as ledger:
        assert ledger.get("key-0") is not None
        assert len(ledger.history(limit=1000)) == (199 if ledger.notices else 200)
    with Ledger.open(as_nobody) as ledger, pytest.raises(InfrastructureError) as caught:
        ledger.record(outcome())
    assert "writable" in caught.value.problems[0].fix


def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        ledger.record(outcome("before"))
        pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
        # SQLite raises the same error for its page limit as for a full disk.
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(InfrastructureError) as caught:
            ledger.record(outcome("after", measurements={"big": "x" * 100_000}))
        assert "free space" in caught.value.problems[0].fix
        assert ledger.get("after") is None
    with Ledger.open(tmp_path) as ledger:
        assert ledger.get("before") is not None
        assert ledger.notices == ()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", mebibytes=1) as folder:
        yield folder


def test_a_really_full_disk_is_said_and_loses_nothing(tiny_disk: Path) -> None:
    with Ledger.open(tiny_disk) as ledger:
        ref = ledger.artifacts.put(b"log", "log")
        recorded = [0]

        def until_full() -> None:
            while recorded[0] < 1000:
                text = {"text": "x" * 5000}
                ledger.record(outcome(f"key-{recorded[0]}", measurements=text, log=ref))
                recorded[0] += 1

        with pytest.raises(InfrastructureError) as caught:
            until_full()
        assert "free space" in caught.value.problems[0].fix
        with pytest.raises(InfrastructureError) as caught:
            ledger.artifacts.put(b"x" * (2 << 20), "big")
        assert "free space" in caught.value.problems[0].fix
        assert list((tiny_disk / "artifacts" / "incoming").iterdir()) == []
    with Ledger.open(tiny_disk) as ledger:
        assert ledger.notices == ()
        assert len(ledger.history(limit=1000)) == recorded[0]
        assert ledger.artifacts.is_intact(ref)


WRITER = """
import sys
from pathlib import Path
from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import *
ledger = Ledger.open(Path(sys.argv[1]))
who, count = sys.argv[2], int(sys.argv[3])
for n in range(count):
    key = f"{who}-{n}"
    ref = ledger.artifacts.put(key.encode() * 100, "log")
    ledger.record(Outcome(key=key, check="resolve", tier=Tier.STATIC, state=State.COMPLETED,
                          evidence=Evidence.STATIC, facets={}, measurements={"n": n}, log=ref))
    ledger.record(Outcome(key="shared", check="resolve", tier=Tier.STATIC, state=State.COMPLETED,
                          evidence=Evidence.STATIC, facets={}, measurements={"who": who, "n": n}))
    print(n, flush=True)
"""


def writer(folder: Path, who: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), who, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_kill_9_at_any_moment_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    choose = random.Random(7)
    for round_number in range(4):
        process = writer(tmp_path, f"w{round_number}", 100_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(choose.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        told = len(said.splitlines()) + 1
        with Ledger.open(tmp_path) as ledger:
            assert ledger.notices == ()
            mine = [one for one in ledger.history(limit=10**6) if one.key.startswith(f"w{round_number}-")]
            assert len(mine) >= told - 1, "a line is said only after its outcomes are recorded"
            assert all(one.log is not None and ledger.artifacts.is_intact(one.log) for one in mine)
            assert ledger.damaged_rows == 0
            stored = list(ledger.artifacts.folder.glob("sha256/??/*"))
            assert [file for file in stored if digest_file(file) != file.parent.name + file.name] == []


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    writers = [writer(tmp_path, who, 25) for who in "ab"]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with Ledger.open(tmp_path) as ledger:
        assert len(ledger.history(limit=1000)) == 100
        assert sorted(one.attempt for one in ledger.history(key="shared")) == list(range(1, 51))


def test_opening_creates_parent_folders(tmp_path: Path) -> None:
    opened = open_database(tmp_path / "deep" / "er" / "x.sqlite3")
    opened.connection.close()
    assert opened.damage is None


def test_typical_seconds_is_the_median_of_completed_ones(tmp_path: Path) -> None:
    with Ledger.open(tmp_path) as ledger:
        for n, seconds in enumerate([1.0, 2.0, 50.0]):
            ledger.record(outcome(f"k{n}", started=10.0, finished=10.0 + seconds))
        ledger.record(outcome("err", state=State.ERROR, started=0.0, finished=999.0))
        assert ledger.typical_seconds() == {"resolve": 2.0}
