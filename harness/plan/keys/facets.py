"""Facets: the named projections of a cell that checks read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import Location
from harness.matrix.cells.pins import pins_facet
from harness.matrix.model.cell import Cell, Pin
from harness.matrix.model.definitions import Axis, Recipe
from harness.serialisation import to_json

HOST_PYTHON = "host"
#: The axes whose upstreams we have patches for, in the order in which these are applied.
PATCHED = ("verl", "vllm_ascend")
NPU_HOST_ARCHITECTURE = "aarch64"


@dataclass(frozen=True, kw_only=True)
class FacetInputs:
    """What facets need beyond the cell itself, read once at the edge.

    host_python, host_arch: `3.11`, `x86_64` of the interpreter and machine that plan.
    patches: (upstream, version) -> the selected patches with their digests.
    recipes: recipe name -> what the matrix says of it.
    axes: axis name -> what the matrix says of it.
    simulator: digest of the simulated device, part of what a simulated cell runs on.
    engine: container engine and base image that cells run in and on; empty for the embedded engine.
    """

    host_python: str
    host_arch: str
    patches: Callable[[str, str], list[dict[str, Any]]]
    recipes: Mapping[str, Recipe]
    axes: Mapping[str, Axis]
    simulator: str = ""
    engine: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def packaged(self) -> tuple[str, ...]:
        """The axes whose values are installed, and so stand in `pins`."""
        return tuple(name for name, axis in self.axes.items() if axis.package)


def _platform(cell: Cell, inputs: FacetInputs) -> Any:
    python = cell.axes.get("python", HOST_PYTHON)
    chosen = inputs.host_python if python == HOST_PYTHON else python
    if cell.device != "npu":
        return {"python": chosen, "arch": inputs.host_arch, "host": True}
    return {"python": chosen, "arch": NPU_HOST_ARCHITECTURE, "host": False}


def _device(cell: Cell, inputs: FacetInputs) -> Any:
    family = cell.axes.get("soc", "")
    facts = inputs.axes["soc"].values.get(family, {}) if "soc" in inputs.axes else {}
    device = {
        "kind": cell.device,
        "soc": facts.get("soc_name", family),
        "cann": cell.axes.get("cann", ""),
        "count": 1,
        **inputs.engine,
    }
    # Outcomes of hardware must not depend on the simulator's code.
    return {**device, "simulator": inputs.simulator} if cell.device == "sim" else device


def _versions(cell: Cell, _inputs: FacetInputs) -> Any:
    return dict(cell.axes)


def _recipe(cell: Cell, inputs: FacetInputs) -> Any:
    recipe = inputs.recipes.get(cell.recipe)
    if recipe is None:
        return None
    return {
        "name": recipe.name,
        "kind": recipe.kind,
        "algorithm": recipe.algorithm,
        "entry": recipe.entry,
        "overrides": dict(recipe.overrides),
        "env": dict(recipe.env),
        "nodes": recipe.nodes,
        "cards": recipe.cards,
        "model": recipe.model,
    }


def _pins(cell: Cell, inputs: FacetInputs) -> Any:
    return to_json(pins_facet(cell, inputs.axes))


def _tree(upstream: str) -> Callable[[Cell, FacetInputs], Any]:
    def facet(cell: Cell, inputs: FacetInputs) -> Any:
        version, _, commit = cell.axes.get(upstream, "").partition("@")
        tree = {"package": upstream, "version": version}
        if not commit:
            return {**tree, "kind": "release"}
        return {
            **tree,
            "kind": "commit",
            "commit": commit,
            "repository": inputs.axes[upstream].repository,
        }

    return facet


def _patches(upstream: str) -> Callable[[Cell, FacetInputs], Any]:
    def facet(cell: Cell, inputs: FacetInputs) -> Any:
        version = cell.axes.get(upstream, "")
        selected = inputs.patches(upstream, version) if version else []
        return [patch for patch in selected if patch["id"] not in cell.without]

    return facet


def _patches_and_tree(upstream: str) -> Callable[[Cell, FacetInputs], Any]:
    """Each patch with the tree it is for: cells without a patch share a key, whatever version they have."""
    patches, tree = _patches(upstream), _tree(upstream)

    def facet(cell: Cell, inputs: FacetInputs) -> Any:
        return [{**patch, "tree": tree(cell, inputs)} for patch in patches(cell, inputs)]

    return facet


FACETS: Mapping[str, Callable[[Cell, FacetInputs], Any]] = {
    "device": _device,
    "patches[verl]": _patches("verl"),
    "patches[vllm_ascend]": _patches_and_tree("vllm_ascend"),
    "pins": _pins,
    "platform": _platform,
    "recipe": _recipe,
    "torch_npu": _tree("torch_npu"),
    "verl_tree": _tree("verl"),
    "versions": _versions,
    "vllm_ascend": _tree("vllm_ascend"),
}


#: Facets that practically every cell has to itself.
UNSHARED = frozenset({"versions"})
#: Facets that depend on these axes alone. Axes a cell lacks count as a value of their own.
READS: Mapping[str, tuple[str, ...]] = {
    "device": ("soc", "cann", "device"),
    "platform": ("python", "device"),
    "torch_npu": ("torch_npu",),
    "verl_tree": ("verl",),
    "vllm_ascend": ("vllm_ascend",),
}


class Columns:
    """The values of many cells by axis; each axis is read once."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self._axes: dict[str, list[str | None]] = {}

    def axis(self, name: str) -> list[str | None]:
        """The value of every cell, in their order; None where a cell lacks the axis."""
        if name not in self._axes:
            self._axes[name] = [cell.axes.get(name) for cell in self.cells]
        return self._axes[name]


def projections(name: str, columns: Columns, inputs: FacetInputs) -> Sequence[Hashable]:
    """What facet `name` depends on in each cell: cells that agree in it have the same facet.

    A name nobody defines is a ValueError.
    """
    if name in READS:
        return _rows([columns.axis(axis) for axis in READS[name]])
    if name in {f"patches[{upstream}]" for upstream in PATCHED}:
        return _rows([columns.axis(name[len("patches[") : -1]), [cell.without for cell in columns.cells]])
    if name == "pins":
        return _rows(
            [
                *(columns.axis(axis) for axis in inputs.packaged),
                _requirements([cell.pins for cell in columns.cells]),
                _requirements([cell.overrides for cell in columns.cells]),
            ]
        )
    if name == "recipe":
        return [cell.recipe for cell in columns.cells]
    if name not in FACETS:
        raise ValueError(f"no facet is called {name!r}")
    return [(cell.id, *cell.axes.items()) for cell in columns.cells]


def origins(name: str, cell: Cell, inputs: FacetInputs) -> tuple[Location, ...]:
    """Where what a facet of the cell is made of is written: its axes' values, rules, the job, the series."""
    upstream = name[len("patches[") : -1] if name.startswith("patches[") else ""
    if name == "recipe":
        return (inputs.recipes[cell.recipe].where,) if cell.recipe in inputs.recipes else ()
    axes = READS.get(name) or ((upstream,) if upstream else inputs.packaged if name == "pins" else cell.axes)
    found = [cell.provenance[axis] for axis in axes if axis in cell.provenance]
    if name == "pins":
        found += [pin.where for pin in (*cell.pins, *cell.overrides)]
    if upstream and FACETS[name](cell, inputs):
        found.append(Location(f"patches/{upstream}/series"))
    return tuple(dict.fromkeys(found))


def _rows(columns: Sequence[Sequence[Hashable]]) -> Sequence[Hashable]:
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _requirements(pins: Sequence[tuple[Pin, ...]]) -> list[Hashable]:
    """The requirements of each; cells of a product share few of these objects."""
    places = list(map(id, pins))
    known = dict(zip(places, pins, strict=True))
    # One word each, as its hash is kept; no requirement has a line break.
    texts = {place: "\n".join([pin.requirement for pin in mine]) for place, mine in known.items()}
    return list(map(texts.__getitem__, places))


def facet_values(cell: Cell, names: tuple[str, ...], inputs: FacetInputs) -> Mapping[str, Any]:
    """The named facets of a cell; a name nobody defines is a ValueError."""
    unknown = [name for name in names if name not in FACETS]
    if unknown:
        raise ValueError(f"no facet is called {unknown[0]!r}")
    return {name: FACETS[name](cell, inputs) for name in names}
