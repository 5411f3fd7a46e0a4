import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.convergence.telemetry.series import decode, decode_series, encode, encode_series, parse, read


def lines(*records):
    return [json.dumps(record) for record in records]


HEADER = {"kind": "run", "run": "a", "seed": 3}


def step(number, run="a", **values):
    return {"kind": "step", "run": run, "step": number, **values}


def test_a_whole_run_is_read_without_problems():
    text = lines(HEADER, step(0, reward=0.1), step(1, reward=0.2), {"kind": "end", "run": "a"})

    telemetry = parse(text)

    assert telemetry.problems == ()
    (run,) = telemetry.runs
    assert run.series == {"reward": (0.1, 0.2)}
    assert (run.complete, run.problems, run.header["seed"]) == (True, (), 3)


def test_a_file_cut_off_in_mid_line_keeps_what_it_has_and_says_so():
    text = [*lines(HEADER, step(0, reward=0.1)), '{"kind": "step", "run": "a", "st']

    telemetry = parse(text, name="run.jsonl")

    assert telemetry.runs[0].series == {"reward": (0.1,)}
    assert not telemetry.runs[0].complete
    assert telemetry.problems[0].startswith("run.jsonl:3: not a complete JSON object")
    assert telemetry.runs[0].problems == ("no end line: the program stopped after 1 steps",)


def test_a_resumed_run_takes_the_later_step_and_names_it():
    text = lines(
        HEADER, step(0, reward=0.1), step(1, reward=0.2), step(1, reward=0.3), {"kind": "end", "run": "a"}
    )

    (run,) = parse(text).runs

    assert run.series["reward"] == (0.1, 0.3)
    assert "step 1 occurs again" in run.problems[0]


def test_holes_are_named_and_a_metric_with_holes_is_left_out():
    text = lines(HEADER, step(0, reward=0.1, kl=1), step(2, reward=0.2), {"kind": "end", "run": "a"})

    (run,) = parse(text).runs

    assert "kl" not in run.series
    assert run.problems == ("steps missing: 1", "kl is omitted: it is missing at steps 2")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (step(0, run="b"), "which has no header"),
        ({"kind": "surprise", "run": "a"}, "unknown kind"),
        ([1, 2], "not a complete JSON object"),
    ],
)
def test_lines_that_belong_nowhere_are_named(record, problem):
    telemetry = parse(lines(HEADER, record))

    assert any(problem in one for one in telemetry.problems)


def test_values_that_are_no_numbers_are_named():
    (run,) = parse(
        lines(HEADER, step(0, reward="much"), step("x", reward=1), {"kind": "end", "run": "a"})
    ).runs

    assert "reward is 'much', not a number" in run.problems[0]
    assert "without a step number" in run.problems[1]


def test_interleaved_and_restarted_runs_are_kept_apart():
    text = lines(
        HEADER,
        {"kind": "run", "run": "b"},
        step(0, run="b", reward=2),
        step(0, reward=1),
        HEADER,
        step(0, reward=5),
    )

    telemetry = parse(text)

    assert [run.series.get("reward") for run in telemetry.runs] == [(2.0,), (1.0,), (5.0,)]
    assert "starts a second time" in telemetry.problems[0]


def test_a_missing_file_is_a_problem_not_an_error(tmp_path):
    telemetry = read(tmp_path / "nothing.jsonl")

    assert telemetry.runs == ()
    assert "cannot be read" in telemetry.problems[0]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_survive_json(value):
    back = decode(json.loads(json.dumps(encode(value), allow_nan=False)))

    assert math.isnan(back) if math.isnan(value) else back == pytest.approx(value, rel=1e-5)


@given(st.lists(st.text(max_size=40) | st.sampled_from(lines(HEADER, step(0, reward=1), step(1)))))
def test_any_text_is_read(text):
    telemetry = parse(text)

    assert telemetry.runs or telemetry.problems
    for run in telemetry.runs:
        assert decode_series(encode_series(run.series)).keys() == run.series.keys()
