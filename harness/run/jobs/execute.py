"""Executes one job. Every job gets an outcome, also if its check raises an exception."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness import __version__
from harness.check import Check
from harness.digest import canonical_json
from harness.disk_full import is_disk_full
from harness.errors import HarnessError, InfrastructureError, InputError, InterruptedRunError
from harness.ledger.attestation.host_identity import host_fingerprint
from harness.ledger.outcome_record import readable
from harness.outcome import ArtifactRef, Evidence, Failure, Measured, Origin, Outcome, State, Tier
from harness.plan.tasks.evidence_bound import strongest_evidence
from harness.plan.tasks.task import Task
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.run.jobs.task_context import RunContext, TaskTimeoutError
from harness.run.jobs.task_environment import environment_unchanged
from harness.serialisation import JsonValue
from harness.settings import RUNNER_VARIABLE
from harness.sources.secrets.masking import Masker

INFRASTRUCTURE = InfrastructureError.__name__
MEDIA_TYPES = {
    ".json": "application/json",
    ".txt": "text/plain",
    ".log": "text/plain",
    ".patch": "text/x-diff",
}
_NOT_WRITABLE = "make the folder writable, or choose another one with --state or --cache"
DISK_FIXES = {
    errno.EROFS: _NOT_WRITABLE,
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
}


def execute(job: Job, site: JobSite, handle: JobHandle | None = None) -> Outcome:
    """Run the check of the job and return its outcome; never raises.

    The state is `TIMEOUT` after the time limit, `INTERRUPTED` if the run was stopped, and `ERROR` after any
    other exception. Only an InfrastructureError may be retried; of other exceptions the traceback is logged.
    """
    started, clock = time.time(), time.monotonic()
    try:
        outcome = _masked_outcome(job, site, handle or JobHandle())
    except BaseException as error:  # noqa: BLE001 - whoever waits for the outcome would wait for ever
        outcome = _outcome(job, State.ERROR, failure=_failure_outside_check(error))
    # The duration is measured with the monotonic clock, because the system clock may be set meanwhile.
    return replace(outcome, started=started, finished=started + time.monotonic() - clock)


def abandoned_job_outcome(
    job: Job, site: JobSite, handle: JobHandle, *, started: float, state: State, message: str, stack: str
) -> Outcome:
    """The outcome of a job that cannot be stopped, because its check computes in this process.

    stack: the current stack of its thread, which is appended to its log.
    """
    log: ArtifactRef | None = None
    if handle.log is not None:
        with contextlib.suppress(HarnessError):
            handle.log.write(f"{message}; its stack:\n{stack}")
            handle.log.close()
            log = site.artifacts.put(handle.log.path, "log", "text/plain")
    failure = Failure(
        kind="Hang",
        message=message,
        fix="change the check to run its work in a separate program, which can be stopped",
    )
    return _outcome(job, state, failure=failure, log=log, started=started, finished=time.time())


def lost_job_outcome(job: Job, error: HarnessError, log: ArtifactRef | None = None) -> Outcome:
    """The outcome of a job that was lost for a reason outside the job."""
    now = time.time()
    outcome = _outcome(job, State.ERROR, failure=_failure(error), log=log, started=now, finished=now)
    return _with_masked_failure(outcome, job, os.environ)


def expected_evidence(task: Task) -> Evidence:
    """The evidence of an outcome without a result of its check: no device has been used for certain."""
    return Evidence.STATIC if task.check.tier is Tier.STATIC else Evidence.CPU


def _masked_outcome(job: Job, site: JobSite, handle: JobHandle) -> Outcome:
    try:
        context = RunContext(job, site, handle)
    except HarnessError as error:
        outcome = _outcome(job, State.ERROR, failure=_failure(error))
    else:
        handle.log = context.task_log
        outcome = _store_log(context, _run(context))
    return _with_masked_failure(outcome, job, {**os.environ, **site.environ})


def _run(context: RunContext) -> Outcome:
    job, task = context.job, context.job.task
    context.log(f"{task.check.name}: {task.check.question}\nkey {task.key}, attempt {context.job.attempt}")
    try:
        cards = context.cards() if task.check.holds_cards else contextlib.nullcontext()
        with environment_unchanged(context), cards:
            measured = task.check.run(context)
        noted = {**measured.environment, **context.permissive_calls().stored()}
        measured = replace(measured, environment=noted)
        _refuse_too_strong_evidence(task, measured)
        measured = _without_secrets(context, _measurements_as_json(task.check, measured))
        artifacts = _store_artifacts(context, measured.artifacts)
        return _outcome(job, State.COMPLETED, measured, artifacts=artifacts)
    except TaskTimeoutError:
        message = f"exceeded its time limit of {task.check.timeout_s:g} s"
        return _outcome(job, State.TIMEOUT, failure=Failure(kind="Timeout", message=message))
    except (InterruptedRunError, KeyboardInterrupt):
        failure = Failure(kind="Interrupted", message="the run was stopped")
        return _outcome(job, State.INTERRUPTED, failure=failure)
    except HarnessError as error:
        _log_quietly(context, str(error))
        return _outcome(job, State.ERROR, failure=_failure(error))
    # A check may also raise SystemExit.
    except BaseException as error:  # noqa: BLE001
        _log_quietly(context, traceback.format_exc())
        return _outcome(job, State.ERROR, failure=_failure(error))


def _store_log(context: RunContext, outcome: Outcome) -> Outcome:
    """Close the context and store its log. A completed task without its log is an infrastructure error."""
    try:
        context.close(completed=outcome.state is State.COMPLETED)
        log = context.site.artifacts.put(context.task_log.path, "log", "text/plain")
        return replace(outcome, log=log)
    except (HarnessError, OSError) as error:
        if outcome.state is State.COMPLETED:
            return _outcome(context.job, State.ERROR, failure=_failure(error))
        return outcome
    finally:
        # Also if the log could not be stored: on a full disk, its space is needed to store the outcome.
        with contextlib.suppress(OSError):
            context.task_log.path.unlink()


def _store_artifacts(context: RunContext, artifacts: Mapping[str, str]) -> tuple[ArtifactRef, ...]:
    folder = context.workdir.resolve()
    stored = []
    for name, file in artifacts.items():
        path = (folder / file).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise ValueError(f"artifact {name!r} is not a file in the task's folder: {file!r}")
        if not context.masker.file(path):
            raise InputError(
                f"the artifact {name!r} is not stored, because it contains a secret of this machine",
                why="the value of a variable or credential file of this machine occurs in it, and only text "
                "can be masked",
                fix="remove the credential from what the task reads, or from this machine's environment",
            )
        media_type = MEDIA_TYPES.get(path.suffix, "application/octet-stream")
        stored.append(context.site.artifacts.put(path, readable(name), media_type))
    return tuple(stored)


def _refuse_too_strong_evidence(task: Task, measured: Measured) -> None:
    strongest = strongest_evidence(task)
    if measured.evidence.rank > strongest.rank:
        raise ValueError(
            f"{task.check.name!r} reports {measured.evidence.value} evidence, "
            f"but its device can give {strongest.value} at most"
        )


def _failure(error: BaseException) -> Failure:
    if isinstance(error, HarnessError):
        problem = error.problems[0]
        of_machine = error.disk_full or isinstance(error, InfrastructureError)
        kind = INFRASTRUCTURE if of_machine else type(error).__name__
        why = f" ({problem.why})" if problem.why else ""
        where = f"{problem.where}: " if problem.where else ""
        return Failure(kind=kind, message=readable(f"{where}{problem.what}{why}"), fix=readable(problem.fix))
    if is_disk_full(error):
        return _failure(InfrastructureError("the disk is full", why=_error_text(error)))
    if isinstance(error, OSError):
        # The disk, a daemon or the network failed, not the packages of the cell.
        fix = DISK_FIXES.get(error.errno or 0, "see the log")
        return Failure(kind=INFRASTRUCTURE, message=readable(f"{type(error).__name__}: {error}"), fix=fix)
    return Failure(kind=type(error).__name__, message=_error_text(error), fix="see the traceback in the log")


def _failure_outside_check(error: BaseException) -> Failure:
    """What failed before or after the check ran, without the text of `error`, which is not masked."""
    name = type(error).__name__
    reason = f" ({os.strerror(error.errno)})" if isinstance(error, OSError) and error.errno else ""
    frames = traceback.extract_tb(error.__traceback__)
    at = f", in line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""
    return Failure(
        kind=INFRASTRUCTURE if isinstance(error, OSError) else name,
        message=f"npu-matrix could not prepare or end the task: {name}{reason}{at}",
        fix="mend what it names on this machine, and run again; else report it as a bug of npu-matrix",
    )


def _error_text(error: BaseException) -> str:
    try:
        return str(readable(str(error)))
    except Exception:  # noqa: BLE001 - str() of the check's exception may itself raise
        return "its message cannot be shown"


def _measurements_as_json(check: Check, measured: Measured) -> Measured[Mapping[str, JsonValue]]:
    """Replace the measurements by their JSON; ValueError or TypeError if they cannot be written as JSON."""
    format_ = check.measurements
    measurements = format_.write(measured.measurements) if format_ else measured.measurements
    environment = measured.environment
    try:
        canonical_json([measurements, environment]).encode()
    except UnicodeEncodeError:
        return replace(measured, measurements=readable(measurements), environment=readable(environment))
    return replace(measured, measurements=measurements)


def _without_secrets(
    context: RunContext, measured: Measured[Mapping[str, JsonValue]]
) -> Measured[Mapping[str, JsonValue]]:
    """The result with masked secrets; the log says so, because the result is judged without them."""
    masked = replace(
        measured,
        measurements=context.masker.json(measured.measurements),
        environment=context.masker.json(measured.environment),
    )
    if masked != measured:
        context.log("note: the measurements contained a secret of this machine, which is masked")
    return masked


def _with_masked_failure(outcome: Outcome, job: Job, environ: Mapping[str, str]) -> Outcome:
    failure = outcome.failure
    if failure is None:
        return outcome
    # Again with the credentials that the machine has now: the task may have taken hours.
    masker = Masker.of_host(environ, job.public_text)
    shown = replace(failure, message=masker.text(failure.message), fix=masker.text(failure.fix))
    return replace(outcome, failure=shown)


def _log_quietly(context: RunContext, text: str) -> None:
    """Log an error. If the error is a full disk, logging it fails too and is ignored."""
    with contextlib.suppress(HarnessError):
        context.log(text)


def _outcome(
    job: Job,
    state: State,
    measured: Measured[Mapping[str, JsonValue]] | None = None,
    *,
    artifacts: tuple[ArtifactRef, ...] = (),
    failure: Failure | None = None,
    log: ArtifactRef | None = None,
    started: float = 0.0,
    finished: float = 0.0,
) -> Outcome:
    return Outcome(
        key=job.task.key,
        check=job.task.check.name,
        tier=job.task.check.tier,
        state=state,
        evidence=measured.evidence if measured else expected_evidence(job.task),
        facets=job.task.facet_digests,
        measurements=measured.measurements if measured else {},
        artifacts=artifacts,
        log=log,
        environment=measured.environment if measured else {},
        failure=failure,
        started=started,
        finished=finished,
        attempt=job.attempt,
        run_id=job.run_id,
        inputs={name: outcome.content_digest for name, outcome in sorted(job.inputs.items())},
        origin=Origin(
            host=host_fingerprint(), runner=os.environ.get(RUNNER_VARIABLE, ""), version=__version__
        ),
    )
