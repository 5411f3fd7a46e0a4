"""All checks, collected from the packages that declare them."""

from __future__ import annotations

from importlib import import_module

from harness.check import Check

CHECK_PACKAGES = ("compat", "patchstack", "builds", "numerics", "rollout", "convergence", "upstream_tests")


def all_checks() -> tuple[Check, ...]:
    """Every check, cheap tiers first; ValueError for a duplicate name or an undeclared dependency."""
    checks: list[Check] = []
    for package in CHECK_PACKAGES:
        checks.extend(import_module(f"harness.{package}.checks").CHECKS)
    return order_checks(checks)


def order_checks(checks: list[Check]) -> tuple[Check, ...]:
    """Checks by tier, dependencies first, otherwise in the given order; ValueError if there is no such order.

    A check must read every facet that its dependencies read. Otherwise cells with one key for the check could
    have different keys for a dependency, and so different inputs.
    """
    by_name: dict[str, Check] = {}
    for check in checks:
        if check.name in by_name:
            raise ValueError(f"two checks have the name {check.name!r}")
        by_name[check.name] = check
    placed: dict[str, Check] = {}

    def place(check: Check, chain: tuple[str, ...]) -> None:
        if check.name in chain:
            raise ValueError(f"checks depend on each other: {' -> '.join((*chain, check.name))}")
        if check.name in placed:
            return
        for need in check.inputs:
            if need not in by_name:
                raise ValueError(f"check {check.name!r} depends on {need!r}, which no package declares")
            place(by_name[need], (*chain, check.name))
            unread = set(by_name[need].facets) - set(check.facets)
            if unread:
                raise ValueError(
                    f"check {check.name!r} depends on {need!r} but does not read its facets {sorted(unread)}"
                    ": cells with the same key for one would have different keys for the other"
                )
        placed[check.name] = check

    for check in sorted(checks, key=lambda check: check.tier.rank):
        place(check, ())
    return tuple(placed.values())


def with_needed_checks(names: set[str], checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """The named checks and their dependencies, in the order of `checks`."""
    by_name = {check.name: check for check in checks}
    selected: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in selected:
            selected.add(name)
            queue.extend(by_name[name].inputs)
    return tuple(check for check in checks if check.name in selected)
