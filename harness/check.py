"""A check: one question about a cell. Domain packages declare checks, and the runner executes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, cast

from harness.measurements import MeasurementFormat
from harness.outcome import Judgement, M, Measured, Outcome, Status, Tier


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A finished subprocess: exit code, the end of its merged output, and whether its time ran out."""

    argv: tuple[str, ...]
    returncode: int
    tail: str
    seconds: float
    timed_out: bool = False


#: (outcome of the check `environment`, module, its arguments) -> (command line, environment variables to add)
CellCommand = Callable[[Outcome, str, Sequence[str]], tuple[Sequence[str], Mapping[str, str]]]


class TaskContext(Protocol):
    """Everything that a running check may access; tests have an implementation of their own."""

    @property
    def facets(self) -> Mapping[str, Any]:
        """Facet name -> JSON value, exactly the facets the check declares."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The check's parameters, which are part of the key."""

    @property
    def inputs(self) -> Mapping[str, Outcome]:
        """Check name -> outcome of each check named in `needs`."""

    @property
    def root(self) -> Path:
        """The checkout: read only."""

    @property
    def workdir(self) -> Path:
        """An empty private folder; artifacts are files in it."""

    @property
    def cache(self) -> Path:
        """A folder shared by all tasks; files must be named by their content and written atomically."""

    def log(self, text: str) -> None:
        """Append a line to the task's log."""

    def artifact(self, check: str, name: str) -> Path:
        """Path of an artifact of a dependency; InfrastructureError if it no longer exists."""

    def command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run a program, its output streamed into the log; `env` is added to a scrubbed environment.

        A non-zero exit is returned, not raised. InfrastructureError when the program does not exist.
        """

    def in_cell(
        self,
        module: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run `python -m module args` inside the cell's environment and on its device."""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[M]):
    """One question about a cell. `run` measures; `judge` is pure, so it can be repeated on stored outcomes.

    measurements: the format of its measurements.
    facets: names of the parts of the cell that the check reads. They form its key, together with `params` and
        the code that its functions can reach (`harness.plan.keys.code_digests`).
    needs: checks of the same cell whose outcomes are its inputs; they run first.
    stops: whether a failure skips the more expensive tiers of the cell; False if they do not depend on it.
    device: True if the check runs on the device of the cell (npu or sim); it is not run without this device.
    applies: returns why the check does not apply to a cell, given its facet values, or "".
    holds: returns why a stored outcome cannot be an input any more (its environment was deleted), or "".
    """

    name: str
    tier: Tier
    question: str
    facets: tuple[str, ...]
    run: Callable[[TaskContext], Measured[M]]
    judge: Callable[[M, Mapping[str, Any]], Judgement]
    measurements: MeasurementFormat[M] | None = None
    needs: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    stops: bool = True
    device: bool = False
    timeout_s: float = 600.0
    expected_s: float = 1.0
    applies: Callable[[Mapping[str, Any]], str] = lambda _facets: ""
    holds: Callable[[M, Outcome], str] = lambda _measurements, _outcome: ""

    def read(self, outcome: Outcome) -> M:
        """The measurements of an outcome; OldMeasurementsError when another version wrote them."""
        if self.measurements is None:
            return cast("M", outcome.measurements)
        return self.measurements.read(outcome.measurements)

    def outdated(self, outcome: Outcome) -> str:
        """Why a stored outcome can no longer be used (its environment was deleted), or ""."""
        return self.holds(self.read(outcome), outcome)


def why_not_reusable(check: Check, outcome: Outcome, judgement: Judgement) -> str:
    """Why a stored outcome with the status "not run" must be measured again, or "".

    What was missing is not part of the key, so only the check can tell whether it is available now.
    """
    if judgement.status is not Status.NOT_RUN:
        return ""
    try:
        return check.outdated(outcome)
    except Exception as error:  # noqa: BLE001 - an unreadable outcome is measured again
        return f"the stored outcome cannot be examined: {error!r}"
