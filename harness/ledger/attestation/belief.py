"""Decides whether hardware evidence in a ledger is believed: measured here, or signed by a runner we name.

Outcomes with other evidence can be measured again on any machine, so they are believed wherever they come
from; their origin is shown. Whether a task could only be measured on hardware is not known here: its outcomes
are bounded by `plan.tasks.evidence_bound`, whatever evidence they state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from harness.digest import digest_json
from harness.ledger.attestation.ssh_keygen import Signer, refusal
from harness.ledger.attestation.statement import DIGEST, Attestation, read_statement, subject_digest
from harness.outcome import Evidence, Outcome, Trust

#: Runner name -> the runner; called when the first hardware outcome of another machine is read.
Signers = Callable[[], Mapping[str, Signer]]


def no_signers() -> Mapping[str, Signer]:
    """No runner: hardware evidence of other machines is never believed."""
    return {}


def judge_origin(
    outcome: Outcome,
    attestations: Iterable[Attestation],
    *,
    merged: bool,
    host: str,
    signers: Signers,
    written_here: bool = False,
) -> Outcome:
    """The outcome with its `trust`; hardware evidence that is not believed becomes `static`.

    merged: whether the outcome was added by `ledger merge`. host: the fingerprint of this machine.
    written_here: whether only programs of this machine wrote the ledger from which it was merged.
    """
    is_hardware = outcome.evidence is Evidence.HARDWARE
    foreign = merged or (outcome.origin is not None and outcome.origin.recorder != host)
    if not foreign and outcome.origin is not None:
        return replace(outcome, trust=Trust())
    if written_here and outcome.origin is not None and outcome.origin.recorder == host:
        return replace(outcome, trust=Trust(foreign=True))
    refusals = [] if outcome.origin else ["it does not say which machine measured it"]
    for attestation in attestations:
        signer, why = _signer_of(outcome, attestation, signers)
        if not why:
            return replace(outcome, trust=Trust(foreign=True, signer=signer))
        refusals.append(why)
    unsigned = refusals[0] if refusals else "no runner signed it"
    if not is_hardware:
        return replace(outcome, trust=Trust(foreign=foreign, unsigned=unsigned))
    trust = Trust(foreign=True, unsigned=unsigned, claimed=unsigned)
    return replace(outcome, evidence=Evidence.STATIC, trust=trust)


def _signer_of(outcome: Outcome, attestation: Attestation, signers: Signers) -> tuple[str, str]:
    """The runner that signed this outcome, and why the signature does not count; one of them is ""."""
    statement = read_statement(attestation.statement)
    if statement is None:
        return "", "its signed statement is not an in-toto test result"
    found = statement.predicate.resource
    if [(one.name, one.digest.get(DIGEST)) for one in statement.subject] != [
        (outcome.key, subject_digest(outcome))
    ]:
        return "", "its signature belongs to another outcome, or the outcome was changed after it was signed"
    name = str(found("host").annotations.get("runner", ""))
    signer = signers().get(name)
    if signer is None or not signer.keys:
        return "", f"matrix.yaml names no key of the runner {name!r} that signed it"
    why = _mismatch(outcome, found("device").annotations, signer)
    if found("host").digest.get(DIGEST) != (outcome.origin.host if outcome.origin else ""):
        why = why or "its signature names another host than the outcome"
    return name, why or refusal(attestation.statement.encode(), attestation.signature, signer)


def _mismatch(outcome: Outcome, device: Mapping[str, object], signer: Signer) -> str:
    if digest_json(device) != outcome.facets.get("device"):
        return "its signature names another device than the outcome"
    if device.get("kind") != "npu":
        return f"its device is of the kind {str(device.get('kind', ''))!r}, not an NPU"
    soc = str(device.get("soc", ""))
    if soc not in signer.socs:
        names = ", ".join(sorted(signer.socs)) or "no NPU"
        return f"it was measured on {soc or 'an unnamed SoC'}, and the runner {signer.name!r} has {names}"
    return ""
