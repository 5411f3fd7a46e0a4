"""Error codes of CANN, HCCL and torch_npu are named and explained by tables, also codes that no table has."""

from __future__ import annotations

import pytest

from harness.verdict.triage.catalogue import shipped_catalogue
from harness.verdict.triage.code_tables import (
    acl_table,
    cann_table,
    explain_codes,
    places_of,
    torch_npu_table,
)
from harness.verdict.triage.diagnosis import triage_text

NATIVE = (
    "RuntimeError: operator():build/CMakeFiles/torch_npu.dir/compiler_depend.ts:25 NPU function error: "
    "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is {}\n"
    "[ERROR] 2025-04-29-18:46:11 (PID:1066924, Device:1, RankID:-1) ERR00100 PTA call acl api failed\n"
)


REPORT = "EZ9999: [PID: 7] The error from device(chipId:0, dieId:1), serial number is 6, {}.\n"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (NATIVE.format(507035), "acl-507035", "vector core exception"),
        (NATIVE.format(507048), "acl-507048", "did not end in time"),
        (NATIVE.format(507999), "acl-507999", "new code"),
        ("ACL failed, retCode=0x7bc87\n", "acl-507015", "aicore exception"),
        (
            "EH9999: [PID: 5] 2025-12-17-09:31:39.8 x failed, runtime result = 207000.\n",
            "acl-207000",
            "does not have the requested feature",
        ),
        ("launch failed for Cast, errno:561000.\n", "acl-561000", "aclnn inner"),
        ("Call aclInit(nullptr) failed : 507008 at file runtime.cc\n", "acl-507008", "soc version"),
        ("EH9999: [PID: 5] 2025-12-17-09:31:39.8 Inner Error!\n", "cann-eh9999", "of ACL"),
        (
            "EI0002: [PID: 7] The Notify register has not received it from remote rank: [6].\n",
            "cann-ei0002",
            "HCCL",
        ),
        ("Communication_Error_Timeout(EI0002): Waiting peer end: 6\n", "cann-ei0002", "HCCL"),
        (
            "AclNN_Parameter_Error(EZ1001): Io input dtype is not supported\n",
            "cann-ez1001",
            "aclnn parameter",
        ),
        (REPORT.format("hccl fftsplus task timeout occurred during task execution"), "acl-507048", "in time"),
        (REPORT.format("there is an exception of aivec error, core id is 7"), "acl-507035", "vector core"),
        (REPORT.format("there is an aicore error exception, core id is 7"), "acl-507015", "aicore"),
        (
            "EZ9999: x errorStr: The DDR address of the MTE instruction is out of range.\n",
            "acl-507015",
            "wrong",
        ),
        (REPORT.format("an exception occurred during AICPU execution"), "acl-507018", "aicpu"),
        ("RuntimeError: SUSPECT REMOTE ERROR.\n", "acl-507057", "link"),
        ("RuntimeError: HBM MULTI BIT ECC ERROR.\n", "acl-507054", "ECC"),
        (
            "Compile op[trans_Cast_2,] failed, build op model failed, result = 500002\n",
            "acl-500002",
            "500002",
        ),
        ("EI8888: [PID: 7] something new\n", "cann-ei8888", "HCCL (new code)"),
        ("EZ9999: Inner Error!\n", "cann-ez9999", "operator"),
        ("E40020: [PID: 7] Failed to import Python module\n", "cann-e40020", "import"),
        (
            "[ERROR] 2025 (PID:1, Device:0, RankID:0) ERR01002 OPS invalid type\n",
            "torch-npu-err01002",
            "type",
        ),
        (
            "RuntimeError: x.ts:148 HCCL function error: hcclCommInitRootInfoConfig(a, b), error code is 11\n",
            "hccl-result-11",
            "TCP",
        ),
    ],
)
def test_a_code_is_named_and_explained_with_its_source(text, name, says):
    found = triage_text(text.encode())
    assert found.root.id == name
    assert says in found.root.signature.cause
    assert found.root.signature.sources
    assert not found.is_clean


def test_a_code_that_is_a_cause_by_itself_is_known_and_others_are_symptoms():
    assert triage_text(NATIVE.format(207018).encode()).known
    assert triage_text(b"EL0006: [PID: 7] The resources are insufficient.\n").known
    assert not triage_text(NATIVE.format(507014).encode()).known


def test_the_device_and_the_remote_rank_are_named():
    assert places_of("(PID:7, Device:9, RankID:3)").device == 9
    assert places_of("TsdOpen failed. devId=9, tdt error=1").device == 9
    assert places_of("from remote rank: [6]. base").remote_rank == 6
    assert places_of("dst_rank[0]-remoteUserrank[0]").remote_rank == 0
    text = "[rank3]: EI0002: [PID: 7] Reason: no Notify record from remote rank: [6].\n"
    root = triage_text(text.encode()).root
    assert (root.ranks, root.remote_rank) == ((3,), 6)
    assert triage_text(text.encode()).to_json()["root"]["remote_rank"] == 6


def test_the_native_message_and_its_report_are_one_failure():
    found = triage_text(NATIVE.format(507035).encode())
    assert [one.id for one in found.findings] == ["acl-507035", "torch-npu-err00100"]


@pytest.mark.parametrize("table", [acl_table(), cann_table()], ids=["acl", "cann"])
def test_every_code_of_a_table_is_explained(table):
    named = {code for codes in table.names.values() for code in codes}
    grouped = [code for group in table.groups for code in group.codes]
    assert len(grouped) == len(set(grouped))
    for code in named | set(grouped):
        family = code[1] if code[0] == "E" else code[0]
        assert table.explained(code, family) is not None, code
    assert table.sources


def test_torch_npu_has_all_kinds_and_hccl_results():
    assert set(torch_npu_table().modules) >= {"00", "01", "02", "03", "04"}
    assert len(torch_npu_table().hccl) == 24


@pytest.mark.parametrize(
    "text",
    [
        "step:1 - error code: 0",
        "page E1000 of 3, error code 404",
        "sha256 0x7bc87 of E39999x",
        "retCode=0, runtime result = 0",
    ],
)
def test_numbers_that_are_no_codes_are_not_explained(text):
    assert list(explain_codes(text)) == []


def test_a_signature_with_a_cause_outranks_the_code_on_its_line():
    text = "EE1001: [PID: 42] The argument is invalid.Reason: set ASCEND_RT_VISIBLE_DEVICES:4 error, input data rang[0-2)\n"
    found = triage_text((NATIVE.format(207004) + text).encode())
    assert found.root.id == "visible-devices"
    assert found.known


def test_no_signature_has_the_id_of_a_code():
    assert not [one.id for one in shipped_catalogue().signatures if one.id.startswith(("acl-5", "cann-e"))]
