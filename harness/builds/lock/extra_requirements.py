"""Resolves the requirements of packages from source together with the pins of a lock.

Authors of a stack install such a package over their pins, which changes some of them; no resolver accepts
both sets of requirements. Here the pins stay unchanged, and the requirements that contradict them are listed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from harness.builds.lock.cell_lock import CellLock, LockedSource
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import InfrastructureError, InputError
from harness.sources.git.mirrors import find_source
from harness.sources.packages.fetch_failure import fetch_failure
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.lockfile import LockedPackage, normal_name, parse_lock
from harness.sources.packages.source_requirements import source_requirements
from harness.sources.packages.uv_settings import write_uv_settings
from harness.sources.redact import redact_text

SECONDS = 300.0
# The same platform as the check `resolve` uses for another host than this one.
PLATFORM = "manylinux_2_34"


class UnresolvableError(InfrastructureError):
    """No releases fit the pins and the requirements of packages from source, or the resolver failed."""


@dataclass(frozen=True, kw_only=True)
class PinnedStack:
    """What is resolved together: pinned packages for a platform, and packages from source.

    unpinned_sources: those of `from_source` whose requirements were not part of the resolution.
    """

    python: str
    arch: str
    packages: tuple[LockedPackage, ...]
    from_source: tuple[LockedSource, ...]
    unpinned_sources: tuple[str, ...]
    indexes: tuple[str, ...] = ()

    @classmethod
    def of(cls, lock: CellLock) -> PinnedStack:
        """The stack of a lock."""
        names = (field.name for field in fields(cls))
        return cls(**{name: getattr(lock, name) for name in names})

    def requirements(self, mirrors: Sequence[Path]) -> dict[str, tuple[str, ...]]:
        """Unpinned package from source -> its requirements, if these can be read in a mirror."""
        found = {}
        for source in self.from_source if mirrors else ():
            if source.package not in self.unpinned_sources:
                continue
            repository = find_source(mirrors, source.commit, source.repository)
            if repository is None:
                continue
            # `lock_notices` reports packages whose requirements cannot be read.
            with contextlib.suppress(InputError, InvalidRequirement):
                lines = source_requirements(repository.tree(source.commit), source.env)
                for line in lines:
                    Requirement(line)
                found[source.package] = lines
        return found

    def additions(
        self, requirements: Mapping[str, Sequence[str]], environ: Mapping[str, str]
    ) -> tuple[LockedPackage, ...]:
        """The packages that these requirements add to the pins.

        InfrastructureError when no index can be reached, UnresolvableError when no releases fit.
        """
        if not requirements:
            return ()
        settings = index_environment(environ)
        lines = [line for lines in requirements.values() for line in lines]
        try:
            resolved = resolve_with_pins(self, lines, settings.with_indexes(self.indexes))
        except InfrastructureError:
            if not self.indexes:
                raise
            # The index of a vendor may be unreachable and not be needed.
            resolved = resolve_with_pins(self, lines, settings)
        pinned = {package.name for package in self.packages}
        own = tuple(sorted(requirements))
        return tuple(replace(one, via=(*one.via, *own)) for one in resolved if one.name not in pinned)


def add_extra_requirements(lock: CellLock, mirrors: Sequence[Path], environ: Mapping[str, str]) -> CellLock:
    """The lock in which the requirements of its packages from source are pinned, too.

    Only for those in `lock.unpinned_sources` whose commit is in a repository below `mirrors` and whose tree
    says what it requires. InfrastructureError when no index can be reached or the resolver fails.
    """
    stack = PinnedStack.of(lock)
    requirements = stack.requirements(mirrors)
    if not requirements:
        return lock
    added = stack.additions(requirements, environ)
    return replace(
        lock,
        packages=tuple(sorted((*lock.packages, *added), key=lambda package: package.name)),
        unpinned_sources=tuple(name for name in lock.unpinned_sources if name not in requirements),
        overruled={
            name: tuple(overruled_requirements(lines, lock.packages)) for name, lines in requirements.items()
        },
    )


def overruled_requirements(lines: Iterable[str], packages: Iterable[LockedPackage]) -> Iterator[str]:
    """Requirements that contradict the pins, as `numpy<2.0.0 (pinned 2.2.6)`."""
    versions = {package.name: package.version for package in packages}
    for line in lines:
        requirement = Requirement(line)
        version = versions.get(normal_name(requirement.name))
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name}{requirement.specifier} (pinned {version})"


def _without_sources(stack: PinnedStack, lines: Iterable[str]) -> list[str]:
    """The requirements without packages that are built from source."""
    source = {one.package for one in stack.from_source}
    return [line for line in lines if normal_name(Requirement(line).name) not in source]


def _pins(packages: Iterable[LockedPackage], lines: Iterable[str]) -> Iterator[str]:
    """Each package with its version and the required extras, which an override would remove."""
    extras: dict[str, set[str]] = {}
    for line in lines:
        requirement = Requirement(line)
        extras.setdefault(normal_name(requirement.name), set()).update(requirement.extras)
    for package in packages:
        names = ",".join(sorted(extras.get(package.name, ())))
        yield f"{package.name}{f'[{names}]' if names else ''}=={package.version}"


def resolve_with_pins(
    stack: PinnedStack, requirements: Sequence[str], settings: IndexSettings, *, free: Collection[str] = ()
) -> tuple[LockedPackage, ...]:
    """The packages that these requirements need, without packages from source; the pins stay as they are.

    free: pinned packages that may have another version. InfrastructureError when no index can be reached or
    the resolver fails.
    """
    lines = _without_sources(stack, requirements)
    pinned = [package for package in stack.packages if package.name not in free]
    with temporary_folder() as folder:
        files = {
            "requirements.in": lines,
            "overrides.txt": [*_pins(pinned, lines)],
            "excluded.txt": [source.package for source in stack.from_source],
        }
        for file, content in files.items():
            folder.joinpath(file).write_text("".join(f"{line}\n" for line in content), "utf-8")
        write_uv_settings(folder, settings.uv_file())
        argv = [uv_binary(), "pip", "compile", "requirements.in", "--overrides", "overrides.txt"]
        argv += ["--excludes", "excluded.txt", "--output-file", "lock.txt", "--python", sys.executable]
        argv += ["--resolution", "highest", "--prerelease", "if-necessary-or-explicit"]
        argv += ["--generate-hashes", "--no-header", "--quiet", "--color", "never"]
        argv += ["--python-version", stack.python, "--python-platform", f"{stack.arch}-{PLATFORM}"]
        try:
            done = subprocess.run(
                [*argv, *settings.uv_arguments()],
                env=settings.uv_environment(),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(stack, f"no result within {SECONDS:g} s") from error
        if done.returncode:
            output = redact_text(done.stderr)
            failure = fetch_failure(output)
            raise failure.error() if failure else _failed(stack, output.strip()[-1000:])
        return parse_lock(folder.joinpath("lock.txt").read_text("utf-8"))


def _failed(stack: PinnedStack, why: str) -> UnresolvableError:
    return UnresolvableError(
        f"the requirements of {', '.join(stack.unpinned_sources)} cannot be resolved together with the pins",
        why=why,
        fix="run again without NPU_MATRIX_MIRRORS; the export then lists what is not pinned",
    )
