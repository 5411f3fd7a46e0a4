from __future__ import annotations

import subprocess
import sys

from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.cases.loss_case import save_cases
from harness.numerics.loss.expected_result import load_expected, load_reference_facts
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.loss_reference_program import ACTUAL


def run(*args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{before}\nimport sys\nfrom harness.numerics.loss.loss_reference_program import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)


def test_intervals_survive_the_process_and_its_file(tmp_path):
    cases = battery(seed=2)
    save_cases(tmp_path / "cases.npz", cases)
    out = tmp_path / "reference.npz"
    done = run(
        *("--cases", str(tmp_path / "cases.npz"), "--out", str(out)),
        *("--differences", "gspo-ignores-loss-agg-mode,sum-norm-without-sequences"),
    )
    assert done.returncode == 0, done.stderr
    intervals = load_expected(out)
    assert load_reference_facts(out).frameworks_loaded == ()
    assert "policy/gspo-near/token-mean" + ACTUAL in intervals
    assert "policy/grpo-near/token-mean" + ACTUAL not in intervals
    for case in cases:
        here, there = reference(case), intervals[case.name]
        assert here.value.tobytes() == there.value.tobytes()
        if here.gradient is not None:
            assert here.gradient.low.tobytes() == there.gradient.low.tobytes()
            assert here.gradient.zero.tobytes() == there.gradient.zero.tobytes()


def test_a_process_that_has_a_framework_loaded_refuses(tmp_path):
    save_cases(tmp_path / "cases.npz", battery(seed=2)[:1])
    before = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')"
    done = run("--cases", str(tmp_path / "cases.npz"), "--out", str(tmp_path / "r.npz"), before=before)
    assert done.returncode == EXIT_INCOMPLETE
    assert "torch is loaded in the reference process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_battery_is_bad_input_without_traceback(tmp_path):
    done = run("--cases", str(tmp_path / "absent.npz"), "--out", str(tmp_path / "r.npz"))
    assert done.returncode == EXIT_BAD_INPUT
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr
