"""The check `hosts`: collective operations and training steps between all hosts of a cell's recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.cell_program.program_run import ProgramFailure, Unsupported, cell_device, run_in_cell
from harness.check import Check, TaskContext
from harness.errors import InfrastructureError
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.rollout.contact.contact_checks import FACETS, MAX_REASONS
from harness.rollout.contact.contact_measurements import HOSTS_FORMAT, HostsMeasured

TIMEOUT_S = 600.0
REMEDY = (
    "On each host, run `npu-matrix doctor` and `hccn_tool -i CARD -link -g`; the interface of "
    "HCCL_SOCKET_IFNAME must have the address that the other hosts connect to, and no firewall may be "
    "between them."
)


def run(context: TaskContext) -> Measured[HostsMeasured | ProgramFailure]:
    """Take part with the cards of this host; on the simulated device, with those of all hosts."""
    recipe, out = context.facets["recipe"], context.workdir / "hosts.json"
    progress = context.workdir / "progress.txt"
    end = run_in_cell(
        context,
        "harness.rollout.contact.hosts_program",
        *("--hosts", str(recipe["nodes"]), "--cards", str(recipe["cards"]), "--out", str(out)),
        *("--progress", str(progress)),
        out=out,
        progress=progress,
        what="hosts_program",
        timeout=TIMEOUT_S,
        on=cell_device(context),
    )
    if isinstance(end, Unsupported):
        raise InfrastructureError("the hosts could not be tried in the cell", why=end.why)
    if isinstance(end, ProgramFailure):
        # No device was reported, so the only known evidence is that it ran on a CPU.
        return Measured(measurements=end, evidence=Evidence.CPU)
    measured = read_shape(HostsMeasured, out)
    return Measured(
        measurements=measured, evidence=evidence_of(measured.device), artifacts={out.name: out.name}
    )


def judge(measured: HostsMeasured | ProgramFailure, _params: Mapping[str, Any]) -> Judgement:
    """Pass if all operations are exact and the training agrees with the reference on at least two hosts."""
    if isinstance(measured, ProgramFailure):
        where = f" on {measured.during}" if measured.during else ""
        return Judgement(
            status=Status.FAIL,
            reasons=(
                f"The program{where} {measured.ending}.",
                *measured.last_line,
            ),
            remedies=("Read the end of the task's log: `npu-matrix triage LOG` names known causes.", REMEDY),
        )
    wrong = list(_wrong(measured))
    if wrong:
        return Judgement(status=Status.FAIL, reasons=tuple(wrong[:MAX_REASONS]), remedies=(REMEDY,))
    if not measured.results:
        return Judgement(status=Status.INCONCLUSIVE, reasons=("No collective operation was run.",))
    ranks = sum(len(host.devices) for host in measured.hosts)
    reason = (
        f"{len(measured.results)} operations between {ranks} ranks on {len(measured.hosts)} hosts are exact, "
        f"and {measured.training.steps} training steps agree with float64."
    )
    return Judgement(status=Status.PASS, reasons=(reason,))


def _wrong(measured: HostsMeasured) -> Iterator[str]:
    if len(measured.hosts) < 2:
        yield f"The ranks are on {len(measured.hosts)} host, so nothing was sent between hosts."
    if evidence_of(measured.device) is Evidence.HARDWARE:
        for host in measured.hosts:
            if len(set(host.devices)) < len(host.devices):
                yield f"Ranks of the host {host.address} share a card: {', '.join(host.devices)}."
    for one in measured.results:
        if one.wrong:
            yield f"{one.name}: {one.wrong}."
    if measured.training.wrong:
        yield f"The training between the hosts: {measured.training.wrong}."


def applies(facets: Mapping[str, Any]) -> str:
    """Why there are no hosts to connect, or ""."""
    recipe = facets.get("recipe")
    if not recipe:
        return "the cell has no recipe"
    return "" if recipe.get("nodes", 1) > 1 else "the cell's recipe uses one host"


HOSTS = Check(
    name="hosts",
    tier=Tier.NUMERICS,
    question="Are collective operations and training steps between the hosts of this cell's recipe right?",
    facets=(*FACETS, "recipe"),
    run=run,
    judge=judge,
    measurements=HOSTS_FORMAT,
    needs=("environment",),
    device=True,
    each_host=True,
    timeout_s=TIMEOUT_S + 60.0,
    expected_s=40.0,
    applies=applies,
)
