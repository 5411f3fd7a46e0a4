"""Who measured an outcome, where, when, on what lock, and why it is believed or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from harness.outcome import Origin, Outcome, Trust
from harness.report.model.report_inputs import ReportResult

LOCK, ENVIRONMENT = "resolve", "environment"
SHORT = 12


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of an outcome, in words; "" for what is not recorded.

    lock: the beginning of the digest of the resolved packages that it was measured with. lock_today: whether
    these are the packages of this report's lock. made_from: other checks whose outcomes were inputs.
    """

    machine: str
    version: str
    trust: str
    run_id: str
    lock: str
    lock_today: bool
    made_from: tuple[tuple[str, str], ...] = ()


def provenance(result: ReportResult, others: Mapping[str, ReportResult]) -> Provenance | None:
    """The origin of the outcome of a check; None without an outcome. others: the results of the same cell."""
    outcome = result.verdict.outcome
    if outcome is None:
        return None
    lock = _lock_of(outcome, others)
    resolved = _outcome_of(LOCK, others)
    today = bool(lock) and resolved is not None and resolved.content_digest == lock
    inputs = tuple(outcome.inputs.items())
    return _provenance(outcome.origin, outcome.trust, outcome.run_id, lock, today, inputs)


@lru_cache(maxsize=16_384)
def _provenance(
    origin: Origin | None,
    trust: Trust,
    run_id: str,
    lock: str,
    lock_today: bool,
    inputs: tuple[tuple[str, str], ...],
) -> Provenance:
    """The words; cached, because many outcomes of a run have the same origin."""
    return Provenance(
        machine=_machine(origin) if origin else "",
        version=origin.version if origin else "",
        trust=_trust(trust),
        run_id=run_id,
        lock=lock[:SHORT],
        lock_today=lock_today,
        made_from=tuple((name, digest[:SHORT]) for name, digest in inputs if name != LOCK),
    )


def _machine(origin: Origin) -> str:
    host = origin.host[:SHORT]
    return f"{origin.runner} ({host})" if origin.runner else host


def _trust(trust: Trust) -> str:
    if trust.claimed:
        return f"claimed, not believed: {trust.claimed}"
    if trust.signer:
        return f"signed by the runner {trust.signer}"
    return "another machine, not signed" if trust.foreign else "this machine, so no signature is needed"


def _lock_of(outcome: Outcome, others: Mapping[str, ReportResult]) -> str:
    """The digest of the resolved packages: of this outcome, or of the environment that it was measured in."""
    if outcome.check == LOCK:
        return outcome.content_digest
    if LOCK in outcome.inputs:
        return outcome.inputs[LOCK]
    environment = _outcome_of(ENVIRONMENT, others)
    if environment is None or ENVIRONMENT not in outcome.inputs:
        return ""
    if environment.content_digest != outcome.inputs[ENVIRONMENT]:
        return ""
    return environment.inputs.get(LOCK, "")


def _outcome_of(check: str, others: Mapping[str, ReportResult]) -> Outcome | None:
    return others[check].verdict.outcome if check in others else None
