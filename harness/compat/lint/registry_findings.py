"""Findings of the rule REGISTRY: names that this verl does not register, such as a loss it does not have."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.ruleset import NameRegistry, load_ruleset

REGISTRY_RULE = "REGISTRY"


def registry_findings(
    job: JobSettings, configuration: VerlConfiguration, program: Program, composition: Composition
) -> Iterator[LintFinding]:
    """Settings of the job with a name that nothing in this verl registers.

    Programs outside of verl's package can register names of their own: nothing is found in their jobs.
    """
    for registry in load_ruleset().registries if program.module.startswith("verl/") else ():
        value, setting = composition.value(registry.key), job.overrides.get(registry.key)
        if setting is None or not isinstance(value, str) or UNKNOWN_VALUE in value or "${" in value:
            continue
        if registry.unless and composition.value(registry.unless) is not None:
            continue
        if registry.if_true and composition.value(registry.if_true) is not True:
            continue
        names = registered_names(configuration, registry)
        # A `+` at the end of a KL estimate chooses how its gradient is made.
        if not names or (value.removesuffix("+") if registry.compares else value) in names:
            continue
        known = ", ".join(sorted(names))
        near = difflib.get_close_matches(value, sorted(names), n=1)
        yield LintFinding.at(
            setting.where,
            rule=REGISTRY_RULE,
            severity="error",
            message=f"{registry.key}={value} is no name that this verl has",
            why=f"verl stops with: {registry.message}: {value}; {configuration.label} has {known}",
            fix=f"set {registry.key}={near[0]}" if near else f"choose one of {known}",
            source=registry.source,
            recipe=job.name,
        )


def registered_names(configuration: VerlConfiguration, registry: NameRegistry) -> frozenset[str]:
    """The names that modules register; empty if one of them is not written as a text."""
    found: set[str] = set()
    for path in sorted(configuration.paths):
        if not (path.startswith(registry.folders) and path.endswith(".py")):
            continue
        module = configuration.syntax_tree(path)
        if module is None:
            return frozenset()
        if registry.compares:
            found |= _compared(module, *registry.compares)
            continue
        members = _enum_members(module)
        for call in _decorators(module, registry.decorator):
            names = [_name(argument, members) for argument in call.args]
            if not names or None in names:
                return frozenset()
            found.update(name for name in names if name)
    return frozenset(found)


def _compared(module: ast.Module, function: str, parameter: str) -> set[str]:
    """The texts that a function compares a parameter with, by `==` or `in`."""
    bodies = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function]
    tests = [node for body in bodies for node in ast.walk(body) if isinstance(node, ast.Compare)]
    return {
        part.value
        for test in tests
        if isinstance(test.left, ast.Name) and test.left.id == parameter
        for choice in test.comparators
        for part in ast.walk(choice)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def _decorators(module: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and ast.unparse(one.func) == name:
                    yield one


def _name(argument: ast.expr, members: Mapping[str, str]) -> str | None:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return members.get(ast.unparse(argument))


def _enum_members(module: ast.Module) -> Mapping[str, str]:
    """`Class.MEMBER` -> its text, for all classes of a module."""
    return {
        f"{node.name}.{target.id}": item.value.value
        for node in module.body
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
        for target in item.targets
        if isinstance(target, ast.Name) and isinstance(item.value.value, str)
    }
