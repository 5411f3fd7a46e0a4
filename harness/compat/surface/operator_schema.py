"""Read the signatures of torch_npu's operators from the YAML files in its wheel. Nothing is imported.

Compared with the schemas that torch_npu 2.13.0 registers, they are equal in argument names, keyword-only
arguments, defaults and number of results, after the code generator renames `self` to `input`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.compat.surface.api_surface import SourceMembers, ZippedSources
from harness.compat.surface.call_signature import CallSignature
from harness.errors import InputError, Location
from harness.yaml_loader import FAST_LOADER

SCHEMA_FILES = ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml")
SCHEMA_FOLDER = "torch_npu/csrc/aten"
# Operators of the ATB library are not in the YAML files. Only their names are known, from these sources.
ATB_SOURCE = re.compile(r"torch_npu/op_plugin/atb/\w+\.py")
ATB_OPERATOR = re.compile(r"\b_?npu_[a-z0-9_]+\b")
# The safe loader, in C where available, because these files are long.
SECTIONS = ("custom", "custom_autograd", "quant")
SCHEMA = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?:\.(?P<overload>\w+))?\((?P<arguments>.*)\)\s*->\s*(?P<returns>.+)", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class OperatorArgument:
    """An argument as callers see it. `default`: the text in the schema, None for a required argument."""

    name: str
    type: str
    default: str | None
    keyword_only: bool


@dataclass(frozen=True, kw_only=True)
class OperatorOverload:
    """One signature of an operator; `returns` is the number of results."""

    name: str
    overload: str
    arguments: tuple[OperatorArgument, ...]
    returns: int

    @property
    def signature(self) -> CallSignature:
        """The signature as callers see it."""
        return CallSignature(
            positional=tuple(a.name for a in self.arguments if not a.keyword_only),
            keyword_only=tuple(a.name for a in self.arguments if a.keyword_only),
            needed=frozenset(a.name for a in self.arguments if a.default is None),
        )


@dataclass(frozen=True, kw_only=True)
class OperatorSchemas:
    """The operators of a torch_npu. `unsigned`: operators whose signatures are not known."""

    schemas: Mapping[str, tuple[OperatorOverload, ...]]
    unsigned: frozenset[str]


def read_operators(sources: SourceMembers | Path) -> OperatorSchemas:
    """Read the operators of a torch_npu; InputError for the sources of another package."""
    members = ZippedSources(sources) if isinstance(sources, Path) else sources
    names = set(members.names())
    present = [f"{SCHEMA_FOLDER}/{file}" for file in SCHEMA_FILES if f"{SCHEMA_FOLDER}/{file}" in names]
    where = Location(members.label)
    if not present:
        raise InputError("this wheel has no operator signatures", where=where)
    entries: dict[str, list[OperatorOverload]] = {}
    try:
        for member in present:
            for overload in _overloads(yaml.load(members.read(member), Loader=FAST_LOADER)):  # noqa: S506 - a safe one
                entries.setdefault(overload.name, []).append(overload)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError("this wheel cannot be read", where=where, why=str(error)) from error
    unsigned: set[str] = set()
    for member in filter(ATB_SOURCE.fullmatch, sorted(names)):
        unsigned.update(ATB_OPERATOR.findall(members.read(member).decode("utf-8", "replace")))
    schemas = {name: tuple(dict.fromkeys(found)) for name, found in entries.items()}
    return OperatorSchemas(schemas=schemas, unsigned=frozenset(unsigned - set(schemas)))


def parse_schema(text: str) -> OperatorOverload:
    """Parse `name.overload(Tensor self, *, int a=0) -> Tensor`; ValueError for other text."""
    match = SCHEMA.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not an operator signature")
    arguments = []
    keyword_only = False
    for part in _split_arguments(match["arguments"]):
        if part == "*":
            keyword_only = True
            continue
        declaration, equals, default = part.partition("=")
        kind, _, name = declaration.strip().rpartition(" ")
        arguments.append(
            OperatorArgument(
                # The code generator calls the first argument `input`.
                name="input" if name == "self" else name,
                type=kind,
                default=default.strip() if equals else None,
                keyword_only=keyword_only,
            )
        )
    returns = match["returns"].strip()
    count = len(_split_arguments(returns[1:-1])) if returns.startswith("(") else 1
    return OperatorOverload(
        name=match["name"], overload=match["overload"] or "", arguments=tuple(arguments), returns=count
    )


@dataclass(frozen=True, kw_only=True)
class SchemaChange:
    """A difference of an operator between two versions.

    breaking: whether a working call can break. silent: whether calls still run, but with another default of
    `argument`.
    """

    name: str
    text: str
    breaking: bool
    silent: bool = False
    argument: str = ""


def schema_changes(before: OperatorSchemas, after: OperatorSchemas) -> tuple[SchemaChange, ...]:
    """The differences between two torch_npu versions for callers of operators, sorted by name."""
    old, new = before.schemas, after.schemas
    changes = [SchemaChange(name=name, text="removed", breaking=True) for name in sorted(set(old) - set(new))]
    changes += [SchemaChange(name=name, text="added", breaking=False) for name in sorted(set(new) - set(old))]
    for name in sorted(set(old) & set(new)):
        new_overloads = {overload.overload: overload for overload in new[name]}
        for overload in old[name]:
            if overload.overload not in new_overloads:
                changes.append(
                    SchemaChange(name=name, text=f"overload {overload.overload!r} removed", breaking=True)
                )
            else:
                changes += _overload_changes(overload, new_overloads[overload.overload])
    return tuple(changes)


def _overload_changes(before: OperatorOverload, after: OperatorOverload) -> Iterator[SchemaChange]:
    old = {argument.name: argument for argument in before.arguments}
    new = {argument.name: argument for argument in after.arguments}
    for name in old.keys() - new.keys():
        yield SchemaChange(name=before.name, text=f"argument {name} removed", breaking=True)
    for name in new.keys() - old.keys():
        yield SchemaChange(
            name=before.name, text=f"argument {name} added", breaking=new[name].default is None
        )
    for name in old.keys() & new.keys():
        if new[name].keyword_only and not old[name].keyword_only:
            yield SchemaChange(name=before.name, text=f"argument {name} became keyword-only", breaking=True)
        if old[name].default != new[name].default:
            text = f"default of {name} changed from {old[name].default} to {new[name].default}"
            lost = new[name].default is None
            silent = not lost and old[name].default is not None
            yield SchemaChange(name=before.name, text=text, breaking=lost, silent=silent, argument=name)
    if before.returns != after.returns:
        text = f"returns {after.returns} results, was {before.returns}"
        yield SchemaChange(name=before.name, text=text, breaking=True)


def _overloads(data: object) -> Iterator[OperatorOverload]:
    if not isinstance(data, dict):
        return
    for section in SECTIONS:
        for entry in data.get(section) or []:
            text = entry.get("func") if isinstance(entry, dict) else entry
            if isinstance(text, str) and "->" in text:
                yield parse_schema(text)


def _split_arguments(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote, current = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [part for part in [*parts, current.strip()] if part]
