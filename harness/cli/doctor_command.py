"""`npu-matrix doctor`: what this host can run, and how to fix what it cannot."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE
from harness.serialisation import dumps
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.devices.host.host_findings import HostFinding
    from harness.devices.host.host_inspection import HostReport


@click.command(
    "doctor",
    epilog="\b\nExamples:\n  npu-matrix doctor\n  npu-matrix doctor --json\n"
    "  npu-matrix doctor --need NPU --need containers\n"
    '  ray start --head --resources "$(npu-matrix doctor --resources)"',
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--resources", is_flag=True, help='Print the resources of this host for `ray start --resources "$(...)"`.'
)
@click.option(
    "--need",
    multiple=True,
    metavar="TOPIC",
    help='Exit with 4 unless this topic is ok too, for example "NPU"; may be repeated.',
)
@click.pass_obj
def command(settings: Settings, as_json: bool, resources: bool, need: tuple[str, ...]) -> int:
    """Show what this host can run, how to fix what it cannot, and who uses its cards or waits for them.

    Exits with 4 when this host cannot run the default profile, or a topic of --need is not ok, and with 2
    when there is no such topic.
    """
    from harness.devices.host.host_findings import Health
    from harness.workspace.execution.host_readiness import ray_resources
    from harness.workspace.planning.open_plan import inspect_this_host

    host = inspect_this_host()
    if resources:
        click.echo(json.dumps(ray_resources(host)))
        return 0
    findings = examine_this_host(settings, host)
    if as_json:
        click.echo(dumps(_report(findings), indent=2))
    else:
        print_findings(findings)
    missing = _missing(findings, need)
    if missing:
        click.echo(f"required but not ok: {', '.join(missing)}", err=True)
    topics = {finding.topic.lower() for finding in findings}
    if any(topic.lower() not in topics for topic in need):
        click.echo(
            f"  do:  use one of these topics: {', '.join(finding.topic for finding in findings)}", err=True
        )
        return EXIT_BAD_INPUT
    broken = any(finding.health is Health.BROKEN for finding in findings)
    return EXIT_INCOMPLETE if broken or missing else 0


def examine_this_host(settings: Settings, host: HostReport | None = None) -> tuple[HostFinding, ...]:
    """The findings about this host; `host` is used instead of inspecting it again."""
    from harness.devices.cards.card_leases import CardLeases
    from harness.devices.host.card_network import inspect_card_network
    from harness.devices.host.host_findings import examine_host
    from harness.devices.host.host_inspection import HostView
    from harness.workspace.execution.host_readiness import disk_requirements
    from harness.workspace.planning.open_plan import inspect_this_host

    host = host or inspect_this_host()
    return examine_host(
        host,
        zig=importlib.util.find_spec("ziglang") is not None,
        disk=disk_requirements(settings),
        leases=CardLeases.of_host(os.environ).list_leases,
        network=inspect_card_network(HostView(environ=os.environ), host.usable_chips)
        if host.usable_chips
        else None,
    )


def print_findings(findings: tuple[HostFinding, ...]) -> None:
    """Print each finding, and what to do about it."""
    from harness.devices.host.host_findings import Health

    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        mark = "BROKEN" if finding.health is Health.BROKEN else finding.health.value
        click.echo(f"{finding.topic:<{width}}  {mark:<8}{finding.what}")
        if finding.fix:
            click.echo(f"{'':<{width}}  do: {finding.fix}")


def _missing(findings: tuple[HostFinding, ...], need: tuple[str, ...]) -> list[str]:
    """The topics of `need` that are not ok, including unknown topics."""
    from harness.devices.host.host_findings import Health

    limited = {finding.topic.lower() for finding in findings if finding.health is not Health.OK}
    fine = {finding.topic.lower() for finding in findings} - limited
    return [topic for topic in need if topic.lower() not in fine]


def _report(findings: tuple[HostFinding, ...]) -> dict[str, object]:
    return {
        "schema": {"name": "npu-matrix.doctor", "version": 1},
        "findings": findings,
    }
