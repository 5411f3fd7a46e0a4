"""Outcomes of simulated devices say nothing about a stack for hardware, and the other way round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Status
from harness.plan.feasibility.newest_versions import CellProof, CheckProof
from harness.plan.feasibility.stack_advice import AdviceRequest, AdvisedStack, advise_stacks
from harness.settings import load_settings
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.release_archive import TargetPlatform
from harness.workspace.execution import host_advice

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrix.yaml")


def stack() -> AdvisedStack:
    return advise_stacks(MATRIX, AdviceRequest(soc="a2", cann="8.5.0")).stacks[0]


@pytest.mark.parametrize(
    ("evidence", "counts"),
    [
        (Evidence.STATIC, True),
        (Evidence.CPU, True),
        (Evidence.SIMULATED, False),
        (Evidence.HARDWARE, True),
    ],
)
def test_only_outcomes_of_the_same_kind_of_device_count(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence, counts: bool
) -> None:
    chosen = stack()
    cell = next(one for one in MATRIX.all_cells if host_advice._has_versions(MATRIX, one, chosen))
    proof = CellProof(
        cell=cell,
        checks=(CheckProof(check="loss", status=Status.PASS, evidence=evidence), CheckProof(check="import")),
    )
    settings = load_settings({}, {}, ROOT)
    context, _proofs = host_advice.known_proofs(settings, MATRIX, ())
    monkeypatch.setattr(host_advice, "known_proofs", lambda *_arguments: (context, {cell.id: proof}))
    (known,), _unfit = host_advice.known_stacks(settings, MATRIX, [chosen], "25.5.0", most=1, ask_index=False)
    assert [one.check for one in known.passed] == (["loss"] if counts else [])
    assert known.never_tried == (("import",) if counts else ("loss", "import"))
    assert not any(known.on_index.values())


class OldWheels:
    """A package index without files for Python 3.12."""

    def files(self, _packages: list[str], target: TargetPlatform | None = None) -> list[str]:
        if target and target.python == "3.12":
            raise ReleaseNotFoundError("none")
        return ["a wheel"]


def test_the_newest_python_that_the_index_has_wheels_for_is_advised() -> None:
    index = host_advice.AskedIndex(index=OldWheels())  # type: ignore[arg-type]
    (chosen, *_rest) = advise_stacks(MATRIX, AdviceRequest(soc="a2", cann="8.0.0", needs=("grpo",))).stacks
    assert chosen.values["python"] == "3.12"
    installable, on_index, reasons = index.installable(MATRIX, chosen)
    assert (installable.values["python"], reasons) == ("3.11", ())
    assert on_index["torch-npu"]
    asked = AdviceRequest(soc="a2", cann="8.0.0", needs=("grpo",), python="3.12")
    _same, _on_index, reasons = index.installable(MATRIX, advise_stacks(MATRIX, asked).stacks[0])
    assert "published, but not for Python 3.12 on aarch64" in reasons[0]


def test_a_cell_of_the_other_device_or_another_cann_is_not_the_stack() -> None:
    chosen = stack()
    for axis, value in {"device": "sim", "cann": "8.3.RC1", "soc": "a3"}.items():
        other = replace(chosen, axes={**chosen.axes, axis: MATRIX.axes[axis].parse(value)})
        same = [one for one in MATRIX.all_cells if host_advice._has_versions(MATRIX, one, chosen)]
        assert same
        assert not any(host_advice._has_versions(MATRIX, one, other) for one in same)


def test_findings_of_a_document_are_told_for_its_own_verl_only() -> None:
    stacks = advise_stacks(MATRIX, AdviceRequest(soc="a3", cann="8.3.RC1")).stacks
    published = next(one for one in stacks if one.axes["verl"].short == "0.7.0")
    told = {risk.what for risk in host_advice._findings(MATRIX, published)}
    assert not any("(stack gptoss-20b-grpo)" in what for what in told)
    stack_of_verl = advise_stacks(MATRIX, AdviceRequest(soc="a2", cann="8.2.RC1")).stacks[0]
    assert stack_of_verl.axes["verl"].short == "0.6.1"
    assert any("(stack verl-0-6-1)" in risk.what for risk in host_advice._findings(MATRIX, stack_of_verl))
