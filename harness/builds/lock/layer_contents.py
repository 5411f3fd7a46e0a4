"""What each layer of a cell's image installs: locked packages, and packages built from repositories."""

from __future__ import annotations

from dataclasses import dataclass

from harness.builds.lock.cell_lock import LAYERS, CellLock, LockedSource
from harness.sources.packages.lockfile import LockedPackage
from harness.sources.packages.wheel_variants import VariantWheel


@dataclass(frozen=True, kw_only=True)
class LayerContent:
    """What a layer installs: locked packages, wheel variants, then packages that are built from repositories.

    compiled: packages of the index that are built here, because their build is configured for the device.
    fetched: wheel variants in place of some packages of the lock.
    """

    name: str
    packages: tuple[LockedPackage, ...]
    fetched: tuple[VariantWheel, ...]
    sources: tuple[LockedSource, ...]
    compiled: tuple[str, ...]


def layer_contents(lock: CellLock) -> tuple[LayerContent, ...]:
    """The layers of a lock in the order of installation, without empty ones."""
    packages = dict(lock.layers())
    used = set(packages) | {_layer_of(source) for source in lock.from_source}
    return tuple(
        LayerContent(
            name=name,
            packages=tuple(one for one in packages.get(name, ()) if one.name not in lock.fetched),
            fetched=tuple(
                lock.fetched[one.name] for one in packages.get(name, ()) if one.name in lock.fetched
            ),
            sources=tuple(source for source in lock.from_source if _layer_of(source) == name),
            compiled=tuple(sorted(p.name for p in packages.get(name, ()) if p.name in lock.compiled)),
        )
        for name, _roots in LAYERS
        if name in used
    )


def _layer_of(source: LockedSource) -> str:
    return source.package if source.package in {"vllm", "vllm-ascend", "verl"} else "training"


def pip_requirements(lock: CellLock, packages: tuple[LockedPackage, ...]) -> str:
    """A requirements file of these packages for pip, with the additional indexes that have them."""
    indexes = "".join(f"--extra-index-url {url}\n" for url in lock.indexes_of(packages))
    return indexes + requirements_text(packages)


def requirements_text(packages: tuple[LockedPackage, ...]) -> str:
    """The lines of a requirements file for these packages, with their digests."""
    entries = []
    for package in packages:
        hashes = "".join(f" \\\n    --hash={digest}" for digest in package.hashes)
        entries.append(f"{package.name}=={package.version}{hashes}\n")
    return "".join(entries)


def fetch_commands(git: str, repository: str, source: LockedSource) -> tuple[str, ...]:
    """Commands that check out the commit of a source package. An abbreviated id needs the whole history."""
    fetch = f'{git} -c safe.directory="*" fetch -q'
    if source.abbreviated:
        refs = "'+refs/heads/*:refs/remotes/origin/*' '+refs/tags/*:refs/tags/*'"
        return f"{fetch} --filter=blob:none {repository} {refs}", f"{git} checkout -q {source.commit}"
    return f"{fetch} --depth 1 {repository} {source.commit}", f"{git} checkout -q FETCH_HEAD"
