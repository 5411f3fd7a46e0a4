"""What to resolve: a cell's pins and target, as the files and arguments uv wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from harness.errors import InputError
from harness.sources.git.mirrors import find_mirror
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.source_requirements import declared_requirements

# The C library of the oldest system that CANN images are built on (openEuler 22.03: glibc 2.34).
CROSS_PLATFORM = "manylinux_2_34"


@dataclass(frozen=True, kw_only=True)
class RequirementOverride:
    """A requirement that replaces what packages say of it, and why that is right."""

    requirement: str
    reason: str

    def lines(self) -> list[str]:
        """The override as lines of a requirements file, under its reason."""
        reason = " ".join(self.reason.split())
        return [f"# {reason}", self.requirement] if reason else [self.requirement]


@dataclass(frozen=True, kw_only=True)
class ResolveRequest:
    """One resolution. `from_source` are packages that do not come from an index and are left out.

    source_requirements: by package, what those require whose sources are at hand.
    """

    requirements: tuple[str, ...]
    overrides: tuple[RequirementOverride, ...]
    from_source: tuple[Mapping[str, Any], ...]
    indexes: tuple[str, ...]
    python: str
    arch: str
    host: bool
    source_requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_facets(cls, pins: Mapping[str, Any], platform: Mapping[str, Any]) -> ResolveRequest:
        """Read the facets `pins` and `platform`; InputError for a requirement that is none."""
        reasons = pins.get("reasons", {})
        source = tuple(pins.get("from_source", ()))
        left_out = {normal_name(str(item["package"])) for item in source}
        requirements = [r for r in pins.get("requirements", ()) if _name(r) not in left_out]
        return cls(
            # In the order of the matrix: the resolver favours what stands first, and with the stack's own
            # packages behind a third party's it goes back to years-old releases.
            requirements=tuple(requirements),
            overrides=tuple(
                RequirementOverride(requirement=text, reason=str(reasons.get(text, "")))
                for text in sorted(pins.get("overrides", ()))
                if _name(text) not in left_out
            ),
            from_source=source,
            indexes=tuple(pins.get("index", ())),
            python=str(platform["python"]),
            arch=str(platform["arch"]),
            host=bool(platform.get("host", False)),
        )

    def with_sources(self, mirrors: Path | None) -> ResolveRequest:
        """With what the packages from source require, where `mirrors` has their commits.

        Only for this machine: on hardware a stack's author installs them over what he has pinned.
        """
        if mirrors is None or not self.host:
            return self
        found = {}
        for item in self.from_source:
            repository = find_mirror(mirrors, item["commit"]) if item["commit"] else None
            if repository is not None:
                found[str(item["package"])] = declared_requirements(repository.tree(item["commit"]))
        return replace(self, source_requirements=found)

    @property
    def target(self) -> str:
        """The target in words."""
        return f"Python {self.python} on {'this machine' if self.host else f'{self.arch} {CROSS_PLATFORM}'}"

    def arguments(self) -> list[str]:
        """uv's arguments for the target."""
        platform = [] if self.host else ["--python-platform", f"{self.arch}-{CROSS_PLATFORM}"]
        return ["--python-version", self.python, *platform]

    def write(self, folder: Path) -> None:
        """Write `requirements.in` and `overrides.txt`, each override under its reason if one is handed in."""
        wanted = [
            *self.requirements,
            *(text for texts in self.source_requirements.values() for text in texts),
        ]
        folder.joinpath("requirements.in").write_text("".join(f"{r}\n" for r in wanted), "utf-8")
        lines = [line for override in self.overrides for line in override.lines()]
        folder.joinpath("overrides.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def requirement_names(requirements: Sequence[str]) -> tuple[str, ...]:
    """The normal names of requirements."""
    return tuple(_name(requirement) for requirement in requirements)


def _name(requirement: str) -> str:
    try:
        return normal_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        raise InputError(
            f"{requirement!r} is not a requirement", why=str(error), fix="write it as name==version"
        ) from error
