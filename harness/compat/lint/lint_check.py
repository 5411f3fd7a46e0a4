"""Check `lint`: apply the lint rules to the settings of a job and the versions of its cell."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.check import TaskContext
from harness.compat.lint.cell_patches import with_cell_patches
from harness.compat.lint.config_findings import compose_job, config_findings
from harness.compat.lint.engine_findings import ENGINE_PACKAGE, ENGINE_RULE, NO_FILES
from harness.compat.lint.engine_variables import stated_vllm
from harness.compat.lint.environment_findings import environment_findings
from harness.compat.lint.hydra_compose import Composition, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings, parsed_value
from harness.compat.lint.lint_measurements import (
    LintFinding,
    LintMeasured,
    LintResult,
    ScriptNote,
    UndecidedRule,
)
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.repeated_settings import repeated_settings
from harness.compat.lint.rule_expression import UNKNOWN, UNSET, deciding_names, evaluate, names_in
from harness.compat.lint.ruleset import (
    PLACEHOLDER,
    PPO_CONFIG,
    SCRIPT_FACTS,
    VERSION_NAMES,
    LintRule,
    Ruleset,
    load_ruleset,
)
from harness.compat.lint.setting_changes import value_change
from harness.compat.lint.shell.values import ScriptValue
from harness.compat.lint.torn_overrides import torn_override_findings
from harness.compat.patched_sources import unread_patches
from harness.errors import InputError
from harness.gc_pause import gc_paused
from harness.matrix.model.versions import Version, parse_version
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.sources.git.mirrors import COMMIT_REMEDY, find_mirror, mirror_folders, newly_mirrored
from harness.sources.packages.archive import open_archive
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.locked_releases import releases_of_task
from harness.sources.packages.release_archive import ReleaseArchive
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.tree import Tree

NOT_A_VERL_JOB = "this is not a verl job, and the rules are only about verl"
#: Programs whose configuration is verl's; a recipe of a stack can name none.
_VERL_PROGRAM = re.compile(r"\Z|(?:.*/)?(?:verl|recipe)[./]")
#: The endings of data that verl reads. `null` is no file.
NO_TEXT_ENDINGS = (".parquet", "null", "None")
DATA_ENDINGS = (*NO_TEXT_ENDINGS, ".json", ".jsonl")
TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl")
_JSON_SINCE = parse_version(VERSION_NAMES["verl"], "0.7.0.dev0")
SEVERITIES = ("error", "warning", "note")


class JobFacts:
    """The values of the names in conditions, for one job and one set of versions."""

    def __init__(
        self,
        job: JobSettings,
        versions: Mapping[str, str],
        rules: Ruleset,
        composition: Composition | None = None,
    ) -> None:
        self._job = job
        self._composition = composition
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
            fact = getattr(self._model, name[6:], None)
            return UNKNOWN if fact is None else fact
        if name == "for_npus":
            return self._job.states_npus or not {"cann", "vllm_ascend"}.isdisjoint(self._versions)
        if name == "visible_cards":
            return _visible_cards(self._job.env.get("ASCEND_RT_VISIBLE_DEVICES"))
        if name in ("other_data", "text_data"):
            settings = [self._job.overrides.get(f"data.{kind}_files") for kind in ("train", "val")]
            # Before 0.7.0 every file is read as parquet.
            verl = self._versions.get("verl")
            taken = NO_TEXT_ENDINGS if verl is not None and verl < _JSON_SINCE else DATA_ENDINGS
            others = (file for file in _data_files(settings) if not file.endswith(taken))
            return next(
                (file for file in others if name == "other_data" or file.endswith(TEXT_ENDINGS)), UNSET
            )
        if name in SCRIPT_FACTS:
            return self._job.facts.get(name, UNSET)
        if name in ("cards", "nodes"):
            return getattr(self._job, name) or UNKNOWN
        if name in ("config", "device", "entry"):
            return getattr(self._job, name) or UNSET
        return self._setting(self._rules.names[name])

    def is_set(self, name: str) -> bool:
        """Whether the job sets `name` to a value."""
        setting = self.setting(name)
        return setting is not None and parsed_value(setting) is not UNSET

    def key(self, name: str) -> str:
        """The configuration key that `name` stands for; `env.NAME` of a variable."""
        return self._rules.names.get(name, name)

    def setting(self, name: str) -> ScriptValue | None:
        """The job's setting of `name`, or None when it uses the default."""
        if name.startswith("env."):
            return self._job.env.get(name[4:])
        return self._job.overrides.get(self.key(name))

    def _setting(self, key: str) -> Any:
        setting = self._job.overrides.get(key)
        if setting is not None:
            return parsed_value(setting)
        if self._job.has_unread_arguments:
            return UNKNOWN
        if self._composition is not None and self._composition.has(key):
            value = self._composition.value(key)
            return UNSET if value is None else value
        config = posixpath.basename(self._job.config).removesuffix(".yaml") or PPO_CONFIG
        is_known = config in self._rules.known_configs and _VERL_PROGRAM.match(self._job.entry)
        if self._composition is None and not is_known:
            return UNKNOWN
        verl = self._versions.get("verl")
        for default in self._rules.defaults:
            if default.key != key or default.config not in ("", config):
                continue
            if default.versions and not verl:
                return UNKNOWN
            if default.versions is None or (verl and default.versions.contains(verl)):
                value = self._setting(default.same_as) if default.same_as else default.value
                return UNSET if value is None else value
        return UNSET


@gc_paused(collects=True)
def lint_job(
    job: JobSettings,
    versions: Mapping[str, str],
    rules: Ruleset | None = None,
    configuration: VerlConfiguration | None = None,
) -> LintResult:
    """Apply every rule to a job.

    versions: axis -> version; other versions are UNKNOWN in conditions. configuration: the unpacked files of
    the job's verl, with which Hydra composes the job's configuration.
    """
    rules = rules or load_ruleset()
    if not job.is_verl:
        return LintResult(
            findings=(), undecided=(), notes=(ScriptNote(line=job.where.line, text=NOT_A_VERL_JOB),)
        )
    composed = compose_job(job, configuration)
    composition = composed[1] if composed and composed[1].values else None
    facts = JobFacts(job, versions, rules, composition)
    findings: list[LintFinding] = []
    undecided: list[UndecidedRule] = []
    kind = rules.program_kind(job.entry, trains_policy=_trains_a_policy(job, composition))
    for rule in rules.rules:
        if kind not in rule.programs:
            continue
        truth = evaluate(rule.condition, facts)
        if truth is True:
            findings.append(_finding(rule, job, facts))
        elif truth is UNKNOWN:
            unknown = sorted(name for name in names_in(rule.condition) if facts.value(name) is UNKNOWN)
            undecided.append(UndecidedRule(rule=rule.id, unknown=tuple(unknown), recipe=job.name))
    findings += torn_override_findings(job)
    findings += repeated_settings(job)
    for one in environment_findings(job, configuration, versions):
        if isinstance(one, UndecidedRule):
            undecided.append(one)
        else:
            findings.append(one)
    reported = {finding.rule for finding in findings}
    for item in config_findings(job, versions, configuration, composed):
        if isinstance(item, UndecidedRule):
            undecided.append(item)
        elif "FILTER-GROUPS" not in reported or "filter_groups" not in item.message:
            findings.append(item)
    return LintResult(findings=sorted_findings(_told_once(findings, rules)), undecided=tuple(undecided))


def _visible_cards(setting: ScriptValue | None) -> Any:
    """The number of cards in a list such as `0,1,4`; UNSET if all are visible."""
    if setting is None:
        return UNSET
    cards = setting.text.strip("'\"").split(",")
    return UNKNOWN if setting.unknown or not all(card.strip().isdigit() for card in cards) else len(cards)


def _data_files(settings: Sequence[ScriptValue | None]) -> Iterator[str]:
    """The files of data whose ending is known."""
    lists = [setting.text.strip("[]\"' ").split(",") for setting in settings if setting is not None]
    names = (name.strip("[]\"' ") for files in lists for name in files)
    # A word alone stands for a path; if the last part of a path is from outside, its ending is not known.
    return (name for name in names if re.search(r"[./]", name) and "$" not in name.rpartition("/")[2])


def _told_once(findings: Sequence[LintFinding], rules: Ruleset) -> list[LintFinding]:
    """The findings without those that another finding at the same place covers."""
    covered_by = {rule.id: rule.covered_by for rule in rules.rules if rule.covered_by}
    told = {(one.rule, one.file, one.line, one.column) for one in findings}
    return [
        one for one in findings if (covered_by.get(one.rule, ""), one.file, one.line, one.column) not in told
    ]


def _trains_a_policy(job: JobSettings, composition: Composition | None) -> bool:
    """Whether a job's configuration is one of reinforcement learning."""
    if composition is not None:
        return composition.has("actor_rollout_ref")
    return any(key.startswith(("actor_rollout_ref.", "algorithm.")) for key in job.overrides)


def verl_tree(
    versions: Mapping[str, str], releases: ReleaseFetcher
) -> tuple[Tree, ReleaseArchive | None] | None:
    """The files of the verl in `versions`; None without a version, or for a commit that no mirror has.

    ReleaseNotFoundError if the package index has no such release.
    """
    commit = _commit(versions)
    if commit:
        repository = find_mirror(mirror_folders(), commit)
        return (repository.tree(commit), None) if repository else None
    if not versions.get("verl"):
        return None
    wheel, archive = releases.archive("verl", versions["verl"])
    return open_archive(wheel), archive


def engine_tree(
    versions: Mapping[str, str], releases: ReleaseFetcher
) -> tuple[Tree, ReleaseArchive | None] | None:
    """The files of the vllm-ascend in `versions`, whose own checks are followed.

    None without a version, and for a release or commit that is not to be had: its checks are then not
    followed. InfrastructureError if the package index cannot be reached.
    """
    version, _, commit = versions.get("vllm_ascend", "").partition("@")
    found = releases.find(ENGINE_PACKAGE, version, commit) if version else None
    return (open_archive(found.file), found.archive) if found else None


def vllm_tree(
    versions: Mapping[str, str], releases: ReleaseFetcher
) -> tuple[Tree, ReleaseArchive | None] | None:
    """The files of the vLLM in `versions`, or of the one that their vllm-ascend is made for.

    None without a version, and for a release or commit that is not to be had. InfrastructureError if the
    package index cannot be reached.
    """
    version, _, commit = stated_vllm(versions).partition("@")
    found = releases.find("vllm", version, commit) if version else None
    return (open_archive(found.file), found.archive) if found else None


def _commit(versions: Mapping[str, str]) -> str:
    """The commit of verl, or "" for a release."""
    return versions.get("verl", "").partition("@")[2]


@dataclass(frozen=True)
class _CellVllm:
    """The vLLM of a cell: fetched only if its job starts vLLM."""

    versions: Mapping[str, str]
    releases: ReleaseFetcher

    def modules(self) -> ModuleSources | None:
        """Its modules; None if they are not to be had."""
        return ModuleSources(self._found[0]) if self._found else None

    @property
    def archive(self) -> ReleaseArchive | None:
        """What was read, if it was."""
        return self._found[1] if self._was_asked and self._found else None

    @property
    def absent_commit(self) -> str:
        """The commit that no mirror has, if it was looked for."""
        return stated_vllm(self.versions).partition("@")[2] if self._was_asked and not self._found else ""

    @functools.cached_property
    def _found(self) -> tuple[Tree, ReleaseArchive | None] | None:
        return vllm_tree(self.versions, self.releases)

    @property
    def _was_asked(self) -> bool:
        return "_found" in vars(self)


def run(ctx: TaskContext) -> Measured[LintMeasured]:
    """Lint the facet `recipe` against the facet `versions`, with the cell's patches."""
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
    patches = {name: ctx.facets.get(f"patches[{name}]") or () for name in ("verl", "vllm_ascend")}
    unread = next(filter(None, map(unread_patches, patches.values())), None)
    verl = _published_verl(versions, releases) if job.is_verl and unread is None else None
    patched = with_cell_patches(verl[0], patches["verl"], ctx.root) if verl else None
    engine = engine_tree(versions, releases) if patched else None
    followed = with_cell_patches(engine[0], patches["vllm_ascend"], ctx.root) if engine else None
    vllm = _CellVllm(versions, releases)
    if patched is None:
        result = lint_job(job, versions)
    else:
        files = followed.tree if followed else None
        with VerlConfiguration(patched.tree, ctx.cache, files, vllm.modules).unpacked() as configuration:
            result = lint_job(job, versions, configuration=configuration)
    for finding in result.findings:
        ctx.log(f"{finding}\n  why: {finding.why}\n  do:  {finding.fix}\n  see: {finding.source}")
    return Measured(
        measurements=LintMeasured(
            recipe=job.name,
            is_verl_job=job.is_verl,
            findings=result.findings,
            undecided=result.undecided,
            notes=result.notes,
            archives_read=tuple(
                archive
                for archive in (*(read[1] for read in (verl, engine) if read), vllm.archive)
                if archive
            ),
            absent_commits=tuple(filter(None, [unread.commit if unread else _commit(versions)]))
            if job.is_verl and verl is None
            else tuple(filter(None, [vllm.absent_commit])),
            misfits=tuple(name for one in (patched, followed) if one for name in one.misfits),
        ),
        evidence=Evidence.STATIC,
    )


def _published_verl(
    versions: Mapping[str, str], releases: ReleaseFetcher
) -> tuple[Tree, ReleaseArchive | None] | None:
    try:
        return verl_tree(versions, releases)
    except ReleaseNotFoundError:
        return None


def holds(measurements: LintMeasured) -> str:
    """Why the stored outcome should be replaced: a mirror now has the commit of verl, or of vLLM."""
    return newly_mirrored(measurements.absent_commits)


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
    misfits = tuple(
        f"Checked without our patch {patch}, which does not apply." for patch in measurements.misfits
    )
    # After an error, or without the configuration of verl, the rest is open anyway.
    unfollowed = () if errors or unchecked else _not_followed(measurements)
    return Judgement(
        status=Status.FAIL if errors else Status.NOT_RUN if unchecked else Status.PASS,
        reasons=(*(reasons if errors else (*unchecked, *reasons)), *misfits, *unfollowed),
        remedies=(
            *((COMMIT_REMEDY,) if any("@" in text for text in (*unchecked, *unfollowed)) else ()),
            *dict.fromkeys(f"{f.rule}: {f.fix}" for f in reported),
        ),
    )


def _not_followed(measurements: LintMeasured) -> tuple[str, ...]:
    """What of the checks of vLLM and vllm-ascend themselves was not compared with the recipe."""
    unknown = (name for item in measurements.undecided if item.rule == ENGINE_RULE for name in item.unknown)
    # A cell without vllm-ascend has none of its checks.
    return tuple(
        f"Not checked: the sources of {name.removeprefix(NO_FILES)} are not available."
        if name.startswith(NO_FILES)
        else f"Not checked: what vLLM and vllm-ascend verify themselves needs {name}."
        for name in dict.fromkeys(unknown)
        if name != "vllm_ascend"
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
    deciding = deciding_names(rule.condition, facts)
    at = sorted(rule.at, key=lambda name: name not in deciding)
    where = next((s.where for name in at if (s := facts.setting(name))), job.where)

    def filled(text: str) -> str:
        return PLACEHOLDER.sub(lambda found: _value_text(facts.value(found[1])), text)

    return LintFinding.at(
        where,
        rule=rule.id,
        severity=rule.severity,
        message=filled(rule.message),
        why=filled(rule.why),
        fix=filled(rule.fix),
        source=rule.source,
        recipe=job.name,
        changes=tuple(
            change
            for name, new in rule.change.items()
            if (setting := facts.setting(name)) is not None
            for change in value_change(setting, facts.key(name), new)
        ),
    )


def _value_text(value: object) -> str:
    return "not set" if value is UNSET else str(value)


def sorted_findings(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    """Findings without repetitions by file, line, severity and rule."""
    return tuple(
        sorted(dict.fromkeys(findings), key=lambda f: (f.file, f.line, SEVERITIES.index(f.severity), f.rule))
    )
