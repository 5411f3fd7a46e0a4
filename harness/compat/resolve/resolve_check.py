"""Do a cell's pins go together? One lock for the target, or every reason why there is none.

uv stops at the first contradiction. To say all that is wrong with a stack in one go, what cannot be had is
noted and left out, and the rest is resolved again, until there is a lock or a contradiction.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.check import Completed, TaskContext
from harness.compat.resolve.archive_metadata import read_archive_metadata
from harness.compat.resolve.resolve_problems import problem_json
from harness.compat.resolve.resolve_request import ResolveRequest, requirement_names
from harness.errors import HarnessError, InfrastructureError
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.sources.git.mirrors import find_mirror, mirrors_folder
from harness.sources.packages.fetch_failure import FetchFailure, fetch_failure, machine_failure
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.lockfile import LockedPackage, parse_lock
from harness.sources.packages.release_sources import fetch_sources
from harness.sources.packages.uv_errors import UvFailure, UvFailureKind, parse_uv_failure
from harness.sources.redact import redact_url

MAX_ATTEMPTS = 12
SECONDS_PER_ATTEMPT = 180.0
RETRY_INDEX_AFTER_S = 24 * 3600.0
ARCHIVE_REMEDY = "Choose a Python, or versions of these packages, that their own metadata allows."
# What can be left out so that the rest of the stack is judged too.
EXCLUDABLE = (
    UvFailureKind.MISSING_VERSION,
    UvFailureKind.UNKNOWN_PACKAGE,
    UvFailureKind.WRONG_TARGET,
    UvFailureKind.NO_WHEEL,
    UvFailureKind.BUILD,
)


@dataclass(frozen=True, kw_only=True)
class ResolveProgress:
    """How far a resolution has come: what was set aside and why, and which indexes did not answer.

    Until it is `patient`, a vendor's index is asked once more at most: on many machines none can be reached.
    """

    settings: IndexSettings
    problems: tuple[UvFailure, ...] = ()
    from_sdist: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    lock: tuple[LockedPackage, ...] | None = None
    timed_out: bool = False
    patient: bool = False
    attempts: int = 0
    excluded: tuple[str, ...] = ()
    done: bool = False


def run(ctx: TaskContext) -> Measured:
    """Resolve the facets `pins` for `platform`. Artifact `lock.txt` when there is a lock.

    InfrastructureError when the user's own index cannot be reached: that says nothing of the cell.
    """
    started = time.monotonic()
    request = ResolveRequest.from_facets(ctx.facets["pins"], ctx.facets["platform"]).with_sources(
        mirrors_folder()
    )
    settings = index_environment(os.environ).with_indexes(request.indexes)
    for notice in settings.notices:
        ctx.log(notice)
    request.write(ctx.workdir)
    state = ResolveProgress(settings=settings)
    while not state.done and state.attempts < MAX_ATTEMPTS:
        state = replace(state, attempts=state.attempts + 1)
        completed = _compile(ctx, request, state)
        if completed.returncode == 0:
            text = ctx.workdir.joinpath("lock.txt").read_text("utf-8")
            state = replace(state, lock=parse_lock(text), done=True)
        else:
            state = _after_failure(ctx, request, state, completed)
    said = _read_archives(ctx, request, state) if state.lock and not state.problems else ArchiveRemarks()
    return _measured(request, state, time.monotonic() - started, said)


@dataclass(frozen=True, kw_only=True)
class ArchiveRemarks:
    """What the archives of the stack's own packages say: why one is refused, and what else to know."""

    refusals: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def _read_archives(ctx: TaskContext, request: ResolveRequest, state: ResolveProgress) -> ArchiveRemarks:
    """What the stack's own packages say of themselves; nothing of those whose archives are not to be had."""
    versions = {package.name: package.version for package in state.lock or ()}
    found = ArchiveRemarks()
    for name in requirement_names(request.requirements):
        if name not in versions:
            continue
        try:
            file = fetch_sources(name, versions[name], cache=ctx.cache, command=ctx.command)
            archive = read_archive_metadata(name, versions[name], file)
            found = ArchiveRemarks(
                refusals=(*found.refusals, *archive.refusals(request.python)),
                remarks=(*found.remarks, *archive.remarks()),
            )
        except HarnessError as error:
            ctx.log(f"the archive of {name} {versions[name]} was not read: {error}")
    return found


def holds(outcome: Outcome) -> str:
    """A stack that only a silent index might complete is asked about again after a day; one whose sources
    nobody had, once somebody has them.

    A day: a run repeated while people work gives the stored answer at once, and an outage of that index, of
    which the key knows nothing, hides the answer no longer than until tomorrow.
    """
    silent = outcome.measurements.get("unreachable")
    if silent and time.time() - outcome.finished > RETRY_INDEX_AFTER_S:
        return f"{', '.join(silent)} did not answer then, and that was over a day ago"
    return newly_available_sources(outcome.measurements, mirrors_folder())


def newly_available_sources(measurements: Mapping[str, Any], mirrors: Path | None) -> str:
    """Which package's sources are at hand now, that were not when it was resolved for this machine, or ""."""
    if mirrors is None or not measurements.get("host"):
        return ""
    known = measurements["source_requirements"]
    for item in measurements["from_source"]:
        if item["package"] not in known and item["commit"] and find_mirror(mirrors, item["commit"]):
            return f"a mirror now has the commit of {item['package']}"
    return ""


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """A lock passes unless one of its own archives contradicts it; what only a silent index might have was
    not asked; every other contradiction fails.
    """
    if measurements["resolved"]:
        refusals = tuple(measurements.get("refusals", ()))
        return Judgement(
            status=Status.FAIL if refusals else Status.PASS,
            reasons=(*refusals, *_remarks(measurements)),
            remedies=(ARCHIVE_REMEDY,) if refusals else (),
        )
    problems = measurements["problems"]
    reasons = [problem["text"] for problem in problems]
    remedies = tuple(dict.fromkeys(problem["remedy"] for problem in problems if problem["remedy"]))
    if measurements["timed_out"]:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(*reasons, "The resolver was still searching when its time ran out."),
            remedies=(*remedies, "Pin more of the stack's packages, so that there is less to search."),
        )
    unreachable = measurements["unreachable"]
    only_missing = all(problem["kind"] in ("missing-version", "unknown-package") for problem in problems)
    if unreachable and only_missing:
        silent = ", ".join(unreachable)
        reasons.insert(0, f"Not proven: {silent} did not answer and may have what the others lack.")
        # The key knows nothing of the network: without it the stored outcome would be taken again.
        again = (
            f"Run again with `npu-matrix run --check resolve --fresh` once {', '.join(unreachable)} answers; "
            "after a day any run asks again."
        )
        # Silence of a server is no statement of the stack, so this is neither a failure nor `unsupported`.
        return Judgement(status=Status.NOT_RUN, reasons=tuple(reasons), remedies=(*remedies, again))
    return Judgement(status=Status.FAIL, reasons=(*reasons, *_remarks(measurements)), remedies=remedies)


def _compile(ctx: TaskContext, request: ResolveRequest, state: ResolveProgress) -> Completed:
    excluded = ctx.workdir / "excluded.txt"
    excluded.write_text("".join(f"{name}\n" for name in state.excluded), "utf-8")
    # A settings file here keeps uv from taking one of the folders above, which belong to something else.
    ctx.workdir.joinpath("uv.toml").write_text(state.settings.uv_file(), "utf-8")
    # What a source package of the stack needs is read from its metadata; none of its code runs here. Packages
    # further down may be built, as an installer does: without that the resolver silently goes back to
    # releases from before their dependencies became source-only.
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
        *("--overrides", "overrides.txt"),
        *("--excludes", "excluded.txt"),
        *("--output-file", "lock.txt"),
        *("--python", sys.executable),
        *(argument for name in wheels for argument in ("--only-binary", name)),
        *builds,
        # The user's own UV_RESOLUTION and UV_PRERELEASE would give another lock than everybody else's.
        *("--resolution", "highest", "--prerelease", "if-necessary-or-explicit"),
        *("--generate-hashes", "--no-header", "--quiet", "--color", "never"),
        *request.arguments(),
        *state.settings.uv_arguments(),
    ]
    variables = state.settings.uv_environment()
    if state.settings.added_index_urls and not state.patient:
        variables.setdefault("UV_HTTP_RETRIES", "1")
    return ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_PER_ATTEMPT)


def _after_failure(
    ctx: TaskContext, request: ResolveRequest, state: ResolveProgress, completed: Completed
) -> ResolveProgress:
    """The state with what this failure says; `done` when there is nothing left to try."""
    if completed.timed_out:
        return replace(state, timed_out=True, done=True)
    explanation = parse_uv_failure(state.settings.hide(completed.tail))
    if explanation.kind is UvFailureKind.NETWORK:
        return _without_index(ctx, state, explanation)
    if explanation.kind is UvFailureKind.OTHER:
        raise machine_failure(explanation.text) or InfrastructureError(
            "uv could not resolve, and its error is not one of a resolution",
            why=explanation.text[-2000:] or f"exit code {completed.returncode} without a message",
            fix="run the command in the log by hand",
        )
    if explanation.kind is UvFailureKind.NO_WHEEL and explanation.subject not in state.from_sdist:
        ctx.log(f"{explanation.subject} has no wheel for {request.target}; reading its source package")
        return replace(state, from_sdist=(*state.from_sdist, explanation.subject))
    problems = (*state.problems, explanation)
    if explanation.kind in EXCLUDABLE and explanation.subject not in ("", *state.excluded):
        return replace(state, problems=problems, excluded=(*state.excluded, explanation.subject))
    return replace(state, problems=problems, done=True)


def _without_index(ctx: TaskContext, state: ResolveProgress, explanation: UvFailure) -> ResolveProgress:
    settings = state.settings
    for url in settings.added_index_urls:
        if explanation.url.startswith(url.rstrip("/")):
            ctx.log(f"{redact_url(url)} does not answer; going on without it")
            remaining = tuple(other for other in settings.added_index_urls if other != url)
            return replace(
                state,
                settings=replace(settings, added_index_urls=remaining),
                unreachable=(*state.unreachable, redact_url(url)),
            )
    if settings.added_index_urls and not state.patient:
        return replace(state, patient=True)
    failure = fetch_failure(explanation.text)
    raise (failure or FetchFailure(url="", cause=explanation.text, status=0)).error()


def _measured(
    request: ResolveRequest, state: ResolveProgress, seconds: float, said: ArchiveRemarks
) -> Measured:
    resolved = state.lock is not None and not state.problems
    files = {"requirements.in": "requirements.in", "overrides.txt": "overrides.txt"}
    if resolved:
        files["lock.txt"] = "lock.txt"
    packages = [{"name": p.name, "version": p.version, "via": list(p.via)} for p in state.lock or ()]
    return Measured(
        evidence=Evidence.STATIC,
        artifacts=files,
        measurements={
            "resolved": resolved,
            "target": request.target,
            "host": request.host,
            "packages": packages,
            "problems": [problem_json(problem, request) for problem in state.problems],
            "timed_out": state.timed_out,
            "unreachable": list(state.unreachable),
            "from_source": [dict(item) for item in request.from_source],
            "source_requirements": {name: list(texts) for name, texts in request.source_requirements.items()},
            "from_sdist": list(state.from_sdist),
            "overrides": [asdict(override) for override in request.overrides],
            "archives": list(said.remarks),
            "refusals": list(said.refusals),
            "attempts": state.attempts,
            "seconds": round(seconds, 3),
        },
        environment={"index": state.settings.redacted()},
    )


def _remarks(measurements: Mapping[str, Any]) -> list[str]:
    remarks = [
        f"{item['package']} comes from source at {item.get('commit') or item.get('version')}: "
        + (
            "it is not part of the lock, what it requires is."
            if item["package"] in measurements.get("source_requirements", {})
            else "it and its own requirements are not part of the lock."
        )
        for item in measurements["from_source"]
    ]
    remarks += [
        f"{name} has no wheel for this target and is built from its source package."
        for name in measurements["from_sdist"]
    ]
    remarks += [f"{url} did not answer and was left out." for url in measurements["unreachable"]]
    remarks += measurements.get("archives", ())
    return remarks
