"""Findings of the rule REGISTRY: names that this verl does not register, such as a loss it does not have."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, UndecidedRule
from harness.compat.lint.ruleset import NameRegistry, load_ruleset

REGISTRY_RULE = "REGISTRY"


def registry_findings(
    job: JobSettings, configuration: VerlConfiguration, program: Program, composition: Composition
) -> Iterator[LintFinding | UndecidedRule]:
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
        if not names:
            unknown = f"the names that modules in {' and '.join(registry.folders)} have for {registry.key}"
            yield UndecidedRule(rule=REGISTRY_RULE, unknown=(unknown,), recipe=job.name)
        given = [one.strip() for one in value.split(",")] if registry.has_list else [value]
        # A `+` at the end of a KL estimate chooses how its gradient is made.
        given = [one.removesuffix("+") if registry.compares else one for one in given]
        other = next((one for one in given if one and one not in names), "") if names else ""
        if not other:
            continue
        known = ", ".join(sorted(names))
        near = difflib.get_close_matches(other, sorted(names), n=1)
        what = "goes on without it" if registry.is_ignored else f"stops with: {registry.message}: {other}"
        yield LintFinding.at(
            setting.where,
            rule=REGISTRY_RULE,
            severity="warning" if registry.is_ignored else "error",
            message=f"{registry.key}={other} is no name that this verl has",
            why=f"verl {what}; {configuration.label} has {known}",
            fix=f"set {registry.key}={value.replace(other, near[0])}" if near else f"choose one of {known}",
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
        if registry.constant:
            found |= _elements(module, registry.constant)
            continue
        members = _enum_members(module)
        for call in _decorators(module, registry.decorator):
            names = [_name(argument, members) for argument in call.args]
            if not names or None in names:
                return frozenset()
            found.update(name for name in names if name)
    return frozenset(found)


def _compared(module: ast.Module, function: str, parameter: str) -> set[str]:
    """The texts that a function or method compares a parameter or attribute with, by `==` or `in`."""
    methods = [node for one in module.body if isinstance(one, ast.ClassDef) for node in one.body]
    places = [*module.body, *methods]
    bodies = [node for node in places if isinstance(node, ast.FunctionDef) and node.name == function]
    tests = [node for body in bodies for node in ast.walk(body) if isinstance(node, ast.Compare)]
    return {
        part.value
        for test in tests
        if isinstance(test.left, (ast.Name, ast.Attribute)) and ast.unparse(test.left) == parameter
        for choice in test.comparators
        for part in ast.walk(choice)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def _elements(module: ast.Module, name: str) -> set[str]:
    """The texts in a set or tuple of a module that has this name."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        is_it = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_it:
            parts = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            return {part for part in parts if isinstance(part, str)}
    return set()


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
