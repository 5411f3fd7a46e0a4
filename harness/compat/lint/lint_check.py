"""Lint of recipes and launch scripts: rules that hold for the versions of the cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from harness.compat.lint.job_settings import JobSettings, SettingValue
from harness.compat.lint.launch_script import LaunchScript, read_script
from harness.compat.lint.rule_expression import UNKNOWN, UNSET, evaluate, names_in
from harness.compat.lint.ruleset import PLACEHOLDER, VERSION_NAMES, LintRule, Ruleset, load_ruleset
from harness.compat.lint.shell_words import ScriptNote
from harness.errors import InputError, Location
from harness.matrix.model.versions import Version, parse_version
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.sources.packages.pip_download import ReleaseNotFoundError, RunCommand, fetch_release

NOT_A_VERL_JOB = "this is no job of verl, and the rules speak of nothing else"
CONFIG_RULE = "CONFIG-KEY"
MISSING_VALUE_RULE = "TORN-OVERRIDE"
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class LintFinding:
    """One thing a rule found; `line` and `column` count from 1, 0 when the place is a whole recipe."""

    rule: str
    severity: str
    file: str
    line: int
    column: int
    message: str
    why: str
    fix: str
    source: str
    recipe: str = ""

    def __str__(self) -> str:
        place = str(Location(self.file, self.line, self.column))
        return f"{place}: {self.severity} {self.rule}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class UndecidedRule:
    """A rule that could not be decided, and what would have to be known."""

    rule: str
    unknown: tuple[str, ...]
    recipe: str = ""


@dataclass(frozen=True, kw_only=True)
class LintResult:
    """Findings by place, rules that could not be decided, and what of a script was not understood."""

    findings: tuple[LintFinding, ...]
    undecided: tuple[UndecidedRule, ...]
    notes: tuple[ScriptNote, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The result as JSON, schema `npu-matrix.lint`."""
        return {
            "schema": {"name": "npu-matrix.lint", "version": 1},
            "findings": [asdict(finding) for finding in self.findings],
            "undecided": [{**asdict(item), "unknown": list(item.unknown)} for item in self.undecided],
            "notes": [asdict(note) for note in self.notes],
        }


class JobFacts:
    """What the names of conditions mean for one recipe and one set of versions."""

    def __init__(self, recipe: JobSettings, versions: Mapping[str, str], rules: Ruleset) -> None:
        self._recipe = recipe
        self._rules = rules
        self._versions = _parsed_versions(versions)
        self._model = rules.model_facts(recipe.model)

    def value(self, name: str) -> Any:
        """The value of `name`: what was set, else the default of this version of verl."""
        if name in VERSION_NAMES:
            return self._versions.get(name, UNKNOWN)
        if name.startswith("env."):
            setting = self._recipe.env.get(name[4:])
            return setting.parsed() if setting else UNSET
        if name.startswith("fact."):
            return self._recipe.facts.get(name[5:], UNKNOWN)
        if name.startswith("model."):
            return self._model.get(name[6:], UNKNOWN)
        if name in ("cards", "nodes"):
            return getattr(self._recipe, name) or UNKNOWN
        if name in ("config", "device", "entry"):
            return getattr(self._recipe, name) or UNSET
        return self._setting(self._rules.names[name])

    def is_set(self, name: str) -> bool:
        """Whether the recipe itself sets `name` to something."""
        setting = self.setting(name)
        return setting is not None and setting.parsed() is not UNSET

    def setting(self, name: str) -> SettingValue | None:
        """The setting behind `name`, or None when it is left to its default."""
        if name.startswith("env."):
            return self._recipe.env.get(name[4:])
        return self._recipe.overrides.get(self._rules.names.get(name, name))

    def _setting(self, key: str) -> Any:
        setting = self._recipe.overrides.get(key)
        if setting is not None:
            return setting.parsed()
        verl = self._versions.get("verl")
        for default in self._rules.defaults:
            if default.key != key:
                continue
            fits = True if default.versions is None else default.versions.contains(verl) if verl else None
            if fits is None:
                return UNKNOWN
            if fits:
                return self._setting(default.same_as) if default.same_as else default.value
        return UNSET


def lint_job(
    recipe: JobSettings, versions: Mapping[str, str], rules: Ruleset | None = None, wheel: Path | None = None
) -> LintResult:
    """Apply every rule to a recipe. `versions`: axis -> version, those that are missing are unknown.

    With verl's `wheel` every override is also looked up in the configuration of that version.
    """
    rules = rules or load_ruleset()
    if not recipe.is_verl:
        return LintResult(
            findings=(), undecided=(), notes=(ScriptNote(line=recipe.where.line, text=NOT_A_VERL_JOB),)
        )
    facts = JobFacts(recipe, versions, rules)
    findings, undecided = [], []
    for rule in rules.rules:
        truth = evaluate(rule.condition, facts)
        if truth is True:
            findings.append(_finding(rule, recipe, facts))
        elif truth is UNKNOWN:
            unknown = sorted(name for name in names_in(rule.condition) if facts.value(name) is UNKNOWN)
            undecided.append(UndecidedRule(rule=rule.id, unknown=tuple(unknown), recipe=recipe.name))
    findings += _missing_value_findings(recipe)
    reported = {finding.rule for finding in findings}
    for item in _config_findings(recipe, versions, wheel):
        if isinstance(item, UndecidedRule):
            undecided.append(item)
        elif "FILTER-GROUPS" not in reported or "filter_groups" not in item.message:
            findings.append(item)
    return LintResult(findings=_sorted_findings(findings), undecided=tuple(undecided))


def lint_script(script: LaunchScript, versions: Mapping[str, str], wheel: Path | None = None) -> LintResult:
    """Lint every launch of a script."""
    results = [lint_job(recipe, versions, wheel=wheel) for recipe in script.recipes]
    return LintResult(
        findings=_sorted_findings([finding for result in results for finding in result.findings]),
        undecided=tuple(item for result in results for item in result.undecided),
        notes=(*script.notes, *(note for result in results for note in result.notes)),
    )


def lint_file(path: Path, versions: Mapping[str, str], wheel: Path | None = None) -> LintResult:
    """Lint a launch script. InputError when it cannot be read, starts no training, or a version is none."""
    return lint_script(read_script(path), versions, wheel)


def verl_wheel(versions: Mapping[str, str], cache: Path, command: RunCommand) -> Path | None:
    """The wheel of the released verl in `versions`, fetched once; None for a commit or an unknown version."""
    verl = versions.get("verl", "")
    if not verl or "@" in verl:
        return None
    try:
        return fetch_release("verl", verl, cache=cache, command=command)
    except ReleaseNotFoundError:
        return None


def run(ctx: TaskContext) -> Measured:
    """Lint the facet `recipe` against the facet `versions`."""
    facet = ctx.facets["recipe"]
    if facet is None:
        return Measured(
            measurements={"recipe": None, "findings": [], "undecided": []}, evidence=Evidence.STATIC
        )
    versions = {name: str(version) for name, version in ctx.facets["versions"].items()}
    recipe = JobSettings.from_facet(facet)
    wheel = verl_wheel(versions, ctx.cache, ctx.command) if recipe.entry in ENTRY_MODULES else None
    result = lint_job(recipe, versions, wheel=wheel)
    for finding in result.findings:
        ctx.log(f"{finding}\n  why: {finding.why}\n  do:  {finding.fix}\n  see: {finding.source}")
    return Measured(
        measurements={"recipe": facet["name"], **result.to_json()},
        evidence=Evidence.STATIC,
    )


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Errors fail; warnings pass and are said."""
    if measurements["recipe"] is None:
        return Judgement(status=Status.UNSUPPORTED, reasons=("The cell has no recipe to lint.",))
    if any(note["text"] == NOT_A_VERL_JOB for note in measurements["notes"]):
        return Judgement(status=Status.UNSUPPORTED, reasons=(f"No rule applies: {NOT_A_VERL_JOB}.",))
    findings = measurements["findings"]
    said = [f for severity in SEVERITIES[:2] for f in findings if f["severity"] == severity]
    failed = any(finding["severity"] == "error" for finding in findings)
    return Judgement(
        status=Status.FAIL if failed else Status.PASS,
        reasons=tuple(f"{f['severity']} {f['rule']}: {f['message']}; {f['why']}." for f in said),
        remedies=tuple(dict.fromkeys(f"{f['rule']}: {f['fix']}" for f in said)),
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


def _finding(rule: LintRule, recipe: JobSettings, facts: JobFacts) -> LintFinding:
    place = next((s.where for name in rule.at if (s := facts.setting(name))), recipe.where)

    def filled(text: str) -> str:
        return PLACEHOLDER.sub(lambda found: _value_text(facts.value(found[1])), text)

    return LintFinding(
        rule=rule.id,
        severity=rule.severity,
        file=str(place.file),
        line=place.line,
        column=place.column,
        message=filled(rule.message),
        why=filled(rule.why),
        fix=filled(rule.fix),
        source=rule.source,
        recipe=recipe.name,
    )


def _missing_value_findings(recipe: JobSettings) -> list[LintFinding]:
    """Values torn from their keys by a space: rule TORN-OVERRIDE."""
    return [
        LintFinding(
            rule=MISSING_VALUE_RULE,
            severity="error",
            file=str(setting.where.file),
            line=setting.where.line,
            column=setting.where.column,
            message=f"`{key}=` has no value, and what follows is a word of its own",
            why="Hydra takes the value for another override and stops",
            fix=f"no space after `{key}=`",
            source="Hydra's override grammar; test_grpo_gptoss_20b_fsdp_A2.sh of Ascend/MindSpeed-RL has it",
            recipe=recipe.name,
        )
        for key, setting in recipe.torn.items()
    ]


def _config_findings(
    recipe: JobSettings, versions: Mapping[str, str], wheel: Path | None
) -> Iterator[LintFinding | UndecidedRule]:
    """Overrides that the configuration of this verl does not have: rule CONFIG-KEY."""
    if recipe.entry not in ENTRY_MODULES:
        return
    config = read_config(wheel, config_name(recipe)) if wheel else None
    if config is None:
        unknown = f"{config_name(recipe)} of verl {versions.get('verl', 'of an unknown version')}"
        yield UndecidedRule(rule=CONFIG_RULE, unknown=(unknown,), recipe=recipe.name)
        return
    for misfit in find_unknown_keys(recipe, config):
        setting = recipe.overrides.get(misfit.key)
        place = setting.where if setting else recipe.where
        similar = f"did you mean {' or '.join(misfit.similar)}?" if misfit.similar else "take it out"
        yield LintFinding(
            rule=CONFIG_RULE,
            severity="error",
            file=str(place.file),
            line=place.line,
            column=place.column,
            message=f"{misfit.key} does not exist in verl {versions['verl']} ({config_name(recipe)})",
            why=f"Hydra stops with: Could not override '{misfit.key}'",
            fix=f"{similar} (`+{misfit.key}=...` adds a key that verl itself will not read)",
            source=f"{CONFIG_FOLDER}/_generated_{config_name(recipe)}.yaml "
            f"in the wheel of verl {versions['verl']}",
            recipe=recipe.name,
        )


def _value_text(value: Any) -> str:
    if value is UNSET:
        return "not set"
    return str(value)


def _sorted_findings(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    return tuple(sorted(findings, key=lambda f: (f.file, f.line, SEVERITIES.index(f.severity), f.rule)))
