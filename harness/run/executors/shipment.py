"""Packs jobs, outcomes and their files for transport between the machine that runs a plan and its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.digest import digest_bytes
from harness.errors import InfrastructureError
from harness.ledger.artifacts import ArtifactStore
from harness.outcome import Outcome, State
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.execute import lost_job_outcome
from harness.run.jobs.job import Job, JobSite

COLLECT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A job with the files of its inputs. `code` is the digest of the program that packed it."""

    job: Job
    code: str
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The outcome of a job with its files, and the node on which it ran."""

    outcome: Outcome
    files: Mapping[str, bytes]
    node: str


def pack(job: Job, store: ArtifactStore, code: str) -> Parcel:
    """The job with all files that its node needs; InfrastructureError if a file of its inputs is missing."""
    return Parcel(job=job, code=code, files=outcome_files(_inputs(job), store))


def outcome_files(outcomes: Iterable[Outcome], store: ArtifactStore) -> dict[str, bytes]:
    """Digest -> content of each artifact and log of the outcomes."""
    refs = [ref for outcome in outcomes for ref in outcome.files]
    return {ref.digest: store.get(ref).read_bytes() for ref in refs}


def unpack(files: Mapping[str, bytes], store: ArtifactStore) -> None:
    """Store the files; InfrastructureError if one does not match its digest."""
    for digest, data in files.items():
        if digest_bytes(data) != digest:
            raise InfrastructureError(
                f"a file was damaged during the transfer: {digest[:16]}",
                fix="run again; check the network hardware",
            )
        store.put(data, digest)


def run_parcel(parcel: Parcel, site: JobSite, node: str, code: str) -> Delivery:
    """Run a job on this machine, after building its environment if that is on another machine.

    If this machine has another version of the program, the outcome is an infrastructure error.
    """
    job = parcel.job
    if parcel.code != code:
        failure = InfrastructureError(
            f"the version of npu-matrix on node {node} differs from that of the machine that runs the plan",
            fix="install the same version on every node",
        )
        return Delivery(outcome=lost_job_outcome(job, failure), files={}, node=node)
    unpack(parcel.files, site.artifacts)
    job, failed = _with_local_inputs(job, site)
    outcome = failed or run_single_job(job, site)
    return Delivery(outcome=outcome, files=outcome_files([outcome], site.artifacts), node=node)


def run_single_job(job: Job, site: JobSite) -> Outcome:
    """Run one job in a thread and wait for it. An interrupt first stops the programs of the job."""
    executor = LocalExecutor(site, jobs=1)
    executor.submit(job)
    try:
        while True:
            for outcome in executor.collect(COLLECT_SECONDS):
                return outcome
    except BaseException:
        executor.cancel()
        while not executor.collect(COLLECT_SECONDS):
            pass
        raise
    finally:
        executor.close()


def _with_local_inputs(job: Job, site: JobSite) -> tuple[Job, Outcome | None]:
    """The job with inputs that this machine can use, and the outcome of the job if one cannot be made."""
    inputs = dict(job.inputs)
    for name, earlier in job.remakes.items():
        if not earlier.task.check.outdated(inputs[name]):
            continue
        again, failed = _with_local_inputs(earlier, site)
        remade = failed or run_single_job(again, site)
        if remade.state is not State.COMPLETED:
            why = remade.failure.message if remade.failure else remade.state.value
            failure = InfrastructureError(f"its input {name} could not be made on this node", why=why)
            return job, lost_job_outcome(job, failure, log=remade.log)
        inputs[name] = remade
    return replace(job, inputs=inputs), None


def _inputs(job: Job) -> list[Outcome]:
    """The inputs of the job, and those of the jobs that may have to be repeated for it."""
    return [*job.inputs.values(), *(one for earlier in job.remakes.values() for one in _inputs(earlier))]
