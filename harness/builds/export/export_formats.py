"""The formats in which a lock is exported, with the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.builds.export.container_files import (
    ContainerOptions,
    as_bake,
    as_compose,
    as_devcontainer,
    as_kubernetes,
)
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
#: Formats that run the image of a build context, which is written with them.
CONTAINER_FILES: Mapping[str, Callable[[CellLock, ContainerOptions], str]] = {
    "compose": as_compose,
    "bake": as_bake,
    "devcontainer": as_devcontainer,
    "kubernetes": as_kubernetes,
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


def export_files(lock: CellLock, shape: str, root: Path, options: ContainerOptions) -> dict[str, bytes]:
    """File name -> content of one format, with the main file first and the files that it needs.

    root: the checkout with the patches. InputError if a patch is not the locked one.
    """
    if shape in CONTAINER_FILES:
        main = {FILE_NAMES[shape]: CONTAINER_FILES[shape](lock, options).encode()}
        return main | docker_context(lock, root, buildkit=options.buildkit)
    if shape == "dockerfile":
        return docker_context(lock, root, buildkit=options.buildkit)
    texts = {FILE_NAMES[shape]: EXPORTS[shape](lock)}
    if shape in {"script", "conda"}:
        texts["install.sh"] = as_script(lock, patch_contents(lock, root))
    return {name: text.encode() for name, text in texts.items()}
