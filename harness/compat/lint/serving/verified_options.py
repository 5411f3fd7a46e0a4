"""The checks of vLLM's configuration that fail with the options of a server, or with those that verl gives.

Each class of the configuration verifies what it is made of, in methods that are named so. What is not given
is not known there: vLLM computes it.
"""

from __future__ import annotations

from pathlib import Path

from harness.compat.lint.dry_run.followed_engine import ConfigClass, EngineChecks, follow_verifications
from harness.compat.lint.dry_run.program_values import Entries, Unknown, Value
from harness.compat.lint.dry_run.program_walk import Surroundings
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.serving.option_source import ServerOption, ServerOptions, server_options
from harness.compat.lint.serving.server_command import SERVE

NO_SOURCE = "the source of this vLLM, which was not found, or the package index did not respond"
NO_OPTIONS = "the options of vLLM, which are not where they are looked for in its source"
_NUMBERS = {"int": (int,), "number": (int,), "float": (int, float)}


def verified_options(
    arguments: Entries, known: ServerOptions, vllm: ModuleSources, surroundings: Surroundings
) -> EngineChecks:
    """The checks of the classes that arguments are fields of."""
    classes: dict[ConfigClass, dict[str, str]] = {}
    for option in known.options:
        if option.owner and option.dest in arguments:
            path, name, field = option.owner.split(":")
            classes.setdefault((path, name), {})[option.dest] = field
    return follow_verifications(arguments, classes, vllm, surroundings)


def verified_engine(
    arguments: Entries,
    vllm: ModuleSources,
    surroundings: Surroundings,
    cache: Path | None,
    *,
    by_command: bool,
) -> EngineChecks:
    """The checks that fail with the arguments with which verl starts vLLM.

    by_command: verl writes them as options of a command, without those that are false or empty.
    """
    known = server_options(vllm, SERVE, cache)
    if known is None:
        return EngineChecks(unread=(NO_OPTIONS,))
    options = {one.dest: one for one in known.options}
    given = Entries()
    for name, value in arguments.items():
        plain = str(name).replace("-", "_")
        is_left_out = value is None or (by_command and (value is False or value == []))
        if plain in options and not is_left_out:
            given[plain] = _taken(value, options[plain])
            given.behind[plain] = arguments.behind.get(name, frozenset())
    return verified_options(given, known, vllm, surroundings)


def _taken(value: Value, option: ServerOption) -> Value:
    """What vLLM makes of a value; unknown if that is more than a number, a truth value or a text."""
    if isinstance(value, Unknown):
        return value
    if option.form in _NUMBERS:
        is_number = isinstance(value, _NUMBERS[option.form]) and not isinstance(value, bool)
        return value if is_number else Unknown()
    if option.form in ("pair", "switch"):
        return value if isinstance(value, bool) else Unknown()
    return value if option.form == "text" and not option.nargs and isinstance(value, str) else Unknown()
