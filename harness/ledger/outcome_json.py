"""Outcomes as JSON: what stands in the ledger, and what is exchanged between ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.digest import digest_json
from harness.outcome import ArtifactRef, Evidence, Failure, Outcome, State, Tier


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """`outcome` as a JSON object; ValueError or TypeError when a measurement is no JSON (NaN is none)."""
    data = {
        "key": outcome.key,
        "check": outcome.check,
        "tier": outcome.tier.value,
        "state": outcome.state.value,
        "evidence": outcome.evidence.value,
        "facets": dict(outcome.facets),
        "measurements": dict(outcome.measurements),
        "artifacts": [asdict(ref) for ref in outcome.artifacts],
        "log": asdict(outcome.log) if outcome.log else None,
        "environment": dict(outcome.environment),
        "failure": asdict(outcome.failure) if outcome.failure else None,
        "started": outcome.started,
        "finished": outcome.finished,
        "attempt": outcome.attempt,
        "run_id": outcome.run_id,
    }
    # Outcomes of before this was recorded keep their identity.
    return {**data, "inputs": dict(outcome.inputs)} if outcome.inputs else data


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """The outcome in `data`; KeyError, TypeError or ValueError when it is not one."""
    log, failure = data["log"], data["failure"]
    return Outcome(
        key=data["key"],
        check=data["check"],
        tier=Tier(data["tier"]),
        state=State(data["state"]),
        evidence=Evidence(data["evidence"]),
        facets=data["facets"],
        measurements=data["measurements"],
        artifacts=tuple(ArtifactRef(**ref) for ref in data["artifacts"]),
        log=ArtifactRef(**log) if log else None,
        environment=data["environment"],
        failure=Failure(**failure) if failure else None,
        started=data["started"],
        finished=data["finished"],
        attempt=data["attempt"],
        run_id=data["run_id"],
        inputs=data.get("inputs", {}),
    )


def outcome_uid(data: Mapping[str, Any]) -> str:
    """Identity of one execution, the same in every ledger it is merged into (which may number it anew)."""
    return digest_json({name: value for name, value in data.items() if name != "attempt"})


def readable(value: Any) -> Any:
    """A JSON value whose texts show bytes that are not UTF-8 (of a file's name, say) as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {readable(name): readable(one) for name, one in value.items()}
    return [readable(one) for one in value] if isinstance(value, (list, tuple)) else value
