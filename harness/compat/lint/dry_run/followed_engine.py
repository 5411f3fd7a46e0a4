"""Follows the checks of vllm-ascend and vLLM with the arguments with which vLLM is started."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness.compat.lint.dry_run.jumps import BudgetError, ReturnJump
from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Class,
    Config,
    Entries,
    Function,
    Instance,
    Options,
    ProgramError,
    Unknown,
    Value,
)
from harness.compat.lint.dry_run.program_walk import ProgramWalk, Surroundings
from harness.compat.lint.module_files import ModuleSources, unparsed

if TYPE_CHECKING:
    from harness.compat.lint.engine_shape import EngineShape

#: The module of the platform, and the method to which vLLM gives its configuration.
PLATFORM, CHECK = "vllm_ascend/platform.py", "check_and_update_config"
ADDITIONAL = "additional_config"
#: What a dataclass calls when it has its fields.
MADE = "__post_init__"
_NO_KEYS: frozenset[str] = frozenset()
TOO_LONG = "what comes after the steps that are followed"


@dataclass(frozen=True, kw_only=True)
class EngineChecks:
    """The checks that fail. unread: what of the checks was not followed, and so may fail as well."""

    failed: tuple[ProgramError, ...] = ()
    unread: tuple[str, ...] = ()


def follow_engine(
    arguments: Entries,
    shape: EngineShape,
    sources: ModuleSources,
    surroundings: Surroundings,
) -> EngineChecks:
    """The checks of vllm-ascend that fail with the arguments that vLLM gets."""

    def follow(run: ProgramWalk) -> bool:
        scope = run.modules.module(PLATFORM)
        classes = [one for one in scope.variables.values() if isinstance(one, Class)]
        for platform in classes:
            found, check = platform.attribute(CHECK)
            if found and isinstance(check, Function):
                given = engine_configuration(run, arguments, shape)
                run.calls.function(check, [platform, given], {}, check.node, scope)
                return True
        return False

    return _followed(follow, PLATFORM, sources, surroundings)


def follow_server(
    arguments: Entries, path: str, checks: str, sources: ModuleSources, surroundings: Surroundings
) -> EngineChecks:
    """The checks of the arguments of a server that fail in a function of vLLM's, which gets all of them.

    Older releases have no such function, and check nothing there.
    """

    def follow(run: ProgramWalk) -> bool:
        scope = run.modules.module(path)
        function = scope.variables.get(checks)
        if isinstance(function, Function):
            given = run.libraries.external({str(name): one for name, one in arguments.items()})
            given.keys.update({str(name): keys for name, keys in arguments.behind.items()})
            run.calls.function(function, [given], {}, function.node, scope)
        return True

    return _followed(follow, path, sources, surroundings)


#: A class of vLLM's configuration: its module and name.
ConfigClass: TypeAlias = tuple[str, str]


def follow_verifications(
    arguments: Entries,
    classes: Mapping[ConfigClass, Mapping[str, str]],
    sources: ModuleSources,
    surroundings: Surroundings,
) -> EngineChecks:
    """The checks of classes of vLLM's configuration that fail with what options set in them.

    classes: for each, argument -> the field that it becomes. Followed are the methods that are named after
    checking, and get nothing else than arguments. What is not set is not known: vLLM computes it.
    """
    verifying = {one: fields for one, fields in classes.items() if _has_verification(one, sources)}

    def follow(run: ProgramWalk) -> bool:
        for one, fields in verifying.items():
            _verify(run, arguments, one, fields)
        return True

    if not verifying:
        return EngineChecks()
    return _followed(follow, next(iter(verifying))[0], sources, surroundings)


def follow_construction(
    arguments: Entries, one: ConfigClass, sources: ModuleSources, surroundings: Surroundings
) -> EngineChecks:
    """The checks that an object makes of itself when it has its fields, in `__post_init__`.

    arguments: the fields that are given. The others have the defaults that the class states for them.
    """

    def follow(run: ProgramWalk) -> bool:
        scope = run.modules.module(one[0])
        cls = scope.variables.get(one[1])
        found, method = cls.attribute(MADE) if isinstance(cls, Class) else (False, None)
        if isinstance(cls, Class) and found and isinstance(method, Function):
            made = Instance(type=cls, attributes={str(name): one for name, one in arguments.items()})
            made.keys.update({str(name): keys for name, keys in arguments.behind.items()})
            run.calls.function(method, [made], {}, method.node, scope)
        return isinstance(cls, Class)

    return _followed(follow, one[0], sources, surroundings)


def _has_verification(one: ConfigClass, sources: ModuleSources) -> bool:
    """Whether a class has methods that check it, or may have some, because its module is not to be read."""
    path, name = one
    module = sources.syntax_tree(path) if path in sources.files.paths else None
    if module is None:
        return True
    classes = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
    return any(_verifies(method) for node in classes for method in node.body)


def _verify(run: ProgramWalk, arguments: Entries, one: ConfigClass, fields: Mapping[str, str]) -> None:
    """Follow the methods of one class that check it."""
    scope = run.modules.module(one[0])
    cls = scope.variables.get(one[1])
    given = run.libraries.external({field: arguments[name] for name, field in fields.items()})
    given.keys.update({field: arguments.behind.get(name, _NO_KEYS) for name, field in fields.items()})
    for method in cls.scope.variables.values() if isinstance(cls, Class) else ():
        if isinstance(method, Function) and _verifies(method.node):
            node = method.node
            named = [parameter.arg for parameter in node.args.args[1:]]
            values = [arguments.get(name, UNKNOWN) for name in named]
            behind: dict[int | str, frozenset[str]] = {
                at + 1: arguments.behind.get(name, _NO_KEYS) for at, name in enumerate(named)
            }
            try:
                run.calls.function(method, [given, *values], {}, node, scope, behind)
            except ProgramError as error:
                run.failures += [error] if error.keys else []


def _verifies(node: ast.AST) -> bool:
    """Whether a method checks its object: it is named so, and changes no value that it gets."""
    if not isinstance(node, ast.FunctionDef) or not re.match(r"_*(?:verify|validate)_", node.name):
        return False
    decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
    return "field_validator" not in decorators and "classmethod" not in decorators


def _followed(
    follow: Callable[[ProgramWalk], bool], path: str, sources: ModuleSources, surroundings: Surroundings
) -> EngineChecks:
    """follow: whether the checks were found in the module at `path`."""
    if path not in sources.files.paths:
        return EngineChecks(unread=(f"{path}, which is not in this release",))
    run = ProgramWalk(sources.files, sources.syntax_tree, surroundings)
    run.blames_conditions = True
    last: list[ProgramError] = []
    unread: list[str] = []
    try:
        if not follow(run) and not run.modules.unparsed:
            unread.append(f"the checks of {path}, which are not where they are looked for")
    except ProgramError as error:
        last += [error] if error.keys else []
    except (BudgetError, RecursionError, ReturnJump):
        unread.append(TOO_LONG)
    finally:
        run.modules.forget()
    unread += [unparsed(one) for one in run.modules.unparsed]
    return EngineChecks(failed=tuple(run.failures or last), unread=tuple(unread))


def engine_configuration(run: ProgramWalk, arguments: Entries, shape: EngineShape) -> Instance:
    """The object that vLLM makes of its arguments. What is not known of it is an unknown."""
    whole = run.libraries.external({})
    for name in shape.sections:
        if name not in arguments and name in shape.unset:
            whole.attributes[name] = None
        elif name == ADDITIONAL:
            whole.attributes[name] = _mapping(arguments, name)
        elif name in arguments:
            value = _mapping(arguments, name)
            whole.attributes[name] = run.libraries.external(dict(value)) if isinstance(value, dict) else value
            whole.keys[name] = arguments.behind.get(name, _NO_KEYS)
        else:
            whole.attributes[name] = run.libraries.external(dict(shape.defaults.get(name, {})))
    device = whole.attributes.get("device_config")
    if isinstance(device, Instance):
        device.attributes["device_type"] = run.surroundings.device
    for argument, value in arguments.items():
        for section, field in shape.fields.get(str(argument), ()):
            part = whole.attributes.get(section)
            if isinstance(part, Instance):
                part.attributes[field] = value
                part.keys[field] = arguments.behind.get(argument, _NO_KEYS)
    return whole


def _mapping(arguments: Entries, name: str) -> Value:
    """A mapping that vLLM is given, which can be written as JSON; each entry rests on its own setting."""
    value = arguments.get(name, {})
    behind = arguments.behind.get(name, _NO_KEYS)
    path = value.path if isinstance(value, Config) else next(iter(behind), "")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return UNKNOWN
    if value is None:
        return None
    return _options(value, path) if isinstance(value, dict) else Unknown()


def _options(value: Value, path: str) -> Value:
    if isinstance(value, dict):
        options = Options({}, path)
        for name, one in value.items():
            options[str(name)] = _options(one, options.key(str(name)) if path else "")
        return options
    return value
