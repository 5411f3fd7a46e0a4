"""The values of a script's variables and words. What only a run can know is an unknown that has a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from harness.errors import Location

# Twice the longest command line that Linux accepts for one argument (MAX_ARG_STRLEN).
MAX_TEXT = 256 << 10


class TooLargeError(Exception):
    """A script whose values grow without bound, or that runs too many commands."""


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """A text. unknown: the first variable or command in it whose value is not known, or "".

    The text of an unknown part is its source, for example `$(date)`. whole: the text is one unquoted unknown
    and nothing else, which can become any number of words.
    """

    text: str
    unknown: str = ""
    whole: bool = False

    def __add__(self, other: Expansion) -> Expansion:
        if len(self.text) + len(other.text) > MAX_TEXT:
            raise TooLargeError(f"a value has more than {MAX_TEXT >> 10} KiB")
        return Expansion(text=self.text + other.text, unknown=self.unknown or other.unknown)


@dataclass(frozen=True, kw_only=True)
class ScriptValue(Expansion):
    """A value with the place where it is written."""

    where: Location


class Sparse(dict[str, ScriptValue]):
    """The elements of an array with gaps, by their number and in its order."""

    def __init__(self, elements: Mapping[int, ScriptValue]) -> None:
        super().__init__({str(number): elements[number] for number in sorted(elements)})


#: A text, the elements of an array, or those of an associative array.
VariableValue: TypeAlias = "Expansion | tuple[ScriptValue, ...] | Mapping[str, ScriptValue]"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a script."""

    value: VariableValue
    where: Location
    exported: bool = False

    @property
    def elements(self) -> tuple[ScriptValue, ...]:
        """The elements of an array; a text is its only element."""
        if isinstance(self.value, Expansion):
            return (ScriptValue(text=self.value.text, unknown=self.value.unknown, where=self.where),)
        if isinstance(self.value, Mapping):
            return tuple(self.value[key] for key in self.keys)
        return self.value

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an array; those of an associative one in bash's order, that of its hash table."""
        if isinstance(self.value, Expansion):
            return ("0",)
        if isinstance(self.value, Mapping):
            keys = tuple(self.value)
            return keys if isinstance(self.value, Sparse) else tuple(sorted(keys, key=_bucket))
        return tuple(str(number) for number in range(len(self.value)))

    @property
    def numbered(self) -> dict[int, ScriptValue]:
        """The elements of an array by their number."""
        if isinstance(self.value, Sparse):
            return {int(number): element for number, element in self.value.items()}
        return dict(enumerate(self.elements))

    def element(self, index: str) -> Expansion | None:
        """One element; None if there is no such element."""
        if isinstance(self.value, Mapping) and not (isinstance(self.value, Sparse) and index.startswith("-")):
            return self.value.get(index)
        elements = self.elements
        try:
            return elements[int(index)]
        except (ValueError, IndexError):
            return None

    @property
    def text(self) -> Expansion:
        """What `$name` expands to: the text, or the element 0 of an array."""
        return self.value if isinstance(self.value, Expansion) else self.element("0") or Expansion(text="")

    def as_script_value(self) -> ScriptValue:
        """The text, with the place of the assignment."""
        return ScriptValue(text=self.text.text, unknown=self.text.unknown, where=self.where)


def _bucket(key: str) -> int:
    """Where bash keeps a key (`hash_string` in its hashlib.c, which has 1,024 places for an array)."""
    found = 2166136261
    for byte in key.encode("utf-8", "surrogateescape"):
        found = found * 16777619 & 0xFFFFFFFF ^ byte
    return found & 1023


def array_of(elements: Mapping[int, ScriptValue]) -> VariableValue:
    """An array of elements by their number; those between are not set."""
    if sorted(elements) == list(range(len(elements))):
        return tuple(elements[number] for number in range(len(elements)))
    return Sparse(elements)


def joined(parts: Iterable[Expansion], separator: str = "") -> Expansion:
    """The parts as one text."""
    result = Expansion(text="")
    for index, part in enumerate(parts):
        result = result + (Expansion(text=separator) if index else Expansion(text="")) + part
    return result


def placed(value: Expansion, where: Location) -> ScriptValue:
    """The value, written at `where`; a value that has a place of its own keeps it."""
    if isinstance(value, ScriptValue):
        return value
    return ScriptValue(text=value.text, unknown=value.unknown, whole=value.whole, where=where)


def unknown_variable(variable: Variable, name: str) -> Variable:
    """The variable with a value that is not known, because it depends on conditions that are not."""
    return replace(variable, value=Expansion(text=f"${{{name}}}", unknown=f"{name} (depends on conditions)"))
