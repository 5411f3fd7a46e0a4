"""Check `lint`: apply the lint rules to the settings of a job and the versions of its cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.check import TaskContext
from harness.compat.lint.hydra_config import (
    CONFIG_FOLDER,
    ENTRY_MODULES,
    config_name,
    find_unknown_keys,
    read_config,
)
from harness.compat.lint.job_settings import JobSettings, parsed_value
from harness.compat.lint.launch_script import LaunchScript, read_script
from harness.compat.lint.lint_measurements import (
    CONFIG_RULE,
    LintFinding,
    LintMeasured,
    LintResult,
    ScriptNote,
    UndecidedRule,
)
from harness.compat.lint.rule_expression import UNKNOWN, UNSET, evaluate, names_in
from harness.compat.lint.ruleset import PLACEHOLDER, VERSION_NAMES, LintRule, Ruleset, load_ruleset
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError
from harness.matrix.model.versions import Version, parse_version
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.locked_releases import releases_of_task
from harness.sources.packages.release_archive import ReleaseArchive
from harness.sources.packages.release_fetcher import ReleaseFetcher

NOT_A_VERL_JOB = "this is not a verl job, and the rules are only about verl"
MISSING_VALUE_RULE = "TORN-OVERRIDE"
SEVERITIES = ("error", "warning", "note")


class JobFacts:
    """The values of the names in conditions, for one job and one set of versions."""

    def __init__(self, job: JobSettings, versions: Mapping[str, str], rules: Ruleset) -> None:
        self._job = job
        self._rules = rules
        self._versions = _parsed_versions(versions)
        self._model = rules.model_facts(job.model)

    def value(self, name: str) -> Any:
        """The value of `name`: the job's setting, otherwise the default of this version of verl."""
        if name in VERSION_NAMES:
            return self._versions.get(name, UNKNOWN)
        if name.startswith("env."):
            setting = self._job.env.get(name[4:])
            return parsed_value(setting) if setting else UNSET
        if name.startswith("fact."):
            return self._job.facts.get(name[5:], UNKNOWN)
        if name.startswith("model."):
            return getattr(self._model, name[6:], UNKNOWN)
        if name in ("cards", "nodes"):
            return getattr(self._job, name) or UNKNOWN
        if name in ("config", "device", "entry"):
            return getattr(self._job, name) or UNSET
        return self._setting(self._rules.names[name])

    def is_set(self, name: str) -> bool:
        """Whether the job sets `name` to a value."""
        setting = self.setting(name)
        return setting is not None and parsed_value(setting) is not UNSET

    def setting(self, name: str) -> ScriptValue | None:
        """The job's setting of `name`, or None when it uses the default."""
        if name.startswith("env."):
            return self._job.env.get(name[4:])
        return self._job.overrides.get(self._rules.names.get(name, name))

    def _setting(self, key: str) -> Any:
        setting = self._job.overrides.get(key)
        if setting is not None:
            return parsed_value(setting)
        if self._job.has_unread_arguments:
            return UNKNOWN
        verl = self._versions.get("verl")
        for default in self._rules.defaults:
            if default.key != key:
                continue
            if default.versions and not verl:
                return UNKNOWN
            if default.versions is None or (verl and default.versions.contains(verl)):
                return self._setting(default.same_as) if default.same_as else default.value
        return UNSET


def lint_job(
    job: JobSettings, versions: Mapping[str, str], rules: Ruleset | None = None, wheel: Path | None = None
) -> LintResult:
    """Apply every rule to a job.

    versions: axis -> version; other versions are UNKNOWN in conditions.
    wheel: the wheel of the job's verl version. Every override is looked up in its configuration.
    """
    rules = rules or load_ruleset()
    if not job.is_verl:
        return LintResult(
            findings=(), undecided=(), notes=(ScriptNote(line=job.where.line, text=NOT_A_VERL_JOB),)
        )
    facts = JobFacts(job, versions, rules)
    findings, undecided = [], []
    for rule in rules.rules:
        truth = evaluate(rule.condition, facts)
        if truth is True:
            findings.append(_finding(rule, job, facts))
        elif truth is UNKNOWN:
            unknown = sorted(name for name in names_in(rule.condition) if facts.value(name) is UNKNOWN)
            undecided.append(UndecidedRule(rule=rule.id, unknown=tuple(unknown), recipe=job.name))
    findings += _missing_value_findings(job)
    reported = {finding.rule for finding in findings}
    for item in _config_findings(job, versions, wheel):
        if isinstance(item, UndecidedRule):
            undecided.append(item)
        elif "FILTER-GROUPS" not in reported or "filter_groups" not in item.message:
            findings.append(item)
    return LintResult(findings=_sorted_findings(findings), undecided=tuple(undecided))


def lint_script(script: LaunchScript, versions: Mapping[str, str], wheel: Path | None = None) -> LintResult:
    """Lint every job of a script."""
    results = [lint_job(job, versions, wheel=wheel) for job in script.jobs]
    return LintResult(
        findings=_sorted_findings([finding for result in results for finding in result.findings]),
        undecided=tuple(item for result in results for item in result.undecided),
        notes=(*script.notes, *(note for result in results for note in result.notes)),
    )


def lint_file(path: Path, versions: Mapping[str, str], wheel: Path | None = None) -> LintResult:
    """Lint a launch script. InputError when it cannot be read, starts no job, or a version is not valid."""
    return lint_script(read_script(path), versions, wheel)


def verl_wheel(versions: Mapping[str, str], releases: ReleaseFetcher) -> tuple[Path, ReleaseArchive] | None:
    """The wheel of the verl release in `versions`; None for a commit or without a version of verl.

    ReleaseNotFoundError if the package index has no such release.
    """
    verl = versions.get("verl", "")
    if not verl or "@" in verl:
        return None
    return releases.archive("verl", verl)


def run(ctx: TaskContext) -> Measured[LintMeasured]:
    """Lint the facet `recipe` against the facet `versions`."""
    facet = ctx.facets["recipe"]
    if facet is None:
        nothing = LintMeasured(recipe=None, is_verl_job=False, findings=(), undecided=())
        return Measured(measurements=nothing, evidence=Evidence.STATIC)
    releases = releases_of_task(ctx)
    versions = {
        name: version if "@" in version else releases.version(name, version)
        for name, version in ctx.facets["versions"].items()
    }
    job = JobSettings.from_facet(facet)
    wheel = _wheel_if_published(versions, releases) if job.entry in ENTRY_MODULES else None
    result = lint_job(job, versions, wheel=wheel[0] if wheel else None)
    for finding in result.findings:
        ctx.log(f"{finding}\n  why: {finding.why}\n  do:  {finding.fix}\n  see: {finding.source}")
    return Measured(
        measurements=LintMeasured(
            recipe=job.name,
            is_verl_job=job.is_verl,
            findings=result.findings,
            undecided=result.undecided,
            notes=result.notes,
            archives_read=(wheel[1],) if wheel else (),
        ),
        evidence=Evidence.STATIC,
    )


def _wheel_if_published(
    versions: Mapping[str, str], releases: ReleaseFetcher
) -> tuple[Path, ReleaseArchive] | None:
    try:
        return verl_wheel(versions, releases)
    except ReleaseNotFoundError:
        return None


def judge(measurements: LintMeasured, _params: Mapping[str, object]) -> Judgement:
    """Errors fail, warnings pass. Not run: there are no errors, but settings were not compared."""
    if measurements.recipe is None:
        return Judgement(status=Status.UNSUPPORTED, reasons=("The cell has no recipe to lint.",))
    if not measurements.is_verl_job:
        return Judgement(status=Status.UNSUPPORTED, reasons=(f"No rule applies: {NOT_A_VERL_JOB}.",))
    errors, warnings = (
        [finding for finding in measurements.findings if finding.severity == severity]
        for severity in ("error", "warning")
    )
    reported = [*errors, *warnings]
    reasons = tuple(f"{f.severity} {f.rule}: {f.message}; {f.why}." for f in reported)
    unchecked = tuple(f"Not checked: {text}." for text in measurements.unchecked)
    return Judgement(
        status=Status.FAIL if errors else Status.NOT_RUN if unchecked else Status.PASS,
        reasons=reasons if errors else (*unchecked, *reasons),
        remedies=tuple(dict.fromkeys(f"{f.rule}: {f.fix}" for f in reported)),
    )


def _parsed_versions(versions: Mapping[str, str]) -> dict[str, Version]:
    parsed = {}
    for name, scheme in VERSION_NAMES.items():
        text = versions.get(name, "")
        if not text or text == "host":
            continue
        try:
            parsed[name] = parse_version(scheme, text)
        except ValueError as error:
            raise InputError(f"{name} {text!r} is not a version", why=str(error)) from error
    return parsed


def _finding(rule: LintRule, job: JobSettings, facts: JobFacts) -> LintFinding:
    where = next((s.where for name in rule.at if (s := facts.setting(name))), job.where)

    def filled(text: str) -> str:
        return PLACEHOLDER.sub(lambda found: _value_text(facts.value(found[1])), text)

    return LintFinding(
        rule=rule.id,
        severity=rule.severity,
        file=str(where.file),
        line=where.line,
        column=where.column,
        message=filled(rule.message),
        why=filled(rule.why),
        fix=filled(rule.fix),
        source=rule.source,
        recipe=job.name,
    )


def _missing_value_findings(job: JobSettings) -> list[LintFinding]:
    """Findings of the rule TORN-OVERRIDE: keys that a space separates from their value."""
    return [
        LintFinding(
            rule=MISSING_VALUE_RULE,
            severity="error",
            file=str(setting.where.file),
            line=setting.where.line,
            column=setting.where.column,
            message=f"`{key}=` has no value, because a space follows the equals sign",
            why="Hydra reads the value as another override and stops",
            fix=f"remove the space after `{key}=`",
            source="Hydra's override grammar; test_grpo_gptoss_20b_fsdp_A2.sh of Ascend/MindSpeed-RL",
            recipe=job.name,
        )
        for key, setting in job.missing_values.items()
    ]


def _config_findings(
    job: JobSettings, versions: Mapping[str, str], wheel: Path | None
) -> Iterator[LintFinding | UndecidedRule]:
    """Findings of the rule CONFIG-KEY: overrides that verl's configuration does not have in this version."""
    if job.entry not in ENTRY_MODULES:
        missing = f"the configuration of {job.entry or 'the program that the job starts'}"
        yield UndecidedRule(rule=CONFIG_RULE, unknown=(missing,), recipe=job.name)
        return
    config = read_config(wheel, config_name(job)) if wheel else None
    if config is None:
        missing = f"the configuration {config_name(job)} of verl {versions.get('verl', '')}".rstrip()
        yield UndecidedRule(rule=CONFIG_RULE, unknown=(missing,), recipe=job.name)
        return
    for unknown in find_unknown_keys(job, config):
        setting = job.overrides.get(unknown.key)
        where = setting.where if setting else job.where
        similar = f"did you mean {' or '.join(unknown.similar)}?" if unknown.similar else "remove it"
        yield LintFinding(
            rule=CONFIG_RULE,
            severity="error",
            file=str(where.file),
            line=where.line,
            column=where.column,
            message=f"{unknown.key} does not exist in verl {versions['verl']} ({config_name(job)})",
            why=f"Hydra stops with: Could not override '{unknown.key}'",
            fix=f"{similar} (`+{unknown.key}=...` adds a key that verl does not read)",
            source=f"{CONFIG_FOLDER}/_generated_{config_name(job)}.yaml "
            f"in the wheel of verl {versions['verl']}",
            recipe=job.name,
        )


def _value_text(value: object) -> str:
    return "not set" if value is UNSET else str(value)


def _sorted_findings(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    return tuple(sorted(findings, key=lambda f: (f.file, f.line, SEVERITIES.index(f.severity), f.rule)))
