"""The lock of a cell: the exact version and digest of everything the cell consists of, ready for export."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.builds.lock.base_image import SOC_VERSIONS, BaseImage, default_base_image
from harness.builds.lock.omitted_packages import has_cuda_torch, omitted_packages
from harness.errors import InputError
from harness.matrix.model.environment_facets import UNREAD, PinsFacet, PlatformFacet
from harness.measurements import read_shape
from harness.serialisation import json_form
from harness.sources.packages.lockfile import LockedPackage, normal_name, parse_lock
from harness.sources.packages.wheel_variants import VariantWheel

# The layers of an image; those that change least often come first. A package belongs to the first layer whose
# roots require it.
LAYERS = (
    ("torch", ("torch", "torch-npu", "torchvision", "torchaudio")),
    ("vllm", ("vllm",)),
    ("vllm-ascend", ("vllm-ascend", "triton-ascend")),
    ("training", ()),
    ("verl", ("verl",)),
)
# Package -> commands that build its wheel in its repository, for packages that pip cannot build.
# torch-npu compiles against the installed torch and needs its submodules (README and setup.py of
# Ascend/pytorch v7.2.RC1.alpha002). Not every server allows fetching a single commit, so submodules are
# fetched completely.
WHEELS_BY = {
    "torch-npu": (
        "git submodule update -q --init --recursive",
        "{install} pyyaml setuptools wheel auditwheel",
        "bash ci/build.sh --python={minor}",
    )
}
# Programs that this build needs, as Debian packages. The setup.py of torch-npu fetches an archive with wget.
TOOLS_OF = {"torch-npu": ("cmake", "g++", "make", "unzip", "wget")}
PIP = "python3 -m pip install"
# setuptools-scm and the builds of kernels need the submodules, which a fetch of one commit leaves empty.
SUBMODULES = "if [ -f .gitmodules ]; then git submodule update -q --init --recursive; fi"
# Packages that PyTorch also builds for the CPU, as versions like 2.9.0+cpu, and the index that has these.
CPU_BUILDS = frozenset({"torch", "torchvision", "torchaudio"})
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SAFE = re.compile(r"[A-Za-z0-9][\w.+:/@~-]*")
_SAFE_URL = re.compile(r"https?://[\w.+:/~%-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class LockedSource:
    """A package built from a repository at a commit or tag, with the environment its build needs.

    tree: the id of the commit's tree, "" when no mirror has the commit. It stays the same when history is
    rewritten.
    """

    package: str
    version: str
    commit: str
    repository: str
    env: Mapping[str, str]
    tree: str = ""

    @property
    def abbreviated(self) -> bool:
        """Whether the commit id is abbreviated; git can look such an id up in a clone but not fetch it."""
        return re.fullmatch(r"[0-9a-f]{7,39}", self.commit) is not None

    @property
    def settings(self) -> str:
        """The environment variables of the build, as the prefix of a shell command."""
        return "".join(f"{name}={value} " for name, value in sorted(self.env.items()))

    def installation(self, python: str, *, isolated: bool) -> tuple[str, ...]:
        """Commands that install the package with pip, run in its repository. python: the cell's version.

        isolated: let pip fetch the build tools; otherwise they are installed already.
        """
        build = self.wheel(python, PIP)
        if not build:
            options = "--no-deps" if isolated else "--no-deps --no-build-isolation"
            # Only the commit is fetched, without the tags from which setuptools-scm computes the version.
            version = f"SETUPTOOLS_SCM_PRETEND_VERSION={self.version} "
            return (SUBMODULES, f"{version}{self.settings}{PIP} {options} .")
        return (*build, f"{PIP} --no-deps {self.wheel_file}")

    def wheel(self, python: str, install: str) -> tuple[str, ...]:
        """Commands that build `wheel_file`, or none if pip builds it. install: installation command."""
        minor = ".".join(python.split(".")[:2])
        steps = WHEELS_BY.get(self.package, ())
        return tuple(step.format(minor=minor, install=install) for step in steps)

    @property
    def wheel_file(self) -> str:
        """Where the build script of the repository leaves the wheel, as a shell pattern."""
        return f"dist/{self.package.replace('-', '_')}-*.whl"


@dataclass(frozen=True, kw_only=True)
class PatchFile:
    """A patch of this project. file: its path in the checkout. digest: SHA-256 of its content."""

    id: str
    file: str
    digest: str

    @property
    def exported(self) -> str:
        """Its path in a build context: the same one, unless a Dockerfile could not name it."""
        return self.file if SAFE.fullmatch(self.file) else f"patches/{self.digest}.patch"


@json_form(omitted="left_out", unpinned_sources="unread", overruled="beside", not_installed="apart")
@dataclass(frozen=True, kw_only=True)
class CellLock:
    """The lock of one cell. Its JSON has the schema `npu-matrix.lock`.

    image_digest: "" when the tag has not been resolved. compiled: packages of the index that are built here
    from their source package, because `build_env` configures their build. inconsistencies: known
    contradictions in what the cell's source publishes. omitted: resolved packages that the cell's device does
    not need, and why. unpinned_sources: packages from source whose requirements were not part of the
    resolution. overruled: packages from source that were resolved together with the pins -> those of their
    requirements that the pins contradict. not_installed: title and version -> repository of parts of the
    stack that no export installs. base_python: the Python in the base image, "" if that is not known.
    image_notice: what a user must know about the base image. package_index: package -> indexes that have it
    and that pip does not search by default. package_env: package -> variables of its build. wheels: package
    with a configured build -> its published wheel for this chip, which is installed instead. incomplete:
    package whose source package lacks submodules -> their paths. without_wheel: packages that have only a
    source package for this platform. variants: package that is compiled -> its wheel variant for this
    chip, which pip and uv do not choose. fetched: package -> its wheel variant that exports with commands
    download and install instead of compiling. build_tools: what the builds need, installed before them.
    tooled: packages whose build needs nothing else.
    """

    cell: str
    title: str
    axes: Mapping[str, str]
    python: str
    arch: str
    image: str
    image_digest: str
    packages: tuple[LockedPackage, ...]
    from_source: tuple[LockedSource, ...]
    overrides: tuple[str, ...]
    patches: tuple[PatchFile, ...]
    build_env: Mapping[str, str]
    compiled: tuple[str, ...]
    inconsistencies: tuple[str, ...]
    omitted: Mapping[str, str] = field(default_factory=dict)
    unpinned_sources: tuple[str, ...] = ()
    overruled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_installed: Mapping[str, str] = field(default_factory=dict)
    base_python: str = ""
    image_notice: str = ""
    package_index: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    package_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    wheels: Mapping[str, str] = field(default_factory=dict)
    incomplete: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without_wheel: tuple[str, ...] = ()
    variants: Mapping[str, VariantWheel] = field(default_factory=dict)
    fetched: Mapping[str, VariantWheel] = field(default_factory=dict)
    build_tools: tuple[LockedPackage, ...] = ()
    tooled: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The base image as a build refers to it: by digest when that is known."""
        return f"{without_tag(self.image)}@{self.image_digest}" if self.image_digest else self.image

    @property
    def on_npu(self) -> bool:
        """Whether the cell needs CANN and a driver, not their simulation."""
        return self.axes.get("device", "npu") == "npu" and "soc" in self.axes

    @property
    def has_cuda_torch(self) -> bool:
        """Whether the cell is for an NPU and its torch needs CUDA libraries."""
        return self.on_npu and has_cuda_torch(self.packages)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The indexes of `package_index`, each once."""
        return self.indexes_of(self.packages)

    def indexes_of(self, packages: Iterable[LockedPackage]) -> tuple[str, ...]:
        """The additional indexes that these packages come from, each once."""
        urls = (url for package in packages for url in self.package_index.get(package.name, ()))
        return tuple(dict.fromkeys(urls))

    @property
    def python_minor(self) -> str:
        """The cell's Python without its patch release, as `3.11`."""
        return ".".join(self.python.split(".")[:2])

    @property
    def tools(self) -> tuple[str, ...]:
        """Programs that the installation needs; their Debian packages have the same names."""
        of_sources = {tool for one in self.from_source for tool in ("git", *TOOLS_OF.get(one.package, ()))}
        download = ("curl",) if self.fetched else ()
        return (*(("patch",) if self.patches else ()), *download, *sorted(of_sources))

    def layers(self) -> tuple[tuple[str, tuple[LockedPackage, ...]], ...]:
        """Packages by layer, in the order of installation, without empty layers."""
        needed_by = _ancestors(self.packages)
        placed: dict[str, list[LockedPackage]] = {name: [] for name, _roots in LAYERS}
        for package in self.packages:
            placed[_layer(package.name, needed_by[package.name])].append(package)
        return tuple((name, tuple(members)) for name, members in placed.items() if members)

    def options(self, packages: Sequence[LockedPackage]) -> str:
        """pip's options for installing `packages` of one layer."""
        built = [package.name for package in packages if package.name in self.compiled]
        no_binary = f" --no-binary {','.join(built)}" if built else ""
        made_here = {package.name for package in packages} & {*self.compiled, *self.without_wheel}
        isolation = " --no-build-isolation" if made_here and not self.isolated(*made_here) else ""
        return f"--no-deps --require-hashes{no_binary}{isolation}"

    def isolated(self, *packages: str) -> bool:
        """Whether pip must fetch the build tools of one of these packages."""
        return not set(packages) <= set(self.tooled)

    def build_env_of(self, package: str) -> Mapping[str, str]:
        """The environment variables of the build of one package of the index."""
        return self.package_env.get(package, {})

    def with_variants(self, found: Mapping[str, VariantWheel]) -> CellLock:
        """The lock with these wheel variants: those that a digest pins are fetched instead of compiled."""
        pinned = {name: one for name, one in found.items() if _can_be_fetched(one)}
        return replace(
            self,
            compiled=tuple(name for name in self.compiled if name not in pinned),
            variants={name: one for name, one in found.items() if name not in pinned},
            fetched=pinned,
        )

    def with_sources(self, sources: Sequence[LockedSource]) -> CellLock:
        """The lock in which these packages are built from repositories instead of source packages."""
        names = {source.package for source in sources}
        return replace(
            self,
            packages=tuple(package for package in self.packages if package.name not in names),
            compiled=tuple(name for name in self.compiled if name not in names),
            from_source=(*self.from_source, *sources),
        )


@dataclass(frozen=True, kw_only=True)
class LockFacets:
    """The facets of a cell from which its lock is made."""

    pins: PinsFacet
    platform: PlatformFacet
    patches: tuple[PatchFile, ...] = ()

    @classmethod
    def read(cls, facets: Mapping[str, Any]) -> LockFacets:
        """The facets in a mapping of facet names to JSON values; `pins` and `platform` are required.

        InputError if the patches of the cell are not known.
        """
        names = ("patches[verl]", "patches[vllm_ascend]", "patches[others]")
        patches = [patch for name in names for patch in facets.get(name, ())]
        for unread in (patch[UNREAD] for patch in patches if UNREAD in patch):
            raise InputError(
                "the patches of this cell are not known", why=unread["reason"], fix=unread["remedy"]
            )
        return read_shape(cls, {"pins": facets["pins"], "platform": facets["platform"], "patches": patches})


def make_lock(
    facets: LockFacets,
    lock_text: str,
    *,
    cell: str,
    title: str,
    axes: Mapping[str, str],
    inconsistencies: Sequence[str] = (),
    image_digest: str = "",
    base_image: str = "",
    registry: str = "",
    resolved_sources: Collection[str] | None = None,
    wheels: Mapping[str, str] | None = None,
    without_wheel: Collection[str] = (),
    searched: Collection[str] | None = None,
    not_installed: Mapping[str, str] | None = None,
) -> CellLock:
    """The lock of a cell.

    lock_text: artifact `lock.txt` of the check `resolve`. cell: id of the cell. inconsistencies: known
    contradictions in what the cell's source publishes. base_image: replaces the default base image.
    registry: where that default is published (see `default_base_image`). wheels: package -> its published
    wheel that fits the cell's chip and so need not be compiled. resolved_sources: packages from source whose
    requirements are part of `lock_text`; None if that is not known. searched: indexes besides the usual ones,
    without which the resolution found no packages; None if not known. InputError for a value that cannot be
    used in a build file.
    """
    pins, python = facets.pins, facets.platform.python
    packages = parse_lock(lock_text)
    kind = axes.get("device") or ("npu" if "soc" in axes else "")
    omitted = omitted_packages(packages, kind)
    base = _base_image(axes, python, base_image, registry)
    image, digest = _reference(base.reference)
    sources = _sources(pins)
    fitting = {
        name: file for name, file in (wheels or {}).items() if name in map(normal_name, pins.build_env)
    }
    known = {source.package for source in sources} if resolved_sources is None else resolved_sources
    return CellLock(
        cell=cell,
        title=title,
        axes=dict(axes),
        python=_safe(python),
        arch=_safe(facets.platform.arch),
        image=image,
        image_digest=_digest(image_digest) or digest,
        packages=tuple(package for package in packages if package.name not in omitted),
        from_source=sources,
        overrides=tuple(map(str, pins.overrides)),
        patches=tuple(replace(patch, digest=_safe(patch.digest)) for patch in facets.patches),
        compiled=tuple(
            sorted(
                {_safe(normal_name(name)) for name in pins.build_env}
                - {source.package for source in sources}
                - fitting.keys()
            )
        ),
        build_env=_build_env(pins, axes),
        inconsistencies=tuple(inconsistencies),
        omitted=omitted,
        unpinned_sources=tuple(source.package for source in sources if source.package not in known),
        not_installed=dict(not_installed or {}),
        base_python=base.python,
        image_notice=base.notice,
        package_index={
            name: tuple(url for url in urls if searched is None or url in searched)
            for name, urls in pins.index.items()
        }
        | index_of_cpu_builds(packages),
        package_env={normal_name(name): _safe_env(values) for name, values in pins.build_env.items()},
        wheels=fitting,
        without_wheel=tuple(sorted(set(without_wheel) - set(omitted))),
    )


def index_of_cpu_builds(packages: Iterable[LockedPackage]) -> dict[str, tuple[str, ...]]:
    """The index of builds such as torch 2.9.0+cpu, which the usual index does not have."""
    return {one.name: (CPU_INDEX,) for one in packages if one.name in CPU_BUILDS and "+cpu" in one.version}


def _base_image(axes: Mapping[str, str], python: str, name: str, registry: str) -> BaseImage:
    return BaseImage(reference=name) if name else default_base_image(axes, python, registry)


def _sources(pins: PinsFacet) -> tuple[LockedSource, ...]:
    return tuple(
        LockedSource(
            package=_safe(normal_name(source.package)),
            version=_safe(source.version),
            commit=_safe(source.commit),
            repository=_safe(source.repository),
            env=_safe_env(pins.build_env.get(source.package, {})),
        )
        for source in pins.from_source
    )


def _build_env(pins: PinsFacet, axes: Mapping[str, str]) -> dict[str, str]:
    """The variables of all builds, and the SoC for which kernels are compiled."""
    configured = {
        name: value for values in pins.build_env.values() for name, value in _safe_env(values).items()
    }
    soc = "" if axes.get("device") == "sim" else axes.get("soc", "").lower()
    return configured | ({"SOC_VERSION": SOC_VERSIONS[soc]} if soc in SOC_VERSIONS else {})


def _reference(text: str) -> tuple[str, str]:
    """`name:tag` and the digest of `name:tag@sha256:...`; "" for a missing part."""
    name, _, digest = _safe(text).partition("@")
    return name, _digest(digest)


def without_tag(image: str) -> str:
    """The image name without its tag. A registry may have a port, so only the last path component counts."""
    path, slash, last = image.rpartition("/")
    return f"{path}{slash}{last.partition(':')[0]}"


def _digest(text: str) -> str:
    if text and not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        raise InputError(f"{text!r} is not an image digest", fix="use sha256: followed by 64 hex digits")
    return text


def _safe_env(values: Mapping[str, str]) -> dict[str, str]:
    return {_safe(name): _safe(str(value)) for name, value in values.items()}


def _safe(text: str) -> str:
    """`text`, if it can be used unquoted in a shell script and a Dockerfile."""
    if not SAFE.fullmatch(text):
        raise InputError(
            f"{text!r} cannot be used in a build file",
            why="only letters, digits and .+:/@~_- are allowed",
            fix="correct the value in matrix.yaml",
        )
    return text


def _can_be_fetched(wheel: VariantWheel) -> bool:
    """Whether a digest pins the file, and its address and name can stand in a build file."""
    names = SAFE.fullmatch(wheel.plain_name) and _SAFE_URL.fullmatch(wheel.address)
    return bool(names and re.fullmatch(r"[0-9a-f]{64}", wheel.sha256))


def _ancestors(packages: Sequence[LockedPackage]) -> dict[str, set[str]]:
    """Name -> the package itself and all packages that depend on it, directly or not."""
    parents = {p.name: {normal_name(via) for via in p.via if not via.startswith("-")} for p in packages}
    ancestors: dict[str, set[str]] = {}
    for name in parents:
        reached, waiting = {name}, [name]
        while waiting:
            new = parents.get(waiting.pop(), set()) - reached
            reached |= new
            waiting.extend(new)
        ancestors[name] = reached
    return ancestors


def _layer(name: str, ancestors: set[str]) -> str:
    for layer, roots in LAYERS:
        if layer == "verl":
            break
        if ancestors & set(roots):
            return layer
    return "verl" if name == "verl" else "training"
