"""The check that compares the gpt-oss logits of a device with those of the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.check import Completed
from harness.convergence.inference import inference_check
from harness.convergence.inference.inference_measurements import INFERENCE_FORMAT, UnsupportedInference
from harness.evidence import DeviceFacts
from harness.outcome import Evidence, Status
from harness.serialisation import json_object

SIMULATED = {"device": "npu:0", "kind": "npu", "simulated": True}


def written(**changes):
    return {
        "supported": True,
        "finite": True,
        "largest_difference": 1e-6,
        "largest_logit": 0.6,
        "same_answers": True,
        "matrix_products": 15,
        "versions": {"transformers": "4.57.6"},
        "device": SIMULATED,
        **changes,
    }


class Cell:
    """A context whose cell writes given logits."""

    def __init__(self, folder: Path, found=None, *, code=0, tail=""):
        self.workdir, self.found, self.code, self.tail = folder, found, code, tail
        self.facets = {"device": {"kind": "sim"}}

    def in_cell(self, module, *arguments, env=None, timeout=None):
        if self.found is not None:
            Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(self.found))
        return Completed(argv=(), returncode=self.code, tail=self.tail, seconds=1.0)


def judged(cell):
    measured = inference_check.run(cell)
    return measured, inference_check.judge(
        INFERENCE_FORMAT.read(INFERENCE_FORMAT.write(measured.measurements)), {}
    )


def test_equal_logits_pass_as_simulated(tmp_path):
    measured, judgement = judged(Cell(tmp_path, written()))

    assert judgement.status is Status.PASS
    assert measured.evidence is Evidence.SIMULATED
    assert "explains 0.0044" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"largest_difference": 0.005}, "15 consecutive matmuls explains 0.0044"),
        ({"finite": False}, "not finite"),
    ],
)
def test_other_logits_fail(tmp_path, changes, reason):
    _, judgement = judged(Cell(tmp_path, written(**changes)))

    assert judgement.status is Status.FAIL
    assert reason in judgement.reasons[0]


def test_other_answers_within_rounding_pass_and_say_so(tmp_path):
    _, judgement = judged(Cell(tmp_path, written(same_answers=False)))

    assert judgement.status is Status.PASS
    assert "different, which rounding can cause" in judgement.reasons[1]


def test_a_stack_without_the_model_is_unsupported(tmp_path):
    lacking = json_object(
        UnsupportedInference(
            why="this transformers has no gpt-oss: cannot import name",
            versions={},
            device=DeviceFacts(device="npu:0", kind="npu", simulated=True),
        )
    )
    _, judgement = judged(Cell(tmp_path, lacking))

    assert judgement.status is Status.UNSUPPORTED


def test_a_crash_is_told_by_its_last_words(tmp_path):
    measured, judgement = judged(Cell(tmp_path, code=1, tail="RuntimeError: aclnnFoo is not there\n"))

    assert judgement.status is Status.FAIL
    assert "aclnnFoo" in judgement.reasons[1]
    assert measured.evidence is Evidence.CPU
