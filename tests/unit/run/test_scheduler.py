from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_fakes import (
    FakeClock,
    FakeExecutor,
    entry,
    judge,
    make_check,
    make_plan,
    make_task,
    outcome_of,
    skipped,
    unfinished,
)

from harness.errors import InfrastructureError
from harness.ledger.store import Ledger
from harness.outcome import ArtifactRef, Failure, Judgement, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.run.scheduling.events import RunEvent, RunMessage, TaskFinished, TaskStarted
from harness.run.scheduling.run_result import RunResult
from harness.run.scheduling.scheduler import RunPolicy, run_plan

RESOLVE = make_check("resolve")
LINT = make_check("lint")
ENVIRONMENT = make_check("environment", Tier.BUILD, needs=("resolve",))
LOSS = make_check("loss", Tier.NUMERICS, needs=("environment",))

resolve = make_task(RESOLVE)
lint = make_task(LINT)
environment = make_task(ENVIRONMENT, needs=[resolve])
loss = make_task(LOSS, needs=[environment])
CELL = make_plan(
    [entry("c", one) for one in (resolve, lint, environment, loss)], [resolve, lint, environment, loss]
)


def fails(task: Task) -> Outcome:
    return outcome_of(task, ok=False)


def breaks(task: Task) -> Outcome:
    return outcome_of(task, state=State.ERROR)


def passes(task: Task) -> Outcome:
    return outcome_of(task)


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "state") as ledger:
        yield ledger


def go(plan: Plan, ledger: Ledger, executor: FakeExecutor | None = None, **options) -> RunResult:
    return run_plan(plan, ledger, executor or FakeExecutor(), judge, clock=FakeClock(), **options)


def statuses(result: RunResult) -> dict[str, Status]:
    return {
        **{one.outcome.check: one.judgement.status for one in result.tasks.values()},
        **{one.check: one.status for one in result.without_outcome},
    }


def names(executor: FakeExecutor) -> list[str]:
    return [job.task.check.name for job in executor.started]


def test_everything_runs_once_in_order_of_need_and_again_nothing_runs(ledger: Ledger) -> None:
    executor = FakeExecutor(slots=1)
    first = go(CELL, ledger, executor)
    assert names(executor)[2:] == ["environment", "loss"]
    assert (first.executed, first.reused, first.errors, unfinished(first)) == (4, 0, 0, ())
    again = FakeExecutor()
    second = go(CELL, ledger, again)
    assert again.started == []
    assert (second.executed, second.reused) == (0, 4)
    assert second.outcomes == first.outcomes


def locks(ledger: Ledger, folder: Path, *texts: str) -> list[Callable[[Task], Outcome]]:
    """Outcomes of `resolve` with these lock files, one after the other."""

    def answer(text: str) -> Callable[[Task], Outcome]:
        file = folder / "lock.txt"
        file.write_text(text)
        ref = ledger.artifacts.put(file, "lock.txt", "text/plain")
        return lambda task: outcome_of(task, artifacts=(ref,))

    return [answer(text) for text in texts]


@pytest.mark.parametrize("slots", [1, 4])
def test_a_new_lock_makes_everything_anew_that_was_built_on_the_old_one(
    ledger: Ledger, tmp_path: Path, slots: int
) -> None:
    old, new = locks(ledger, tmp_path, "torch==2.7.1", "torch==2.8.0")
    go(CELL, ledger, FakeExecutor(answers={resolve.key: [old]}))
    executor = FakeExecutor(slots=slots, answers={resolve.key: [new]})
    events: list[RunEvent] = []
    fresh = RunPolicy(rerun=frozenset({resolve.key}))
    result = go(CELL, ledger, executor, policy=fresh, observer=events.append)
    assert names(executor) == ["resolve", "environment", "loss"]
    assert (result.executed, result.reused) == (3, 1)
    why = {event.check: event.why for event in events if isinstance(event, TaskStarted)}
    assert why["environment"] == "resolve has a new outcome since then"
    assert why["loss"] == "environment has a new outcome since then"
    again = FakeExecutor()
    go(CELL, ledger, again)
    assert again.started == []


def test_the_same_lock_again_leaves_what_was_built_on_it(ledger: Ledger, tmp_path: Path) -> None:
    first, same = locks(ledger, tmp_path, "torch==2.7.1", "torch==2.7.1")
    go(CELL, ledger, FakeExecutor(answers={resolve.key: [first]}))
    executor = FakeExecutor(answers={resolve.key: [same]})
    go(CELL, ledger, executor, policy=RunPolicy(rerun=frozenset({resolve.key})))
    assert names(executor) == ["resolve"]


def test_what_rests_on_the_old_lock_is_not_shown_if_the_new_environment_cannot_be_built(
    ledger: Ledger, tmp_path: Path
) -> None:
    old, new = locks(ledger, tmp_path, "torch==2.7.1", "torch==2.8.0")
    go(CELL, ledger, FakeExecutor(answers={resolve.key: [old]}))
    executor = FakeExecutor(answers={resolve.key: [new], environment.key: [fails]})
    result = go(CELL, ledger, executor, policy=RunPolicy(rerun=frozenset({resolve.key})))
    assert statuses(result)["environment"] is Status.FAIL
    assert statuses(result)["loss"] is Status.BLOCKED
    assert "loss" in {one.check for one in ledger.dispositions(result.run_id)}


def test_a_run_that_was_killed_after_the_new_lock_goes_on_with_what_needs_it(
    ledger: Ledger, tmp_path: Path
) -> None:
    old, new = locks(ledger, tmp_path, "torch==2.7.1", "torch==2.8.0")
    go(CELL, ledger, FakeExecutor(answers={resolve.key: [old]}))
    ledger.record(new(resolve))
    executor = FakeExecutor()
    go(CELL, ledger, executor)
    assert names(executor) == ["environment", "loss"]


def test_a_new_task_waits_for_the_new_lock_instead_of_the_old_environment(
    ledger: Ledger, tmp_path: Path
) -> None:
    old, new = locks(ledger, tmp_path, "torch==2.7.1", "torch==2.8.0")
    before = make_plan([entry("c", one) for one in (resolve, environment)], [resolve, environment])
    go(before, ledger, FakeExecutor(answers={resolve.key: [old]}))
    executor = FakeExecutor(slots=4, answers={resolve.key: [new]})
    go(CELL, ledger, executor, policy=RunPolicy(rerun=frozenset({resolve.key})))
    assert sorted(names(executor)) == ["environment", "lint", "loss", "resolve"]
    assert names(executor).index("environment") < names(executor).index("loss")


def test_what_was_not_run_is_asked_again_once_its_check_says_that_it_can_be(ledger: Ledger) -> None:
    here: list[str] = []
    absent = make_check(
        "patches",
        judge=lambda found, _params: Judgement(status=Status.PASS if found["ok"] else Status.NOT_RUN),
        holds=lambda _measured, outcome: (
            "" if outcome.measurements["ok"] or not here else "a mirror has it now"
        ),
    )
    task = make_task(absent)
    plan = make_plan([entry("c", task)], [task])
    assert statuses(go(plan, ledger, FakeExecutor(answers={task.key: [fails]}))) == {
        "patches": Status.NOT_RUN
    }
    assert go(plan, ledger).reused == 1
    here.append("mirror")
    events: list[RunEvent] = []
    result = go(plan, ledger, observer=events.append)
    assert statuses(result) == {"patches": Status.PASS}
    assert [event.why for event in events if isinstance(event, TaskStarted)] == ["a mirror has it now"]
    assert go(plan, ledger).reused == 1


def test_inputs_are_the_outcomes_of_the_needs(ledger: Ledger) -> None:
    executor = FakeExecutor()
    go(CELL, ledger, executor)
    jobs = {job.task.check.name: job for job in executor.started}
    assert {name: one.key for name, one in jobs["loss"].inputs.items()} == {"environment": environment.key}
    assert jobs["resolve"].inputs == {}


def test_a_failed_tier_blocks_the_dearer_ones_and_says_which_check(ledger: Ledger) -> None:
    executor = FakeExecutor(answers={lint.key: [fails]})
    result = go(CELL, ledger, executor)
    assert sorted(names(executor)) == ["lint", "resolve"]
    assert statuses(result) == {
        "resolve": Status.PASS,
        "lint": Status.FAIL,
        "environment": Status.BLOCKED,
        "loss": Status.BLOCKED,
    }
    kept = {one.check: one for one in ledger.dispositions(result.run_id)}
    assert set(kept) == {"environment", "loss"}
    assert kept["loss"].reason == "lint failed: it is not ok"
    assert unfinished(result) == ()


def test_keep_going_spends_dearer_tiers_but_never_without_a_need(ledger: Ledger) -> None:
    executor = FakeExecutor(answers={lint.key: [fails], environment.key: [fails]})
    result = go(CELL, ledger, executor, policy=RunPolicy(keep_going=True))
    assert statuses(result)["environment"] is Status.FAIL
    assert statuses(result)["loss"] is Status.BLOCKED
    assert result.without_outcome[-1].reason == "environment failed: it is not ok"


def test_a_failed_check_that_dearer_ones_do_not_rest_on_stops_none_of_them(ledger: Ledger) -> None:
    other_model = make_task(make_check("other-model", stops=False))
    dear = make_task(make_check("dear", Tier.BUILD))
    tasks = [other_model, dear]
    executor = FakeExecutor(answers={other_model.key: [fails]})
    result = go(make_plan([entry("c", one) for one in tasks], tasks), ledger, executor)
    assert statuses(result) == {"other-model": Status.FAIL, "dear": Status.PASS}


def test_a_task_that_cells_share_runs_once_if_one_of_them_wants_it(ledger: Ledger) -> None:
    bad_lint = make_task(LINT, facets={"recipe": "bad"})
    tasks = [resolve, lint, bad_lint, environment]
    plan = make_plan(
        [entry("good", one) for one in (resolve, lint, environment)]
        + [entry("bad", one) for one in (resolve, bad_lint, environment)],
        tasks,
    )
    executor = FakeExecutor(answers={bad_lint.key: [fails]})
    result = go(plan, ledger, executor)
    assert names(executor).count("environment") == 1
    assert statuses(result)["environment"] is Status.PASS
    assert ledger.dispositions(result.run_id) == ()


def test_skipped_entries_are_reported_with_their_reason_and_block_nothing(ledger: Ledger) -> None:
    plan = make_plan([entry("c", resolve), skipped("c", ENVIRONMENT), skipped("c", LOSS)], [resolve])
    result = go(plan, ledger)
    assert [one.reason for one in ledger.dispositions(result.run_id)] == ["no NPU on this host"] * 2


def test_an_environment_that_is_gone_is_made_again_only_when_something_needs_it(ledger: Ledger) -> None:
    gone = replace(ENVIRONMENT, holds=lambda _measured, _outcome: "its folder is gone")
    env = replace(environment, check=gone)
    before = make_plan([entry("c", one) for one in (resolve, env, loss)], [resolve, env, loss])
    go(before, ledger)
    idle = FakeExecutor()
    assert go(before, ledger, idle).executed == 0
    grpo = make_task(make_check("grpo", Tier.CONVERGENCE), needs=[env])
    after = make_plan([*before.entries, entry("c", grpo)], [resolve, env, loss, grpo])
    events: list[RunEvent] = []
    executor = FakeExecutor()
    result = go(after, ledger, executor, observer=events.append)
    assert names(executor) == ["environment", "grpo"]
    assert [e.why for e in events if isinstance(e, TaskStarted)] == ["its folder is gone", ""]
    assert [one.attempt for one in ledger.history(key=env.key)] == [2, 1]
    assert not unfinished(result)


@pytest.mark.parametrize("full", [False, True])
def test_on_request_everything_that_an_input_describes_is_read(ledger: Ledger, full: bool) -> None:
    check = replace(ENVIRONMENT, holds_fully=lambda _measured, _outcome: "core.py was edited")
    env = replace(environment, check=check)
    plan = make_plan([entry("c", one) for one in (resolve, env, loss)], [resolve, env, loss])
    go(plan, ledger)
    executor = FakeExecutor()
    go(plan, ledger, executor, policy=RunPolicy(rerun={loss.key}, full=full))
    assert names(executor) == (["environment", "loss"] if full else ["loss"])


def test_one_that_is_gone_is_made_once_for_all_that_need_it(ledger: Ledger) -> None:
    gone = replace(environment, check=replace(ENVIRONMENT, holds=lambda _measured, _outcome: "gone"))
    ledger.record(outcome_of(resolve))
    ledger.record(outcome_of(gone))
    losses = [make_task(LOSS, facets={"n": n}, needs=[gone]) for n in range(3)]
    plan = make_plan([entry(f"c{n}", one) for n, one in enumerate(losses)], [resolve, gone, *losses])
    executor = FakeExecutor(slots=4)
    result = go(plan, ledger, executor)
    assert names(executor) == ["environment", "loss", "loss", "loss"]
    assert not unfinished(result)


def test_an_environment_that_was_altered_is_made_again_even_if_nothing_needs_it(ledger: Ledger) -> None:
    edits: list[str] = []
    check = replace(ENVIRONMENT, altered=lambda _measured, _outcome: "".join(edits))
    env = replace(environment, check=check)
    plan = make_plan([entry("c", one) for one in (resolve, env, loss)], [resolve, env, loss])
    go(plan, ledger)
    assert go(plan, ledger).executed == 0
    edits.append("verl/core.py was edited")
    events: list[RunEvent] = []
    executor = FakeExecutor()
    go(plan, ledger, executor, observer=events.append)
    assert names(executor)[0] == "environment"
    assert next(e.why for e in events if isinstance(e, TaskStarted)) == "verl/core.py was edited"


def test_what_was_measured_in_an_altered_environment_does_not_count_if_that_cannot_be_built(
    ledger: Ledger,
) -> None:
    edits: list[str] = []
    check = replace(ENVIRONMENT, altered=lambda _measured, _outcome: "".join(edits))
    env = replace(environment, check=check)
    plan = make_plan([entry("c", one) for one in (resolve, env, loss)], [resolve, env, loss])
    go(plan, ledger)
    edits.append("verl/core.py was edited")
    result = go(plan, ledger, FakeExecutor(answers={env.key: [breaks, breaks]}))
    assert statuses(result)["loss"] is Status.BLOCKED
    assert [one.status for one in ledger.dispositions(result.run_id)] == [Status.BLOCKED]


def test_an_environment_that_a_task_changed_is_made_again_before_the_next_task(ledger: Ledger) -> None:
    edits: list[str] = []
    check = replace(ENVIRONMENT, holds=lambda _measured, _outcome: edits.pop() if edits else "")
    env = replace(environment, check=check)

    def changes_it(task: Task) -> Outcome:
        edits.append("core.py was edited")
        failure = Failure(kind="InfrastructureError", message="the environment changed while the task ran")
        return outcome_of(task, state=State.ERROR, failure=failure)

    loss_of_it = replace(loss, needs=(resolve.key, env.key))
    plan = make_plan([entry("c", one) for one in (resolve, env, loss_of_it)], [resolve, env, loss_of_it])
    executor = FakeExecutor(answers={loss_of_it.key: [changes_it, passes]})
    result = go(plan, ledger, executor)
    assert names(executor) == ["resolve", "environment", "loss", "environment", "loss"]
    assert statuses(result)["loss"] is Status.PASS


def test_a_need_whose_artifact_is_gone_runs_again(ledger: Ledger) -> None:
    ref = ArtifactRef(name="lock.txt", digest="0" * 64, size=3)
    ledger.record(outcome_of(resolve, artifacts=(ref,)))
    executor = FakeExecutor()
    go(CELL, ledger, executor)
    assert names(executor).count("resolve") == 1


def test_a_need_whose_artifact_was_edited_runs_again(ledger: Ledger) -> None:
    ref = ledger.artifacts.put(b"torch==2.8.0", "lock.txt")
    ledger.record(outcome_of(resolve, artifacts=(ref,)))
    file = ledger.artifacts.get(ref)
    file.chmod(0o644)
    file.write_bytes(b"torch==2.8.1")
    executor = FakeExecutor()
    go(CELL, ledger, executor)
    assert names(executor).count("resolve") == 1


def test_a_need_that_cannot_be_looked_at_is_made_again(ledger: Ledger) -> None:
    odd = replace(environment, check=replace(ENVIRONMENT, holds=lambda one: str(one.environment["folder"])))
    ledger.record(outcome_of(odd))
    executor = FakeExecutor()
    go(make_plan([entry("c", one) for one in (resolve, odd, loss)], [resolve, odd, loss]), ledger, executor)
    assert "environment" in names(executor)


def test_a_run_goes_on_when_nobody_can_watch_it(ledger: Ledger) -> None:
    def gone(_event: RunEvent) -> None:
        raise BrokenPipeError

    assert go(CELL, ledger, observer=gone).executed == 4


def test_a_need_that_fails_when_made_again_blocks_what_needs_it(ledger: Ledger) -> None:
    gone = replace(environment, check=replace(ENVIRONMENT, holds=lambda _measured, _outcome: "gone"))
    ledger.record(outcome_of(resolve))
    ledger.record(outcome_of(gone))
    plan = make_plan([entry("c", one) for one in (resolve, gone, loss)], [resolve, gone, loss])
    result = go(plan, ledger, FakeExecutor(answers={gone.key: [fails]}))
    assert statuses(result) == {"resolve": Status.PASS, "environment": Status.FAIL, "loss": Status.BLOCKED}


def test_only_infrastructure_errors_are_retried_and_every_attempt_is_kept(ledger: Ledger) -> None:
    executor = FakeExecutor(answers={resolve.key: [breaks, passes], lint.key: [fails]})
    events: list[RunEvent] = []
    result = go(CELL, ledger, executor, observer=events.append)
    assert names(executor).count("resolve") == 2
    assert names(executor).count("lint") == 1
    assert result.retried == 1
    assert [(one.attempt, one.state) for one in ledger.history(key=resolve.key)] == [
        (2, State.COMPLETED),
        (1, State.ERROR),
    ]
    assert [e.retried for e in events if isinstance(e, TaskFinished) and e.check == "resolve"] == [
        True,
        False,
    ]


def test_an_error_that_stays_is_reported_and_tried_anew_by_the_next_run(ledger: Ledger) -> None:
    result = go(CELL, ledger, FakeExecutor(answers={resolve.key: [breaks, breaks]}))
    assert (result.errors, result.retried) == (1, 1)
    assert statuses(result)["resolve"] is Status.ERROR
    assert statuses(result)["loss"] is Status.BLOCKED
    executor = FakeExecutor()
    assert unfinished(go(CELL, ledger, executor)) == ()
    assert names(executor)[-1] == "loss"


def test_rerun_ignores_what_is_stored(ledger: Ledger) -> None:
    go(CELL, ledger)
    executor = FakeExecutor()
    go(CELL, ledger, executor, policy=RunPolicy(rerun={lint.key}))
    assert names(executor) == ["lint"]


def test_rerun_of_a_blocked_task_tries_what_blocked_it(ledger: Ledger) -> None:
    """Its command to reproduce it would otherwise say again that it is blocked, whatever was mended."""
    go(CELL, ledger, FakeExecutor(answers={environment.key: [fails]}))
    again = FakeExecutor()
    go(CELL, ledger, again)
    assert again.started == []
    executor = FakeExecutor()
    result = go(CELL, ledger, executor, policy=RunPolicy(rerun={loss.key}))
    assert names(executor) == ["environment", "loss"]
    assert statuses(result)["loss"] is Status.PASS


def test_stopping_records_what_ran_and_the_next_run_resumes(ledger: Ledger) -> None:
    executor = FakeExecutor(slots=2)
    told: list[RunEvent] = []
    result = go(CELL, ledger, executor, stopped=lambda: len(executor.started) == 2, observer=told.append)
    assert result.interrupted
    assert executor.cancelled
    assert any(isinstance(event, RunMessage) and "stopping" in event.text for event in told)
    assert len(unfinished(result)) == 3
    assert all("to resume it" in one.reason for one in result.without_outcome)
    assert [one.state for one in ledger.history()].count(State.INTERRUPTED) == 1
    again = FakeExecutor()
    assert unfinished(go(CELL, ledger, again)) == ()
    assert len(again.started) == 3


def test_a_circle_of_needs_is_incomplete_not_silent(ledger: Ledger) -> None:
    a = replace(make_task(make_check("a")), needs=("kb",), key="ka")
    b = replace(make_task(make_check("b")), needs=("ka",), key="kb")
    result = go(make_plan([entry("c", a), entry("c", b)], [a, b]), ledger)
    assert len(unfinished(result)) == 2
    assert "cycle" in unfinished(result)[0].reason


def test_a_need_outside_the_plan_blocks(ledger: Ledger) -> None:
    result = go(make_plan([entry("c", loss)], [loss]), ledger)
    assert statuses(result) == {"loss": Status.BLOCKED}


def test_what_fails_more_often_and_saves_more_goes_first(ledger: Ledger) -> None:
    steady, shaky, alone = (make_task(make_check(name)) for name in ("steady", "shaky", "alone"))
    dear = make_task(make_check("dear", Tier.BUILD))
    tasks = [steady, alone, shaky, dear]
    entries = [entry("c", steady), entry("c", shaky), entry("c", dear), entry("d", alone)]
    executor = FakeExecutor(slots=1)
    policy = RunPolicy(failure_rate={"steady": 0.1, "shaky": 0.9, "alone": 0.9, "dear": 0.5})
    go(make_plan(entries, tasks), ledger, executor, policy=policy)
    assert names(executor) == ["shaky", "steady", "alone", "dear"]


def test_order_is_tier_then_failed_before_then_longest(ledger: Ledger) -> None:
    quick = make_task(make_check("quick", expected_s=1))
    slow = make_task(make_check("slow", expected_s=50))
    flaky = make_task(make_check("flaky", expected_s=0.1), facets={"pins": 1})
    dear = make_task(make_check("dear", Tier.BUILD, expected_s=500))
    first = make_plan([entry("c", flaky)], [flaky])
    go(first, ledger, FakeExecutor(answers={flaky.key: [fails]}))
    changed = make_task(flaky.check, facets={"pins": 2})
    tasks = [quick, dear, slow, changed]
    executor = FakeExecutor(slots=1)
    go(make_plan([entry("c", one) for one in tasks], tasks), ledger, executor)
    assert names(executor) == ["flaky", "slow", "quick", "dear"]


def test_a_ledger_that_cannot_be_written_stops_the_run(ledger: Ledger) -> None:
    executor = FakeExecutor()
    executor.on_collect = lambda: ledger._db.execute("PRAGMA max_page_count = 1")
    big = make_check("big", run=lambda _context: None)
    task = make_task(big)
    huge: Callable[[Task], Outcome] = lambda one: outcome_of(  # noqa: E731
        one, measurements={"ok": True, "text": "x" * 10**6}
    )
    executor.answers = {task.key: [huge]}
    with pytest.raises(InfrastructureError):
        go(make_plan([entry("c", task)], [task]), ledger, executor)


# -- any plan, any order, any interruption --------------------------------------------------------

TIERS = list(Tier)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, dict[str, list[Callable[[Task], Outcome]]]]:
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 7))):
        needs = draw(st.lists(st.sampled_from(tasks), max_size=2, unique_by=lambda t: t.key)) if tasks else []
        rank = draw(st.integers(max((n.check.tier.rank for n in needs), default=0), 3))
        check = make_check(f"check{number}", TIERS[rank], needs=tuple(n.check.name for n in needs))
        tasks.append(make_task(check, needs=needs, key=f"key{number}"))
    cells = draw(st.integers(1, 3))
    entries = [
        entry(f"cell{cell}", task)
        for cell in range(cells)
        for task in tasks
        if draw(st.booleans()) or cell == 0
    ]
    behaviour = st.sampled_from([passes, passes, passes, fails, breaks])
    answers = {task.key: draw(st.lists(behaviour, max_size=2)) for task in tasks}
    return make_plan(entries, tasks), answers


def check_run(
    plan: Plan, executor: FakeExecutor, result: RunResult, events: list[RunEvent], retries: int
) -> None:
    left = {(one.cell_id, one.check): one for one in result.without_outcome}
    for one in plan.entries:
        assert (one.key in result.tasks) != ((one.cell_id, one.check) in left), "planned = reported"
    assert all(one.reason for one in result.without_outcome)
    started = [job.task.key for job in executor.started]
    assert all(started.count(key) <= 1 + retries for key in started)
    done: set[str] = set()
    for event in events:
        if isinstance(event, TaskStarted):
            assert set(plan.tasks[event.key].needs) <= done, "a task ran before its needs"
        elif isinstance(event, TaskFinished) and event.judgement.status is Status.PASS:
            done.add(event.key)


@settings(max_examples=25, deadline=None)
@given(plans(), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_needs_first_once_each_and_all_accounted_for(made, slots: int, seed: int, keep_going: bool) -> None:
    plan, answers = made
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder)) as ledger:
        events: list[RunEvent] = []
        executor = FakeExecutor(slots, answers, seed)
        result = go(plan, ledger, executor, observer=events.append, policy=RunPolicy(keep_going=keep_going))
        check_run(plan, executor, result, events, retries=1)
        assert unfinished(result) == ()
        idle = FakeExecutor()
        second = go(plan, ledger, idle, policy=RunPolicy(keep_going=keep_going))
        completed = {key for key, outcome in result.outcomes.items() if outcome.state is State.COMPLETED}
        assert not completed & {job.task.key for job in idle.started}, "what has an outcome never runs again"
        assert unfinished(second) == ()


def settled(result: RunResult) -> tuple[object, ...]:
    found = {key: (one.judgement.status, one.outcome.measurements) for key, one in result.tasks.items()}
    return found, result.without_outcome


class Killed(BaseException):
    """Simulates SIGKILL: the run ends without any clean-up."""


@settings(max_examples=25, deadline=None)
@given(plans(), st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=3), st.integers(0, 3))
def test_crashes_and_resumes_end_with_the_same_outcomes(made, crashes, seed: int) -> None:
    plan, answers = made
    # Each task always has the same outcome, so the runs differ only in when they are stopped.
    steady = {key: (queue[0] if queue else passes) for key, queue in answers.items()}
    steady = {key: (passes if make is breaks else make) for key, make in steady.items()}
    with tempfile.TemporaryDirectory() as folder:
        with Ledger.open(Path(folder) / "whole") as ledger:
            whole = settled(go(plan, ledger, FakeExecutor(2, {k: [m] for k, m in steady.items()}, seed)))
        for after, polite in crashes:
            executor = FakeExecutor(2, {k: [m] for k, m in steady.items()}, seed + after)
            with Ledger.open(Path(folder) / "cut") as ledger:
                collected = [0]

                def cut(collected=collected, after=after, polite=polite) -> None:
                    collected[0] += 1
                    if collected[0] > after and not polite:
                        raise Killed

                executor.on_collect = cut
                with contextlib.suppress(Killed):
                    go(
                        plan,
                        ledger,
                        executor,
                        stopped=lambda c=collected, a=after, p=polite: p and c[0] > a,
                    )
        with Ledger.open(Path(folder) / "cut") as ledger:
            last = go(plan, ledger, FakeExecutor(2, {k: [m] for k, m in steady.items()}, seed))
        assert settled(last) == whole


@pytest.mark.parametrize("ends", [passes, fails, breaks])
def test_a_check_runs_with_the_outcome_of_one_that_only_informs_it(
    ledger: Ledger, ends: Callable[[Task], Outcome]
) -> None:
    api = make_task(make_check("api", informed_by=("resolve",)), needs=[resolve])
    plan = make_plan([entry("c", one) for one in (resolve, api)], [resolve, api])
    executor = FakeExecutor(answers={resolve.key: [ends] * 2})
    result = go(plan, ledger, executor)
    assert statuses(result)["api"] is Status.PASS
    assert set(executor.started[-1].inputs) == {"resolve"}


@pytest.mark.parametrize(
    ("state", "why"),
    [(State.ERROR, {"it did not complete: InfrastructureError: broken"}), (State.TIMEOUT, set())],
)
def test_an_input_that_did_not_complete_is_tried_again_because_of_its_failure(
    ledger: Ledger, state: State, why: set[str]
) -> None:
    first = make_task(make_check("resolve", holds=lambda measured, _outcome: "" if measured["ok"] else "old"))
    api = make_task(make_check("api", informed_by=("resolve",)), needs=[first])
    plan = make_plan([entry("c", one) for one in (first, api)], [first, api])
    incomplete = [lambda task: outcome_of(task, state=state)] * 9
    executor = FakeExecutor(answers={first.key: incomplete, api.key: [breaks, passes]})
    events: list[RunEvent] = []
    result = go(plan, ledger, executor, observer=events.append)
    assert statuses(result)["api"] is Status.PASS
    started = [event for event in events if isinstance(event, TaskStarted) and event.check == "resolve"]
    assert {event.why for event in started if event.why} == why


def test_what_rests_on_a_replaced_archive_is_measured_again_and_says_why(ledger: Ledger) -> None:
    go(CELL, ledger)
    executor = FakeExecutor()
    events: list[RunEvent] = []
    policy = RunPolicy(outdated={lint.key: "the package index has another verl.whl now", "gone": "x"})
    result = go(CELL, ledger, executor, policy=policy, observer=events.append)
    assert names(executor) == ["lint"]
    assert result.executed == 1
    [started] = [event for event in events if isinstance(event, TaskStarted)]
    assert started.why == "the package index has another verl.whl now"
