"""The class of a failed test, and the message without what differs from run to run."""

import pytest

from harness.upstream_tests.failure_classes import message_class, message_group
from harness.upstream_tests.suite_measurements import FailureClass


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("RuntimeError: aclnnFooV3GetMaxWorkspaceSize not in libopapi.so", FailureClass.NOT_SIMULATED),
        ("RuntimeError: Failed to find function aclmdlRICaptureBegin", FailureClass.NOT_SIMULATED),
        ("RuntimeError: not simulated: aclnnGatherV3", FailureClass.NOT_SIMULATED),
        ("ModuleNotFoundError: No module named 'scipy'", FailureClass.ENVIRONMENT),
        ("AssertionError: 1 != 2", FailureClass.WRONG),
        ("RuntimeError: OPS function error: Identity, error code is 500001", FailureClass.REFUSED),
        ("RuntimeError: OPS function error: Minimum, error code is 107000", FailureClass.NOT_SIMULATED),
        ("KeyError: 'x'", FailureClass.ERROR),
    ],
)
def test_the_message_tells_the_class(message: str, kind: FailureClass) -> None:
    assert message_class(message, "", simulated=True) is kind


def test_on_hardware_nothing_is_not_simulated() -> None:
    message = "RuntimeError: Failed to find function aclmdlRICaptureBegin"
    assert message_class(message, "", simulated=False) is not FailureClass.NOT_SIMULATED


def test_messages_that_differ_in_numbers_and_paths_are_one_group() -> None:
    one = "RuntimeError: /a/b/c.cpp:12 failed at 0x7f12, got 3.5"
    other = "RuntimeError: /x/y/z/c.cpp:99 failed at 0xabc, got -1e-3"
    assert message_group(one) == message_group(other)
