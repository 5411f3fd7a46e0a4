"""Breaks grouped by root cause, and what they say of the cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.cell_program.program_run import ProgramFailure
from harness.evidence import DeviceFacts
from harness.outcome import Status
from harness.rollout.imports.import_breaks import judge, root_causes
from harness.rollout.imports.import_measurements import BrokenImport, ImportedPackage, ImportMeasurements

BROKEN = BrokenImport(
    module="",
    kind="api",
    type="ImportError",
    message="",
    file="vllm_ascend/a.py",
    line=7,
    code="from vllm import x",
)
MEASURED = ImportMeasurements(
    packages={
        "vllm_ascend": ImportedPackage(version="0.18.0", modules=325, requires=("triton-ascend", "msgpack"))
    },
    breaks=(),
    device=DeviceFacts(kind="npu", simulated=True),
    left_out=(),
)


def broken(module: str, kind: str, missing: str = "", **more: Any) -> BrokenImport:
    own = {"module": module, "kind": kind, "missing": missing, "message": f"cannot import name of {missing}"}
    return replace(BROKEN, **{**own, **more})


def measured(*found: BrokenImport, left_out: tuple[str, ...] = ()) -> ImportMeasurements:
    return replace(MEASURED, breaks=found, left_out=left_out)


def test_clean_passes_and_says_how_many() -> None:
    judgement = judge(measured(), {})
    assert judgement.status is Status.PASS
    assert "325 of vllm_ascend 0.18.0" in judgement.reasons[0]


@pytest.mark.parametrize("facts", [None, ImportedPackage(version="0.18.0", modules=0)])
def test_where_no_module_was_tried_nothing_passes(facts: ImportedPackage | None) -> None:
    verl = ImportedPackage(version="0.7.1", modules=40)
    packages = {"verl": verl, **({"vllm_ascend": facts} if facts else {})}
    judgement = judge(replace(measured(), packages=packages), {})
    assert judgement.status is Status.INCONCLUSIVE
    assert "No module of vllm_ascend was found" in judgement.reasons[0]


def test_optional_packages_do_not_fail_a_cell_and_are_named() -> None:
    judgement = judge(measured(broken("a", "absent", "mooncake.engine"), broken("b", "absent", "ucm")), {})
    assert judgement.status is Status.PASS
    assert "mooncake, ucm (2 modules import them)" in judgement.reasons[-1]


def test_what_needs_others_before_it_is_named_and_does_not_fail() -> None:
    judgement = judge(measured(broken("vllm_ascend.late", "order", "vllm.x")), {})
    assert judgement.status is Status.PASS
    assert judgement.reasons[-1] == "Importable only after other modules: vllm_ascend.late."


def test_an_operator_that_is_not_simulated_is_listed_and_is_neither_a_pass_nor_the_cells_fault() -> None:
    message = (
        "aclnnAscendQuant or aclnnAscendQuantGetWorkspaceSize not in libopapi.so, or libopapi.so not found"
    )
    quantised = broken("vllm_ascend.quantised", "error", type="RuntimeError", message=message)
    alone = judge(measured(quantised), {})
    assert alone.status is Status.INCONCLUSIVE
    assert alone.reasons[-1] == "not simulated: aclnnAscendQuant"
    both = judge(measured(quantised, broken("vllm_ascend.a", "api", "vllm.x")), {})
    assert both.status is Status.FAIL
    assert both.reasons[0] == "1 modules break, one root cause."
    assert "not simulated: aclnnAscendQuant" in both.reasons
    # A real CANN that lacks an operator is too old for this vllm-ascend.
    real = judge(replace(measured(quantised), device=DeviceFacts(kind="npu")), {})
    assert real.status is Status.FAIL
    assert "aclnnAscendQuant" in real.reasons[1]


def test_a_required_package_that_is_absent_fails_unless_it_was_left_out() -> None:
    found = broken("a", "absent", "triton_ascend.runtime")
    assert judge(measured(found), {}).status is Status.FAIL
    assert judge(measured(found, left_out=("triton-ascend",)), {}).status is Status.PASS


@pytest.mark.parametrize("kind", ["api", "library", "crash", "hang", "error"])
def test_every_other_break_fails_with_its_place(kind: str) -> None:
    judgement = judge(measured(broken("vllm_ascend.a", kind, "vllm.x.Y")), {})
    assert judgement.status is Status.FAIL
    assert judgement.reasons[0] == "1 modules break, one root cause."
    assert "vllm_ascend/a.py:7 `from vllm import x`" in judgement.reasons[1]
    assert judgement.remedies


def test_modules_with_one_cause_are_one_cause() -> None:
    found = [broken(f"m{number}", "api", "vllm.x.Y") for number in range(9)]
    found += [broken("n", "error", "", message="other"), broken("o", "api", "vllm.z.W", line=9)]
    causes = root_causes(found)
    assert [len(cause.modules) for cause in causes] == [9, 1, 1]
    assert "and 5 more" in causes[0].sentence()
    assert judge(measured(*found), {}).reasons[0] == "11 modules break, 3 root causes."


def test_each_place_that_asks_for_a_missing_name_is_shown_those_that_hit_most_first() -> None:
    found = [broken("m1", "api", "vllm.x.Y", line=9)]
    found += [broken(module, "api", "vllm.x.Y") for module in ("m2", "m3")]
    judgement = judge(measured(*found), {})
    assert judgement.reasons[0] == "3 modules break, one root cause in 2 places."
    sentence = judgement.reasons[1]
    assert sentence.index("a.py:7 `from vllm import x`: m2, m3") < sentence.index("a.py:9 ")
    assert sentence.endswith("`from vllm import x`: m1.")


def test_a_program_that_died_fails_with_its_last_words() -> None:
    judgement = judge(ProgramFailure(state="crashed", returncode=-11, tail="first\nSegmentation fault\n"), {})
    assert judgement.status is Status.FAIL
    assert "ended with exit code -11" in judgement.reasons[0]
    assert "Segmentation fault" in judgement.reasons[1]
