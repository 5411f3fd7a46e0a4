"""A check: one question asked of a cell, as the domain rooms declare it and the runner executes it."""

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


class TaskContext(Protocol):
    """All a running check may touch. One implementation runs checks for real, one runs them in tests."""

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
        """A folder shared by all tasks; what is put there must be named by content and appear atomically."""

    def log(self, text: str) -> None:
        """Append a line to the task's log."""

    def artifact(self, check: str, name: str) -> Path:
        """Path of an artifact of a needed check; InfrastructureError when it is gone."""

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
    """One question. `run` has the effects, `judge` is pure and can be repeated over stored measurements.

    measurements: the shapes of what it measures.
    facets: names of the cell's projections the check reads. With `params` and the code that the functions of
        the check can reach (`harness.plan.keys.code_digests`) they make its key.
    needs: checks of the same cell whose outcomes are its inputs; they run first.
    stops: whether a cell that fails it spends no dearer tier; False where the dearer ones do not rest on it.
    device: True when the check runs on the cell's device (npu or sim); without such a device it is not run.
    applies: says why the question makes no sense for facet values of a cell (nothing to ask about), or "".
    holds: says why a stored outcome can no longer be built upon (its environment folder is gone), or "".
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
        """Why a stored outcome can no longer be used (its environment folder is gone), or ""."""
        return self.holds(self.read(outcome), outcome)


def why_not_reusable(check: Check, outcome: Outcome, judgement: Judgement) -> str:
    """Why a stored outcome that answered nothing is asked again, or "".

    "Not run" says what was missing. It is no part of the key, so only the check can say that it is there now.
    """
    if judgement.status is not Status.NOT_RUN:
        return ""
    try:
        return check.outdated(outcome)
    except Exception as error:  # noqa: BLE001 - what cannot even be looked at is asked again
        return f"it cannot be looked at: {error!r}"
