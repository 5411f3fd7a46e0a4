"""Names and explains error codes of CANN, HCCL and torch_npu by published tables (device_codes/*.yaml)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from harness.package import data_folder
from harness.verdict.triage.catalogue import Signature, YamlList
from harness.yaml_loader import FAST_LOADER

FOLDER = data_folder("verdict/triage/device_codes")
#: Every code that is read stands on a line with one of these.
NEEDLES = (
    "error code",
    "rror code",
    "retCode",
    "errorCode",
    "ErrorCode=",
    "runtime result",
    " result = 50",
    ", errno:",
    "Inner Error",
    "RankID:",
    "detail:E",
    ") failed : ",
    ") failed: ",
    *(f"[PID: {digit}" for digit in range(1, 10)),
    *(f"ERR{module:02}{kind}" for module in range(5) for kind in ("00", "01", "10", "20", "30")),
    "_Error_",
    "_Error(",
    "error from device(chipId",
    " errorStr: ",
    # Exceptions of torch_npu that name no code.
    ": UCE ERROR",
    " ECC ERROR",
    ": SUSPECT ",
    " LINK ERROR",
    ": HCCL OP RETRY",
)
#: CANN's codes for an inner error, such as EZ9999, end like this: other codes tell more. So they do where
#: torch_npu only reports that a call of ACL, HCCL or the graph engine failed.
UNSPECIFIC = ("9999", *(f"err{module:02}{kind}" for module in range(4) for kind in ("100", "200", "300")))
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)

_ACL = re.compile(
    r"(?:[Ee]rror ?[Cc]ode(?: is)?|[Rr]et(?:Code)?|[Ee]rr(?:or)?_code|runtime result|\bresult|errno|error no"
    r"|\bacl\w{1,60}\(.{0,200}?\) failed)"
    r"\s{0,2}[:=]?\s{0,2}\(?"
    r"(?P<code>0x[0-9a-fA-F]{5,8}|[1235]\d{5})\b"
)
_CANN = re.compile(r"(?<![\w.])(?P<code>E[0-9A-PZ]\d{4})(?=[:)\]\[,;.]|\s*$| )")
_TORCH_NPU = re.compile(r"\bERR(?P<module>\d\d)(?P<kind>\d{3})\b")
_HCCL = re.compile(r"HCCL function error:.{0,300}error code is (?P<code>\d{1,2})\b")
_REPORT = re.compile(r"\b(?:error from device\(chipId:|errorStr: )(?P<text>.{0,300})", re.IGNORECASE)
_RAISED = re.compile(r"\b(?:RuntimeError|DistBackendError): (?P<text>[A-Z][A-Z ]{5,40}[A-Z])\b")
_DEVICE = re.compile(r"\b(?:[Dd]evice|dev)(?:[ _]?[Ii][Dd])?\s{0,2}[:=\[]{1,2}\s{0,2}(\d{1,4})\b")
_REMOTE = re.compile(
    r"\b(?:[Rr]emote[ _]?[Rr]ank(?:[ _]?[Ii][Dd])?|dst_?[Rr]ank|peer[ _]rank|[Pp]eer end|from remote rank)"
    r"\s{0,2}[:=]?\s{0,2}[\[(]?(\d{1,6})\b"
)


class _Family(BaseModel):
    model_config = _STRICT

    cause: str
    remedy: str
    module: str = ""


class _Group(BaseModel):
    model_config = _STRICT

    name: str
    codes: YamlList = Field(min_length=1)
    cause: str
    remedy: str
    role: Literal["cause", "symptom"] = "symptom"


class _Table(BaseModel):
    """names: title -> its codes. groups: what codes of one kind mean. families: the same, by a character.
    reports: text of a report about a card -> the code that a caller gets for it.
    """

    model_config = _STRICT

    sources: YamlList = Field(min_length=1)
    families: dict[str, _Family]
    groups: list[_Group]
    names: dict[str, YamlList]
    reports: dict[str, str] = Field(default_factory=dict)

    def name(self, code: str) -> str:
        """The title of a code, "" for an unknown one."""
        return next((name for name, codes in self.names.items() if code in codes), "")

    def explained(self, code: str, family: str) -> _Group | _Family | None:
        """The group of a code, else its family."""
        return next((group for group in self.groups if code in group.codes), self.families.get(family))


class _Kind(BaseModel):
    model_config = _STRICT

    means: str
    remedy: str


class _TorchNpu(BaseModel):
    model_config = _STRICT

    sources: YamlList = Field(min_length=1)
    modules: dict[str, str]
    kinds: dict[str, _Kind]
    texts: dict[str, str]
    hccl: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class CodePlaces:
    """The device and the remote rank that a line with a code names, None if it names none."""

    device: int | None = None
    remote_rank: int | None = None


@functools.cache
def acl_table() -> _Table:
    """The return codes of ACL and the runtime."""
    return _Table.model_validate(_yaml("acl"))


@functools.cache
def cann_table() -> _Table:
    """The error codes of CANN's modules."""
    return _Table.model_validate(_yaml("cann"))


@functools.cache
def torch_npu_table() -> _TorchNpu:
    """The error codes of torch_npu, and HCCL's return codes."""
    return _TorchNpu.model_validate(_yaml("torch_npu"))


def _yaml(name: str) -> object:
    return yaml.load((FOLDER / f"{name}.yaml").read_text("utf-8"), FAST_LOADER)  # noqa: S506 - a safe loader


def explain_codes(text: str) -> Iterator[Signature]:
    """The explanations of all codes on a line, the most specific kind of code first."""
    cann = [found["code"] for found in _CANN.finditer(text)]
    for code in (one for one in cann if not one.endswith(UNSPECIFIC)):
        yield from _of_table(cann_table(), "CANN", code, code[1])
    for found in _ACL.finditer(text):
        code = str(int(found["code"], 16)) if found["code"].startswith("0x") else found["code"]
        if len(code) == 6:
            yield from _of_table(acl_table(), "aclError", code, code[0])
    for code in _meant_codes(text):
        yield from _of_table(acl_table(), "aclError", code, code[0])
    for code in (one for one in cann if one.endswith(UNSPECIFIC)):
        yield from _of_table(cann_table(), "CANN", code, code[1])
    hccl = _HCCL.search(text)
    if hccl and hccl["code"] in torch_npu_table().hccl:
        yield _of_hccl(hccl["code"])
    for found in _TORCH_NPU.finditer(text):
        yield from _of_torch_npu(found["module"], found["kind"])


def _meant_codes(text: str) -> Iterator[str]:
    """The codes of ACL that a line means without naming them."""
    raised, report = _RAISED.search(text), _REPORT.search(text)
    if raised and raised["text"] in torch_npu_table().texts:
        yield torch_npu_table().texts[raised["text"]]
    if report:
        said = report["text"].casefold()
        yield from [code for part, code in acl_table().reports.items() if part in said][:1]


def places_of(text: str) -> CodePlaces:
    """The device and remote rank that a line names."""
    device, remote = _DEVICE.search(text), _REMOTE.search(text)
    return CodePlaces(
        device=int(device[1]) if device else None, remote_rank=int(remote[1]) if remote else None
    )


def _of_table(table: _Table, kind: str, code: str, family: str) -> Iterator[Signature]:
    known = table.explained(code, family)
    if known is None:
        return
    name = table.name(code)
    module = table.families[family].module if family in table.families else ""
    title = " ".join(
        part for part in (f"{kind} {code}", module and f"of {module}", f"({name or 'new code'})") if part
    )
    role = known.role if isinstance(known, _Group) else "symptom"
    yield _signature(
        f"{'cann' if kind == 'CANN' else 'acl'}-{code.lower()}",
        title,
        known.cause,
        known.remedy,
        role,
        table.sources,
    )


def _of_hccl(code: str) -> Signature:
    table = torch_npu_table()
    return _signature(
        f"hccl-result-{code}",
        f"HCCL result {code}",
        f"HCCL reports: {table.hccl[code]}",
        "find the first error code EI or EJ of all ranks, in this log or in the plog (~/ascend/log)",
        "symptom",
        table.sources,
    )


def _of_torch_npu(module: str, kind: str) -> Iterator[Signature]:
    table = torch_npu_table()
    known = table.kinds.get(kind)
    if known and module in table.modules:
        title = f"torch_npu ERR{module}{kind} of {table.modules[module]}"
        yield _signature(
            f"torch-npu-err{module}{kind}", title, known.means, known.remedy, "symptom", table.sources
        )


@functools.cache
def _signature(
    name: str,
    title: str,
    cause: str,
    remedy: str,
    role: Literal["cause", "symptom"],
    sources: tuple[str, ...],
) -> Signature:
    return Signature(
        id=name,
        area="device code",
        stage="train",
        role=role,
        evidence="docs",
        pattern=r"(?!)",
        needles=(title,),
        example=title,
        cause=f"{title}: {cause}",
        remedy=remedy,
        affects="any",
        sources=sources,
    )
