"""The API surface of a package, read from its sources: modules, names, classes and signatures.

Nothing is imported. A name is MISSING only if its module was parsed and contains nothing that could define
it. A name that may be defined at run time is UNKNOWN and is never reported.
"""

from __future__ import annotations

import ast
import enum
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from harness.compat.surface.call_signature import CallArguments, CallSignature, arguments_of, signature_of
from harness.compat.surface.decorators_and_bases import (
    NAME_PRESERVING,
    PLAIN_BASES,
    SIGNATURE_PRESERVING,
    STANDARD_BASES,
    TORCH_MODULE,
)
from harness.compat.surface.dynamic_attributes import Openness, openness
from harness.compat.surface.module_names import (
    ModuleNames,
    class_attributes,
    decorators,
    dotted,
    flat_statements,
    has_plain_metaclass,
    read_names,
)
from harness.compat.surface.package_text import KnownTests, PackageText
from harness.compat.surface.syntax_walk import walk
from harness.errors import InputError, Location
from harness.sources.damaged_archive import UNREADABLE
from harness.sources.python_syntax import parse_source

MAX_DEPTH = 40
#: No source file is larger: the same limit applies when sources are fetched.
MAX_FILE_BYTES = 8 << 20
COMPILED = (".so", ".pyd")
# Names that modules and classes have without a definition.
DUNDER = re.compile(r"__\w+__")


class Presence(enum.Enum):
    """Whether a name exists."""

    FOUND = "found"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class ApiDefinition:
    """The definition of a function or class. `signatures` is empty when its signature is not known."""

    module: str
    node: ast.stmt
    signatures: tuple[CallSignature, ...] = ()

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return isinstance(self.node, ast.ClassDef)


@dataclass(frozen=True, kw_only=True)
class NameLookup:
    """The result of looking up a dotted name: a definition, a `module`, or another existing name.

    For a missing name, `where` is the module or class that does not have `missing`.
    """

    presence: Presence
    where: str = ""
    missing: str = ""
    definition: ApiDefinition | None = None
    module: str = ""


UNKNOWN = NameLookup(presence=Presence.UNKNOWN)
PRESENT = NameLookup(presence=Presence.FOUND)


class SourceMembers(Protocol):
    """Where the sources of a package are: the files of one release by their installed paths."""

    @property
    def label(self) -> str:
        """What these sources are, in messages."""

    def names(self) -> Iterable[str]:
        """The paths of all files."""

    def read(self, name: str) -> bytes:
        """The text of a file; InputError when it cannot be read."""

    def parse(self, source: bytes) -> ast.Module | None:
        """The syntax tree of a text that `read` returned; None when it cannot be parsed."""


def words_of(name: str) -> tuple[bytes, ...]:
    """A module that has none of these in its text does not define a name."""
    return name.encode(), b"import *", b"__getattr__"


class ZippedSources:
    """The files in a zip, and `changes`: member -> its new content, None if it is removed.

    InputError when the zip cannot be read.
    """

    def __init__(self, file: Path, changes: Mapping[str, bytes | None] | None = None) -> None:
        self._file = file
        self._changes = {name: data for name, data in (changes or {}).items() if data is not None}
        removed = (changes or {}).keys() - self._changes.keys()
        try:
            self._zip = zipfile.ZipFile(file)
            names = dict.fromkeys((*self._zip.namelist(), *self._changes))
            self._names = [name for name in names if name not in removed]
        except UNREADABLE as error:
            raise _unreadable(file, error) from error

    def names(self) -> Iterable[str]:
        """The paths of all files."""
        return self._names

    @property
    def label(self) -> str:
        """The path of the zip."""
        return str(self._file)

    def read(self, name: str) -> bytes:
        """The text of a file; InputError when it cannot be read or is too large."""
        if name in self._changes:
            return self._changes[name]
        try:
            if self._zip.getinfo(name).file_size > MAX_FILE_BYTES:
                raise InputError(
                    f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB", where=Location(self._file)
                )
            return self._zip.read(name)
        except UNREADABLE as error:
            raise _unreadable(self._file, error) from error

    def parse(self, source: bytes) -> ast.Module | None:
        """The syntax tree of a text; None when it cannot be parsed."""
        return parse_source(source)


class ApiSurface:
    """The importable packages in sources. A module is parsed when it is first needed."""

    def __init__(
        self,
        sources: SourceMembers | Path,
        changes: Mapping[str, bytes | None] | None = None,
        search: Callable[[bytes], Iterable[str]] | None = None,
        known_names: dict[tuple[str, bytes], ModuleNames | None] | None = None,
        known_tests: KnownTests | None = None,
    ) -> None:
        """Open sources, or a zip of them with `changes`; InputError when the zip cannot be read.

        search: returns the paths of the files that contain a word, for sources that know them. known_names:
        those of (file, text), which surfaces of several releases share; known_tests: the same of texts.
        """
        self._search = search
        self._known_names = {} if known_names is None else known_names
        self._known_tests = {} if known_tests is None else known_tests
        self._lookups: dict[str, NameLookup] = {}
        self.sources = ZippedSources(sources, changes) if isinstance(sources, Path) else sources
        names = list(self.sources.names())
        self._members = _modules(names)
        others = (name for name in names if not module_of_file(name))
        self._compiled = {_compiled_module(name) for name in others if name.endswith(COMPILED)}
        self._folders = _folders(self._members)
        self._openness = cache(openness)
        self._class_attributes = cache(class_attributes)
        self._read_source = cache(self._read)
        self._read_names = cache(self._parse_names)
        self._package_text = cache(self._collect_text)
        self._calls_of = cache(self._find_calls)
        self._files_with = cache(self._search_files)
        self._files_that_may_define = cache(self._union_of_files)

    def close(self) -> None:
        """Free what was read, without a run of the garbage collector. The surface cannot be used any more."""
        self.__dict__.clear()

    @cached_property
    def packages(self) -> frozenset[str]:
        """The top-level names that can be imported."""
        return frozenset(
            name for names in (self._members, self._folders) for name in names if "." not in name
        )

    def files(self) -> tuple[tuple[str, str], ...]:
        """Every module and its file, sorted by file."""
        return tuple(sorted(self._members.items(), key=lambda item: item[1]))

    def source(self, module: str) -> bytes:
        """The text of a module; empty when the module does not exist. InputError when it cannot be read."""
        return self._read_source(module)

    def _search_files(self, word: bytes) -> frozenset[str]:
        return frozenset(self._search(word) if self._search else ())

    def _read(self, module: str) -> bytes:
        member = self._members.get(module, "")
        return self.sources.read(member) if member else b""

    def has_module(self, module: str) -> bool:
        """Whether the module exists, as a source file, a folder or a compiled file."""
        return module in self._members or module in self._folders or module in self._compiled

    def find(self, dotted: str, depth: int = 0) -> NameLookup:
        """Look up `package.module.Class.attribute`."""
        if depth:
            return self._find(dotted, depth)
        if dotted not in self._lookups:
            self._lookups[dotted] = self._find(dotted, depth)
        return self._lookups[dotted]

    def _find(self, dotted: str, depth: int) -> NameLookup:
        parts = dotted.split(".")
        if depth > MAX_DEPTH or parts[0] not in self.packages:
            return UNKNOWN
        walked = self._walk(NameLookup(presence=Presence.FOUND, module=parts[0]), parts[:1], parts[1:], depth)
        if walked.presence is not Presence.MISSING:
            return walked
        # An import statement finds a module even where the package defines the same name.
        end = next(n for n in range(len(parts), 0, -1) if self.has_module(".".join(parts[:n])))
        module = NameLookup(presence=Presence.FOUND, module=".".join(parts[:end]))
        return self._walk(module, parts[:end], parts[end:], depth)

    def find_module(self, dotted: str) -> NameLookup:
        """Look up a module that an import statement names.

        A name that a package computes in `__getattr__` is no module: importing it fails.
        """
        parts = dotted.split(".")
        if parts[0] not in self.packages:
            return UNKNOWN
        for end in range(2, len(parts) + 1):
            parent, name = ".".join(parts[: end - 1]), parts[end - 1]
            if self.has_module(f"{parent}.{name}"):
                continue
            # The package may put an object with this name into `sys.modules`.
            if self._may_bind(parent, name) or self._may_be_set(parent, name):
                return UNKNOWN
            return NameLookup(presence=Presence.MISSING, where=parent, missing=name)
        return NameLookup(presence=Presence.FOUND, module=dotted)

    def _may_bind(self, module: str, name: str) -> bool:
        """Whether a statement of the module binds the name, or the module has no sources."""
        names = self.names(module)
        return names is None or names.binds(name)

    def _walk(self, found: NameLookup, done: list[str], rest: list[str], depth: int) -> NameLookup:
        for position, attribute in enumerate(rest):
            found = self._inside(found, attribute, ".".join([*done, *rest[:position]]), depth + 1)
            if found.presence is not Presence.FOUND:
                break
        return found

    def _in_module(self, module: str, name: str, depth: int) -> NameLookup:
        if DUNDER.fullmatch(name) or depth > MAX_DEPTH or module in self._compiled:
            return UNKNOWN
        found = self._lookup(module, name, depth, set())
        if found.presence is Presence.MISSING and self._may_be_set(module, name):
            return UNKNOWN
        return found

    def _lookup(self, module: str, name: str, depth: int, seen: set[str]) -> NameLookup:
        if module in seen or depth > MAX_DEPTH:
            return NameLookup(presence=Presence.MISSING, where=module, missing=name)
        seen.add(module)
        names = self.names(module)
        if names is None:
            return UNKNOWN
        if name in names.defined:
            # With `try: from fast import go`, the definition is only a substitute.
            is_substitute = any(not self.has_module(origin) for origin, _ in names.imported.get(name, ()))
            return PRESENT if is_substitute else self._definition(module, names.defined[name])
        if name in names.imported:
            return self._imported(module, names.imported[name], depth + 1)
        if name in names.other:
            return PRESENT
        if self.has_module(f"{module}.{name}"):
            return NameLookup(presence=Presence.FOUND, module=f"{module}.{name}")
        unsure = names.dynamic
        for written in names.stars:
            # Some packages import a sibling module as if it were a top-level one, for type checkers only.
            star = f"{module}.{written}" if self.has_module(f"{module}.{written}") else written
            if star.partition(".")[0] not in self.packages:
                unsure = True
                continue
            if not self.has_module(star):
                continue
            if not self._may_define(star, name):
                continue
            answer = self._lookup(star, name, depth + 1, seen)
            if answer.presence is Presence.FOUND and self._exports(star, name):
                return answer
            unsure = unsure or answer.presence is Presence.UNKNOWN
        presence = Presence.UNKNOWN if unsure else Presence.MISSING
        return NameLookup(presence=presence, where=module, missing=name)

    def _may_define(self, module: str, name: str) -> bool:
        """Whether the text of a module has a name, or may define more. Sources that know it are not read."""
        if self._search is None:
            return any(word in self.source(module) for word in words_of(name))
        return self._members.get(module, "") in self._files_that_may_define(name)

    def _union_of_files(self, name: str) -> frozenset[str]:
        return frozenset().union(*map(self._files_with, words_of(name)))

    def _exports(self, module: str, name: str) -> bool:
        """Whether `from module import *` imports a name of the module."""
        names = self.names(module)
        if names is None or names.exported is None:
            return not name.startswith("_")
        return name in names.exported

    def _imported(self, into: str, sources: list[tuple[str, str]], depth: int) -> NameLookup:
        """Follow an import within the package. The name exists in any case, because its module binds it."""
        for module, name in sources:
            if module == into and self.has_module(f"{module}.{name}"):
                answer = NameLookup(presence=Presence.FOUND, module=f"{module}.{name}")
            elif name and self.has_module(module):
                answer = self._in_module(module, name, depth + 1)
            else:
                answer = self.find(f"{module}.{name}" if name else module, depth + 1)
            if answer.presence is Presence.FOUND:
                return answer
        return PRESENT

    def _definition(self, module: str, nodes: list[ast.stmt]) -> NameLookup:
        node = nodes[-1]
        signatures: list[CallSignature] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions = [item for item in nodes if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            usable = [function for function in functions if "overload" not in decorators(function)]
            if len(functions) == len(nodes) and all(map(_keeps_signature, usable)):
                signatures = [signature_of(function) for function in usable]
        definition = ApiDefinition(module=module, node=node, signatures=tuple(signatures))
        return NameLookup(presence=Presence.FOUND, where=module, definition=definition)

    def _inside(self, holder: NameLookup, name: str, dotted: str, depth: int) -> NameLookup:
        if holder.module:
            return self._in_module(holder.module, name, depth)
        definition = holder.definition
        if definition is None or not definition.is_class or DUNDER.fullmatch(name):
            return UNKNOWN
        answer = self.member(definition, name, depth)
        if answer.presence is not Presence.MISSING:
            return answer
        if self._may_be_set(definition.module, name):
            return UNKNOWN
        return NameLookup(presence=Presence.MISSING, where=dotted, missing=name)

    def find_method(self, dotted: str) -> NameLookup:
        """Look up `package.module.Class.method` of a call.

        Unlike `find`, it also decides this for classes whose objects may have data attributes with unknown
        names, because data attributes are not methods.
        """
        holder, _, name = dotted.rpartition(".")
        answer = self.find(holder)
        if answer.definition is None or not answer.definition.is_class or DUNDER.fullmatch(name):
            return UNKNOWN
        found = self.member(answer.definition, name, max_openness=Openness.DATA)
        if found.presence is not Presence.MISSING:
            return found
        if self._may_be_set(answer.definition.module, name):
            return UNKNOWN
        return NameLookup(presence=Presence.MISSING, where=holder, missing=name)

    def member(
        self, definition: ApiDefinition, name: str, depth: int = 0, max_openness: Openness = Openness.CLOSED
    ) -> NameLookup:
        """A method or attribute of a class or of its base classes.

        max_openness: a name that the class does not define counts as missing only up to this openness of the
        class; for a more open class it is unknown.
        """
        node = definition.node
        if not isinstance(node, ast.ClassDef) or depth > MAX_DEPTH:
            return UNKNOWN
        nodes = [item for item in flat_statements(node.body) if getattr(item, "name", None) == name]
        if nodes:
            return self._definition(definition.module, nodes)
        if name in self._class_attributes(node):
            return PRESENT
        decorated = decorators(node) - NAME_PRESERVING
        if not has_plain_metaclass(node) or decorated or self._openness(node) > max_openness:
            return UNKNOWN
        unsure = False
        for base in node.bases:
            written = dotted(base.value if isinstance(base, ast.Subscript) else base)
            if written.rpartition(".")[2] in PLAIN_BASES:
                continue
            if written.rpartition(".")[2] == "Module" and name not in TORCH_MODULE and "nn" in written:
                continue
            standard = self._standard(definition.module, written)
            if standard is not None and name not in standard:
                continue
            parent = self.base(definition.module, written, depth + 1)
            answer = self.member(parent, name, depth + 1, max_openness) if parent else UNKNOWN
            if standard is not None:
                answer = PRESENT
            if answer.presence is Presence.FOUND:
                # A base class before this one may define the name too, if its sources are not available.
                return PRESENT if unsure else answer
            unsure = unsure or answer.presence is Presence.UNKNOWN
        return UNKNOWN if unsure else NameLookup(presence=Presence.MISSING, where=node.name, missing=name)

    def _standard(self, module: str, written: str) -> frozenset[str] | None:
        """The names of a standard library class, if `written` refers to one; None for other classes."""
        names = self.names(module)
        head, _, rest = written.partition(".")
        origins = names.imported.get(head, []) if names and head not in names.defined else []
        found = {".".join(filter(None, (*origin, rest))) for origin in origins}
        return STANDARD_BASES.get(found.pop()) if len(found) == 1 else None

    def base(self, module: str, written: str, depth: int = 0) -> ApiDefinition | None:
        """The class that `written` refers to in a module, if this package defines it."""
        head, _, rest = written.partition(".")
        if not head:
            return None
        answer = self._in_module(module, head, depth + 1)
        for attribute in rest.split(".") if rest else ():
            answer = self._inside(answer, attribute, written, depth + 1)
        return answer.definition if answer.definition and answer.definition.is_class else None

    def names(self, module: str) -> ModuleNames | None:
        """The names that a module binds; None when it has no sources or they cannot be parsed."""
        return self._read_names(module)

    def _parse_names(self, module: str) -> ModuleNames | None:
        if module not in self._members:
            return ModuleNames() if module in self._folders else None
        key = (self._members[module], self.source(module))
        if key not in self._known_names:
            tree = self.sources.parse(key[1])
            package = key[0].endswith("/__init__.py")
            self._known_names[key] = read_names(tree, module, package=package) if tree else None
        return self._known_names[key]

    def _may_be_set(self, module: str, name: str) -> bool:
        """Whether other code of the package may set the name, or a parent module mentions it as a string."""
        quoted = re.compile(rb"""["'](?:[\w.{}]*\.)?%s["']""" % re.escape(name).encode())
        parts = module.split(".")
        if any(quoted.search(self.source(".".join(parts[:n]))) for n in range(1, len(parts) + 1)):
            return True
        return self.mentions(module).is_set(name)

    def mentions(self, module: str) -> PackageText:
        """The text of the top-level package that contains a module."""
        return self._package_text(module.partition(".")[0])

    def _collect_text(self, top: str) -> PackageText:
        modules = [module for module in self._members if module.partition(".")[0] == top]
        search = self._search
        if search is None:
            return PackageText(lambda: map(self.source, modules))
        known = {self._members[module] for module in modules}

        def containing(word: bytes) -> Iterable[bytes]:
            return [self.sources.read(file) for file in search(word) if file in known]

        return PackageText(lambda: map(self.source, modules), containing, self._known_tests)

    def calls_of(self, method: str) -> tuple[tuple[str, CallArguments], ...]:
        """Every call `x.method(...)` in the package: its FILE:LINE and its arguments. super() is left out."""
        return self._calls_of(method)

    def _find_calls(self, method: str) -> tuple[tuple[str, CallArguments], ...]:
        found = []
        word = f".{method}(".encode()
        for module, file in self.files():
            tree = parse_source(self.source(module)) if word in self.source(module) else None
            for node in walk(tree) if tree else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    holder = node.func.value
                    by_super = isinstance(holder, ast.Call) and dotted(holder.func) == "super"
                    if node.func.attr == method and not by_super:
                        found.append((f"{file}:{node.lineno}", arguments_of(node)))
        return tuple(found)


def _unreadable(file: Path, error: Exception) -> InputError:
    return InputError("these sources cannot be read", where=Location(file), why=str(error))


def _keeps_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return decorators(node) <= SIGNATURE_PRESERVING


def _modules(names: list[str]) -> dict[str, str]:
    return {module: name for name in names if (module := module_of_file(name))}


@cache
def module_of_file(name: str) -> str:
    """The module that a file is, by its path below a folder of packages, or "". Releases share most files."""
    if not name.endswith(".py"):
        return ""
    path = name[:-3].removesuffix("/__init__")
    return path.replace("/", ".") if all(part.isidentifier() for part in path.split("/")) else ""


def _folders(modules: Iterable[str]) -> set[str]:
    """All packages above the modules."""
    found: set[str] = set()
    new = set(map(_parent, modules))
    while new := new - found - {""}:
        found |= new
        new = set(map(_parent, new))
    return found


@cache
def _parent(module: str) -> str:
    """The package that holds a module, "" for none."""
    return module.rpartition(".")[0]


def _compiled_module(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return ".".join([*folder.split("/"), file.partition(".")[0]]) if folder else file.partition(".")[0]
