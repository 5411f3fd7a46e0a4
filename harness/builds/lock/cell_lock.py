"""Everything a cell consists of, pinned: the answer to "what exactly was tested?", ready to be exported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.builds.lock.omitted_packages import omitted_packages
from harness.errors import InputError
from harness.sources.packages.lockfile import LockedPackage, normal_name, parse_lock

# A CANN image is named after version, chip, system and Python (cann-container-image of Ascend).
CHIPS = {"a2": "910b", "a3": "a3", "a5": "950", "310p": "310p", "910": "910"}
IMAGE_SYSTEM = "ubuntu22.04"
# SOC_VERSION, for which vllm-ascend compiles its kernels (verl docker/ascend).
SOC_VERSIONS = {"a2": "ascend910b1", "a3": "ascend910_9392"}
# Layers by how seldom they change; a package belongs to the first whose roots need it.
LAYERS = (
    ("torch", ("torch", "torch-npu", "torchvision", "torchaudio")),
    ("vllm", ("vllm",)),
    ("vllm-ascend", ("vllm-ascend", "triton-ascend")),
    ("training", ()),
    ("verl", ("verl",)),
)
# Package -> how its wheel is made in its repository's folder, where pip alone cannot: it compiles against the
# torch that is installed, and with submodules (README and setup.py of Ascend/pytorch v7.2.RC1.alpha002). A
# commit of a submodule cannot be fetched alone from every server, so these come whole.
WHEELS_BY = {
    "torch-npu": (
        "git submodule update -q --init --recursive",
        "{install} pyyaml setuptools wheel auditwheel",
        "bash ci/build.sh --python={minor}",
    )
}
# Programs it does that with, by the names of Debian's packages. Its setup.py fetches an archive with wget.
TOOLS_OF = {"torch-npu": ("cmake", "g++", "make", "unzip", "wget")}
PIP = "python3 -m pip install"
SAFE = re.compile(r"[A-Za-z0-9][\w.+:/@~-]*")


@dataclass(frozen=True, kw_only=True)
class SourcePackage:
    """A package built from a repository at a commit or tag, with the environment its build needs.

    tree: the id of the commit's tree, "" where no mirror has told it. It is the same in every clone, also
    where history was rewritten.
    """

    package: str
    version: str
    commit: str
    repository: str
    env: Mapping[str, str]
    tree: str = ""

    @property
    def abbreviated(self) -> bool:
        """Whether the commit is named by its first digits: such a name cannot be fetched, only looked up."""
        return re.fullmatch(r"[0-9a-f]{7,39}", self.commit) is not None

    @property
    def settings(self) -> str:
        """The build's environment, as it stands in front of a command."""
        return "".join(f"{name}={value} " for name, value in sorted(self.env.items()))

    def installation(self, python: str) -> tuple[str, ...]:
        """Commands that install it with pip, run in the folder with the commit; `python` is the cell's."""
        made = self.wheel(python, PIP)
        if not made:
            return (f"{self.settings}{PIP} --no-deps .",)
        return (*made, f"{PIP} --no-deps {self.wheel_file}")

    def wheel(self, python: str, install: str) -> tuple[str, ...]:
        """Commands that make `wheel_file` there, `install` being what installs; none where pip makes it."""
        minor = ".".join(python.split(".")[:2])
        steps = WHEELS_BY.get(self.package, ())
        return tuple(step.format(minor=minor, install=install) for step in steps)

    @property
    def wheel_file(self) -> str:
        """Where its own script leaves the wheel, as a pattern of the shell."""
        return f"dist/{self.package.replace('-', '_')}-*.whl"


@dataclass(frozen=True, kw_only=True)
class PatchFile:
    """A patch of ours by content; `file` is its path in this checkout."""

    id: str
    file: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class CellLock:
    """A cell, pinned. `image_digest` is "" where nobody has resolved the tag; `inconsistencies` are known
    contradictions of what the cell's source publishes; `compiled` are packages of the index that are built
    here from their source package, because their build is told something by `build_env`; `left_out` are
    packages of the resolution that the cell's device does not need, and why; `unread` are packages from
    source whose own requirements took no part in the resolution: what they need is not pinned. `beside` are
    those whose requirements were resolved over the pins, with what each asks for that the pins overrule.
    `apart` are parts of the row that no export installs: title and version -> repository."""

    cell: str
    title: str
    axes: Mapping[str, str]
    python: str
    arch: str
    image: str
    image_digest: str
    packages: tuple[LockedPackage, ...]
    from_source: tuple[SourcePackage, ...]
    overrides: tuple[str, ...]
    patches: tuple[PatchFile, ...]
    build_env: Mapping[str, str]
    compiled: tuple[str, ...]
    indexes: tuple[str, ...]
    inconsistencies: tuple[str, ...]
    omitted: Mapping[str, str] = field(default_factory=dict)
    unpinned_sources: tuple[str, ...] = ()
    overruled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_installed: Mapping[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The base image as a build names it: by digest where that is known."""
        return f"{_without_tag(self.image)}@{self.image_digest}" if self.image_digest else self.image

    @property
    def notices(self) -> tuple[str, ...]:
        """What this lock leaves open, each with what closes it."""
        found = []
        if not self.image_digest:
            found.append(
                f"The base image {self.image} is named by a tag, which may be another image any day. Pin it: "
                f"`docker buildx imagetools inspect {self.image}` tells its digest, then "
                f"`npu-matrix --base-image {_without_tag(self.image)}@sha256:DIGEST lock {self.cell}`."
            )
        for name, repository in self.not_installed.items():
            found.append(
                f"{name} of {repository} is a part of this row and not installed by this export: it "
                "changes other packages in place. Of what it carries, the listed patches are applied here."
            )
        treeless = [f"{one.package} {one.commit}" for one in self.from_source if not one.tree]
        if treeless:
            found.append(
                "These are named by a commit or tag alone, and their trees are not known: "
                f"{', '.join(treeless)}. NPU_MATRIX_MIRRORS, a folder of clones with these, tells, and "
                f"so does `npu-matrix lock {self.cell} --ask-upstream`, which fetches commits without files."
            )
        isolated = [one.package for one in self.from_source if one.package not in WHEELS_BY]
        if isolated:
            found.append(
                "These are built from source, each with the build tools that are the newest on that day: "
                f"{', '.join(isolated)}. pip fetches them for the build alone (build isolation)."
            )
        found += [
            f"{one.package} is compiled by the script of its repository. That needs "
            f"{', '.join(TOOLS_OF[one.package])}, and fetches submodules and an archive from where these are."
            for one in self.from_source
            if one.package in WHEELS_BY
        ]
        if self.unpinned_sources:
            found.append(
                "What these packages from source need beside the pins is neither pinned nor installed: "
                f"{', '.join(self.unpinned_sources)}. On hardware their authors install them over their "
                "pins, which no resolver accepts; `python3 -m pip check` lists what is missing afterwards. "
                "`npu-matrix lock` pins it where NPU_MATRIX_MIRRORS, a folder of clones, has their commits, "
                "and these say in a plain list or file what they require."
            )
        for name, wishes in self.overruled.items():
            if wishes:
                found.append(
                    f"{name} asks for other versions than the pins, which stay: {', '.join(wishes)}. "
                    "`python3 -m pip check` names these."
                )
        return tuple(found)

    @property
    def tools(self) -> tuple[str, ...]:
        """Programs that installing it needs, by the names of Debian's packages, which are the same."""
        of_sources = {tool for one in self.from_source for tool in ("git", *TOOLS_OF.get(one.package, ()))}
        return (*(("patch",) if self.patches else ()), *sorted(of_sources))

    def layers(self) -> tuple[tuple[str, tuple[LockedPackage, ...]], ...]:
        """Packages by layer, in the order of installation; empty layers are left out."""
        needed_by = _ancestors(self.packages)
        placed: dict[str, list[LockedPackage]] = {name: [] for name, _roots in LAYERS}
        for package in self.packages:
            placed[_layer(package.name, needed_by[package.name])].append(package)
        return tuple((name, tuple(found)) for name, found in placed.items() if found)

    def options(self, packages: Sequence[LockedPackage]) -> str:
        """pip's options for installing `packages` of one layer."""
        built = [package.name for package in packages if package.name in self.compiled]
        no_binary = f" --no-binary {','.join(built)}" if built else ""
        return f"--no-deps --require-hashes{no_binary}"

    def to_json(self) -> dict[str, Any]:
        """Schema `npu-matrix.lock`."""
        names = {
            "omitted": "left_out",
            "unpinned_sources": "unread",
            "overruled": "beside",
            "not_installed": "apart",
        }
        members = {names.get(name, name): value for name, value in asdict(self).items()}
        return {"schema": {"name": "npu-matrix.lock", "version": 1}, **members}


def make_lock(
    cell: Mapping[str, Any],
    pins: Mapping[str, Any],
    platform: Mapping[str, Any],
    patches: Sequence[Mapping[str, Any]],
    lock_text: str,
    image_digest: str = "",
    base_image: str = "",
    read: Sequence[str] | None = None,
    not_installed: Mapping[str, str] | None = None,
) -> CellLock:
    """Pin a cell. `cell`: id, title, axes, findings as the plan's JSON has them; facets as checks see them;
    `lock_text`: artifact `lock.txt` of check `resolve`; base_image: another one than the cell's own; read:
    packages from source whose requirements are in `lock_text`, None where that is not known; apart: as in
    `CellLock`.

    InputError for a value that could not stand in a build file.
    """
    env = pins.get("build_env", {})
    simulated = cell["axes"].get("device") == "sim"
    soc = "" if simulated else cell["axes"].get("soc", "").lower()
    packages = parse_lock(lock_text)
    unneeded = omitted_packages(packages, "sim") if simulated else {}
    image, digest = _reference(base_image or _image(cell["axes"], str(platform["python"])))
    source = tuple(
        SourcePackage(
            package=_safe(normal_name(item["package"])),
            version=_safe(item["version"]),
            commit=_safe(item["commit"]),
            repository=_safe(item["repository"]),
            env=_safe_env(env.get(item["package"], {})),
        )
        for item in pins.get("from_source", ())
    )
    soc_version = {"SOC_VERSION": SOC_VERSIONS[soc]} if soc in SOC_VERSIONS else {}
    return CellLock(
        cell=cell["id"],
        title=cell["title"],
        axes=dict(cell["axes"]),
        python=_safe(str(platform["python"])),
        arch=_safe(str(platform["arch"])),
        image=image,
        image_digest=_digest(image_digest) or digest,
        packages=tuple(package for package in packages if package.name not in unneeded),
        from_source=source,
        overrides=tuple(pins.get("overrides", ())),
        patches=tuple(
            PatchFile(id=p["id"], file=_safe(p["file"]), digest=_safe(p["digest"])) for p in patches
        ),
        compiled=tuple(sorted(_safe(normal_name(name)) for name in env)),
        build_env={**_merged_env(env), **soc_version},
        indexes=tuple(pins.get("index", ())),
        inconsistencies=tuple(f"{f['what']} ({f['source']})" for f in cell.get("findings", ())),
        omitted=unneeded,
        unpinned_sources=()
        if read is None
        else tuple(one.package for one in source if one.package not in read),
        not_installed=dict(not_installed or {}),
    )


def _image(axes: Mapping[str, str], python: str) -> str:
    cann = axes.get("cann", "")
    minor = ".".join(python.split(".")[:2])
    chip = CHIPS.get(axes.get("soc", "").lower(), "")
    if not cann or not chip or axes.get("device") == "sim":
        # On the simulated device CANN is simulated: any image with that Python will do.
        return _safe(f"python:{minor}-slim")
    return _safe(f"ascend/cann:{cann.lower()}-{chip}-{IMAGE_SYSTEM}-py{minor}")


def _reference(text: str) -> tuple[str, str]:
    """`name:tag` and the digest of `name:tag@sha256:...`; "" for a part that is not there."""
    name, _, digest = _safe(text).partition("@")
    return name, _digest(digest)


def _without_tag(image: str) -> str:
    """A registry may have a port: the tag stands behind the last part of the path."""
    path, slash, last = image.rpartition("/")
    return f"{path}{slash}{last.partition(':')[0]}"


def _digest(text: str) -> str:
    if text and not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        raise InputError(f"{text!r} is no image digest", fix="give sha256: and 64 hex digits")
    return text


def _merged_env(env: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for values in env.values():
        merged |= _safe_env(values)
    return merged


def _safe_env(values: Mapping[str, str]) -> dict[str, str]:
    return {_safe(name): _safe(str(value)) for name, value in values.items()}


def _safe(text: str) -> str:
    """`text` when it may stand in a shell script and a Dockerfile as it is."""
    if not SAFE.fullmatch(text):
        raise InputError(
            f"{text!r} cannot stand in a build file",
            why="only letters, digits and .+:/@~_- are allowed there",
            fix="correct the value in matrix.yaml",
        )
    return text


def _ancestors(packages: Sequence[LockedPackage]) -> dict[str, set[str]]:
    """Name -> every package that needs it, directly or not, and itself."""
    parents = {p.name: {normal_name(via) for via in p.via if not via.startswith("-")} for p in packages}
    found: dict[str, set[str]] = {}
    for name in parents:
        reached, waiting = {name}, [name]
        while waiting:
            new = parents.get(waiting.pop(), set()) - reached
            reached |= new
            waiting.extend(new)
        found[name] = reached
    return found


def _layer(name: str, ancestors: set[str]) -> str:
    for layer, roots in LAYERS:
        if layer == "verl":
            break
        if ancestors & set(roots):
            return layer
    return "verl" if name == "verl" else "training"
