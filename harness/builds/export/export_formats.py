"""The formats in which a lock is exported, with the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.builds.export.container_files import as_bake, as_compose, as_devcontainer, as_kubernetes
from harness.builds.export.docker_context import docker_context, patch_contents
from harness.builds.export.install_script import as_script
from harness.builds.export.lock_formats import as_conda, as_json, as_markdown, as_requirements
from harness.builds.lock.cell_lock import CellLock

#: Formats that consist of one file and need nothing but the lock, for the report.
EXPORTS: Mapping[str, Callable[[CellLock], str]] = {
    "requirements": as_requirements,
    "script": as_script,
    "markdown": as_markdown,
    "conda": as_conda,
    "json": as_json,
}
#: Format -> its main file.
FILE_NAMES: Mapping[str, str] = {
    "requirements": "requirements.txt",
    "script": "install.sh",
    "markdown": "CELL.md",
    "conda": "environment.yml",
    "json": "cell.lock.json",
    "dockerfile": "Dockerfile",
    "compose": "compose.yaml",
    "bake": "docker-bake.json",
    "devcontainer": ".devcontainer/devcontainer.json",
    "kubernetes": "job.yaml",
}


def export_files(lock: CellLock, shape: str, root: Path, cards: int) -> dict[str, bytes]:
    """File name -> content of one format, with the main file first and the files that it needs.

    root: the checkout with the patches. cards: NPUs of the host that the container gets.
    InputError if a patch is not the locked one.
    """
    if shape == "script":
        texts = {"install.sh": as_script(lock, patch_contents(lock, root))}
    elif shape == "conda":
        texts = {
            "environment.yml": as_conda(lock),
            "install.sh": as_script(lock, patch_contents(lock, root)),
            "requirements.txt": as_requirements(lock),
        }
    elif shape in EXPORTS:
        texts = {FILE_NAMES[shape]: EXPORTS[shape](lock)}
    else:
        texts = _container_file(lock, shape, cards)
        return {name: text.encode() for name, text in texts.items()} | docker_context(lock, root)
    return {name: text.encode() for name, text in texts.items()}


def _container_file(lock: CellLock, shape: str, cards: int) -> dict[str, str]:
    makers: Mapping[str, Callable[[], str]] = {
        "compose": lambda: as_compose(lock, cards),
        "bake": lambda: as_bake(lock),
        "devcontainer": lambda: as_devcontainer(lock, cards),
        "kubernetes": lambda: as_kubernetes(lock, cards),
    }
    return {FILE_NAMES[shape]: makers[shape]()} if shape in makers else {}
