"""Hydra's composition, kept to the files of one folder: no other folder, no package, no environment variable.

Scripts are not trusted. An override can name a group with a path that leaves the folder, a search path whose
package Hydra would import, or an interpolation that reads the environment or grows without bound.
"""

from __future__ import annotations

import copy
import enum
import functools
import math
import os
import pickle
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias, TypeVar, cast

import omegaconf._utils
import omegaconf.base
import omegaconf.grammar_parser
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from harness.yaml_loader import FAST_LOADER

#: A value of a composed configuration.
ConfigValue: TypeAlias = (
    "bool | int | float | str | enum.Enum | Path | list[ConfigValue] | dict[str, ConfigValue] | None"
)
#: Hydra's grammar reads 20 KiB in a second.
MAX_OVERRIDE_CHARS = 16 << 10
#: verl's configurations have about 1,000 values.
MAX_VALUES = 50_000
MAX_NESTING = 100
#: How often the texts of a script can repeat one value by interpolation.
MAX_REPETITIONS = 1_000
#: Interpolations whose syntax trees are kept; verl's configurations have about 100.
MAX_PARSED = 1_000
Copied = TypeVar("Copied")
_Key: TypeAlias = tuple[tuple[str, ...], str]
#: What Hydra raises for configurations and overrides that it does not take; the last ones are not meant.
_REFUSALS = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
)
# Hydra keeps plugins and interpolation functions in global objects.
_HYDRA = threading.Lock()


class RefusedError(Exception):
    """Hydra refuses the configuration. The argument is its message."""


class NotComposedError(Exception):
    """A configuration that is not composed. The argument says what in it only a run has, or is too large."""


class ConfigLoader:
    """Composes configurations of the folders below `root`. Each file is parsed once for all of them."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._loaded: dict[_Key, ConfigResult | None] = {}
        self._groups: dict[_Key, bool] = {}
        self._merged: dict[_Key, DictConfig] = {}
        self._copies = _Copies()
        self._parsed: dict[str, Override] = {}

    def syntax_problem(self, text: str) -> str:
        """Hydra's message for an override that its grammar does not have; "" for a valid one."""
        if len(text) > MAX_OVERRIDE_CHARS:
            raise NotComposedError(f"an override of more than {MAX_OVERRIDE_CHARS >> 10} KiB")
        if text in self._parsed:
            return ""
        try:
            self._parsed[text] = OverridesParser.create().parse_override(text)
        except RecursionError:
            return "it is nested too deeply"
        except (HydraException, ValueError) as error:
            return str(error)
        return ""

    def compose(self, folder: str, name: str, overrides: Sequence[str]) -> dict[str, ConfigValue]:
        """The values of a configuration; RefusedError with Hydra's message, or NotComposedError.

        overrides: those for which `syntax_problem` found no problem.
        """
        repetitions = math.prod(max(1, text.count("${")) for text in overrides)
        if repetitions > MAX_REPETITIONS:
            raise NotComposedError(f"interpolations that repeat values {repetitions:,} times")
        with _HYDRA, _no_environment(), _parsed_once(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search_path = create_config_search_path(str(self._root / folder))
            loader = _Loader(search_path, self._merged, self._copies, self._parsed)
            loader.repository = _Repository(search_path, self._root, self._loaded, self._groups, self._copies)
            try:
                config = loader.load_configuration(name, list(overrides), run_mode=RunMode.RUN)
                return _Values().of(config)
            except RecursionError as error:
                raise NotComposedError("values that are nested too deeply or contain themselves") from error
            except _REFUSALS as error:
                raise _reason(error, self._root) from error


class _Loader(ConfigLoaderImpl):
    """Merges the files of equal choices of groups once. What Hydra adds about the process is left out."""

    def __init__(
        self,
        search_path: ConfigSearchPath,
        merged: dict[_Key, DictConfig],
        copies: _Copies,
        parsed: Mapping[str, Override],
    ) -> None:
        super().__init__(search_path)
        self._merged, self._copies, self._parsed = merged, copies, parsed

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,  # noqa: ARG002
    ) -> DictConfig:
        self.ensure_main_config_source_available()
        parsed = [self._parsed[text] for text in overrides]
        repository = CachingConfigRepository(self.repository)
        self._process_config_searchpath(config_name, parsed, repository)
        self.validate_sweep_overrides_legal(overrides=parsed, run_mode=run_mode, from_shell=from_shell)
        choices = [one for one in parsed if _is_choice(one, repository)]
        sources = tuple(source.full_path() for source in repository.get_sources())
        key = sources, "\n".join([config_name or "", *(one.input_line or "" for one in choices)])
        if key not in self._merged:
            self._merged[key] = self._chosen(config_name, choices, repository)
        config = self._copies.of(self._merged[key])
        assert isinstance(config, DictConfig)
        OmegaConf.set_struct(config, value=True)
        OmegaConf.set_readonly(config.hydra, value=False)
        self._apply_overrides_to_config([one for one in parsed if one not in choices], config)
        return config

    def _chosen(
        self, config_name: str | None, choices: list[Override], repository: CachingConfigRepository
    ) -> DictConfig:
        """The merged files of a configuration and the choices of its groups."""
        defaults = create_defaults_list(
            repo=repository,
            config_name=config_name,
            overrides_list=choices,
            prepend_hydra=True,
            skip_missing=False,
        )
        for result in repository.cache.values():
            if result is not None:
                # The files are shared by all compositions, and merging changes them.
                result.config = self._copies.of(result.config)
        return self._compose_config_from_defaults_list(defaults=defaults.defaults, repo=repository)


class _Copies:
    """Copies of objects, for which each is pickled once: five times as fast as `copy.deepcopy`."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def of(self, original: Copied) -> Copied:
        """A copy of an object that is not changed from now on."""
        if id(original) not in self._known:
            # The object is kept: no other one has its identity.
            self._known[id(original)] = original, pickle.dumps(original)
        copied: Copied = pickle.loads(self._known[id(original)][1])  # noqa: S301 - of this process
        return copied


def _is_choice(override: Override, repository: IConfigRepository) -> bool:
    """Whether Hydra takes an override as the choice of a file, and not as a value (`Overrides` in Hydra)."""
    return not isinstance(override.value(), dict) and repository.group_exists(override.key_or_group)


class _Repository(ConfigRepository):
    """Copies of a repository share the parsed files, and each reader gets a defaults list of its own."""

    def __init__(
        self,
        search_path: ConfigSearchPath,
        root: Path,
        loaded: dict[_Key, ConfigResult | None],
        groups: dict[_Key, bool],
        copies: _Copies,
    ) -> None:
        self._root, self._loaded, self._groups, self._copies = root, loaded, groups, copies
        super().__init__(config_search_path=search_path)

    def __deepcopy__(self, memo: dict[int, object]) -> _Repository:
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        self.sources = [
            _source(one.provider or "", one.path or "", self._root) for one in config_search_path.get_path()
        ]

    def group_exists(self, config_path: str) -> bool:
        key = self._key(config_path)
        if key not in self._groups:
            self._groups[key] = super().group_exists(config_path)
        return self._groups[key]

    def load_config(self, config_path: str) -> ConfigResult | None:
        key = self._key(config_path)
        if key not in self._loaded:
            self._loaded[key] = super().load_config(config_path)
        known = self._loaded[key]
        if known is None:
            return None
        result = copy.copy(known)
        result.defaults_list = self._copies.of(known.defaults_list)
        return result

    def _key(self, config_path: str) -> _Key:
        return tuple(source.full_path() for source in self.sources), config_path


def _source(provider: str, path: str, root: Path) -> ConfigSource:
    """The source of a search path: a folder below the root, Hydra's own configuration, or an empty one."""
    scheme, found, rest = path.partition("://")
    if found and scheme == "structured":
        return StructuredConfigSource(provider, path)
    if path == "pkg://hydra.conf":
        return ImportlibResourcesConfigSource(provider, path)
    folder = rest if found else path
    if (not found or scheme == "file") and _is_inside(folder, root):
        return _FolderSource(provider, folder, root)
    return _EmptySource(provider, f"{_EmptySource.scheme()}://{path}")


def _is_inside(path: str, root: Path) -> bool:
    try:
        return Path(os.path.realpath(path)).is_relative_to(root)
    except ValueError:
        return False


class _FolderSource(FileConfigSource):
    """A folder whose configurations do not lead out of the root."""

    def __init__(self, provider: str, path: str, root: Path) -> None:
        super().__init__(provider, path)
        self._root = root

    def is_group(self, config_path: str) -> bool:
        return self._is_inside(config_path) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return self._is_inside(self._normalize_file_name(config_path)) and super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path))
        if _yaml_values(file.read_text("utf-8")) > MAX_VALUES:
            raise NotComposedError(f"{config_path}.yaml, which has more than {MAX_VALUES:,} values")
        try:
            with _read_fast():
                return super().load_config(config_path)
        except yaml.YAMLError:
            # The loader that users have words its messages otherwise.
            return super().load_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return super().list(config_path, results_filter) if self.is_group(config_path) else []

    def _is_inside(self, config_path: str) -> bool:
        return _is_inside(f"{self.path}/{config_path}", self._root)


class _EmptySource(ConfigSource):
    """A search path that is not read."""

    @staticmethod
    def scheme() -> str:
        return "empty"

    def available(self) -> bool:
        return False

    def is_group(self, config_path: str) -> bool:  # noqa: ARG002
        return False

    def is_config(self, config_path: str) -> bool:  # noqa: ARG002
        return False

    def load_config(self, config_path: str) -> ConfigResult:
        raise NotComposedError(f"{config_path} in {self.path}")

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:  # noqa: ARG002
        return []


def _yaml_values(text: str) -> int:
    """The number of values in a YAML file, those of an alias counted each time it is used."""
    anchors: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    try:
        for event in yaml.parse(text, Loader=FAST_LOADER):
            if isinstance(event, yaml.AliasEvent):
                total += anchors.get(str(event.anchor), 0)
            elif isinstance(event, yaml.NodeEvent):
                open_nodes.append((event.anchor, total))
                total += 1
            if isinstance(event, (yaml.CollectionEndEvent, yaml.ScalarEvent)):
                anchor, before = open_nodes.pop()
                if anchor is not None:
                    anchors[anchor] = total - before
            if total > MAX_VALUES:
                return total
            if len(open_nodes) > MAX_NESTING:
                raise NotComposedError("values that are nested too deeply")
    except yaml.YAMLError:
        return total  # Hydra tells what is wrong.
    return total


@contextmanager
def _read_fast() -> Iterator[None]:
    """OmegaConf reads files by the slow parser of PyYAML: with that of libyaml it makes the same values."""
    before = omegaconf._utils.get_yaml_loader  # noqa: SLF001 - `OmegaConf.load` has no argument for it
    fast = _fast_loader()
    omegaconf._utils.get_yaml_loader = lambda: fast  # noqa: SLF001
    try:
        yield
    finally:
        omegaconf._utils.get_yaml_loader = before  # noqa: SLF001


@functools.cache
def _fast_loader() -> type[yaml.SafeLoader]:
    """OmegaConf's loader on the parser of libyaml; its own where PyYAML was built without libyaml."""
    slow: type[yaml.SafeLoader] = omegaconf._utils.get_yaml_loader()  # noqa: SLF001
    if FAST_LOADER is yaml.SafeLoader:
        return slow
    parser = FAST_LOADER.__mro__[1]

    def start(loader: yaml.SafeLoader, stream: IO[str]) -> None:
        for part in (parser, SafeConstructor, Resolver):
            part.__init__(loader, *([stream] if part is parser else []))  # type: ignore[misc]

    return type("FastLoader", (parser, slow), {"__init__": start})


@contextmanager
def _no_environment() -> Iterator[None]:
    """Environment variables are those of the machine of a run: an interpolation of one is not known here."""
    OmegaConf.register_new_resolver("oc.env", _environment_variable, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """OmegaConf parses an interpolation whenever it resolves it, which takes most of the time."""
    before, omegaconf.base.parse = omegaconf.base.parse, _parse
    try:
        yield
    finally:
        omegaconf.base.parse = before


_parse = functools.lru_cache(MAX_PARSED)(omegaconf.grammar_parser.parse)


def _environment_variable(name: str, *_default: str) -> str:
    raise NotComposedError(f"the environment variable {name}")


def _reason(error: BaseException, root: Path) -> RefusedError | NotComposedError:
    """Hydra's message, which an exception or its cause has; or what only a run has."""
    message = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NotComposedError):
            return cause
        message = message or str(cause)
        cause = cause.__cause__ or cause.__context__
    return RefusedError(message.replace(f"{root}/", "") or type(error).__name__)


class _Values:
    """Resolves a configuration. An interpolation that only a run can resolve stays as it is."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, config: DictConfig) -> dict[str, ConfigValue]:
        """The values of a mapping."""
        found: dict[str, ConfigValue] = {}
        for name, raw in config.items_ex(resolve=False):
            value = raw
            if OmegaConf.is_interpolation(config, str(name)):
                try:
                    value = config[name]
                except OmegaConfBaseException:
                    value = raw
            found[str(name)] = self._value(value)
        return found

    def _value(self, value: object) -> ConfigValue:
        self._count += 1
        if self._count > MAX_VALUES:
            raise NotComposedError(f"a configuration of more than {MAX_VALUES:,} values")
        if isinstance(value, (DictConfig, ListConfig)):
            content = value._value()  # noqa: SLF001 - a text for a missing value or an interpolation
            if content is None or isinstance(content, str):
                return content
        if isinstance(value, DictConfig):
            return self.of(value)
        return self._list(value) if isinstance(value, ListConfig) else cast("ConfigValue", value)

    def _list(self, value: ListConfig) -> ConfigValue:
        try:
            return [self._value(one) for one in value]
        except OmegaConfBaseException:
            # A list with an interpolation that cannot be resolved stays as it is written.
            return cast("ConfigValue", OmegaConf.to_container(value, resolve=False))
