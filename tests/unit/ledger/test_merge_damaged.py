"""Merging a damaged ledger takes what is intact and names the rest; a damaged artifact is not used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from make_outcome import make_outcome

from harness.errors import InfrastructureError
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.plan_record import PlanEntry, PlanRecord
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import ArtifactRef, Tier
from harness.workspace.results.foreign_secrets import ForeignSecrets

FLIPS = 40


def test_merging_a_ledger_with_a_flipped_bit_takes_only_what_was_recorded(tmp_path: Path) -> None:
    entries = tuple(
        PlanEntry(cell_id=f"c{n}", check="resolve", tier=Tier.STATIC, question="?", key=f"k{n}")
        for n in range(8)
    )
    with Ledger.open(tmp_path / "far") as far:
        run_id = far.begin_run(PlanRecord(entries=entries), ["run"], {"machine": "a" * 40})
        for entry in entries:
            far.record(make_outcome(entry.key, check="resolve", run_id=run_id))
        far.finish_run(run_id, 1)
        recorded = {one.content_digest for one in far.history()}
        run = far.run(run_id)
    file = tmp_path / "far" / FILE_NAME
    data = file.read_bytes()
    chance = random.Random(3)
    for number in range(FLIPS):
        bit = chance.randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with Ledger.open(tmp_path / str(number)) as here:
            report = here.merge(file)
            taken = {one.content_digest for one in here.history()}
            assert taken <= recorded, bit
            assert taken == recorded or report.damaged, bit
            assert here.run(run_id) in (run, None), bit
            assert here.run(run_id) or report.damaged, bit
        assert file.read_bytes() == flipped


def test_an_artifact_with_a_flipped_bit_is_not_used(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put(b"torch==2.7.1 --hash=sha256:00", "lock.txt")
    path = store.path(ref.digest)
    data = path.read_bytes()
    path.chmod(0o644)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(InfrastructureError, match=r"lock\.txt"):
            store.get(ref)
    store.put(data, "lock.txt")
    assert store.get(ref).read_bytes() == data


@pytest.mark.parametrize("digest", ["../../../../etc/passwd", "", "A" * 64, "a" * 63])
def test_an_outcome_whose_file_has_no_digest_is_damaged(tmp_path: Path, digest: str) -> None:
    with Ledger.open(tmp_path / "far") as far:
        far.record(make_outcome("a" * 64, artifacts=(ArtifactRef(name="lock.txt", digest=digest, size=1),)))
        far.record(make_outcome("b" * 64, log=ArtifactRef(name="log", digest=digest, size=1)))
        far.record(make_outcome("c" * 64))
        assert [one.key for one in far.history()] == ["c" * 64]
    with Ledger.open(tmp_path / "here") as here:
        report = here.merge(tmp_path / "far" / FILE_NAME, ForeignSecrets({}))
        assert (report.added, len(report.damaged)) == (1, 2)
