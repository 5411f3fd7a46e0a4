"""Packages that no file pins, but that a published table lists for one that is pinned."""

from __future__ import annotations

from collections.abc import Mapping

from harness.matrix.model.constraints import AxisAgreement
from harness.matrix.model.definitions import Axis
from harness.matrix.version_matrix import Matrix


def published_with(pinned: Mapping[str, str], shipped: Matrix) -> dict[str, tuple[str, str]]:
    """Axis -> (version, the title of the table), for packages that must agree with a pinned one.

    vllm-ascend pins no vLLM, but is published for one release of it. pinned: axis -> version.
    """
    found = {}
    for rule in (rule for one in shipped.constraints.values() for rule in one.require):
        if not isinstance(rule, AxisAgreement) or rule.axis in pinned or rule.other not in pinned:
            continue
        version = shipped.axes[rule.other].parse(pinned[rule.other])
        if ".dev" in version.nominal:  # The tables list releases.
            continue
        for table in shipped.published.values():
            if table.key == rule.other and rule.axis in table.columns:
                listed = table.column(rule.axis).get(version.nominal)
                if listed and _is_version(shipped.axes[rule.axis], listed):
                    found[rule.axis] = (listed, table.title)
    return found


def _is_version(axis: Axis, text: str) -> bool:
    try:
        axis.parse(text)
    except ValueError:
        return False
    return True
