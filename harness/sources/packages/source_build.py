"""What the build of a source package does besides copying files, as far as its own files tell.

Read are pyproject.toml, setup.cfg and, without running it, setup.py.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from harness.errors import InputError
from harness.sources.packages.project_file import PROJECT, read_project, strings, table
from harness.sources.packages.setup_config import listed, read_setup_config
from harness.sources.packages.setup_script import (
    SETUP,
    ComputedError,
    SetupScript,
    name_of,
    read_setup_script,
)
from harness.sources.tree import Tree

SETUPTOOLS = ("setuptools.build_meta", "setuptools.build_meta:__legacy__")
# They copy the folder with the name of the project, unless their table in pyproject.toml says otherwise.
COPYING = {
    "hatchling.build": "hatch",
    "flit_core.buildapi": "flit",
    "poetry.core.masonry.api": "poetry",
    "uv_build": "uv",
}
# Settings of these tables that change what is built.
CHOOSING = frozenset({"build", "build-backend", "module", "packages", "include"})
# Commands of setuptools that take part in building or installing.
COMMANDS = frozenset(
    (
        *("build", "build_clib", "build_ext", "build_py", "build_scripts", "bdist_wheel", "develop"),
        *("editable_wheel", "egg_info", "install", "install_data", "install_lib", "install_scripts"),
    )
)
# Arguments of setup() with which a build compiles or downloads, or installs other files.
COMPILING = ("ext_modules", "rust_extensions", "cffi_modules", "setup_requires", "libraries", "data_files")
# Folders of a repository that are no package, though they may have an __init__.py.
NO_PACKAGE = frozenset(
    (
        *("benchmark", "benchmarks", "ci", "doc", "docs", "example", "examples", "script", "scripts"),
        *("test", "tests", "tests_extend", "tool", "tools"),
    )
)


@dataclass(frozen=True, kw_only=True)
class SourceBuild:
    """What a source tree installs.

    more: what its build does besides copying files, or why that cannot be read; "" if it is pure Python.
    prefix: the folder of the packages, as `src/`, "" for the root. roots: the folders and modules in it
    that are installed. entry_points: group -> lines such as `name = module:function`.
    """

    more: str = ""
    prefix: str = ""
    roots: tuple[str, ...] = ()
    entry_points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Finder:
    """`find_packages(where, exclude, include)` of setuptools. namespaces: without __init__.py, too."""

    where: str = "."
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    namespaces: bool = False

    def roots(self, tree: Tree) -> Iterator[str]:
        """The folders in `where` in which it finds packages."""
        prefix = _folder(self.where)
        files = [PurePosixPath(path.removeprefix(prefix)) for path in tree.paths() if path.startswith(prefix)]
        folders = {file.parent for file in files if file.suffix == ".py"}
        packages = folders if self.namespaces else {one.parent for one in files if one.name == "__init__.py"}
        for package in sorted(packages):
            name = ".".join(package.parts)
            if (
                package.parts
                and (self.namespaces or package.parts[0] in map(str, packages))
                and any(fnmatchcase(name, pattern) for pattern in self.include)
                and not any(fnmatchcase(name, pattern) for pattern in self.exclude)
            ):
                yield package.parts[0]


def source_build(tree: Tree) -> SourceBuild:
    """What the build of this tree does. What cannot be read is told in `more`."""
    try:
        project = read_project(tree)
        system = table(project, "build-system")
        backend = str(system.get("build-backend", SETUPTOOLS[0]))
        if "backend-path" in system:
            return SourceBuild(more=f"{PROJECT} names a build backend of the repository")
        if backend in SETUPTOOLS:
            return _by_setuptools(tree, project)
        if backend in COPYING:
            return _by_name(tree, project, backend)
        return SourceBuild(more=f"{PROJECT} names the build backend {backend}")
    except (ComputedError, InputError) as error:
        return SourceBuild(more=str(error))


def _by_name(tree: Tree, project: Mapping[str, object], backend: str) -> SourceBuild:
    if table(project, "tool", COPYING[backend]).keys() & CHOOSING:
        return SourceBuild(more=f"{PROJECT} tells {backend} what to build")
    named = table(project, "project") or table(project, "tool", "poetry")
    name = str(named.get("name", "")).replace("-", "_").replace(".", "_")
    for prefix in ("", "src/"):
        if name and tree.mode(f"{prefix}{name}/__init__.py"):
            return SourceBuild(prefix=prefix, roots=(name,), entry_points=_entry_points(project))
    return SourceBuild(more=f"there is no package {name or 'with a name'}")


def _by_setuptools(tree: Tree, project: Mapping[str, object]) -> SourceBuild:
    script = read_setup_script(tree)
    if more := next(_more(script, project), ""):
        return SourceBuild(more=more)
    config = read_setup_config(tree)
    prefix, roots = _installed(tree, script, config, table(project, "tool", "setuptools"))
    if not roots:
        return SourceBuild(more="no package was found")
    entry_points = _entry_points(project)
    if config.has_section("options.entry_points"):
        entry_points |= {name: listed(text) for name, text in config["options.entry_points"].items()}
    if (node := script.argument("entry_points")) is not None:
        given = script.value(node)
        if not isinstance(given, dict):
            raise ComputedError("the entry points are a text")
        entry_points |= {str(group): strings(lines) for group, lines in given.items()}
    return SourceBuild(prefix=prefix, roots=roots, entry_points=entry_points)


def _more(script: SetupScript, project: Mapping[str, object]) -> Iterator[str]:
    """What a build with setuptools does besides copying files."""
    for name in COMPILING:
        node = script.argument(name)
        if node is not None and script.value(node):
            yield f"{SETUP} has {name}"
    if names := COMMANDS & set(script.keys(script.argument("cmdclass"))):
        yield f"{SETUP} replaces {', '.join(sorted(names))}"
    if "subprocess" in script.imports:
        yield f"{SETUP} starts programs"
    if table(project, "tool", "setuptools").get("ext-modules"):
        yield f"{PROJECT} has ext-modules"
    if "setuptools-rust" in table(project, "tool"):
        yield f"{PROJECT} has a table of setuptools-rust"
    if table(project, "tool", "setuptools_scm").keys() & {"write_to", "version_file"}:
        yield f"{PROJECT} has setuptools_scm write a file"


def _installed(
    tree: Tree, script: SetupScript, config: configparser.ConfigParser, settings: Mapping[str, object]
) -> tuple[str, tuple[str, ...]]:
    """The folder of the packages, and the folders and modules in it that are installed."""
    chosen = _packages(script, config, settings)
    prefix = _prefix(script, config, settings)
    if chosen is None:
        prefix = prefix or ("src/" if tree.is_folder("src") else "")
        chosen = _Finder(where=prefix or ".", namespaces=bool(prefix))
    if isinstance(chosen, _Finder):
        prefix = _folder(chosen.where)
        roots = [one for one in chosen.roots(tree) if one not in NO_PACKAGE]
    else:
        roots = [name.split(".")[0] for name in chosen]
    if (node := script.argument("py_modules")) is not None:
        roots += (f"{name}.py" for name in strings(script.value(node)))
    return prefix, tuple(dict.fromkeys(roots))


def _packages(
    script: SetupScript, config: configparser.ConfigParser, settings: Mapping[str, object]
) -> _Finder | tuple[str, ...] | None:
    """How the packages are found, or their names; None if setuptools searches the usual folders."""
    node = script.argument("packages")
    if isinstance(node, ast.Call) and name_of(node.func).endswith(
        ("find_packages", "find_namespace_packages")
    ):
        names = ("where", "exclude", "include")
        given = dict(zip(names, node.args, strict=False)) | {
            one.arg or "": one.value for one in node.keywords
        }
        values = {name: strings(script.value(value)) for name, value in given.items()}
        return _finder(values, namespaces="namespace" in name_of(node.func))
    if node is not None:
        return strings(script.value(node))
    if text := config.get("options", "packages", fallback=""):
        section = "options.packages.find"
        options = {name: listed(one) for name, one in config[section].items()} if section in config else {}
        found = text.strip() in ("find:", "find_namespace:")
        return _finder(options, namespaces="namespace" in text) if found else listed(text)
    packages = settings.get("packages")
    if isinstance(packages, list):
        return strings(packages)
    if find := table(settings, "packages", "find"):
        options = {name: strings(value) for name, value in find.items()}
        return _finder(options, namespaces=find.get("namespaces") is not False)
    return None


def _finder(options: Mapping[str, tuple[str, ...]], *, namespaces: bool) -> _Finder:
    where = options.get("where") or (".",)
    if len(where) > 1:
        raise ComputedError("packages are found in several folders")
    include = options.get("include") or ("*",)
    return _Finder(where=where[0], include=include, exclude=options.get("exclude", ()), namespaces=namespaces)


def _prefix(script: SetupScript, config: configparser.ConfigParser, settings: Mapping[str, object]) -> str:
    """The folder of the packages that `package_dir` names."""
    node = script.argument("package_dir")
    folders = script.value(node) if node else settings.get("package-dir", {})
    lines = listed(config.get("options", "package_dir", fallback=""))
    pairs = (line.partition("=") for line in lines)
    folders = folders or {name.strip(): folder.strip() for name, _, folder in pairs}
    if not isinstance(folders, dict) or folders.keys() - {""}:
        raise ComputedError("package_dir names the folders of single packages")
    return _folder(str(folders.get("", ".")))


def _folder(path: str) -> str:
    """`src/` of `./src`, "" of `.`."""
    found = PurePosixPath(path)
    return f"{found}/" if found.parts else ""


def _entry_points(project: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    metadata = table(project, "project")
    groups = {"console_scripts": table(metadata, "scripts"), "gui_scripts": table(metadata, "gui-scripts")}
    groups |= {group: table(metadata, "entry-points", group) for group in table(metadata, "entry-points")}
    found = {
        group: tuple(f"{name} = {target}" for name, target in ones.items()) for group, ones in groups.items()
    }
    return {group: lines for group, lines in found.items() if lines}
