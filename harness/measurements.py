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
"""The member of the stored JSON with the version of the format. Outcomes without it have version 0."""


class OldMeasurementsError(Exception):
    """Stored measurements of another version that cannot be read as the current one."""


@dataclass(frozen=True)
class MeasurementFormat(Generic[M]):
    """The shapes that one check's measurements can have, and the version of these shapes.

    Several shapes are distinguished by a field with a `Literal` type, for example `state`. Increase `version`
    if stored measurements would be misread, not if a field with a default is added. `unused` names members
    (as `member.inner`) that older versions stored and that may be ignored. Stored measurements with any other
    unknown member count as those of another version.
    """

    shapes: tuple[type, ...]
    version: int
    unused: frozenset[str] = frozenset()

    def write(self, measurements: M) -> dict[str, JsonValue]:
        """The JSON object that the ledger stores; TypeError if `measurements` has none of the shapes."""
        if not isinstance(measurements, self.shapes):
            expected = " or ".join(shape.__name__ for shape in self.shapes)
            raise TypeError(f"the check measured a {type(measurements).__name__} instead of {expected}")
        return {**json_object(measurements), VERSION_FIELD: self.version}

    def read(self, stored: Mapping[str, JsonValue]) -> M:
        """The measurements in `stored`.

        OldMeasurementsError if they lack members of this version or have members that this version does not
        know: then another version wrote them, and the meaning of the remaining members may have changed.
        """
        stored_version = stored.get(VERSION_FIELD, 0)
        values = {name: value for name, value in stored.items() if name != VERSION_FIELD}
        versions = (
            f"the measurements are of version {stored_version}, this program reads version {self.version}"
        )
        measured = _validated(self.shapes, values, versions)
        unknown = _unknown_member(values, to_json(measured), self.unused)
        if unknown:
            raise OldMeasurementsError(f"{versions} (it does not know {unknown})")
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


def _unknown_member(stored: object, read: object, unused: frozenset[str], path: str = "") -> str:
    """The path of the first member of stored JSON that validation ignored, or ""."""
    if isinstance(stored, Mapping) and isinstance(read, Mapping):
        for name, value in stored.items():
            member = f"{path}.{name}" if path else str(name)
            if str(name) not in read:
                if member not in unused:
                    return member
            elif unknown := _unknown_member(value, read[str(name)], unused, member):
                return unknown
    if isinstance(stored, (list, tuple)) and isinstance(read, (list, tuple)):
        for pair in zip(stored, read, strict=False):
            if unknown := _unknown_member(*pair, unused, path):
                return unknown
    return ""


def read_shape(shape: type[M], source: Path | Mapping[str, Any]) -> M:
    """A dataclass of type `shape` from a JSON file that a program of the cell wrote, or from its JSON object.

    OldMeasurementsError if it has another form. Only for the host side, because it needs pydantic.
    """
    stored = json.loads(source.read_bytes()) if isinstance(source, Path) else source
    return cast("M", _validated((shape,), stored, f"it is not the JSON of a {shape.__name__}"))


def _validated(shapes: tuple[type, ...], values: Mapping[str, Any], message: str) -> Any:
    from pydantic import ValidationError

    try:
        return type_adapter(functools.reduce(operator.or_, shapes)).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise OldMeasurementsError(f"{message} ({path}: {first['msg']})") from error
