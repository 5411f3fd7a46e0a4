"""A lock as a build context: Dockerfile, requirements of each layer, patches, and the checks inside."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from harness.builds.engines.cann_environment import BUILD_ENV
from harness.builds.export.cell_expectations import check_files
from harness.builds.export.lock_formats import one_line
from harness.builds.lock.cell_lock import CellLock
from harness.builds.lock.layer_contents import fetch_commands, layer_contents, pip_requirements
from harness.builds.lock.lock_notices import lock_notices
from harness.errors import InputError, Location
from harness.package import shipped_file
from harness.sources.git.branch_patches import read_patch_content

TEMPLATE = "docker/cell.Dockerfile.j2"
# Options of RUN: pip's configuration, which may have credentials, and a certificate. No layer contains them.
SECRETS = (
    "--mount=type=secret,id=pip.conf,target=/etc/pip.conf,required=false "
    "--mount=type=secret,id=ca.pem,required=false "
)


def docker_context(lock: CellLock, root: Path, *, buildkit: bool = True) -> dict[str, bytes]:
    """The files of a build context: the Dockerfile, one requirements file for each layer, the patches.

    root: the checkout with the patches. buildkit: whether the builder can mount pip's configuration as a
    secret. InputError if a patch there is not the locked one.
    """
    checks = check_files(lock)
    texts = {"Dockerfile": _dockerfile(lock, tuple(checks), buildkit=buildkit), **checks}
    if lock.build_tools:
        texts["layers/build-tools.txt"] = pip_requirements(lock, lock.build_tools)
    for layer in layer_contents(lock):
        if layer.packages:
            texts[f"layers/{layer.name}.txt"] = pip_requirements(lock, layer.packages)
    return {name: text.encode() for name, text in texts.items()} | patch_contents(lock, root)


def patch_contents(lock: CellLock, root: Path) -> dict[str, bytes]:
    """Exported path of each patch of the lock -> its content. root: the checkout with the patches.

    InputError if a patch there is not the locked one.
    """
    files = {}
    for patch in lock.patches:
        data = read_patch_content(patch.file, patch.digest, root)
        if data is None:
            raise InputError(
                f"the patch {patch.id} has changed since the lock was made",
                where=Location(root / patch.file),
                fix="make the lock again, or use the checkout it was made from",
            )
        files[patch.exported] = data
    return files


def _dockerfile(lock: CellLock, check_files: Sequence[str], *, buildkit: bool) -> str:
    # The import takes 0.2 s, and the report imports this module.
    import jinja2

    # A Dockerfile is not markup; every value has passed the check of `CellLock` or the filter `comment`.
    environment = jinja2.Environment(  # noqa: S701
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["comment"] = one_line
    try:
        template = environment.from_string(shipped_file(TEMPLATE).read_text("utf-8"))
    except OSError as error:
        raise InputError(
            "the Dockerfile template is missing", where=Location(shipped_file(TEMPLATE))
        ) from error
    return template.render(
        lock=lock,
        notices=lock_notices(lock),
        layers=layer_contents(lock),
        fetch=fetch_commands,
        check_files=check_files,
        secrets=SECRETS if buildkit else "",
        set_env=f"{BUILD_ENV};",
        uv=version("uv"),
    )
