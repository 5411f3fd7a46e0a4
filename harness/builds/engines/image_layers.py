"""The layers of a cell's image. Layers that change rarely are at the bottom, so that many cells share them.

From the bottom: CANN base, Python, torch / torch_npu, vllm, vllm-ascend, dependencies of verl, verl, patches.
The key of a layer is a digest of its content and of the key below it; each distinct key is built once. The
code that runs in cells is mounted read-only and not part of the image, so changing it rebuilds no layer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.builds.engines.cann_environment import BUILD_ENV
from harness.builds.lock.cell_lock import TOOLS_OF, CellLock, LockedSource
from harness.builds.lock.layer_contents import LayerContent, fetch_commands, layer_contents, requirements_text
from harness.digest import digest_bytes, digest_json

# Part of every key: increase it when layers are built differently.
LAYOUT = 2
PREFIX = "/cell/venv"
# The files of the empty virtual environment, one in each line.
OWN_FILES = "/cell/own-files.txt"
INSTALLER = "/run/npu-matrix/uv"
INDEX_SETTINGS = "/run/npu-matrix/settings"
READ_SETTINGS = f"set -a; source {INDEX_SETTINGS}; set +a"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of an image: `files` (absolute path -> content) are added, then bash commands run.

    key: digest of this layer and those below it. below: key of the layer below.
    """

    name: str
    key: str
    below: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """Patched files.

    files: path below site-packages -> content, None for a file that the patches remove.
    before: path -> digest that the file must have before patching, "" for a new file.
    """

    files: Mapping[str, bytes | None]
    before: Mapping[str, str]


def image_layers(lock: CellLock, base: str, patched: PatchedTree | None = None) -> tuple[Layer, ...]:
    """The layers of a cell above the base image with the id `base`.

    A package that is built from a repository is part of the layer with its name.
    """
    chain = _LayerChain(digest_json({"layout": LAYOUT, "base": base, "arch": lock.arch}))
    create = f"{INSTALLER} venv --quiet --no-project --python python3 {PREFIX}"
    chain.add("python", {}, (create, f"find {PREFIX} ! -type d > {OWN_FILES}"))
    for content in layer_contents(lock):
        _add_packages(chain, content, lock)
    if patched is not None and patched.files:
        chain.add("patches", *_patching(patched, lock.python))
    return chain.layers


class _LayerChain:
    """Collects layers, each with the key of the one below it."""

    def __init__(self, base: str) -> None:
        self.layers: tuple[Layer, ...] = ()
        self._key = base

    def add(self, name: str, files: Mapping[str, bytes], commands: Sequence[str]) -> None:
        content = {
            "below": self._key,
            "name": name,
            "files": {path: digest_bytes(data) for path, data in files.items()},
            "commands": list(commands),
        }
        key = digest_json(content)[:32]
        layer = Layer(name=name, key=key, below=self._key, files=dict(files), commands=tuple(commands))
        self.layers = (*self.layers, layer)
        self._key = key


def _add_packages(chain: _LayerChain, content: LayerContent, lock: CellLock) -> None:
    commands = [READ_SETTINGS]
    if content.compiled or content.sources:
        # Only layers that compile packages may depend on the device.
        commands += [BUILD_ENV]
        commands += [f"export {key}={shlex.quote(value)}" for key, value in sorted(lock.build_env.items())]
    files: dict[str, bytes] = {}
    if content.packages:
        requirements_file = f"/cell/layers/{content.name}.txt"
        files[requirements_file] = requirements_text(content.packages).encode()
        binary = "".join(f" --no-binary {package}" for package in content.compiled)
        commands.append(f"{_install()} --require-hashes{binary} --requirements {requirements_file}")
    commands += [command for source in content.sources for command in _from_source(source, lock.python)]
    chain.add(content.name, files, commands)


def _install(alone: str = "--no-deps ") -> str:
    # `$INDEX_ARGUMENTS` is part of the settings. Files are copied, because links into the mounted cache would
    # break.
    return (
        f"{INSTALLER} pip install --quiet --python {PREFIX}/bin/python --link-mode copy {alone}"
        "$INDEX_ARGUMENTS"
    )


def _from_source(source: LockedSource, python: str) -> tuple[str, ...]:
    """Commands that fetch a source package from a mounted mirror or upstream, and install it."""
    folder, mirror = f"/tmp/source-{source.package}", f"/run/npu-matrix/git/{source.package}"  # noqa: S108 - in the image
    return (
        f"git init -q {folder}",
        f"if [ -d {mirror} ]; then from={mirror}; else from={source.repository}; fi",
        *fetch_commands(f"git -C {folder}", '"$from"', source),
        *([f'test "$(git -C {folder} rev-parse HEAD^{{tree}})" = {source.tree}'] if source.tree else []),
        *(_build_with_script(source, python, folder) or [f"{source.settings}{_install()} {folder}"]),
        f"rm -rf {folder}",
    )


def _build_with_script(source: LockedSource, python: str, folder: str) -> tuple[str, ...]:
    """Commands for a package whose repository has its own build script; () for others."""
    build = source.wheel(python, _install(alone=""))
    if not build:
        return ()
    tools = " ".join(TOOLS_OF[source.package])
    message = f"the base image has no $tool, which building {source.package} needs"
    return (
        f'for tool in {tools}; do command -v "$tool" || {{ echo "{message}" >&2; exit 1; }}; done',
        f'export PATH={PREFIX}/bin:"$PATH"',
        f"cd {folder}",
        *build,
        f"{_install()} {source.wheel_file}",
        "cd /",
    )


def _patching(patched: PatchedTree, python: str) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """The files and commands that verify the original files and install the patched ones."""
    minor = ".".join(python.split(".")[:2])
    site = f"{PREFIX}/lib/python{minor}/site-packages"
    new = {path: data for path, data in sorted(patched.files.items()) if data is not None}
    removed = sorted(path for path, data in patched.files.items() if data is None)
    files = {f"/cell/patched/{path}": data for path, data in new.items()}
    sums = "".join(f"{digest}  {path}\n" for path, digest in sorted(patched.before.items()) if digest)
    files["/cell/patched.sha256"] = sums.encode()
    added = [path for path in new if not patched.before.get(path)]
    commands = [f"cd {site}"]
    if sums:
        commands.append("sha256sum --quiet --check /cell/patched.sha256")
    commands += [f"test ! -e {shlex.quote(path)}" for path in added]
    if new:
        commands.append("cp -r /cell/patched/. .")
    commands += [f"rm {shlex.quote(path)}" for path in removed]
    return files, tuple(commands)
