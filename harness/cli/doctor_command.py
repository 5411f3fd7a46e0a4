"""`npu-matrix doctor`: what this host can run, what not, why, and the fix."""

from __future__ import annotations

import importlib.util
import json
import os
import platform

import click

from harness.builds.cell.disk_space import free_bytes
from harness.devices.cards.card_leases import CardLeases
from harness.devices.host.host_findings import DiskSpace, Health, HostFinding, examine_host
from harness.devices.host.inventory import HostReport, HostView, inspect_card_network
from harness.errors import EXIT_INCOMPLETE
from harness.settings import Settings
from harness.workspace.open_plan import look_at_host

#: Two environments of 1.7 GiB each, their downloads, and room to build: measured on the default profile.
NEEDED_BYTES = 8 * 2**30
#: Two images, 3.4 GB together, and the largest layer, 0.9 GB, twice while it is stored (benchmarks/builds).
NEEDED_FOR_IMAGES = 5 * 2**30
MARKS = {Health.OK: "ok", Health.LIMITED: "limited", Health.BROKEN: "BROKEN"}


@click.command(
    "doctor",
    epilog="\b\nExamples:\n  npu-matrix doctor\n  npu-matrix doctor --json\n"
    "  npu-matrix doctor --need NPU --need containers\n"
    '  ray start --head --resources "$(npu-matrix doctor --resources)"',
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--resources", is_flag=True, help='Print what to start a Ray node with: ray start --resources "$(...)".'
)
@click.option(
    "--need", multiple=True, metavar="TOPIC", help='Exit with 4 unless this is ok too, "NPU" for example.'
)
@click.pass_obj
def command(settings: Settings, as_json: bool, resources: bool, need: tuple[str, ...]) -> int:
    """Show what this host can run, what not, why, and the fix; who has its cards, and who waits for some.

    Exits with 4 when the default profile cannot run here, or something of --need.
    """
    host = look_at_host()
    if resources:
        click.echo(json.dumps(_resources(host)))
        return 0
    findings = examine_host(
        host,
        zig=importlib.util.find_spec("ziglang") is not None,
        room=_room(settings),
        leases=CardLeases.of_host(os.environ).list_leases(),
        network=inspect_card_network(HostView(environ=os.environ), host.usable_chips) if host.npu else None,
    )
    if as_json:
        click.echo(json.dumps(_report(findings), indent=2))
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            click.echo(f"{finding.topic:<{width}}  {MARKS[finding.health]:<8}{finding.what}")
            if finding.fix:
                click.echo(f"{'':<{width}}  do: {finding.fix}")
    missing = _missing(findings, need)
    if missing:
        click.echo(f"needed and not ok: {', '.join(missing)}", err=True)
    told = {finding.topic.lower() for finding in findings}
    if any(topic.lower() not in told for topic in need):
        click.echo(f"  do:  need one of: {', '.join(finding.topic for finding in findings)}", err=True)
    broken = any(finding.health is Health.BROKEN for finding in findings)
    return EXIT_INCOMPLETE if broken or missing else 0


def _room(settings: Settings) -> DiskSpace:
    return DiskSpace(
        # Environments are in the cache, outcomes in the state folder; these may be two disks.
        free=min(free_bytes(folder) for folder in (settings.cache, settings.path("state"))),
        needed=NEEDED_BYTES,
        free_on=free_bytes,
        images=NEEDED_FOR_IMAGES,
        engine=settings["engine"],
    )


def _missing(findings: tuple[HostFinding, ...], need: tuple[str, ...]) -> list[str]:
    """Topics of `need` that are not ok; one that nothing is told of is not either."""
    limited = {finding.topic.lower() for finding in findings if finding.health is not Health.OK}
    fine = {finding.topic.lower() for finding in findings} - limited
    return [topic for topic in need if topic.lower() not in fine]


def _resources(host: HostReport) -> dict[str, float]:
    """Markers of `harness.plan.cost.demand`; Ray counts CPUs by itself, and cards where pyACL is at hand."""
    found: dict[str, float] = {f"arch:{platform.machine()}": 1}
    if host.usable_chips:
        found["NPU"] = len(host.usable_chips)
        found |= {f"soc:{host.soc}": 1} if host.soc else {}
        found |= {f"cann:{host.cann}": 1} if host.cann else {}
    return found


def _report(findings: tuple[HostFinding, ...]) -> dict[str, object]:
    return {
        "schema": {"name": "npu-matrix.doctor", "version": 1},
        "findings": [
            {"topic": finding.topic, "health": finding.health.value, "what": finding.what, "fix": finding.fix}
            for finding in findings
        ],
    }
