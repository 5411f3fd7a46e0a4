"""Figures in a message prove a cause: who uses the memory of a card, and which numbers do not divide."""

from __future__ import annotations

import pytest

from harness.verdict.triage.diagnosis import triage_text

LISTED = (
    "RuntimeError: NPU out of memory. Tried to allocate {tried} (NPU 6; 60.97 GiB total capacity; "
    "{allocated} GiB already allocated; {allocated} GiB current active; {free} free; "
    "{reserved} GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try ..."
)
TOLD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of "
    "79.11 GiB of which {free} is free. Including non-PyTorch memory, this process has 70.25 GiB memory in "
    "use. Of the allocated memory {allocated} GiB is allocated by PyTorch, and {unallocated} is reserved by "
    "PyTorch but unallocated."
)
#: Message -> a part of the sentence.
PROVEN = {
    LISTED.format(tried="22.00 MiB", allocated=10.24, free="19.79 MiB", reserved=10.65): (
        "50.3 GiB are used outside of torch's allocator"
    ),
    LISTED.format(tried="2.00 GiB", allocated=55.91, free="1.80 GiB", reserved=58.73): "fragmented",
    LISTED.format(tried="3.47 GiB", allocated=58.92, free="1.66 GiB", reserved=58.95): (
        "torch's allocator has 59.0 GiB of 61.0 GiB"
    ),
    TOLD.format(tried="13.91 GiB", allocated=60.49, free="8.85 GiB", unallocated="6.77 GiB"): (
        "torch's allocator has 67.3 GiB of 79.1 GiB"
    ),
    TOLD.format(tried="512.00 MiB", allocated=8.51, free="10.00 MiB", unallocated="56.16 MiB"): (
        "70.5 GiB are used outside of torch's allocator"
    ),
    "ValueError: Total number of attention heads (52) must be divisible by tensor parallel size (3).": (
        "attention heads is 52, which is no multiple of tensor parallel size, which is 3"
    ),
    "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got "
    "88 from PyObject": "built for numpy 1, and numpy 2 is installed",
    "AssertionError: rollout world_size: 1 is not divisible by infer_tp: 2": "no multiple of infer_tp, which is 2",
    "AssertionError: n_physical_experts=256 must be divisible by ep_size=3. Adjust it.": "no multiple of ep_size",
}


@pytest.mark.parametrize("text", PROVEN)
def test_figures_prove_a_cause(text: str) -> None:
    found = triage_text(text.encode())
    assert found.known
    assert found.root
    assert found.root.derived
    assert PROVEN[text] in found.root.derived.sentence


@pytest.mark.parametrize(
    "text",
    [
        # More is free than was asked for, so the figures are not the reason.
        TOLD.format(tried="20.00 MiB", allocated=8.51, free="66.43 GiB", unallocated="856.16 MiB"),
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ValueError: heads (32) must be divisible by tensor parallel size (4).",
        "ValueError: the batch must be divisible by 4",
    ],
)
def test_other_figures_prove_nothing(text: str) -> None:
    found = triage_text(text.encode())
    assert found.root
    assert found.root.derived is None
    assert not found.known


def test_an_old_library_of_cpp_is_named_with_the_version_that_it_lacks() -> None:
    text = (
        "ImportError: /usr/lib64/libstdc++.so.6: version `CXXABI_1.3.8' not found (required by /x/libATen.so)"
    )
    found = triage_text(text.encode())
    assert found.root
    assert found.root.id == "glibcxx"
    assert found.root.derived
    assert "(/usr/lib64/libstdc++.so.6) does not have CXXABI_1.3.8" in found.root.derived.sentence
    told = triage_text(b"ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /x/y.so)")
    assert told.root
    assert told.root.derived
    assert "loaded glibc" in told.root.derived.sentence
