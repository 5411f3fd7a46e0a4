"""Recorded runs of the trainer, of the same seed and samples that every candidate trains.

Make one: `python -m harness.convergence.trainer.record_trainer RUN.json FOLDER`, where `run` wrote RUN.json
on a CPU.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.convergence.telemetry.series import decode_series
from harness.convergence.trainer.trainer_recipe import TrainerRecipe
from harness.digest import digest_json
from harness.errors import InputError, Location
from harness.package import data_folder

SCHEMA = {"name": "npu-matrix/trainer-record", "version": 1}
FOLDER = data_folder("convergence/trainer/references")
# Wall time and memory are the machine's, not the algorithm's.
LEFT_OUT = ("seconds", "throughput", "memory_gb")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A recorded run: `digest` is of everything in the file, `recipe_digest` of the settings."""

    digest: str
    recipe_digest: str
    provenance: Mapping[str, Any]
    series: Mapping[str, tuple[float, ...]]

    @property
    def verl(self) -> str:
        """The version of verl that was recorded."""
        return str(self.provenance["versions"].get("verl", ""))

    @property
    def steps(self) -> int:
        """Its length."""
        return max((len(values) for values in self.series.values()), default=0)


def content(run: Mapping[str, Any], *, date: str) -> dict[str, Any]:
    """The JSON of a record of `run`, what `harness.convergence.trainer.trainer_program` wrote."""
    body = {
        "schema": SCHEMA,
        "recipe_digest": run["digest"],
        "recipe": run["recipe"],
        "provenance": {
            "device": run["device"],
            "versions": run["versions"],
            "ray": run["ray"],
            "date": date,
            "program": "python -m harness.convergence.trainer.trainer_program",
        },
        "series": {name: values for name, values in run["series"].items() if name not in LEFT_OUT},
    }
    return {**body, "digest": digest_json(body)}


def write(folder: Path, body: Mapping[str, Any]) -> Path:
    """Write a record under its algorithm, its version of verl and the first 12 digits of its digest."""
    verl = body["provenance"]["versions"]["verl"]
    path = folder / f"{body['recipe']['algorithm']}-{verl}-{body['digest'][:12]}.json"
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Record:
    """Read and verify a record; InputError when it is not one or was changed by hand."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        digest = body.pop("digest")
        if body["schema"] != SCHEMA or digest_json(body) != digest:
            raise InputError(
                "the record has another schema than this version reads, or was edited",
                where=Location(path),
                fix="record it again",
            )
        return Record(
            digest=digest,
            recipe_digest=body["recipe_digest"],
            provenance=body["provenance"],
            series=decode_series(body["series"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"not a record of a run: {error}", where=Location(path), fix="record it again"
        ) from error


def recorded(recipe_digest: str, verl: str, folder: Path = FOLDER) -> Record | None:
    """The record of exactly these settings: with this verl if there is one, else with another, or None."""
    known = [load(path) for path in sorted(folder.glob("*.json"))]
    fitting = [one for one in known if one.recipe_digest == recipe_digest]
    return next((one for one in fitting if one.verl == verl), fitting[0] if fitting else None)


def same_start(recipe: TrainerRecipe, digest: str, verl: str, folder: Path = FOLDER) -> Record | None:
    """The record whose first step is that of these settings: `recorded`, or that of a run of another length.

    recipe, digest: of a run; what was set beside its recipe is in the digest alone.
    """
    exact = recorded(digest, verl, folder)
    if exact is not None:
        return exact
    if recipe.digest() != digest:
        return None
    known = [load(path) for path in sorted(folder.glob("*.json"))]
    fitting = [
        one for one in known if dataclasses.replace(recipe, steps=one.steps).digest() == one.recipe_digest
    ]
    return next((one for one in fitting if one.verl == verl), fitting[0] if fitting else None)


def main(arguments: Sequence[str]) -> int:
    """Write the record of a run; its path goes to standard output."""
    run, folder = (Path(argument) for argument in arguments)
    found = json.loads(run.read_text(encoding="utf-8"))
    if found["state"] != "measured" or not found["complete"]:
        sys.stderr.write(f"{run} is of a run that did not end well\n")
        return 2
    body = content(found, date=dt.datetime.now(dt.timezone.utc).date().isoformat())
    sys.stdout.write(f"{write(folder, body)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
