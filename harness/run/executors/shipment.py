"""What travels between the machine that runs a plan and those its jobs run on: jobs, outcomes, files."""

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
    """A job with the files its inputs name; `code` is the digest of the program that packed it."""

    job: Job
    code: str
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The outcome of a job, the files it names, and the node it ran on."""

    outcome: Outcome
    files: Mapping[str, bytes]
    node: str


def pack(job: Job, store: ArtifactStore, code: str) -> Parcel:
    """The job ready to travel; InfrastructureError when a file of its inputs is gone."""
    return Parcel(job=job, code=code, files=outcome_files(_inputs(job), store))


def outcome_files(outcomes: Iterable[Outcome], store: ArtifactStore) -> dict[str, bytes]:
    """Digest -> bytes of every file the outcomes name."""
    refs = [ref for outcome in outcomes for ref in outcome.files]
    return {ref.digest: store.get(ref).read_bytes() for ref in refs}


def unpack(files: Mapping[str, bytes], store: ArtifactStore) -> None:
    """Put the files into a store; InfrastructureError when one is not what its digest says."""
    for digest, data in files.items():
        if digest_bytes(data) != digest:
            raise InfrastructureError(
                f"a file was damaged on its way: {digest[:16]}",
                fix="run it again; check the network's hardware",
            )
        store.put(data, digest)


def run_parcel(parcel: Parcel, site: JobSite, node: str, code: str) -> Delivery:
    """Run a job here. What its inputs left on another machine, such as an environment, is made here first.

    An outcome in `State.ERROR` with an infrastructure failure when the program here is another one.
    """
    job = parcel.job
    if parcel.code != code:
        failure = InfrastructureError(
            f"node {node} has another version of npu-matrix than the machine that runs the plan",
            fix="install the same version on every node",
        )
        return Delivery(outcome=lost_job_outcome(job, failure), files={}, node=node)
    unpack(parcel.files, site.artifacts)
    job, failed = _with_inputs_here(job, site)
    outcome = failed or run_single_job(job, site)
    return Delivery(outcome=outcome, files=outcome_files([outcome], site.artifacts), node=node)


def run_single_job(job: Job, site: JobSite) -> Outcome:
    """Run one job in a thread and wait for it; an interrupt stops what it runs before it is passed on."""
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


def _with_inputs_here(job: Job, site: JobSite) -> tuple[Job, Outcome | None]:
    """The job with inputs that hold on this machine, or the outcome of the one that could not be made."""
    inputs = dict(job.inputs)
    for name, earlier in job.remakes.items():
        if not earlier.task.check.outdated(inputs[name]):
            continue
        again, failed = _with_inputs_here(earlier, site)
        made = failed or run_single_job(again, site)
        if made.state is not State.COMPLETED:
            why = made.failure.message if made.failure else made.state.value
            failure = InfrastructureError(f"its {name} could not be made on this node", why=why)
            return job, lost_job_outcome(job, failure, log=made.log)
        inputs[name] = made
    return replace(job, inputs=inputs), None


def _inputs(job: Job) -> list[Outcome]:
    return [*job.inputs.values(), *(one for earlier in job.remakes.values() for one in _inputs(earlier))]
