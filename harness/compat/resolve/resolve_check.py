"""Check `resolve`: are a cell's pins compatible? The outcome is a lock, or all reasons why there is none.

uv stops at the first problem. To report all of them at once, a package that is not available is recorded and
excluded, and uv runs again without it until there is a lock or a conflict.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.check import Completed, TaskContext
from harness.compat.resolve.archive_metadata import ArchiveMetadata, read_archive_metadata
from harness.compat.resolve.hidden_requirements import hidden_requirements
from harness.compat.resolve.replaced_requirements import ReleaseMetadata
from harness.compat.resolve.resolve_problems import resolve_problem
from harness.compat.resolve.resolve_request import ResolveRequest, pinned_releases, requirement_names
from harness.errors import HarnessError, InfrastructureError, InputError
from harness.matrix.model.environment_facets import PinnedOverride, PinsFacet
from harness.measurements import read_shape
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.sources.git.mirrors import find_source, mirror_folders
from harness.sources.packages.fetch_failure import FetchFailure, fetch_failure, machine_failure
from harness.sources.packages.index_lookup import PackageIndex, PublishedFile, ReleaseNotFoundError
from harness.sources.packages.index_refusal import refusal_behind
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.lockfile import LockedPackage, parse_lock
from harness.sources.packages.release_archive import ReleaseArchive, installer_rank
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.resolve_measurements import (
    HiddenRequirement,
    RequirementOverride,
    ResolvedPackage,
    ResolveMeasured,
)
from harness.sources.packages.uv_errors import UvFailure, UvFailureKind, parse_uv_failure
from harness.sources.packages.uv_settings import write_uv_settings
from harness.sources.packages.wheel_record import ContradictoryWheelError
from harness.sources.redact import redact_text, redact_url

MAX_ATTEMPTS = 12
SECONDS_PER_ATTEMPT = 180.0
RETRY_INDEX_AFTER_S = 24 * 3600.0
ARCHIVE_REMEDY = (
    "Choose a Python version, or versions of these packages, that the packages' own metadata allows."
)
UNUSABLE_REMEDY = "Use another release of the package, or ask its publisher to correct the archive."
# The problems after which uv runs again without the package, so that the rest of the stack is checked too.
EXCLUDABLE = (
    UvFailureKind.MISSING_VERSION,
    UvFailureKind.UNKNOWN_PACKAGE,
    UvFailureKind.WRONG_TARGET,
    UvFailureKind.NO_WHEEL,
    UvFailureKind.BUILD,
)


@dataclass(frozen=True, kw_only=True)
class ResolveProgress:
    """The state between two runs of uv.

    from_sdist: packages without a wheel, whose source package may be used.
    searched: packages whose additional indexes are searched, because the user's own ones lack them.
    unreachable: additional indexes that were removed because they did not respond.
    all_retries: whether uv may use all its network retries. At first it retries once only, because many
    machines cannot reach the vendor's index.
    excluded: packages that are not available and that uv now ignores.
    """

    settings: IndexSettings
    problems: tuple[UvFailure, ...] = ()
    from_sdist: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    lock: tuple[LockedPackage, ...] | None = None
    timed_out: bool = False
    all_retries: bool = False
    attempts: int = 0
    excluded: tuple[str, ...] = ()
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class StackArchives:
    """The archives of the stack's own packages. Sentences are by package.

    locked: the archives in the lock. metadata: of the archives that were read. unread: why an archive could
    not be verified. unusable: why an archive is damaged, or contradicts its own RECORD.
    """

    locked: Mapping[str, ReleaseArchive] = field(default_factory=dict)
    metadata: tuple[ArchiveMetadata, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)


def run(ctx: TaskContext) -> Measured[ResolveMeasured]:
    """Resolve the facet `pins` for the facet `platform`. A lock becomes the artifact `lock.txt`.

    InfrastructureError when the user's own package index cannot be reached: that says nothing about the cell.
    """
    started = time.monotonic()
    pins = read_shape(PinsFacet, ctx.facets["pins"])
    request = ResolveRequest.from_facets(pins, ctx.facets["platform"])
    request = request.with_sources(mirror_folders())
    published, unusable = _overridden_metadata(ctx, request)
    request = request.with_yielded_requirements(published)
    settings = index_environment(os.environ)
    for notice in settings.notices:
        ctx.log(notice)
    request.write(ctx.workdir)
    state = ResolveProgress(settings=settings)
    while not state.done and state.attempts < MAX_ATTEMPTS:
        state = replace(state, attempts=state.attempts + 1)
        completed = _compile(ctx, request, state, published)
        if completed.returncode == 0:
            text = ctx.workdir.joinpath("lock.txt").read_text("utf-8")
            state = replace(state, lock=parse_lock(text), done=True)
        else:
            state = _after_failure(ctx, request, state, completed)
    hidden = hidden_requirements(published, request, state.lock or ())
    archives = StackArchives()
    if state.lock and not state.problems:
        archives = _read_archives(ctx, request, state)
    archives = replace(archives, unusable={**unusable, **archives.unusable})
    return _measured(request, state, time.monotonic() - started, archives, hidden)


def _overridden_metadata(
    ctx: TaskContext, request: ResolveRequest
) -> tuple[list[ReleaseMetadata], dict[str, str]]:
    """The published metadata of the pinned releases with a requirement that an override replaces.

    Releases that no index has are left out, because uv reports them. The second value has a sentence for each
    package whose archive is unusable.
    """
    releases = _releases(ctx, request)
    found, unusable = [], {}
    for name, version in pinned_releases(request.requirements).items():
        if not request.reads_metadata_of(name):
            continue
        try:
            file = releases.sources(name, version).file
        except ReleaseNotFoundError as error:
            ctx.log(f"the overrides of {name} {version} have no effect: {error}")
            continue
        except InputError as error:
            ctx.log(f"the overrides of {name} {version} have no effect: {error}")
            unusable[name] = _unusable(name, version, error)
            continue
        archive = read_archive_metadata(name, version, file)
        if archive.is_known:
            found.append(archive.release)
        else:
            # Without it, uv would be told that the release requires nothing.
            ctx.log(f"the overrides of {name} {version} have no effect: its archive has no metadata")
    return found, unusable


def _releases(
    ctx: TaskContext,
    request: ResolveRequest,
    indexes: tuple[str, ...] = (),
    locked: Mapping[str, ReleaseArchive] | None = None,
) -> ReleaseFetcher:
    return ReleaseFetcher(
        cache=ctx.cache,
        command=ctx.command,
        target=request.platform,
        indexes=indexes,
        locked=locked or {},
    )


def _locked_archives(
    ctx: TaskContext, request: ResolveRequest, state: ResolveProgress
) -> dict[str, ReleaseArchive]:
    """Package -> the file with a digest of the lock that an installer uses on the target platform."""
    lock = {package.name: package for package in state.lock or ()}
    index = PackageIndex(settings=state.settings, command=ctx.command)
    found: dict[str, list[PublishedFile]] = {}
    for file in index.files([f"{one.name}=={one.version}" for one in lock.values()], request.platform):
        if f"sha256:{file.sha256}" in lock[file.package].hashes:
            found.setdefault(file.package, []).append(file)
    chosen = {}
    for name, files in found.items():
        own = [file for file in files if not (name in state.from_sdist and file.name.endswith(".whl"))]
        best = max(own or files, key=lambda file: installer_rank(file.name))
        chosen[name] = best.archive(best.sha256)
    return chosen


def _read_archives(ctx: TaskContext, request: ResolveRequest, state: ResolveProgress) -> StackArchives:
    """The archives of the stack's own packages in the lock.

    An archive that cannot be downloaded is `unread`: some indexes serve large files only as a whole.
    """
    locked = _locked_archives(ctx, request, state)
    releases = _releases(ctx, request, state.settings.added_index_urls, locked)
    metadata, unread, unusable = [], {}, {}
    for name in requirement_names(request.requirements):
        if name not in locked:
            continue
        version = locked[name].version
        try:
            sources = releases.sources(name, version)
            on_index = releases.index_metadata(name, version)
            metadata.append(read_archive_metadata(name, version, sources.file, on_index))
        except InputError as error:
            unusable[name] = _unusable(name, version, error)
        except HarnessError as error:
            unread[name] = (
                f"Not verified: the archive of {name} {version} could not be read ({_what(error)})."
            )
    return StackArchives(locked=locked, metadata=tuple(metadata), unread=unread, unusable=unusable)


def _unusable(name: str, version: str, error: InputError) -> str:
    if isinstance(error, ContradictoryWheelError):
        return f"The wheel of {name} {version} is not what it says: {error.contradiction}."
    return f"The archive of {name} {version} cannot be used: {_what(error)}."


def _what(error: HarnessError) -> str:
    return redact_text("; ".join(f"{one.what} {one.why}".strip() for one in error.problems))


def holds(measurements: ResolveMeasured, outcome: Outcome) -> str:
    """Why the stored outcome should be replaced: an index may respond now, or a mirror has a commit now.

    An index that did not respond is tried again after a day. Its state is not part of the key, so repeated
    runs reuse the outcome until then. An outcome from the future is not reused: the clock was set back.
    """
    age = time.time() - outcome.finished
    if measurements.unreachable and abs(age) > RETRY_INDEX_AFTER_S:
        when = "more than a day ago" if age > 0 else "in the future, by the clock of this machine"
        return f"{', '.join(measurements.unreachable)} did not respond, and that was {when}"
    return newly_available_sources(measurements, mirror_folders())


def newly_available_sources(measurements: ResolveMeasured, mirrors: Sequence[Path]) -> str:
    """A sentence on a package built from source whose commit only a newer state of the mirrors has, or ""."""
    if not measurements.host:
        return ""
    for item in measurements.from_source:
        known = item.package in measurements.source_requirements
        if not known and find_source(mirrors, item.commit, item.repository):
            return f"a mirror now has the commit of {item.package}"
    return ""


def judge(measurements: ResolveMeasured, _params: Mapping[str, object]) -> Judgement:
    """Pass with a lock and archives that are what they say, not-run when an index is missing, else fail."""
    if measurements.resolved and not measurements.packages:
        return Judgement(
            status=Status.INCONCLUSIVE, reasons=("The lock has no package, so nothing was resolved.",)
        )
    refusals, unusable = measurements.refusals, measurements.unusable
    if measurements.resolved or unusable:
        return Judgement(
            status=Status.FAIL if refusals or unusable else Status.PASS,
            reasons=(
                *(*unusable, *refusals),
                *(problem.text for problem in measurements.problems),
                *_remarks(measurements),
            ),
            remedies=(
                *((UNUSABLE_REMEDY,) if unusable else ()),
                *((ARCHIVE_REMEDY,) if refusals else ()),
            ),
        )
    # What is certain comes first.
    problems = sorted(measurements.problems, key=lambda problem: problem.undecided)
    reasons = [problem.text for problem in problems]
    remedies = tuple(dict.fromkeys(problem.remedy for problem in problems if problem.remedy))
    if measurements.timed_out:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(*reasons, f"uv was still searching after {SECONDS_PER_ATTEMPT:.0f} s."),
            remedies=(*remedies, "Pin more of the stack's packages, so that uv has fewer versions to try."),
        )
    if problems and all(problem.undecided for problem in problems):
        # An index that does not respond says nothing about the stack: neither a failure nor `unsupported`.
        indexes = ", ".join(measurements.unreachable)
        reasons.insert(0, f"Not decided: {indexes} did not respond and may have the missing packages.")
        # The network is not part of the key, so without --fresh the stored outcome is reused for a day.
        again = (
            f"When {indexes} responds, run `npu-matrix run --check resolve --fresh`; after a day every run "
            "tries again."
        )
        return Judgement(status=Status.NOT_RUN, reasons=tuple(reasons), remedies=(*remedies, again))
    return Judgement(status=Status.FAIL, reasons=(*reasons, *_remarks(measurements)), remedies=remedies)


def _compile(
    ctx: TaskContext,
    request: ResolveRequest,
    state: ResolveProgress,
    published: Sequence[ReleaseMetadata],
) -> Completed:
    excluded = ctx.workdir / "excluded.txt"
    excluded.write_text("".join(f"{name}\n" for name in state.excluded), "utf-8")
    tables = [one.with_replacements(request.replacements(one.name)).uv_table() for one in published]
    write_uv_settings(ctx.workdir, "\n".join((state.settings.uv_file(), *tables)))
    # The requirements of the stack's source packages are read from their metadata; their code is not run.
    # Their dependencies may be built, as an installer does: otherwise uv silently selects old releases,
    # from before these dependencies were published as source packages only.
    wheels = [name for name in requirement_names(request.requirements) if name not in state.from_sdist]
    builds = [
        argument
        for name in state.from_sdist
        for argument in ("--no-binary", name, "--no-build-isolation-package", name)
    ]
    argv = [
        uv_binary(),
        "pip",
        "compile",
        "requirements.in",
        *("--excludes", "excluded.txt"),
        *("--output-file", "lock.txt"),
        *("--python", sys.executable),
        *(argument for name in wheels for argument in ("--only-binary", name)),
        *builds,
        # The user's own UV_RESOLUTION and UV_PRERELEASE would produce a different lock on each machine.
        *("--resolution", "highest", "--prerelease", "if-necessary-or-explicit"),
        *("--generate-hashes", "--no-header", "--quiet", "--color", "never"),
        *request.arguments(),
        *state.settings.uv_arguments(),
    ]
    variables = state.settings.uv_environment()
    if state.settings.added_index_urls and not state.all_retries:
        variables.setdefault("UV_HTTP_RETRIES", "1")
    return ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_PER_ATTEMPT)


def _after_failure(
    ctx: TaskContext, request: ResolveRequest, state: ResolveProgress, completed: Completed
) -> ResolveProgress:
    """The state after a failed run of uv; `done` when another run would not help."""
    if completed.timed_out:
        return replace(state, timed_out=True, done=True)
    failure = parse_uv_failure(redact_text(completed.tail))
    if failure.kind is UvFailureKind.NETWORK:
        fetched = fetch_failure(failure.text)
        return _without_index(
            ctx, state, fetched or FetchFailure(url=failure.url, cause=failure.text, status=0)
        )
    if failure.kind is UvFailureKind.OTHER:
        raise machine_failure(failure.text) or InfrastructureError(
            "uv failed with an error that is not about the requirements",
            why=failure.text[-2000:] or f"exit code {completed.returncode} without a message",
            fix="run the command in the log by hand",
        )
    if failure.kind is UvFailureKind.NO_WHEEL and failure.subject not in state.from_sdist:
        ctx.log(f"{failure.subject} has no wheel for {request.target}; reading its source package")
        return replace(state, from_sdist=(*state.from_sdist, failure.subject))
    missing = failure.kind in (UvFailureKind.MISSING_VERSION, UvFailureKind.UNKNOWN_PACKAGE)
    if missing and failure.subject in request.indexes and failure.subject not in state.searched:
        indexes = request.indexes[failure.subject]
        ctx.log(f"{failure.subject} may be on {', '.join(map(redact_url, indexes))}; searching there too")
        wanted = tuple(url for url in indexes if redact_url(url) not in state.unreachable)
        return replace(
            state,
            settings=state.settings.with_indexes(wanted),
            searched=(*state.searched, failure.subject),
        )
    refused = refusal_behind(failure, state.settings, ctx.command)
    if refused is not None:
        return _without_index(ctx, state, refused)
    problems = (*state.problems, failure)
    if failure.kind in EXCLUDABLE and failure.subject not in ("", *state.excluded):
        return replace(state, problems=problems, excluded=(*state.excluded, failure.subject))
    return replace(state, problems=problems, done=True)


def _without_index(ctx: TaskContext, state: ResolveProgress, failure: FetchFailure) -> ResolveProgress:
    """The state without the extra index that did not respond; an error when it was the user's own index."""
    settings = state.settings
    for url in settings.added_index_urls:
        if failure.url.startswith(url.rstrip("/")):
            ctx.log(f"{redact_url(url)} does not respond; resolving without it")
            remaining = tuple(other for other in settings.added_index_urls if other != url)
            return replace(
                state,
                settings=replace(settings, added_index_urls=remaining),
                unreachable=(*state.unreachable, redact_url(url)),
            )
    if settings.added_index_urls and not state.all_retries:
        return replace(state, all_retries=True)
    raise failure.error()


def _measured(
    request: ResolveRequest,
    state: ResolveProgress,
    seconds: float,
    archives: StackArchives,
    hidden: tuple[HiddenRequirement, ...],
) -> Measured[ResolveMeasured]:
    resolved = state.lock is not None and not state.problems
    files = {"requirements.in": "requirements.in", "uv.toml": "uv.toml"}
    if resolved:
        files["lock.txt"] = "lock.txt"
    return Measured(
        evidence=Evidence.STATIC,
        artifacts=files,
        measurements=ResolveMeasured(
            resolved=resolved,
            target=request.target,
            host=request.host,
            packages=tuple(
                _resolved(package, archives.locked.get(package.name)) for package in state.lock or ()
            ),
            problems=tuple(resolve_problem(one, request, state.unreachable) for one in state.problems),
            timed_out=state.timed_out,
            unreachable=state.unreachable,
            indexes=state.settings.added_index_urls,
            from_source=request.from_source,
            source_requirements=request.source_requirements,
            from_sdist=state.from_sdist,
            overrides=tuple(map(_applied, request.overrides)),
            hidden=hidden,
            archives=(
                *archives.unread.values(),
                *(remark for one in archives.metadata for remark in one.remarks()),
            ),
            refusals=tuple(reason for one in archives.metadata for reason in one.refusals(request.python)),
            unusable=tuple(archives.unusable.values()),
            read=tuple(
                name
                for name in requirement_names(request.requirements)
                if name in archives.locked and name not in archives.unread
            ),
            built_for={one.release.name: one.built_for for one in archives.metadata if one.built_for},
            attempts=state.attempts,
            seconds=round(seconds, 3),
        ),
        environment={"index": state.settings.redacted()},
    )


def _applied(override: PinnedOverride) -> RequirementOverride:
    return RequirementOverride(
        of=override.of,
        requirement=override.requirement,
        reason=override.reason,
        source=override.source,
    )


def _resolved(package: LockedPackage, archive: ReleaseArchive | None) -> ResolvedPackage:
    return ResolvedPackage(
        name=package.name,
        version=package.version,
        via=package.via,
        file=archive.file if archive else "",
        sha256=archive.sha256 if archive else "",
    )


def _remarks(measurements: ResolveMeasured) -> list[str]:
    remarks = [
        f"{item.package} is built from source at {item.commit or item.version}: "
        + (
            "the lock contains its requirements, not the package itself."
            if item.package in measurements.source_requirements
            else "the lock contains neither the package nor its requirements."
        )
        for item in measurements.from_source
    ]
    remarks += [
        f"{name} has no wheel for this platform and is built from its source package."
        for name in measurements.from_sdist
    ]
    remarks += [f"{url} did not respond and was not searched." for url in measurements.unreachable]
    remarks += [
        f"Override of the requirement {one.requirement} of {one.of} {one.version}: the lock has "
        f"{one.locked or 'no such package'}. Reason: {one.reason.rstrip('.')} ({one.source})."
        for one in measurements.hidden
    ]
    return [*remarks, *measurements.archives]
