"""What one flipped bit does to a ledger: whether it can still be opened, and what it still says.

python -m benchmarks ledger_damage --ledger .npu-matrix/ledger.sqlite3 --flips 2000
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Outcome

EVERYTHING = 10_000_000


@dataclass(frozen=True, kw_only=True)
class LedgerContent:
    """All that a ledger says: outcomes by key and attempt, the reusable attempts, and the runs."""

    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    reusable: dict[str, int] = field(default_factory=dict)
    runs: dict[str, object] = field(default_factory=dict)
    dispositions: dict[tuple[str, str, str], object] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> LedgerContent:
        """Everything in the ledger of a state folder; HarnessError if it cannot be opened."""
        with Ledger.open(folder) as ledger:
            outcomes = {(one.key, one.attempt): one for one in ledger.history(limit=EVERYTHING)}
            runs = {run.run_id: run for run in ledger.runs(EVERYTHING)}
            return cls(
                outcomes=outcomes,
                reusable={key: one.attempt for key, one in ledger.get_many({k for k, _ in outcomes}).items()},
                runs=dict(runs),
                dispositions={
                    (run_id, one.cell_id, one.check): one
                    for run_id in runs
                    for one in ledger.dispositions(run_id)
                },
            )


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What a flip did: rows that are gone, and statements that differ from what was stored."""

    unusable: str = ""
    lost: int = 0
    lost_runs: int = 0
    lost_dispositions: int = 0
    wrong: tuple[str, ...] = ()


def damage_of(before: LedgerContent, folder: Path) -> Damage:
    """Compare a ledger after a flip with what it said before. It is opened twice, as a user would do."""
    for attempt in (1, 2):
        try:
            after = LedgerContent.read(folder)
            break
        except HarnessError as error:
            if attempt == 2:
                return Damage(unusable=str(error))
        except Exception as error:  # noqa: BLE001 - any other error is a defect that is counted
            return Damage(unusable=f"{type(error).__name__}: {error}")
    wrong = [f"outcome {name}" for name, one in after.outcomes.items() if before.outcomes.get(name) != one]
    wrong += [f"reuses {key}" for key, one in after.reusable.items() if before.reusable.get(key) != one]
    wrong += [f"run {name}" for name, run in after.runs.items() if before.runs.get(name) != run]
    wrong += [
        f"entry {name}" for name, one in after.dispositions.items() if before.dispositions.get(name) != one
    ]
    return Damage(
        lost=len(before.reusable) - len(after.reusable),
        lost_runs=len(before.runs) - len(after.runs),
        lost_dispositions=len(before.dispositions) - len(after.dispositions)
        if len(after.runs) == len(before.runs)
        else 0,
        wrong=tuple(wrong),
    )


def flip_bits(ledger: Path, flips: int, seed: int) -> list[tuple[int, Damage]]:
    """Flip one random bit of a copy of the ledger, `flips` times; the position in bits and what it did."""
    chance = random.Random(seed)
    found = []
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        shutil.copyfile(ledger, state / FILE_NAME)
        before = LedgerContent.read(state)
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


def main() -> None:
    """Print how many flips made the ledger unusable, how many lost rows, and how many gave wrong answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable()
    with contextlib.redirect_stderr(io.StringIO()):
        found = flip_bits(arguments.ledger, arguments.flips, arguments.seed)
    damages = [damage for _bit, damage in found]
    print(f"{len(found)} flips of one bit")
    print(f"unusable: {sum(bool(one.unusable) for one in damages)}")
    print(f"wrong answers: {sum(bool(one.wrong) for one in damages)}")
    print(f"reusable outcomes lost, flips: {sorted(Counter(one.lost for one in damages).items())}")
    print(f"runs lost, flips: {sorted(Counter(one.lost_runs for one in damages).items())}")
    print(f"dispositions lost, flips: {sorted(Counter(one.lost_dispositions for one in damages).items())}")
    for bit, one in found:
        if one.unusable or one.wrong:
            print(f"bit {bit} (byte {bit // 8}): {one.unusable or one.wrong[:3]}")


if __name__ == "__main__":
    main()
