"""From a cell to the requirements an environment is resolved from."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from harness.matrix.model.cell import Cell, Pin
from harness.matrix.model.definitions import Axis, PinRule
from harness.matrix.model.versions import Scheme, Version, parse_version

_COMPARISON = re.compile(r"^\s*(?:==|~=|!=|<=|>=|<|>)")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._, -]+\])?"
    r" *(?P<comparisons>(?:(?:==|~=|!=|<=|>=|<|>)[^,<>=!~;@\n]+(?:, *|$))*)"
)


def placeholders(template: str) -> tuple[str, ...]:
    """The names in braces; ValueError when the braces hold anything else."""
    fields = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            raise ValueError(f"{{{name}}} in {template!r} is not a plain name")
        fields.append(name)
    return tuple(dict.fromkeys(fields))


def check_template(template: str, axes: Sequence[str]) -> None:
    """ValueError unless `template` becomes a requirement (name, extras, comparisons) with values put in.

    URLs and environment markers are not for pins, and reading them would import far more.
    """
    match = _REQUIREMENT.fullmatch(template.format_map(dict.fromkeys(axes, "1.0")))
    if not match:
        raise ValueError(f"{template!r} is not a requirement such as transformers>=4.57,<5")
    for clause in filter(None, match["comparisons"].split(",")):
        parse_version(Scheme.PEP440, _COMPARISON.sub("", clause).strip().removesuffix(".*"))


def resolve_rules(rules: Sequence[PinRule], versions: Mapping[str, Version]) -> tuple[Pin, ...]:
    """The pins of the rules whose conditions the cell meets, in their order; equal requirements once."""
    pins: dict[str, Pin] = {}
    for rule in rules:
        if not all(condition.holds(versions) for condition in rule.when):
            continue
        if not all(axis in versions for axis in rule.axes):
            continue
        text = rule.template.format_map({axis: versions[axis].nominal for axis in rule.axes})
        pins.setdefault(text, Pin(requirement=text, reason=rule.reason, source=rule.source, where=rule.where))
    return tuple(pins.values())


def pins_facet(cell: Cell, axes: Mapping[str, Axis]) -> dict[str, Any]:
    """The `pins` facet of a cell: what its environment is resolved from, as JSON.

    requirements: for the package index. overrides: replace what packages ask for. from_source: packages
    built from a repository at a commit or tag ("" in `commit`: the tag of the version is not known).
    index: extra package indexes. build_env: package -> environment its installation needs.
    reasons: requirement -> why. Nothing in it depends on where in the file a value stands.
    """
    facet: dict[str, Any] = {
        "requirements": [],
        "overrides": [pin.requirement for pin in cell.overrides],
        "from_source": [],
        "index": [],
        "build_env": {},
        "reasons": {},
    }
    stated = f"stated for {cell.stack}: {cell.source}" if cell.stack else "a value of the cell"
    for name, axis in axes.items():
        if name not in cell.axes or not axis.package:
            continue
        version = axis.parse(cell.axes[name])
        if version.ref or not axis.on_index:
            facet["from_source"].append(_source(axis, version))
        else:
            requirement = f"{axis.package}=={version.nominal}"
            facet["requirements"].append(requirement)
            facet["reasons"][requirement] = f"{axis.title} {version.nominal} is {stated}"
        if axis.build_env:
            facet["build_env"][axis.package] = dict(axis.build_env)
        facet["index"] += [url for url in axis.extra_index if url not in facet["index"]]
    facet["requirements"] += [pin.requirement for pin in cell.pins]
    facet["reasons"] |= {
        pin.requirement: f"{pin.reason} ({pin.source})" for pin in (*cell.pins, *cell.overrides)
    }
    return facet


def _source(axis: Axis, version: Version) -> dict[str, str]:
    tag = axis.tag.format_map({"version": version.nominal}) if axis.tag else ""
    return {
        "package": axis.package,
        "version": version.nominal,
        "commit": version.ref or tag,
        "repository": axis.repository,
    }
