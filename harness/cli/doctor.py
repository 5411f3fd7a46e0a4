"""`npu-matrix doctor`: what this host can run, what not, why, and the fix."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import click

from harness.cli.bench import look_at_host
from harness.devices.doctor import Finding, Health, examine
from harness.errors import EXIT_INCOMPLETE
from harness.settings import Settings

#: Two environments of 1.7 GiB each, their downloads, and room to build: measured on the default profile.
NEEDED_BYTES = 8 * 2**30
MARKS = {Health.OK: "ok", Health.LIMITED: "limited", Health.BROKEN: "BROKEN"}


@click.command("doctor", epilog="\b\nExamples:\n  npu-matrix doctor\n  npu-matrix doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, as_json: bool) -> int:
    """Show what this host can run, what not, why, and the fix.

    Exits with 4 when the default profile cannot run here.
    """
    findings = examine(
        look_at_host(),
        zig=importlib.util.find_spec("ziglang") is not None,
        # Environments are in the cache, outcomes in the state folder; these may be two disks.
        free_bytes=min(
            shutil.disk_usage(_existing(folder)).free for folder in (settings.cache, settings.path("state"))
        ),
        needed_bytes=NEEDED_BYTES,
    )
    if as_json:
        click.echo(json.dumps(_report(findings), indent=2))
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            click.echo(f"{finding.topic:<{width}}  {MARKS[finding.health]:<8}{finding.what}")
            if finding.fix:
                click.echo(f"{'':<{width}}  do: {finding.fix}")
    return EXIT_INCOMPLETE if any(finding.health is Health.BROKEN for finding in findings) else 0


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _report(findings: tuple[Finding, ...]) -> dict[str, object]:
    return {
        "schema": {"name": "npu-matrix.doctor", "version": 1},
        "findings": [
            {"topic": finding.topic, "health": finding.health.value, "what": finding.what, "fix": finding.fix}
            for finding in findings
        ],
    }
