"""The checks of vLLM's configuration that fail with the options of a server, or with those that verl gives.

Each class of the configuration verifies what it is made of, in methods that are named so. What is not given
is not known there: vLLM computes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.compat.lint.dry_run.followed_engine import ConfigClass, EngineChecks, follow_verifications
from harness.compat.lint.dry_run.program_values import (
    Entries,
    ProgramError,
    SourcePlace,
    Unknown,
    Value,
    has_unknown,
)
from harness.compat.lint.dry_run.program_walk import Surroundings
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.serving.json_types import Classes
from harness.compat.lint.serving.option_source import (
    ARGUMENTS_FILE,
    ServerOption,
    ServerOptions,
    server_options,
)
from harness.compat.lint.serving.server_command import SERVE
from harness.compat.lint.serving.server_parser import refused_value

NO_SOURCE = "the source of this vLLM, which was not found, or the package index did not respond"
NO_OPTIONS = "the options of vLLM, which are not where they are looked for in its source"
#: The start of what vLLM's parser says of a value.
ARGUMENT = "argument"
#: A number outside of the limits of its field is refused when vLLM makes its configuration.
_LIMIT = re.compile(r"it takes (?:more|less|at) ")
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
    """The checks that fail with the arguments with which verl starts vLLM, and what its parser refuses.

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
    refused = tuple(_refused(arguments, options, known.classes, vllm)) if by_command else ()
    checks = verified_options(given, known, vllm, surroundings)
    # vLLM stops at them before it makes its configuration.
    return replace(checks, failed=refused) if refused else checks


def _refused(
    arguments: Entries, options: Mapping[str, ServerOption], classes: Classes, vllm: ModuleSources
) -> Iterator[ProgramError]:
    """The values that vLLM's parser refuses, of those that verl writes after their option."""
    for name, value in arguments.items():
        option = options.get(str(name).replace("-", "_"))
        if option is None or not option.flags or option.form in ("pair", "switch"):
            continue
        problems = (refused_value(text, option, classes) for text in _written(value, option))
        problem = next(filter(None, problems), "")
        if problem:
            yield ProgramError(
                type="ValidationError" if _LIMIT.match(problem) else "SystemExit",
                message=f"{ARGUMENT} {option.flags[0]}: {problem}",
                place=option_place(option, vllm),
                keys=arguments.behind.get(name, frozenset()),
            )


def _written(value: Value, option: ServerOption) -> Sequence[str]:
    """The words of a value in the command; none if it is left out, or not known."""
    if value is None or isinstance(value, bool) or has_unknown(value):
        return ()
    if isinstance(value, list):
        return [str(one) for one in value] if option.nargs else ()
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


def option_place(option: ServerOption, vllm: ModuleSources) -> SourcePlace:
    """The line of the field that an option becomes, or that of the option itself."""
    path, _, rest = option.owner.partition(":")
    path, field = path or ARGUMENTS_FILE, rest.partition(":")[2]
    written = rf"^ +{field}:" if field else re.escape(f'"{option.flags[0]}"')
    text = vllm.text(path) if path in vllm.files.paths else ""
    start = text.find(f"class {rest.partition(':')[0]}") if field else 0
    found = re.compile(written, re.MULTILINE).search(text, max(start, 0))
    return SourcePlace(path=path, line=text.count("\n", 0, found.start()) + 1 if found else 1)


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
