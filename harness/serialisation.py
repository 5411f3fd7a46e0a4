"""Dataclasses as JSON and back: the one encoder and decoder of all data that this program stores or prints.

Writing needs the standard library only and works on Python 3.10, because the programs that run inside cells
write their measurements with it. Reading validates with pydantic, on the host. Pydantic is imported on first
use, so that commands that read nothing start fast.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from typing import TypeAlias

    from pydantic import TypeAdapter

T = TypeVar("T")
_JSON_NAMES = "__pydantic_config__"
_LEFT_OUT = "__left_out_of_json__"

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


def json_form(*, leave_out: tuple[str, ...] = (), **names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass whose JSON differs from its fields.

    names: field=name pairs for fields that have another name in JSON. leave_out: fields that are not written;
    each needs a default, so that the class can be read.
    """

    def decorate(kind: type[T]) -> type[T]:
        setattr(kind, _JSON_NAMES, {"alias_generator": lambda field: names.get(field, field)})
        setattr(kind, _LEFT_OUT, frozenset(leave_out))
        return kind

    return decorate


def as_object(value: object) -> dict[str, Any]:
    """A dataclass or mapping as a dictionary with its JSON names; its members are not converted.

    TypeError for any other object.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, field) for field, name in _members(type(value))}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def encode_object(value: object) -> object:
    """The `default` of `json.dumps`: dataclasses and mappings as objects, numpy and torch scalars as numbers.

    TypeError for anything else.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if not is_dataclass(value) and callable(item := getattr(value, "item", None)):
        return item()
    return as_object(value)


def dumps(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """The JSON text of dataclasses, enums, mappings, tuples, numpy scalars and plain values."""
    return json.dumps(value, indent=indent, sort_keys=sort_keys, default=encode_object)


def to_json(value: object) -> JsonValue:
    """The same as `dumps`, as lists, dictionaries and plain values instead of text."""
    return cast("JsonValue", json.loads(dumps(value)))


def json_object(value: object) -> dict[str, JsonValue]:
    """`to_json` of a dataclass; TypeError for anything else."""
    return cast("dict[str, JsonValue]", to_json(as_object(value)))


def load(kind: type[T], text: str | bytes) -> T:
    """A dataclass of type `kind` from JSON text; ValueError when the text has another form.

    Members that the class does not have are ignored: a later version may have added them.
    """
    adapter: TypeAdapter[T] = type_adapter(cast("Hashable", kind))
    return adapter.validate_json(text, strict=True)


@functools.cache
def type_adapter(kind: Hashable) -> TypeAdapter[Any]:
    """Pydantic's validator for a class or a union of classes."""
    from pydantic import TypeAdapter

    return TypeAdapter(cast("Any", kind))


@functools.cache
def _members(kind: type) -> tuple[tuple[str, str], ...]:
    config = getattr(kind, _JSON_NAMES, None)
    rename = config["alias_generator"] if config else str
    left_out: frozenset[str] = getattr(kind, _LEFT_OUT, frozenset())
    return tuple((field.name, rename(field.name)) for field in fields(kind) if field.name not in left_out)
