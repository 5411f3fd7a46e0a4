"""The checks `grpo` and `gspo`, with recorded curves instead of trainings in a cell."""

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic", reason="decisions are made on the host")

import training_samples
from training_samples import header_json, stored

from harness.check import Completed
from harness.convergence import checks
from harness.convergence.decision.reference_set import content, for_recipe, write
from harness.convergence.smoke import smoke_check
from harness.convergence.smoke.smoke_measurements import SMOKE_FORMAT
from harness.convergence.smoke.smoke_recipe import CANDIDATE_SEEDS, RECIPES
from harness.convergence.telemetry.series import encode
from harness.convergence.telemetry.training_records import ReferenceProvenance
from harness.digest import canonical_json
from harness.measurements import read_shape
from harness.outcome import Evidence, Status
from harness.serialisation import json_object

SIMULATED = json_object(training_samples.SIMULATED)


class Cell:
    """A task context whose cell writes the given curves instead of training."""

    def __init__(
        self,
        workdir: Path,
        algorithm="grpo",
        *,
        curves=(),
        device=SIMULATED,
        code=0,
        timed_out=False,
        seconds=0.1,
        **header,
    ):
        self.workdir = workdir
        self.params = {"algorithm": algorithm}
        self.facets = {"device": {"kind": "sim"}}
        self.calls: list[tuple[str, ...]] = []
        self.curves = list(curves)
        self.header = header_json(**{"device": device, "digest": RECIPES[algorithm].digest(), **header})
        self.ending = (code, timed_out)
        self.seconds = seconds

    def log(self, text):
        pass

    def in_cell(self, module, *arguments, timeout=None, env=None):
        self.calls.append(arguments)
        words = list(arguments)
        seeds = [int(words[place + 1]) for place, word in enumerate(words) if word == "--seed"]
        with Path(words[words.index("--out") + 1]).open("w") as out:
            for seed in seeds:
                if self.curves:
                    self._write(out, seed, self.curves.pop(0))
        code, timed_out = self.ending
        return Completed(
            argv=(), returncode=code, tail="RuntimeError: aclnnFoo", seconds=1.0, timed_out=timed_out
        )

    def _write(self, out, seed, series):
        name = f"grpo-{seed}"
        lines = [{"kind": "run", "run": name, **self.header, "seed": seed}]
        for step in range(len(series["reward"])):
            values = {metric: encode(line[step]) for metric, line in series.items()}
            lines.append({"kind": "step", "run": name, "step": step, "seconds": self.seconds, **values})
        if self.ending[0] == 0:
            lines.append({"kind": "end", "run": name})
        out.write("".join(json.dumps(line) + "\n" for line in lines))


def healthy(number=0, algorithm="grpo"):
    """A recorded run that starts as the candidate seed of that number does."""
    found = for_recipe(RECIPES[algorithm].digest())
    assert found is not None
    first = found.twins[CANDIDATE_SEEDS[number]]
    return {name: (*first[name], *values[len(first[name]) :]) for name, values in found.runs[number].items()}


def judged(cell):
    measured = smoke_check.run(cell)
    return measured, smoke_check.judge(stored(SMOKE_FORMAT, measured.measurements), cell.params)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_a_healthy_run_passes_after_one_seed(tmp_path, algorithm):
    cell = Cell(tmp_path, algorithm, curves=[healthy(0, algorithm)])

    measured, judgement = judged(cell)

    assert judgement.status is Status.PASS
    assert measured.evidence is Evidence.SIMULATED
    assert len(cell.calls) == 1
    assert "--device npu:0" in " ".join(cell.calls[0])
    assert list(measured.artifacts) == ["run-1000.jsonl"]


def test_a_suspicious_run_is_confirmed_with_the_next_seed(tmp_path):
    slow = [{**healthy(n), "reward": tuple(0.5 * x for x in healthy(n)["reward"])} for n in range(3)]
    cell = Cell(tmp_path, curves=slow)

    measured, judgement = judged(cell)

    assert judgement.status is Status.FAIL
    assert len(cell.calls) == 2
    assert [run.seed for run in measured.measurements.runs] == list(CANDIDATE_SEEDS[:2])
    assert "reward" in judgement.reasons[0]
    assert judgement.remedies


def test_a_gate_needs_no_confirmation(tmp_path):
    broken = {**healthy(), "grad_norm": (float("nan"),) * 60}
    cell = Cell(tmp_path, curves=[broken])

    _, judgement = judged(cell)

    assert judgement.status is Status.FAIL
    assert len(cell.calls) == 1


@pytest.mark.parametrize(
    ("facts", "evidence"),
    [
        (SIMULATED, Evidence.SIMULATED),
        ({**SIMULATED, "simulated": False, "runtime": "cann"}, Evidence.HARDWARE),
        ({**SIMULATED, "simulated": False}, Evidence.CPU),
        ({"device": "cpu", "kind": "cpu", "simulated": False}, Evidence.CPU),
    ],
)
def test_evidence_comes_from_the_device_alone(tmp_path, facts, evidence):
    measured, _ = judged(Cell(tmp_path, curves=[healthy()], device=facts))

    assert measured.evidence is evidence


def test_a_crash_fails_and_says_how_far_it_came(tmp_path):
    short = {name: values[:7] for name, values in healthy().items()}
    measured, judgement = judged(Cell(tmp_path, curves=[short], code=1))

    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == "The training ended with exit code 1, after 7 steps."
    assert "aclnnFoo" in judgement.reasons[1]
    assert measured.evidence is Evidence.SIMULATED


def test_a_program_that_records_nothing_fails(tmp_path):
    _, judgement = judged(Cell(tmp_path))

    assert judgement.status is Status.FAIL
    assert "it recorded 0 of 1 runs" in judgement.reasons[1]


def test_a_program_that_never_reports_claims_no_device(tmp_path):
    measured, judgement = judged(Cell(tmp_path, code=-9, timed_out=True))

    assert judgement.status is Status.FAIL
    assert "did not end within" in judgement.reasons[0]
    assert measured.evidence is Evidence.CPU


def test_curves_of_other_settings_are_not_compared(tmp_path):
    _, judgement = judged(Cell(tmp_path, curves=[healthy()], digest="another"))

    assert judgement.status is Status.INCONCLUSIVE
    assert "no reference set with the settings" in judgement.reasons[0]


def test_a_seeded_fault_is_named(tmp_path):
    _, judgement = judged(Cell(tmp_path, curves=[healthy()], fault="double-loss"))

    assert "These runs carry the seeded fault double-loss." in judgement.reasons


def test_the_report_gets_bands_and_curves(tmp_path):
    measured, _ = judged(Cell(tmp_path, curves=[healthy()]))
    curves = measured.measurements.curves

    assert len(curves.reference.mean) == len(curves.reference.low) == 60
    assert curves.candidate[0].seed == 1000
    assert len(curves.telemetry["grad_norm"].candidate[0]) == 60
    assert curves.looks == (24, 36, 60)
    assert len(canonical_json(SMOKE_FORMAT.write(measured.measurements))) < 60_000


def test_the_checks_are_declared_as_the_plan_expects():
    assert [check.name for check in checks.CHECKS] == [
        "grpo",
        "gspo",
        "trainer-grpo",
        "trainer-gspo",
        "trainer-vllm-grpo",
        "trainer-vllm-gspo",
        "trainer-vllm-one-step-off",
        "trainer-one-step-off",
        "recipe-twin",
        "gpt-oss",
    ]
    for check in checks.CHECKS[:2]:
        assert check.device
        assert check.needs == ("environment",)
        assert check.params == {"algorithm": check.name}


HERE = {"id": "0123456789abcdef", "load": 0.5, "others": 0.0}


@pytest.fixture
def own_reference(tmp_path, monkeypatch):
    """The shipped reference as if it had been recorded on this machine's simulated device, with times."""
    found = for_recipe(RECIPES["grpo"].digest())
    folder = tmp_path / "references"
    folder.mkdir()
    body = content(
        name="grpo",
        recipe_digest=found.recipe_digest,
        recipe=found.recipe,
        provenance=read_shape(
            ReferenceProvenance, {**json_object(found.provenance), "device": SIMULATED, "host": HERE}
        ),
        runs=[
            (seed, {**series, "seconds": (0.1 * (1 + 0.005 * (seed % 5)),) * 60})
            for seed, series in zip(found.seeds, found.runs, strict=True)
        ],
        twins=list(found.twins.items()),
    )
    write(folder, body)
    monkeypatch.setenv("NPU_MATRIX_REFERENCES", str(folder))


@pytest.mark.usefixtures("own_reference")
@pytest.mark.parametrize(("seconds", "status"), [(0.1, "pass"), (0.02, "pass"), (0.13, "fail")])
def test_a_slower_step_fails_and_a_faster_one_does_not(tmp_path, seconds, status):
    _, judgement = judged(Cell(tmp_path, curves=[healthy()], seconds=seconds, host=HERE))

    assert judgement.status.value == status
    told = [reason for reason in judgement.reasons if reason.startswith("seconds is")]
    assert len(told) == 1
    assert ("more than chance explains" in told[0]) == (status == "fail")
    if status == "fail":
        assert judgement.reasons[0] == told[0]
        assert "what changed since the reference" in judgement.remedies[-1]


@pytest.mark.usefixtures("own_reference")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"host": {"id": "another", "load": 0.5}}, "another machine"),
        ({"host": {**HERE, "others": None}}, "how much processor time other processes used"),
        ({"host": HERE, "device": {**SIMULATED, "soc": "Ascend310P"}}, "another device (different soc)"),
    ],
)
def test_times_that_cannot_be_compared_are_not_judged(tmp_path, changed, said):
    _, judgement = judged(Cell(tmp_path, curves=[healthy()], seconds=1.0, **changed))

    assert judgement.status is Status.PASS
    assert any(said in reason for reason in judgement.reasons if reason.startswith("Times are not judged"))


@pytest.mark.usefixtures("own_reference")
@pytest.mark.parametrize(("others", "status"), [(0.0, "fail"), (0.3, "fail"), (0.6, "pass"), (1.0, "pass")])
def test_a_run_that_is_twice_as_slow_fails_unless_others_used_the_machine(tmp_path, others, status):
    host = {**HERE, "others": others}
    _, judgement = judged(Cell(tmp_path, curves=[healthy()], seconds=0.2, host=host))

    assert judgement.status.value == status
    (told,) = [reason for reason in judgement.reasons if reason.startswith("seconds is")]
    assert ("other processes on the machine" in told) == (others > 0)


class SlowCell(Cell):
    """A cell that writes a step at a time and looks for the stop file, as the program does."""

    def in_cell(self, module, *arguments, timeout=None, env=None):
        words = list(arguments)
        path, stop = (Path(words[words.index(word) + 1]) for word in ("--out", "--stop-file"))
        series, seed = self.curves.pop(0), int(words[words.index("--seed") + 1])
        deadline = time.monotonic() + 60
        for made in range(1, 61):
            with path.open("w") as out:
                self._write(out, seed, {name: values[:made] for name, values in series.items()})
            while made == 30 and not stop.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            if stop.exists():
                break
        return super().in_cell(module, "--out", str(path) + ".none")


def test_a_run_that_is_bad_for_sure_is_ended_early(tmp_path):
    broken = {**healthy(), "grad_norm": (*(0.5,) * 20, *(float("nan"),) * 40)}

    measured, judgement = judged(SlowCell(tmp_path, curves=[broken]))

    (run,) = measured.measurements.runs
    assert judgement.status is Status.FAIL
    assert run.stopped.of == 60
    assert 20 < len(run.series["reward"]) < 40
    assert any("It was stopped after" in reason for reason in judgement.reasons)
