"""Installs the packages that only the tests of a suite need, in a folder beside the cell's environment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.cache_seal import sealed, unsealed
from harness.check import TaskContext
from harness.digest import digest_json
from harness.errors import InfrastructureError
from harness.sources.packages.index_settings import index_environment, uv_binary
from harness.sources.packages.uv_settings import write_uv_settings
from harness.sources.redact import redact_text
from harness.sources.tree import DirectoryTree, tree_digest

INSTALL_TIMEOUT_S = 600.0


def _is_intact(folder: Path, seal: Path) -> bool:
    """Whether the folder has what was installed: a test, or another program, may have changed it."""
    try:
        expected = unsealed(folder.name, seal.read_text(encoding="utf-8"))
        return expected is not None and expected == tree_digest(DirectoryTree(root=folder))
    except (OSError, UnicodeDecodeError):
        return False


def requirements_folder(
    context: TaskContext, requirements: Sequence[str], *, python: str, platform: object
) -> Path | None:
    """A folder with these packages, without their dependencies; None if there are none.

    The environment of the cell is not changed: these packages come after its own on the path.
    InfrastructureError if they cannot be installed.
    """
    if not requirements:
        return None
    name = digest_json([sorted(requirements), platform])[:32]
    folder = context.cache / "upstream-tests" / "requirements" / name
    seal = folder.with_suffix(".seal")
    if _is_intact(folder, seal):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".requirements-", dir=folder.parent))
    argv = [uv_binary(), "pip", "install", "--no-deps", "--target", str(work), "--python", python]
    settings = index_environment(os.environ)
    write_uv_settings(context.workdir, settings.uv_file())
    try:
        done = context.command(
            [*argv, *settings.uv_arguments(), *requirements],
            env=settings.uv_environment(),
            cwd=context.workdir,
            timeout=INSTALL_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise InfrastructureError(
                "the packages that the upstream's tests need cannot be installed",
                why=redact_text(done.tail[-500:].strip()),
                fix="see whether the package index can be reached and has these versions, then run again",
            )
        shutil.rmtree(work / "bin", ignore_errors=True)
        seal.write_text(sealed(name, tree_digest(DirectoryTree(root=work))), encoding="utf-8")
        work.chmod(0o755)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder
