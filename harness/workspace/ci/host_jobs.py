"""Jobs that run the hardware cells of a plan: Kubernetes, Slurm, compose, or runners of GitHub on Kubernetes;
and the images of the cells for `docker buildx bake`.

The jobs of a plan share a folder: the checkout, which they read, and below it `ledgers`, in which each has
its own state. `npu-matrix ledger merge ledgers/*` collects them. A job asks its host as every run does, so on
a host that is not one of the cell it ends as `not-run`.

Sources: Slurm, "Job Array Support" and "Generic Resource (GRES) Scheduling"; the values of GitHub's chart
gha-runner-scale-set; Kubernetes, "Jobs". Devices and driver files are those of exported cells, see
`harness.builds.export.container_files`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from harness import __version__
from harness.builds.engines.cann_environment import SET_ENV
from harness.builds.export.container_files import (
    PLATFORMS,
    SHARED_MEMORY,
    ContainerOptions,
    compose_parts,
    kubernetes_job,
    npu_resource,
    pod_parts,
)
from harness.builds.lock.base_image import BaseImage, default_base_image
from harness.errors import InputError
from harness.ledger.plan_record import CellFacts
from harness.plan.cost.shards import Shard, make_shards
from harness.plan.keys.facets import NPU_HOST_ARCHITECTURE
from harness.workspace.planning.open_plan import PlanContext
from harness.workspace.planning.plan_history import PlanHistory
from harness.workspace.planning.plan_schedule import seconds_to_run

#: Where containers see the shared folder.
SHARED = "/npu-matrix"
#: The image of GitHub's runner for its chart.
RUNNER_IMAGE = "ghcr.io/actions/actions-runner:latest"
#: Engines that need no container of their own.
IN_CONTAINERS = ("venv", "found")
MERGE = "npu-matrix ledger merge ledgers/*"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z0-9@._+=:/~,-]+")


@dataclass(frozen=True, kw_only=True)
class HostJobOptions:
    """How the jobs run. InputError for a value that cannot stand in a file.

    container: cards, image ("" for that of the cell's CANN), Ascend Docker Runtime, and the name of the NPUs.
    checks: as given to `--check`, or empty. engine: what builds the cells in a job. claim: the persistent
    volume claim with the shared folder.
    partition: of Slurm. repository: for whose workflows runners wait. package: what pip installs.
    """

    profile: str
    container: ContainerOptions = field(default_factory=ContainerOptions)
    engine: str = "venv"
    checks: tuple[str, ...] = ()
    claim: str = "npu-matrix"
    partition: str = ""
    repository: str = "https://github.com/OWNER/REPOSITORY"
    package: str = f"npu-matrix=={__version__}"

    def __post_init__(self) -> None:
        for what, value in (("the claim", self.claim), ("the partition", self.partition or "x")):
            if not _NAME.fullmatch(value):
                raise InputError(
                    f"{what} cannot be {value!r}", fix="use lower-case letters, digits and dashes"
                )
        for what, value in (("the repository", self.repository), ("the package", self.package)):
            if not _PLAIN.fullmatch(value):
                raise InputError(f"{what} cannot be {value!r}", fix="use letters, digits and @._+=:/~,-")


@dataclass(frozen=True, kw_only=True)
class HostJob:
    """One job: its shard, and the SoC, architecture, image and Kubernetes resource of its cells.

    notice: what is to be known about the image, or "".
    """

    shard: Shard
    soc: str
    arch: str
    image: str
    notice: str
    resource: str

    @property
    def name(self) -> str:
        """A name for Kubernetes, compose and folders."""
        return f"npu-matrix-{self.shard.name}"

    def run_arguments(self, options: HostJobOptions) -> list[str]:
        """The arguments of `npu-matrix` that run the shard."""
        selected = [word for cell in self.shard.cells for word in ("--only", cell)]
        named = self.shard.checks or options.checks
        checks = ["--check", ",".join(named)] if named else []
        folder = f"ledgers/{self.name}"
        settings = ["--profile", options.profile, "--engine", options.engine, "--state", folder]
        return [*settings, "run", "--reports", f"{folder}/reports", *selected, *checks]


def host_jobs(
    context: PlanContext, known: PlanHistory, jobs: int, options: HostJobOptions
) -> tuple[HostJob, ...]:
    """At most `jobs` jobs for each SoC, architecture and image that the planned cells on NPUs need.

    InputError if no cell is on an NPU.
    """
    groups: dict[tuple[str, str, BaseImage], list[str]] = {}
    for cell in context.plan.cells:
        if cell.device == "npu":
            groups.setdefault(_host_of(cell, options), []).append(cell.id)
    if not groups:
        raise InputError(
            "no planned cell is on an NPU",
            fix="choose another profile, such as `--profile full`, or other cells with --only",
        )
    seconds = seconds_to_run(context.plan, known)
    found: list[HostJob] = []
    for (soc, arch, image), cells in groups.items():
        for shard in make_shards(context.plan, seconds, jobs, only=cells, cards=options.container.cards):
            found.append(
                HostJob(
                    shard=replace(shard, name=f"{soc}-{len(found) + 1}"),
                    soc=soc,
                    arch=arch,
                    image=image.reference,
                    notice=image.notice,
                    resource=npu_resource(soc, options.container),
                )
            )
    return tuple(found)


def _host_of(cell: CellFacts, options: HostJobOptions) -> tuple[str, str, BaseImage]:
    given = options.container.image
    python = cell.axes.get("python", "")
    image = BaseImage(reference=given) if given else default_base_image(cell.axes, python)
    return cell.axes.get("soc", "a2"), cell.axes.get("arch", NPU_HOST_ARCHITECTURE), image


def as_kubernetes(jobs: Sequence[HostJob], options: HostJobOptions) -> str:
    """A list of Kubernetes Jobs. The claim of the shared folder must exist."""
    return _yaml(
        "kubectl create -f FILE",
        {"apiVersion": "v1", "kind": "List", "items": [_job(job, options) for job in jobs]},
    )


def _job(job: HostJob, options: HostJobOptions) -> dict[str, Any]:
    container, volumes = pod_parts(job.resource, options.container)
    container |= {"name": "run", "image": job.image, "workingDir": SHARED, "command": _command(job, options)}
    container["volumeMounts"].append({"name": "shared", "mountPath": SHARED})
    volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": options.claim}})
    return kubernetes_job(job.name, job.arch, container, volumes, {"app.kubernetes.io/name": "npu-matrix"})


def _command(job: HostJob, options: HostJobOptions) -> list[str]:
    """Set up CANN, install npu-matrix apart from the packages of the image, and run the shard.

    InputError for an engine that needs another container.
    """
    if options.engine not in IN_CONTAINERS:
        raise InputError(
            f"the engine {options.engine} cannot build cells inside of the container of a job",
            fix=f"choose {' or '.join(IN_CONTAINERS)} with --engine",
        )
    script = (
        f"set -eu; {SET_ENV}; environment=$(mktemp -d); python3 -m venv $environment; "
        '$environment/bin/python -m pip install --quiet "$0"; exec $environment/bin/npu-matrix "$@"'
    )
    return ["bash", "-c", script, options.package, *job.run_arguments(options)]


def as_slurm(jobs: Sequence[HostJob], options: HostJobOptions) -> str:
    """A batch script with an array of jobs, for one SoC: InputError for several."""
    socs = sorted({job.soc for job in jobs})
    if len(socs) > 1:
        raise InputError(
            f"the cells need hosts with {' and with '.join(socs)}, and a job array has one kind of host",
            fix="choose the cells of one with --only",
        )
    partition = [f"#SBATCH --partition={options.partition}"] if options.partition else []
    cases = [
        f"  {number}) arguments=({shlex.join(job.run_arguments(options))}) ;;"
        for number, job in enumerate(jobs)
    ]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# sbatch FILE, in the checkout, on a file system that all nodes share; afterwards: {MERGE}",
            "#SBATCH --job-name=npu-matrix",
            f"#SBATCH --array=0-{len(jobs) - 1}",
            "#SBATCH --nodes=1",
            f"#SBATCH --gres=npu:{options.container.cards}",
            "#SBATCH --output=npu-matrix-%A_%a.log",
            *partition,
            "set -eu",
            SET_ENV,
            'case "$SLURM_ARRAY_TASK_ID" in',
            *cases,
            '  *) echo "no such job: $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;',
            "esac",
            "environment=$(mktemp -d)",
            "trap 'rm -rf \"$environment\"' EXIT",
            'python3 -m venv "$environment"',
            f'"$environment/bin/python" -m pip install --quiet {shlex.quote(options.package)}',
            '"$environment/bin/npu-matrix" "${arguments[@]}"',
            "",
        ]
    )


def as_compose(jobs: Sequence[HostJob], options: HostJobOptions) -> str:
    """A compose file with one service for each job; its folder is the checkout."""
    services = {job.name: _service(job, options) for job in jobs}
    usage = "docker compose -f FILE up, one service at a time if the jobs need the same cards"
    return _yaml(usage, {"name": "npu-matrix", "services": services})


def _service(job: HostJob, options: HostJobOptions) -> dict[str, Any]:
    # Compose replaces variables in commands, unless the dollar is doubled.
    command = [word.replace("$", "$$") for word in _command(job, options)]
    service: dict[str, Any] = {
        "image": job.image,
        "platform": f"linux/{PLATFORMS.get(job.arch, job.arch)}",
        "entrypoint": command[:1],
        "command": command[1:],
        "working_dir": SHARED,
        "shm_size": SHARED_MEMORY,
        **compose_parts(options.container),
    }
    return service | {"volumes": [f".:{SHARED}", *service.get("volumes", ())]}


def as_runners(jobs: Sequence[HostJob], options: HostJobOptions) -> str:
    """Values of GitHub's chart gha-runner-scale-set, one document for each kind of runner.

    The name of a runner set is the label that `plan --github N --cards CARDS` gives the jobs.
    """
    sets = {job.shard.label: job for job in jobs}
    documents = [_runner_set(label, job, options) for label, job in sets.items()]
    usage = (
        "helm install NAME oci://ghcr.io/actions/actions-runner-controller-charts/gha-runner-scale-set "
        "-f FILE, for each document; the secret npu-matrix-github has the credentials of the repository"
    )
    return f"# {usage}\n" + yaml.safe_dump_all(documents, sort_keys=False, width=120)


def _runner_set(label: str, job: HostJob, options: HostJobOptions) -> dict[str, Any]:
    container, volumes = pod_parts(job.resource, options.container)
    pod = {
        "nodeSelector": {"kubernetes.io/arch": PLATFORMS.get(job.arch, job.arch)},
        "containers": [
            {"name": "runner", "image": RUNNER_IMAGE, "command": ["/home/runner/run.sh"], **container}
        ],
        "volumes": volumes,
    }
    return {
        "githubConfigUrl": options.repository,
        "githubConfigSecret": "npu-matrix-github",
        "runnerScaleSetName": label,
        "minRunners": 0,
        "maxRunners": 1,
        "template": {"spec": pod},
    }


def _yaml(usage: str, content: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(content), sort_keys=False, width=120)
    return f"# {usage}; afterwards: {MERGE}\n{text}"


def as_bake(jobs: Sequence[HostJob], _options: HostJobOptions) -> str:
    """A file for `docker buildx bake` with one image for each cell, and a group for each SoC.

    The context of an image is `npu-matrix lock CELL --export dockerfile --output images/CELL`.
    """
    targets: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, list[str]]] = {"default": {"targets": []}}
    for job in jobs:
        for cell in job.shard.cells:
            if cell not in targets:
                targets[cell] = {
                    "context": f"${{CONTEXTS}}/{cell}",
                    "platforms": [f"linux/{PLATFORMS.get(job.arch, job.arch)}"],
                    "tags": [f"${{REPOSITORY}}/{cell}:${{TAG}}"],
                    "args": {"REGISTRY": "${REGISTRY}"},
                    "labels": {"npu-matrix.cell": cell},
                }
                groups.setdefault(job.soc, {"targets": []})["targets"].append(cell)
                groups["default"]["targets"].append(cell)
    variables = {"CONTEXTS": "images", "REPOSITORY": "npu-matrix", "TAG": "latest", "REGISTRY": ""}
    content = {
        "variable": {name: {"default": value} for name, value in variables.items()},
        "group": groups,
        "target": targets,
    }
    return json.dumps(content, indent=2) + "\n"


#: Format -> what writes it.
FORMATS: Mapping[str, Callable[[Sequence[HostJob], HostJobOptions], str]] = {
    "kubernetes": as_kubernetes,
    "slurm": as_slurm,
    "compose": as_compose,
    "bake": as_bake,
    "runners": as_runners,
}


def job_lines(jobs: Sequence[HostJob]) -> Iterator[str]:
    """What each job runs, for people."""
    for job in jobs:
        cells = f"{len(job.shard.cells)} cell{'s' if len(job.shard.cells) != 1 else ''}"
        yield f"{job.name}: {cells}, about {job.shard.seconds / 60:.0f} min, {job.image}"
    yield from dict.fromkeys(f"note: {job.notice}" for job in jobs if job.notice)
