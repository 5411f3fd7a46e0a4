"""Signs the hardware outcomes that this machine measured, so that other machines believe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, Location, did_you_mean
from harness.ledger.attestation.ssh_keygen import Signer, sign
from harness.ledger.attestation.statement import Attestation, make_statement
from harness.ledger.plan_record import TaskRecord
from harness.ledger.store import Ledger
from harness.outcome import DECIDED_STATES, Evidence, Outcome, Status
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.evidence_bound import strongest_evidence
from harness.plan.tasks.task import Task
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger, runner_signers


@dataclass(frozen=True, kw_only=True)
class SigningReport:
    """The outcomes that were signed now, those that had a valid signature, and why others were not signed."""

    signed: tuple[Outcome, ...] = ()
    signed_before: tuple[Outcome, ...] = ()
    refused: tuple[tuple[Outcome, str], ...] = ()


def sign_outcomes(
    settings: Settings, key_file: Path, runner: str, signers: Mapping[str, Signer] | None = None
) -> SigningReport:
    """Sign every outcome of hardware that this machine recorded and that has no valid signature yet.

    signers: the runners with their public keys, by default those that matrix.yaml names. InputError if they
    have no key of the runner, or if ssh-keygen cannot use the key. InfrastructureError if ssh-keygen is not
    installed.
    """
    signers = runner_signers(settings) if signers is None else signers
    if runner not in signers:
        raise InputError(
            f"matrix.yaml names no key of the runner {runner!r}",
            fix=did_you_mean(runner, signers)
            if signers
            else "add the runner with its public key: "
            "runners: {NAME: {title: ..., kind: local, devices: [npu], soc: [a2], keys: [...]}}",
        )
    signed: list[Outcome] = []
    signed_before: list[Outcome] = []
    refused: list[tuple[Outcome, str]] = []
    with open_ledger(settings, lambda: signers) as ledger:
        recorded = _Recorded(ledger)
        for outcome in recorded.measured_here():
            if ledger.signer_of(outcome) == runner:
                signed_before.append(outcome)
                continue
            why = _sign(ledger, recorded, outcome, key_file, signers[runner])
            if why:
                refused.append((outcome, why))
            else:
                signed.append(outcome)
    return SigningReport(signed=tuple(signed), signed_before=tuple(signed_before), refused=tuple(refused))


def own_signer(runner: str, key_file: Path, tasks: Iterable[Task]) -> Signer:
    """The runner of this host, whose matrix.yaml need not name it. tasks: name the SoC of its NPUs.

    InputError if the public key is not beside the private key.
    """
    public = key_file if key_file.suffix == ".pub" else key_file.with_name(f"{key_file.name}.pub")
    try:
        key = " ".join(public.read_text("utf-8").split()[:2])
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the public key cannot be read",
            where=Location(public),
            why=str(error),
            fix=f"ssh-keygen -y -f {key_file} > {public}",
        ) from error
    devices = [task.facets.get("device") for task in tasks]
    socs = frozenset(str(device.get("soc", "")) for device in devices if isinstance(device, Mapping))
    return Signer(name=runner, keys=(key,), socs=socs)


def _sign(ledger: Ledger, recorded: _Recorded, outcome: Outcome, key_file: Path, signer: Signer) -> str:
    """Sign and store; returns why other machines would not believe the signature, or ""."""
    task = recorded.task_of(outcome)
    if task is None:
        return "the plan of its run is not in this ledger"
    statement = make_statement(
        outcome,
        _status(outcome),
        runner=signer.name,
        device=task.facets.get("device", {}),
        lock=recorded.lock_digest(outcome),
    )
    signature = sign(statement.encode(), key_file, signer.namespace)
    attestation = Attestation(statement=statement, signature=signature)
    why = ledger.refusal_of(outcome, attestation)
    if not why:
        ledger.attest(outcome, attestation)
    return why


def _status(outcome: Outcome) -> Status:
    check = next((one for one in all_checks() if one.name == outcome.check), None)
    return judge_outcome(check, outcome).status if check else Status.ERROR


class _Recorded:
    """The outcomes of a ledger, read once, and the tasks of its runs as their plans recorded them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._outcomes = ledger.history(limit=-1)
        # Reversed: of several with the same content, the newest stays.
        self._inputs = {(one.check, one.content_digest): one for one in reversed(self._outcomes)}
        self._by_run: dict[str, dict[str, TaskRecord]] = {}

    def measured_here(self) -> list[Outcome]:
        """What this machine recorded about hardware, with tasks that timed out and so have no evidence."""
        return [
            outcome
            for outcome in self._outcomes
            if not outcome.trust.foreign
            and outcome.state in DECIDED_STATES
            and Evidence.HARDWARE in (outcome.evidence, strongest_evidence(self.task_of(outcome)))
        ]

    def task_of(self, outcome: Outcome) -> TaskRecord | None:
        """The task of the outcome, or None."""
        if outcome.run_id not in self._by_run:
            run = self._ledger.run(outcome.run_id)
            self._by_run[outcome.run_id] = run.plan.tasks_by_key if run else {}
        return self._by_run[outcome.run_id].get(outcome.key)

    def lock_digest(self, outcome: Outcome) -> str:
        """The digest of the lock file among the inputs and their inputs; "" if there is none."""
        for check, digest in outcome.inputs.items():
            found = self._inputs.get((check, digest))
            if found is not None:
                lock = found.artifact("lock.txt")
                inner = lock.digest if lock else self.lock_digest(found)
                if inner:
                    return inner
        return ""
