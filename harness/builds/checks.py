"""The check `environment`. Planning imports this module, so it imports little; running imports the rest."""

from __future__ import annotations

from dataclasses import replace

from harness.builds.cell.environment_judge import judge
from harness.cell_program.built_environment import (
    ENVIRONMENT_FORMAT,
    EnvironmentBuilt,
    EnvironmentNotBuilt,
)
from harness.check import Check, TaskContext
from harness.outcome import Measured, Outcome, Tier


def _run_environment(ctx: TaskContext) -> Measured[EnvironmentBuilt | EnvironmentNotBuilt]:
    if ctx.facets["device"].get("found"):
        from harness.builds.cell import found_environment

        return found_environment.run(ctx)
    if "engine" in ctx.facets["device"]:
        from harness.builds.cell import container_environment

        return container_environment.run(ctx)
    from harness.builds.cell import venv_environment

    return venv_environment.run(ctx)


def _environment_holds(measurements: EnvironmentBuilt | EnvironmentNotBuilt, outcome: Outcome) -> str:
    return _why_changed(measurements, outcome, full=False)


def _environment_holds_fully(measurements: EnvironmentBuilt | EnvironmentNotBuilt, outcome: Outcome) -> str:
    return _why_changed(measurements, outcome, full=True)


def _why_changed(
    measurements: EnvironmentBuilt | EnvironmentNotBuilt, outcome: Outcome, *, full: bool
) -> str:
    from harness.builds.cell import environment_files

    if isinstance(measurements, EnvironmentNotBuilt):
        return _why_possible_now(measurements)
    if measurements.differences is not None:
        from harness.builds.cell import found_environment

        changed = found_environment.holds(measurements)
    elif measurements.container is not None:
        from harness.builds.cell import container_environment

        changed = container_environment.holds(measurements, measurements.container, full=full)
    else:
        from harness.builds.cell import venv_environment

        changed = venv_environment.holds(measurements, full=full)
    if changed or _is_foreign(outcome):
        return changed
    return environment_files.why_host_changed(measurements, full=full, running=True)


def _why_possible_now(measurements: EnvironmentNotBuilt) -> str:
    """Why a build that this host could not begin is tried again, or "" for one that failed."""
    from harness.builds.cell.host_requirements import still_lacks

    if not measurements.unsupported or still_lacks(measurements.lacks):
        return ""
    return "this host may have now what it lacked"


def _environment_altered(measurements: EnvironmentBuilt | EnvironmentNotBuilt, outcome: Outcome) -> str:
    if isinstance(measurements, EnvironmentNotBuilt):
        return ""
    from harness.builds.cell import environment_files

    return environment_files.altered(measurements, foreign=_is_foreign(outcome))


def as_found(check: Check) -> Check:
    """The check for environments that are used as they were found: they need no lock and no patched files."""
    return replace(check, needs=()) if check.name == "environment" else check


def _is_foreign(outcome: Outcome) -> bool:
    """Whether another machine measured it: a worker of a cluster may share its cache with this machine."""
    from harness.ledger.attestation.host_identity import host_fingerprint

    return outcome.trust.foreign or (outcome.origin is not None and outcome.origin.host != host_fingerprint())


CHECKS: tuple[Check, ...] = (
    Check(
        name="environment",
        tier=Tier.BUILD,
        question="Can the environment be built from its lock, and does it have the locked and patched files?",
        facets=(
            "pins",
            "platform",
            "verl_tree",
            "patches[verl]",
            "patches[vllm_ascend]",
            "patches[others]",
            "device",
        ),
        needs=("resolve", "patches"),
        device=True,
        holds_cards=False,
        measurements=ENVIRONMENT_FORMAT,
        run=_run_environment,
        judge=judge,
        holds=_environment_holds,
        holds_fully=_environment_holds_fully,
        altered=_environment_altered,
        timeout_s=1800.0,
        expected_s=30.0,
    ),
)
