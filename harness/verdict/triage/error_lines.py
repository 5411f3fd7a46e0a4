"""Recognises errors without a traceback, by the logging level or the exception type of a line."""

from __future__ import annotations

import re

from harness.verdict.triage.log_line import LogLine, shown
from harness.verdict.triage.stack_trace import LoggedFailure

#: Every line that `error_of` accepts contains one of these, or its message is also that of a signature.
NEEDLES = (
    "Error: ",
    "Exception: ",
    "VersionConflict: ",
    "DistributionNotFound: ",
    "Interrupt",
    "ERROR 0",
    "ERROR 1",
    "[ERROR]",
    " ERROR ",
    "\tERROR ",
    "\nERROR:",
    " ERROR:",
    "[Error]: ",
    "CRITICAL",
    *(f"{quote}{level}{quote}" for quote in "'\"" for level in ("error", "ERROR", "fatal", "critical")),
    "=error ",
    "=fatal ",
    "=panic ",
    "[FATAL]",
    " FATAL ",
    "\nFATAL:",
    " FATAL:",
    ": error: ",
    "Inner Error",
    "Error executing job",
    "Assertion ",
    "\nKilled",
    "\nAborted",
)
#: The type of a line that has the level of an error but names no exception.
ERROR_LEVEL = "ERROR"
EXCEPTION = re.compile(
    r"(?:.{0,120}?[\])\s:\"'])??(?P<type>(?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Expired|Refused|"
    r"Unavailable|Exhausted|Aborted|NotFound|Conflict))(?:\([\w.]{1,200}\))?: (?P<message>\S.*)$"
)
# Errors of programs other than Python's: compilers, linkers, git, shells, C's assert.
PROGRAM = re.compile(
    r"(?:[\w./+-]{1,200}: )?(?:fatal error|fatal|error|panic): \S"
    r"|\w[\w./-]{0,200}:.{0,80} Assertion .{1,300} failed"
    r"|\[Error\]: \S|E[0-9A-Z]\d{4}(?:\[PID|: ).{0,60}|Error executing job with overrides"
    r"|(?:Killed|Aborted)$"
)
#: Another attempt follows, or the number is a metric or a count.
RETRIED = re.compile(
    r"\b(?:re-?try(?:ing)?|retries left|will (?:try|be tried) again|attempt \d{1,4}(?:/| of )\d)",
    re.IGNORECASE,
)
GAVE_UP = re.compile(
    r"\b(?:max(?:imum)? retries|giving up|gave up|after \d{1,4} (?:retries|attempts)|exceeded)\b",
    re.IGNORECASE,
)
# A line of source code, in a traceback whose beginning was cut off.
CODE_LINE = re.compile(r" {4,}(?:raise|return|await|with|self\.|\w+(?:\.\w+)* = )")
NUMERIC = re.compile(
    r"[\s=:]*(?:np\.float\d\d\()?[-+]?[\d.]+(?:e[-+]?\d+)?[)%,;]*\s*(?:$|[-|,]\s)", re.IGNORECASE
)
# Words in quotation marks are cited: `prompt: "ValueError: what does this mean?"`.
PRINTED_ANSWER = r"\b(?i:prompt|generated text|response|output|answer|completion)s?\s*[:=]\s*[\"']"
CITED = re.compile(
    r"[{\[,]\s*[\"']\w{1,40}[\"']\s*:|[\"'](?:prompt|response|input|output|content|text)[\"']?\s*:"
    rf"|{PRINTED_ANSWER}"
)


# verl prints a sample of a validation in lines of their own: `[response] ValueError: what does this mean?`.
SAMPLE_FIELD = re.compile(r"\[(?:prompt|response|ground_truth|solution|question)\] ", re.IGNORECASE)


def error_of(number: int, line: LogLine) -> LoggedFailure | None:
    """The failure that a line reports on its own; None for another line, a retry, a metric or a citation."""
    body = line.body.strip()
    if CODE_LINE.match(line.body):
        return None
    if (
        line.is_mild
        or not body
        or SAMPLE_FIELD.match(body)
        or (RETRIED.search(body) and not GAVE_UP.search(body))
    ):
        return None
    found = EXCEPTION.match(body)
    if found and not NUMERIC.match(found["message"]) and not CITED.search(body[: found.start("type")]):
        return _failure(found["type"], found["message"], number, line)
    if line.is_error or PROGRAM.match(body):
        message = _without_level(body)
        if message and not NUMERIC.match(message) and not CITED.match(message):
            return _failure(ERROR_LEVEL, message, number, line)
    return None


def _without_level(body: str) -> str:
    return re.sub(r"^.{0,60}?\b(?:ERROR|CRITICAL|FATAL)\b[\s\]:|-]*", "", body, count=1)


def _failure(kind: str, message: str, number: int, line: LogLine) -> LoggedFailure:
    return LoggedFailure(
        type=shown(kind, 200),
        message=shown(message, 2000),
        line=number,
        first=number,
        process=line.process,
        rank=line.rank,
    )
