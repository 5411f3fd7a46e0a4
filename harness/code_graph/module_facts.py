"""Reads one source file: its top-level definitions, what they refer to, its imports and what runs on import.

Digests are computed from the syntax tree without comments, docstrings and layout, so that a change of prose
changes no key. They do not depend on the version of Python that reads the file.
"""

from __future__ import annotations

import ast
import bisect
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PACKAGE = "harness"
#: The name of a module of this project in a text: a program to start, a plugin to load, `python -c` code.
MENTION = re.compile(rf"(?<![\w./-]){PACKAGE}(?:\.[A-Za-z_]\w*)+")
DATA_HELPERS = ("data_folder", "data_file")
DATA_HELPER_MODULE = f"{PACKAGE}.package"
CHECK_CLASS = f"{PACKAGE}.check:Check"
#: Arguments of `Check` with functions that planning does not call. It calls only `applies`.
RUN_LATER = ("run", "judge", "holds", "holds_fully", "altered")
#: Decorators that neither call nor register the function they decorate, by the last part of their name. A
#: function with any other decorator is counted as reached as soon as its module is imported.
PURE_DECORATORS = frozenset(
    {
        "abstractmethod",
        "asynccontextmanager",
        "cache",
        "cached_property",
        "classmethod",
        "contextmanager",
        "dataclass",
        "final",
        "lru_cache",
        "overload",
        "override",
        "property",
        "runtime_checkable",
        "staticmethod",
        "total_ordering",
        "unique",
        "wraps",
    }
)
#: Functions that do not call the functions passed to them.
STORES_FUNCTION = frozenset({"partial", "field", "getattr", "isinstance", "cast", "MappingProxyType"})
FUNCTION, CLASS, ASSIGNMENT = "function", "class", "assignment"
# Fields of syntax nodes that only some versions of Python have, or that do not affect what the code does.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(kw_only=True)
class Definition:
    """A top-level function, class or assignment.

    references: what it refers to, in the notation that `ModuleFacts` describes.
    called_on_import: what is called when the module is imported and this definition is evaluated:
        `c:a.b` for a function that is called, `a:a.b` for a function that is passed to a call.
    first_line, last_line: where it stands in the file, decorators included.
    """

    kind: str
    digest: str
    references: list[str] = field(default_factory=list)
    called_on_import: list[str] = field(default_factory=list)
    first_line: int = 0
    last_line: int = 0


@dataclass(kw_only=True)
class ModuleFacts:
    """What was read of one source file.

    imports: modules (`harness.a`) and names (`harness.a:b`) of this project that are imported at module
    level.
    bindings: local name -> the module or name of this project that an import binds it to.
    on_import: the statements that are not definitions. They run when the module is imported.
    as_program: the block under `if __name__ == "__main__"`.
    bound_on_import: names that other statements than assignments define, for example a loop at module level.
    problems: code whose references cannot be followed, with its line.

    A reference is a text in one of these forms:
        `name.attribute`             a name within the module
        `=harness.a:name.attribute`  a name that is imported inside a function
        `!harness.a`                 an import inside a function
        `@harness.a.b`               a module that a text names
        `*harness.?.b:NAME`          a name in all modules that match a pattern
        `/folder/file`               package data
        `.`                          the module itself, as a program
    A leading `~` marks a reference that is used when a check is run, but not when it is planned.
    """

    imports: list[str] = field(default_factory=list)
    bindings: dict[str, str] = field(default_factory=dict)
    on_import: Definition = field(default_factory=lambda: Definition(kind=ASSIGNMENT, digest=""))
    as_program: Definition = field(default_factory=lambda: Definition(kind=ASSIGNMENT, digest=""))
    definitions: dict[str, Definition] = field(default_factory=dict)
    bound_on_import: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def facts_to_json(facts: ModuleFacts) -> dict[str, Any]:
    """The facts as JSON, for `facts_from_json`."""
    return {
        **vars(facts),
        "on_import": vars(facts.on_import),
        "as_program": vars(facts.as_program),
        "definitions": {name: vars(definition) for name, definition in facts.definitions.items()},
    }


def facts_from_json(data: dict[str, Any]) -> ModuleFacts:
    """The facts that `facts_to_json` wrote; KeyError, TypeError or AttributeError for other JSON."""
    definitions = {name: Definition(**definition) for name, definition in data["definitions"].items()}
    pieces = {name: Definition(**data[name]) for name in ("on_import", "as_program")}
    return ModuleFacts(**{**data, **pieces, "definitions": definitions})


def mentions(text: str) -> list[str]:
    """The names in a text that may be modules of this project."""
    return sorted(set(MENTION.findall(text))) if PACKAGE in text else []


def read_module(source: bytes, module: str) -> ModuleFacts:
    """The facts of one module; SyntaxError when the source is not valid Python."""
    return _ModuleReader(module, source).read(ast.parse(source))


class _ModuleReader:
    def __init__(self, module: str, source: bytes) -> None:
        self.module = module
        self.facts = ModuleFacts()
        self.top_level_names: set[str] = set()
        # Most definitions contain no import; searching their syntax for one would take a third of the time.
        self._import_lines = [
            number for number, line in enumerate(source.splitlines(), 1) if b"import" in line
        ]

    def read(self, tree: ast.Module) -> ModuleFacts:
        body, programs, other = [], [], []
        for statement in _executed(tree.body):
            if _is_main_guard(statement):
                programs.append(statement)
            else:
                body.append(statement)
        # Collect all names first: a definition may refer to a name that is defined further down.
        for statement in body:
            self._bind(statement)
        self.top_level_names |= {*self.facts.bindings, *self.facts.bound_on_import}
        names: dict[str, list[ast.stmt]] = {}
        for statement in body:
            defined = _defined_names(statement)
            self.top_level_names |= set(defined)
            for name in defined:
                names.setdefault(name, []).append(statement)
        for statement in body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                outside = self._outside(statement)
                if outside:
                    other.append(outside)
            elif not _defined_names(statement) or self._is_registered(statement):
                other.append(statement)
        for name, statements in names.items():
            self.facts.definitions[name] = self._definition(statements, name)
        self.facts.on_import = self._definition(other, "")
        self.facts.as_program = self._definition(programs, "")
        return self.facts

    def may_import(self, scope: ast.stmt) -> bool:
        """Whether the lines of a function or class contain the word `import`."""
        index = bisect.bisect_left(self._import_lines, scope.lineno)
        lines = self._import_lines[index : index + 1]
        return bool(lines) and lines[0] <= (scope.end_lineno or 0)

    def _bind(self, statement: ast.stmt) -> None:
        """Record the imports and names of a statement, also those in its branches."""
        if isinstance(statement, _SCOPES):
            return
        simple = bool(_defined_names(statement))
        for node in _same_scope(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for local, target, imported in self.imported(node):
                    self.facts.imports.append(imported)
                    self.facts.bindings[local] = target
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not simple:
                self.facts.bound_on_import.append(node.id)
            elif isinstance(node, _SCOPES):
                self.facts.bound_on_import.append(node.name)

    def imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str, str]]:
        """(local name, what it is bound to, what is executed) of each import from this project."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] != PACKAGE:
                    continue
                yield (
                    (alias.asname, alias.name, alias.name) if alias.asname else (PACKAGE, PACKAGE, alias.name)
                )
            return
        if node.level:
            self.note_problem(node, "a relative import; write the full name of the module")
            return
        if (node.module or "").split(".")[0] != PACKAGE:
            return
        for alias in node.names:
            if alias.name == "*":
                self.note_problem(node, "a star import; list the imported names")
                continue
            target = f"{node.module}:{alias.name}"
            yield alias.asname or alias.name, target, target

    @staticmethod
    def _outside(node: ast.Import | ast.ImportFrom) -> ast.stmt | None:
        """The part of an import that is not of this project; it fails if that package is not installed."""
        if isinstance(node, ast.ImportFrom):
            return None if (node.module or "").split(".")[0] in {PACKAGE, "__future__"} else node
        others = [alias for alias in node.names if alias.name.split(".")[0] != PACKAGE]
        return ast.Import(names=others, lineno=node.lineno) if others else None

    def _is_registered(self, statement: ast.stmt) -> bool:
        """Whether a decorator may call the definition or register it somewhere."""
        decorators = getattr(statement, "decorator_list", [])
        return not all(self._is_pure(decorator) for decorator in decorators)

    def _is_pure(self, decorator: ast.expr) -> bool:
        chain = _chain(decorator.func if isinstance(decorator, ast.Call) else decorator)
        return bool(chain) and chain[0] not in self.top_level_names and chain[-1] in PURE_DECORATORS

    def _definition(self, statements: list[ast.stmt], name: str) -> Definition:
        if not statements:
            return Definition(kind=ASSIGNMENT, digest="")
        scan = _Scan(self, statements)
        first = statements[0]
        kind = ASSIGNMENT
        if isinstance(first, ast.ClassDef):
            kind = CLASS
        elif isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kind = FUNCTION
        called: dict[str, None] = {}
        if name:
            for statement in statements:
                self._called_on_import(statement, called)
        lines = [statement.lineno for statement in statements]
        lines += [
            decorator.lineno for node in statements for decorator in getattr(node, "decorator_list", [])
        ]
        return Definition(
            kind=kind,
            digest=scan.digest(),
            references=sorted(scan.references),
            called_on_import=list(called),
            first_line=min(lines),
            last_line=max(getattr(statement, "end_lineno", 0) or 0 for statement in statements),
        )

    def _called_on_import(self, node: ast.AST, found: dict[str, None], *, in_call: bool = False) -> None:
        """Record what is called when a definition is evaluated, see `Definition.called_on_import`."""
        if isinstance(node, ast.Lambda) and not in_call:
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                chain = _chain(decorator)
                if chain and chain[0] in self.top_level_names:
                    found[f"c:{'.'.join(chain)}"] = None
            parts = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            for part in parts:
                self._called_on_import(part, found, in_call=in_call)
            return
        if isinstance(node, ast.AnnAssign):
            # The annotation is not evaluated.
            if node.value is not None:
                self._called_on_import(node.value, found, in_call=in_call)
            return
        if isinstance(node, ast.Call):
            chain = _chain(node.func)
            if chain and chain[0] in self.top_level_names:
                found[f"c:{'.'.join(chain)}"] = None
            elif not chain or chain[-1] not in STORES_FUNCTION:
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    passed = _chain(argument)
                    if passed and passed[0] in self.top_level_names:
                        found[f"a:{'.'.join(passed)}"] = None
            in_call = True
        for child in ast.iter_child_nodes(node):
            self._called_on_import(child, found, in_call=in_call)

    def note_problem(self, node: ast.AST, what: str) -> None:
        """Record code whose references cannot be followed."""
        self.facts.problems.append(f"line {getattr(node, 'lineno', 0)}: {what}")


class _Scan:
    """Collects the references and the digest of statements in one pass over their syntax."""

    def __init__(self, reader: _ModuleReader, statements: list[ast.stmt]) -> None:
        self._reader = reader
        self._statements = statements
        self.references: set[str] = set()
        self._text: list[str] = []
        self._local: dict[str, str] = {}
        for statement in statements:
            if isinstance(statement, _SCOPES) and reader.may_import(statement):
                self._local_imports(statement)
        for statement in statements:
            self._visit(statement, in_class=isinstance(statement, ast.ClassDef), follow=True)

    def digest(self) -> str:
        return hashlib.sha256("\0".join(self._text).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _local_imports(self, scope: ast.AST) -> None:
        for node in ast.walk(scope):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for local, target, imported in self._reader.imported(node):
                    self._local[local] = target
                    self.references.add(f"!{imported}")

    def _visit(self, node: ast.AST, *, in_class: bool, follow: bool) -> None:
        """Append a node to the digested text and, if `follow`, record what it refers to."""
        kind = type(node)
        if kind is ast.Constant:
            self._constant(node, follow=follow)
            return
        self._text.append(kind.__name__)
        if kind is ast.Name:
            self._text.append(node.id)  # type: ignore[attr-defined]
            if follow:
                self._name([node.id])  # type: ignore[attr-defined]
            return
        if kind is ast.Attribute:
            chain = _chain(node)
            if chain:
                self._text.append(".".join(chain))
                if follow:
                    self._name(chain)
                return
            if follow and self._imported_attribute(node):  # type: ignore[arg-type]
                follow = False
        if follow and kind is ast.Call:
            self._call(node)  # type: ignore[arg-type]
        if follow and kind is ast.JoinedStr:
            self._pattern(node, "")
        later = follow and kind is ast.Call and self._is_check(node)
        evaluated_later = kind is ast.AnnAssign and not in_class
        inner_class = kind is ast.ClassDef
        for name in node._fields:
            value = getattr(node, name, None)
            if name in _IGNORED_FIELDS or value is None or value == []:
                continue
            self._text.append(name)
            deeper = follow and not (
                name == "returns"
                or (name == "annotation" and (kind is ast.arg or evaluated_later))
                or (kind is ast.ImportFrom)
            )
            if isinstance(value, list):
                self._text.append("[")
                for item in value:
                    if not isinstance(item, ast.AST):
                        self._text.append(repr(item))
                    elif not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
                        inside = inner_class if name == "body" else in_class and kind is not ast.FunctionDef
                        if later and isinstance(item, ast.keyword) and item.arg in RUN_LATER:
                            self._run_later(item)
                        else:
                            self._visit(item, in_class=inside, follow=deeper)
                self._text.append("]")
            elif isinstance(value, ast.AST):
                self._visit(value, in_class=in_class, follow=deeper)
            else:
                self._text.append(repr(value))

    def _run_later(self, keyword: ast.keyword) -> None:
        known = set(self.references)
        self._visit(keyword, in_class=False, follow=True)
        self.references = known | {f"~{reference}" for reference in self.references - known}

    def _constant(self, node: Any, *, follow: bool) -> None:
        self._text.append(repr(node.value))
        if follow and isinstance(node.value, str):
            self.references.update(f"@{name}" for name in mentions(node.value))
            # The beginning of an f-string is handled as part of a pattern of module names.
            in_pattern = getattr(node, "in_pattern", False)
            if not in_pattern and re.fullmatch(rf"{PACKAGE}(\.\w+)*\.", node.value):
                self._reader.note_problem(node, "a module name that is put together from parts")

    def _name(self, chain: list[str]) -> None:
        local = self._local.get(chain[0])
        if local is not None:
            module, _, name = local.partition(":")
            self.references.add(f"={module}:{'.'.join([*([name] if name else []), *chain[1:]])}")
        if chain[0] in self._reader.top_level_names:
            self.references.add(".".join(chain))
        elif chain[0] in {"__spec__", "__file__"} or (chain[0] == "__name__" and local is None):
            self.references.add(".")

    def _target(self, function: ast.expr) -> str:
        """The called function as `harness.a:name`, or the last part of its name if it is foreign."""
        chain = _chain(function)
        if not chain:
            return ""
        bound = self._local.get(chain[0]) or self._reader.facts.bindings.get(chain[0])
        if bound is None:
            is_own = chain[0] in self._reader.top_level_names
            return f"{self._reader.module}:{chain[0]}" if is_own else chain[-1]
        if len(chain) == 1:
            return bound
        return f"{bound.replace(':', '.')}:{chain[-1]}"

    def _is_check(self, node: Any) -> bool:
        return self._target(node.func) == CHECK_CLASS

    def _call(self, node: ast.Call) -> None:
        target = self._target(node.func)
        if target in {f"{DATA_HELPER_MODULE}:{name}" for name in DATA_HELPERS}:
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                self.references.add(f"/{argument.value.strip('/')}")
            elif self._reader.module != DATA_HELPER_MODULE:
                self._reader.note_problem(node, "package data whose name is not a literal")

    def _imported_attribute(self, node: ast.Attribute) -> bool:
        """Record `import_module("harness.a").name` as a reference to that name; False for other code."""
        call = node.value
        if not (isinstance(call, ast.Call) and call.args and _chain(call.func)[-1:] == ["import_module"]):
            return False
        module = call.args[0]
        name = module.value if isinstance(module, ast.Constant) else None
        if isinstance(name, str) and mentions(name) == [name]:
            self.references |= {f"!{name}", f"={name}:{node.attr}"}
            return True
        if isinstance(module, ast.JoinedStr):
            return self._pattern(module, node.attr)
        return False

    def _pattern(self, node: Any, attribute: str) -> bool:
        """Record an f-string that begins with `harness.` as a reference to all modules that match it."""
        parts = [str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values]
        for part in node.values:
            if isinstance(part, ast.Constant):
                part.in_pattern = True  # type: ignore[attr-defined]
        text = "".join(parts)
        if re.fullmatch(rf"{PACKAGE}(\.[\w?]+)+", text) and "?" in text:
            self.references.add(f"*{text}:{attribute}")
            return True
        return False


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that do something on import, without blocks for type checkers and docstrings."""
    for statement in body:
        if isinstance(statement, ast.If) and _is_type_checking(statement.test):
            yield from _executed(statement.orelse)
        elif (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)) or (
            isinstance(statement, ast.AnnAssign) and statement.value is None
        ):
            continue
        elif not isinstance(statement, ast.Pass):
            yield statement


def _is_type_checking(test: ast.expr) -> bool:
    return _chain(test)[-1:] == ["TYPE_CHECKING"]


def _is_main_guard(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.test, ast.Compare)
        and _chain(statement.test.left) == ["__name__"]
    )


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, _SCOPES):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    names: list[str] = []
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Name):
            names.append(target.id)
        elif isinstance(target, ast.Tuple):
            targets.extend(target.elts)
        else:
            return []
    return names


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything below it, without the bodies of functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            yield child
        else:
            yield from _same_scope(child)


def _chain(node: ast.AST) -> list[str]:
    """The parts of `a.b.c`; empty if the expression does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    return [node.id, *reversed(parts)]
