"""Checks a document against the schema of matrix.yaml; pydantic is imported only if something is wrong.

The models in `matrix_schema` define the schema, and their validation produces the problems that users read.
Loading pydantic and validating takes 0.16 s, a quarter of a plan. The check here against the committed JSON
schema of the models takes 0.015 s (fastjsonschema: 0.11 s, because it compiles the schema first; jsonschema
does not accept numbers that are read as text). The models validate only documents that do not match it.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from harness.errors import Problem
from harness.matrix.document.yaml_positions import Document
from harness.package import shipped_file

SCHEMA_FILE = "docs/schema/matrix.schema.json"
JsonSchema = dict[str, Any]
_ANNOTATIONS = {"title", "description", "default", "$schema", "$defs", "examples"}


def check_form(document: Document) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The data of the document, and its schema problems.

    Entries with problems are removed from the data; the data is None if too little is left to continue.
    """
    schema = _committed_schema()
    if schema is not None and matches_schema(document.data, schema, schema):
        return document.data, []
    from harness.matrix.document.problems import find_problems

    return find_problems(document)


def matches_schema(data: Any, node: JsonSchema, schema: JsonSchema) -> bool:
    """Whether `data` satisfies `node` of `schema`; also False for an unsupported keyword."""
    return all(
        _matches_keyword(keyword, node, data, schema) for keyword in node if keyword not in _ANNOTATIONS
    )


def _matches_keyword(keyword: str, node: JsonSchema, data: Any, schema: JsonSchema) -> bool:
    value = node[keyword]
    match keyword:
        case "type":
            return _is_type(data, value)
        case "const":
            return type(data) is type(value) and bool(data == value)
        case "enum":
            return isinstance(data, str) and data in value
        case "pattern":
            return not isinstance(data, str) or _matches(value, data)
        case "minLength" | "minItems" | "minProperties":
            return not isinstance(data, str | list | dict) or len(data) >= value
        case "maxLength":
            return not isinstance(data, str) or len(data) <= value
        case "minimum" | "maximum":
            sign = 1 if keyword == "minimum" else -1
            return not isinstance(data, int) or sign * data >= sign * value
        case "required":
            return not isinstance(data, dict) or all(name in data for name in value)
        case "properties":
            return not isinstance(data, dict) or all(
                matches_schema(data[name], value[name], schema) for name in value if name in data
            )
        case "additionalProperties" | "patternProperties":
            return not isinstance(data, dict) or _other_members_match(keyword, node, data, schema)
        case "propertyNames":
            return not isinstance(data, dict) or all(matches_schema(name, value, schema) for name in data)
        case "items":
            return not isinstance(data, list) or all(matches_schema(item, value, schema) for item in data)
        case "anyOf" | "oneOf":
            return any(matches_schema(data, branch, schema) for branch in value)
        case "$ref":
            return matches_schema(data, schema["$defs"][value.rpartition("/")[2]], schema)
    return False


def _other_members_match(keyword: str, node: JsonSchema, data: dict[str, Any], schema: JsonSchema) -> bool:
    if keyword == "patternProperties":
        patterns = node[keyword].items()
        return all(
            matches_schema(item, subschema, schema)
            for name, item in data.items()
            for pattern, subschema in patterns
            if _matches(pattern, name)
        )
    others = [
        item
        for name, item in data.items()
        if name not in node.get("properties", {})
        and not any(_matches(pattern, name) for pattern in node.get("patternProperties", {}))
    ]
    subschema = node[keyword]
    if isinstance(subschema, bool):
        return subschema or not others
    return all(matches_schema(item, subschema, schema) for item in others)


def _matches(pattern: str, word: str) -> bool:
    # In Python, `$` also matches before a final line break.
    return re.search(pattern, word) is not None and not word.endswith("\n")


def _is_type(data: Any, names: str | list[str]) -> bool:
    # `number` in the schema is for editors; the loader yields text for everything except whole numbers.
    kinds: dict[type, set[str]] = {
        str: {"string"},
        int: {"integer", "number"},
        bool: {"boolean"},
        type(None): {"null"},
        dict: {"object"},
        list: {"array"},
    }
    return not kinds.get(type(data), set()).isdisjoint({names} if isinstance(names, str) else names)


@functools.cache
def _committed_schema() -> JsonSchema | None:
    try:
        schema: JsonSchema = json.loads(shipped_file(SCHEMA_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return schema
