"""Which of the packages of a list use which other ones, and with which modules each of them starts."""

from __future__ import annotations

import configparser
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.requirements import Requirement

from harness.compat.api.consumers import CONSUMERS, Consumer
from harness.compat.uses.package_pairs import Package
from harness.compat.uses.package_uses import NOT_SHIPPED
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_sources import (
    exact_version,
    release_entry_points,
    release_requirements,
)

#: A package of whose modules this share import another one cannot do without it, whatever its metadata says.
#: In 41 pairs of 11 releases of 2025, optional providers have at most 0.023 (torch in ray 2.53.0); torch in
#: transformers 4.53.0, which only extras require, has 0.25.
USED_THROUGHOUT = 0.1
_PROGRAMS = ("console_scripts", "gui_scripts")


def all_consumers(stated: Sequence[Package]) -> tuple[Consumer, ...]:
    """The known consumers, and those among the packages of a list."""
    found = {one.package: one for one in CONSUMERS} | {one.package: one for one in _stated_consumers(stated)}
    return tuple(found.values())


def _stated_consumers(packages: Sequence[Package]) -> Iterator[Consumer]:
    """A consumer for each package that uses another one, checked against all that it uses."""
    metadata = {one.name: _requirements(one) for one in packages}
    for consumer in packages:
        own = metadata[consumer.name]
        shares = _importing_shares(consumer, [one for one in packages if one.top != consumer.top])
        # A package that requires its plugins is their provider, and not checked as one that uses them.
        named = [
            name
            for name, share in shares.items()
            if name in own or (share and consumer.name not in metadata[name])
        ]
        # A package that pins one version of another was built for it: `resolve` compares the versions.
        providers = tuple(name for name in named if not any(map(exact_version, own.get(name, ()))))
        known = next((one for one in CONSUMERS if one.package == consumer.name), None)
        if known:
            yield replace(known, providers=tuple(dict.fromkeys((*known.providers, *providers))))
        elif providers:
            yield Consumer(
                package=consumer.name,
                providers=providers,
                roots=entry_modules(consumer, [one.top for one in packages if one.name in providers]),
                required=tuple(
                    name
                    for name in providers
                    if shares[name] >= USED_THROUGHOUT or any(one.marker is None for one in own.get(name, ()))
                ),
            )


def entry_modules(package: Package, providers: Sequence[str] = ()) -> tuple[str, ...]:
    """The modules that start when a package is imported, run as a program, or found as a plugin.

    providers: top-level names of the packages whose plugins are loaded.
    """
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(release_entry_points(package.file))
    except configparser.Error:
        return (package.top,)
    groups = [one for one in parser.sections() if one in _PROGRAMS or one.partition(".")[0] in providers]
    modules = (value.partition(":")[0].strip() for group in groups for value in parser[group].values())
    return tuple(dict.fromkeys((package.top, *modules)))


def _requirements(package: Package) -> Mapping[str, Sequence[Requirement]]:
    """Package -> its requirements in the metadata, also those of extras."""
    found: dict[str, list[Requirement]] = {}
    for one in map(Requirement, release_requirements(package.file)):
        found.setdefault(normal_name(one.name), []).append(one)
    return found


def _importing_shares(consumer: Package, others: Sequence[Package]) -> dict[str, float]:
    """Other package -> the share of the consumer's modules that import it when they are imported."""
    tops = b"|".join(re.escape(one.top.encode()) for one in others)
    imports = re.compile(rb"^(?:from|import)[ \t]+(%s)\b" % tops, re.MULTILINE)
    found = [set(imports.findall(text)) for text in _texts(consumer)] if others else []
    return {
        one.name: sum(one.top.encode() in names for names in found) / max(1, len(found)) for one in others
    }


def _texts(package: Package) -> Iterator[bytes]:
    with zipfile.ZipFile(package.file) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and name.partition("/")[0] not in NOT_SHIPPED:
                yield archive.read(name)
