"""One flipped bit in a real ledger, 2,000 times: whether it can be opened, and what it still says.

The ledger is a copy of that of the state folder. It is opened twice after each flip, like by two commands.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import ROOT, CannotRunError, Figure
from harness.errors import HarnessError
from harness.ledger.lost_rows import LostRows
from harness.ledger.run_record import Disposition, RunRecord
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Outcome
from harness.settings import load_settings

FLIPS = 2000
SEED = 1
EVERYTHING = 10_000_000
#: Of the lost outcomes, those that are recorded again. A flip loses fewer, a file that was cut off has many.
MOST_REPEATED = 4


@dataclass(frozen=True, kw_only=True)
class LedgerContent:
    """All that a ledger says: outcomes by key and attempt, the reusable attempts, runs and dispositions."""

    outcomes: dict[tuple[str, int], Outcome]
    reusable: dict[str, int]
    runs: dict[str, RunRecord]
    dispositions: dict[tuple[str, str, str], Disposition]
    lost: LostRows

    @classmethod
    def of(cls, ledger: Ledger) -> LedgerContent:
        outcomes = {(one.key, one.attempt): one for one in ledger.history(limit=EVERYTHING)}
        runs = {run.run_id: run for run in ledger.runs(EVERYTHING)}
        return cls(
            outcomes=outcomes,
            reusable={key: one.attempt for key, one in ledger.get_many({k for k, _ in outcomes}).items()},
            runs=runs,
            dispositions={
                (run_id, one.cell_id, one.check): one
                for run_id in runs
                for one in ledger.dispositions(run_id)
            },
            lost=ledger.lost,
        )


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What a flip did. lost: rows that are gone. The others are defects, each as a text that says what."""

    lost: int = 0
    unusable: str = ""
    unnamed: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    not_repeated: tuple[str, ...] = ()


def damage_of(before: LedgerContent, folder: Path) -> Damage:
    """Compare a ledger after a flip with what it said before."""
    try:
        with Ledger.open(folder):
            pass
        with Ledger.open(folder) as ledger:
            after = LedgerContent.of(ledger)
            gone = sorted(before.reusable.keys() - after.reusable.keys())
            repeated = gone[:MOST_REPEATED]
            not_repeated = tuple(key for key in repeated if not _can_repeat(ledger, before, key))
    except HarnessError as error:
        return Damage(unusable=str(error))
    except Exception as error:  # noqa: BLE001 - any other error is a defect that is counted
        return Damage(unusable=f"{type(error).__name__}: {error}")
    gone_runs = before.runs.keys() - after.runs.keys()
    # Those of a run that is gone are not asked for.
    gone_dispositions = {
        name for name in before.dispositions.keys() - after.dispositions.keys() if name[0] not in gone_runs
    }
    return Damage(
        lost=len(gone) + len(gone_runs) + len(gone_dispositions),
        unnamed=(
            *(key for key in gone if not after.lost.hide(key, _check_of(before, key), 0)),
            *(run for run in gone_runs if not _names_run(after.lost, run)),
            *(" ".join(name) for name in gone_dispositions if not _names_disposition(after.lost, name)),
        ),
        wrong=(
            *(f"outcome {name}" for name, one in after.outcomes.items() if before.outcomes.get(name) != one),
            *(f"reuses {key}" for key, one in after.reusable.items() if before.reusable.get(key) != one),
            *(f"run {name}" for name, run in after.runs.items() if before.runs.get(name) != run),
            *(
                f"entry {name}"
                for name, one in after.dispositions.items()
                if before.dispositions[name] != one
            ),
        ),
        not_repeated=not_repeated,
    )


def _can_repeat(ledger: Ledger, before: LedgerContent, key: str) -> bool:
    recorded = ledger.record(before.outcomes[key, before.reusable[key]])
    found = ledger.get(key)
    return found is not None and found.attempt == recorded.attempt


def _check_of(before: LedgerContent, key: str) -> str:
    return before.outcomes[key, before.reusable[key]].check


def _names_run(lost: LostRows, run_id: str) -> bool:
    return any(row.table in {"runs", "plans"} and row.run_id in ("", run_id) for row in lost.rows)


def _names_disposition(lost: LostRows, name: tuple[str, str, str]) -> bool:
    return any(
        row.table == "dispositions" and row.run_id in ("", name[0]) and row.check in ("", name[2])
        for row in lost.rows
    )


def flip_bits(ledger: Path, flips: int, seed: int) -> list[tuple[int, Damage]]:
    """Flip one random bit of a copy of the ledger, `flips` times; the position in bits and what it did."""
    chance = random.Random(seed)
    found = []
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        shutil.copyfile(ledger, state / FILE_NAME)
        with Ledger.open(state) as opened:
            before = LedgerContent.of(opened)
        data = (state / FILE_NAME).read_bytes()
        for _ in range(flips):
            for file in state.iterdir():
                file.unlink()
            bit = chance.randrange(len(data) * 8)
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            (state / FILE_NAME).write_bytes(flipped)
            found.append((bit, damage_of(before, state)))
    return found


def figures() -> Iterator[Figure]:
    """The shares of flips by what they did."""
    ledger = load_settings({}, os.environ, ROOT).path("state") / FILE_NAME
    if not ledger.is_file():
        raise CannotRunError("there is no ledger in the state folder", "run `npu-matrix run` first")
    logging.disable()
    with contextlib.redirect_stderr(io.StringIO()):
        found = flip_bits(ledger, FLIPS, SEED)
    damages = [damage for _bit, damage in found]
    for bit, one in found:
        for defect in (one.unusable, *one.unnamed, *one.wrong, *one.not_repeated):
            if defect:
                print(f"bit {bit} (byte {bit // 8}): {defect}")
    bits = f"of {FLIPS} flipped bits"
    yield Figure(claim=f"{bits}, those that change a verdict", measured=_count(damages, "wrong"), limit=0)
    yield Figure(
        claim=f"{bits}, those after which the ledger is unusable",
        measured=_count(damages, "unusable"),
        limit=0,
    )
    yield Figure(
        claim=f"{bits}, those that lose a row without naming it", measured=_count(damages, "unnamed"), limit=0
    )
    yield Figure(
        claim=f"{bits}, those whose lost outcomes cannot be recorded again",
        measured=_count(damages, "not_repeated"),
        limit=0,
    )
    yield Figure(claim=f"{bits}, those that lose rows, by name", measured=_count(damages, "lost"))
    yield Figure(claim="rows that one such bit loses, at most", measured=max(one.lost for one in damages))


def _count(damages: list[Damage], defect: str) -> int:
    return sum(bool(getattr(one, defect)) for one in damages)
