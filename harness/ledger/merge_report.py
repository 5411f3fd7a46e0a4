"""What `ledger merge` took from another ledger, what it does not believe, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from harness.ledger.artifacts import ArtifactStore
from harness.ledger.attestation.statement import Attestation
from harness.outcome import Outcome


class Screen(Protocol):
    """Finds credentials in ledgers of other machines, which must not be copied."""

    def has_credential(self, text: str, /) -> bool:
        """Whether a text contains a credential."""

    def problem(self, outcome: Outcome, attestations: Iterable[Attestation], files: ArtifactStore, /) -> str:
        """Where an outcome, one of its signed statements or one of its files contains a credential, or ""."""

    def text(self, text: str, /) -> str:
        """`text` without credentials."""


@dataclass(frozen=True, kw_only=True)
class ClaimedOutcome:
    """A merged outcome on hardware that is not believed. host: fingerprint of the machine it names."""

    key: str
    check: str
    host: str
    runner: str
    why: str


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """One merged ledger.

    read: its intact outcomes. added: those that are new here. signed: its outcomes that a runner signed.
    claimed: those that are not believed, because no runner signed them, and they state hardware evidence or
    are of a task that only hardware can run. secret: those that contain credentials and were left out.
    secret_runs: the ids of its runs that were left out, because they contain credentials. damaged: its rows
    that were left out. missing_files: names of artifacts that it lacks or that do not match their digests.
    """

    read: int = 0
    added: int = 0
    signed: int = 0
    claimed: tuple[ClaimedOutcome, ...] = ()
    secret: tuple[str, ...] = ()
    secret_runs: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all outcomes and runs in the other ledger could be read and copied."""
        return not self.damaged and not self.secret and not self.secret_runs


def claimed_outcome(outcome: Outcome, why: str) -> ClaimedOutcome:
    """The line of the report about an outcome that is not believed."""
    return ClaimedOutcome(
        key=outcome.key,
        check=outcome.check,
        host=outcome.origin.host if outcome.origin else "",
        runner=outcome.origin.runner if outcome.origin else "",
        why=why,
    )
