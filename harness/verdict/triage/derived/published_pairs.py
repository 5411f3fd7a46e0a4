"""Which versions were published for each other, from the tables and rules of the shipped matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from harness.matrix.model.versions import Version
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.package import shipped_file
from harness.plan.feasibility.exclusion import RuleViolation, nearest_cells, rule_violations

#: How many stacks are named.
STACKS = 2


class PublishedPairs:
    """The tables and rules of a matrix, by names of packages on the index."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def axis(self, package: str) -> str:
        """The axis of a package, "" if the matrix has none."""
        name = package.replace("-", "_")
        return name if name in self._matrix.axes else ""

    def violations(self, versions: Mapping[str, str]) -> tuple[RuleViolation, ...]:
        """The rules that versions break. versions: package -> version; those without an axis are ignored."""
        return rule_violations(self._matrix, self._parsed(versions))

    def released_for(self, package: str, version: str, other: str) -> tuple[str, ...]:
        """The versions of `other` that were published for a version of a package; () if nothing is."""
        given, axis = self._parsed({package: version}), self.axis(other)
        if not given or not axis:
            return ()
        published = sorted(self._matrix.axes[axis].published)
        allowed = tuple(one for one in published if not self.violations({package: version, other: one}))
        return allowed if len(allowed) < len(published) else ()

    def nearest_stacks(self, versions: Mapping[str, str]) -> tuple[str, ...]:
        """The valid stacks that differ least from these versions, in words."""
        requested = {axis: str(version) for axis, version in self._parsed(versions).items()}
        found = nearest_cells(self._matrix, requested, 3 * STACKS) if len(requested) > 1 else ()
        texts = {
            ", ".join(f"{axis} {one.cell.axes[axis]}" for axis in requested if axis in one.cell.axes): None
            for one in found
        }
        return tuple(texts)[:STACKS]

    def _parsed(self, versions: Mapping[str, str]) -> dict[str, Version]:
        found = {}
        for package, text in versions.items():
            axis = self.axis(package)
            try:
                if axis:
                    found[axis] = self._matrix.axes[axis].parse(text.partition("+")[0])
            except ValueError:
                continue
        return found


@cache
def shipped_pairs() -> PublishedPairs:
    """Those of the matrix that is part of this program."""
    return PublishedPairs(load_matrix(shipped_file("matrix.yaml")))
