"""What the check `environment` measures: where the environment of a cell is, and what was found in it.

Every check that starts a program in the environment reads `EnvironmentLocation`. Two programs run inside the
cell and write a part of these types: `harness.fixtures.environment_probe` writes `EnvironmentProbe`, and
`harness.fixtures.patch_probe` writes `PatchProbeReport`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.evidence import DeviceFacts
from harness.measurements import measurement_format, read_shape
from harness.outcome import Outcome
from harness.serialisation import JsonValue

#: What a training job imports first.
IMPORTED_MODULES = (
    *("torch", "torch_npu", "torchvision", "torchaudio", "vllm", "vllm_ascend", "verl", "tensordict"),
    *("transformers", "ray", "pyarrow", "datasets"),
)


@dataclass(frozen=True, kw_only=True)
class CellDevice:
    """The device a cell is planned for: its `device` facet.

    soc: SoC name as torch_npu reports it. cann: CANN version. count: number of devices. memory_gb: memory of
    a simulated device in GiB, 0 for the default. engine, base_image: container engine and base image, "" for
    a virtual environment. simulator: digest of the simulated device's code, "" for other devices. rehearsed:
    whether the cell runs on a stand-in for an NPU host (`npu-matrix rehearse`). found: digest of the packages
    of an environment that is used as it was found (the engine `found`), "" for one that is built.
    """

    kind: Literal["sim", "npu", "cpu"]
    soc: str = ""
    cann: str = ""
    count: int = 1
    memory_gb: float = 0.0
    engine: str = ""
    base_image: str = ""
    simulator: str = ""
    rehearsed: bool = False
    found: str = ""

    @property
    def simulated(self) -> bool:
        """Whether the simulated runtime drives the device: of a simulated cell, or of a rehearsal."""
        return self.kind == "sim" or self.rehearsed


@dataclass(frozen=True, kw_only=True)
class ImageLayer:
    """A layer of a cell's image; `key` is the digest of its content and of the layers below it."""

    name: str
    key: str


@dataclass(frozen=True, kw_only=True)
class CellContainer:
    """What is needed to start a container of a cell.

    engine: `docker` or `podman`. image: the image's id. cell: digest of the environment. bytecode: folder on
    this host in which the image's modules are stored after Python compiled them.
    """

    engine: str
    image: str
    cell: str
    bytecode: str


@dataclass(frozen=True, kw_only=True)
class CellImage(CellContainer):
    """The image of a cell and how it was built.

    version: the engine's version. builder: the engine's build backend (`buildkit` or `steps`). base: name of
    the base image as it was requested. base_id, base_digests: id and digests of the image with that name.
    notices: warnings about the base image. built: names of the layers that this task built. layer_seconds:
    how long each of them took.
    """

    version: str
    builder: str
    base: str
    base_id: str
    base_digests: tuple[str, ...]
    notices: tuple[str, ...]
    bytes: int
    layers: tuple[ImageLayer, ...]
    built: tuple[str, ...]
    layer_seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class VerifiedFiles:
    """The files of an environment that lie on this host, at the end of its build.

    manifest: the file with the metadata and the digest of each. digest: SHA-256 of that file. count: how many
    files, links and folders it lists.
    """

    manifest: str
    digest: str
    count: int


@dataclass(frozen=True, kw_only=True)
class EnvironmentLocation:
    """What is needed to start a program in a built environment.

    python, prefix: paths of the interpreter and of its prefix; paths inside the image if there is one.
    runtime: folder of the simulated CANN runtime, "" without one. container: how to start a container of the
    environment, None for a virtual environment. files: what its files must be, None if that is unknown.
    """

    requested_device: CellDevice
    python: str
    prefix: str
    runtime: str = ""
    container: CellContainer | None = None
    files: VerifiedFiles | None = None


@dataclass(frozen=True, kw_only=True)
class ImportedModule:
    """A module that could be imported in the cell. version: its `__version__`, "" when it has none."""

    version: str = ""
    file: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FailedImport:
    """A module that could not be imported: the error, and the end of its traceback."""

    error: str
    traceback: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProbedDevice(DeviceFacts):
    """The device as torch sees it in the environment.

    name: the name that torch_npu gives it. sum_of_ones: the sum of four ones, computed on the device; None
    when there is no device. error: why the device did not respond, "" when it did.
    """

    name: str = ""
    sum_of_ones: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchedFile:
    """The file that the cell's import system finds for a patched path.

    module: the name under which the path is imported, None when it is not a module. expected: SHA-256 of the
    patched file, None when the patches remove it. file, digest: the file that was found and its SHA-256, None
    when there is none. state: `patched` and `removed` are correct. `unpatched` is the original file, `other`
    any other file, `absent` no file, and `stale-code` the patched file with an outdated compiled file.
    """

    path: str
    module: str | None
    expected: str | None
    file: str | None
    digest: str | None
    state: Literal["patched", "removed", "unpatched", "other", "absent", "stale-code"]


@dataclass(frozen=True, kw_only=True)
class PatchProbeReport:
    """What `harness.fixtures.patch_probe` writes."""

    files: tuple[PatchedFile, ...]


@dataclass(frozen=True, kw_only=True)
class EnvironmentProbe:
    """What `harness.fixtures.environment_probe` finds in an environment.

    packages: name as the package's metadata spells it -> version. files: patched path -> SHA-256 of the file
    on disk, "" when it is missing. modules: name -> the result of importing it. python: facts about the
    interpreter. patched: what the import system finds for each patched path, None without patches. libraries:
    the shared libraries of the process that imported the modules and used the device, as the loader found
    them. not_recorded: how the files of an image differ from RECORD and the patches, one sentence for each;
    None for a virtual environment, whose files the host reads.
    """

    packages: Mapping[str, str]
    files: Mapping[str, str]
    modules: Mapping[str, ImportedModule | FailedImport]
    device: ProbedDevice
    python: Mapping[str, str] = field(default_factory=dict)
    patched: tuple[PatchedFile, ...] | None = None
    libraries: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentBuilt(EnvironmentLocation):
    """An environment that was built now or by an earlier task, and that was probed.

    digest: digest of its content. reused: whether an earlier task built it. expected: locked packages and
    their versions. left_out: locked packages that this device does not need, and why. built_here: packages
    that were built from source. patched: patched path -> SHA-256 of the patched file, "" where the patches
    remove it. seconds: duration of each step. libraries: the libraries of this host that it uses. For an NPU
    they are in `files` too, which `cleanup` removes. toolkit: variable -> folder of CANN on this host that it
    selects, without symbolic links; empty for other devices. differences: how an environment that was found
    differs from the cell, one sentence for each; None for one that was built. deviations: path -> SHA-256 of
    the files of an environment that was found which neither a RECORD nor a commit describes.
    """

    built: Literal[True] = True
    container: CellImage | None = None
    site_packages: str
    digest: str
    reused: bool
    expected: Mapping[str, str]
    left_out: Mapping[str, str]
    built_here: tuple[str, ...]
    from_repositories: tuple[str, ...] = ()
    patched: Mapping[str, str]
    probe: EnvironmentProbe
    seconds: Mapping[str, float]
    libraries: VerifiedFiles | None = None
    toolkit: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] | None = None
    deviations: Mapping[str, str] = field(default_factory=dict)


def modules_to_import(packages: Collection[str], device: str) -> list[str]:
    """The modules that are imported to show that the installed packages work together.

    Metadata is not enough: pyarrow 26 can be installed with numpy 1, but not imported. packages: the names of
    the installed distributions. device: the kind of the cell's device.
    """
    found = [name for name in IMPORTED_MODULES if name in packages or name.replace("_", "-") in packages]
    return [name for name in found if name != "torch_npu" or device != "cpu"]


@dataclass(frozen=True, kw_only=True)
class HostLack:
    """What this host lacks to build an environment. That says nothing about the cell.

    kind: `python` (an interpreter of the version `names[0]`), `machine` (the architecture `names[0]`), `cann`
    (a CANN in the environment variables), `commits` (mirrors that have these commits) or `engine` (that the
    settings of the run, which are part of the key, name a container engine).
    """

    kind: Literal["python", "machine", "cann", "commits", "engine"]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnvironmentNotBuilt:
    """An environment that could not be built.

    step: the step that failed. tail: the end of its output. unsupported: True when this host cannot build
    such an environment, which says nothing about the cell; then `lacks` says what it needs (older versions
    did not store that), and `remedy` what to do. The other fields are those of `EnvironmentBuilt`.
    """

    built: Literal[False] = False
    requested_device: CellDevice
    step: str
    reason: str
    tail: str
    unsupported: bool
    lacks: HostLack | None = None
    remedy: str = ""
    expected: Mapping[str, str]
    left_out: Mapping[str, str]
    built_here: tuple[str, ...]
    seconds: Mapping[str, float]


ENVIRONMENT_FORMAT = measurement_format(
    EnvironmentBuilt,
    EnvironmentNotBuilt,
    version=1,
    # Version 0 stored the members of a failed build for every environment; they were empty after a success.
    unused=("probe.device.launcher", "probe.schema", "reason", "step", "tail", "unsupported"),
)


def read_cell_device(facet: Mapping[str, JsonValue]) -> CellDevice:
    """The `device` facet of a cell; members that `CellDevice` does not have are ignored."""
    return read_shape(CellDevice, facet)


def is_built(environment: Outcome) -> bool:
    """Whether this outcome of the check `environment` describes a built environment."""
    return environment.measurements.get("built") is True


def environment_location(environment: Outcome) -> EnvironmentLocation:
    """How to start a program in the environment that this outcome of the check `environment` describes.

    OldMeasurementsError when the outcome has another form.
    """
    return read_shape(EnvironmentLocation, environment.measurements)
