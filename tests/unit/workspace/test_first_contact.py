"""The file of a first contact: what it may contain, how it is merged, and where a prediction was wrong."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.evidence import DeviceFacts, Runtime
from harness.ledger.store import FILE_NAME, Ledger
from harness.numerics.calibration.calibration_measurements import DeviceConstant
from harness.outcome import Evidence, Outcome, State, Tier
from harness.rollout.contact.contact_measurements import (
    SAMPLE_FORMAT,
    SampledOperators,
    SampleMeasured,
)
from harness.rollout.operators.operator_result import OperatorMeasurement
from harness.workspace.execution.simulated_prediction import compare
from harness.workspace.results.sent_ledger import opened_ledger

NPU = DeviceFacts(device="npu:0", kind="npu", runtime=Runtime.CANN, count=1)
MATMUL = OperatorMeasurement(
    case="aten::mm", operator="aten::mm", family="matmul", state="measured", budget=0.2
)
EXP = DeviceConstant(constant="exp_ulp", measured=0.5, contract=4.0, holds=True)


def _sample(operator: OperatorMeasurement = MATMUL, constant: DeviceConstant = EXP) -> Outcome:
    measured = SampleMeasured(
        device=NPU,
        constants=(constant,),
        operators=(SampledOperators(dtype="bfloat16", operators=(operator,)),),
        seconds=1.0,
    )
    return Outcome(
        key="a" * 64,
        check="device-sample",
        tier=Tier.NUMERICS,
        state=State.COMPLETED,
        evidence=Evidence.HARDWARE,
        facets={},
        measurements=SAMPLE_FORMAT.write(measured),
    )


def test_what_the_simulated_device_predicted_wrongly_is_named() -> None:
    assert all(one.right for one in compare(_sample(), _sample()))
    cases = [
        (_sample(replace(MATMUL, budget=3.0)), "aten::mm in bfloat16", "3 of its tolerance"),
        (
            _sample(replace(MATMUL, state="raised", message="not supported")),
            "aten::mm in bfloat16",
            "not supported",
        ),
        (
            _sample(constant=replace(EXP, measured=9.0, holds=False)),
            "exp_ulp (the contract allows 4)",
            "9",
        ),
    ]
    for measured, what, found in cases:
        (wrong,) = [one for one in compare(measured, _sample()) if not one.right]
        assert (wrong.what, wrong.measured) == (what, found)


def test_an_operator_that_one_of_them_lacks_is_not_compared() -> None:
    compared = compare(_sample(replace(MATMUL, state="absent")), _sample())
    assert [one.what for one in compared] == ["exp_ulp (the contract allows 4)"]


def _archive(path: Path, members: dict[str, bytes], *, link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        if link:
            member = tarfile.TarInfo(FILE_NAME)
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
    return path


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    with Ledger.open(folder) as ledger:
        ledger.record(_sample())
    return _archive(tmp_path / "sent.tar.gz", {FILE_NAME: (folder / FILE_NAME).read_bytes()})


def test_the_file_merges_like_a_ledger_and_hardware_is_only_claimed(sent: Path, tmp_path: Path) -> None:
    with opened_ledger(sent) as file, Ledger.open(tmp_path / "here") as ledger:
        report = ledger.merge(file)
    assert (report.read, report.added, len(report.claimed)) == (1, 1, 1)
    assert not file.exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/cron.d/evil", "harness/x.py", "artifactsX/y"])
def test_an_archive_with_other_files_is_refused(tmp_path: Path, name: str) -> None:
    path = _archive(tmp_path / "a.tar.gz", {FILE_NAME: b"", name: b"x"})
    with pytest.raises(InputError, match="cannot be read"), opened_ledger(path):
        pass
    assert not (tmp_path / "evil").exists()


def test_links_and_damaged_archives_are_refused(sent: Path, tmp_path: Path) -> None:
    linked = _archive(tmp_path / "b.tar.gz", {}, link="/etc/passwd")
    cut = tmp_path / "c.tar.gz"
    cut.write_bytes(sent.read_bytes()[:-40])
    for path in (linked, cut):
        with pytest.raises(InputError), opened_ledger(path):
            pass
