"""Facets: the parts of a cell that checks read, by name."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import Location
from harness.matrix.cells.pins import normal_package, pins_facet
from harness.matrix.cells.violations import Violation, Violations
from harness.matrix.model.cell import Cell, Pin
from harness.matrix.model.definitions import Axis, Recipe
from harness.matrix.model.environment_facets import ConstraintsFacet, PlatformFacet, ViolatedRule
from harness.matrix.model.suite import Suite
from harness.matrix.model.suite_facet import suite_facet
from harness.matrix.model.versions import Version
from harness.serialisation import to_json

HOST_PYTHON = "host"
#: The axes whose patches are a facet of their own, in the order in which the patches are applied.
PATCHED = ("verl", "vllm_ascend")
#: The facet with the patches of all other axes, applied after those.
OTHER_PATCHES = "patches[others]"
#: The architecture of NPU hosts for cells without the axis `arch`.
NPU_HOST_ARCHITECTURE = "aarch64"


@dataclass(frozen=True, kw_only=True)
class FacetInputs:
    """The inputs of facets in addition to the cell; they are read once per command.

    host_python, host_arch: version of Python and architecture of this host, for example `3.11` and `x86_64`.
    patches: (upstream, axis -> value of the cell) -> the selected patches with their digests.
    patched: the axes for whose upstreams there are patches.
    patch_repositories: the axes whose repositories have patches; for which upstreams, their commits decide.
    recipes: recipe name -> its definition in the matrix.
    axes: axis name -> its definition in the matrix.
    simulator: digest of the code of the simulated device, part of the facet `device` of simulated cells.
    engine: container engine and base image in which cells run; empty for virtual environments.
    rehearsed: whether cells on an NPU run on a stand-in for their host (`npu-matrix rehearse`).
    violations: finds what the constraints and tables of the matrix say about a cell.
    suites: the test suites of upstreams by name.
    """

    host_python: str
    host_arch: str
    patches: Callable[[str, Mapping[str, str]], list[dict[str, Any]]]
    recipes: Mapping[str, Recipe]
    axes: Mapping[str, Axis]
    patched: tuple[str, ...] = PATCHED
    patch_repositories: tuple[str, ...] = ()
    simulator: str = ""
    engine: Mapping[str, str] = field(default_factory=dict)
    rehearsed: bool = False
    violations: Violations = field(default_factory=lambda: Violations(axes={}, constraints=(), tables=()))
    suites: Mapping[str, Suite] = field(default_factory=dict)

    @functools.cached_property
    def others_patched(self) -> tuple[str, ...]:
        """The axes without a patch facet of their own for which every cell with them has patches."""
        return tuple(name for name in self.patched if name not in PATCHED)

    def others_patched_in(self, axes: Mapping[str, str]) -> tuple[str, ...]:
        """The axes without a patch facet of their own for which a cell with these values may have patches."""
        if not any(name in axes for name in self.patch_repositories):
            return self.others_patched
        return tuple(name for name in self.axes if name in axes and name not in PATCHED)

    @functools.cached_property
    def packaged(self) -> tuple[str, ...]:
        """The axes whose values are versions of packages, which the facet `pins` contains."""
        return tuple(name for name, axis in self.axes.items() if axis.package)


def _platform(cell: Cell, inputs: FacetInputs) -> Any:
    python = cell.axes.get("python", HOST_PYTHON)
    chosen = inputs.host_python if python == HOST_PYTHON else python
    if cell.device != "npu":
        return to_json(PlatformFacet(python=chosen, arch=inputs.host_arch, host=True))
    # A stand-in runs the packages of the machine on which it is.
    arch = inputs.host_arch if inputs.rehearsed else cell.axes.get("arch", NPU_HOST_ARCHITECTURE)
    return to_json(PlatformFacet(python=chosen, arch=arch))


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
    # Outcomes of hardware must not depend on the code of the simulated device.
    if cell.device == "npu" and inputs.rehearsed:
        return {**device, "simulator": inputs.simulator, "rehearsed": True}
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


def _paired(cell: Cell, inputs: FacetInputs) -> Any:
    """The releases whose uses of each other are compared: package -> version.

    torch_npu is not among them: its operators are compared by `npu-ops`, and it adds names to torch before it
    uses them.
    """
    requirements = pins_facet(cell, inputs.axes).requirements if cell.inspected else ()
    exact = (text.partition("==") for text in requirements)
    found = {normal_package(name): version for name, mark, version in exact if mark}
    return {name: version for name, version in found.items() if name != "torch-npu"}


def _constraints(cell: Cell, inputs: FacetInputs) -> Any:
    found = inputs.violations
    versions = _parsed_axes(cell, inputs)
    rules = tuple(map(_violated_rule, found.of(versions, cell.overrides)))
    return to_json(ConstraintsFacet(compared=found.compared(versions), violated=rules))


def _violated_rule(violation: Violation) -> ViolatedRule:
    override = violation.override
    return ViolatedRule(
        rule=violation.rule,
        kind=violation.kind.value,
        what=violation.what,
        reason=violation.reason,
        source=violation.source,
        override=f"{override.reason.rstrip('.')} ({override.source})" if override else "",
    )


def _parsed_axes(cell: Cell, inputs: FacetInputs) -> dict[str, Version]:
    return {
        name: inputs.axes[name].parse(cell.axes[name])
        for name in inputs.violations.axes_read
        if name in cell.axes
    }


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
        selected = inputs.patches(upstream, cell.axes) if cell.axes.get(upstream) else []
        return [patch for patch in selected if patch["id"] not in cell.without]

    return facet


def _patches_and_tree(upstream: str) -> Callable[[Cell, FacetInputs], Any]:
    """Each patch with the tree that it changes, so that cells without patches share a key."""
    patches, tree = _patches(upstream), _tree(upstream)

    def facet(cell: Cell, inputs: FacetInputs) -> Any:
        return [{**patch, "tree": tree(cell, inputs)} for patch in patches(cell, inputs)]

    return facet


def _other_patches(cell: Cell, inputs: FacetInputs) -> Any:
    found = [
        patch
        for upstream in inputs.others_patched_in(cell.axes)
        for patch in _patches_and_tree(upstream)(cell, inputs)
    ]
    # Patches that are not known are an entry of each upstream.
    known = [patch for patch in found if "unread" not in patch]
    unread = {patch["id"]: patch for patch in found if "unread" in patch}
    return [*unread.values(), *known]


def _suites(cell: Cell, inputs: FacetInputs) -> Any:
    """The test suites of the cell. What only describes a suite, or judges it, is left out."""
    versions = {
        name: inputs.axes[name].parse(value) for name, value in cell.axes.items() if name in inputs.axes
    }
    found = (suite for suite in inputs.suites.values() if suite.covers(cell, versions))
    return [to_json(suite_facet(suite, cell.axes[suite.upstream], inputs.axes)) for suite in found]


FACETS: Mapping[str, Callable[[Cell, FacetInputs], Any]] = {
    "constraints": _constraints,
    "device": _device,
    "patches[verl]": _patches("verl"),
    "patches[vllm_ascend]": _patches_and_tree("vllm_ascend"),
    OTHER_PATCHES: _other_patches,
    "paired": _paired,
    "pins": _pins,
    "platform": _platform,
    "recipe": _recipe,
    "suites": _suites,
    "torch_npu": _tree("torch_npu"),
    "verl_tree": _tree("verl"),
    "versions": _versions,
    "vllm_ascend": _tree("vllm_ascend"),
}


#: Facets whose value is different in almost every cell.
UNSHARED = frozenset({"versions"})
#: Facet -> the only axes that it depends on. A missing axis counts as a value.
READS: Mapping[str, tuple[str, ...]] = {
    "device": ("soc", "cann", "device"),
    "platform": ("python", "device", "arch"),
    "torch_npu": ("torch_npu",),
    "verl_tree": ("verl",),
    "vllm_ascend": ("vllm_ascend",),
}


class Columns:
    """The values of many cells by axis. Each axis is read once."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self._axes: dict[str, list[str | None]] = {}

    def axis(self, name: str) -> list[str | None]:
        """The value of the axis in every cell, in order; None for a cell without the axis."""
        if name not in self._axes:
            self._axes[name] = [cell.axes.get(name) for cell in self.cells]
        return self._axes[name]


def projections(name: str, columns: Columns, inputs: FacetInputs) -> Sequence[Hashable]:
    """The values of each cell on which facet `name` depends: cells with equal values have the same facet.

    ValueError for an undefined facet.
    """
    if name in READS:
        return _rows([columns.axis(axis) for axis in READS[name]])
    if name.startswith("patches["):
        read = (name[len("patches[") : -1],) if name != OTHER_PATCHES else inputs.others_patched
        repositories = [columns.axis(axis) for axis in inputs.patch_repositories]
        every = [_all_axes(cell, inputs) if name == OTHER_PATCHES else () for cell in columns.cells]
        without = [cell.without for cell in columns.cells]
        return _rows([*(columns.axis(axis) for axis in read), *repositories, every, without])
    if name == "pins":
        return _rows(
            [
                *(columns.axis(axis) for axis in inputs.packaged),
                _requirements([cell.pins for cell in columns.cells]),
                _requirements([cell.overrides for cell in columns.cells], with_reasons=True),
            ]
        )
    if name == "constraints":
        return _rows(
            [
                *(columns.axis(axis) for axis in inputs.violations.axes_read),
                _requirements([cell.overrides for cell in columns.cells], with_reasons=True),
            ]
        )
    if name == "paired":
        return [cell.id if cell.inspected else "" for cell in columns.cells]
    if name == "recipe":
        return [cell.recipe for cell in columns.cells]
    if name not in FACETS:
        raise ValueError(f"no facet is called {name!r}")
    return [(cell.id, *cell.axes.items()) for cell in columns.cells]


def _all_axes(cell: Cell, inputs: FacetInputs) -> Hashable:
    """All values of a cell, if any of its packages may be patched."""
    if not any(name in cell.axes for name in inputs.patch_repositories):
        return ()
    return tuple(cell.axes.items())


def origins(name: str, cell: Cell, inputs: FacetInputs) -> tuple[Location, ...]:
    """The places in the matrix and the patch stack that define the value of a facet of the cell."""
    upstream = name[len("patches[") : -1] if name.startswith("patches[") and name != OTHER_PATCHES else ""
    if name == "recipe":
        return (inputs.recipes[cell.recipe].where,) if cell.recipe in inputs.recipes else ()
    if name == "constraints":
        violated = inputs.violations.of(_parsed_axes(cell, inputs), cell.overrides)
        return tuple(dict.fromkeys(violation.where for violation in violated))
    repositories = inputs.patch_repositories
    several = {
        "pins": inputs.packaged,
        OTHER_PATCHES: (*inputs.others_patched_in(cell.axes), *repositories),
    }
    axes = READS.get(name) or ((upstream, *repositories) if upstream else several.get(name, tuple(cell.axes)))
    found = [cell.provenance[axis] for axis in axes if axis in cell.provenance]
    if name == "pins":
        found += [pin.where for pin in (*cell.pins, *cell.overrides)]
    patches = FACETS[name](cell, inputs) if upstream or name == OTHER_PATCHES else ()
    for patch in patches:
        folder, _, rest = str(patch["file"]).partition(f"/{upstream}/")
        own = upstream and rest and folder == "patches"
        found.append(Location(f"patches/{upstream}/series" if own else str(patch["file"])))
    return tuple(dict.fromkeys(found))


def _rows(columns: Sequence[Sequence[Hashable]]) -> Sequence[Hashable]:
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _requirements(pins: Sequence[tuple[Pin, ...]], *, with_reasons: bool = False) -> list[Hashable]:
    """The requirements of each cell as one text. Many cells share the same tuple, which is converted once."""

    def line(pin: Pin) -> str:
        reasons = (pin.reason, pin.source) if with_reasons else ()
        return json.dumps((pin.of, pin.requirement, pin.yields_to, *reasons))

    identities = list(map(id, pins))
    known = dict(zip(identities, pins, strict=True))
    # One text for each cell, because Python stores the hash of a text.
    texts = {identity: "\n".join(map(line, group)) for identity, group in known.items()}
    return list(map(texts.__getitem__, identities))


def facet_values(cell: Cell, names: tuple[str, ...], inputs: FacetInputs) -> Mapping[str, Any]:
    """The named facets of a cell; ValueError for an undefined facet."""
    unknown = [name for name in names if name not in FACETS]
    if unknown:
        raise ValueError(f"no facet is called {unknown[0]!r}")
    return {name: FACETS[name](cell, inputs) for name in names}
