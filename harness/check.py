"""The type of a check, and the interface through which a running check accesses its cell and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, cast

from harness.measurements import MeasurementFormat
from harness.outcome import Judgement, M, Measured, Outcome, State, Status, Tier


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A finished subprocess. `tail` is the end of its merged output. `timed_out`: its time limit ended it."""

    argv: tuple[str, ...]
    returncode: int
    tail: str
    seconds: float
    timed_out: bool = False


class CellCommand(Protocol):
    """Makes the command line that starts a module in a built cell, and the environment variables to add."""

    def __call__(
        self, environment: Outcome, module: str, args: Sequence[str], /, *, on_cpu: bool = False
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """environment: the outcome of the check of that name. on_cpu: without the device of the cell."""


class TaskContext(Protocol):
    """Everything that a running check may access. `run.jobs.task_context` implements it, and so do tests."""

    @property
    def facets(self) -> Mapping[str, Any]:
        """Facet name -> JSON value, for the facets that the check declares."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of the check, which are part of its key."""

    @property
    def inputs(self) -> Mapping[str, Outcome]:
        """Check name -> outcome of each check named in `needs` and `informed_by`."""

    @property
    def root(self) -> Path:
        """The repository's folder. Checks must not write to it."""

    @property
    def workdir(self) -> Path:
        """A folder of this task, empty at first. Artifacts are files in it."""

    @property
    def cache(self) -> Path:
        """A folder shared by all tasks. Files in it are named by their content and written atomically."""

    def log(self, text: str) -> None:
        """Append a line to the task's log."""

    def artifact(self, check: str, name: str) -> Path:
        """Path of an artifact of an input; InfrastructureError if it no longer exists."""

    def command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run a program and write its output to the log. `env` is added to a scrubbed environment.

        A non-zero exit status is returned, not raised. InfrastructureError if the program does not exist.
        """

    def in_cell(
        self,
        module: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_cpu: bool = False,
    ) -> Completed:
        """Run `python -m module args` inside the cell's environment and on its device, or on the CPU."""

    def cards(self) -> AbstractContextManager[None]:
        """Lease the cards of the cell while the `with` block runs, for a check without `holds_cards`."""


@dataclass(frozen=True, kw_only=True)
class Parts(Generic[M]):
    """Parts of a check that are independent of each other, such as the patches of each upstream.

    inputs: part -> what it reads, given the facets of a task. The part "" reads what no other part reads.
    judge: the judgement on a part other than "", given the measurements of the whole check.
    """

    inputs: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    judge: Callable[[M, str], Judgement]


@dataclass(frozen=True, kw_only=True)
class Check(Generic[M]):
    """A test of one property of a cell. `run` measures; `judge` is pure and can judge stored outcomes again.

    measurements: the format of its measurements.
    facets: names of the parts of the cell that the check reads. Its key is computed from their values, from
        `params` and from the code that its functions can reach (`harness.plan.keys.code_digests`).
    needs: checks of the same cell that run first and whose outcomes are inputs of this check.
    informed_by: like `needs`, but this check also runs if they fail.
    stops: whether a failure skips the more expensive tiers of the cell.
    device: whether the check runs on the device of the cell (npu or sim). It is not run without that device.
    holds_cards: whether the task has its cards from its start to its end. False: only inside
        `TaskContext.cards`, because most of its time it does not use the device.
    each_host: whether it runs on all hosts of the cell's recipe at the same time, once on each of them.
    timeout_s, expected_s: time limit, and estimated duration of a check that never ran, in seconds.
    applies: returns why the check does not apply to a cell, given its facet values, or "".
    holds: returns why a stored outcome can no longer be an input (its environment was deleted), or "".
    holds_fully: like `holds`, but reads everything, which takes longer; None: `holds` does.
    altered: returns why a stored outcome no longer describes what exists (a file of its environment was
        edited, a tag was moved), or "". If that was deleted, the outcome is still right, and it returns "".
        None: never.
    parts: its parts, for a gate of a change that modifies some of them while others cannot be run. None: the
        check has no parts.
    """

    name: str
    tier: Tier
    question: str
    facets: tuple[str, ...]
    run: Callable[[TaskContext], Measured[M]]
    judge: Callable[[M, Mapping[str, Any]], Judgement]
    measurements: MeasurementFormat[M] | None = None
    needs: tuple[str, ...] = ()
    informed_by: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    stops: bool = True
    device: bool = False
    holds_cards: bool = True
    each_host: bool = False
    timeout_s: float = 600.0
    expected_s: float = 1.0
    applies: Callable[[Mapping[str, Any]], str] = lambda _facets: ""
    holds: Callable[[M, Outcome], str] = lambda _measurements, _outcome: ""
    holds_fully: Callable[[M, Outcome], str] | None = None
    altered: Callable[[M, Outcome], str] | None = None
    parts: Parts[M] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The checks whose outcomes are inputs of this check."""
        return (*self.needs, *self.informed_by)

    def read(self, outcome: Outcome) -> M:
        """The measurements of an outcome; OldMeasurementsError if another version wrote them."""
        if self.measurements is None:
            return cast("M", outcome.measurements)
        return self.measurements.read(outcome.measurements)

    def outdated(self, outcome: Outcome, *, full: bool = False) -> str:
        """Why a stored outcome can no longer be used (its environment was deleted), or "".

        A task that timed out has measured nothing that can be outdated; one that failed is tried again.
        """
        if outcome.state is State.TIMEOUT:
            return ""
        if outcome.state is not State.COMPLETED:
            failure = outcome.failure
            return (
                f"it did not complete: {failure.kind}: {failure.message}"
                if failure
                else "it did not complete"
            )
        holds = (self.holds_fully if full else None) or self.holds
        return holds(self.read(outcome), outcome)


def why_not_reusable(check: Check, outcome: Outcome, judgement: Judgement) -> str:
    """Why a stored outcome with the status `not-run` must be measured again, or "".

    The key does not include the missing resource, so only the check can tell whether it is available now.
    """
    return why_not_usable(check, outcome) if judgement.status is Status.NOT_RUN else ""


def why_not_usable(check: Check, outcome: Outcome, *, full: bool = False) -> str:
    """Why `outcome` cannot be used any more, or "". If the check raises, its exception is the reason.

    full: read everything that the outcome describes.
    """
    return _examined(lambda: check.outdated(outcome, full=full))


def why_altered(check: Check, outcome: Outcome) -> str:
    """Why `outcome` describes something that was altered since, or ""; see `why_not_usable`."""
    altered = check.altered
    return _examined(lambda: altered(check.read(outcome), outcome)) if altered else ""


def _examined(examine: Callable[[], str]) -> str:
    try:
        return examine()
    except Exception as error:  # noqa: BLE001
        return f"the stored outcome cannot be examined: {error!r}"
