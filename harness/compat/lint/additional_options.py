"""Findings of the rule ENGINE-OPTION about JSON for vLLM: names in `additional_config` and in other sections.

vllm-ascend reads `additional_config` by name, wherever its code has the object: what it reads is collected
from its source. Of a section that is a class of vLLM's configuration, the surface pack has the fields.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.code_graph.stored_facts import code_digest
from harness.compat.lint.engine_findings import ENGINE_PACKAGE
from harness.compat.lint.engine_options import ENGINE_OPTION_RULE
from harness.compat.lint.engine_shape import engine_shape
from harness.compat.lint.engine_variables import vllm_version
from harness.compat.lint.lint_measurements import LintFinding, UndecidedRule
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.setting_changes import nearest_word
from harness.compat.lint.shell.values import ScriptValue
from harness.compat.uses.analysis_cache import AnalysisCache

ADDITIONAL = "additional_config"
REMOVE = "remove it, or write an option that this release reads"
_READS = ("get", "setdefault", "pop")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class ReadNames:
    """What vllm-ascend reads of `additional_config`.

    names: the names of the first level. closed: whether no code gets the whole object in a way that is not
    understood. words: every word in the code.
    """

    names: frozenset[str]
    closed: bool
    words: frozenset[str]


def read_names(sources: ModuleSources, cache: Path | None) -> ReadNames:
    """What this vllm-ascend reads; stored by the content of its modules."""

    def read() -> ReadNames:
        paths = [one for one in sorted(sources.files.paths) if one.startswith("vllm_ascend/")]
        texts = {one: sources.text(one) for one in paths if one.endswith(".py")}
        reads = [_reads(sources.syntax_tree(path)) for path, text in texts.items() if ADDITIONAL in text]
        return ReadNames(
            names=frozenset(name for names, _ in reads for name in names),
            closed=bool(reads) and all(closed for _, closed in reads),
            words=frozenset(word for text in texts.values() for word in _WORD.findall(text)),
        )

    if cache is None:
        return read()
    store = AnalysisCache(folder=cache / "lint", code=code_digest(__name__, cache=cache))
    return store.get("additional names", [sources.digest], ReadNames, read)


def _reads(module: ast.Module | None) -> tuple[set[str], bool]:
    """The names that a module reads of the object, and whether it does nothing else with it."""
    if module is None:
        return set(), False
    aliases = {ADDITIONAL}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and _is_whole(node.value, aliases):
            aliases |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    names: set[str] = set()
    closed = True
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=whole, attr=attr), args=[first, *_]) if (
                attr in _READS and _is_whole(whole, aliases)
            ):
                names.add(_text(first))
            case ast.Subscript(value=whole, slice=key) if _is_whole(whole, aliases):
                names.add(_text(key))
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[whole]) if _is_whole(
                whole, aliases
            ):
                names.add(name)
            case ast.Call(args=given, keywords=named):
                passed = [*given, *(one.value for one in named)]
                closed = closed and not any(_is_whole(one, aliases) for one in passed)
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
                closed = closed and not any(_is_whole(one, aliases) for one in ast.walk(iterated))
    return names - {""}, closed and "" not in names


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_whole(node: ast.AST, aliases: set[str]) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in aliases
        case ast.BoolOp(values=[first, *_]):
            return _is_whole(first, aliases)
        case ast.IfExp(body=body):
            return _is_whole(body, aliases)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return name in aliases
    return False


@dataclass(frozen=True, kw_only=True)
class GivenSections:
    """JSON for vLLM's sections in a job. settings: what gives each section, or a part of it, by its key.

    prefix: of these keys before the section's name. recipe: the name of the job.
    """

    values: Mapping[str, object]
    settings: Mapping[str, ScriptValue]
    recipe: str
    prefix: str = ""

    def at(self, section: str, *names: str) -> ScriptValue | None:
        """The setting that gives a name in a section: the longest key that is a part of its path."""
        path = [section, *names]
        keys = [self.prefix + ".".join(path[:end]) for end in range(len(path), 0, -1)]
        found = next((self.settings[one] for one in keys if one in self.settings), None)
        below = (one for key, one in self.settings.items() if key.startswith(f"{keys[0]}."))
        return found or next(below, None)


def additional_findings(
    given: GivenSections, versions: Mapping[str, str], ascend: ModuleSources, cache: Path | None
) -> Iterator[LintFinding]:
    """Names in `additional_config` that this vllm-ascend does not read."""
    section = given.values.get(ADDITIONAL)
    if not isinstance(section, dict) or not section:
        return
    known, label = read_names(ascend, cache), f"{ENGINE_PACKAGE} {versions.get('vllm_ascend', '')}".rstrip()
    for name, inner in section.items():
        if name not in known.names and (known.closed or name not in known.words):
            near = nearest_word(str(name), known.names)
            fix = f"write {near}" if near else REMOVE
            if not near and name in known.words:
                fix = "put it into the section of additional_config that reads it, or remove it"
            yield from _unread(given, label, fix, ADDITIONAL, str(name))
        for part in inner if isinstance(inner, dict) and name in known.names else ():
            if isinstance(part, str) and _WORD.fullmatch(part) and part not in known.words:
                near = nearest_word(part, known.words)
                yield from _unread(
                    given, label, f"write {near}" if near else REMOVE, ADDITIONAL, str(name), part
                )


def _unread(given: GivenSections, label: str, fix: str, *names: str) -> Iterator[LintFinding]:
    setting = given.at(*names)
    if setting is not None and not setting.unknown:
        yield LintFinding.at(
            setting.where,
            rule=ENGINE_OPTION_RULE,
            severity="warning",
            message=f"{label} does not read {names[-1]} in {'.'.join(names[:-1])}",
            why="it reads these options by name, and no other: the option has no effect",
            fix=fix,
            source=f"the reads of additional_config in the source of {label}",
            recipe=given.recipe,
        )


def section_findings(
    given: GivenSections, versions: Mapping[str, str]
) -> Iterator[LintFinding | UndecidedRule]:
    """Names in a section of vLLM's configuration that its class does not have, by the surface pack.

    Undecided are sections whose class may take other names.
    """
    version = vllm_version(versions)
    shape = engine_shape(version)
    if shape is None:
        return
    given_here = {name for name, value in given.values.items() if isinstance(value, dict) and value}
    for section in sorted(given_here & shape.sections - shape.closed.keys() - {ADDITIONAL}):
        unknown = f"which fields {section} of vllm {version} refuses"
        yield UndecidedRule(rule=ENGINE_OPTION_RULE, unknown=(unknown,), recipe=given.recipe)
    for section, names in shape.closed.items():
        value = given.values.get(section)
        for name in value if isinstance(value, dict) else ():
            setting = given.at(section, str(name))
            if name in names or setting is None or setting.unknown:
                continue
            near = nearest_word(str(name), names)
            yield LintFinding.at(
                setting.where,
                rule=ENGINE_OPTION_RULE,
                severity="error",
                message=f"{section} of vllm {version} has no field {name}",
                why="vLLM makes an object of it, and stops at a field that the class does not have",
                fix=f"write {near}" if near else "remove it, or set what this release has for it",
                source=f"the surface pack: the classes of vllm/config in vllm {version}",
                recipe=given.recipe,
            )
