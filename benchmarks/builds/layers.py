"""Builds of cells that share layers, against one build for each cell: a count, over locks of a ledger.

    npu-matrix run --check resolve
    python benchmarks/builds/layers.py [--profile NAME] [--state FOLDER]

Every cell with a lock is built with the engine in memory, in the order of the plan. Printed: layers the cells
have, layers that were built, and what one more line in a patch of every cell costs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.engines.engine import BuildTimeFiles
from harness.builds.engines.image_build import build_image
from harness.builds.engines.image_layers import Layer, PatchedTree, image_layers
from harness.builds.engines.memory_engine import MemoryEngine
from harness.builds.lock.cell_lock import CellLock, make_lock
from harness.builds.lock.omitted_packages import omitted_packages
from harness.ledger.store import Ledger
from harness.plan.keys.facets import facet_values
from harness.serialisation import as_object
from harness.settings import Settings, load_settings
from harness.workspace.planning.open_plan import facet_inputs, open_matrix, open_plan
from harness.workspace.planning.plan_selection import select_cells

FACETS = ("pins", "platform", "device")


def locks(settings: Settings) -> list[CellLock]:
    """Of every cell of the profile that was resolved, without what the simulated device does without."""
    matrix = open_matrix(settings)
    plan = open_plan(settings, checks=["resolve"]).plan
    keys = {entry.cell_id: entry.key for entry in plan.entries if entry.check == "resolve"}
    inputs, found = facet_inputs(settings, matrix), []
    facts = {cell.id: cell for cell in plan.cells}
    with Ledger.open(settings.path("state")) as ledger:
        for cell in select_cells(settings, matrix):
            outcome = ledger.get(keys[cell.id])
            ref = outcome.artifact("lock.txt") if outcome else None
            if ref is None:
                continue
            facets = facet_values(cell, FACETS, inputs)
            text = ledger.artifacts.get(ref).read_text("utf-8")
            made = make_lock(as_object(facts[cell.id]), facets["pins"], facets["platform"], (), text)
            gone = omitted_packages(made.packages, facets["device"]["kind"])
            found.append(replace(made, packages=tuple(p for p in made.packages if p.name not in gone)))
    return found


def layers_of(lock: CellLock, text: bytes) -> Sequence[Layer]:
    """With one patched file, as most cells have some."""
    base = f"{lock.image}|{lock.arch}"
    return image_layers(lock, base, PatchedTree(files={"verl/a.py": text}, before={"verl/a.py": "0" * 64}))


def build_all(engine: MemoryEngine, cells: Sequence[CellLock], text: bytes, folder: Path) -> int:
    """How many layers were built."""
    before = len(engine.built)
    for lock in cells:
        base = engine.image(lock.image) or engine.add_base(lock.image, lock.arch)
        build_image(
            engine,
            base,
            layers_of(lock, text),
            build_files=BuildTimeFiles(),
            labels={},
            locks=folder,
            log=lambda _text: None,
        )
    return len(engine.built) - before


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile")
    parser.add_argument("--state")
    options = parser.parse_args()
    flags = {"profile": options.profile, "state": options.state}
    cells = locks(load_settings(flags, os.environ, Path.cwd()))
    engine = MemoryEngine()
    with tempfile.TemporaryDirectory() as name:
        first = build_all(engine, cells, b"A = 1\n", Path(name))
        again = build_all(engine, cells, b"A = 1\n", Path(name))
        changed = build_all(engine, cells, b"A = 2\n", Path(name))
    every = [layers_of(lock, b"A = 1\n") for lock in cells]
    distinct = {layer.key for layers in every for layer in layers}
    report = {
        "cells": len(cells),
        "layers_of_all_cells": sum(len(layers) for layers in every),
        "distinct_layers": len(distinct),
        "built": first,
        "built_again": again,
        "built_after_a_line_in_a_patch": changed,
        "distinct_patch_layers": len({layers[-1].key for layers in every}),
    }
    print(json.dumps(report, indent=1))
    return 0 if first == len(distinct) and again == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
