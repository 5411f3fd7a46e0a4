"""Findings about environment variables: misspelt names, values their readers refuse, and lost variables.

`rules/environment.yaml` has the variables that the programs of a job for NPUs read. verl's own code knows
others: a name that stands in it is no misspelling.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from harness.compat.lint.allocator_options import differs_by_version, options_problem
from harness.compat.lint.engine_variables import (
    PREFIX,
    UnreadVariable,
    unread_elsewhere,
    unread_readers,
    unread_variable,
)
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, UndecidedRule
from harness.compat.lint.ruleset import EnvironmentEntry, load_ruleset
from harness.compat.lint.setting_changes import nearest_word, value_change
from harness.compat.lint.shell.values import ScriptValue

ENV_NAME_RULE, ENV_VALUE_RULE, ENV_LOST_RULE = "ENV-NAME", "ENV-VALUE", "ENV-LOST"
UNSET_RULE = "UNSET-VARIABLE"
#: How many words a name has of which one can be missing.
LONG_NAME = 4
#: The start of the names that only verl reads.
_VERL = "VERL_"
_INTEGER, _NUMBER = re.compile(r"-?[0-9]+"), re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def environment_findings(
    job: JobSettings, configuration: VerlConfiguration | None, versions: Mapping[str, str]
) -> Iterator[LintFinding | UndecidedRule]:
    """Findings about the variables that a script sets for a job, or means to set.

    versions: axis -> version; the variables that packages read, and the options of torch_npu's allocator,
    differ between their versions.
    """
    yield from _undecided(job, versions)
    entries = {name: entry for entry in load_ruleset().environment for name in entry.names}
    in_verl = configuration.compared_texts.words if configuration else frozenset()
    of_verl = dict.fromkeys(word for word in in_verl if word.startswith(_VERL))
    for name, value in job.env.items():
        unread = unread_variable(name, versions) if name.startswith(PREFIX) and name not in in_verl else None
        is_known = name in entries or name in in_verl or (unread is None and name.startswith(PREFIX))
        near = _nearest_name(name, {**entries, **of_verl}) if not is_known and "_" in name else ""
        other = None if is_known or near else unread_elsewhere(name, versions)
        if near and near not in job.env:
            yield _misspelt(name, near, value, entries.get(near), job)
        elif other is not None and not other.release and other.near not in job.env:
            yield _misspelt(name, other.near, value, None, job, other.reader)
        elif other is not None and other.release and name not in job.used_variables:
            yield _unread(name, other, value, job)
        elif unread is not None and name not in job.used_variables:
            yield _unread(name, unread, value, job)
        problem = _problem(value, entries[name], versions) if name in entries and not value.unknown else ""
        if problem:
            yield _refused(name, value, problem, entries[name], job)
    for name, value in job.unset_variables.items():
        if name not in entries:
            yield _unset(name, value, job)
    for name, value in job.unpassed.items():
        if name in entries:
            yield _lost(name, value, entries[name], job)


def _undecided(job: JobSettings, versions: Mapping[str, str]) -> Iterator[UndecidedRule]:
    """The rules on variables for which the releases that read them are not known."""
    names = [unread for name in job.env for unread in unread_readers(name, versions)]
    if names:
        yield UndecidedRule(rule=ENV_NAME_RULE, unknown=tuple(dict.fromkeys(names)), recipe=job.name)
    entries = [one for one in load_ruleset().environment if one.options]
    texts = [(job.env[name].text, one.options) for one in entries for name in one.names if name in job.env]
    if not versions.get("torch_npu") and any(differs_by_version(*one) for one in texts):
        yield UndecidedRule(rule=ENV_VALUE_RULE, unknown=("torch_npu",), recipe=job.name)


def _nearest_name(name: str, known: Collection[str]) -> str:
    """The variable that is spelt almost like this name, or has the same words but for one or their order."""
    near = nearest_word(name, known)
    words = name.split("_")
    if near or len(words) < LONG_NAME:
        return near
    similar = [one for one in known if _lacks_one_word(words, one.split("_"))]
    return similar[0] if len(similar) == 1 else ""


def _lacks_one_word(words: Sequence[str], others: Sequence[str]) -> bool:
    shorter, longer = sorted((words, others), key=len)
    if len(shorter) < LONG_NAME or words[0] != others[0]:
        return False
    if len(shorter) == len(longer):
        return sorted(words) == sorted(others)
    rest = iter(longer)
    return len(longer) == len(shorter) + 1 and all(word in rest for word in shorter)


def _misspelt(
    name: str,
    near: str,
    value: ScriptValue,
    entry: EnvironmentEntry | None,
    job: JobSettings,
    reader: str = "verl",
) -> LintFinding:
    """A finding about a name that is almost one of an entry, or of the reader's own if there is none."""
    return LintFinding.at(
        value.where,
        recipe=job.name,
        rule=ENV_NAME_RULE,
        severity="warning",
        message=f"the environment variable {name} looks like a misspelling of {near}",
        why=f"{entry.read_by if entry else reader} reads {near}; nothing that is known here, verl included, "
        f"reads {name}",
        fix=f"export {near}={value.text}",
        source=entry.source if entry else f"the code of the {reader} that the job has",
    )


def _unread(name: str, unread: UnreadVariable, value: ScriptValue, job: JobSettings) -> LintFinding:
    if unread.release:
        message = f"{unread.release} does not read the environment variable {name}"
        why = f"it has no effect; the releases that read it are {unread.since} to {unread.until}"
    else:
        message = f"neither vLLM nor vllm-ascend reads the environment variable {name}"
        why = "vLLM warns of an unknown variable with its prefix and goes on without it"
    return LintFinding.at(
        value.where,
        recipe=job.name,
        rule=ENV_NAME_RULE,
        severity="warning",
        message=message,
        why=why,
        fix=f"write {unread.near}, or remove it"
        if unread.near
        else "remove it, or write the variable that is meant",
        source="the surface pack: the modules of each release of the package",
    )


def _refused(
    name: str, value: ScriptValue, problem: str, entry: EnvironmentEntry, job: JobSettings
) -> LintFinding:
    near = nearest_word(value.text, entry.choices) if entry.form == "choice" else ""
    return LintFinding.at(
        value.where,
        recipe=job.name,
        rule=ENV_VALUE_RULE,
        severity="error",
        message=f"{name}={value.text[:80]} is no value for {entry.read_by}: {problem}",
        why="its reader refuses it, or reads something else from it than what is meant",
        fix=f"export {name}={near}" if near else f"give {name} a value of its documentation",
        source=entry.source,
        changes=value_change(value, f"env.{name}", near),
    )


def _unset(name: str, value: ScriptValue, job: JobSettings) -> LintFinding:
    return LintFinding.at(
        value.where,
        recipe=job.name,
        rule=UNSET_RULE,
        severity="warning",
        message=f"the variable {name} is set nowhere in this script",
        why="unless it is given from outside, bash puts nothing in its place, and stops there after set -u",
        fix=f"set {name} at the beginning, or give it a default: ${{{name}:-value}}",
        source="the manual of bash, sections Shell Parameter Expansion and The Set Builtin",
    )


def _lost(name: str, value: ScriptValue, entry: EnvironmentEntry, job: JobSettings) -> LintFinding:
    is_late = value.where.line > job.where.line
    what = "is set after the program was started" if is_late else "is not exported"
    return LintFinding.at(
        value.where,
        recipe=job.name,
        rule=ENV_LOST_RULE,
        severity="warning",
        message=f"{name} {what}, so that {job.entry} does not get it",
        why="a program gets the variables that are exported when it starts; nothing else uses this one, "
        f"which {entry.read_by} reads",
        fix="move it before the command" if is_late else f"export {name}={value.text}",
        source="the manual of bash, section Environment",
    )


def _problem(value: ScriptValue, entry: EnvironmentEntry, versions: Mapping[str, str]) -> str:
    """Why a variable cannot have this value; "" if it can."""
    text = value.text.strip()
    checks: Mapping[str, Callable[[str, EnvironmentEntry], str]] = {
        "integer": _number_problem,
        "number": _number_problem,
        "choice": _choice_problem,
        "cards": _cards_problem,
        "options": lambda given, entry: options_problem(given, entry.options, versions.get("torch_npu", "")),
        "pattern": _pattern_problem,
        "ports": _ports_problem,
        "address": _address_problem,
    }
    return checks[entry.form](text, entry) if text and entry.form in checks else ""


def _number_problem(text: str, entry: EnvironmentEntry) -> str:
    kind, pattern = ("whole number", _INTEGER) if entry.form == "integer" else ("number", _NUMBER)
    fits = pattern.fullmatch(text) and entry.low <= float(text) <= entry.high
    return "" if fits else f"it is a {kind} from {entry.low} to {entry.high}"


def _choice_problem(text: str, entry: EnvironmentEntry) -> str:
    taken = {choice.lower() if entry.any_case else choice for choice in entry.choices}
    given = text.lower() if entry.any_case else text
    return "" if given in taken else f"it is one of {', '.join(entry.choices)}"


def _cards_problem(text: str, _entry: EnvironmentEntry) -> str:
    cards = text.split(",")
    if not all(card.strip().isascii() and card.strip().isdigit() for card in cards):
        return "it is a list such as 0,1,2,3"
    if any(card != card.strip() for card in cards):
        return "CANN reads the cards before the first space only"
    twice = next((card for card in cards if cards.count(card) > 1), "")
    if not twice and cards != sorted(cards, key=int):
        return "CANN takes the cards in ascending order"
    return f"card {twice} is in it twice" if twice else ""


def _ports_problem(text: str, _entry: EnvironmentEntry) -> str:
    for part in text.split(",") if text != "auto" else ():
        first, dash, last = part.partition("-")
        if not (first.isdigit() and (last.isdigit() or not dash)):
            return "it is a list such as 60000-60050, or auto"
        if int(first) > int(last or first) or not 0 < int(last or first) <= 65535:
            return f"{part} is no range of ports from 1 to 65535, the smaller one first"
    return ""


def _address_problem(text: str, _entry: EnvironmentEntry) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "it is an address such as 192.168.1.2"
    return ""


def _pattern_problem(text: str, entry: EnvironmentEntry) -> str:
    return "" if entry.pattern.fullmatch(text) else f"it is written as {entry.choices[0]}"
