"""Turns pydantic's validation errors into problems with positions, plain words and the most similar key."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import ErrorDetails

from harness.errors import Problem, did_you_mean
from harness.matrix.document.matrix_schema import (
    AXIS_PATTERN,
    DATE_PATTERN,
    NAME_PATTERN,
    NAMESPACE_PATTERN,
    PUBLIC_KEY,
    MatrixFile,
    json_schema,
)
from harness.matrix.document.yaml_positions import Document, NodePath

_SHOWN = 60
_PATTERN_RULES = {
    NAME_PATTERN: "a name has 1 to 50 lower-case letters, digits and dashes, and no dash at its ends",
    PUBLIC_KEY: 'a public key is one line: optionally valid-before="20270101Z", then the type and the key, '
    "as in the .pub file",
    NAMESPACE_PATTERN: "a namespace has 1 to 100 letters, digits and @._/-",
    AXIS_PATTERN: "an axis name has 1 to 41 lower-case letters, digits and underscores, and a letter first",
    DATE_PATTERN: "a date is written as YYYY-MM-DD",
}
_PLACEHOLDERS: dict[str, object] = {
    "format": 1,
    "profiles": {"default": {"title": "-", "select": [{"stacks": "all"}]}},
    "pins": {"require": "x", "reason": "-", "source": "-"},
    "patches": {"folder": "x"},
    "overrides": {"of": "x", "override": "x", "reason": "-", "source": "-"},
}


def find_problems(document: Document) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The data without the entries that violate the schema, and their problems.

    The references of the remaining entries can then be checked in the same pass. None if too little is left.
    """
    problems: list[Problem] = []
    data = document.data
    while True:
        try:
            MatrixFile.model_validate(data)
        except ValidationError as error:
            places = [
                (detail, *_document_path(document.data, detail)) for detail in error.errors(include_url=False)
            ]
        else:
            return data, problems
        problems += [_problem(document, detail, path, key=key) for detail, path, key in places]
        data = _prune(data, [(path, detail["type"] == "extra_forbidden") for detail, path, _ in places])
        if data is None:
            return None, problems


def _document_path(data: Any, detail: ErrorDetails) -> tuple[NodePath, bool]:
    """The path in the document of a pydantic location, without the tags of union branches."""
    path: list[str | int] = []
    key = detail["type"] == "extra_forbidden"
    parts = list(detail["loc"])
    for index, part in enumerate(parts):
        if part == "[key]":
            key = True
        elif isinstance(data, dict) and (part in data or index == len(parts) - 1):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            path.append(part)
            data = data[part]
    return tuple(path), key


def _problem(document: Document, detail: ErrorDetails, path: NodePath, *, key: bool) -> Problem:
    name, kind, context = (path[-1] if path else ""), detail["type"], detail.get("ctx", {})
    where = document.where(path, key=key)
    if kind == "extra_forbidden":
        return Problem(f"unknown key {name!r}", where, fix=did_you_mean(str(name), _known_keys(path[:-1])))
    if kind == "missing":
        return Problem(f"key {name!r} is missing", document.where(path[:-1]), fix=f"add '{name}:'")
    if kind in {"string_type", "dict_type", "list_type", "int_type", "bool_type", "model_type"}:
        expected = {"string": "text", "dict": "a mapping", "model": "a mapping", "list": "a list"}
        expected |= {"int": "a whole number", "bool": "true or false"}
        what = f"{_name(path)} must be {expected[kind.removesuffix('_type')]}, not {_shown(detail['input'])}"
        return Problem(what, where)
    if kind == "literal_error":
        choices = [word.strip(" '") for word in context["expected"].replace(" or ", ", ").split(",")]
        what = f"{_name(path)} must be {context['expected']}, not {_shown(detail['input'])}"
        return Problem(what, where, fix=did_you_mean(str(detail["input"]), choices))
    if kind == "string_pattern_mismatch":
        return Problem(
            f"{_shown(detail['input'])} is not a valid value here",
            where,
            why=_PATTERN_RULES[context["pattern"]],
        )
    if kind in {"too_short", "string_too_short"} and context["min_length"] == 1:
        return Problem(f"{_name(path)} must not be empty", where)
    if kind in {"too_long", "string_too_long"} and isinstance(detail["input"], str):
        return Problem(f"{_name(path)} is longer than {context['max_length']} characters", where)
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
    actual = f", not {_shown(detail['input'])}" if kind.startswith(("greater_than", "less_than")) else ""
    return Problem(f"{_name(path)} {message[:1].lower()}{message[1:]}{actual}", where)


def _name(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return f"'{text}'" if text else "the file"


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _known_keys(path: NodePath) -> list[str]:
    """The keys a mapping at `path` may have, read from the JSON schema."""
    schema = _schema()
    options = [schema]
    for part in path:
        options = [branch for option in options for branch in _step(schema, option, part)]
    return sorted({key for option in options for key in option.get("properties", {})})


@functools.cache
def _schema() -> JsonSchemaValue:
    return json_schema()


def _step(schema: JsonSchemaValue, node: JsonSchemaValue, part: str | int) -> list[JsonSchemaValue]:
    candidates = (
        [node.get("items")]
        if isinstance(part, int)
        else [
            node.get("properties", {}).get(part),
            node.get("additionalProperties"),
            *node.get("patternProperties", {}).values(),
        ]
    )
    subschema = next((candidate for candidate in candidates if isinstance(candidate, dict)), None)
    return _resolve(schema, subschema) if subschema is not None else []


def _resolve(schema: JsonSchemaValue, node: JsonSchemaValue) -> list[JsonSchemaValue]:
    if "$ref" in node:
        return _resolve(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    branches = [*node.get("anyOf", []), *node.get("oneOf", [])]
    return [leaf for branch in branches for leaf in _resolve(schema, branch)] or [node]


def _prune(data: Any, places: Iterable[tuple[NodePath, bool]]) -> Any:
    """A copy of `data` without the entries that contain the paths, or None if too little is left.

    For an unknown key (True), only the key is removed: the rest of its entry can still be read.
    """
    if not isinstance(data, dict):
        return None
    pruned = copy.deepcopy(data)
    for path, is_unknown_key in places:
        if is_unknown_key and _drop_key(pruned, path):
            continue
        section = path[0] if path else ""
        entries = pruned.get(section)
        if len(path) > 1 and isinstance(entries, dict):
            entries.pop(path[1], None)
        elif len(path) > 1 and isinstance(entries, list) and isinstance(path[1], int):
            # A placeholder keeps the indexes of the other entries valid.
            entries[path[1]] = _PLACEHOLDERS[str(section)]
        elif section in {"format", "profiles"}:
            pruned[section] = _PLACEHOLDERS[str(section)]
        else:
            pruned.pop(section, None)
    return pruned if pruned != data else None


def _drop_key(data: Any, path: NodePath) -> bool:
    """Remove the key; False if there is none."""
    try:
        for part in path[:-1]:
            data = data[part]
        del data[path[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True
