"""Findings of the rule UNREAD: settings of a job that nothing in this verl reads.

Hydra takes any key with a `+`. A key whose last part stands nowhere in verl's code, or that belongs to a
section which this job does not use, changes nothing. What verl hands on to other packages is not judged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from harness.compat.lint.hydra_compose import Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.key_remedies import keys_of
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.setting_changes import nearest_word

UNREAD_RULE = "UNREAD"
#: Parts of keys below which verl passes everything on, or reads what the user's own code names.
_PASSED_ON = re.compile(r"kwargs|override|env_vars|runtime_env|custom|extra|hydra|template|_target_|optim")
#: Sections that verl reads by their names, so that what it reads of them can be seen in its code.
_NAMED_SECTIONS = {"data": "data", "trainer": "trainer", "actor_rollout_ref.model": "model"}
_ENGINE = re.compile(r"actor_rollout_ref\.rollout\.engine_kwargs\.(?P<engine>\w+)\..*")
#: The share of a section's settings whose names stand in verl's code, unless it is passed on as a whole.
MOST_READ = 0.8
_DATASETS = "verl/utils/dataset/"
#: What verl reads of a critic before it knows whether a job has one (`add_critic_worker` of 0.6.1).
_READ_OF_CRITIC = ("critic.enable", "critic.strategy")


def unread_findings(
    job: JobSettings, configuration: VerlConfiguration, program: Program, composition: Composition
) -> Iterator[LintFinding]:
    """Settings of the job that have no effect."""
    if not program.module.startswith("verl/") or composition.problem or composition.incomplete:
        return
    plain = configuration.defaults(program)
    names = sorted(keys_of(plain.values))
    for key, setting in job.overrides.items():
        if key in job.added and not plain.has(key) and (near := _misspelt(key, names, configuration)):
            why = f"it looks like a misspelling of {near}, which the configuration has beside it"
            fix = f"write {near}, without the plus"
        elif key in job.added and not plain.has(key) and not _PASSED_ON.search(key):
            why, fix = _unread(key, plain, names, configuration)
        elif _is_other_engine(key, composition):
            why = "the rollout of this job is another engine, and reads its own options only"
            fix = f"remove {key}, or set the option of the engine {_engine(composition)}"
        elif key.startswith("critic.") and key not in _READ_OF_CRITIC and _lacks_critic(composition):
            why = "this job has no critic, because its advantages are not those of gae"
            fix = f"remove {key}"
        else:
            continue
        if why:
            yield LintFinding.at(
                setting.where,
                rule=UNREAD_RULE,
                severity="note" if key.startswith("critic.") else "warning",
                message=f"{key} has no effect",
                why=why,
                fix=fix,
                source=f"the code and the configuration of {configuration.label}",
                recipe=job.name,
            )


def _unread(
    key: str, plain: Composition, names: list[str], configuration: VerlConfiguration
) -> tuple[str, str]:
    """Why nothing reads a key that a job adds, and what to write instead; ("", "") if it may be read."""
    section, _, leaf = key.rpartition(".")
    whole = [name for name in names if name.endswith(f".{key}")]
    if section and whole and not plain.has(section.partition(".")[0]):
        return (
            f"the configuration has no section {section.partition('.')[0]}, and `+` makes a new one",
            f"write {whole[0]}",
        )
    if not section or not isinstance(plain.value(section), Mapping):
        return "", ""
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == section}
    others = [name for name in names if name.rpartition(".")[2] == leaf]
    read = [one for one in siblings if one in configuration.code_words]
    if len(read) < MOST_READ * len(siblings):
        # verl passes the whole section on to another package.
        return "", ""
    if leaf not in configuration.code_words:
        near = siblings.get(nearest_word(leaf, siblings), "")
        other = others[0] if others else "the key that verl reads, or remove it"
        return f"no code of {configuration.label} has the name {leaf}", (
            f"write {near}, without the plus" if near else f"write {other}"
        )
    name = _NAMED_SECTIONS.get(section, "")
    if not name or configuration.reads(name, leaf, _DATASETS):
        return "", ""
    similar = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.8)
    known = [siblings[similar[0]]] if similar else others
    other = known[0] if known else "the key that verl reads, or remove it"
    return f"no code of {configuration.label} reads {leaf} of {section}", f"write {other}"


def _misspelt(key: str, names: list[str], configuration: VerlConfiguration) -> str:
    """The key beside an added one that is spelt almost like it; "" if verl's code has the added name."""
    section, _, leaf = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == section]
    near = nearest_word(leaf, siblings) if section and leaf not in configuration.code_words else ""
    return f"{section}.{near}" if near else ""


def _engine(composition: Composition) -> str:
    return str(composition.value("actor_rollout_ref.rollout.name"))


def _is_other_engine(key: str, composition: Composition) -> bool:
    found = _ENGINE.fullmatch(key)
    engine = composition.value("actor_rollout_ref.rollout.name")
    is_known = engine in ("vllm", "sglang", "trtllm")
    return bool(found and is_known and found["engine"] != engine)


def _lacks_critic(composition: Composition) -> bool:
    estimator, enabled = composition.value("algorithm.adv_estimator"), composition.value("critic.enable")
    return composition.has("critic.enable") and enabled is not True and estimator in ("grpo", "rloo")
