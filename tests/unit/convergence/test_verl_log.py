import json

from hypothesis import given
from hypothesis import strategies as st

from harness.convergence.telemetry.verl_log import VerlLog

LINE = (
    "(TaskRunner pid=71) step:{step} - global_seqlen/min:1024 - actor/entropy:np.float64(1.5) - actor/grad_norm:{grad}"
    " - critic/rewards/mean:0.{step}25 - response_length/mean:5.0 - timing_s/step:2.5 - perf/throughput:981.5\n"
)


def read(text, **options):
    log = VerlLog("train.log", **options)
    log.feed(text)
    return log.telemetry()


def test_console_lines_become_series():
    telemetry = read(
        "noise\n" + LINE.format(step=1, grad=0.5) + LINE.format(step=2, grad="np.float32(0.25)"), steps=2
    )

    assert telemetry.problems == ()
    (run,) = telemetry.runs
    assert run.series["reward"] == (0.125, 0.225)
    assert run.series["entropy"] == (1.5, 1.5)
    assert run.series["grad_norm"] == (0.5, 0.25)
    assert run.series["throughput"] == (981.5, 981.5)
    assert run.complete
    assert run.problems == ()


def test_text_may_arrive_in_any_pieces():
    text = LINE.format(step=1, grad=0.5) + LINE.format(step=2, grad=0.25)
    log = VerlLog("train.log", steps=2)
    for character in text:
        log.feed(character)

    assert log.telemetry() == read(text, steps=2)


def test_colours_nan_and_metrics_with_colons_are_read():
    line = "\x1b[36m(TaskRunner pid=1)\x1b[0m step:1 - val-core/a:b/mean@1:0.5 - critic/rewards/mean:nan - actor/grad_norm:inf\n"
    (run,) = read(line).runs

    assert run.series["reward"][0] != run.series["reward"][0]
    assert run.series["grad_norm"] == (float("inf"),)


@given(st.data(), st.booleans())
def test_a_step_that_ray_hands_on_in_two_pieces_is_one(data, others_between):
    whole = LINE.format(step=2, grad="np.float64(0.25)").rstrip("\n")
    prefix = "(TaskRunner pid=71) "
    # If the line is split within its last value, or before a space at its end, it looks complete.
    place = data.draw(st.integers(whole.index("global_seqlen"), whole.rindex(":")))
    between = "(Worker pid=9) WARNING:2026-11-20 noise:1\n" if others_between else ""
    after = "(TaskRunner pid=71) epoch:3\n(TaskRunner pid=71) INFO:root:saved\n"

    telemetry = read(
        LINE.format(step=1, grad=0.5) + f"{whole[:place]}\n{between}{prefix}{whole[place:]}\n" + after,
        steps=2,
    )

    assert telemetry.problems == ()
    (run,) = telemetry.runs
    assert run.problems == ()
    assert run.series["reward"] == (0.125, 0.225)
    assert run.series["grad_norm"] == (0.5, 0.25)
    assert run.series["throughput"] == (981.5, 981.5)


def test_another_line_of_the_same_process_is_no_rest_of_a_step():
    telemetry = read(LINE.format(step=1, grad=0.5) + "(TaskRunner pid=71) epoch:3\n", steps=1)

    assert telemetry.runs[0].series["throughput"] == (981.5,)


def test_a_log_that_ends_in_mid_line_says_so():
    telemetry = read(LINE.format(step=1, grad=0.5) + "(TaskRunner pid=71) step:2 - critic/rew", steps=2)

    assert "ends within a line" in telemetry.problems[0]
    assert not telemetry.runs[0].complete
    assert telemetry.runs[0].steps == 1


def test_resumed_and_lost_steps_are_named():
    text = "".join(LINE.format(step=step, grad=0.5) for step in (1, 2, 2, 5))
    (run,) = read(text).runs

    assert "step 2 occurs again" in run.problems[0]
    assert "steps missing: 3, 4" in run.problems[1]


def test_mixed_processes_are_kept_apart_and_named():
    telemetry = read(LINE.format(step=1, grad=1) + LINE.replace("71", "72").format(step=1, grad=2))

    assert [run.series["grad_norm"] for run in telemetry.runs] == [(1.0,), (2.0,)]
    assert (
        "contains steps of several processes: 'TaskRunner pid=71', 'TaskRunner pid=72'"
        in telemetry.problems[0]
    )


def test_validation_lines_are_no_training_steps():
    assert read("step:0 - val-core/x/reward/mean@1:0.5 - timing_s/testing:1.0\n").runs == ()


def test_the_file_logger_is_read_too():
    lines = [{"step": 1, "data": {"critic/score/mean": 0.5, "actor/pg_clipfrac": 0.1}}, {"step": "x"}]
    telemetry = read("".join(json.dumps(line) + "\n" for line in lines))

    assert telemetry.runs[0].series == {"reward": (0.5,), "clip_fraction": (0.1,)}
    assert "not a step of verl's file logger" in telemetry.problems[0]


def test_a_metric_that_lacks_and_steps_of_another_recipe_are_named():
    log = VerlLog("verl.log", steps=1)
    for step in (1, 2):
        log.feed(f"step:{step} - critic/rewards/mean:0.5 - actor/grad_norm:0.1\n")
    problems = " ".join(log.telemetry().problems)

    assert "no step has entropy" in problems
    assert "the log has 2 steps, but 1 were planned: it belongs to another recipe" in problems


def test_values_that_are_no_numbers_are_named():
    (run,) = read("step:1 - critic/rewards/mean:0.5 - actor/grad_norm:<lambda>\n").runs

    assert "grad_norm is '<lambda>', not a number" in run.problems[0]


@given(
    st.lists(st.text() | st.sampled_from([LINE.format(step=1, grad=2), "step:3 - :", "{}", "step:1 - a:b\n"]))
)
def test_any_text_is_read(pieces):
    log = VerlLog("any")
    for piece in pieces:
        log.feed(piece)

    assert log.telemetry().runs or log.telemetry().problems
