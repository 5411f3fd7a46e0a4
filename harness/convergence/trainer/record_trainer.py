"""Recorded runs of the trainer with the seed and samples of the first candidate run.

    python -m harness.convergence.trainer.record_trainer RUN.json FOLDER

records the run in RUN.json, which `trainer_program` wrote on a CPU.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.convergence.decision.reference_set import PERFORMANCE
from harness.convergence.telemetry.series import decode_series
from harness.convergence.trainer.trainer_measurements import TrainerRun
from harness.convergence.trainer.trainer_recipe import TrainerRecipe
from harness.digest import digest_json
from harness.errors import InputError, Location
from harness.measurements import read_shape
from harness.package import data_folder
from harness.serialisation import to_json

SCHEMA = {"name": "npu-matrix/trainer-record", "version": 1}
FOLDER = data_folder("convergence/trainer/references")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A recorded run. recipe_digest: digest of its settings. verl: the version of verl that trained."""

    recipe_digest: str
    verl: str
    series: Mapping[str, tuple[float, ...]]

    @property
    def steps(self) -> int:
        """The number of recorded steps."""
        return max((len(values) for values in self.series.values()), default=0)


def write(folder: Path, run: TrainerRun, *, date: str) -> Path:
    """Write the record of a run; the file's name contains algorithm, verl's version and digest."""
    body = {
        "schema": SCHEMA,
        "recipe_digest": run.digest,
        "recipe": to_json(run.recipe),
        "provenance": {
            "device": to_json(run.device),
            "versions": dict(run.versions),
            "ray": run.ray,
            "date": date,
            "program": "python -m harness.convergence.trainer.trainer_program",
        },
        # Wall time and memory depend on the machine, not on the algorithm.
        "series": {name: values for name, values in run.series.items() if name not in PERFORMANCE},
    }
    digest = digest_json(body)
    path = folder / f"{run.recipe.algorithm}-{run.versions['verl']}-{digest[:12]}.json"
    path.write_text(json.dumps({**body, "digest": digest}, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Record:
    """Read and verify a record. Raises InputError when it is invalid or was edited."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        digest = body.pop("digest")
        if body["schema"] != SCHEMA or digest_json(body) != digest:
            raise InputError(
                "the record was edited, or has a schema that this version does not read",
                where=Location(path),
                fix="record it again",
            )
        return Record(
            recipe_digest=body["recipe_digest"],
            verl=str(body["provenance"]["versions"].get("verl", "")),
            series=decode_series(body["series"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"not a record of a run: {error}", where=Location(path), fix="record it again"
        ) from error


def recorded(digest: str, verl: str, folder: Path = FOLDER) -> Record | None:
    """The record with exactly these settings, preferably of the same version of verl, or None."""
    return _preferred([record for record in _records(folder) if record.recipe_digest == digest], verl)


def same_start(recipe: TrainerRecipe, digest: str, verl: str, folder: Path = FOLDER) -> Record | None:
    """The record with exactly these settings or else one that differs in the number of steps only, or None.

    recipe, digest: of a run. The digest also covers options that are not part of the recipe.
    """
    exact = recorded(digest, verl, folder)
    if exact is not None or recipe.digest() != digest:
        return exact
    other_lengths = [
        record
        for record in _records(folder)
        if dataclasses.replace(recipe, steps=record.steps).digest() == record.recipe_digest
    ]
    return _preferred(other_lengths, verl)


def _records(folder: Path) -> list[Record]:
    return [load(path) for path in sorted(folder.glob("*.json"))]


def _preferred(records: Sequence[Record], verl: str) -> Record | None:
    same_version = [record for record in records if record.verl == verl]
    return next(iter([*same_version, *records]), None)


def main(arguments: Sequence[str]) -> int:
    """Write the record of a run, and print its path."""
    path, folder = (Path(argument) for argument in arguments)
    run = read_shape(TrainerRun, path)
    if run.state != "measured" or not run.complete:
        sys.stderr.write(f"the run in {path} did not end well\n")
        return 2
    date = dt.datetime.now(dt.timezone.utc).date().isoformat()
    sys.stdout.write(f"{write(folder, run, date=date)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
