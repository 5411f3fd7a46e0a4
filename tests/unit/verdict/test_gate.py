import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from make_outcome import make_outcome

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.outcome import Evidence, Judgement, Status, Tier
from harness.verdict.gate.flake import FlakeDecision, Stability
from harness.verdict.gate.gate import Blocks, GateClass, GateInputs, Place, judge_gate
from harness.verdict.gate.gate_format import COMMENT_MARKER, FORMATS
from harness.verdict.verdict import ExpectedFailure, judge_against_expectation

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


def test_a_failure_without_a_base_answer_is_new_whatever_the_reason():
    assert classified(FAIL) == (GateClass.NEW, EXIT_UNEXPECTED)
    assert "never run" in gate(FAIL).items[0].evidence[0]
    assert "not planned" in gate(FAIL, base_key="").items[0].evidence[0]


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
    assert classified(side(Status.UNSUPPORTED), PASS) == (GateClass.NEW, EXIT_UNEXPECTED)
    assert classified(side(Status.UNSUPPORTED)) == (GateClass.NOT_RUN, EXIT_NOTHING_SELECTED)


def test_what_could_not_be_decided_on_the_base_either_is_no_news():
    assert classified(side(Status.INCONCLUSIVE), base_key="a" * 64) == (GateClass.KNOWN, EXIT_OK)
    assert classified(side(Status.ERROR), base_key="a" * 64) == (GateClass.INFRA, EXIT_INCOMPLETE)


def test_what_has_no_answer_is_red_and_what_cannot_run_here_is_said():
    assert classified(side(Status.ERROR), PASS) == (GateClass.INFRA, EXIT_INCOMPLETE)
    assert classified(side(Status.INCONCLUSIVE), PASS) == (GateClass.INFRA, EXIT_INCOMPLETE)
    assert classified(side(Status.NOT_RUN), PASS) == (GateClass.NOT_RUN, EXIT_NOTHING_SELECTED)
    assert classified(side(Status.NOT_RUN), PASS, strict_coverage=True) == (
        GateClass.NOT_RUN,
        EXIT_INCOMPLETE,
    )


def test_blocked_behind_nothing_is_red():
    assert classified(side(Status.BLOCKED)) == (GateClass.NOT_RUN, EXIT_INCOMPLETE)


def test_nothing_planned_and_nothing_asked_are_never_green():
    assert judge_gate(GateInputs(base_name="main", head={})).exit_code == EXIT_NOTHING_SELECTED
    head = {("c", "loss"): side(Status.NOT_RUN), ("c", "grpo"): side(Status.UNSUPPORTED)}
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


@given(
    one_side,
    st.none() | one_side,
    st.sampled_from(["", "a" * 64, "b" * 64]),
    st.sampled_from([None, *Stability]),
    st.booleans(),
)
@settings(max_examples=400)
def test_green_means_that_nothing_new_failed_and_everything_planned_was_answered(
    head, base, base_key, flake, strict
):
    flakes = {NAME: FlakeDecision(stability=flake, reason="r")} if flake else {}
    report = gate(head, base, base_key=base_key, flakes=flakes, strict_coverage=strict)
    status = head.status
    assert len(report.items) == 1
    if report.exit_code != EXIT_OK:
        return
    assert status not in {Status.ERROR, Status.STALE, Status.BLOCKED} or head.expected
    if status is Status.FAIL:
        excused = head.expected or head.key == base_key or flake is Stability.FLAKY
        assert excused or base.status is Status.FAIL
    if status is Status.PASS:
        assert head.expected is None


HOSTILE = "\n::set-output name=a::b ##[x] @team <script>alert(1)</script> | `x` [y](javascript:z) --> #1 %0A \x1b[2J\x00 token=hunter2hunter2"


def hostile_report():
    return gate(
        side(Status.FAIL, HOSTILE),
        PASS,
        places={NAME: Place(file="a,b:c.yaml", line=3)},
        changes={NAME: [HOSTILE]},
        problems=(HOSTILE,),
    )


def test_what_a_cell_says_commands_nothing_and_is_no_markup():
    report = hostile_report()
    github = FORMATS["github"](report)
    for line in github.splitlines():
        assert re.match(
            r"::(error|warning|notice) ?(file=a%2Cb%3Ac.yaml,line=3,)?(title=[^:,]*(%3A)?[^:]*)?::", line
        )
    assert "::set-output" not in FORMATS["text"](report).replace(": :", "")
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
