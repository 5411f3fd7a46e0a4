"""Reads the table of refusals of a torch_npu release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.package import data_folder

SCHEMA = "npu-matrix/device-refusals/1"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A call that the wheel refuses: all tensors among `arguments` have the type `dtype`.

    dtype: its name in torch. error: the name of the exception's class. message: its first lines.
    """

    arguments: tuple[str, ...]
    dtype: str
    error: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RefusalTable:
    """The refusals of one release. refused: namespace::name.overload -> its refusals, by the wheel's code.

    unknown: operators whose checks could not be measured. They are permissive: the simulated device computes
    what the hardware might refuse. Without a table for the release, measured is False and all are permissive.
    """

    measured: bool = False
    refused: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def of(self, name: str) -> tuple[Refusal, ...]:
        """The refusals of an operator, for example "aten::sort.stable"."""
        return self.refused.get(name, ())

    def is_permissive(self, name: str) -> bool:
        """Whether nothing is known about what the wheel refuses for this operator."""
        return not self.measured or name in self.unknown


def refusal_table(torch_npu: str) -> RefusalTable:
    """The table of exactly this version of torch_npu; an empty one if there is none."""
    path = data_folder("devices/sim/refusals/tables") / f"{torch_npu}.json"
    if not path.is_file():
        return RefusalTable()
    return parse_table(json.loads(path.read_text(encoding="utf-8")))


def parse_table(stored: Mapping[str, Any]) -> RefusalTable:
    """The table in the JSON object that `refusal_probe` writes."""
    messages = stored["messages"]
    return RefusalTable(
        measured=True,
        refused={
            name: tuple(
                Refusal(arguments=tuple(arguments), dtype=dtype, error=error, message=messages[number])
                for arguments, dtype, error, number in entries
            )
            for name, entries in stored["refused"].items()
        },
        unknown=frozenset(stored["unknown"]),
    )
