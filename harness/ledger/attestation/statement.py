"""The statement that a runner signs about one outcome: an in-toto Statement with a test result.

The formats are https://in-toto.io/Statement/v1 and https://in-toto.io/attestation/test-result/v0.1. The
digest of the subject is that of the whole outcome, so the statement is about this one execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from harness.digest import canonical_json
from harness.ledger.outcome_record import outcome_body, outcome_uid
from harness.outcome import Outcome, Status
from harness.serialisation import json_form, load

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://in-toto.io/attestation/test-result/v0.1"
TestState: TypeAlias = Literal["PASSED", "WARNED", "FAILED"]
DIGEST = "sha256"
RESULTS: Mapping[Status, TestState] = {Status.PASS: "PASSED", Status.FAIL: "FAILED"}


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource descriptor of in-toto: something that has a digest or facts about it."""

    name: str
    digest: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, object] = field(default_factory=dict)


@json_form(passed="passedTests", warned="warnedTests", failed="failedTests")
@dataclass(frozen=True, kw_only=True)
class TestResult:
    """The predicate: how the check came out, and everything that the outcome depends on (`configuration`)."""

    __test__ = False

    result: TestState
    configuration: tuple[Resource, ...]
    passed: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def resource(self, name: str) -> Resource:
        """The resource called `name`; one without digest and annotations if there is not exactly one."""
        found = [one for one in self.configuration if one.name == name]
        return found[0] if len(found) == 1 else Resource(name=name)


@json_form(type="_type", predicate_type="predicateType")
@dataclass(frozen=True, kw_only=True)
class Statement:
    """An in-toto Statement about one outcome."""

    type: Literal["https://in-toto.io/Statement/v1"]
    subject: tuple[Resource, ...]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"]
    predicate: TestResult


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A statement as it was signed, byte for byte, and its OpenSSH signature."""

    statement: str
    signature: str


def make_statement(
    outcome: Outcome, status: Status, *, runner: str, device: Mapping[str, object], lock: str
) -> str:
    """The text of the statement that `runner` signs.

    device: the facet `device` of the task. lock: the digest of the lock file that the cell was built from;
    "" if the task does not depend on one.
    """
    result = RESULTS.get(status, "WARNED")
    origin = outcome.origin
    descriptors = [
        Resource(name="key", digest={DIGEST: outcome.key}),
        Resource(
            name="host",
            digest={DIGEST: origin.host if origin else ""},
            annotations={"runner": runner, "npu-matrix": origin.version if origin else ""},
        ),
        Resource(name="device", digest={DIGEST: outcome.facets.get("device", "")}, annotations=device),
        *([Resource(name="lock", digest={DIGEST: lock})] if lock else ()),
        *(Resource(name=f"facet/{name}", digest={DIGEST: one}) for name, one in outcome.facets.items()),
        *(Resource(name=f"input/{name}", digest={DIGEST: one}) for name, one in outcome.inputs.items()),
        *(Resource(name=f"file/{ref.name}", digest={DIGEST: ref.digest}) for ref in outcome.files),
    ]
    tests = (outcome.check,)
    return canonical_json(
        Statement(
            type=STATEMENT_TYPE,
            subject=(Resource(name=outcome.key, digest={DIGEST: subject_digest(outcome)}),),
            predicate_type=PREDICATE_TYPE,
            predicate=TestResult(
                result=result,
                configuration=tuple(descriptors),
                passed=tests if result == "PASSED" else (),
                warned=tests if result == "WARNED" else (),
                failed=tests if result == "FAILED" else (),
            ),
        )
    )


def subject_digest(outcome: Outcome) -> str:
    """The digest of the outcome as every ledger stores it."""
    return outcome_uid(outcome_body(outcome))


def read_statement(text: str) -> Statement | None:
    """The statement, or None if the text has another form."""
    try:
        found = load(Statement, text)
        # Refuses NaN and infinity, which have no digest.
        canonical_json(found)
    except (ValueError, RecursionError):
        return None
    return found
