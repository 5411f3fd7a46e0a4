"""Each metric signature matches the failure that it describes, and no healthy run."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.convergence.telemetry.tensorboard import masked_crc
from harness.errors import InputError
from harness.verdict.triage.catalogue import shipped_catalogue
from harness.verdict.triage.diagnosis import ComparedRuns, triage_file, triage_text
from harness.verdict.triage.log_scan import scan
from harness.verdict.triage.metric_series import metrics_on_line, step_of

METRICS = {one.id: one for one in shipped_catalogue().metrics}
STEPS = 15
# The metrics of a healthy GSPO run on A2 in verl's nightly test (verl-ascend-recipe baseline).
HEALTHY = {
    "critic/rewards/mean": lambda step: 0.16 + 0.03 * step,
    "actor/ppo_kl": lambda step: 0.002 + 0.0001 * step,
    "actor/entropy": lambda step: 0.5 - 0.01 * step,
    "actor/grad_norm": lambda _step: 0.9,
    "response_length/mean": lambda step: 200.0 + step,
    "training/rollout_probs_diff_mean": lambda _step: 0.0045,
    "val-core/openai/gsm8k/reward/mean@1": lambda step: 0.3 + 0.03 * step,
}


def lines(form="console", **changed):
    """A log of fifteen steps. `changed` replaces metrics; in their names, underscores replace other characters."""
    curves = {
        name: changed.get(name.replace("/", "_").replace("@", "_"), curve) for name, curve in HEALTHY.items()
    }
    for step in range(1, STEPS + 1):
        values = {name: curve(step) for name, curve in curves.items()}
        if form == "json":
            yield json.dumps({"step": step, "data": {**values, "training/global_step": step}})
            continue
        numpy = "np.float64({})" if form == "numpy" else "{}"
        shown = " - ".join(f"{name}:{numpy.format(value)}" for name, value in values.items())
        yield f"(TaskRunner pid=7) step:{step} - {shown} - training/global_step:{step} - training/epoch:0"


def log(form="console", **changed):
    return "\n".join(lines(form, **changed)).encode()


def series(form="console", **changed):
    import io

    return scan(io.BytesIO(log(form, **changed)), shipped_catalogue()).series


def found(compared=None, **changed):
    return {one.id: one for one in triage_text(log(**changed), compared=compared).findings}


AGAINST_HEALTHY = ComparedRuns(reference=series(), repeat=series())
#: Signature -> the metrics of a run that has this failure. No other signature may match them.
SEEDED = {
    "m-logprob-diff": {"training_rollout_probs_diff_mean": lambda _step: 0.031},
    "m-kl-too-low": {
        "actor_ppo_kl": lambda _step: 2e-6,
        "critic_rewards_mean": lambda step: 0.3 + 0.001 * step,
    },
    "m-d2h-race": {"actor_entropy": lambda step: 0.44 if step == 1 else 0.5 - 0.01 * step},
    "m-first-step-garbled": {"critic_rewards_mean": lambda step: 0.01 if step == 1 else 0.16 + 0.03 * step},
    "m-reward-npu-gpu": {"critic_rewards_mean": lambda step: 0.13 + 0.02 * step},
    "m-rollout-not-finite": {
        "training_rollout_probs_diff_mean": lambda step: math.nan if step > 9 else 0.004
    },
    "m-not-finite": {"actor_entropy": lambda step: math.nan if step > 9 else 0.5 - 0.01 * step},
    "m-drift": {
        "actor_entropy": lambda step: 0.5 * 0.7**step,
        "critic_rewards_mean": lambda step: 0.9 - 0.03 * step,
    },
    "m-dp-precision": {"val-core_openai_gsm8k_reward_mean_1": lambda step: 0.25 + 0.02 * step},
}
# If the reward stays constant while it rises in the reference, this signature matches as well.
ALSO = {
    "m-kl-too-low": {"m-reward-npu-gpu"},
    "m-drift": {"m-reward-npu-gpu", "m-d2h-race"},
    "m-rollout-not-finite": set(),
}
#: Signatures that need no reference.
ALONE = {"m-logprob-diff", "m-rollout-not-finite", "m-not-finite", "m-drift"}


def test_each_has_a_rule_a_limit_and_its_source():
    assert set(METRICS) == set(SEEDED)
    for one in METRICS.values():
        assert one.limit > 0
        assert len(one.derivation) > 40


@pytest.mark.parametrize("name", SEEDED)
def test_each_fires_on_what_it_describes(name):
    matches = found(AGAINST_HEALTHY, **SEEDED[name])
    assert set(matches) - ALSO.get(name, set()) == {name}
    one = matches[name]
    assert one.line >= 1
    assert one.signature.remedy


@pytest.mark.parametrize("form", ["console", "numpy", "json"])
def test_a_healthy_run_shows_nothing_however_verl_writes_it(form):
    assert triage_text(log(form), compared=AGAINST_HEALTHY).findings == ()
    assert len(series(form).values["critic/rewards/mean"]) == STEPS
    bad = log(form, training_rollout_probs_diff_mean=lambda _step: 0.02)
    assert [one.id for one in triage_text(bad).findings] == ["m-logprob-diff"]


@pytest.mark.parametrize(("early", "found_ids"), [(0.9, []), (0.1, ["m-drift"])])
def test_values_that_overlap_do_not_drift(early, found_ids):
    """The median rises by a factor of ten either way, but one early value is as great as the late ones."""
    noise = {1: early, 2: early, 3: 0.1, 4: 0.1, 5: 0.1}
    changed = {
        "actor_entropy": lambda step: noise.get(step, 0.1 if step < 11 else 1.0 - 0.05 * (step % 4)),
        "critic_rewards_mean": lambda step: 0.9 - 0.03 * step,
    }
    assert [one.id for one in triage_text(log(**changed)).findings] == found_ids


COLON = "\N{FULLWIDTH COLON}"


def step_in(form, step, name, value):
    """One step with two metrics in one of the forms that loggers print."""
    return {
        "lines": f"step:{step}\nactor/lr:0.1\n{name}:{value}\ntraining/global_step:{step}\n",
        "prefixed": f"(T pid=7) step:{step}\n(T pid=7) {name}:{value}\n(T pid=7) training/global_step:{step}\n",
        "headed": f"Step {step}:\n  actor/lr: 0.1\n  {name}: {value}\n",
        "rich": f"┏━━┳━━┓\n┃ Metric ┃ Value ┃\n┡━━╇━━┩\n│ {name} │ {value} │\n│ training/global_step │ {step} │\n└──┴──┘\n",
        "markdown": f"| metric | value |\n|---|---|\n| {name} | {value} |\n| training/global_step | {step} |\n",
        "early verl": f"(main_task pid=5) step:{step} - timing/gen:2.1 - actor/lr:0.1 - {name}:{value}\n",
        "flat json": f'{{"step": {step}, "actor/lr": 0.1, "{name}": {value}}}\n',
        "numpy": f"step:{step} - {name}:np.float64({value}) - training/global_step:{step}\n",
        # Forms that verl does not print itself: other loggers, tables, bars, Chinese text, colours.
        "wandb history": f'{{"_step": {step}, "_timestamp": 1.7e9, "{name}": {value}}}\n',
        "dictionary": f"(T pid=3) Step {step}: {{'actor/lr': 0.1, '{name}': {value}}}\n",
        "pprint": f"(T pid=3) {{'actor/lr': 0.1,\n(T pid=3)  '{name}': {value},\n(T pid=3)  'training/global_step': {step}}}\n",
        "indented json": f'{{\n  "step": {step},\n  "actor/lr": 0.1,\n  "{name}": {value}\n}}\n',
        "logfmt": f"time=10:00 level=info step={step} actor/lr=0.1 {name}={value}\n",
        "pipes": f"step {step:4} | actor/lr 0.1 | {name} {value}\n",
        "commas": f"[Step {step}/100] actor/lr=0.1, {name}={value}\n",
        "swanlab": f"swanlab: Step {step}: actor/lr: 0.1, {name}: {value}\n",
        "chinese": f"【训练】第{step}步{COLON}actor/lr{COLON}0.1 {name}{COLON}{value}\n",
        "chinese words": f"步骤 {step} actor/lr=0.1, {name}={value}\n",
        "bar": f"Training: 3%|█   | {step}/99 [00:01<10:00, 1.1s/it, actor/lr=0.1, {name}={value}]\n",
        "coloured rich": (
            f"\x1b[3m   Step {step}   \x1b[0m\n┃\x1b[1m Metric \x1b[0m┃\x1b[1m Value \x1b[0m┃\n"
            f"│\x1b[36m {name} \x1b[0m│\x1b[35m {value} \x1b[0m│\n└──┴──┘\n"
        ),
        "tensors": f"step:{step} - {name}:tensor({value}, device='npu:0') - training/global_step:{step}\n",
        "upper case": f"step:{step} - actor/lr:0.1 - {name}:{str(value).replace('nan', 'NAN')}\n",
        "line for each": f"step={step} actor/lr=0.1\nstep={step} {name}={value}\n",
    }[form]


FORMS = [
    *("lines", "prefixed", "headed", "rich", "markdown", "early verl", "flat json", "numpy"),
    *("wandb history", "dictionary", "pprint", "indented json", "logfmt", "pipes", "commas", "swanlab"),
    *("chinese", "chinese words", "bar", "coloured rich", "tensors", "upper case", "line for each"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["actor/entropy", "actor/pg_loss", "actor/ppo_kl", "actor/grad_norm"])
def test_a_value_that_is_not_finite_is_found_in_every_form(form, name):
    good = "".join(step_in(form, step, name, 0.25) for step in range(1, 50))
    assert triage_text(good.encode()).is_clean
    bad = good + "".join(step_in(form, step, name, "nan") for step in range(50, 53))
    root = triage_text(bad.encode()).root
    assert root.id == "m-not-finite"
    assert f"{name}: nan from step 50 on" in root.text
    assert bad.split("\n")[root.line - 1 : root.line + 3]


TABLES = {
    "csv": ("step,actor/lr,{name}", "{step},0.1,{value}"),
    "tsv": ("step\tactor/lr\t{name}", "{step}\t0.1\t{value}"),
    "pandas": ("      step   actor/lr   {name}", "     {step}        0.1     {value}"),
    "markdown": ("| step | actor/lr | {name} |\n|---|---|---|", "| {step} | 0.1 | {value} |"),
    "rich": ("┃ step ┃ actor/lr ┃ {name} ┃\n┡━━╇━━╇━━┩", "│ {step} │ 0.1 │ {value} │"),
}


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("name", ["actor/entropy", "critic/rewards/mean"])
def test_a_table_with_a_row_for_each_step_is_read(form, name):
    head, row = TABLES[form]
    rows = [row.format(step=step, value=0.25 if step < 20 else "nan") for step in range(1, 25)]
    assert triage_text("\n".join([head.format(name=name), *rows[:18]]).encode()).is_clean
    root = triage_text("\n".join([head.format(name=name), *rows]).encode()).root
    assert f"{name}: nan from step 20 on" in root.text


def test_the_summary_of_wandb_is_a_step():
    text = "wandb: Run history:\nwandb: actor/entropy ▁▂▃\nwandb:\nwandb: Run summary:\nwandb:   actor/entropy {}\n"
    assert triage_text(text.format("NaN").encode()).root.id == "m-not-finite"
    assert triage_text(text.format("0.5").encode()).is_clean


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-06, 'epoch': 0.1}\n",
        " iteration   10/  100 | elapsed time per iteration (ms): 12.0 | lm loss: 1.2E+00 | grad norm: nan |\n",
    ],
)
def test_other_trainers_are_read_too(text):
    assert triage_text(text.encode()).root.id == "m-not-finite"


NAN_ROLLOUT = "step:1 - actor/entropy:0.8 - training/rollout_probs_diff_mean:nan - training/global_step:1\n"


@pytest.mark.parametrize(
    ("setting", "says", "not_said"),
    [
        ("'dtype': 'float16',", "explains it: float16 overflows above 65504", "ruled out"),
        ("'dtype': 'bfloat16',", "ruled out by the log: float16 (line 1)", "overflows above"),
        ("export VLLM_ASCEND_ENABLE_NZ=0", "ruled out by the log: nz-weights", "NZ layout are corrupted"),
        ("VLLM_ASCEND_ENABLE_NZ=1", "explains it: weights in NZ layout", "ruled out"),
        ("hello", "can explain it, which the log does not show: float16", "ruled out"),
    ],
)
def test_a_setting_explains_a_failure_or_is_ruled_out(setting, says, not_said):
    root = triage_text(f"{setting}\n{NAN_ROLLOUT}".encode()).root
    assert root.id == "m-rollout-not-finite"
    assert "finite in this step: actor/entropy" in root.text
    assert says in root.signature.cause
    assert not_said not in root.signature.cause


def test_a_tensorboard_file_is_read_without_tensorboard(tmp_path):
    def record(step, value):
        name = b"actor/grad_norm"
        summary = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", value)
        data = (
            b"\x10"
            + bytes([step])
            + b"\x2a"
            + bytes([len(summary) + 2])
            + b"\x0a"
            + bytes([len(summary)])
            + summary
        )
        length = struct.pack("<Q", len(data))
        return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))

    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(b"".join(record(step, 0.5) for step in range(1, 6)))
    assert triage_file(file).is_clean
    file.write_bytes(b"".join(record(step, 0.5 if step < 5 else math.nan) for step in range(1, 6)))
    root = triage_file(file).root
    assert root.id == "m-not-finite"
    assert "actor/grad_norm: nan from step 5 on" in root.text
    file.write_bytes(b"")
    with pytest.raises(InputError, match="no training step"):
        triage_file(file)


def test_without_a_reference_only_what_has_a_limit_of_its_own_is_judged():
    for name, changed in SEEDED.items():
        assert set(found(None, **changed)) == {name} & ALONE


@pytest.mark.parametrize(
    ("value", "fires"), [(0.0056, False), (0.01, False), (0.0101, True), (math.nan, True), (math.inf, True)]
)
def test_the_limit_is_where_the_source_puts_it(value, fires):
    assert ("m-logprob-diff" in found(training_rollout_probs_diff_mean=lambda _step: value)) is fires


def test_one_step_above_the_limit_is_chance():
    assert found(training_rollout_probs_diff_mean=lambda step: 0.02 if step == 3 else 0.004) == {}


def test_other_responses_explain_other_numbers_and_rounding_is_no_race():
    other = {"actor_entropy": lambda _step: 0.3, "response_length_mean": lambda step: 190.0 + step}
    repeat = ComparedRuns(repeat=series())
    assert found(repeat, **other) == {}
    rounded = {"actor_entropy": lambda step: (0.5 - 0.01 * step) * (1 + 2**-9)}
    assert found(repeat, **rounded) == {}


def test_a_failure_of_the_job_comes_before_what_metrics_show():
    text = log(training_rollout_probs_diff_mean=lambda _step: 0.02) + b"\nRuntimeError: NPU out of memory\n"
    assert [one.id for one in triage_text(text).findings] == ["npu-oom", "m-logprob-diff"]
    said = triage_text(text).to_json()["matches"][1]
    assert (said["area"], said["line"]) == ("metrics", 1)


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(st.sampled_from(sorted(HEALTHY)), st.integers(0, 30), numbers), max_size=40))
@settings(max_examples=150, deadline=None)
def test_no_metrics_break_it(values):
    text = "\n".join(
        f"step:{step} - {name}:{value} - training/global_step:{step}" for name, step, value in values
    )
    triage_text(text.encode(), compared=AGAINST_HEALTHY)
    against = ComparedRuns(reference=scan_of(text), repeat=scan_of(text))
    triage_text(log(), compared=against)


def scan_of(text):
    import io

    return scan(io.BytesIO(text.encode()), shipped_catalogue()).series


@given(st.binary(max_size=200))
def test_any_bytes_on_a_step_line_are_no_traceback(data):
    line = b"training/global_step:3 - " + data + b"critic/rewards/mean:" + data
    metrics_on_line(line, ["critic/rewards/mean", "val-core/"])
    step_of(data + line)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5", 0.5), ("np.float64(-2e-3)", -0.002), ("1.2.3", 1.2), ("nan", None), (" .5", 0.5), ("x", "none")],
)
def test_numbers_are_read_however_they_are_written(text, value):
    found = metrics_on_line(f"critic/rewards/mean:{text} -".encode(), ["critic/rewards/mean"])
    assert found.get("critic/rewards/mean", "none") == value or value is None


def test_a_name_within_a_longer_one_is_not_that_metric():
    assert metrics_on_line(b"x/actor/ppo_kl:1 - actor/ppo_kl:2", ["actor/ppo_kl"]) == {"actor/ppo_kl": 2.0}


# verl prints more metrics after the number of the step.
@pytest.mark.parametrize("after", ["", " - training/epoch:0"])
def test_of_a_long_run_the_first_steps_the_validations_and_the_last_are_kept(after):
    text = "".join(
        f"step:{step} - actor/ppo_kl:{step if step != 888 else 'nan'}"
        + (" - val-core/x/acc:0.5" if step == 777 else "")
        + f" - training/global_step:{step}{after}\n"
        for step in range(1, 1004)
    )
    series = scan_of(text)
    kept = series.values["actor/ppo_kl"]
    assert {*range(1, 33), 777, 888, 1000, 1003} <= set(kept)
    assert len(kept) < 150
    assert all(series.lines[step] == step for step in kept)


def test_a_value_that_is_not_finite_counts_in_a_job_that_was_started_again():
    steps = "".join(f"step:{n} - actor/entropy:0.5 - training/global_step:{n}\n" for n in range(1, 9))
    again = "step:1 - actor/entropy:nan - training/global_step:1\n"
    assert triage_text(steps.encode()).is_clean
    found = triage_text((steps + again).encode())
    assert found.root is not None
    assert found.root.line == 9


@pytest.mark.parametrize("prefix", ["2026-11-20T08:00:00.123456789Z ", "[rank0]: ", "> ", "    7  "])
def test_metrics_on_lines_of_their_own_are_read_behind_prefixes(prefix):
    lines = ("step:1", "actor/entropy:0.5", "training/rollout_probs_diff_mean:nan", "training/global_step:1")
    found = triage_text("".join(f"{prefix}{line}\n" for line in lines).encode())
    assert found.root is not None
    assert "nan" in found.root.text


def test_a_value_that_is_not_finite_counts_after_very_many_steps():
    text = "step:{0} - actor/entropy:{1} - training/global_step:{0}\n"
    steps = "".join(text.format(n, 0.5) for n in range(1, 101_000))
    found = triage_text((steps + text.format(101_003, "nan") + text.format(101_004, 0.5)).encode())
    assert found.root is not None
    assert found.root.line == 101_000


SPREAD = (
    "step:{step}\n",
    "actor/entropy:0.8\n",
    "rollout_corr/kl:{kl}\n",
    "actor/pg_loss:0.01\n",
    "actor/grad_norm:{norm}\n",
    "training/global_step:{step}\n",
)
OTHERS = "(WorkerDict pid=9) bucket of worker 3 arrived\n[rank1]: 7 of 8 shards\n"


@pytest.mark.parametrize("norm", ["0.9", "nan"])
@pytest.mark.parametrize("form", ["other processes between", "records"])
def test_a_step_with_a_line_for_each_metric_is_read_between_other_lines(form, norm):
    steps = [line.format(step=step, kl=0.1, norm=norm) for step in range(1, 4) for line in SPREAD]
    if form == "records":
        written = [json.dumps({"log": line, "stream": "stderr", "time": "x"}) + "\n" for line in steps]
    else:
        written = [line + OTHERS for line in steps]
    found = triage_text("".join([*written, OTHERS]).encode())
    assert (found.root is None) == (norm != "nan")
