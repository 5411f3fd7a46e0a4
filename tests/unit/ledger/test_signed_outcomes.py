"""Hardware outcomes of other machines: a signature of a named runner counts, every attack on it does not."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from edit_ledger import edit_ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from signing_keys import make_key

from harness.digest import digest_json
from harness.errors import InfrastructureError, InputError
from harness.ledger.attestation.ssh_keygen import NAMESPACE, Signer, sign
from harness.ledger.attestation.statement import Attestation, make_statement, read_statement
from harness.ledger.outcome_record import outcome_body, outcome_uid
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Evidence, Outcome, State, Status, Tier, Trust

DEVICE = {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}
FAR, HERE = "f" * 64, "e" * 64
KEY = "a" * 64


def measured(key: str = KEY, **changes: object) -> Outcome:
    outcome = Outcome(
        key=key,
        check="loss",
        tier=Tier.NUMERICS,
        state=State.COMPLETED,
        evidence=Evidence.HARDWARE,
        facets={"device": digest_json(DEVICE), "pins": "b" * 64},
        measurements={"error": 0.25},
        started=1.0,
        finished=2.0,
        run_id="run",
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


@dataclass
class Bench:
    """A far host with an NPU and a key, a ledger of it in `far`, and the machine that merges it."""

    folder: Path
    key: Path
    signers: dict[str, Signer]

    def record(self, outcome: Outcome, folder: str = "far", host: str = FAR) -> Outcome:
        with Ledger.open(self.folder / folder, host=host) as ledger:
            return ledger.record(outcome)

    def statement(
        self, outcome: Outcome, runner: str = "a2-host", device: Mapping[str, object] | None = None
    ) -> str:
        facet = DEVICE if device is None else device
        return make_statement(outcome, Status.PASS, runner=runner, device=facet, lock="d" * 64)

    def signed(
        self,
        outcome: Outcome,
        *,
        key: Path | None = None,
        namespace: str = NAMESPACE,
        runner: str = "a2-host",
    ) -> Attestation:
        return self.sign(self.statement(outcome, runner), key, namespace)

    def sign(self, text: str, key: Path | None = None, namespace: str = NAMESPACE) -> Attestation:
        return Attestation(statement=text, signature=sign(text.encode(), key or self.key, namespace))

    def attach(self, outcome: Outcome, attestation: Attestation, folder: str = "far") -> None:
        with Ledger.open(self.folder / folder, host=FAR) as ledger:
            ledger.attest(outcome, attestation)

    def here(self) -> Ledger:
        return Ledger.open(self.folder / "here", signers=lambda: self.signers, host=HERE)

    def merged(self, key: str = KEY, folder: str = "far") -> Outcome:
        """The outcome after the far ledger was merged here."""
        with self.here() as ledger:
            ledger.merge(self.folder / folder / FILE_NAME)
            (found,) = ledger.history(key=key)
            assert (ledger.get(key) is None) is bool(found.trust.claimed)
            assert found.evidence is (Evidence.STATIC if found.trust.claimed else Evidence.HARDWARE)
            return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    key, public = make_key(tmp_path, "runner-key")
    signer = Signer(name="a2-host", keys=(public,), socs=frozenset({"Ascend910B3"}))
    return Bench(tmp_path, key, {"a2-host": signer})


def change_signer(bench: Bench, **changes: object) -> None:
    bench.signers["a2-host"] = replace(bench.signers["a2-host"], **changes)  # type: ignore[arg-type]


def test_what_this_machine_recorded_is_believed_and_what_another_one_recorded_is_claimed(bench):
    bench.record(measured(), "here", HERE)
    with bench.here() as ledger:
        found = ledger.get(KEY)
    assert found.evidence is Evidence.HARDWARE
    assert found.trust == Trust()
    bench.record(measured("c" * 64))
    claimed = bench.merged("c" * 64)
    assert claimed.trust.claimed == "no runner signed it"
    assert claimed.trust.foreign
    assert claimed.origin.host == FAR


def test_a_signature_of_a_named_runner_counts_and_merging_twice_changes_nothing(bench):
    outcome = bench.record(measured())
    bench.attach(outcome, bench.signed(outcome))
    for _ in range(2):
        assert bench.merged().trust == Trust(foreign=True, signer="a2-host")
    with bench.here() as ledger:
        report = ledger.merge(bench.folder / "far" / FILE_NAME)
        assert (report.read, report.added, report.signed, report.claimed) == (1, 0, 1, ())


def test_a_signature_that_arrives_later_makes_a_claim_believed(bench):
    outcome = bench.record(measured())
    assert bench.merged().trust.claimed
    bench.attach(outcome, bench.signed(outcome))
    assert bench.merged().trust.signer == "a2-host"


def test_a_worthless_signature_that_was_merged_first_does_not_keep_out_the_good_one(bench):
    outcome = bench.record(measured())
    bench.attach(outcome, Attestation(statement="{}", signature="nothing"))
    assert bench.merged().trust.claimed == "its signed statement is not an in-toto test result"
    bench.attach(outcome, bench.signed(outcome))
    assert bench.merged().trust.signer == "a2-host"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_statement_with_a_number_that_has_no_digest_is_worthless(bench, number):
    outcome = bench.record(measured())
    text = bench.statement(outcome).replace('"count":1', f'"count":{number}')
    assert number in text
    bench.attach(outcome, Attestation(statement=text, signature="nothing"))
    assert bench.merged().trust.claimed == "its signed statement is not an in-toto test result"


def test_the_statement_is_an_in_toto_test_result(bench):
    outcome = bench.record(measured())
    document = json.loads(bench.statement(outcome))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert document["subject"] == [
        {"annotations": {}, "digest": {"sha256": outcome_uid(outcome_body(outcome))}, "name": KEY}
    ]
    predicate = document["predicate"]
    assert (predicate["result"], predicate["passedTests"]) == ("PASSED", ["loss"])
    named = {one["name"]: one for one in predicate["configuration"]}
    assert named["host"]["digest"] == {"sha256": FAR}
    assert named["lock"]["digest"] == {"sha256": "d" * 64}
    assert named["host"]["annotations"]["runner"] == "a2-host"
    assert {"key", "device", "facet/pins"} <= set(named)
    assert read_statement(json.dumps({**document, "predicateType": "x"})) is None


def test_a_signature_of_one_outcome_does_not_count_for_another(bench):
    good = bench.record(measured())
    other = bench.record(measured("c" * 64))
    bench.attach(other, bench.signed(good))
    assert "belongs to another outcome" in bench.merged("c" * 64).trust.claimed


def test_an_outcome_with_a_changed_key_column_is_damaged(bench):
    outcome = bench.record(measured())
    bench.attach(outcome, bench.signed(outcome))
    file = bench.folder / "far" / FILE_NAME
    with sqlite3.connect(file) as database:
        database.execute("UPDATE outcomes SET key = ?", ("c" * 64,))
    with bench.here() as ledger:
        report = ledger.merge(file)
        assert report.added == 0
        assert len(report.damaged) == 1
    with Ledger.open(bench.folder / "far", host=FAR) as ledger:
        assert ledger.history(key="c" * 64) == ()
        assert "row 1 of outcomes" in ledger.notices[0].why


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("another key", "not one by a valid key of the runner"),
        ("another namespace", "not one by a valid key of the runner"),
        ("unknown runner", "names no key of the runner 'b-host'"),
        ("another SoC", "the runner 'a2-host' has Ascend910_9392"),
        ("expired", "not one by a valid key of the runner"),
        ("not valid yet", "not one by a valid key of the runner"),
        ("revoked", "not one by a valid key of the runner"),
        ("no list of revoked keys", "list of revoked keys"),
        ("a device that is not that of the task", "names another device"),
        ("another host", "names another host"),
        ("a key that matrix.yaml no longer names", "names no key"),
    ],
)
def test_no_other_signature_counts(bench, attack, why):
    outcome = bench.record(measured())
    attestation = bench.signed(outcome)
    public = bench.signers["a2-host"].keys[0]
    if attack == "another key":
        attestation = bench.signed(outcome, key=make_key(bench.folder, "thief")[0])
    elif attack == "another namespace":
        attestation = bench.signed(outcome, namespace="git")
    elif attack == "unknown runner":
        attestation = bench.signed(outcome, runner="b-host")
    elif attack == "another SoC":
        change_signer(bench, socs=frozenset({"Ascend910_9392"}))
    elif attack == "expired":
        change_signer(bench, keys=(f'valid-before="20200101Z" {public}',))
    elif attack == "not valid yet":
        change_signer(bench, keys=(f'valid-after="20990101Z" {public}',))
    elif attack == "revoked":
        revoked = bench.folder / "revoked"
        revoked.write_text(public + "\n")
        change_signer(bench, revoked=revoked)
    elif attack == "no list of revoked keys":
        change_signer(bench, revoked=bench.folder / "nowhere")
    elif attack == "a device that is not that of the task":
        attestation = bench.sign(bench.statement(outcome, device={**DEVICE, "soc": "Ascend910_9392"}))
    elif attack == "another host":
        attestation = bench.sign(bench.statement(outcome).replace(FAR, "9" * 64))
    else:
        bench.signers.clear()
    bench.attach(outcome, attestation)
    assert why in bench.merged().trust.claimed


def test_a_runner_with_a_namespace_of_its_own_signs_for_no_other(bench):
    change_signer(bench, namespace="other-repository")
    outcome = bench.record(measured())
    bench.attach(outcome, bench.signed(outcome))
    assert "not one by a valid key" in bench.merged().trust.claimed
    bench.attach(outcome, bench.signed(outcome, namespace="other-repository"))
    assert bench.merged().trust.signer == "a2-host"


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A resource of the statement's predicate."""
    (found,) = [one for one in document["predicate"]["configuration"] if one["name"] == name]
    return found


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda it: named(it, "host")["digest"].update(sha256="0" * 64), "names another host"),
        (lambda it: named(it, "device")["annotations"].update(count=8), "names another device"),
        (
            lambda it: it["predicate"]["configuration"].append(named(it, "host")),
            "names no key of the runner ''",
        ),
        (lambda it: it["subject"].append(it["subject"][0]), "belongs to another outcome"),
        (lambda it: it["subject"][0].update(name="b" * 64), "belongs to another outcome"),
    ],
)
def test_a_signature_counts_only_for_the_host_device_and_outcome_that_it_names(bench, edit, why):
    outcome = bench.record(measured())
    document = json.loads(bench.statement(outcome))
    edit(document)
    text = json.dumps(document)
    bench.attach(outcome, Attestation(statement=text, signature=sign(text.encode(), bench.key, NAMESPACE)))
    assert why in bench.merged().trust.claimed


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ('valid-before="20200101Z"', "key has expired: valid-before 20"),
        ('valid-after="20990101Z"', "key is not yet valid: valid-after 20"),
        ('namespaces="git"', 'key is not permitted for use in signature namespace "npu-matrix"'),
    ],
)
def test_the_reason_of_a_refusal_names_neither_the_time_of_day_nor_a_temporary_file(bench, option, why):
    outcome = bench.record(measured())
    change_signer(bench, keys=(f"{option} {bench.signers['a2-host'].keys[0]}",))
    bench.attach(outcome, bench.signed(outcome))
    claimed = bench.merged().trust.claimed
    assert f"runner 'a2-host': {why}" in claimed
    assert "verify time" not in claimed
    assert "allowed_signers" not in claimed


def test_a_signature_proves_no_hardware_on_a_device_that_is_no_npu(bench):
    device = {**DEVICE, "kind": "sim"}
    outcome = bench.record(measured(facets={"device": digest_json(device)}))
    text = bench.statement(outcome, device=device)
    bench.attach(outcome, Attestation(statement=text, signature=sign(text.encode(), bench.key, NAMESPACE)))
    assert bench.merged().trust.claimed == "its device is of the kind 'sim', not an NPU"


def test_a_key_revocation_list_of_openssh_is_read(bench):
    outcome = bench.record(measured())
    bench.attach(outcome, bench.signed(outcome))
    revoked = bench.folder / "revoked.krl"
    public = bench.key.with_suffix(".pub")
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revoked), str(public)], check=True)
    change_signer(bench, revoked=revoked)
    assert "not one by a valid key" in bench.merged().trust.claimed
    change_signer(bench, revoked=None)
    assert bench.merged().trust.signer == "a2-host"


def test_a_merged_outcome_that_names_this_machine_as_its_host_is_not_local(bench):
    bench.record(measured(), "far", HERE)
    assert bench.merged().trust.claimed == "no runner signed it"


def test_a_ledger_that_was_copied_as_a_whole_is_not_local(bench):
    bench.record(measured(), "here", FAR)
    with bench.here() as ledger:
        assert ledger.get(KEY) is None
        (found,) = ledger.history()
    why = "no runner signed it"
    assert found.trust == Trust(foreign=True, unsigned=why, claimed=why)


@pytest.mark.parametrize("evidence", [Evidence.HARDWARE, Evidence.CPU])
def test_an_outcome_that_does_not_name_its_machine_is_unsigned_and_claimed_on_hardware(bench, evidence):
    outcome = measured(evidence=evidence)
    bench.record(outcome, "here", HERE)
    body = outcome_body(outcome)
    edit_ledger(
        bench.folder / "here" / FILE_NAME,
        "UPDATE outcomes SET body = ?, uid = ?",
        values=(body, outcome_uid(body)),
    )
    with bench.here() as ledger:
        (found,) = ledger.history()
    why = "it does not say which machine measured it"
    assert found.trust.unsigned == why
    assert found.trust.claimed == (why if evidence is Evidence.HARDWARE else "")


def test_the_text_of_an_outcome_cannot_say_that_it_is_trusted(bench):
    outcome = bench.record(measured())
    body = json.loads(outcome_body(outcome))
    body["trust"] = {"foreign": False, "signer": "a2-host", "claimed": ""}
    text = json.dumps(body)
    edit_ledger(
        bench.folder / "far" / FILE_NAME,
        "UPDATE outcomes SET body = ?, uid = ?",
        values=(text, outcome_uid(text)),
    )
    assert bench.merged().trust.claimed


def test_an_outcome_of_another_machine_does_not_hide_the_one_that_a_run_of_this_machine_recorded(bench):
    bench.record(measured(evidence=Evidence.SIMULATED, measurements={"from": "here"}), "here", HERE)
    bench.record(measured(evidence=Evidence.SIMULATED, measurements={"from": "far"}, finished=9.0))
    with bench.here() as ledger:
        ledger.merge(bench.folder / "far" / FILE_NAME)
        assert ledger.history(run_id="run")[0].measurements == {"from": "here"}
        assert [one.trust.foreign for one in ledger.history(run_id="run")] == [False, True]
        assert ledger.get(KEY).measurements == {"from": "here"}


def test_other_evidence_of_other_machines_is_believed_and_marked(bench):
    bench.record(measured(evidence=Evidence.SIMULATED))
    with bench.here() as ledger:
        report = ledger.merge(bench.folder / "far" / FILE_NAME)
        assert report.claimed == ()
        assert ledger.get(KEY).trust == Trust(foreign=True, unsigned="no runner signed it")


def test_without_ssh_keygen_nothing_is_signed_and_signed_outcomes_are_claimed(bench, monkeypatch):
    outcome = bench.record(measured())
    bench.attach(outcome, bench.signed(outcome))
    monkeypatch.setenv("PATH", str(bench.folder))
    assert "ssh-keygen is not installed" in bench.merged().trust.claimed
    with pytest.raises(InfrastructureError, match="cannot be signed"):
        bench.signed(outcome)


def test_a_file_that_is_no_key_cannot_sign(bench):
    text = bench.folder / "notes.txt"
    text.write_text("hello")
    with pytest.raises(InputError, match="could not sign"):
        sign(b"x", text, NAMESPACE)


def flip(text: str, position: int, letter: str) -> str:
    index = position % len(text)
    return text[:index] + letter + text[index + 1 :]


def test_any_edit_of_a_signed_statement_is_not_believed(bench):
    with Ledger.open(bench.folder / "sealed", signers=lambda: bench.signers, host=FAR) as ledger:
        stored = ledger.record(measured())
        good = bench.signed(stored)
        assert ledger.refusal_of(stored, good) == ""

        @settings(max_examples=60, deadline=None)
        @given(st.integers(0, 10_000), st.characters(min_codepoint=32, max_codepoint=126))
        def is_refused(position, letter):
            edited = replace(good, statement=flip(good.statement, position, letter))
            assert bool(ledger.refusal_of(stored, edited)) is (edited != good)

        is_refused()


json_values = (
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3) | st.just({"device": DEVICE})
)


EDITS = {
    "check": st.just("actor"),
    "evidence": st.sampled_from(["static", "cpu", "simulated"]),
    "facets": st.just({"device": digest_json({**DEVICE, "soc": "Ascend910_9392"})}),
    "finished": st.floats(3.0, 9.0),
    "key": st.just("9" * 64),
    "measurements": st.dictionaries(st.text(max_size=3), json_values, max_size=2),
    "origin": st.just({"recorder": HERE, "host": HERE}),
    "state": st.just("timeout"),
    "run_id": st.just("another"),
}


def test_any_edit_of_a_signed_outcome_with_its_digest_recomputed_is_not_believed(bench):
    """Either the row is damaged, or its hardware evidence is not believed, or it does not claim any."""
    outcome = bench.record(measured())
    bench.attach(outcome, bench.signed(outcome))
    signed = json.loads(outcome_body(outcome))

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(sorted(EDITS)).flatmap(lambda name: st.tuples(st.just(name), EDITS[name])))
    def is_not_believed(edit):
        name, value = edit
        body = {**signed, name: {**signed[name], **value} if name == "origin" else value}
        folder = bench.folder / f"edited-{len(list(bench.folder.iterdir()))}"
        shutil.copytree(bench.folder / "far", folder)
        text = json.dumps(body)
        uid = outcome_uid(text)
        edit_ledger(
            folder / FILE_NAME,
            "UPDATE outcomes SET body = ?, uid = ?, key = ?, check_name = ?, state = ?, run_id = ?",
            values=(text, uid, body["key"], body["check"], body["state"], body["run_id"]),
        )
        edit_ledger(folder / FILE_NAME, "UPDATE attestations SET uid = ?", values=(uid,))
        with Ledger.open(folder / "merged", signers=lambda: bench.signers, host=HERE) as ledger:
            ledger.merge(folder / FILE_NAME)
            found = ledger.history()
            assert all(one.evidence is not Evidence.HARDWARE and not one.trust.signer for one in found)
            if body["evidence"] == "hardware":
                assert all("changed after it was signed" in one.trust.claimed for one in found)

    is_not_believed()


def test_a_signature_is_verified_whatever_evidence_the_outcome_states(bench):
    """A task that timed out on hardware has no hardware evidence, and is signed all the same."""
    outcome = bench.record(measured(evidence=Evidence.CPU, state=State.TIMEOUT))
    (unsigned,) = merged_history(bench)
    assert unsigned.trust == Trust(foreign=True, unsigned="no runner signed it")
    bench.attach(outcome, bench.signed(outcome))
    (signed,) = merged_history(bench)
    assert signed.trust == Trust(foreign=True, signer="a2-host")


def merged_history(bench: Bench) -> tuple[Outcome, ...]:
    with bench.here() as ledger:
        ledger.merge(bench.folder / "far" / FILE_NAME)
        return ledger.history(key=KEY)
