"""What a surface pack has: its packages and releases, its size and its digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.compat.knowledge.surface_pack import SurfacePack


@dataclass(frozen=True, kw_only=True)
class PackageContents:
    """The releases of one package. unread: version -> why that release was not read."""

    package: str
    releases: int
    oldest: str
    newest: str
    unread: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PackContents:
    """A pack. size: of the file, in bytes. newest: when its newest release was uploaded, or ""."""

    file: Path
    digest: str
    size: int
    newest: str
    packages: tuple[PackageContents, ...]

    def to_json(self) -> dict[str, object]:
        """As JSON."""
        return {
            "file": str(self.file),
            "digest": self.digest,
            "bytes": self.size,
            "newest": self.newest,
            "packages": [
                {
                    "package": one.package,
                    "releases": one.releases,
                    "oldest": one.oldest,
                    "newest": one.newest,
                    "unread": one.unread,
                }
                for one in self.packages
            ],
        }


def pack_contents(file: Path) -> PackContents:
    """Read the directory of a pack; InputError if it cannot be used."""
    pack = SurfacePack(file)
    packages = []
    for name in pack.packages:
        releases = pack.releases(name)
        read = [one.version for one in releases if not one.unread]
        packages.append(
            PackageContents(
                package=name,
                releases=len(read),
                oldest=read[0] if read else "",
                newest=read[-1] if read else "",
                unread={one.version: one.unread for one in releases if one.unread},
            )
        )
    return PackContents(
        file=file,
        digest=pack.digest,
        size=file.stat().st_size,
        newest=pack.newest,
        packages=tuple(packages),
    )
