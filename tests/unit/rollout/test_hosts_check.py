"""Several hosts: the reference training, the variables of a host, and each wrong result is red."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cell_program.host_addresses import Hosts, make_hosts, read_hosts
from harness.cell_program.program_run import ProgramFailure
from harness.evidence import DeviceFacts, Runtime, evidence_of
from harness.outcome import Evidence, Status
from harness.rollout.contact import hosts_program
from harness.rollout.contact.contact_measurements import (
    CollectiveResult,
    HostRanks,
    HostsMeasured,
    JointTraining,
)
from harness.rollout.contact.hosts_check import HOSTS, judge
from harness.rollout.contact.hosts_program import (
    host_variables,
    least_proven,
    reference_training,
    torchrun,
    why_wrong,
)

NPU = DeviceFacts(device="npu:0", kind="npu", runtime=Runtime.CANN, soc="Ascend910B3", count=2)
CARDS = ("npu:0", "npu:1")
RIGHT = HostsMeasured(
    device=NPU,
    hosts=(HostRanks(address="10.0.0.1", devices=CARDS), HostRanks(address="10.0.0.2", devices=CARDS)),
    results=(CollectiveResult(name="broadcast", wrong=""),),
    training=JointTraining(steps=3, wrong=""),
    seconds=1.0,
)
TWO = Hosts(addresses=("127.0.0.1", "127.0.0.2"), index=1, port=27001)


def test_exact_operations_and_the_reference_training_pass() -> None:
    judgement = judge(RIGHT, {})
    assert judgement.status is Status.PASS
    assert "4 ranks on 2 hosts" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("measured", "named"),
    [
        (replace(RIGHT, hosts=RIGHT.hosts[:1]), "nothing was sent between hosts"),
        (
            replace(RIGHT, hosts=(RIGHT.hosts[0], HostRanks(address="10.0.0.2", devices=("npu:0", "npu:0")))),
            "Ranks of the host 10.0.0.2 share a card: npu:0, npu:0.",
        ),
        (
            replace(RIGHT, results=(CollectiveResult(name="broadcast", wrong="rank 3: element 0"),)),
            "broadcast: rank 3: element 0.",
        ),
        (replace(RIGHT, training=JointTraining(steps=3, wrong="rank 2 has")), "rank 2 has"),
        (
            ProgramFailure(state="crashed", returncode=1, tail="EI0006\n", during="host 10.0.0.2 (2 of 2)"),
            "The program on host 10.0.0.2 (2 of 2) ended with exit code 1.",
        ),
    ],
)
def test_each_fault_is_red_and_named(measured: HostsMeasured | ProgramFailure, named: str) -> None:
    judgement = judge(measured, {})
    assert judgement.status is Status.FAIL
    assert any(named in reason for reason in judgement.reasons)


def test_no_operation_is_no_pass() -> None:
    assert judge(replace(RIGHT, results=()), {}).status is Status.INCONCLUSIVE


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_weights_that_lack_the_rows_of_a_rank_are_wrong(ranks: int) -> None:
    right, tolerance = reference_training(ranks)
    assert why_wrong([right] * ranks) == ""
    assert why_wrong([[value + tolerance / 2 for value in right]] * ranks) == ""
    assert "off by" in why_wrong([reference_training(ranks - 1)[0]] * ranks)
    assert "off by" in why_wrong([[float("nan"), *right[1:]]] * ranks)
    assert "other weights" in why_wrong([right] * (ranks - 1) + [[*right[:-1], right[-1] + tolerance / 2]])


def test_the_tolerance_is_small_beside_a_step() -> None:
    weights, tolerance = reference_training(16)
    assert tolerance < 1e-3 * max(map(abs, weights))


def test_a_rank_without_its_gradient_is_off_by_more_than_the_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, _ = reference_training(4)
    row = hosts_program.training_row
    monkeypatch.setattr(hosts_program, "training_row", lambda rank, at: row(0 if rank == 3 else rank, at))
    assert "off by" in why_wrong([right] * 4)


def test_hosts_are_read_as_they_were_written() -> None:
    assert read_hosts(TWO.variables()) == TWO
    assert read_hosts({}) is None
    assert read_hosts({**TWO.variables(), "NPU_MATRIX_NODE_INDEX": "2"}) is None
    made = [make_hosts(TWO.addresses, index, "ab" * 32, 1) for index in (0, 1)]
    assert made[0].port == made[1].port != make_hosts(TWO.addresses, 0, "ab" * 32, 2).port


def test_each_host_gets_its_own_address_and_what_the_user_has_set_stays() -> None:
    found = host_variables("127.0.0.2", {"HCCL_IF_IP": "10.9.9.9", "GLOO_SOCKET_IFNAME": "bond0"})
    assert (found["HCCL_IF_IP"], found["HCCL_SOCKET_IFNAME"]) == ("127.0.0.2", "lo")
    assert found["GLOO_SOCKET_IFNAME"] == "bond0"
    assert found["HCCL_CONNECT_TIMEOUT"] == "120"


def test_torchrun_gets_the_first_host_as_its_master(tmp_path) -> None:
    argv, variables = torchrun(TWO, 8, tmp_path / "out.json")
    for option in ("--nnodes=2", "--node-rank=1", "--nproc-per-node=8", "--master-addr=127.0.0.1"):
        assert option in argv
    assert variables["HCCL_IF_IP"] == "127.0.0.2"


def test_one_simulated_rank_makes_the_measurement_simulated() -> None:
    simulated = replace(NPU, runtime=Runtime.SIMULATED)
    assert evidence_of(least_proven([NPU, NPU, simulated, NPU])) is Evidence.SIMULATED
    assert evidence_of(least_proven([NPU, NPU])) is Evidence.HARDWARE


def test_it_applies_to_recipes_of_several_hosts_only() -> None:
    assert HOSTS.applies({"recipe": {"nodes": 2}}) == ""
    assert "one host" in HOSTS.applies({"recipe": {"nodes": 1}})
    assert HOSTS.applies({"recipe": None}) == "the cell has no recipe"
