"""A full disk is called a full disk, wherever it happens and whoever reports it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pygit2
import pytest
from small_disk import small_disk

from harness.cli.app import app, main
from harness.disk_full import FIX, is_disk_full, says_disk_full
from harness.errors import HarnessError, InfrastructureError, InputError, Problem
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.junit.junit_merge import merge_junit
from harness.ledger.store import Ledger
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.secrets.masking import Masker

TOOLS = [
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "error: Failed to fetch: `https://x.example/a.whl`\n  Caused by: No space left on device (os error 28)",
    "error: failed to write\n  cause: Disk quota exceeded (os error 122)",
    "write /var/lib/docker/tmp/x: no space left on device",
    "fatal: cannot create directory at 'x': No space left on device",
    "sqlite3.OperationalError: database or disk is full",
    "npm ERR! code ENOSPC",
    "gcc: fatal error: not enough space on the disk",
    "cp: error writing 'x': the disk is full",
]


@pytest.mark.parametrize("text", TOOLS)
def test_the_texts_of_tools_are_recognised(text: str) -> None:
    assert says_disk_full(text)
    shown = InfrastructureError("could not be fetched", why=text, fix="check the network").problems[0]
    assert "disk is full" in f"{shown.why}"
    assert "free space" in shown.fix
    assert "network" not in shown.fix


@pytest.mark.parametrize(
    "text", ["full of errors", "the queue is full", "HTTP status client error (404)", ""]
)
def test_other_texts_are_not(text: str) -> None:
    assert not says_disk_full(text)


def test_the_messages_of_uv_lead_to_the_same_remedy() -> None:
    for text in TOOLS[1:3]:
        failure = fetch_failure(text)
        error = failure.error() if failure else machine_failure(text)
        assert error is not None
        assert "disk is full" in str(error)
        assert "network" not in error.problems[0].fix


def raised(cause: Exception, kind: type[Exception]) -> None:
    try:
        raise cause
    except Exception as error:
        raise kind("cannot write file") from error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", [InfrastructureError, InputError])
def test_an_error_raised_because_of_it_says_so_and_is_no_bad_input(
    number: int, kind: type[HarnessError]
) -> None:
    with pytest.raises(kind) as caught:
        raised(OSError(number, os.strerror(number), "file"), kind)
    assert caught.value.exit_code == 4
    assert "disk is full" in str(caught.value)
    assert "free space" in str(caught.value)


def test_other_errors_keep_their_remedy_and_code() -> None:
    with pytest.raises(InputError) as caught:
        raised(PermissionError(errno.EACCES, "Permission denied", "file"), InputError)
    assert (caught.value.exit_code, caught.value.disk_full) == (2, False)
    assert not InputError("a file", why="its text says: No space left on device").disk_full


def test_an_error_that_the_full_disk_did_not_cause_keeps_its_remedy() -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError:
        built = InputError("the option is wrong", fix="use another one")
    assert (built.exit_code, built.problems[0].fix) == (2, "use another one")


def test_every_problem_of_an_error_has_the_remedy() -> None:
    several = InputError.of([Problem("one", fix="a"), Problem("two", fix="b")])
    with pytest.raises(InputError) as caught:
        raised(OSError(errno.ENOSPC, "No space left on device"), lambda _text: several)  # type: ignore[arg-type]
    assert [problem.fix for problem in caught.value.problems] == [FIX, FIX]


def test_causes_are_followed() -> None:
    with pytest.raises(ValueError, match="cannot save") as caught:
        raised(OSError(errno.ENOSPC, "x"), lambda _text: ValueError("cannot save"))  # type: ignore[arg-type]
    assert is_disk_full(caught.value)
    assert is_disk_full(sqlite3.OperationalError("database or disk is full"))
    assert not is_disk_full(OSError(errno.EIO, "x"))
    assert not is_disk_full(None)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk without space."""
    with small_disk(tmp_path / "disk", mebibytes=1) as folder:
        (folder / "junit.xml").write_text('<testsuite name="s"><testcase name="x"/></testsuite>')
        with contextlib.suppress(OSError), (folder / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"x" * 512):
                pass
        yield folder


def test_every_store_on_a_full_disk_says_so(full: Path, tmp_path: Path) -> None:
    (tmp_path / "artifact").write_bytes(b"x" * 9000)

    def ledger() -> None:
        with Ledger.open(full / "state"):
            pass

    attempts = {
        "ledger": ledger,
        "artifacts": lambda: ArtifactStore(full / "store").put(tmp_path / "artifact", "a", "text/plain"),
        "junit": lambda: merge_junit(full / "out.xml", [full / "junit.xml"] * 99, mask=Masker(())),
    }
    for name, attempt in attempts.items():
        with pytest.raises(InfrastructureError) as caught:
            attempt()
        assert "disk is full" in str(caught.value), name
        assert "free space" in str(caught.value), name


def test_a_temporary_folder_without_space_is_a_full_disk(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = FileNotFoundError(errno.ENOENT, f"No usable temporary directory found in ['{full}']")
    monkeypatch.setenv("TMPDIR", str(full))
    assert is_disk_full(error)
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    assert not is_disk_full(error)


def test_an_unexpected_error_of_the_system_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/x/lock.txt")

    monkeypatch.setattr(app, "main", fail)
    with pytest.raises(SystemExit) as stop:
        main(["plan"])
    assert stop.value.code == 4
    said = capsys.readouterr().err
    assert "/x/lock.txt" in said
    assert "the disk is full" in said
    assert "free space" in said


def test_a_library_that_finds_a_full_disk_is_no_internal_error_and_the_disk_is_named(
    full: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_more: object) -> None:
        raise pygit2.GitError("failed to write index: No space left on device")

    monkeypatch.setattr(app, "main", fail)
    with pytest.raises(SystemExit) as stop:
        main(["patches", "rebase", f"--out={full}/new/folder"])
    assert stop.value.code == 4
    said = capsys.readouterr().err
    assert "internal" not in said
    assert "free space" in said
    assert f"full: {full}\n" in said
