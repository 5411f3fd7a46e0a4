import html
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_outcome import make_outcome

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.outcome import ANSWERED, UNANSWERED, Evidence, Judgement, Status, Tier
from harness.verdict.gate.flake import FlakeDecision, Stability
from harness.verdict.gate.gate import GateInputs, judge_gate
from harness.verdict.gate.gate_format import COMMENT_MARKER, FORMATS
from harness.verdict.gate.gate_report import COMPARABLE, Blocks, GateClass, GateScope, Place
from harness.verdict.verdict import NOT_FAILURES, ExpectedFailure, Standing, judge_against_expectation

KNOWN = ExpectedFailure(
    state="fail",
    reason="upstream defect",
    source="https://example.org/1",
    until="2099-01-01",
    where="matrix.yaml:9",
)
NAME = ("cell", "loss")
OUTCOME = make_outcome("a" * 64, "loss", tier=Tier.NUMERICS, evidence=Evidence.CPU, run_id="run-1")


def side(status, *reasons, key="a" * 64, expected=None, known=False):
    return judge_against_expectation(
        "cell",
        "loss",
        Judgement(status=status, reasons=reasons),
        expected=expected,
        blocked_by_known=known,
        key=key,
        outcome=OUTCOME,
    )


def gate(head, base=None, *, base_key="b" * 64, **more):
    inputs = GateInputs(
        base_name="main",
        head={NAME: head},
        base={NAME: base} if base else {},
        base_keys={NAME: base_key} if base_key else {},
        **more,
    )
    return judge_gate(inputs)


def classified(*arguments, **more):
    report = gate(*arguments, **more)
    return report.items[0].gate_class, report.exit_code


FAIL, PASS = side(Status.FAIL, "loss differs by 3"), side(Status.PASS)


def test_a_failure_the_base_does_not_have_is_new_and_blocks():
    assert classified(FAIL, PASS) == (GateClass.NEW, EXIT_UNEXPECTED)
    assert "run-1" in gate(FAIL, PASS).items[0].evidence[0]


def test_a_failure_whose_base_was_never_run_is_unknown_and_blocks():
    assert classified(FAIL) == (GateClass.UNKNOWN, EXIT_INCOMPLETE)
    assert "never run" in gate(FAIL).items[0].evidence[0]
    command = "npu-matrix gate --base main --run-base"
    assert any(command in remedy for remedy in gate(FAIL, base_command=command).items[0].remedies)
    assert any("checkout of the base" in remedy for remedy in gate(FAIL).items[0].remedies)
    blocked = gate(FAIL, base_statuses={NAME: Status.BLOCKED}).items[0]
    assert blocked.gate_class is GateClass.UNKNOWN
    assert "blocked" in blocked.evidence[0]


def test_no_expectation_replaces_an_outcome():
    for state in ("error", "crash", "timeout", "fail", "inconclusive", "unsupported"):
        never = judge_against_expectation(
            "cell", "loss", Judgement(status=Status.ERROR), expected=replace(KNOWN, state=state), key="a" * 64
        )
        assert never.standing is Standing.INCOMPLETE
        assert classified(never, PASS) == (GateClass.INFRA, EXIT_INCOMPLETE)
        assert classified(never) == (GateClass.INFRA, EXIT_INCOMPLETE)
    recorded = side(Status.ERROR, expected=replace(KNOWN, state="error"))
    assert classified(recorded, PASS) == (GateClass.KNOWN, EXIT_OK)


def test_a_command_is_printed_once_and_remedies_of_a_run_that_never_was_are_left_out():
    never = judge_against_expectation(
        "cell",
        "loss",
        Judgement(status=Status.NOT_RUN, remedies=("--keep-going",)),
        expected=None,
        key="a" * 64,
    )
    report = gate(never, PASS)
    text = FORMATS["text"](report)
    assert text.count(report.items[0].reproduce) == 1
    assert "--keep-going" not in text
    blocked = FORMATS["text"](gate(side(Status.BLOCKED), PASS))
    assert "repair what did not pass in this cell" in blocked


def test_what_has_the_same_reason_is_printed_once_and_what_is_missing_comes_last():
    def of(cell, check, status, *reasons, key):
        judgement = Judgement(status=status, reasons=reasons)
        return judge_against_expectation(cell, check, judgement, expected=None, key=key, outcome=OUTCOME)

    cells = [f"cell-{number:02}" for number in range(20)]
    head = {(cell, "loss"): of(cell, "loss", Status.NOT_RUN, "no NPU", key=f"{cell:a<64}") for cell in cells}
    head |= {(cell, "api"): of(cell, "api", Status.FAIL, "broken", key="b" * 64) for cell in cells[:3]}
    head |= {("other", "api"): of("other", "api", Status.FAIL, "broken", key="c" * 64)}
    base = {name: replace(one, status=Status.PASS) for name, one in head.items()}
    inputs = GateInputs(
        base_name="main", head=head, base=base, base_keys=dict.fromkeys(head, "0" * 64), hardware=set(head)
    )
    report = judge_gate(inputs)
    text = FORMATS["text"](report)
    begins = [line for line in text.splitlines() if line.startswith(("new:", "not-run:", "infra:"))]
    assert begins == [
        "new: cell-00 api (fail)",
        "new: other api (fail)",
        "not-run: cell-00 loss (not-run)",
    ]
    assert "  and 2 more with this key for the same reason: cell-01 api, cell-02 api\n" in text
    assert "  and 19 more without an outcome for the same reason: cell-01 loss, cell-02 loss, " in text
    assert "cell-10 loss and 9 more\n" in text
    assert "--awaiting npu: everything that needs an NPU" in text
    assert len(json.loads(FORMATS["json"](report))["items"]) == 24


def test_a_failure_of_a_check_that_only_the_change_plans_is_new():
    assert classified(FAIL, base_key="") == (GateClass.NEW, EXIT_UNEXPECTED)
    assert "not planned" in gate(FAIL, base_key="").items[0].evidence[0]


def test_a_flaky_failure_without_a_base_outcome_is_unknown():
    introduced = {NAME: FlakeDecision(stability=Stability.INTRODUCED, reason="failed 1 of 2")}
    assert classified(FAIL, flakes=introduced) == (GateClass.UNKNOWN, EXIT_INCOMPLETE)


def test_two_timeouts_prove_nothing():
    slow = judge_against_expectation(
        "cell",
        "loss",
        Judgement(status=Status.FAIL, reasons=("timed out",)),
        expected=None,
        state="timeout",
        key="a" * 64,
        outcome=OUTCOME,
    )
    assert classified(slow, slow) == (GateClass.INFRA, EXIT_INCOMPLETE)
    assert classified(slow, PASS) == (GateClass.NEW, EXIT_UNEXPECTED)


def test_a_failure_on_a_key_this_change_does_not_touch_is_known():
    assert classified(FAIL, base_key="a" * 64) == (GateClass.KNOWN, EXIT_OK)


def test_a_failure_like_that_of_the_base_is_known_and_another_one_is_new():
    assert classified(FAIL, side(Status.FAIL, "loss differs by 4")) == (GateClass.KNOWN, EXIT_OK)
    assert classified(FAIL, side(Status.FAIL, "not finite")) == (GateClass.NEW, EXIT_UNEXPECTED)


def test_a_failure_on_the_list_is_known_and_passing_it_must_be_taken_off():
    assert classified(side(Status.FAIL, expected=KNOWN), PASS) == (GateClass.KNOWN, EXIT_OK)
    assert classified(side(Status.PASS, expected=KNOWN)) == (GateClass.FIXED, EXIT_UNEXPECTED)


def test_a_failure_of_the_base_that_passes_is_fixed():
    assert classified(PASS, FAIL) == (GateClass.FIXED, EXIT_OK)


def test_what_was_supported_must_stay_so():
    unsupported = side(Status.UNSUPPORTED)
    assert classified(unsupported, PASS) == (GateClass.NEW, EXIT_UNEXPECTED)
    assert classified(unsupported) == (GateClass.NOT_RUN, EXIT_INCOMPLETE)
    assert classified(unsupported, base_key="") == (GateClass.NOT_RUN, EXIT_INCOMPLETE)
    assert classified(unsupported, unsupported) == (GateClass.NOT_RUN, EXIT_NOTHING_SELECTED)


def test_what_could_not_be_decided_on_the_base_either_is_no_news():
    assert classified(side(Status.INCONCLUSIVE), base_key="a" * 64) == (GateClass.KNOWN, EXIT_OK)
    assert classified(side(Status.ERROR), base_key="a" * 64) == (GateClass.INFRA, EXIT_INCOMPLETE)


@pytest.mark.parametrize("status", sorted(set(Status) - COMPARABLE))
def test_a_changed_key_without_an_outcome_blocks_whatever_the_reason(status):
    for base in (PASS, None):
        report = gate(side(status), base)
        assert report.exit_code == EXIT_INCOMPLETE
        assert report.items[0].remedies
        assert gate(side(status, known=True), base).exit_code == EXIT_INCOMPLETE
    assert gate(side(status), base_key="").exit_code == EXIT_INCOMPLETE


def test_what_this_host_cannot_run_blocks_only_if_its_key_changed():
    assert classified(side(Status.NOT_RUN), base_key="a" * 64) == (GateClass.NOT_RUN, EXIT_NOTHING_SELECTED)
    # An entry without a task has no key of its own; `head_keys` has the key that another host would run.
    skipped = side(Status.NOT_RUN, "no NPU on this host", key="")
    hardware = {"head_keys": {NAME: "a" * 64}, "hardware": {NAME}}
    assert classified(skipped, base_key="a" * 64, **hardware) == (GateClass.NOT_RUN, EXIT_NOTHING_SELECTED)
    report = gate(skipped, **hardware)
    assert report.exit_code == EXIT_INCOMPLETE
    assert any("--merge" in remedy for remedy in report.items[0].remedies)
    assert any("--awaiting cell:loss" in remedy for remedy in report.items[0].remedies)


@pytest.mark.parametrize("pattern", ["cell:loss", "*:loss", "loss", "c*:l*", "npu"])
def test_only_an_option_lets_a_missing_outcome_pass_and_the_report_begins_with_it(pattern):
    other = ("cell", "lint")
    inputs = GateInputs(
        base_name="main",
        head={NAME: side(Status.NOT_RUN), other: side(Status.PASS, key="c" * 64)},
        base_keys={NAME: "b" * 64, other: "b" * 64},
        hardware={NAME},
        awaiting=(pattern,),
    )
    report = judge_gate(inputs)
    assert report.counts[GateClass.AWAITED] == 1
    assert report.exit_code == EXIT_OK
    for name in ("text", "comment"):
        beginning = "".join(FORMATS[name](report).splitlines()[:6])
        assert "awaited from other jobs" in html.unescape(beginning)
    assert judge_gate(replace(inputs, awaiting=("cell:lint", "loss:*"))).exit_code == EXIT_INCOMPLETE
    assert json.loads(FORMATS["json"](report))["scope"]["awaiting"] == [pattern]


@pytest.mark.parametrize("status", [Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED])
def test_an_outcome_that_is_here_is_not_awaited(status):
    assert gate(side(status), awaiting=("*",)).exit_code == EXIT_INCOMPLETE
    assert gate(side(Status.FAIL), PASS, awaiting=("*",)).exit_code == EXIT_UNEXPECTED
    error = side(Status.ERROR)
    assert error.outcome
    assert gate(error, awaiting=("*",)).exit_code == EXIT_INCOMPLETE
    assert gate(replace(error, outcome=None), awaiting=("*",)).items[0].gate_class is GateClass.AWAITED


def test_a_check_that_the_change_removes_blocks_until_it_is_accepted():
    for head in ({}, {NAME: side(Status.NOT_RUN, "not in profile default", key="")}):
        inputs = GateInputs(
            base_name="main", head={("other", "loss"): PASS, **head}, base_keys={NAME: "b" * 64}
        )
        report = judge_gate(replace(inputs, base_keys={**inputs.base_keys, ("other", "loss"): PASS.key}))
        assert report.exit_code == EXIT_INCOMPLETE
        assert report.gone == (NAME,)
        accepted = judge_gate(replace(inputs, base_keys={NAME: "b" * 64}, accept_removed=("cell:*",)))
        assert accepted.exit_code == EXIT_OK
        assert "removes 1 checks, accepted" in FORMATS["text"](accepted)


def test_an_expectation_that_the_change_removes_blocks_while_the_check_fails():
    removed = {"base_expected": {NAME: "matrix.yaml:9"}}
    assert classified(FAIL, base_key="a" * 64, **removed) == (GateClass.NEW, EXIT_UNEXPECTED)
    assert classified(PASS, base_key="a" * 64, **removed) == (GateClass.PASSED, EXIT_OK)


def test_a_failure_that_the_change_declares_is_known_only_if_it_is_decided():
    declared = {"base_expected": {}}
    fails = side(Status.FAIL, "loss differs", expected=KNOWN)
    report = gate(fails, PASS, **declared)
    assert (report.items[0].gate_class, report.exit_code, report.declared) == (GateClass.KNOWN, EXIT_OK, 1)
    assert "itself declares as expected" in FORMATS["text"](report)
    stated = {"base_expected": {NAME: "matrix.yaml:9"}}
    assert gate(fails, PASS, **stated).declared == 0
    assert gate(fails, PASS, **stated, expected_otherwise={NAME}).declared == 1
    assert gate(fails, PASS).declared == 0
    for status in (Status.ERROR, Status.INCONCLUSIVE):
        undecided = side(status, "full disk", expected=replace(KNOWN, state=status.value))
        assert classified(undecided, **declared) == (GateClass.INFRA, EXIT_INCOMPLETE)
        stated = {"base_expected": {NAME: "matrix.yaml:9"}}
        assert classified(undecided, **stated) == (GateClass.KNOWN, EXIT_OK)
    unsupported = side(Status.UNSUPPORTED, expected=replace(KNOWN, state="unsupported"))
    assert classified(unsupported, PASS, **declared) == (GateClass.NEW, EXIT_UNEXPECTED)
    assert classified(unsupported, **declared) == (GateClass.UNKNOWN, EXIT_INCOMPLETE)


def test_a_check_whose_expected_failure_the_change_modifies_needs_an_outcome():
    same, modified = {"base_key": "a" * 64, "impacted_only": True}, {"expected_otherwise": {NAME}}
    missing = side(Status.NOT_RUN, "not run yet")
    assert gate(missing, **same).exit_code == EXIT_OK
    report = gate(missing, **same, **modified)
    assert report.exit_code == EXIT_INCOMPLETE
    assert "modifies its expected failure" in report.items[0].evidence[0]
    assert gate(PASS, **same, **modified).exit_code == EXIT_OK


def test_weaker_evidence_than_on_the_base_blocks_until_it_is_accepted():
    moved = {"evidence_changes": {NAME: (Evidence.HARDWARE, Evidence.SIMULATED)}}
    report = gate(PASS, **moved)
    assert [item.gate_class for item in report.items] == [GateClass.PASSED, GateClass.REMOVED]
    assert report.exit_code == EXIT_INCOMPLETE
    assert "hardware evidence for it, the change only simulated" in FORMATS["text"](report)
    assert gate(PASS, accept_removed=("cell:loss",), **moved).exit_code == EXIT_OK


def test_a_pass_on_weaker_evidence_than_that_of_the_base_blocks_until_it_is_accepted():
    stronger = replace(PASS, evidence=Evidence.HARDWARE)
    report = gate(PASS, stronger)
    assert [item.gate_class for item in report.items] == [GateClass.PASSED, GateClass.REMOVED]
    assert report.exit_code == EXIT_INCOMPLETE
    assert "passed on hardware evidence on the base, and on cpu evidence here" in FORMATS["text"](report)
    assert gate(PASS, stronger, accept_removed=("cell:loss",)).exit_code == EXIT_OK
    assert gate(PASS, stronger, base_key="a" * 64).exit_code == EXIT_OK
    for head, base in ((stronger, PASS), (PASS, PASS)):
        assert gate(head, base).exit_code == EXIT_OK


def test_a_check_that_the_change_moves_to_hardware_is_not_awaited():
    missing = side(Status.NOT_RUN, "no NPU on this host")
    awaited = {"awaiting": ("npu",), "hardware": {NAME}}
    moved = {"evidence_changes": {NAME: (Evidence.SIMULATED, Evidence.HARDWARE)}}
    assert gate(missing, **awaited).exit_code == EXIT_NOTHING_SELECTED
    assert classified(missing, **awaited, **moved) == (GateClass.NOT_RUN, EXIT_INCOMPLETE)
    accepted = gate(missing, accept_removed=("cell:loss",), **awaited, **moved)
    assert accepted.items[0].gate_class is GateClass.AWAITED
    assert gate(PASS, **awaited, **moved).exit_code == EXIT_OK


def test_what_could_not_be_compared_blocks_and_is_said():
    report = gate(PASS, unverified=("not compared: the expected failures of main",))
    assert report.exit_code == EXIT_INCOMPLETE
    for name in ("text", "json", "github", "comment"):
        assert "not compared" in html.unescape(FORMATS[name](report))


def test_checks_outside_the_selection_count_if_their_key_changed():
    other = ("cell", "lint")
    inputs = GateInputs(
        base_name="main",
        head={NAME: PASS, other: replace(side(Status.ERROR, key="c" * 64), outcome=None)},
        base_keys={NAME: "b" * 64, other: "c" * 64},
        selected={NAME},
    )
    assert judge_gate(inputs).exit_code == EXIT_OK
    changed = replace(inputs, base_keys={NAME: "b" * 64, other: "d" * 64})
    assert judge_gate(changed).exit_code == EXIT_INCOMPLETE
    assert judge_gate(replace(changed, awaiting=("unselected",))).exit_code == EXIT_OK
    everything = replace(changed, awaiting=("unselected",), selected=None)
    assert judge_gate(everything).exit_code == EXIT_INCOMPLETE


def test_sources_that_are_missing_are_fetched_by_the_command_that_is_printed():
    repository = "https://example.org/verl.git"
    item = gate(side(Status.NOT_RUN), mirrors={NAME: repository}).items[0]
    (remedy,) = item.remedies
    assert "sources from https://example.org/verl.git" in remedy
    assert "npu-matrix mirrors update && npu-matrix" in remedy
    assert "run --only cell --check loss" in remedy


def test_the_same_files_and_no_changed_key_are_told_apart():
    same = gate(PASS, PASS, base_key="a" * 64, scope=GateScope(changed_files=0, is_head=True))
    assert same.exit_code == EXIT_NOTHING_SELECTED
    assert "the base is this checkout itself" in FORMATS["text"](same)
    empty = gate(PASS, PASS, base_key="a" * 64, scope=GateScope(changed_files=0))
    assert empty.exit_code == EXIT_OK
    assert "the same files" in FORMATS["text"](empty)
    other = gate(PASS, PASS, base_key="a" * 64, scope=GateScope(changed_files=1, unread_files=("new.sh",)))
    assert other.exit_code == EXIT_OK
    assert "verified nothing about the change" in FORMATS["comment"](other).splitlines()[1]
    assert "new.sh" in FORMATS["text"](other)


def test_the_exit_code_that_is_printed_is_the_one_that_is_returned():
    for report in (
        gate(FAIL, PASS),
        gate(FAIL),
        gate(PASS, PASS),
        judge_gate(GateInputs(base_name="b", head={})),
    ):
        for name in ("text", "comment", "github"):
            assert f"(exit code {report.exit_code})" in FORMATS[name](report)


def test_blocked_behind_nothing_is_red():
    blocked, same, cause = side(Status.BLOCKED), "a" * 64, ("cell", "resolve")
    assert classified(blocked) == (GateClass.NOT_RUN, EXIT_INCOMPLETE)
    assert classified(blocked, base_key=same) == (GateClass.NOT_RUN, EXIT_INCOMPLETE)
    inputs = GateInputs(
        base_name="main", head={NAME: blocked, cause: FAIL}, base_keys={NAME: same, cause: same}
    )
    assert [item.blocks for item in judge_gate(inputs).items] == [Blocks.NO, Blocks.NO], "a known failure"


def test_nothing_planned_and_nothing_asked_are_never_green():
    assert judge_gate(GateInputs(base_name="main", head={})).exit_code == EXIT_NOTHING_SELECTED
    head = {("c", "loss"): side(Status.NOT_RUN, key=""), ("c", "grpo"): side(Status.UNSUPPORTED, key="")}
    assert judge_gate(GateInputs(base_name="main", head=head)).exit_code == EXIT_NOTHING_SELECTED
    one = judge_gate(GateInputs(base_name="main", head={**head, ("c", "lint"): PASS}))
    assert one.exit_code == EXIT_OK


def test_flaky_is_shown_and_does_not_block_and_unproven_does():
    flaky = {NAME: FlakeDecision(stability=Stability.FLAKY, reason="failed 1 of 4")}
    unproven = {NAME: FlakeDecision(stability=Stability.UNPROVEN, reason="failed 1 of 2")}
    assert classified(PASS, PASS, flakes=flaky) == (GateClass.FLAKY, EXIT_OK)
    assert classified(PASS, PASS, flakes=unproven) == (GateClass.NEW, EXIT_UNEXPECTED)


def test_what_the_change_does_not_touch_need_not_be_answered_when_only_the_impacted_is_asked():
    report = gate(side(Status.ERROR), base_key="a" * 64, impacted_only=True)
    assert (report.exit_code, report.untouched, report.items) == (EXIT_OK, 1, ())
    assert gate(side(Status.ERROR), base_key="b" * 64, impacted_only=True).exit_code == EXIT_INCOMPLETE
    assert gate(side(Status.ERROR), base_key="a" * 64).exit_code == EXIT_INCOMPLETE
    assert "not touched" in FORMATS["text"](report)


@pytest.mark.parametrize("status", sorted(UNANSWERED))
def test_only_the_impacted_leaves_out_every_status_without_a_verdict(status):
    report = gate(side(status), base_key="a" * 64, impacted_only=True)
    assert (report.exit_code, report.untouched, report.items) == (EXIT_OK, 1, ())


@pytest.mark.parametrize("status", sorted(ANSWERED))
def test_only_the_impacted_judges_every_verdict(status):
    assert len(gate(side(status), base_key="a" * 64, impacted_only=True).items) == 1


@pytest.mark.parametrize(
    ("other", "blocks"),
    [
        *((status, Blocks.INCOMPLETE) for status in sorted(NOT_FAILURES)),
        *((status, Blocks.NO) for status in (Status.FAIL, Status.INCONCLUSIVE, Status.STALE, Status.ERROR)),
    ],
)
def test_only_a_failure_of_the_cell_explains_a_blocked_check(other, blocks):
    cause = (NAME[0], "environment")
    inputs = GateInputs(
        base_name="main",
        head={NAME: side(Status.BLOCKED), cause: side(other)},
        base_keys={NAME: "a" * 64, cause: "a" * 64},
    )
    assert judge_gate(inputs).items[0].blocks is blocks


def test_an_idle_expectation_is_red():
    assert gate(PASS, PASS, problems=("expired",)).exit_code == EXIT_UNEXPECTED


statuses = st.sampled_from(Status)
one_side = st.builds(
    side,
    statuses,
    st.sampled_from(["differs by 3", "differs by 4", "not finite"]),
    key=st.sampled_from(["a" * 64, "b" * 64]),
    expected=st.sampled_from([None, KNOWN]),
)


names = st.tuples(st.sampled_from(["c1", "c2"]), st.sampled_from(["resolve", "loss", "grpo"]))
plans = st.dictionaries(names, one_side, max_size=5)
keys = st.sampled_from(["", "a" * 64, "b" * 64])


@given(
    plans,
    plans,
    st.dictionaries(names, keys, max_size=6),
    st.dictionaries(names, st.sampled_from(list(Stability)), max_size=2),
    st.none() | st.frozensets(names, max_size=3),
    st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_green_means_that_every_changed_key_has_a_pass_or_an_expected_outcome(
    head, base, base_keys, flakes, selected, impacted
):
    inputs = GateInputs(
        base_name="main",
        head=head,
        base={
            name: one
            for name, one in base.items()
            if one.status in {Status.PASS, Status.FAIL, Status.UNSUPPORTED} and base_keys.get(name)
        },
        base_keys=base_keys,
        flakes={name: FlakeDecision(stability=one, reason="r") for name, one in flakes.items()},
        selected=selected,
        impacted_only=impacted,
    )
    report = judge_gate(inputs)
    if report.exit_code != EXIT_OK:
        return
    assert all(inputs.key(name) for name, key in base_keys.items() if key)
    for name, verdict in head.items():
        if not inputs.changed(name):
            continue
        before = inputs.base.get(name)
        same_as_base = before is not None and before.status is verdict.status
        flaky = flakes.get(name) is Stability.FLAKY
        expected = verdict.standing is Standing.KNOWN and verdict.status is not Status.BLOCKED
        assert verdict.status is Status.PASS or expected or same_as_base or flaky
        assert verdict.status in {Status.PASS, Status.FAIL, Status.UNSUPPORTED} or expected
        assert verdict.standing is not Standing.UNEXPECTED_PASS


HOSTILE = "\n::set-output name=a::b ##[x] @team <script>alert(1)</script> | `x` [y](javascript:z) --> #1 %0A \x1b[2J\x00 token=hunter2hunter2"


HOSTILE_NAME = "\n::error title=a::b ##[x] @team <script>alert(1)</script> [y](javascript:z) --> \x1b[2J\x00"


def hostile_report():
    """The plan of a base can be that of another ledger, with any names."""
    return judge_gate(
        GateInputs(
            base_name=HOSTILE_NAME,
            head={NAME: side(Status.FAIL, HOSTILE), (HOSTILE_NAME, "loss"): side(Status.FAIL, HOSTILE)},
            base={NAME: PASS},
            base_keys={NAME: "b" * 64, (HOSTILE_NAME, HOSTILE_NAME): "b" * 64},
            places={NAME: Place(file="a,b:c.yaml", line=3)},
            changes={NAME: [HOSTILE]},
            problems=(HOSTILE,),
        )
    )


def test_what_a_cell_says_commands_nothing_and_is_no_markup():
    report = hostile_report()
    github = FORMATS["github"](report)
    for line in github.splitlines():
        assert re.match(
            r"::(error|warning|notice) ?(file=a%2Cb%3Ac.yaml,line=3,)?(title=[^:,]*(%3A)?[^:]*)?::", line
        )
    assert "::set-output" not in FORMATS["text"](report).replace(": :", "")
    assert not [line for line in FORMATS["text"](report).splitlines() if line.lstrip().startswith("::")]
    for name in ("markdown", "comment"):
        text = FORMATS[name](report).replace(COMMENT_MARKER, "")
        assert "<script" not in text
        assert "@team" not in text
        assert "](java" not in text
        assert "-->" not in text
    for render in FORMATS.values():
        text = render(report)
        assert "hunter2" not in text
        assert "\x1b" not in text
        assert "\x00" not in text


def test_every_rendering_names_the_class_the_cell_and_how_to_ask_again():
    report = gate(FAIL, PASS, places={NAME: Place(file="patches/verl/x/all.patch", line=1)})
    assert "file=patches/verl/x/all.patch,line=1" in FORMATS["github"](report)
    assert FORMATS["comment"](report).startswith(COMMENT_MARKER)
    for name in ("text", "json", "github"):
        assert "npu-matrix run --only cell --check loss --fresh" in FORMATS[name](report)
    sarif = json.loads(FORMATS["sarif"](report))
    (result,) = sarif["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    assert json.loads(FORMATS["json"](report))["counts"]["new"] == 1


def test_a_summary_never_outgrows_what_github_takes():
    head = {(f"cell-{number}", "loss"): side(Status.FAIL, "x" * 390) for number in range(3000)}
    report = judge_gate(GateInputs(base_name="main", head=head))
    assert len(FORMATS["comment"](report)) < 65_536
    assert FORMATS["github"](report).count("\n") <= 12


@given(st.text(max_size=60))
def test_any_reason_can_be_rendered(reason):
    report = gate(side(Status.FAIL, reason), PASS, changes={NAME: [reason]})
    for render in FORMATS.values():
        assert render(report)
    assert all(item.blocks is Blocks.UNEXPECTED for item in report.blocking)
