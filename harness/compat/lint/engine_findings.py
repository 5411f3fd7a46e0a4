"""Findings of the rule ENGINE-CHECK: checks of vllm-ascend, or of vLLM, that fail with what vLLM gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from harness.compat.lint.dry_run.libraries import VARIABLE
from harness.compat.lint.dry_run.program_values import ProgramError
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.shell.values import ScriptValue

ENGINE_RULE = "ENGINE-CHECK"
ENGINE_PACKAGE = "vllm-ascend"
#: The start of what is not known if the files of a package are not at hand.
NO_FILES = "the source of "


def unread_ascend(versions: Mapping[str, str], *, has_source: bool) -> tuple[str, ...]:
    """Why the checks of vllm-ascend cannot be followed; empty if they can be."""
    if has_source:
        return ()
    version = versions.get("vllm_ascend", "")
    return (f"{NO_FILES}{package_label(ENGINE_PACKAGE, version)}" if version else "vllm_ascend",)


def package_label(package: str, version: str) -> str:
    """A package and its version; of a commit, the part that people write."""
    release, at, commit = version.partition("@")
    return f"{package} {release}{at}{commit[:12]}"


def engine_check_findings(
    errors: tuple[ProgramError, ...], job: JobSettings, value_of: Callable[[str], object], label: str
) -> Iterator[LintFinding]:
    """The failed checks that rest on a setting of the job; of several with one setting, the first.

    value_of: the value of a setting. label: the package with the checks, and its release.
    """
    told: set[str] = set()
    for error in errors:
        settings = _settings(error, job)
        if not settings or not told.isdisjoint(settings):
            continue
        told |= settings.keys()
        place = f"{error.place} of {label}"
        values = ", ".join(_shown(key, one, value_of) for key, one in settings.items())
        yield LintFinding.at(
            next(iter(settings.values())).where,
            rule=ENGINE_RULE,
            severity="error",
            message=f"{label.partition(' ')[0]} stops: {error.message or error.type}",
            why=f"{place} raises {error.type}; this rests on {values}",
            fix=f"change the value of {' or '.join(map(_name, settings))}",
            source=place,
            recipe=job.name,
        )


def _settings(error: ProgramError, job: JobSettings) -> Mapping[str, ScriptValue]:
    """The settings and variables of the job behind an error; those of vLLM's own options come first."""
    below = tuple(f"{key}." for key in error.keys)
    found = {
        key: one
        for key, one in job.overrides.items()
        if key in error.keys
        or key.startswith(below)
        or any(inner.startswith(f"{key}.") for inner in error.keys)
    }
    variables = {f"{VARIABLE}{name}": one for name, one in job.env.items()}
    found |= {key: one for key, one in variables.items() if key in error.keys}
    return dict(sorted(found.items(), key=lambda one: _rank(one[0], error.message)))


def _rank(key: str, message: str) -> tuple[float, bool]:
    """Settings that the message names come first, in its order."""
    place = message.find(key.rpartition(".")[2])
    return place if place >= 0 else math.inf, "engine_kwargs" not in key


def _name(key: str) -> str:
    return key.removeprefix(VARIABLE)


def _shown(key: str, setting: ScriptValue, value_of: Callable[[str], object]) -> str:
    value = setting.text if key.startswith(VARIABLE) else value_of(key)
    return f"{_name(key)}={value}"
