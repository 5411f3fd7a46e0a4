"""Computes the package requirements of a cell, from which its environment is resolved."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from packaging.specifiers import SpecifierSet

from harness.matrix.model.cell import Cell, Pin
from harness.matrix.model.definitions import Axis, PinRule
from harness.matrix.model.environment_facets import PinnedOverride, PinnedSource, PinsFacet
from harness.matrix.model.versions import Scheme, Version, parse_version

_OPERATOR = r"(?:==|~=|!=|<=|>=|<|>)"
_COMPARISON = re.compile(rf"^\s*{_OPERATOR}")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._, -]+\])?"
    rf" *(?P<comparisons>(?:{_OPERATOR}[^,<>=!~;@\n]+(?:, *|$))*)"
)


def normal_package(name: str) -> str:
    """The normalised name of a distribution (PEP 503): lower case, with dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_package(requirement: str) -> str:
    """The normalised name of the package in a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return normal_package(match[0]) if match else ""


def permits(requirement: str, version: Version) -> bool:
    """Whether a requirement allows a version of its package, compared as installers do."""
    match = _REQUIREMENT.fullmatch(requirement)
    allowed = SpecifierSet(match["comparisons"] if match else "")
    return allowed.contains(version.nominal, prereleases=True)


def placeholders(template: str) -> tuple[str, ...]:
    """The names in braces; ValueError if braces contain anything else."""
    names = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            raise ValueError(f"{{{name}}} in {template!r} is not a plain name")
        names.append(name)
    return tuple(dict.fromkeys(names))


def check_template(template: str, axes: Sequence[str]) -> None:
    """ValueError unless `template` is a requirement after its placeholders are replaced by versions.

    URLs and environment markers are not allowed. `packaging` would have to be imported to parse them.
    """
    match = _REQUIREMENT.fullmatch(template.format_map(dict.fromkeys(axes, "1.0")))
    if not match:
        raise ValueError(f"{template!r} is not a requirement such as transformers>=4.57,<5")
    for clause in filter(None, match["comparisons"].split(",")):
        parse_version(Scheme.PEP440, _COMPARISON.sub("", clause).strip().removesuffix(".*"))


def resolve_rules(rules: Sequence[PinRule], versions: Mapping[str, Version]) -> tuple[Pin, ...]:
    """The pins of the rules that apply to these versions, in the order of the rules, without duplicates.

    An override gives one pin for each package whose requirement it replaces.
    """
    pins: dict[tuple[str, str, str], Pin] = {}
    for rule in rules:
        if not all(condition.holds(versions) for condition in rule.when):
            continue
        if not all(axis in versions for axis in rule.axes):
            continue
        text = rule.template.format_map({axis: versions[axis].nominal for axis in rule.axes})
        for of in rule.of or ("",):
            pin = Pin(
                requirement=text,
                reason=rule.reason,
                source=rule.source,
                of=of,
                yields_to=rule.yields_to,
                where=rule.where,
            )
            pins.setdefault((text, of, rule.yields_to), pin)
    return tuple(pins.values())


def pins_facet(cell: Cell, axes: Mapping[str, Axis]) -> PinsFacet:
    """The facet `pins` of a cell."""
    requirements: list[str] = []
    from_source: list[PinnedSource] = []
    build_env: dict[str, Mapping[str, str]] = {}
    for name, axis in axes.items():
        if name not in cell.axes or not axis.package:
            continue
        version = axis.parse(cell.axes[name])
        if version.ref or not axis.on_index:
            from_source.append(_pinned_source(axis, version))
        else:
            requirements.append(f"{axis.package}=={version.nominal}")
        if axis.build_env:
            build_env[axis.package] = axis.build_env
    return PinsFacet(
        requirements=(*requirements, *(pin.requirement for pin in cell.pins)),
        overrides=tuple(
            PinnedOverride(
                of=pin.of,
                requirement=pin.requirement,
                reason=pin.reason,
                source=pin.source,
                yields_to=pin.yields_to,
            )
            for pin in cell.overrides
        ),
        from_source=tuple(from_source),
        index={
            normal_package(axis.package): axis.extra_index
            for name, axis in axes.items()
            if axis.package and axis.extra_index and axis.may_be_on_extra_index(cell.axes.get(name, ""))
        },
        build_env=build_env,
    )


def _pinned_source(axis: Axis, version: Version) -> PinnedSource:
    tag = axis.tag.format_map({"version": version.nominal}) if axis.tag else ""
    return PinnedSource(
        package=axis.package,
        version=version.nominal,
        commit=version.ref or tag,
        repository=axis.repository,
    )
