"""Classifies a failed test by its message, and groups messages that differ in numbers and addresses only."""

from __future__ import annotations

import re

from harness.cell_program.unsimulated_operators import unsimulated_operators
from harness.upstream_tests.in_cell.file_results import Ended, TestResult
from harness.upstream_tests.suite_measurements import FailureClass

_BY_END = {
    Ended.CRASHED: FailureClass.CRASH,
    Ended.HUNG: FailureClass.HANG,
    Ended.MEMORY: FailureClass.MEMORY,
    Ended.NOT_REACHED: FailureClass.NOT_REACHED,
}
_ENVIRONMENT = re.compile(
    r"\b(ModuleNotFoundError|FileNotFoundError|ConnectionError|HTTPError|URLError|gaierror)\b"
    r"|No module named|We couldn't connect|Max retries exceeded|command not found|CANN.* is not installed"
)
_WRONG = re.compile(r"\bAssertionError\b|Tensor-likes are not|Scalars are not|not raised|^assert\b")
_REFUSED = re.compile(
    r"\berror code is \d+|\bE[A-Z]\d{4,5}\b|\bERR\d{5}\b|call acl api failed|aclnn\w+ failed"
)

#: What torch_npu says of a function that the simulated CANN libraries do not have.
_ABSENT = re.compile(r"\baclnn\w+ not in libopapi|Failed to find function \w+")

_VARYING = (
    (re.compile(r"0x[0-9a-f]+"), "0x..."),
    (re.compile(r"(?:/[\w.+@-]+){2,}/?"), "/..."),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "<id>"),
    (re.compile(r"[-+]?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b"), "N"),
)
MOST_GROUP = 240


def failure_class(test: TestResult, *, simulated: bool) -> FailureClass:
    """Why a test failed that did not end well."""
    if test.ended in _BY_END:
        return _BY_END[test.ended]
    return message_class(test.message, test.detail, simulated=simulated)


def message_class(message: str, detail: str, *, simulated: bool) -> FailureClass:
    """Why a test or a file failed, by its message and the end of its traceback."""
    if simulated and (unsimulated_operators(f"{message}\n{detail}") or _ABSENT.search(message)):
        return FailureClass.NOT_SIMULATED
    if _ENVIRONMENT.search(message):
        return FailureClass.ENVIRONMENT
    if _WRONG.search(message):
        return FailureClass.WRONG
    if _REFUSED.search(message) or _REFUSED.search(detail):
        return FailureClass.REFUSED
    return FailureClass.ERROR


def stored_message(test: TestResult, *, simulated: bool) -> str:
    """The message to store: the operators that are not simulated come first, as the message may not name
    them."""
    operators = unsimulated_operators(f"{test.message}\n{test.detail}") if simulated else []
    if operators and not any(name in test.message for name in operators):
        return f"not simulated: {', '.join(operators)}; {test.message}"
    return test.message


def message_group(message: str) -> str:
    """The message without what differs between runs: numbers, addresses, paths."""
    operators = unsimulated_operators(message)
    if operators:
        return f"not simulated: {', '.join(operators)}"
    for pattern, word in _VARYING:
        message = pattern.sub(word, message)
    return message[:MOST_GROUP]
