"""Dataclasses as JSON and back: the one way in which this program stores, prints and exchanges its data.

Writing is done by the standard library's encoder, which asks `as_object` for what it does not know. Reading
validates with pydantic, which is imported on first use: commands that read nothing stay fast.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_NAMES = "__pydantic_config__"
_LEFT_OUT = "__left_out_of_json__"


def json_form(*, leave_out: tuple[str, ...] = (), **names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass whose JSON differs from its fields.

    `names` are field=name pairs of those with another name in JSON; `leave_out` are not written (they need a
    default, so that the class can be read).
    """

    def decorate(kind: type[T]) -> type[T]:
        setattr(kind, _NAMES, {"alias_generator": lambda field: names.get(field, field)})
        setattr(kind, _LEFT_OUT, frozenset(leave_out))
        return kind

    return decorate


def as_object(value: object) -> dict[str, Any]:
    """A dataclass or mapping as a dictionary with its JSON names; members stay as they are.

    TypeError for any other object, as `json.dumps` expects of its `default`.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, field) for field, name in _members(type(value))}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def dumps(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """The JSON text of dataclasses, enums, mappings, tuples and plain values."""
    return json.dumps(value, indent=indent, sort_keys=sort_keys, default=as_object)


def load(kind: type[T], text: str | bytes) -> T:
    """A dataclass of type `kind` from JSON text; ValueError when the text has another form.

    Members that the class does not have are ignored: a later version may have added them.
    """
    adapter: TypeAdapter[T] = _adapter(cast("Hashable", kind))
    return adapter.validate_json(text, strict=True)


@functools.cache
def _members(kind: type) -> tuple[tuple[str, str], ...]:
    config = getattr(kind, _NAMES, None)
    rename = config["alias_generator"] if config else str
    left_out: frozenset[str] = getattr(kind, _LEFT_OUT, frozenset())
    return tuple((field.name, rename(field.name)) for field in fields(kind) if field.name not in left_out)


@functools.cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cast("Any", kind))
