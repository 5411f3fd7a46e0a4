"""A gate where sources of one upstream cannot be fetched, and the change modifies patches of another."""

from __future__ import annotations

from typing import Any

import pytest
from make_outcome import make_outcome

from harness.ledger.plan_record import TaskRecord
from harness.outcome import Outcome, Status, Tier
from harness.patchstack.apply.patch_verdict import MeasuredPatch, PatchVerdict
from harness.patchstack.checks import PATCHES
from harness.patchstack.patch_measurements import PATCHES_FORMAT, TREE_UNAVAILABLE, PatchesMeasured
from harness.verdict.gate.changed_parts import ChangedParts, changed_parts
from harness.verdict.gate.gate import GateInputs, judge_gate
from harness.verdict.gate.gate_report import Blocks, GateClass
from harness.verdict.verdict import Standing, Verdict

NAME = ("cell", "patches")


def facets(verl: str = "a", transformers: str = "b", pins: str = "c") -> dict[str, Any]:
    return {
        "verl_tree": {"package": "verl", "version": "1"},
        "patches[verl]": [{"id": "verl/x", "digest": verl}],
        "patches[vllm_ascend]": [],
        "patches[others]": [{"id": "transformers/y", "digest": transformers}],
        "pins": {"torch": pins},
    }


def task(values: dict[str, Any], code: str = "code", needs: tuple[str, ...] = ("lock",)) -> TaskRecord:
    return TaskRecord(
        key=repr(values) + code,
        check="patches",
        tier=Tier.STATIC,
        facets=values,
        facet_digests={},
        code_digest=code,
        params={},
        needs=needs,
    )


def outcome(verl: PatchVerdict = PatchVerdict.CLEAN) -> Outcome:
    """The patch for transformers was not tried: its tree is missing."""
    applies = verl is PatchVerdict.CLEAN
    measured = PatchesMeasured(
        selected=("verl/x", "transformers/y"),
        tree=TREE_UNAVAILABLE,
        trees={"verl": "verl 1"},
        applies=False,
        verdicts=(MeasuredPatch(patch="verl/x", verdict=verl, reasons=() if applies else ("hunk 1",)),),
        reason="no clone of transformers",
    )
    return make_outcome(check="patches", measurements=PATCHES_FORMAT.write(measured))


def outcome_of(*, selected: tuple[str, ...], tried: tuple[str, ...] = ()) -> Outcome:
    """All patches that were tried apply."""
    measured = PatchesMeasured(
        selected=selected,
        tree="verl 1, transformers 1" if tried == selected else TREE_UNAVAILABLE,
        applies=tried == selected,
        verdicts=tuple(MeasuredPatch(patch=patch, verdict=PatchVerdict.CLEAN) for patch in tried),
    )
    return make_outcome(check="patches", measurements=PATCHES_FORMAT.write(measured))


def compared(
    before: TaskRecord, after: TaskRecord, here: Outcome, base: Outcome | None
) -> ChangedParts | None:
    return changed_parts(PATCHES, before, after, here, base)


def judged(parts: ChangedParts | None, status: Status) -> Any:
    head = Verdict(
        cell_id=NAME[0],
        check=NAME[1],
        status=status,
        standing=Standing.UNEXPECTED if status is Status.FAIL else Standing.AS_EXPECTED,
        key="h" * 64,
    )
    inputs = GateInputs(
        base_name="main",
        head={NAME: head},
        base_keys={NAME: "b" * 64},
        base_statuses={NAME: Status.NOT_RUN},
        parts={NAME: parts} if parts else {},
    )
    [item] = judge_gate(inputs).items
    return item


def test_a_patch_that_applies_is_green_though_another_upstream_is_missing_on_both_sides() -> None:
    parts = compared(task(facets()), task(facets(verl="changed")), outcome(), None)
    assert parts is not None
    assert "transformers" in parts.verified
    item = judged(parts, Status.NOT_RUN)
    assert item.blocks is Blocks.NO
    assert item.gate_class is GateClass.NOT_RUN
    assert "verified in part: verl" in item.evidence[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (facets(), facets(transformers="changed")),
        (facets(), facets(verl="changed", transformers="changed")),
        (facets(), facets(verl="changed", pins="changed")),
        (facets(), facets()),
    ],
    ids=["the missing one", "both", "what no part reads", "nothing"],
)
def test_what_the_change_modifies_and_nothing_verified_still_blocks(before: Any, after: Any) -> None:
    parts = compared(task(before), task(after), outcome(), outcome())
    assert parts is None or not parts.verified
    assert judged(parts, Status.NOT_RUN).blocks is Blocks.INCOMPLETE


def test_an_upstream_without_patches_is_not_verified() -> None:
    """Its last patch is gone, so nothing of it was tried."""
    after = {**facets(), "patches[verl]": []}
    here = outcome_of(selected=("transformers/y",))
    parts = compared(task(facets()), task(after), here, outcome())
    assert parts is not None
    assert not parts.verified
    assert judged(parts, Status.NOT_RUN).blocks is Blocks.INCOMPLETE


def test_removed_patches_of_another_upstream_are_a_modification() -> None:
    before = facets()
    before["patches[others]"] = [*before["patches[others]"], {"id": "vllm/z", "digest": "d"}]
    parts = compared(task(before), task(facets(verl="changed")), outcome(), outcome())
    assert parts is not None
    assert not parts.verified


def test_a_check_with_a_verdict_is_not_verified_in_part() -> None:
    """Nothing of it is missing here; it was on the base."""
    here = outcome_of(selected=("verl/x", "transformers/y"), tried=("verl/x", "transformers/y"))
    parts = compared(task(facets()), task(facets(verl="changed")), here, outcome())
    assert parts is not None
    assert not parts.verified


def test_other_code_is_another_check() -> None:
    after = task(facets(verl="changed"), code="other")
    assert compared(task(facets()), after, outcome(), outcome()) is None


@pytest.mark.parametrize("needs", [("another lock",), ()])
def test_other_inputs_may_name_other_archives_for_the_parts_that_were_not_run(needs: tuple[str, ...]) -> None:
    after = task(facets(verl="changed"), needs=needs)
    assert compared(task(facets()), after, outcome(), outcome()) is None
    assert judged(None, Status.NOT_RUN).blocks is Blocks.INCOMPLETE


def test_a_patch_that_breaks_is_new_if_it_applied_on_the_base() -> None:
    before, after = task(facets()), task(facets(verl="changed"))
    parts = compared(before, after, outcome(PatchVerdict.CONFLICT), outcome())
    assert parts is not None
    assert not parts.verified
    item = judged(parts, Status.FAIL)
    assert (item.gate_class, item.blocks) == (GateClass.NEW, Blocks.UNEXPECTED)


@pytest.mark.parametrize(
    "base", [outcome(PatchVerdict.CONFLICT), None], ids=["broken there too", "never run"]
)
def test_a_patch_that_did_not_apply_on_the_base_is_not_called_new(base: Outcome | None) -> None:
    parts = compared(task(facets()), task(facets(verl="changed")), outcome(PatchVerdict.CONFLICT), base)
    assert judged(parts, Status.FAIL).gate_class is GateClass.UNKNOWN
