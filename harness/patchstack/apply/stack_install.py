"""Installing an applied stack into a real folder: all files or none, even if the machine stops half way.

New contents are first written next to the old files, then a journal is written, then every file is renamed
into place. If the machine stops before the journal is written, the old files are intact; if it stops later,
the next call finishes the installation.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from harness.digest import digest_bytes, digest_file, digest_json
from harness.errors import InfrastructureError, InputError, Location
from harness.patchstack.apply.stack_apply import StackResult
from harness.sources.tree import EXECUTABLE, SYMLINK, DirectoryTree, TreeFile, link_above, path_problem

JOURNAL = ".npu-matrix-patches.json"
_SUFFIX = ".npu-matrix-new"


def install_stack(result: StackResult, folder: Path) -> tuple[str, ...]:
    """Write the changes of a stack into `folder` and return the changed paths.

    InputError if the folder's files are not those that the stack was applied to, or a symbolic link is in the
    way; InfrastructureError if writing fails. In both cases the old files stay in place.
    """
    finish_install(folder)
    if not result.applies:
        raise InputError(
            "this stack does not apply, nothing was written",
            why="; ".join(f"{verdict.patch}: {verdict.verdict}" for verdict in result.verdicts),
            fix="see the verdicts of `npu-matrix patches check`",
        )
    _check(result, folder)
    written: list[Path] = []
    try:
        for path, file in result.files.items():
            if file is not None:
                written.append(_write_new(folder / path, file))
        digests = {path: digest_bytes(file.data) if file else None for path, file in result.files.items()}
        _write_journal(folder, digests)
    except OSError as error:
        for new_file in written:
            new_file.unlink(missing_ok=True)
        raise InfrastructureError(
            f"the patched files could not be written below {folder}",
            why=str(error),
            fix="free space or correct the permissions; the old files are unchanged",
        ) from error
    finish_install(folder)
    return tuple(sorted(result.files))


def finish_install(folder: Path) -> bool:
    """Finish an installation that stopped after its journal was written; True if there was one."""
    journal = folder / JOURNAL
    try:
        stored = json.loads(journal.read_text(encoding="utf-8"))
        digests: Mapping[str, str | None] = stored["files"]
        if stored["digest"] != digest_json(digests):
            raise ValueError("its content does not match its digest")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"{journal} is damaged", why=str(error), fix="create this environment again"
        ) from error
    for path, digest in digests.items():
        problem = path_problem(path)
        if problem:
            raise InfrastructureError(
                f"{journal} is damaged", why=f"{problem} in {path!r}", fix="create this environment again"
            )
        target = folder / path
        new_file = target.with_name(target.name + _SUFFIX)
        if digest is None:
            target.unlink(missing_ok=True)
        else:
            if new_file.is_file():
                new_file.replace(target)
            _verify(target, digest)
        _remove_compiled(target)
    journal.unlink()
    return True


def _check(result: StackResult, folder: Path) -> None:
    tree = DirectoryTree(root=folder)
    for path, before in result.before.items():
        problem = path_problem(path)
        link = link_above(tree, path)
        after = result.files[path]
        mode = tree.mode(path)
        if problem or link or mode == SYMLINK or (after and after.mode == SYMLINK):
            raise InputError(
                f"{path} was not written",
                where=Location(folder / path),
                why=problem or "a symbolic link is in the way",
                fix="patch an environment without symbolic links",
            )
        found = None if mode is None else digest_bytes(tree.read(path))
        expected = digest_bytes(before.data) if before else None
        if found != expected:
            raise InputError(
                f"{path} is not the file that the stack was applied to",
                where=Location(folder / path),
                why=f"its digest is {str(found)[:12]}, expected {str(expected)[:12]}",
                fix="create this environment again from the same release",
            )


def _write_new(target: Path, file: TreeFile) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    new_file = target.with_name(target.name + _SUFFIX)
    with new_file.open("wb") as stream:
        stream.write(file.data)
        stream.flush()
        os.fsync(stream.fileno())
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
    new_file.chmod(mode | 0o111 if file.mode == EXECUTABLE else mode)
    return new_file


def _write_journal(folder: Path, digests: Mapping[str, str | None]) -> None:
    temporary = folder / f"{JOURNAL}.new"
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump({"files": digests, "digest": digest_json(digests)}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(folder / JOURNAL)


def _verify(target: Path, digest: str) -> None:
    if not target.is_file() or digest_file(target) != digest:
        raise InfrastructureError(
            f"{target} does not contain what was written",
            why="another process changed it, or the disk is failing",
            fix="create this environment again",
        )


def _remove_compiled(target: Path) -> None:
    """Remove compiled code: Python compares time and size only, which a quick replacement may not change."""
    for compiled in target.parent.glob(f"__pycache__/{target.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
