"""Reference sets: recorded runs of one recipe with their provenance, in files named by a content digest."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.convergence.telemetry.series import Series, decode_series, encode_series
from harness.convergence.telemetry.training_records import ReferenceProvenance, Settings
from harness.digest import digest_json
from harness.errors import InputError, Location
from harness.measurements import OldMeasurementsError, read_shape
from harness.package import data_folder
from harness.serialisation import json_object

JsonObject = dict[str, Any]

SCHEMA = {"name": "npu-matrix/reference", "version": 1}
FOLDER = data_folder("convergence/decision/references")
# Variable with the folder of the user's own reference sets, which take precedence over the shipped ones.
FOLDER_VARIABLE = "NPU_MATRIX_REFERENCES"
# Series that depend on the machine: stored separately, and only compared with runs on the same machine.
PERFORMANCE = ("seconds", "throughput", "memory_gb")
# `exact` is redundant: it follows from the reward.
LEFT_OUT = (*PERFORMANCE, "exact")
# More steps than the rule compares, so that the rule can change without new recordings.
TWIN_STEPS = 6


@dataclass(frozen=True, kw_only=True)
class ReferenceSet:
    """Recorded runs of one recipe.

    digest: of the whole content of the file. seeds: one for each run.
    twins: for each seed that candidates train, its first `TWIN_STEPS` steps.
    performance: the series in `PERFORMANCE` of each run; empty if they were not recorded.
    """

    name: str
    digest: str
    recipe_digest: str
    recipe: Settings
    provenance: ReferenceProvenance
    seeds: tuple[int, ...]
    runs: tuple[Mapping[str, tuple[float, ...]], ...]
    twins: Mapping[int, Mapping[str, tuple[float, ...]]]
    performance: tuple[Mapping[str, tuple[float, ...]], ...] = ()

    @property
    def steps(self) -> int:
        """The number of steps of the longest run."""
        return max((len(values) for run in self.runs for values in run.values()), default=0)

    @property
    def host(self) -> str:
        """The id of the machine on which it was recorded, or ""."""
        return self.provenance.host.id if self.provenance.host else ""

    def twins_of(self, seeds: Sequence[int]) -> list[Mapping[str, tuple[float, ...]] | None]:
        """The recorded first steps of the given seeds, None for seeds that were not recorded."""
        return [self.twins.get(seed) for seed in seeds]


def content(
    *,
    name: str,
    recipe_digest: str,
    recipe: Settings,
    provenance: ReferenceProvenance,
    runs: Sequence[tuple[int, Series]],
    twins: Sequence[tuple[int, Series]] = (),
) -> JsonObject:
    """The JSON of a reference set; `runs` and `twins` are pairs (seed, series)."""
    timed = [(seed, {key: series[key] for key in PERFORMANCE if key in series}) for seed, series in runs]
    body = {
        "schema": SCHEMA,
        "name": name,
        "recipe_digest": recipe_digest,
        "recipe": dict(recipe),
        "provenance": {key: value for key, value in json_object(provenance).items() if value},
        "runs": [_entry(seed, series) for seed, series in runs],
        "twins": [
            _entry(seed, {key: values[:TWIN_STEPS] for key, values in series.items()})
            for seed, series in twins
        ],
        **({"performance": [_row(seed, series) for seed, series in timed]} if provenance.host else {}),
    }
    return {**body, "digest": digest_json(body)}


def _entry(seed: int, series: Series) -> JsonObject:
    return _row(seed, {key: values for key, values in series.items() if key not in LEFT_OUT})


def _row(seed: int, series: Series) -> JsonObject:
    return {"seed": seed, "series": encode_series(series)}


def write(folder: Path, body: JsonObject) -> Path:
    """Write a reference set under its name and the first 12 digits of its digest, one series per line."""
    rows = [key for key in ("runs", "twins", "performance") if key in body]
    head = {key: value for key, value in body.items() if key not in rows}
    parts = [f'"{key}": [\n{_rows(body[key])}\n ]' for key in rows]
    text = ",\n ".join([json.dumps(head, indent=1)[:-2], *parts])
    path = folder / f"{body['name']}-{body['digest'][:12]}.json"
    path.write_text(text + "\n}\n", encoding="utf-8")
    return path


def _rows(runs: Sequence[JsonObject]) -> str:
    rows = []
    for run in runs:
        series = ",\n   ".join(
            f"{json.dumps(name)}: {json.dumps(values, separators=(',', ':'))}"
            for name, values in run["series"].items()
        )
        rows.append(f'  {{"seed": {run["seed"]}, "series": {{\n   {series}}}}}')
    return ",\n".join(rows)


def load(path: Path) -> ReferenceSet:
    """Read and verify a reference set. Raises InputError if it is invalid or was edited."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        digest = body.pop("digest")
        if body["schema"] != SCHEMA:
            raise InputError(
                f"unknown schema {body['schema']!r}", where=Location(path), fix=f"this version reads {SCHEMA}"
            )
        if digest_json(body) != digest:
            raise InputError(
                "the digest in the reference set does not match its content",
                where=Location(path),
                why="it was edited after it was recorded",
                fix="record it again: python -m harness.convergence.smoke.record_smoke",
            )
        return ReferenceSet(
            name=body["name"],
            digest=digest,
            recipe_digest=body["recipe_digest"],
            recipe=body["recipe"],
            provenance=read_shape(ReferenceProvenance, body["provenance"]),
            seeds=tuple(run["seed"] for run in body["runs"]),
            runs=tuple(decode_series(run["series"]) for run in body["runs"]),
            twins={run["seed"]: decode_series(run["series"]) for run in body["twins"]},
            performance=tuple(decode_series(run["series"]) for run in body.get("performance", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OldMeasurementsError) as error:
        raise InputError(
            f"not a reference set: {error}", where=Location(path), fix="record it again"
        ) from error


def shipped_sets(folder: Path = FOLDER) -> tuple[ReferenceSet, ...]:
    """All reference sets of a folder, by name."""
    return tuple(load(path) for path in sorted(folder.glob("*.json")))


def known_sets(environ: Mapping[str, str] = os.environ) -> tuple[ReferenceSet, ...]:
    """The user's own reference sets and the shipped ones, in this order."""
    own = environ.get(FOLDER_VARIABLE)
    return (*(shipped_sets(Path(own)) if own else ()), *_shipped_sets_once())


@functools.cache
def _shipped_sets_once() -> tuple[ReferenceSet, ...]:
    """Reading and verifying them takes a tenth of a second, and every judgement of a training needs them."""
    return shipped_sets()


def for_recipe(recipe_digest: str, environ: Mapping[str, str] = os.environ) -> ReferenceSet | None:
    """The reference set recorded with exactly these settings, or None."""
    return next((one for one in known_sets(environ) if one.recipe_digest == recipe_digest), None)


def by_digest(digest: str, environ: Mapping[str, str] = os.environ) -> ReferenceSet | None:
    """The reference set with this digest, or None."""
    return next((one for one in known_sets(environ) if one.digest == digest), None)
