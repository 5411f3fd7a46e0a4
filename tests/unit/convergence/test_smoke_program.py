"""The training itself, with the verl that is importable: run inside a cell."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: run inside a cell")
pytest.importorskip("verl", reason="needs verl: run inside a cell")

from harness.convergence.decision.reference_set import TWIN_STEPS, load  # noqa: E402
from harness.convergence.smoke import record_smoke as recorder  # noqa: E402
from harness.convergence.smoke import smoke_program as program  # noqa: E402
from harness.convergence.smoke.training_faults import ARITHMETIC, FAULTS  # noqa: E402
from harness.convergence.telemetry.series import SERIES, read  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(tmp_path, *arguments):
    out = tmp_path / "run.jsonl"
    code = program.main(["--device", "cpu", "--out", str(out), *arguments])
    assert code == 0
    return read(out)


def test_runs_are_whole_and_described(tmp_path):
    telemetry = trained(tmp_path, "--algorithm", "grpo", "gspo", "--seed", "0", "--seed", "1", "--steps", "3")

    assert telemetry.problems == ()
    assert len(telemetry.runs) == 4
    for run in telemetry.runs:
        assert run.problems == ()
        assert set(run.series) == set(SERIES)
        assert run.steps == 3
        assert run.header["device"]["simulated"] is False
        assert run.header["fault"] is None


def test_the_same_seed_gives_the_same_curve(tmp_path):
    first = trained(tmp_path, "--algorithm", "gspo", "--seed", "5", "--steps", "2").runs[0]
    again = trained(tmp_path, "--algorithm", "gspo", "--seed", "5", "--steps", "2").runs[0]

    assert {**first.series, "seconds": ()} == {**again.series, "seconds": ()}


def test_a_fault_is_in_the_header_and_shows(tmp_path):
    run = trained(
        tmp_path, "--algorithm", "grpo", "--seed", "0", "--steps", "2", "--fault", "zero-mask"
    ).runs[0]

    assert run.header["fault"] == "zero-mask"
    assert run.series["grad_norm"][0] == 0 or run.series["grad_norm"][0] != run.series["grad_norm"][0]


@pytest.mark.parametrize("arguments", [("--steps", "-1"), ("--fault", "nonsense"), ("--clip-low", "0")])
def test_bad_settings_are_refused_without_a_traceback(tmp_path, capsys, arguments):
    out = tmp_path / "run.jsonl"
    code = program.main(
        ["--algorithm", "grpo", "--seed", "0", "--device", "cpu", "--out", str(out), *arguments]
    )

    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_device_that_is_not_there_is_named(tmp_path, capsys):
    code = program.main(
        ["--algorithm", "grpo", "--seed", "0", "--device", "cuda:7", "--out", str(tmp_path / "x")]
    )

    assert code == 4
    assert "cuda:7 cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*FAULTS, *ARITHMETIC])
def test_every_fault_can_be_put_into_a_run(tmp_path, name):
    run = trained(tmp_path, "--algorithm", "gspo", "--seed", "0", "--steps", "1", "--fault", name).runs[0]

    assert run.header["fault"] == name
    assert run.complete


def test_recording_makes_a_reference_set_with_twins(tmp_path, capsys):
    wanted = ["--algorithm", "grpo", "--name", "tiny", "--seeds", "2", "--twin", "9", "--steps", "8"]
    assert recorder.main([*wanted, "--folder", str(tmp_path)]) == 0

    found = load(Path(capsys.readouterr().out.split()[-1]))
    assert (found.name, found.seeds, list(found.twins)) == ("tiny", (0, 1), [9])
    assert len(found.runs[0]["reward"]) == 8
    assert len(found.twins[9]["reward"]) == TWIN_STEPS
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_lines_are_json_that_any_reader_takes(tmp_path):
    trained(tmp_path, "--algorithm", "grpo", "--seed", "0", "--steps", "2", "--fault", "nan-loss")

    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
