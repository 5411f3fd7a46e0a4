"""The checks of the main job fail on a wrong device, in the right tier and for the right reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.outcome import Evidence, State, Status
from harness.sources.packages.index_settings import index_environment, uv_binary
from harness.sources.packages.uv_settings import write_uv_settings
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pytest_folder(tmp_path_factory) -> Path:
    """A folder with pytest for cells, outside their environments, which stay as locked."""
    folder = tmp_path_factory.mktemp("pytest")
    settings = index_environment(os.environ)
    work = tmp_path_factory.mktemp("uv")
    write_uv_settings(work, settings.uv_file())
    subprocess.run(
        [
            uv_binary(),
            "pip",
            "install",
            "--quiet",
            "--target",
            str(folder),
            "--python",
            sys.executable,
            *settings.uv_arguments(),
            *("pytest", "pytest-timeout", "hypothesis"),
        ],
        check=True,
        cwd=work,
        env={**os.environ, **settings.uv_environment()},
    )
    return folder


def test_the_tests_of_devices_and_losses_pass_inside_the_cell(cell, pytest_folder, tmp_path):
    argv, variables = cell.command(
        "pytest", str(REPOSITORY / "tests" / "npu"), "-q", "-p", "no:cacheprovider"
    )
    variables["PYTHONPATH"] += os.pathsep + str(pytest_folder)
    # Without pytest's variables: otherwise it would be part of this run, and wait for the simulated cards of
    # the cell that another worker tests.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(argv, env={**ours, **variables}, cwd=tmp_path, capture_output=True, text=True)
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_unit_tests_that_need_torch_pass_inside_the_cell(cell, pytest_folder, tmp_path):
    unit = REPOSITORY / "tests" / "unit"
    names = ("tiny_policy", "smoke_program", "probability_gap", "sampler")
    losses = "test_a_correct_loss_passes_and_a_wrong_one_fails_with_its_reasons"
    _launched, variables = cell.command("pytest")
    # These tests run on the CPU, where verl must not find torch_npu: its kernels do not support CPU tensors.
    cpu = {
        "PYTHONPATH": os.pathsep.join([variables["PYTHONPATH"], str(pytest_folder)]),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        # A new compiled module would change the environment of the cell.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [
            cell.environment.measurements["python"],
            *("-c", "import sys; sys.modules['torch_npu'] = None; import pytest; sys.exit(pytest.main())"),
            *(str(unit / "convergence" / f"test_{name}.py") for name in names),
            f"{unit / 'fixtures' / 'test_fixtures_plugin.py'}::{losses}",
            *("-q", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"),
        ],
        env={**os.environ, **cpu},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


def test_a_clean_device_passes(cell, tmp_path):
    outcome = cell.execute("loss", tmp_path)
    judgement = judge_outcome(cell.tasks["loss"].check, outcome)
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.PASS, judgement.reasons


@pytest.mark.parametrize(
    "fault",
    [
        {"op": "exp", "kind": "ulp", "ulps": 2000},
        {"op": "exp", "kind": "round", "dtype": "bfloat16"},
        {"op": "mul*", "kind": "sign", "phase": "backward", "count": 1},
        {"op": "clamp*", "kind": "zero", "phase": "forward"},
        {"op": "sum*", "kind": "lowacc", "dtype": "bfloat16"},
        {"op": "exp", "kind": "nan", "elements": 0.01},
    ],
    ids=lambda fault: f"{fault['op']}-{fault['kind']}",
)
def test_a_faulty_device_turns_the_loss_red_and_stays_simulated(cell, tmp_path, fault):
    outcome = cell.execute("loss", tmp_path, [fault])
    judgement = judge_outcome(cell.tasks["loss"].check, outcome)
    assert outcome.state is State.COMPLETED
    assert outcome.evidence is Evidence.SIMULATED
    assert judgement.status is Status.FAIL
    assert any("loss cases are wrong" in reason for reason in judgement.reasons), judgement.reasons


def test_a_device_that_raises_is_red_with_its_error(cell, tmp_path):
    outcome = cell.execute("loss", tmp_path, [{"op": "exp", "kind": "raise"}])
    judgement = judge_outcome(cell.tasks["loss"].check, outcome)
    assert judgement.status is Status.FAIL


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_a_device_with_wrong_gradients_does_not_learn_and_the_decision_says_so(cell, tmp_path, algorithm):
    wrong = {"op": "mul*", "kind": "sign", "phase": "backward"}
    # The host reads the telemetry twice a second. A step calls exp eight times, so the run is slow enough to be
    # stopped before its end.
    slow = {"op": "exp", "kind": "hang", "seconds": 0.01}
    outcome = cell.execute(algorithm, tmp_path, [wrong, slow])
    judgement = judge_outcome(cell.tasks[algorithm].check, outcome)
    assert judgement.status is Status.FAIL, judgement.reasons
    # The fault is detected long before the end, and the run is stopped then.
    assert any("It was stopped after" in reason for reason in judgement.reasons), judgement.reasons
