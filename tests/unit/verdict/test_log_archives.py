"""Logs in archives and as JSON strings are read; what was not read to its end is told and never clean."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from harness.verdict.triage import log_archive
from harness.verdict.triage.diagnosis import triage_file, triage_members, triage_text

STEPS = "".join(f"step:{step} - actor/grad_norm:0.9 - training/global_step:{step}\n" for step in range(1, 4))
FAILED = f"{STEPS}RuntimeError: NPU out of memory.\n"


def zipped(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


FORMS = {
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: zstandard.compress(text),
    "zip": lambda text: zipped({"train.log": text}),
    "tar": lambda text: tarred({"train.log": text}),
    "tar.gz": lambda text: gzip.compress(tarred({"train.log": text})),
    "tar.xz": lambda text: lzma.compress(tarred({"train.log": text})),
    "gz in zip": lambda text: zipped({"train.log.gz": gzip.compress(text)}),
    "two members of bz2": lambda text: bz2.compress(text[:50]) + bz2.compress(text[50:]),
    "JSON string": lambda text: json.dumps(text.decode()).encode(),
    "JSON strings": lambda text: json.dumps(text.decode().splitlines()).encode(),
    "indented JSON strings": lambda text: json.dumps(text.decode().splitlines(), indent=1).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_is_read_in_every_form(form, tmp_path):
    for text, clean in ((STEPS, True), (FAILED, False)):
        packed = FORMS[form](text.encode())
        file = tmp_path / "log"
        file.write_bytes(packed)
        for found in (triage_text(packed), triage_file(file)):
            assert found.is_clean == clean
            assert found.notes == ()
            assert (found.root.id if found.root else "") == ("" if clean else "npu-oom")
            assert clean or found.root.line == 4


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_each_log_of_an_archive_is_one_of_its_own(pack, tmp_path):
    file = tmp_path / "logs"
    file.write_bytes(pack({"rank0.log": FAILED.encode(), "rank1.log": STEPS.encode()}))
    found = triage_members(file)
    assert {name: one.is_clean for name, one in found.items()} == {"rank0.log": False, "rank1.log": True}
    worst = triage_file(file)
    assert worst.root.id == "npu-oom"
    assert "rank0.log" in worst.notes[0]


def cut(packed: bytes) -> bytes:
    return packed[: len(packed) // 2]


UNREADABLE = {
    "cut gzip": cut(gzip.compress(b"".join(b"x%d y\n" % (n * n) for n in range(9999)) + STEPS.encode())),
    "cut xz": lzma.compress(STEPS.encode())[:-20],
    "cut zst": cut(zstandard.compress(STEPS.encode())),
    "cut tar": cut(tarred({"a.log": STEPS.encode() * 90})),
    "no xz": b"\xfd7zXZ\x00 no archive",
    "no zip": b"PK\x03\x04 no archive",
    "an empty zip": zipped({}),
}


@pytest.mark.parametrize("packed", UNREADABLE.values(), ids=list(UNREADABLE))
def test_a_log_that_is_not_read_to_its_end_is_not_clean(packed):
    found = triage_text(packed)
    assert not found.is_clean


@pytest.mark.parametrize("form", ["bz2", "xz", "zst", "tar.gz"])
def test_an_archive_that_is_cut_behind_its_steps_says_so(form):
    numbers = "".join(f"bucket {n * n * n} is sent\n" for n in range(30_000))
    packed = FORMS[form]((STEPS + numbers).encode())
    found = triage_text(packed[: len(packed) * 3 // 4])
    assert found.ending.kind == "unread"
    assert any("cannot be read on" in note for note in found.notes)


def test_a_missing_decompressor_is_told(monkeypatch):
    packed = zstandard.compress(STEPS.encode())

    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(log_archive.importlib, "import_module", missing)
    found = triage_text(packed)
    assert found.ending.kind == "unread"
    assert "zstandard" in found.notes[0]


@pytest.mark.parametrize("form", ["bz2", "xz", "zst", "zip", "tar.gz"])
def test_what_an_archive_unpacks_to_is_bounded(form, monkeypatch):
    monkeypatch.setattr(log_archive._Budget, "left", 1 << 20)
    monkeypatch.setattr(log_archive, "MOST_UNPACKED", 1 << 20)
    monkeypatch.setattr(log_archive._Budget.__init__, "__defaults__", (1 << 20,))
    found = triage_text(FORMS[form](STEPS.encode() + b"a line\n" * (1 << 20)))
    assert found.size <= 1 << 20
    assert found.ending.kind == "unread"
    assert any("only the first 1 MiB" in note for note in found.notes)


def test_only_so_many_files_of_an_archive_are_read(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(log_archive, "MOST_FILES", 3)
    for number, pack in enumerate((zipped, tarred)):
        file = tmp_path / str(number)
        file.write_bytes(pack({f"{n}.log": STEPS.encode() for n in range(9)}))
        found = triage_members(file)
        assert not triage_file(file).is_clean
        assert any("only the first 3 files" in note for one in found.values() for note in one.notes)


QUOTED = {
    "a quotation in the first line": '"a" is the first word\n',
    "a list in the first line": '["a", "b"] are the arguments\n',
    "lines in quotation marks": '"a"\n"b"\n',
}


@pytest.mark.parametrize("first", QUOTED.values(), ids=list(QUOTED))
def test_a_log_that_begins_with_a_quotation_is_no_json(first):
    found = triage_text(f"{first}{FAILED}".encode())
    assert found.root.id == "npu-oom"
    assert found.root.line == first.count("\n") + 4


def test_escapes_of_json_are_text_again():
    text = f'说 "x" \\ \U0001f600\tC:\\new\n{FAILED}'
    for packed in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        found = triage_text(packed.encode())
        assert found.root.id == "npu-oom"
        assert found.lines == 5
