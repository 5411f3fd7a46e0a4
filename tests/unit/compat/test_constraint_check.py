from __future__ import annotations

from typing import Any

import pytest

from harness.compat.checks import CHECKS, CONSTRAINTS_FORMAT
from harness.compat.constraint_check import judge, run
from harness.matrix.model.environment_facets import ConstraintsFacet, ViolatedRule
from harness.outcome import Judgement, Status, unlisted_reasons

CHECK = next(check for check in CHECKS if check.name == "constraints")


def rule(kind: str, override: str = "") -> ViolatedRule:
    return ViolatedRule(
        rule="plugin-torch",
        kind=kind,
        what="plugin 1 is published with torch 2.7.1, not 2.8.0",
        reason="Its metadata says so.",
        source="https://example.org",
        override=override,
    )


def judged(*violated: ViolatedRule) -> Judgement:
    return judge(ConstraintsFacet(compared=3, violated=violated), {})


@pytest.mark.parametrize("kind", ["incompatible", "requirement"])
def test_a_contradiction_fails_with_its_rule_and_source(kind: str) -> None:
    judgement = judged(rule(kind), rule("unlisted"))
    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == (
        "plugin 1 is published with torch 2.7.1, not 2.8.0: Its metadata says so "
        "(plugin-torch in matrix.yaml; https://example.org)."
    )
    assert len(unlisted_reasons(judgement.reasons)) == 1
    assert "plugin-torch" in judgement.remedies[0]


def test_an_override_permits_a_requirement_and_is_stated() -> None:
    judgement = judged(rule("requirement", override="a guide installs it last (g)"))
    assert judgement.status is Status.PASS
    assert judgement.reasons[0].startswith("Overridden: ")
    assert judgement.reasons[0].endswith("Override: a guide installs it last (g).")


def test_unlisted_versions_are_stated_beside_a_pass() -> None:
    judgement = judged(rule("unlisted"))
    assert judgement.status is Status.PASS
    assert unlisted_reasons(judgement.reasons) == judgement.reasons


def test_the_facet_is_the_measurement(context: Any) -> None:
    facet = ConstraintsFacet(compared=1, violated=(rule("incompatible"),))
    ctx = context({"constraints": CONSTRAINTS_FORMAT.write(facet)})
    assert run(ctx).measurements == facet


def test_a_cell_that_no_constraint_is_about_is_not_passed() -> None:
    assert CHECK.applies({"constraints": {"compared": 0, "violated": []}})
    assert not CHECK.applies({"constraints": {"compared": 1, "violated": []}})
