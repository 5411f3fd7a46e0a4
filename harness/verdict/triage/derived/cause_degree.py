"""A derived cause, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Degree(StrEnum):
    """How sure a derived cause is."""

    PROVEN = "proven"
    LIKELY = "likely"
    SYMPTOM = "symptom"


@dataclass(frozen=True, kw_only=True)
class DerivedCause:
    """A cause in one sentence.

    proof: the statements it follows from, each with its source. packages: those that do not go together.
    remedy: what to install. stacks: the nearest combinations that go together. is_open: it is proven by the
    message alone, and names several things of which it is one.
    """

    degree: Degree
    sentence: str
    proof: tuple[str, ...]
    packages: tuple[str, ...]
    remedy: str
    stacks: tuple[str, ...] = ()
    is_open: bool = False
