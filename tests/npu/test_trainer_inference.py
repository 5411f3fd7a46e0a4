"""Inference of gpt-oss on the device: its logits, and the operators with which its router counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the model is transformers'")

from harness.convergence.inference import inference_check, inference_program  # noqa: E402
from harness.convergence.inference.inference_measurements import UnsupportedInference  # noqa: E402
from harness.outcome import Status  # noqa: E402


def test_the_device_gives_the_cpus_logits(npu_device):
    measured = inference_program.compare(npu_device)
    if isinstance(measured, UnsupportedInference):
        pytest.skip(measured.why)

    judgement = inference_check.judge(measured, {})

    assert judgement.status is Status.PASS, judgement.reasons


def test_one_hot_takes_given_and_found_numbers_of_classes(npu_device):
    numbers = torch.tensor([[1, 0], [2, 1]], device=npu_device)

    assert torch.nn.functional.one_hot(numbers, 4).cpu().tolist()[1] == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert torch.nn.functional.one_hot(numbers).shape == (2, 2, 3)


def test_histc_counts_integers(npu_device):
    numbers = torch.tensor([1, 0, 2, 1], dtype=torch.int32, device=npu_device)

    assert torch.histc(numbers, bins=4, min=0, max=3).cpu().tolist() == [1, 2, 1, 0]
