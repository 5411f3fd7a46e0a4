"""Layers of cell images: builds executed against one build of every layer for each cell.

Every cell of the profile that has a lock in the ledger is built with the engine in memory, in the order of
the plan: once, again, and after one more line in a patch of every cell.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from memory_engine import MemoryEngine

from benchmarks.figures import ROOT, CannotRunError, Figure
from harness.builds.engines.engine import BuildTimeFiles
from harness.builds.engines.image_build import build_image
from harness.builds.engines.image_layers import Layer, PatchedTree, image_layers
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


def figures() -> Iterator[Figure]:
    cells = locks(load_settings({}, os.environ, ROOT))
    if not cells:
        raise CannotRunError("no cell has a lock in the ledger", "npu-matrix run --check resolve")
    engine = MemoryEngine()
    with tempfile.TemporaryDirectory() as name:
        first = build_all(engine, cells, b"A = 1\n", Path(name))
        again = build_all(engine, cells, b"A = 1\n", Path(name))
        changed = build_all(engine, cells, b"A = 2\n", Path(name))
    every = [layers_of(lock, b"A = 1\n") for lock in cells]
    yield Figure(
        claim=f"layers built for {len(cells)} cells",
        measured=first,
        limit=len({layer.key for layers in every for layer in layers}),
        rival=sum(len(layers) for layers in every),
        rival_name="every cell for itself",
    )
    yield Figure(claim="layers built when nothing changed", measured=again, limit=0)
    yield Figure(
        claim="layers built after one more line in a patch of every cell",
        measured=changed,
        limit=len({layers[-1].key for layers in every}),
        rival=first,
        rival_name="built again",
    )
