"""The input of a resolution: a cell's pins and target platform as the files and arguments that uv reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from harness.errors import InputError
from harness.sources.git.mirrors import find_mirror
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.resolve_measurements import RequirementOverride, SourcePackage
from harness.sources.packages.source_requirements import declared_requirements

# The glibc of openEuler 22.03, the oldest system that CANN images are built on.
CROSS_PLATFORM = "manylinux_2_34"


@dataclass(frozen=True, kw_only=True)
class ResolveRequest:
    """One resolution.

    from_source: packages that are built from a repository; they are not resolved themselves.
    source_requirements: package -> what it requires, for those whose commit a mirror has.
    host: whether the target is this machine.
    """

    requirements: tuple[str, ...]
    overrides: tuple[RequirementOverride, ...]
    from_source: tuple[SourcePackage, ...]
    indexes: tuple[str, ...]
    python: str
    arch: str
    host: bool
    source_requirements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_facets(cls, pins: Mapping[str, Any], platform: Mapping[str, Any]) -> ResolveRequest:
        """Read the facets `pins` and `platform`; InputError for an invalid requirement."""
        reasons = pins.get("reasons", {})
        source = tuple(SourcePackage(**item) for item in pins.get("from_source", ()))
        built = {normal_name(item.package) for item in source}
        return cls(
            # Keep the order of matrix.yaml: uv decides on the first requirements first. With a third party's
            # packages in front it goes back to releases of the stack that are years old.
            requirements=tuple(r for r in pins.get("requirements", ()) if _name(r) not in built),
            overrides=tuple(
                RequirementOverride(requirement=text, reason=str(reasons.get(text, "")))
                for text in sorted(pins.get("overrides", ()))
                if _name(text) not in built
            ),
            from_source=source,
            indexes=tuple(pins.get("index", ())),
            python=str(platform["python"]),
            arch=str(platform["arch"]),
            host=bool(platform.get("host", False)),
        )

    def with_sources(self, mirrors: Path | None) -> ResolveRequest:
        """This request with the requirements of the packages built from source whose commit a mirror has.

        Only for this machine. On hardware these packages are installed over an environment that their
        requirements did not shape.
        """
        if mirrors is None or not self.host:
            return self
        found = {}
        for item in self.from_source:
            repository = find_mirror(mirrors, item.commit) if item.commit else None
            if repository is not None:
                found[item.package] = declared_requirements(repository.tree(item.commit))
        return replace(self, source_requirements=found)

    @property
    def target(self) -> str:
        """The target platform in words."""
        return f"Python {self.python} on {'this machine' if self.host else f'{self.arch} {CROSS_PLATFORM}'}"

    def arguments(self) -> list[str]:
        """uv's arguments for the target platform."""
        platform = [] if self.host else ["--python-platform", f"{self.arch}-{CROSS_PLATFORM}"]
        return ["--python-version", self.python, *platform]

    def write(self, folder: Path) -> None:
        """Write `requirements.in` and `overrides.txt`, each override below its reason."""
        from_source = (text for texts in self.source_requirements.values() for text in texts)
        _write_lines(folder / "requirements.in", [*self.requirements, *from_source])
        _write_lines(
            folder / "overrides.txt", [line for override in self.overrides for line in _lines(override)]
        )


def requirement_names(requirements: Sequence[str]) -> tuple[str, ...]:
    """The normalized package names of requirements."""
    return tuple(_name(requirement) for requirement in requirements)


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _lines(override: RequirementOverride) -> list[str]:
    reason = " ".join(override.reason.split())
    return [f"# {reason}", override.requirement] if reason else [override.requirement]


def _name(requirement: str) -> str:
    try:
        return normal_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        raise InputError(
            f"{requirement!r} is not a valid requirement", why=str(error), fix="write it as name==version"
        ) from error
