"""Runs jobs on the nodes of an existing Ray cluster that have the resources they need (`plan.tasks.demand`).

Ray only transports jobs and allocates resources. Outcomes are stored in the ledger of this machine when they
arrive, so that the same command resumes a run after this process has died. If a node dies, the outcome of its
jobs is an infrastructure error, and the scheduler runs them on another node. Programs in cells do not see
this cluster.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.builds.ownership.owner_labels import ProcessView, this_process
from harness.builds.ownership.temporary_folders import (
    PREFIX,
    claim_temporary_folder,
    make_temporary_folder,
    remove_orphaned_folders,
    remove_temporary_folder,
)
from harness.cell_program.host_addresses import make_hosts
from harness.check import CellCommand, Check
from harness.code_graph.reachable_code import is_code
from harness.devices.cards.assigned_cards import assigned_cards
from harness.devices.cards.device_nodes import DEV, davinci_numbers
from harness.digest import digest_tree
from harness.errors import InfrastructureError
from harness.ledger.artifacts import ArtifactStore
from harness.outcome import Failure, Outcome, State
from harness.package import PACKAGE_ROOT
from harness.plan.tasks.demand import Demand, applicable_demand, capacity, resource_demand, unmet_reason
from harness.plan.tasks.task import Task
from harness.run.executors.executor import PATIENCE_SECONDS
from harness.run.executors.quarantine import Quarantine
from harness.run.executors.ray_address import FIX, require_listening
from harness.run.executors.several_hosts import joint_outcome
from harness.run.executors.shipment import Delivery, Parcel, pack, run_parcel, unpack
from harness.run.jobs.execute import INFRASTRUCTURE, lost_job_outcome
from harness.run.jobs.job import Job, JobSite
from harness.settings import load_settings
from harness.sources.redact import ESCAPES

NAMESPACE = "npu-matrix"
NODES_REFRESH_SECONDS = 5.0
#: One waiting job for so many running ones of the same demand.
WAITING_SHARE = 4
#: The folders of the repository that jobs may read, in addition to the program.
STAGED_FOLDERS = ("patches",)
#: The cache folder of a node -> how programs are started in cells there.
CellEntry = Callable[[Path], CellCommand | None]
#: The state folder of a node -> the folder of its device nodes, and environment variables for its jobs.
HostEntry = Callable[[Path], tuple[Path, Mapping[str, str]]]


def default_host_entry(_state: Path) -> tuple[Path, Mapping[str, str]]:
    """The devices of a node that is the only one on its host: they are in /dev."""
    return DEV, {}


@dataclass(kw_only=True)
class _RemoteJob:
    """A submitted job. refs: its Ray tasks, one on each of its hosts. ended: those with an outcome.

    addresses: of its hosts, once they are known. unplaced: why the cluster has not enough hosts any more.
    ending_since: when its other hosts were told to end.
    """

    job: Job
    parcel: Any
    demand: Demand
    group: Any = None
    target: str = ""
    cancelled_at: float = 0.0
    refs: tuple[Any, ...] = ()
    addresses: tuple[str, ...] = ()
    ended: list[tuple[int, Outcome]] = field(default_factory=list)
    unplaced: str = ""
    ending_since: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RemoteSite:
    """How a node makes its `JobSite`.

    cell: how programs are started in cells. host: where its devices are; tests simulate several hosts on one
    machine. cache, state: folders, "" for the defaults of the node.
    """

    cell: CellEntry
    host: HostEntry = default_host_entry
    cache: str = ""
    state: str = ""


class RayExecutor:
    """The `harness.run.executors.executor.Executor` for a Ray cluster. Close it to disconnect."""

    def __init__(
        self, artifacts: ArtifactStore, root: Path, remote: RemoteSite, address: str = "auto"
    ) -> None:
        if importlib.util.find_spec("ray"):
            # Importing Ray and copying the checkout take seconds.
            require_listening(address)
        self._ray = _ray()
        self._artifacts = artifacts
        self._remote_jobs: dict[Any, _RemoteJob] = {}
        self._built_on: dict[str, str] = {}
        self._quarantine = Quarantine()
        self._refused: list[Outcome] = []
        self._nodes_read_at = 0.0
        self._nodes: dict[str, Mapping[str, float]] = {}
        self._demands: dict[str, Demand] = {}
        self._room: dict[Demand, int] = {}
        remove_orphaned_folders()
        self._scratch = make_temporary_folder()
        folder = stage_checkout(root, self._scratch / "checkout")
        # The digest of the staged copy, because the checkout may be edited meanwhile.
        self._code = program_digest(folder / PACKAGE_ROOT.name)
        try:
            _connect(self._ray, address, folder)
        except InfrastructureError:
            self._clear()
            raise
        self._site = self._ray.put(remote)
        self._run = self._ray.remote(max_retries=0)(run_on_node)

    @property
    def nodes(self) -> list[Mapping[str, float]]:
        """All resources of each living node; updated every few seconds."""
        return list(self._living().values())

    def _living(self) -> Mapping[str, Mapping[str, float]]:
        """Id -> all resources of each living node. Reading them takes milliseconds."""
        if time.monotonic() - self._nodes_read_at > NODES_REFRESH_SECONDS or not self._nodes_read_at:
            self._nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
            self._nodes_read_at = time.monotonic()
            self._demands.clear()
            self._room.clear()
        return self._nodes

    @property
    def slots(self) -> int:
        """The number of CPUs of the cluster, because every job needs at least one."""
        return max(1, int(sum(node.get("CPU", 0.0) for node in self.nodes)))

    def has_room(self, task: Task, /) -> bool:
        """Whether the cluster can run more jobs with this demand, or a few wait so that no node ever idles.

        `submit` refuses what the cluster can never run.
        """
        demand = self._demand(task)
        if demand not in self._room:
            able = capacity(demand, self.nodes)
            waiting = sum(other.demand == demand for other in self._jobs())
            self._room[demand] = able + able // WAITING_SHARE + 1 - waiting
        return self._room[demand] > 0

    def _demand(self, task: Task) -> Demand:
        nodes = self._living().values()
        if task.key not in self._demands:
            wanted = resource_demand(task.check, task.facets)
            self._demands[task.key] = applicable_demand(wanted, list(nodes))
        return self._demands[task.key]

    def submit(self, job: Job) -> None:
        """Submit the job; Ray starts it when its resources are free.

        If no node can ever satisfy its demand, its outcome is an infrastructure error.
        """
        demand = self._demand(job.task)
        reason = unmet_reason(demand, self.nodes)
        if reason:
            fix = "add such a node, or exclude these cells with --only"
            failure = InfrastructureError(f"{reason}{self._departed()}", fix=fix)
            self._refused.append(lost_job_outcome(job, failure))
            return
        try:
            parcel = pack(job, self._artifacts, self._code)
        except InfrastructureError as error:
            self._refused.append(lost_job_outcome(job, error))
            return
        remote_job = _RemoteJob(job=job, parcel=parcel, demand=demand)
        remote_job.refs = self._launch(remote_job)
        self._remote_jobs.update(dict.fromkeys(remote_job.refs, remote_job))
        self._room[demand] = self._room.get(demand, 1) - 1

    def collect(self, timeout: float) -> list[Outcome]:
        """The outcomes of jobs that ended or whose node was lost."""
        finished, self._refused = self._refused, []
        if not self._remote_jobs:
            return finished
        ready, _ = self._ray.wait(
            list(self._remote_jobs), num_returns=1, timeout=0 if finished else timeout, fetch_local=False
        )
        if ready:
            # Collect all other jobs that have ended by now.
            ready, _ = self._ray.wait(list(self._remote_jobs), num_returns=len(self._remote_jobs), timeout=0)
        for ref in ready:
            remote_job = self._remote_jobs.pop(ref)
            remote_job.ended.append((remote_job.refs.index(ref), self._receive(ref, remote_job)))
            if len(remote_job.ended) == len(remote_job.refs):
                self._room.pop(remote_job.demand, None)
                finished.append(self._joined(remote_job))
        finished += self._watch_hosts()
        self._force_late()
        return finished

    def _joined(self, remote_job: _RemoteJob) -> Outcome:
        """The outcome of a job of which all hosts have ended."""
        if remote_job.group is not None:
            self._ray.util.remove_placement_group(remote_job.group)
        if remote_job.unplaced:
            fix = "see why its host left the cluster, then run again"
            return lost_job_outcome(remote_job.job, InfrastructureError(remote_job.unplaced, fix=fix))
        if len(remote_job.refs) == 1:
            return remote_job.ended[0][1]
        check, hosts = remote_job.job.task.check, len(remote_job.refs)
        return joint_outcome(check, remote_job.ended, remote_job.addresses, hosts)

    def _watch_hosts(self) -> list[Outcome]:
        """End jobs on several hosts of which one has failed, or that cannot have all their hosts any more.

        Otherwise the others wait for it, and Ray waits for a host to be added. The outcomes of jobs of which
        a host does not end either: Ray does not report a task that it cancels while its host disappears.
        """
        given_up = []
        for remote_job in [job for job in self._jobs() if len(job.refs) > 1]:
            if remote_job.ending_since:
                if time.monotonic() - remote_job.ending_since > 2 * PATIENCE_SECONDS:
                    given_up.append(self._given_up(remote_job))
                continue
            if remote_job.cancelled_at:
                continue
            if not remote_job.addresses:
                remote_job.addresses = self._host_addresses(remote_job.group)
            failed = any(outcome.state is not State.COMPLETED for _, outcome in remote_job.ended)
            if not failed:
                reason = unmet_reason(remote_job.demand, self.nodes)
                remote_job.unplaced = reason and f"{reason}{self._departed()}"
            if failed or remote_job.unplaced:
                remote_job.cancelled_at = remote_job.ending_since = time.monotonic()
                for ref in remote_job.refs:
                    if ref in self._remote_jobs:
                        self._ray.cancel(ref, force=False)
        return given_up

    def _given_up(self, remote_job: _RemoteJob) -> Outcome:
        silent = InfrastructureError("its program did not end", fix="see what still runs on this host")
        for index, ref in enumerate(remote_job.refs):
            if self._remote_jobs.pop(ref, None) is not None:
                remote_job.ended.append((index, lost_job_outcome(remote_job.job, silent)))
        self._room.pop(remote_job.demand, None)
        return self._joined(remote_job)

    def _departed(self) -> str:
        """Which nodes have left the cluster, as the end of a sentence."""
        gone = dict.fromkeys(node["NodeManagerAddress"] for node in self._ray.nodes() if not node["Alive"])
        return f"; no longer in the cluster: {', '.join(gone)}" if gone else ""

    def _host_addresses(self, group: Any) -> tuple[str, ...]:
        """The addresses of the hosts of a placement group; empty while it has none."""
        table = self._ray.util.placement_group_table(group)
        if table.get("state") != "CREATED":
            return ()
        return tuple(_ordered_addresses(table, self._ray.nodes()))

    def _jobs(self) -> list[_RemoteJob]:
        """The jobs of which at least one host has not ended."""
        return list({id(job): job for job in self._remote_jobs.values()}.values())

    def last_lines(self) -> Mapping[str, str]:
        """Always empty: logs arrive with the outcomes."""
        return {}

    def cancel(self) -> None:
        """Interrupt running jobs and withdraw waiting ones."""
        for ref, remote_job in self._remote_jobs.items():
            remote_job.cancelled_at = remote_job.cancelled_at or time.monotonic()
            self._ray.cancel(ref, force=False)

    def close(self) -> None:
        """Disconnect from the cluster, which then ends the running jobs."""
        self._remote_jobs.clear()
        self._ray.shutdown()
        self._clear()

    def _clear(self) -> None:
        with contextlib.suppress(OSError):
            remove_temporary_folder(self._scratch)

    def _launch(self, remote_job: _RemoteJob) -> tuple[Any, ...]:
        resources = dict(remote_job.demand.resources)
        options: dict[str, Any] = {"num_cpus": resources.pop("CPU", 1.0), "resources": resources}
        strategies = self._ray.util.scheduling_strategies
        hosts = remote_job.demand.nodes
        if hosts > 1:
            bundles = [dict(remote_job.demand.resources) for _ in range(hosts)]
            remote_job.group = self._ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
            places: list[Any] = [
                strategies.PlacementGroupSchedulingStrategy(
                    placement_group=remote_job.group, placement_group_bundle_index=index
                )
                for index in range(hosts)
            ]
        else:
            target, soft = self._target(remote_job)
            places = [strategies.NodeAffinitySchedulingStrategy(target, soft=soft) if target else None]
        options["name"] = remote_job.job.task.check.name
        return tuple(
            self._run.options(**options, **({"scheduling_strategy": place} if place else {})).remote(
                remote_job.parcel, self._site, index
            )
            for index, place in enumerate(places)
        )

    def _target(self, remote_job: _RemoteJob) -> tuple[str, bool]:
        """The node for the job ("" for any), and whether another node may be used instead.

        It is preferably the node on which its environment was built, because on other nodes it would have to
        be built again. While a node is paused, jobs are assigned to the other nodes by name, and after the
        pause one canary job is assigned to it.
        """
        now, job = time.monotonic(), remote_job.job
        alive = self._living()
        paused = self._quarantine.paused_hosts(alive, now)
        built_on = [
            self._built_on.get(outcome.key, "") for name, outcome in job.inputs.items() if name in job.remakes
        ]
        builder = next((node for node in built_on if node in alive and node not in paused), "")
        if builder or not self._quarantine.records.keys() & alive.keys():
            return builder, True
        suitable = [
            node
            for node in alive
            if node not in paused and not unmet_reason(remote_job.demand, [alive[node]])
        ]
        if not suitable or (not paused and not self._quarantine.awaiting_canary(alive, now)):
            return "", True
        waiting = self._quarantine.awaiting_canary(suitable, now)
        busy = Counter(other.target for other in self._remote_jobs.values())
        target = min(waiting or suitable, key=lambda node: (busy[node] / alive[node].get("CPU", 1.0), node))
        self._quarantine.task_sent(target, now)
        remote_job.target = target
        return target, False

    def _receive(self, ref: Any, remote_job: _RemoteJob) -> Outcome:
        errors = self._ray.exceptions
        try:
            delivery: Delivery = self._ray.get(ref)
            unpack(delivery.files, self._artifacts)
            outcome = delivery.outcome
            failed = outcome.failure is not None and outcome.failure.kind == INFRASTRUCTURE
            self._quarantine.task_ended(delivery.node, healthy=not failed, now=time.monotonic())
            if remote_job.job.task.check.device:
                self._built_on[outcome.key] = delivery.node
        except errors.TaskCancelledError:
            outcome = _interrupted_outcome(remote_job.job)
        except InfrastructureError as error:
            outcome = lost_job_outcome(remote_job.job, error)
        except (errors.RayError, OSError) as error:
            # A node may have gone.
            self._nodes_read_at = 0.0
            outcome = (
                _interrupted_outcome(remote_job.job)
                if remote_job.cancelled_at
                else lost_job_outcome(remote_job.job, _lost_node_error(error))
            )
        return outcome

    def _force_late(self) -> None:
        now = time.monotonic()
        for ref, remote_job in self._remote_jobs.items():
            if remote_job.cancelled_at and now - remote_job.cancelled_at > PATIENCE_SECONDS:
                remote_job.cancelled_at = now
                self._ray.cancel(ref, force=True)


def run_on_node(parcel: Parcel, remote: RemoteSite, index: int = 0) -> Delivery:
    """The function that Ray runs on a node: executes the job in the staged checkout.

    index: of this node among those of the job.
    """
    context = _ray().get_runtime_context()
    node = str(context.get_node_id())
    # Programs in a cell may start their own Ray, which must not connect to this cluster.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    if context.get_placement_group_id():
        job = parcel.job
        environ |= make_hosts(_addresses(context), index, job.task.key, job.attempt).variables()
    # The path, not the working directory: Ray may delete the staged checkout and unpack it again here.
    root = PACKAGE_ROOT.parent
    cache = Path(remote.cache) if remote.cache else load_settings({}, os.environ, root).cache
    state = node_folder(remote.state, node)
    dev, variables = remote.host(state)
    reserved = context.get_accelerator_ids().get("NPU", [])
    site = JobSite(
        root=root,
        state=state,
        cache=cache,
        environ={**environ, **variables},
        cell=remote.cell(cache),
        cards=_cards(parcel.job.task.check, reserved, dev, environ),
        dev=dev,
    )
    return run_parcel(parcel, site, node, _own_digest())


@functools.cache
def node_folder(parent: str, node: str) -> Path:
    """Create the state folder for the jobs of a node, by default in the folder for temporary files.

    Its owner is the parent process, the raylet of the node. After the raylet has ended, the next run on this
    host or `cleanup` removes the folder.
    """
    remove_orphaned_folders()
    owner = ProcessView().owner(os.getppid()) or this_process()
    return claim_temporary_folder(Path(parent or tempfile.gettempdir()) / f"{PREFIX}node-{node[:16]}", owner)


def _cards(check: Check, indices: Sequence[str], dev: Path, environ: Mapping[str, str]) -> tuple[int, ...]:
    """davinci numbers of a job's cards. Like the CANN runtime, Ray numbers the cards that it can see.

    Ray assigns cards to jobs. They are leased in addition, because other programs on the host may not use
    Ray, and because jobs of checks that do not hold cards lease any card of the host.
    """
    nodes = davinci_numbers(dev)
    if not indices and not check.holds_cards:
        assigned = assigned_cards(environ, nodes)
        return assigned.cards if assigned else nodes
    return tuple(nodes[int(index)] if int(index) < len(nodes) else int(index) for index in indices)


def program_digest(package: Path = PACKAGE_ROOT) -> str:
    """Digest of the program's code. A node with other code would store other outcomes under the same keys."""
    return digest_tree(package, (file for file in package.rglob("*") if file.is_file() and is_code(file)))


@functools.cache
def _own_digest() -> str:
    """The digest at the first call: this process does not reload files that change later."""
    return program_digest()


def stage_checkout(root: Path, folder: Path) -> Path:
    """Copy what nodes need to `folder`: the program and the patches, but neither history nor secrets."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(PACKAGE_ROOT, folder / PACKAGE_ROOT.name, ignore=ignored)
    for name in STAGED_FOLDERS:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=ignored)
    return folder


def _addresses(context: Any) -> list[str]:
    """Addresses of the nodes of the job's placement group."""
    ray = _ray()
    return _ordered_addresses(ray.util.placement_group_table()[context.get_placement_group_id()], ray.nodes())


def _ordered_addresses(table: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> list[str]:
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in known}
    nodes = [node for _, node in sorted(table["bundles_to_node_id"].items(), key=lambda pair: int(pair[0]))]
    return [addresses[node] for node in nodes if node in addresses]


def _connect(ray: Any, address: str, folder: Path) -> None:
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            runtime_env={"working_dir": str(folder)},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise InfrastructureError(
            "no Ray cluster can be reached",
            why=str(error).strip().splitlines()[0],
            fix=FIX,
        ) from error


def _interrupted_outcome(job: Job) -> Outcome:
    outcome = lost_job_outcome(job, InfrastructureError("the run was stopped"))
    failure = Failure(kind="Interrupted", message="the run was stopped")
    return replace(outcome, state=State.INTERRUPTED, failure=failure)


def _lost_node_error(error: Exception) -> InfrastructureError:
    lines = [line.strip() for line in ESCAPES.sub("", str(error)).splitlines() if line.strip()]
    why = f"{type(error).__name__}: {lines[-1] if lines else 'without a message'}"
    if isinstance(error, _ray().exceptions.RayTaskError):
        fix = "install the same npu-matrix and the same dependencies on every node"
        return InfrastructureError("the job could not be started on its node", why=why, fix=fix)
    return InfrastructureError(
        "the node of this job was lost, or its process was killed",
        why=why,
        fix="the job runs again on another node; check that node if this happens repeatedly",
    )


def _ray() -> Any:
    try:
        import ray
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InfrastructureError(
            "Ray is not installed here", why=str(error), fix="pip install 'npu-matrix[ray]'"
        ) from error
    return ray
