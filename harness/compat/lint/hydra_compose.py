"""Composes the configuration that a program of verl gets, by Hydra itself, from the files of that very verl.

Nothing of verl is imported: its YAML files are copied into a temporary folder, and the source of the started
module says which of them it uses.
"""

from __future__ import annotations

import ast
import functools
import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from harness.compat.lint.closed_sets import COMPARES, ClosedSet, closed_sets
from harness.compat.lint.compared_texts import ComparedTexts, compared_texts
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError, Location
from harness.sources.tree import Tree, path_problem

if TYPE_CHECKING:
    from harness.compat.lint.hydra_loader import ConfigLoader, ConfigValue

MAX_CONFIG_FILES = 2000
MAX_CONFIG_BYTES = 4 << 20
# A script with more wrong overrides has another problem.
MAX_REFUSED = 20
#: Hydra's grammar reads about 1,000 in a second.
MAX_OVERRIDES = 1_000
#: Compositions of one job: one, another for each override that is refused, and those that look for it.
MAX_COMPOSITIONS = 60
# Stands, with the name of the unknown after it, for a value that only a run can know. Hydra takes any text.
UNKNOWN_VALUE = "value_of_the_run_"
_NO_NAME = re.compile(r"\W+")
#: A variable in a value. What a command prints, and other expansions, can be anything.
_GIVEN = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}(?!\w))")
_STANDS_FOR_UNKNOWN = re.compile(rf"{UNKNOWN_VALUE}(?P<name>\w+)")
_SEARCH_PATH = re.compile(r"(?P<scheme>file|pkg)://(?P<path>[\w./-]+)")
# An entry of the list `searchpath` without a scheme: a folder relative to where verl is started.
_SEARCHED_FOLDER = re.compile(r"(?P<start>\s*-\s+)(?P<path>[\w.-]+(?:/[\w.-]+)+)\s*")
_GROUP = re.compile(r"\w+")
_CLASS_NAME = re.compile(r"\b[A-Z]\w*")
_KEY = re.compile(r"'([^']+)'")
_WORD = re.compile(r"\w+")
FOLDER_OPTIONS = ("--config-path", "-cp", "--config-dir", "-cd")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that Hydra starts.

    module: its file in verl's tree. folder, name: where its configuration is in the tree.
    """

    module: str
    folder: str
    name: str


@dataclass(frozen=True, kw_only=True)
class RefusedOverride:
    """An override that Hydra refuses, with Hydra's message."""

    override: ScriptValue
    key: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A composed configuration without the refused overrides.

    problem: why nothing could be composed, or "". unknown: what the configuration needs that only a run has,
    or what is too large in it, or "". incomplete: whether files of another package are missing in it, which
    the job adds to Hydra's search path.
    """

    values: Mapping[str, ConfigValue]
    refused: tuple[RefusedOverride, ...] = ()
    problem: str = ""
    unknown: str = ""
    incomplete: bool = False

    def has(self, key: str) -> bool:
        """Whether the configuration has this dotted key."""
        return self._find(key)[0]

    def value(self, key: str) -> ConfigValue:
        """The value of a dotted key; None if there is no such key."""
        return self._find(key)[1]

    def _find(self, key: str) -> tuple[bool, ConfigValue]:
        node: ConfigValue = dict(self.values)
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return False, None
            node = node[part]
        return True, node


class VerlConfiguration:
    """The configuration files of one verl, in a temporary folder. Use it as a context manager.

    cache: the cache folder, in which results that rest on this verl alone and a configuration can be stored.
    engine: the files of the vllm-ascend of its jobs, if they are at hand. fetch_vllm: the modules of their
    vLLM, None if they are not to be had.
    """

    def __init__(
        self,
        tree: Tree,
        cache: Path | None = None,
        engine: Tree | None = None,
        fetch_vllm: Callable[[], ModuleSources | None] | None = None,
    ) -> None:
        self._tree = tree
        self.fetch_vllm = fetch_vllm
        self.cache = cache
        self.modules = ModuleSources(tree)
        self.engine = ModuleSources(engine) if engine is not None else None
        self._paths = self.modules.files.paths
        self._folder: Path | None = None
        self._defaults: dict[Program, Composition] = {}
        self._with_choices: dict[tuple[Program, str], Composition] = {}
        self._fields: dict[str, Mapping[str, str]] = {}
        self._fields_of_name: dict[str, Sequence[str]] = {}
        self._loader: ConfigLoader | None = None
        self._lost_folders: dict[str, str] = {}

    @property
    def paths(self) -> frozenset[str]:
        """Every file of this verl."""
        return self._paths

    def syntax_tree(self, path: str) -> ast.Module | None:
        """The syntax tree of a file; None if it cannot be parsed."""
        return self.modules.syntax_tree(path)

    @functools.cached_property
    def compared_texts(self) -> ComparedTexts:
        """The texts that verl's code compares each setting with, by the last part of the setting's key."""
        return compared_texts(self._sources.items())

    @functools.cached_property
    def closed_sets(self) -> Mapping[str, Sequence[ClosedSet]]:
        """The closed sets of texts that verl's code compares names with."""
        return closed_sets(self.modules_with(COMPARES), self.modules, self.cache)

    @functools.cached_property
    def code_words(self) -> frozenset[str]:
        """All names and words in verl's code."""
        return frozenset(word for source in self._sources.values() for word in _WORD.findall(source))

    def reads(self, section: str, name: str, folder: str) -> bool:
        """Whether code reads a name of a section, as `section.name`; in `folder` the section is `config`."""
        access = rf"(?:_config|_cfg)?(?:\.|\.get\(\s*[\"']|\[[\"']){re.escape(name)}\b"
        anywhere, inside = re.compile(rf"{section}{access}"), re.compile(rf"config{access}")
        return any(
            anywhere.search(source) or (path.startswith(folder) and inside.search(source))
            for path, source in self._sources.items()
        )

    @functools.cached_property
    def _sources(self) -> Mapping[str, str]:
        """The texts of verl's own modules."""
        modules = sorted(path for path in self._paths if path.startswith("verl/") and path.endswith(".py"))
        return {path: self._tree.read(path).decode("utf-8", "replace") for path in modules}

    def modules_with(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """verl's own modules in which a pattern is found."""
        return [path for path, source in self._sources.items() if pattern.search(source)]

    def source(self, path: str) -> str:
        """The text of a module."""
        return self._sources.get(path) or self._tree.read(path).decode("utf-8", "replace")

    def texts_of(self, program: Program) -> ComparedTexts:
        """The texts that the module of a program compares each setting with."""
        return compared_texts([(program.module, self._tree.read(program.module).decode("utf-8", "replace"))])

    def place(self, path: str, offset: int) -> str:
        """A place in a file, with its line."""
        source = self._tree.read(path).decode("utf-8", "replace")
        return f"{path}:{source.count(chr(10), 0, offset) + 1}"

    @property
    def label(self) -> str:
        """Where the files come from."""
        return self._tree.label

    @contextmanager
    def unpacked(self) -> Iterator[VerlConfiguration]:
        """Copy the configuration files of the tree to a temporary folder, and remove it at the end."""
        self._folder = Path(tempfile.mkdtemp(prefix="npu-matrix-config-"))
        try:
            for path in self._config_files():
                self._copy(path, self._folder)
            yield self
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def program(self, entry: str, options: Mapping[str, str]) -> Program | None:
        """The program that `python -m entry` or `python entry.py` starts; None if Hydra does not start it.

        options: the values of `--config-path`, `--config-name` and `--config-dir`.
        """
        module = self._module_file(entry)
        found = self._decorator(module) if module else None
        if module is None or found is None:
            return None
        path, name = found
        chosen = next((options[name] for name in FOLDER_OPTIONS if options.get(name)), "")
        folder = posixpath.normpath(posixpath.join(posixpath.dirname(module), path))
        package = _SEARCH_PATH.fullmatch(path)
        if package is not None:
            folder = _as_folder(package)
        if chosen:
            folder = self._known_folder(chosen, posixpath.dirname(module))
        name = (options.get("--config-name") or options.get("-cn") or name).removesuffix(".yaml")
        if f"{folder}/{name}.yaml" not in self._paths:
            return None
        return Program(module=module, folder=folder, name=name)

    def missing_name(self, entry: str, options: Mapping[str, str]) -> tuple[str, str, Sequence[str]] | None:
        """A configuration that a program of verl does not find in its folder: folder, name, and those it has.

        If there is no such folder, the name is "", and the others are the folders beside it. None if the
        program finds its configuration, or looks for it outside of this verl.
        """
        module = self._module_file(entry)
        found = self._decorator(module) if module and module.startswith(("verl/", "recipe/")) else None
        name = (options.get("--config-name") or options.get("-cn") or "").removesuffix(".yaml")
        if module is None or found is None:
            return None
        folder = posixpath.normpath(posixpath.join(posixpath.dirname(module), found[0]))
        chosen = next((options[one] for one in FOLDER_OPTIONS if options.get(one)), "")
        if chosen:
            folder = self._known_folder(chosen, posixpath.dirname(module))
            if not self._tree.is_folder(folder):
                # Hydra looks for a relative folder beside the module, which is a part of verl's package.
                given = options.get("--config-path") or options.get("-cp") or ""
                is_inside = bool(re.fullmatch(r"\w[\w./-]*", given)) and folder.startswith("verl/")
                return (folder, "", self._folders_beside(folder)) if is_inside else None
        is_plain = bool(re.fullmatch(r"[\w/.-]+", name)) and not _SEARCH_PATH.fullmatch(found[0])
        if not is_plain or f"{folder}/{name}.yaml" in self._paths:
            return None
        inside = [posixpath.split(path) for path in sorted(self._paths) if path.endswith(".yaml")]
        return folder, name, [other.removesuffix(".yaml") for parent, other in inside if parent == folder]

    def _folders_beside(self, folder: str) -> Sequence[str]:
        """The names of the folders with configurations that are in the same folder as this one."""
        parent = posixpath.dirname(folder)
        inside = (posixpath.dirname(path) for path in self._paths if path.endswith(".yaml"))
        return sorted({posixpath.basename(one) for one in inside if posixpath.dirname(one) == parent})

    def compose(self, program: Program, overrides: Sequence[ScriptValue]) -> Composition:
        """Compose a program's configuration with the overrides that Hydra takes."""
        from harness.compat.lint.hydra_loader import NotComposedError

        try:
            composition = self._composed(program, overrides)
        except NotComposedError as error:
            return Composition(values={}, unknown=str(error))
        lost = self._lost_folders.get(f"{program.folder}/{program.name}.yaml", "")
        if lost and composition.problem:
            return Composition(values={}, unknown=f"the files of {lost}, which it searches")
        return composition

    def _composed(self, program: Program, overrides: Sequence[ScriptValue]) -> Composition:
        from harness.compat.lint.hydra_loader import NotComposedError

        if len(overrides) > MAX_OVERRIDES:
            raise NotComposedError(f"more than {MAX_OVERRIDES:,} overrides")
        loader = self._started_loader()
        refused, taken = _parsed(overrides, loader)
        if len(refused) > MAX_REFUSED:
            return Composition(values={}, problem=f"{refused[0].message}, and {MAX_REFUSED} more like this")
        trial = _Trial(loader, program)
        values, problem = trial.compose(taken)
        while problem and len(refused) < MAX_REFUSED:
            guilty = _guilty(trial, taken, problem)
            if guilty is None:
                break
            refused.append(guilty)
            taken.remove(guilty.override)
            values, problem = trial.compose(taken)
        incomplete = any(_key(one.text) == "hydra.searchpath" for one in taken)
        choices = [
            one for one in refused if _is_choice(one.override.text) and "Could not find" in one.message
        ]
        if not incomplete and choices and len(choices) < len(refused):
            # Keys that the missing choice has are refused because of it.
            return Composition(values={}, refused=tuple(choices))
        return Composition(values=values, refused=tuple(refused), problem=problem, incomplete=incomplete)

    def _started_loader(self) -> ConfigLoader:
        from harness.compat.lint.hydra_loader import ConfigLoader

        assert self._folder is not None
        if self._loader is None:
            self._loader = ConfigLoader(self._folder)
        return self._loader

    def defaults(self, program: Program) -> Composition:
        """The program's configuration without any override."""
        if program not in self._defaults:
            self._defaults[program] = self.compose(program, ())
        return self._defaults[program]

    def choices_with(self, program: Program, key: str) -> Iterator[str]:
        """Choices in configuration groups, such as `model_engine=megatron`, with which a key exists."""
        groups = self._groups(f"{program.folder}/{program.name}.yaml")
        for path in sorted(self._paths):
            folder, name = posixpath.split(path)
            group, other = posixpath.basename(folder), name.removesuffix(".yaml")
            if posixpath.dirname(folder) != program.folder or other in (name, groups.get(group, name)):
                continue
            word = ScriptValue(text=f"{group}={other}", where=Location(path))
            if group in groups and self._with_choice(program, word).has(key):
                yield word.text

    def _groups(self, path: str) -> Mapping[str, str]:
        """The groups in the defaults list of a file, with their choices."""
        try:
            found = yaml.safe_load(self._tree.read(path))
        except (yaml.YAMLError, ValueError, RecursionError):
            return {}  # Hydra tells what is wrong.
        listed = found.get("defaults") if isinstance(found, dict) else None
        entries = [one for one in listed or () if isinstance(one, dict)]
        return {
            str(name): str(choice)
            for one in entries
            for name, choice in one.items()
            if _GROUP.fullmatch(str(name))
        }

    def _with_choice(self, program: Program, word: ScriptValue) -> Composition:
        known = (program, word.text)
        if known not in self._with_choices:
            self._with_choices[known] = self.compose(program, [word])
        return self._with_choices[known]

    def takes_text(self, composition: Composition, key: str) -> bool:
        """Whether the dataclass that verl makes of this part of the configuration takes a text there."""
        parts = key.split(".")
        for end in range(len(parts) - 1, 0, -1):
            target = composition.value(".".join([*parts[:end], "_target_"]))
            if isinstance(target, str):
                annotation = self._annotation(target.rpartition(".")[2], parts[end:])
                return any(word in annotation for word in ("str", "Any", "Literal", "dict", "object"))
        # No dataclass is made of this part: a class of the configuration with such a field tells.
        return any("str" in one for one in self._fields_named(parts[-1]))

    def example(self, composition: Composition, key: str) -> bool | int | float | None:
        """A value of the type that the class of this part has for a field; None if it is no number."""
        parent, _, name = key.rpartition(".")
        target = composition.value(f"{parent}._target_") if parent else None
        annotation = self._annotation(target.rpartition(".")[2], [name]) if isinstance(target, str) else ""
        types = {word for word in re.findall(r"\w+", annotation) if word not in ("Optional", "None", "Union")}
        examples: Mapping[frozenset[str], bool | int | float] = {
            frozenset({"bool"}): True,
            frozenset({"int"}): 1,
            frozenset({"float"}): 1.0,
            frozenset({"int", "float"}): 1.0,
        }
        return examples.get(frozenset(types))

    def is_whole(self, composition: Composition, key: str) -> bool:
        """Whether a field is a whole number: in its own class, or in all classes that have such a field."""
        parent, _, name = key.rpartition(".")
        target = composition.value(f"{parent}._target_") if parent else None
        annotations = (
            [self._annotation(target.rpartition(".")[2], [name])]
            if isinstance(target, str)
            else list(self._fields_named(name))
        )
        kinds = [set(re.findall(r"\w+", one)) - {"Optional", "None", "Union"} for one in annotations]
        return bool(kinds) and all(one == {"int"} for one in kinds)

    def _annotation(self, class_name: str, names: Sequence[str]) -> str:
        """The annotation of a field of a class, or of a field of the class of a field, and so on."""
        annotation = self._class_fields(class_name).get(names[0], "")
        if len(names) == 1:
            return annotation
        inner = [word for word in _CLASS_NAME.findall(annotation) if self._class_fields(word)]
        return self._annotation(inner[0], names[1:]) if inner else ""

    def _fields_named(self, name: str) -> Sequence[str]:
        """The annotations of the fields of this name in all classes of verl's configuration."""
        if name not in self._fields_of_name:
            self._fields_of_name[name] = [
                ast.unparse(node.annotation)
                for path in self._configuration_modules
                if name in self.source(path)
                for node in self._nodes(path)
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
            ]
        return self._fields_of_name[name]

    @functools.cached_property
    def _configuration_modules(self) -> tuple[str, ...]:
        return tuple(path for path in sorted(self._paths) if path.endswith(".py") and "config" in path)

    def _class_fields(self, class_name: str) -> Mapping[str, str]:
        """The annotations of the fields of a class of verl's configuration, and of its bases."""
        if class_name not in self._fields:
            self._fields[class_name] = self._annotations(class_name)
        return self._fields[class_name]

    def _annotations(self, class_name: str, seen: frozenset[str] = frozenset()) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if class_name in seen:
            return found
        for path in self._configuration_modules:
            if f"class {class_name}" not in self.source(path):
                continue
            for node in self._nodes(path):
                if isinstance(node, ast.ClassDef) and node.name == class_name:
                    for base in node.bases:
                        found |= self._annotations(ast.unparse(base).rpartition(".")[2], seen | {class_name})
                    found |= {
                        item.target.id: ast.unparse(item.annotation)
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    }
        return found

    def _nodes(self, path: str) -> Iterator[ast.AST]:
        """All nodes of a module; none if it is not valid."""
        parsed = self.syntax_tree(path)
        return ast.walk(parsed) if parsed is not None else iter(())

    def _config_files(self) -> Iterator[str]:
        count = 0
        for path in sorted(self._paths):
            if not path.endswith(".yaml") or path_problem(path) or "/" not in path:
                continue
            count += 1
            if count > MAX_CONFIG_FILES:
                raise InputError(f"{self.label} has more than {MAX_CONFIG_FILES} YAML files")
            yield path

    def _copy(self, path: str, folder: Path) -> None:
        data = self._tree.read(path)
        if len(data) > MAX_CONFIG_BYTES:
            return
        # Search paths are relative to the folder in which verl is started, or name a package.
        text = _SEARCH_PATH.sub(
            lambda found: f"file://{folder}/{self._searched(_as_folder(found), path)}",
            data.decode("utf-8", "replace"),
        )
        text = _with_searched_folders(text, folder)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")

    def _searched(self, folder: str, path: str) -> str:
        """A folder that the configuration `path` searches, which users name from their own checkout."""
        parts = folder.split("/")
        # A last name alone, such as `config`, is that of many folders.
        ends = ["/".join(parts[start:]) for start in range(max(1, len(parts) - 1))]
        found = next((end for end in ends if self._tree.is_folder(end)), "")
        if not found:
            self._lost_folders.setdefault(path, folder)
        return found or folder

    def _module_file(self, entry: str) -> str | None:
        candidates = [
            entry.replace(".", "/") + ".py",
            entry.replace(".", "/") + "/__main__.py",
        ]
        if entry.endswith(".py"):
            # The path begins with a folder that is given from outside, such as ${HOME}/verl.
            parts = entry.split("/")
            candidates = ["/".join(parts[index:]) for index in range(len(parts))]
        found = next((path for path in candidates if path in self._paths), None)
        if found or not entry.endswith(".py") or "/" in entry:
            return found
        # The script is started in the folder of the file.
        same = [path for path in self._paths if path.endswith(f"/{entry}")]
        return same[0] if len(same) == 1 else None

    def lacks(self, entry: str, started_as: str = "") -> bool:
        """Whether Python finds no program `entry` in verl's package.

        started_as: "module" for `python -m entry`, "file" for `python entry`, "" if it is not known.
        """
        path = entry.removesuffix(".py").replace(".", "/")
        package = path.split("/")[0]
        is_verl = package == "verl" and any(one.startswith(f"{package}/") for one in self._paths)
        found = any(one in self._paths for one in (f"{path}.py", f"{path}/__main__.py"))
        if started_as == "module":
            # The names of modules have dots only, and no ending.
            return is_verl and (not found or "/" in entry or entry.endswith(".py"))
        if entry.endswith(".py"):
            # `verl.trainer.main_ppo.py` is no path to this module.
            return started_as == "file" and is_verl and found and "/" not in entry
        return is_verl and (not found or started_as == "file")

    def _known_folder(self, given: str, base: str) -> str:
        """A folder of the tree: below the module's folder, or a path that begins outside of the tree."""
        relative = posixpath.normpath(posixpath.join(base, given))
        parts = given.strip("/").split("/")
        candidates = [
            relative,
            *("/".join(parts[index:]) for index in range(len(parts))),
        ]
        return next((path for path in candidates if self._tree.is_folder(path)), relative)

    def _decorator(self, module: str) -> tuple[str, str] | None:
        """`config_path` and `config_name` of the decorator `hydra.main` in a module."""
        for node in self._nodes(module):
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("hydra.main"):
                    given = {
                        one.arg: one.value.value
                        for one in decorator.keywords
                        if isinstance(one.value, ast.Constant)
                    }
                    return str(given.get("config_path") or "."), str(given.get("config_name") or "")
        return None


class _Trial:
    """Tries overrides of one job, a limited number of times."""

    def __init__(self, loader: ConfigLoader, program: Program) -> None:
        self._loader, self._program = loader, program
        self._left = MAX_COMPOSITIONS

    def compose(self, overrides: Sequence[ScriptValue]) -> tuple[Mapping[str, ConfigValue], str]:
        """The composed configuration, and Hydra's message if it refuses the overrides."""
        from harness.compat.lint.hydra_loader import NotComposedError, RefusedError

        self._left -= 1
        if self._left < 0:
            raise NotComposedError(f"overrides that Hydra refuses, after {MAX_COMPOSITIONS} attempts")
        words = [_text(override) for override in overrides]
        try:
            return self._loader.compose(self._program.folder, self._program.name, words), ""
        except RefusedError as error:
            return {}, _message(str(error)) or str(error)


def _guilty(trial: _Trial, taken: Sequence[ScriptValue], problem: str) -> RefusedOverride | None:
    """The override that the message names, or the one that ends the shortest refused part of them."""
    named = set(_KEY.findall(problem))
    for override in reversed(taken):
        key, _, value = override.text.lstrip("+~").partition("=")
        choice = f"{key.partition('@')[0]}/{value}"
        if choice in named or any(one.split("=")[0].lstrip("+~") == key for one in named):
            return RefusedOverride(override=override, key=_key(override.text), message=problem)
    # Hydra applies choices of groups before all other overrides.
    ordered = sorted(taken, key=lambda one: not _is_choice(one.text))
    if trial.compose([])[1]:
        return None
    good, bad, message = 0, len(ordered), problem
    while bad - good > 1:
        middle = (good + bad) // 2
        _, refused = trial.compose(ordered[:middle])
        good, bad, message = (good, middle, refused) if refused else (middle, bad, message)
    if not ordered:
        return None
    return RefusedOverride(override=ordered[bad - 1], key=_key(ordered[bad - 1].text), message=message)


def _is_choice(override: str) -> bool:
    """Whether an override can choose a file of a configuration group."""
    key = override.partition("=")[0].lstrip("+~")
    return "." not in key or "@" in key or "/" in key


def _parsed(
    overrides: Sequence[ScriptValue], loader: ConfigLoader
) -> tuple[list[RefusedOverride], list[ScriptValue]]:
    """The overrides that are not valid, and the others."""
    refused, taken = [], []
    for override in overrides:
        problem = _message(loader.syntax_problem(_text(override)))
        if not problem:
            taken.append(override)
            continue
        refused.append(RefusedOverride(override=override, key=_key(override.text), message=problem))
        if len(refused) > MAX_REFUSED:
            break
    return refused, taken


def _message(text: str) -> str:
    """The text of an exception in one line, without the address of Hydra's manual and the search path."""
    plain = _STANDS_FOR_UNKNOWN.sub(r"$\g<name>", text)
    return " ".join(re.split(r"See https|Config search path", plain)[0].split())


def _text(override: ScriptValue) -> str:
    """The override as Hydra gets it; a value that is not known is replaced by a text."""
    if not override.unknown:
        return override.text
    key, _, value = override.text.partition("=")
    # What is known of the value stays: brackets, quotes, and the ending of a path.
    known = _GIVEN.sub(lambda found: _unknown_text(found[0]), value)
    if known != value and "$" not in known and "`" not in known:
        return f"{key}={known}"
    return f"{key}={_unknown_text(override.unknown)}"


def _unknown_text(name: str) -> str:
    """What stands for a part of a value that only a run knows."""
    return UNKNOWN_VALUE + _NO_NAME.sub("_", name.strip("${}"))


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _with_searched_folders(text: str, folder: Path) -> str:
    lines, is_list = [], False
    for line in text.split("\n"):
        found = _SEARCHED_FOLDER.fullmatch(line) if is_list else None
        lines.append(f"{found['start']}file://{folder}/{found['path']}" if found else line)
        stripped = line.strip()
        is_list = stripped == "searchpath:" or (is_list and (not stripped or stripped[0] in "-#"))
    return "\n".join(lines)


def _as_folder(found: re.Match[str]) -> str:
    return found["path"].replace(".", "/") if found["scheme"] == "pkg" else found["path"].lstrip("/")
