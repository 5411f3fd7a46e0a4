"""Executes one job; there is always an outcome, even if the check fails in an unforeseen way."""

from __future__ import annotations

import contextlib
import errno
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.check import Check
from harness.digest import canonical_json
from harness.errors import HarnessError, InfrastructureError, InterruptedRunError
from harness.ledger.outcome_record import readable
from harness.outcome import ArtifactRef, Evidence, Failure, Measured, Outcome, State, Tier
from harness.plan.tasks.task import Task
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.run.jobs.task_cards import task_cards_leased
from harness.run.jobs.task_context import RunContext, TaskTimeoutError

# The strongest evidence each kind of device can give.
DEVICE_EVIDENCE = {"sim": Evidence.SIMULATED, "npu": Evidence.HARDWARE, "cpu": Evidence.CPU}
INFRASTRUCTURE = InfrastructureError.__name__
_DISK_FULL = "free space, or choose other folders with --state and --cache"
_NOT_WRITABLE = "make the folder writable, or choose another one with --state or --cache"
DISK_FIXES = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EROFS: _NOT_WRITABLE,
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
}


@dataclass(frozen=True, kw_only=True)
class _Result:
    state: State
    measured: Measured[Mapping[str, Any]]
    artifacts: tuple[ArtifactRef, ...] = ()
    failure: Failure | None = None


def execute(job: Job, site: JobSite, handle: JobHandle | None = None) -> Outcome:
    """Run the check of the job and return its outcome; never raises.

    InfrastructureError becomes `State.ERROR` (and is what may be retried), running out of time
    `State.TIMEOUT`, being stopped `State.INTERRUPTED`, everything else `State.ERROR` with its traceback in
    the log.
    """
    handle = handle or JobHandle()
    started, clock = time.time(), time.monotonic()
    log: ArtifactRef | None = None
    try:
        context = RunContext(job, site, handle)
    except HarnessError as error:
        result = _failed(job.task, State.ERROR, _failure(error))
    else:
        handle.log = context.task_log
        result = _run(context)
        result, log = _closed(context, result)
    # The length comes from the monotonic clock: somebody may set the other one meanwhile.
    return _outcome(job, result, log, started, started + time.monotonic() - clock)


def abandoned_job_outcome(
    job: Job, site: JobSite, handle: JobHandle, *, started: float, state: State, message: str, stack: str
) -> Outcome:
    """The outcome of a job that cannot be ended: it computes in this process and never looks up.

    `stack` is where it was last seen, and ends its log.
    """
    log: ArtifactRef | None = None
    if handle.log is not None:
        with contextlib.suppress(HarnessError):
            handle.log.write(f"{message}; it is here:\n{stack}")
            handle.log.close()
            log = site.artifacts.put(handle.log.path, "log", "text/plain")
    failure = Failure(
        kind="Hang",
        message=message,
        fix="let the check do its work in a separate program, which can be stopped",
    )
    return _outcome(job, _failed(job.task, state, failure), log, started, time.time())


def lost_job_outcome(job: Job, error: HarnessError, log: ArtifactRef | None = None) -> Outcome:
    """The outcome of a job that was lost for a reason outside the job."""
    now = time.time()
    return _outcome(job, _failed(job.task, State.ERROR, _failure(error)), log, now, now)


def expected_evidence(task: Task) -> Evidence:
    """What an outcome proves whose check handed nothing back: no device has reported itself."""
    return Evidence.STATIC if task.check.tier is Tier.STATIC else Evidence.CPU


def strongest_evidence(task: Task) -> Evidence:
    """No outcome of the task may claim more than this: that of its device, CPU where it has none."""
    device = task.facets.get("device")
    kind = device.get("kind", "") if isinstance(device, Mapping) else ""
    return DEVICE_EVIDENCE.get(kind, Evidence.CPU)


def _run(context: RunContext) -> _Result:
    task = context.job.task
    context.log(f"{task.check.name}: {task.check.question}\nkey {task.key}, attempt {context.job.attempt}")
    try:
        with task_cards_leased(context):
            measured = task.check.run(context)
        _refuse_promotion(task, measured)
        measured = _storable(task.check, measured)
        return _Result(
            state=State.COMPLETED, measured=measured, artifacts=_stored(context, measured.artifacts)
        )
    except TaskTimeoutError:
        message = f"ran into its limit of {task.check.timeout_s:g} s"
        return _failed(task, State.TIMEOUT, Failure(kind="Timeout", message=message))
    except (InterruptedRunError, KeyboardInterrupt):
        return _failed(task, State.INTERRUPTED, Failure(kind="Interrupted", message="the run was stopped"))
    except HarnessError as error:
        _log_quietly(context, str(error))
        return _failed(task, State.ERROR, _failure(error))
    # A check is code of many hands; SystemExit is among what it may raise.
    except BaseException as error:  # noqa: BLE001
        _log_quietly(context, traceback.format_exc())
        return _failed(task, State.ERROR, _failure(error))


def _closed(context: RunContext, result: _Result) -> tuple[_Result, ArtifactRef | None]:
    """Store the log; an outcome whose log cannot be kept is an infrastructure error, not a result."""
    try:
        context.close(completed=result.state is State.COMPLETED)
        return result, context.site.artifacts.put(context.task_log.path, "log", "text/plain")
    except (HarnessError, OSError) as error:
        if result.state is State.COMPLETED:
            result = _failed(context.job.task, State.ERROR, _failure(error))
        return result, None
    finally:
        # Also when it could not be stored: a disk full of log has no room for the outcome that says so.
        with contextlib.suppress(OSError):
            context.task_log.path.unlink()


def _stored(context: RunContext, artifacts: Mapping[str, str]) -> tuple[ArtifactRef, ...]:
    folder = context.workdir.resolve()
    stored = []
    for name, file in artifacts.items():
        path = (folder / file).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise ValueError(f"artifact {name!r} is no file in the task's folder: {file!r}")
        stored.append(context.site.artifacts.put(path, readable(name), _media_type(path)))
    return tuple(stored)


def _media_type(path: Path) -> str:
    known = {".json": "application/json", ".txt": "text/plain", ".log": "text/plain", ".patch": "text/x-diff"}
    return known.get(path.suffix, "application/octet-stream")


def _refuse_promotion(task: Task, measured: Measured) -> None:
    strongest = strongest_evidence(task)
    if measured.evidence.rank > strongest.rank:
        raise ValueError(
            f"{task.check.name!r} claims {measured.evidence.value} evidence, "
            f"and its device can give {strongest.value} at most"
        )


def _failed(task: Task, state: State, failure: Failure) -> _Result:
    nothing: Measured[Mapping[str, Any]] = Measured(measurements={}, evidence=expected_evidence(task))
    return _Result(state=state, measured=nothing, failure=failure)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, HarnessError):
        problem = error.problems[0]
        kind = INFRASTRUCTURE if isinstance(error, InfrastructureError) else type(error).__name__
        why = f" ({problem.why})" if problem.why else ""
        place = f"{problem.where}: " if problem.where else ""
        return Failure(kind=kind, message=readable(f"{place}{problem.what}{why}"), fix=readable(problem.fix))
    if isinstance(error, OSError):
        # The disk, a daemon, the network: nothing a cell's packages could be blamed for.
        fix = DISK_FIXES.get(error.errno or 0, "see the log")
        return Failure(kind=INFRASTRUCTURE, message=readable(f"{type(error).__name__}: {error}"), fix=fix)
    return Failure(kind=type(error).__name__, message=_error_text(error), fix="see the traceback in the log")


def _error_text(error: BaseException) -> str:
    try:
        return str(readable(str(error)))
    except Exception:  # noqa: BLE001 - an error whose text fails is one of the check all the same
        return "its message cannot be shown"


def _storable(check: Check, measured: Measured) -> Measured[Mapping[str, Any]]:
    """The same with its measurements as JSON; ValueError or TypeError when they are no JSON."""
    format_ = check.measurements
    measurements = format_.write(measured.measurements) if format_ else measured.measurements
    environment = measured.environment
    try:
        canonical_json([measurements, environment]).encode()
    except UnicodeEncodeError:
        return replace(measured, measurements=readable(measurements), environment=readable(environment))
    return replace(measured, measurements=measurements)


def _log_quietly(context: RunContext, text: str) -> None:
    """Log what went wrong; when that is a full disk, the log cannot be told of it."""
    try:
        context.log(text)
    except HarnessError:
        return


def _outcome(job: Job, result: _Result, log: ArtifactRef | None, started: float, finished: float) -> Outcome:
    return Outcome(
        key=job.task.key,
        check=job.task.check.name,
        tier=job.task.check.tier,
        state=result.state,
        evidence=result.measured.evidence,
        facets=job.task.facet_digests,
        measurements=result.measured.measurements,
        artifacts=result.artifacts,
        log=log,
        environment=result.measured.environment,
        failure=result.failure,
        started=started,
        finished=finished,
        attempt=job.attempt,
        run_id=job.run_id,
        inputs={name: outcome.content_digest for name, outcome in sorted(job.inputs.items())},
    )
