"""What checks measure, as typed values with a version. `harness.serialisation` encodes and decodes them.

A check declares the shapes of its measurements with `measurement_format`: frozen dataclasses of plain values
(str, int, float, bool, None, enums, tuples, mappings with text keys, other dataclasses). The program that
measures, the judge, the report and the tests import these classes, so that a renamed field is a type error.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from harness.serialisation import JsonValue, json_object, to_json, type_adapter

M = TypeVar("M")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

VERSION_FIELD = "measurements_version"
"""The member of the stored JSON that holds the format's version; outcomes without it are of version 0."""


class OldMeasurementsError(Exception):
    """Stored measurements of another version that cannot be read as the current one."""


@dataclass(frozen=True)
class MeasurementFormat(Generic[M]):
    """The shapes that one check's measurements can have, and the version of these shapes.

    Several shapes are told apart by a field with a `Literal` type, for example `state`. Increase `version`
    when a stored outcome would be misread, not when a field with a default is added. `unused` names members
    that older versions stored and that change nothing, as `member.inner`; any other unknown member makes
    stored measurements those of another version.
    """

    shapes: tuple[type, ...]
    version: int
    unused: frozenset[str] = frozenset()

    def write(self, measurements: M) -> dict[str, JsonValue]:
        """The JSON object that the ledger stores; TypeError when `measurements` has none of the shapes."""
        if not isinstance(measurements, self.shapes):
            expected = " or ".join(shape.__name__ for shape in self.shapes)
            raise TypeError(f"the check measured a {type(measurements).__name__} instead of {expected}")
        return {**json_object(measurements), VERSION_FIELD: self.version}

    def read(self, stored: Mapping[str, JsonValue]) -> M:
        """The measurements in `stored`.

        OldMeasurementsError when they do not have the form of this version, or have members that it does not
        know: another version wrote them, and what it meant may have changed.
        """
        found = stored.get(VERSION_FIELD, 0)
        values = {name: value for name, value in stored.items() if name != VERSION_FIELD}
        versions = f"the measurements are of version {found}, this program reads version {self.version}"
        measured = _validated(self.shapes, values, versions)
        dropped = _dropped_member(values, to_json(measured), self.unused)
        if dropped:
            raise OldMeasurementsError(f"{versions} (it does not know {dropped})")
        return cast("M", measured)


@overload
def measurement_format(
    first: type[A], /, *, version: int, unused: Iterable[str] = ()
) -> MeasurementFormat[A]: ...
@overload
def measurement_format(
    first: type[A], second: type[B], /, *, version: int, unused: Iterable[str] = ()
) -> MeasurementFormat[A | B]: ...
@overload
def measurement_format(
    first: type[A], second: type[B], third: type[C], /, *, version: int, unused: Iterable[str] = ()
) -> MeasurementFormat[A | B | C]: ...
@overload
def measurement_format(
    first: type[A],
    second: type[B],
    third: type[C],
    fourth: type[D],
    /,
    *,
    version: int,
    unused: Iterable[str] = (),
) -> MeasurementFormat[A | B | C | D]: ...
def measurement_format(*shapes: type, version: int, unused: Iterable[str] = ()) -> MeasurementFormat[Any]:
    """The format of measurements that have one of `shapes`."""
    return MeasurementFormat(shapes, version, frozenset(unused))


def _dropped_member(stored: object, read: object, unused: frozenset[str], place: str = "") -> str:
    """The first member of stored JSON that is not among what was read of it, or ""."""
    if isinstance(stored, Mapping) and isinstance(read, Mapping):
        for name, value in stored.items():
            inner = f"{place}.{name}" if place else str(name)
            if str(name) not in read:
                if inner not in unused:
                    return inner
            elif dropped := _dropped_member(value, read[str(name)], unused, inner):
                return dropped
    if isinstance(stored, (list, tuple)) and isinstance(read, (list, tuple)):
        pairs = zip(stored, read, strict=False)
        return next(filter(None, (_dropped_member(one, other, unused, place) for one, other in pairs)), "")
    return ""


def read_shape(shape: type[M], source: Path | Mapping[str, Any]) -> M:
    """A dataclass of type `shape` from a JSON file that a program of the cell wrote, or from its JSON object.

    OldMeasurementsError when it has another form. Host side: it needs pydantic.
    """
    stored = json.loads(source.read_bytes()) if isinstance(source, Path) else source
    return cast("M", _validated((shape,), stored, f"it is not the JSON of a {shape.__name__}"))


def _validated(shapes: tuple[type, ...], values: Mapping[str, Any], otherwise: str) -> Any:
    from pydantic import ValidationError

    try:
        return type_adapter(functools.reduce(operator.or_, shapes)).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise OldMeasurementsError(f"{otherwise} ({place}: {first['msg']})") from error
