"""The outcome of running a task (`Outcome`), and how its check judges it (`Judgement`)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from harness.digest import digest_json
from harness.serialisation import json_form

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # `Measured` and `Check` without a type parameter accept any measurements.
    M = TypeVar("M", default=Any)
else:
    from typing import TypeVar

    M = TypeVar("M")


class Evidence(str, enum.Enum):
    """How an outcome was obtained, weakest first. No code may raise the evidence of an outcome."""

    STATIC = "static"
    CPU = "cpu"
    SIMULATED = "simulated"
    HARDWARE = "hardware"

    @property
    def rank(self) -> int:
        """0 for static to 3 for hardware."""
        return list(Evidence).index(self)


class Tier(str, enum.Enum):
    """Tiers of checks by cost; if a cell fails a tier, more expensive tiers are skipped."""

    STATIC = "static"
    BUILD = "build"
    NUMERICS = "numerics"
    CONVERGENCE = "convergence"

    @property
    def rank(self) -> int:
        """0 for static to 3 for convergence."""
        return list(Tier).index(self)


class State(str, enum.Enum):
    """How a task ended. Only `COMPLETED` and `TIMEOUT` are results about the cell."""

    COMPLETED = "completed"
    TIMEOUT = "timeout"
    ERROR = "error"
    INTERRUPTED = "interrupted"


#: The states of tasks that were decided by the cell, not by the machine that ran them.
DECIDED_STATES = frozenset({State.COMPLETED, State.TIMEOUT})


class Status(str, enum.Enum):
    """The status of one check of one cell. A check that did not run is never shown as a pass."""

    PASS = "pass"  # noqa: S105 - a verdict, not a credential
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not-run"
    BLOCKED = "blocked"
    CLAIMED = "claimed"
    STALE = "stale"
    ERROR = "error"

    @property
    def has_evidence(self) -> bool:
        """Whether the check reached a verdict; an outcome without a verdict proves nothing."""
        return self in {Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED}


# Every other module derives its sets from these, so that a new status is unanswered until a set names it.
#: The statuses with a verdict of the check.
ANSWERED = frozenset(status for status in Status if status.has_evidence)
#: The statuses without one: there is no outcome, or it proves nothing.
UNANSWERED = frozenset(Status) - ANSWERED
#: The check was not run, or only a machine that is not believed claims that it was.
UNRUN = frozenset({Status.NOT_RUN, Status.CLAIMED})
#: Nothing about the cell was verified, for a reason that is no failure.
UNVERIFIED = UNRUN | {Status.UNSUPPORTED}
#: The check was run or attempted, and it is open whether the cell passes.
UNDECIDED = frozenset({Status.INCONCLUSIVE, Status.STALE, Status.ERROR})

#: Start of a reason that names versions which a published table does not list.
UNLISTED = "Unlisted: "


def unlisted_reasons(reasons: Iterable[str]) -> tuple[str, ...]:
    """The reasons that name versions which a published table does not list."""
    return tuple(reason for reason in reasons if reason.startswith(UNLISTED))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of many tests of which a check consists. It neither failed nor passed if it was skipped.

    group: the suite. kind, message: why it failed: a class, and the message without what differs from run to
    run.
    """

    group: str
    id: str
    failed: bool
    passed: bool
    kind: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How a check judges its measurements. Reasons and remedies are sentences for the user.

    A reason that starts with `UNLISTED` is not about a failure: reports show it beside a pass.
    cases: of a check whose tests are expected to pass or fail one by one; else empty.
    """

    status: Status
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measured(Generic[M]):
    """The return value of a check's `run`.

    measurements: one of the dataclasses of the check's `MeasurementFormat`. artifacts: name -> file, relative
    to the working folder of the task.
    """

    measurements: M
    evidence: Evidence
    artifacts: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ArtifactRef:
    """A file in the content-addressed store."""

    name: str
    digest: str
    size: int
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a task did not complete: the kind (for example an exception's name), the message, and a remedy."""

    kind: str
    message: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Who measured an outcome.

    host: the fingerprint of the machine that ran the task. runner: the name that the setting `runner` gives
    this machine. version: that of npu-matrix. recorder: the fingerprint of the machine that recorded the
    outcome; another one than `host` if a cluster ran the task.
    """

    host: str
    runner: str = ""
    version: str = ""
    recorder: str = ""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What the ledger that an outcome was read from says about its origin. It is never stored.

    foreign: another machine recorded it. signer: the runner whose signature on it was verified. unsigned: why
    no signature counts, "" if one does or none is needed. claimed: why it is not believed, or "".
    """

    foreign: bool = False
    signer: str = ""
    unsigned: str = ""
    claimed: str = ""


RECORDED_HERE = Trust()


@json_form(leave_out=("trust",))
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One execution of one task, as the ledger stores it. Times are Unix seconds; `attempt` counts from 1.

    facets: facet name -> digest of its value; the values are in the plan. log: the merged output of the task.
    inputs: name of each check whose outcome was an input -> `content_digest` of that outcome; empty in
    outcomes that were stored before this field existed. origin: None in such outcomes too.
    """

    key: str
    check: str
    tier: Tier
    state: State
    evidence: Evidence
    facets: Mapping[str, str]
    measurements: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[ArtifactRef, ...] = ()
    log: ArtifactRef | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    started: float = 0.0
    finished: float = 0.0
    attempt: int = 1
    run_id: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    trust: Trust = field(default=RECORDED_HERE, compare=False)

    @property
    def content_digest(self) -> str:
        """Digest of the artifacts and inputs, which dependent tasks use.

        Outcomes with the same key can differ in this digest: `resolve` writes another lock file when the
        package index has new releases, and `environment` another identity when it was built with another
        interpreter. An outcome therefore records the digests of its inputs.
        """
        return digest_json({"artifacts": {ref.name: ref.digest for ref in self.artifacts}, **self.inputs})

    @property
    def seconds(self) -> float:
        """Wall time of the task."""
        return max(0.0, self.finished - self.started)

    @property
    def files(self) -> tuple[ArtifactRef, ...]:
        """The artifacts and the log."""
        return (*self.artifacts, *([self.log] if self.log else []))

    def artifact(self, name: str) -> ArtifactRef | None:
        """The artifact called `name`, or None."""
        return next((ref for ref in self.artifacts if ref.name == name), None)
