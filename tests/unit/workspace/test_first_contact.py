"""The file of a first contact: what it may contain, how it is merged, and where a prediction was wrong."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from harness.devices.cards.card_leases import CardLease
from harness.devices.host.host_findings import DiskSpace, examine_host
from harness.devices.host.host_inspection import HostReport, HostView, inspect_host
from harness.errors import InputError
from harness.evidence import DeviceFacts, Runtime
from harness.ledger.plan_record import CellFacts
from harness.ledger.run_record import Disposition
from harness.ledger.store import FILE_NAME, Ledger
from harness.numerics.calibration.calibration_measurements import DeviceConstant
from harness.outcome import Evidence, Outcome, State, Status, Tier
from harness.rollout.contact.contact_measurements import (
    SAMPLE_FORMAT,
    SampledOperators,
    SampleMeasured,
)
from harness.rollout.operators.operator_result import OperatorMeasurement
from harness.run.scheduling.run_result import RunResult
from harness.serialisation import to_json
from harness.workspace.execution.first_contact import (
    contacted,
    nothing_measurable,
    summary_of,
    time_up,
    why_unmeasured,
)
from harness.workspace.execution.simulated_prediction import compare
from harness.workspace.planning.open_plan import PlanContext
from harness.workspace.results.sent_ledger import ensure_writable, opened_ledger

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


def _context(*checks: str) -> PlanContext:
    entries = [SimpleNamespace(cell_id="row", check=check, key=check) for check in checks]
    facts = CellFacts(id="row", axes={"soc": "a2"})
    return cast(PlanContext, SimpleNamespace(plan=SimpleNamespace(entries=entries, cells=(facts,), tasks={})))


def _run(*left: tuple[str, Status, str], interrupted: bool = False, errors: int = 0) -> RunResult:
    return RunResult(
        run_id="r",
        tasks={},
        without_outcome=tuple(
            Disposition(cell_id="row", check=check, key=check, status=status, reason=reason)
            for check, status, reason in left
        ),
        executed=0,
        errors=errors,
        retried=0,
        seconds=0.0,
        interrupted=interrupted,
    )


BLOCKED = ("device-sample", Status.BLOCKED, "resolve failed: transformers")
STOPPED = ("device-sample", Status.ERROR, "the run was stopped before this check started")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (_run(BLOCKED), "resolve failed: transformers"),
        (_run(STOPPED, interrupted=True), ""),
        (_run(BLOCKED, errors=1), ""),
    ],
    ids=["a row that cannot be built", "the time was up", "the index was not reached"],
)
def test_a_row_is_passed_over_only_for_what_is_wrong_with_the_row(result: RunResult, why: str) -> None:
    assert why_unmeasured(_context("resolve", "device-sample"), result) == why


def test_a_check_that_did_not_end_in_time_says_so(tmp_path: Path) -> None:
    context = _context("resolve", "device-sample")
    blocked = ("resolve", Status.BLOCKED, "needs a compiler")
    for interrupted, told in ((True, "the time was up"), (False, STOPPED[2])):
        checks = contacted(
            context,
            _run(blocked, STOPPED, interrupted=interrupted),
            tmp_path,
            predicted=True,
            late="the time was up",
        )
        assert [one.reasons for one in checks] == [("needs a compiler",), (told,)]


def test_the_file_does_not_say_which_users_lease_cards() -> None:
    lease = CardLease(card=0, pid=1, user="alice", what="train", since=0.0)
    host = inspect_host(HostView(environ={}))
    disk = DiskSpace(free=0, needed=0, free_on=lambda _: 0, images=0)
    findings = examine_host(
        replace(host, container_engines=()), zig=False, disk=disk, leases=lambda: (lease,)
    )
    assert "alice" in str(findings)
    context = cast(PlanContext, SimpleNamespace(plan=_context().plan, host=host))
    assert "alice" not in str(to_json(summary_of(context, (), findings, {"newer": "no"})))


def test_waiting_for_cards_of_others_is_the_reason_if_it_is() -> None:
    host = cast(HostReport, SimpleNamespace(usable_chips=(0, 1)))
    mine = [CardLease(card=card, pid=1, user="alice", what="train", since=0.0) for card in (0, 1)]
    assert "--minutes 3) while all cards were leased: train;" in time_up(3, host, mine)
    for leases in ([], mine[:1], [replace(mine[0], card=None), mine[1]]):
        assert "leased" not in time_up(3, host, leases)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "nowhere" / "x.tar.gz", tmp_path / "folder"):
        with pytest.raises(InputError, match="cannot write"):
            ensure_writable(out)
    ensure_writable(tmp_path / "x.tar.gz")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("refusals", "as_found", "fix"),
    [
        ({"a": "it needs CANN 8.5.0", "b": "it needs CANN 8.3.RC1"}, False, "--engine found"),
        ({"a": "no card can be used", "b": "no card can be used"}, False, "npu-matrix doctor"),
        ({"as-found": "no card can be used"}, True, "npu-matrix doctor"),
    ],
)
def test_the_advice_is_one_that_can_be_followed(refusals: dict[str, str], as_found: bool, fix: str) -> None:
    told = nothing_measurable(refusals, as_found=as_found).problems[0]
    assert fix in (told.fix or "")
    assert ("--engine found" in (told.fix or "")) == (fix == "--engine found")
