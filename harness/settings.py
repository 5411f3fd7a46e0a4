"""Settings: command-line flags, environment variables `NPU_MATRIX_*`, npu-matrix.toml, defaults, in this
order."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tomllib

from harness.errors import InputError, Location
from harness.package import shipped_file

ENVIRONMENT_PREFIX = "NPU_MATRIX_"
FILE_NAME = "npu-matrix.toml"
MATRIX_FILE = "matrix.yaml"
#: The origin of the matrix of this project, where the user has none.
SHIPPED = "shipped with npu-matrix"
#: As `matrix` in npu-matrix.toml: the matrix of the installed npu-matrix, wherever that is.
SHIPPED_MATRIX = "npu-matrix:"
#: The variable with the memory limit of a cell.
MEMORY_VARIABLE = "NPU_MATRIX_CELL_MEMORY"
#: The variable with the name of this machine.
RUNNER_VARIABLE = "NPU_MATRIX_RUNNER"
#: The variable with the folder of the cache in which upstream repositories are.
FETCHED_VARIABLE = "NPU_MATRIX_FETCHED_MIRRORS"
#: The variable with the git repository that contains the checkout.
CHECKOUT_VARIABLE = "NPU_MATRIX_CHECKOUT"
SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, kw_only=True)
class Option:
    """A setting that users can change: its default and its help text.

    exported: "path" or "text" if checks and cells receive the setting as an environment variable, because
    they cannot read settings; a path is made absolute. is_path: whether it names a file or folder. pattern,
    meaning: the values that the setting can have, as a regular expression and in words.
    """

    name: str
    default: str
    help: str
    exported: Literal["", "path", "text"] = ""
    is_path: bool = False
    pattern: str = ".*"
    meaning: str = ""


#: NAME_MAX and PATH_MAX of Linux's limits.h, in bytes. No setting needs a longer value.
LONGEST_NAME, LONGEST_VALUE = 255, 4096
LARGEST_NUMBER = 10**15
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
#: Accepted values of on/off settings, in upper or lower case.
SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: The engines that can build cells. The first needs no container engine.
ENGINES = ("venv", "docker", "podman", "found")
FOUND = ENGINES[3]
#: The reference of an image: a name with registry and tag or digest, or an image id.
IMAGE = r"[A-Za-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?"
SIZE = r"(?i:[0-9]{1,15}[kmgt]?b?)"
#: The profile that `npu-matrix run` uses without options.
DEFAULT_PROFILE = "default"

OPTIONS = (
    Option(name="matrix", default=MATRIX_FILE, help="file with the version matrix", is_path=True),
    Option(name="state", default=".npu-matrix", help="ledger, artifacts and cell environments", is_path=True),
    Option(
        name="cache",
        default="",
        help="shared cache folder; empty means the user's cache folder",
        is_path=True,
    ),
    Option(name="reports", default="reports", help="folder for reports", is_path=True),
    Option(name="profile", default=DEFAULT_PROFILE, help="profile of the matrix to plan and run"),
    Option(
        name="jobs",
        default="0",
        help="number of tasks at a time; 0 means one per CPU",
        pattern="[0-9]{1,9}",
        meaning="a whole number from 0 to 999999999",
    ),
    Option(
        name="mirrors",
        default="",
        help="folder of clones or bare mirrors with the commits of the stacks",
        exported="path",
    ),
    Option(
        name="fetch",
        default="true",
        help="fetch upstream repositories into the cache when a commit is missing",
        exported="text",
        pattern=f"(?i:{'|'.join(SWITCHES)})",
        meaning="true or false",
    ),
    Option(
        name="fetch_file",
        default="false",
        help="also fetch from addresses of local folders",
        exported="text",
        pattern=f"(?i:{'|'.join(SWITCHES)})",
        meaning="true or false",
    ),
    Option(
        name="references",
        default="",
        help="folder of recorded training curves, in addition to the shipped ones",
        exported="path",
    ),
    Option(name="leases", default="", help="folder with the card leases of this host", exported="path"),
    Option(
        name="cell_memory",
        default="",
        help="memory limit of a cell, such as 16g",
        exported="text",
        pattern=f"({SIZE})?",
        meaning="a size such as 512m or 8g; 0 means no limit",
    ),
    Option(
        name="cell_shm",
        default="",
        help="shared memory of a container cell, such as 8g",
        exported="text",
        pattern=f"({SIZE})?",
        meaning="a size such as 512m or 8g; 0 means no limit",
    ),
    Option(
        name="engine",
        default="venv",
        help="what builds cells: venv, docker or podman; found uses an installed environment, unchanged",
        pattern="|".join(ENGINES),
        meaning="venv, docker, podman or found",
    ),
    Option(
        name="found_python",
        default="",
        help="interpreter of the environment of the engine found; empty means python3 of PATH",
        exported="text",
    ),
    Option(
        name="base_image",
        default="",
        help="base image of container cells; empty means the image that the lock names",
        pattern=f"({IMAGE})?",
        meaning="an image name: NAME:TAG, or NAME@sha256: followed by 64 hex digits",
    ),
    Option(
        name="rehearsal",
        default="",
        help="folder of the stand-in for an NPU host on which cells run; `npu-matrix rehearse` sets it",
        is_path=True,
    ),
    Option(
        name="wait",
        default="true",
        help="wait while another run uses this checkout, instead of stopping at once",
        pattern=f"(?i:{'|'.join(SWITCHES)})",
        meaning="true or false",
    ),
    Option(
        name="executor",
        default="local",
        help="where tasks run: local, or ray for an existing Ray cluster",
        pattern="local|ray",
        meaning="local or ray",
    ),
    Option(
        name="ray_address",
        default="auto",
        help="address of the Ray cluster; auto means the cluster that this machine belongs to",
        pattern=r"[\w\[][^\s]*",
        meaning="auto, or an address such as HOST:PORT",
    ),
    Option(
        name="runner",
        default="",
        help="name of this machine in matrix.yaml, recorded with its outcomes",
        exported="text",
    ),
)


def flag_of(name: str) -> str:
    """The command-line flag of a setting."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class SettingValue:
    """The value of a setting and its origin: a flag, a variable, the settings file or `default`."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Settings:
    """All settings of one invocation."""

    values: Mapping[str, SettingValue]
    root: Path

    def __getitem__(self, name: str) -> str:
        return self.values[name].value

    def overridden(self, flags: Mapping[str, str | None]) -> Settings:
        """The settings with the flags of a command; a flag that is None changes nothing."""
        changed = {
            name: SettingValue(name=name, value=value, origin=flag_of(name))
            for name, value in flags.items()
            if value is not None
        }
        for option in OPTIONS:
            if option.name in changed:
                _require_usable(option, changed[option.name].value, why=f"set by {flag_of(option.name)}")
        return Settings({**self.values, **changed}, self.root)

    def with_shipped_matrix(self) -> Settings:
        """The settings with the matrix of this project, from anywhere."""
        named = self.values["matrix"]
        origin = f"{SHIPPED}, as {named.origin} says" if named.value == SHIPPED_MATRIX else SHIPPED
        matrix = SettingValue(name="matrix", value=str(shipped_file(MATRIX_FILE)), origin=origin)
        return Settings({**self.values, "matrix": matrix}, self.root)

    @property
    def uses_shipped_matrix(self) -> bool:
        """Whether the matrix is that of npu-matrix itself."""
        return os.path.realpath(self.path("matrix")) == os.path.realpath(shipped_file(MATRIX_FILE))

    @property
    def has_own_matrix(self) -> bool:
        """Whether the matrix is not the shipped one that stands in where this folder has none."""
        return not self.values["matrix"].origin.startswith(SHIPPED)

    @property
    def run_command(self) -> str:
        """The command that runs checks in this folder; `npu-matrix run` refuses one that names no matrix."""
        return "npu-matrix demo --folder ." if self.values["matrix"].origin == SHIPPED else "npu-matrix run"

    @property
    def patches(self) -> Path:
        """The folder with the patch stacks: of the checkout, or the shipped one with the shipped matrix."""
        own = self.root / "patches"
        return shipped_file("patches") if self.uses_shipped_matrix and not own.is_dir() else own

    @property
    def lacks_matrix(self) -> bool:
        """Whether no flag, variable or settings file names a matrix, and this folder has none."""
        return self.values["matrix"].origin == "default" and not os.path.lexists(self.path("matrix"))

    def is_explicit(self, name: str) -> bool:
        """Whether a flag or a variable sets this setting, not the settings file or the default."""
        return self.values[name].origin not in {"default", SHIPPED, str(self.root / FILE_NAME)}

    def flags(self, *names: str) -> tuple[str, ...]:
        """The flags that set these settings in another shell, without those from defaults or the settings
        file."""
        return tuple(text for name in names if self.is_explicit(name) for text in (flag_of(name), self[name]))

    def exported(self) -> Mapping[str, str]:
        """The environment variables for checks and cells, for all exported settings that have a value."""
        found = {}
        with contextlib.suppress(InputError):
            found = {FETCHED_VARIABLE: str(self.fetched_mirrors)}
        if checkout := next(
            (one for one in (self.root, *self.root.parents) if (one / ".git").exists()), None
        ):
            found[CHECKOUT_VARIABLE] = str(checkout)
        return found | {
            f"{ENVIRONMENT_PREFIX}{option.name.upper()}": (
                str(self.path(option.name)) if option.exported == "path" else self[option.name]
            )
            for option in OPTIONS
            if option.exported and self[option.name]
        }

    @property
    def fetch(self) -> bool:
        """Whether to fetch upstream repositories."""
        return SWITCHES[self["fetch"].lower()]

    @property
    def fetched_mirrors(self) -> Path:
        """The folder of the cache with mirrors of upstream repositories."""
        return self.cache / "mirrors"

    def path(self, name: str) -> Path:
        """A setting as an absolute path; relative paths start at the checkout."""
        return (self.root / self[name]).absolute()

    @property
    def jobs(self) -> int:
        """The number of tasks at a time."""
        return int(self["jobs"]) or os.cpu_count() or 1

    @property
    def wait(self) -> bool:
        """Whether to wait for another run."""
        return SWITCHES[self["wait"].lower()]

    @property
    def engine(self) -> Mapping[str, str]:
        """Container engine and base image, empty without one."""
        if self["engine"] in (ENGINES[0], FOUND):
            return {}
        return {"engine": self["engine"], "base_image": self["base_image"]}

    @property
    def cache(self) -> Path:
        """The shared cache folder; InputError if the user has none and no setting names one."""
        if self["cache"]:
            return self.path("cache")
        import platformdirs

        folder = Path(platformdirs.user_cache_dir("npu-matrix"))
        if not folder.is_absolute():
            raise InputError(
                f"the cache folder of this user is not an absolute path: {folder}",
                why="HOME and XDG_CACHE_HOME are not set, or are relative paths",
                fix="set HOME to the home folder of this user, or name a folder with --cache",
            )
        return folder


def find_root(start: Path) -> Path:
    """`start` if its settings name a matrix, else the nearest of it and its parents with a matrix.yaml.

    `start` where there is none.
    """
    if "matrix" in _read_file(start / FILE_NAME):
        return start
    for folder in (start, *start.parents):
        if (folder / MATRIX_FILE).is_file():
            return folder
    return start


def load_settings(flags: Mapping[str, str | None], environ: Mapping[str, str], root: Path) -> Settings:
    """Resolve every setting; InputError for values that a setting cannot have, with who set them, and for a
    settings file that cannot be read or has unknown names."""
    file = root / FILE_NAME
    from_file = _read_file(file)
    values: dict[str, SettingValue] = {}
    for option in OPTIONS:
        # The file's values were checked with their lines when it was read.
        variable = ENVIRONMENT_PREFIX + option.name.upper()
        flag = flags.get(option.name)
        if flag is not None:
            values[option.name] = SettingValue(name=option.name, value=flag, origin=flag_of(option.name))
        elif variable in environ:
            values[option.name] = SettingValue(name=option.name, value=environ[variable], origin=variable)
        elif option.name in from_file:
            values[option.name] = SettingValue(
                name=option.name, value=from_file[option.name], origin=str(file)
            )
        else:
            values[option.name] = SettingValue(name=option.name, value=option.default, origin="default")
        if values[option.name].origin != str(file):
            _require_usable(option, values[option.name].value, why=f"set by {values[option.name].origin}")
    settings = Settings(values, root)
    return settings.with_shipped_matrix() if settings["matrix"] == SHIPPED_MATRIX else settings


def _require_usable(option: Option, value: str, where: Location | None = None, why: str = "") -> None:
    """InputError if the setting cannot have this value, or no setting can: too long or not on one line."""
    if CONTROL.search(value):
        raise InputError(
            f"{option.name} is {value[:200]!r}, which is not a single value on one line",
            where=where,
            why=why,
            fix=f'write {option.name} = "TEXT" on one line',
        )
    size = len(value.encode("utf-8", "surrogateescape"))
    parts = value.split("/") if option.is_path or option.exported == "path" else ()
    too_long = any(len(part.encode("utf-8", "surrogateescape")) > LONGEST_NAME for part in parts)
    if size >= LONGEST_VALUE or too_long:
        raise InputError(
            f"{option.name} is too long: {value[:40]!r}... has {size} bytes",
            where=where,
            why=why
            or f"a value has less than {LONGEST_VALUE} bytes, a name in a path at most {LONGEST_NAME}",
            fix="use a shorter value",
        )

    if not re.fullmatch(option.pattern, value):
        raise InputError(
            f"invalid value for {option.name}: {value!r}", where=where, why=why, fix=f"use {option.meaning}"
        )


def parse_size(text: str, name: str) -> int:
    """Bytes in `0`, `512m`, `8g`; InputError for anything else."""
    number, unit = text.strip().lower().removesuffix("b"), ""
    if number and number[-1] in SIZE_UNITS:
        number, unit = number[:-1], number[-1]
    if not re.fullmatch(r"[0-9]{1,15}", number):
        raise InputError(
            f"{name} is {text!r}, which is not a size",
            fix="write a size such as 512m or 8g; 0 means no limit",
        )
    return int(number) * SIZE_UNITS[unit]


def _read_file(file: Path) -> dict[str, str]:
    if not os.path.lexists(file):
        return {}
    if not file.is_file():
        raise InputError(
            "the settings path is not a regular file",
            where=Location(file),
            why="a folder, a pipe or a broken link cannot be read as settings",
            fix="remove it, or replace it by a file with the settings",
        )
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    # A ValueError is also raised for numbers with thousands of digits.
    except (ValueError, RecursionError) as error:
        raise InputError(
            "this settings file is not valid TOML", where=Location(file), why=str(error)
        ) from error
    known = {option.name for option in OPTIONS}
    unknown = sorted(set(data) - known)
    if unknown:
        raise InputError(
            f"unknown setting {unknown[0]!r}",
            where=Location(file),
            fix=f"known settings: {', '.join(sorted(known))}",
        )
    options = {option.name: option for option in OPTIONS}
    return {name: _text_of(options[name], value, Location(file)) for name, value in data.items()}


def _text_of(option: Option, value: object, where: Location) -> str:
    """A value of the settings file as text; InputError if it is not a text or a number of usual size."""
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise InputError(
            f"{option.name} is a number out of range",
            where=where,
            fix=f"use a number from 0 to {LARGEST_NUMBER}",
        )
    if not isinstance(value, (str, int)):
        kind = type(value).__name__
        raise InputError(
            f"{option.name} is not a single value on one line, but of type {kind}",
            where=where,
            fix=f'write {option.name} = "TEXT" on one line',
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    _require_usable(option, text, where)
    return text
