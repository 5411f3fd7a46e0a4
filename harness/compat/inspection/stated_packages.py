"""The packages and versions that an environment, an image or a text has."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from harness.matrix.cells.pins import normal_package
from harness.matrix.model.definitions import Axis


class SourceKind(str, enum.Enum):
    """Where an inventory comes from. The first two have files, the others state versions only."""

    ENVIRONMENT = "environment"
    IMAGE = "image"
    FREEZE = "pip freeze"
    COLLECT_ENV = "collect_env"
    REQUIREMENTS = "requirements"

    @property
    def is_installed(self) -> bool:
        """Whether the packages are installed, so that their installation cannot fail any more."""
        return self is not SourceKind.REQUIREMENTS

    @property
    def has_files(self) -> bool:
        """Whether the files of the packages can be read."""
        return self in {SourceKind.ENVIRONMENT, SourceKind.IMAGE}


@dataclass(frozen=True, kw_only=True)
class StatedPackage:
    """A package. name: normalised. commit: if it was installed from a repository. where: line or folder."""

    name: str
    version: str
    commit: str = ""
    where: str = ""

    @property
    def requirement(self) -> str:
        """The requirement of this release, without the local part that builds of vendors have."""
        return f"{self.name}=={public_version(self.version)}"


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What was found. where: the source in words.

    python, arch, cann, driver, soc: "" where the source does not say. ranges: requirements without a single
    version. unread: parts of the source that were not understood, in words.
    """

    kind: SourceKind
    where: str
    packages: Mapping[str, StatedPackage] = field(default_factory=dict)
    python: str = ""
    arch: str = ""
    cann: str = ""
    driver: str = ""
    soc: str = ""
    ranges: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def axes(self, axes: Mapping[str, Axis]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Axis -> version, and a sentence for each version that the axis cannot have."""
        stated = {name: self._value(axis) for name, axis in axes.items() if axis.package}
        facts = {"python": ".".join(self.python.split(".")[:2])}
        facts |= {"cann": self.cann, "driver": self.driver, "soc": self.soc}
        found: dict[str, str] = {}
        refused: list[str] = []
        for name, text in {**stated, **facts}.items():
            if not text or name not in axes:
                continue
            try:
                axes[name].parse(text)
            except ValueError as error:
                refused.append(f"{name} {text} was not compared: {error}")
            else:
                found[name] = text
        return found, tuple(refused)

    def _value(self, axis: Axis) -> str:
        package = self.packages.get(normal_package(axis.package))
        if package is None:
            return ""
        version = public_version(package.version)
        return f"{version}@{package.commit}" if package.commit and version else version


def public_version(text: str) -> str:
    """A version without its local part: 2.7.1+cpu is a build of 2.7.1. Other texts stay as they are."""
    try:
        return Version(text).public
    except InvalidVersion:
        return text
