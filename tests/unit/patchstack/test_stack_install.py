from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.digest import digest_json
from harness.errors import InfrastructureError, InputError
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.apply.stack_apply import StackResult, apply_stack
from harness.patchstack.apply.stack_install import JOURNAL, finish_install, install_stack
from harness.patchstack.format.diff_writer import diff_files
from harness.sources.tree import DirectoryTree

OLD, NEW = b"a = 1\nb = 2\n", b"a = 1\nb = 3\n"
NEWER = b"a = 1\nb = 3\nc = 4\n"


def site(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    for name in ("one", "two"):
        (root / "pkg" / f"{name}.py").write_bytes(OLD)
    return root


def result(root: Path, *patches: bytes) -> StackResult:
    bodies = patches or (diff_files({"pkg/one.py": (OLD, NEW), "pkg/two.py": (OLD, NEW)}),)
    return apply_stack(
        DirectoryTree(root=root), [read_patch(f"p{number}", data) for number, data in enumerate(bodies)]
    )


def contents(root: Path) -> dict[str, bytes]:
    return {
        file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()
    }


def test_install_writes_the_patched_files(tmp_path: Path) -> None:
    root = site(tmp_path)
    assert install_stack(result(root), root) == ("pkg/one.py", "pkg/two.py")
    assert contents(root) == {"pkg/one.py": NEW, "pkg/two.py": NEW}


def test_a_hard_linked_file_is_replaced(tmp_path: Path) -> None:
    """Installers hard-link files from their cache: writing into such a file would patch every environment."""
    root = site(tmp_path / "site")
    cached = tmp_path / "cached.py"
    cached.hardlink_to(root / "pkg" / "one.py")
    install_stack(result(root), root)
    assert cached.read_bytes() == OLD


def test_compiled_code_of_replaced_files_is_removed(tmp_path: Path) -> None:
    root = site(tmp_path)
    compiled = root / "pkg" / "__pycache__" / "one.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"old")
    install_stack(result(root), root)
    assert not compiled.exists()


def test_nothing_is_written_when_a_patch_does_not_apply(tmp_path: Path) -> None:
    root = site(tmp_path)
    good, bad = diff_files({"pkg/one.py": (OLD, NEW)}), diff_files({"pkg/two.py": (b"x\n", b"y\n")})
    found = result(root, good, bad)
    assert [verdict.verdict for verdict in found.verdicts] == [PatchVerdict.CLEAN, PatchVerdict.CONFLICT]
    with pytest.raises(InputError, match="does not apply"):
        install_stack(found, root)
    assert contents(root) == {"pkg/one.py": OLD, "pkg/two.py": OLD}


def test_nothing_is_written_over_another_file(tmp_path: Path) -> None:
    root = site(tmp_path)
    found = result(root)
    (root / "pkg" / "two.py").write_bytes(b"edited\n")
    with pytest.raises(InputError, match="not the file"):
        install_stack(found, root)
    assert contents(root) == {"pkg/one.py": OLD, "pkg/two.py": b"edited\n"}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    root = site(tmp_path / "site")
    found = result(root)
    (root / "pkg").rename(tmp_path / "elsewhere")
    (root / "pkg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not written"):
        install_stack(found, root)
    assert contents(tmp_path / "elsewhere") == {"one.py": OLD, "two.py": OLD}


def test_a_failed_write_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = site(tmp_path)
    found = result(root)
    import harness.patchstack.apply.stack_install as module

    def full(folder: Path, digests: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_journal", full)
    with pytest.raises(InfrastructureError, match="could not be written"):
        install_stack(found, root)
    assert contents(root) == {"pkg/one.py": OLD, "pkg/two.py": OLD}


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_an_installation_that_stopped_after_the_journal_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    root = site(tmp_path)
    found = result(root)
    import harness.patchstack.apply.stack_install as module

    calls = 0

    class PowerCutError(Exception):
        pass

    def stop(target: Path, digest: str) -> None:
        nonlocal calls
        calls += 1
        if calls > renamed:
            raise PowerCutError

    with monkeypatch.context() as patched:
        patched.setattr(module, "_verify", stop)
        if renamed < 2:
            with pytest.raises(PowerCutError):
                install_stack(found, root)
        else:
            install_stack(found, root)
    finish_install(root)
    assert contents(root) == {"pkg/one.py": NEW, "pkg/two.py": NEW}
    assert finish_install(root) is False


OUTSIDE = {"../../x": None}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a.py": null}',
        json.dumps({"files": {"a.py": None}, "digest": digest_json({"b.py": None})}),
        json.dumps({"files": OUTSIDE, "digest": digest_json(OUTSIDE)}),
    ],
)
def test_a_damaged_journal_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL).write_text(text)
    with pytest.raises(InfrastructureError, match="damaged"):
        finish_install(tmp_path)


def test_patches_that_apply_only_together(tmp_path: Path) -> None:
    root = site(tmp_path)
    found = result(root, diff_files({"pkg/one.py": (OLD, NEW)}), diff_files({"pkg/one.py": (NEW, NEWER)}))
    assert found.applies
    assert "needs an earlier patch" in found.relations[0]
    assert found.files["pkg/one.py"] is not None
    assert found.files["pkg/one.py"].data == NEWER


def test_patches_that_apply_only_separately(tmp_path: Path) -> None:
    root = site(tmp_path)
    other = OLD.replace(b"b = 2", b"b = 5")
    found = result(root, diff_files({"pkg/one.py": (OLD, NEW)}), diff_files({"pkg/one.py": (OLD, other)}))
    assert not found.applies
    assert "conflicts with an earlier patch" in found.relations[0]
    assert json.loads(json.dumps(found.to_json()))["applies"] is False


def test_a_patch_that_is_upstream_changes_nothing(tmp_path: Path) -> None:
    root = site(tmp_path)
    (root / "pkg" / "one.py").write_bytes(NEW)
    found = result(root, diff_files({"pkg/one.py": (OLD, NEW)}))
    assert found.applies
    assert found.files == {}
    assert install_stack(found, root) == ()
