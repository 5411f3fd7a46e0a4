"""Definitions by their last name, as error messages write them, over all releases of a package.

`InputBatch.__init__` in a message does not say in which module the class is, and the module differs between
releases. So every definition of that name in a release is looked at: a use works if it works with any of
them, and fails only if it fails with all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from harness.compat.knowledge.surface_pack import (
    InRelease,
    NameHistory,
    ReleaseSurface,
    SurfacePack,
    in_release,
    signatures_of,
)
from harness.compat.surface.api_surface import ApiDefinition, ApiSurface, Presence, module_of_file
from harness.compat.surface.call_signature import CallSignature, signature_of
from harness.compat.surface.dynamic_attributes import Openness
from harness.compat.surface.module_names import decorators, dotted
from harness.sources.packages.lockfile import normal_name

#: Whether a use of a definition, given by its dotted name, works in a release.
UseTest = Callable[[ApiSurface, str], InRelease]
#: More modules of one package than this define names such as `forward`: nothing follows from them.
MOST_MODULES = 12
#: Base classes of pydantic and msgspec without fields.
MODELS = frozenset({"BaseModel", "Struct"})


@dataclass(frozen=True, kw_only=True)
class BaseInOtherPackage:
    """A base class from another package, by its last name."""

    package: str
    name: str


def definition_history(
    pack: SurfacePack, package: str, name: str, works: UseTest, failed_in: str = ""
) -> NameHistory:
    """Over which releases of a package a use of `Class`, `Class.method` or `function` works.

    UNKNOWN for releases that do not define the first part of the name. The use has failed, so a module in
    whose definition it works in every release is not the one that is meant, nor is one that tells nothing; if
    the release `failed_in` is in the pack, the module is one in which it fails there.
    """
    first, _, rest = name.partition(".")
    surfaces = list(pack.surfaces(package))
    paths = _changing([surface for _version, surface in surfaces if surface], pack, package, first)
    states: dict[str, list[InRelease | None]] = {
        path: [] for path in (paths if len(paths) <= MOST_MODULES else ())
    }
    for _version, surface in surfaces:
        for path, found in states.items():
            found.append(_state_in(surface, path, first, rest, works))
        if surface is not None:
            # Of all releases it is much.
            surface.forget()
    versions = [version for version, _surface in surfaces]
    at = versions.index(failed_in) if failed_in in versions else None
    meant = [one for one in states.values() if at is not None and one[at] is InRelease.MISSING]
    meant = meant or [one for one in states.values() if _differs(one)] or list(states.values())
    releases = []
    for number, (version, surface) in enumerate(surfaces):
        known = [state for one in meant if (state := one[number]) is not None]
        state = InRelease.NOT_READ if surface is None else _joined(known)
        releases.append((version, state))
    return NameHistory(package=normal_name(package), name=name, releases=tuple(releases))


def _changing(
    surfaces: Sequence[ReleaseSurface], pack: SurfacePack, package: str, name: str
) -> tuple[str, ...]:
    """The modules with a class or function, without placeholders that are the same in every release.

    Modules of placeholders (`dummy_pt_objects`) are large, so reading them in every release takes seconds.
    """
    paths = pack.modules_defining(package, name)
    if len(paths) < 2:
        return paths
    placeholder = re.compile(rb"^class %s(?:\(metaclass=\w+\))?:\n(?: .*\n)*" % name.encode(), re.MULTILINE)
    stated, found = b"class %s" % name.encode(), []
    for path in paths:
        texts = {text for surface in surfaces if stated in (text := surface.read(path))}
        blocks = {block[0] if (block := placeholder.search(text)) else b"" for text in texts}
        if len(blocks) != 1 or b"" in blocks:
            found.append(path)
    return tuple(found) or paths


def _differs(states: list[InRelease | None]) -> bool:
    known = {*states} - {None}
    return InRelease.MISSING in known or len(known) > 1


def _state_in(
    surface: ReleaseSurface | None, path: str, first: str, rest: str, works: UseTest
) -> InRelease | None:
    """Whether the use works with the definition in one module of a release; None if it has none."""
    module = module_of_file(path)
    if surface is None or path not in surface.names() or first not in _defined(surface.api, module):
        return None
    return works(surface.api, ".".join(filter(None, (module, first, rest))))


def has_attribute(attribute: str) -> UseTest:
    """Whether objects of a class have an attribute or method."""

    def works(api: ApiSurface, name: str) -> InRelease:
        definition = api.find(name).definition
        if definition is None or not definition.is_class:
            return InRelease.UNKNOWN
        return in_release(api.find(f"{name}.{attribute}").presence)

    return works


def is_class(api: ApiSurface, name: str) -> InRelease:
    """Whether a name is that of a class."""
    definition = api.find(name).definition
    return InRelease.FOUND if definition is not None and definition.is_class else InRelease.UNKNOWN


def every_object_has(attribute: str) -> UseTest:
    """Whether every object of a class has an attribute: a method, or a field that its body gives a value.

    What a method assigns, an object may not have yet; a property may raise the error that says it is missing.
    """

    def works(api: ApiSurface, name: str) -> InRelease:
        definition = api.find(name).definition
        if definition is None or not isinstance(definition.node, ast.ClassDef):
            return InRelease.UNKNOWN
        found = in_release(api.find(f"{name}.{attribute}").presence)
        if found is not InRelease.FOUND:
            return found
        node, method = definition.node, api.member(definition, attribute).definition
        is_method = method is not None and _is_plain_method(method.node)
        takes_fields = _takes_fields(definition)
        is_field = any(_gives_field(one, attribute, takes_fields=takes_fields) for one in node.body)
        return InRelease.FOUND if is_method or is_field else InRelease.UNKNOWN

    return works


def _is_plain_method(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return decorators(node) <= {"staticmethod", "classmethod", "abstractmethod"}


def _gives_field(node: ast.stmt, name: str, *, takes_fields: bool) -> bool:
    """Whether a statement of a class's body gives its objects a field, if only by their `__init__`."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id != name:
        return False
    if not isinstance(node.value, ast.Call):
        return takes_fields or node.value is not None
    options = {one.arg: one.value for one in node.value.keywords}
    init = options.get("init")
    is_left_out = isinstance(init, ast.Constant) and init.value is False
    return takes_fields and (not is_left_out or bool({"default", "default_factory"} & options.keys()))


def sets_attribute(attribute: str) -> UseTest:
    """Whether a class or a base in its package names an attribute. Other bases can have more of them."""

    def works(api: ApiSurface, name: str) -> InRelease:
        definition = api.find(name).definition
        if definition is None or not definition.is_class:
            return InRelease.UNKNOWN
        found = api.find(f"{name}.{attribute}").presence is Presence.FOUND
        return InRelease.FOUND if found else InRelease.MISSING

    return works


def takes_keyword(parameter: str) -> UseTest:
    """Whether a function, method or `__init__` takes a keyword."""

    def accepts(one: CallSignature) -> InRelease:
        if parameter in (*one.positional, *one.keyword_only):
            return InRelease.FOUND
        return InRelease.UNKNOWN if one.var_keywords else InRelease.MISSING

    def works(api: ApiSurface, name: str) -> InRelease:
        signatures = _called(api, name)
        if signatures:
            return _joined([accepts(one) for one in signatures])
        owner = api.find(name.removesuffix(".__init__")).definition
        if not _takes_fields(owner):
            return InRelease.UNKNOWN
        # The `__init__` of a dataclass takes its fields, and those of its bases.
        found = in_release(api.member(owner, parameter).presence)
        return InRelease.MISSING if found is InRelease.UNKNOWN and _has_own_fields(owner) else found

    return works


def lacks_keyword(parameter: str) -> UseTest:
    """Whether a function or method has no such parameter, so that no caller passes it."""
    return _opposite(takes_keyword(parameter))


def lacks_positional(given: int) -> UseTest:
    """Whether a function or method takes fewer positional arguments, so that no caller passes that many."""
    return _opposite(takes_positional(given))


def _opposite(works: UseTest) -> UseTest:
    opposite = {InRelease.FOUND: InRelease.MISSING, InRelease.MISSING: InRelease.FOUND}
    return lambda api, name: opposite.get(found := works(api, name), found)


def works_without(parameters: tuple[str, ...]) -> UseTest:
    """Whether a function, method or `__init__` can be called without these arguments."""

    def accepts(one: CallSignature) -> InRelease:
        return InRelease.MISSING if one.needed & set(parameters) else InRelease.FOUND

    return lambda api, name: _joined([accepts(one) for one in _called(api, name)])


def takes_positional(given: int) -> UseTest:
    """Whether a function takes this many positional arguments. For a method, `self` is one of them."""

    def works(api: ApiSurface, name: str) -> InRelease:
        definition = _function(api, name)
        states = []
        for one in _own_signatures(definition) if definition else ():
            count = len(one.positional_only) + len(one.positional)
            enough = one.var_positional or count >= given
            states.append(InRelease.FOUND if enough else InRelease.MISSING)
        return _joined(states)

    return works


def defines_all(methods: tuple[str, ...]) -> UseTest:
    """Whether a class defines each of these methods itself or by inheritance, and not as abstract ones."""

    def works(api: ApiSurface, name: str) -> InRelease:
        definition = api.find(name).definition
        if definition is None or not definition.is_class:
            return InRelease.UNKNOWN
        states = [_concrete(api, definition, method) for method in methods]
        if InRelease.MISSING in states:
            return InRelease.MISSING
        return InRelease.FOUND if set(states) == {InRelease.FOUND} else InRelease.UNKNOWN

    return works


def needs_none_of(methods: tuple[str, ...]) -> UseTest:
    """Whether none of these methods is abstract in a class."""

    def works(api: ApiSurface, name: str) -> InRelease:
        definition = api.find(name).definition
        if definition is None or not definition.is_class:
            return InRelease.UNKNOWN
        abstract = any(_is_abstract(api.member(definition, method).definition) for method in methods)
        return InRelease.MISSING if abstract else InRelease.FOUND

    return works


def bases_in_other_packages(
    pack: SurfacePack, package: str, version: str, name: str
) -> tuple[BaseInOtherPackage, ...]:
    """The base classes of `Class` that other packages of the pack define. version: "" for the newest."""
    for found_version, surface in reversed(list(pack.surfaces(package))):
        if surface is not None and version in ("", found_version):
            found = dict.fromkeys(_foreign_bases(pack, package, surface.api, name))
            if found:
                return tuple(found)
    return ()


def _foreign_bases(
    pack: SurfacePack, package: str, api: ApiSurface, name: str, depth: int = 0
) -> Iterator[BaseInOtherPackage]:
    for path in pack.modules_defining(package, name):
        module = module_of_file(path)
        for node in _defined(api, module).get(name, ()):
            for base in node.bases if isinstance(node, ast.ClassDef) and depth < 4 else ():
                written = dotted(base.value if isinstance(base, ast.Subscript) else base)
                origin = _origin(api, module, written)
                other = pack.package_of(origin) if origin else ""
                if other and other != normal_name(package):
                    yield BaseInOtherPackage(package=other, name=origin.rpartition(".")[2])
                elif written.rpartition(".")[2] != name:
                    yield from _foreign_bases(pack, package, api, written.rpartition(".")[2], depth + 1)


def _origin(api: ApiSurface, module: str, written: str) -> str:
    """The dotted name that `written` was imported from in a module, or ""."""
    head, _, rest = written.partition(".")
    names = api.names(module)
    sources = names.imported.get(head, []) if names else []
    return ".".join(filter(None, (*sources[0], rest))) if sources else ""


def _defined(api: ApiSurface, module: str) -> dict[str, list[ast.stmt]]:
    names = api.names(module)
    return names.defined if names else {}


def _called(api: ApiSurface, name: str) -> tuple[CallSignature, ...]:
    """The signatures of what a call of this name calls, without `self`."""
    definition = _function(api, name)
    if definition is None or definition.is_class:
        return signatures_of(api, name)
    node = definition.node
    holder = api.find(name.rpartition(".")[0]).definition
    is_method = name.endswith(".__init__") or (holder is not None and holder.is_class)
    static = isinstance(node, ast.FunctionDef) and "staticmethod" in decorators(node)
    return tuple(one.bound() if is_method and not static else one for one in _own_signatures(definition))


def _own_signatures(definition: ApiDefinition) -> tuple[CallSignature, ...]:
    """The signatures that a function states, whatever its decorators make of it.

    The message of a failed call names the function that was called in the end, which is the decorated one.
    """
    node = definition.node
    if definition.signatures or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return definition.signatures
    return () if "overload" in decorators(node) else (signature_of(node),)


def _function(api: ApiSurface, name: str) -> ApiDefinition | None:
    holder, _, method = name.rpartition(".")
    if method == "__init__":
        owner = api.find(holder).definition
        return api.member(owner, method).definition if owner else None
    return api.find(name).definition or api.find_method(name).definition


def _concrete(api: ApiSurface, definition: ApiDefinition, method: str) -> InRelease:
    found = api.member(definition, method, max_openness=Openness.DATA)
    if _is_abstract(found.definition):
        return InRelease.MISSING
    node = definition.node
    own = isinstance(node, ast.ClassDef) and any(getattr(item, "name", "") == method for item in node.body)
    # A base class of another package may define it; whether it is abstract there is not known here.
    return InRelease.FOUND if own else in_release(found.presence) if found.definition else InRelease.MISSING


def _takes_fields(definition: ApiDefinition | None) -> TypeGuard[ApiDefinition]:
    """Whether a class is a dataclass, or a model of pydantic or msgspec."""
    node = definition.node if definition else None
    if not isinstance(node, ast.ClassDef):
        return False
    return "dataclass" in decorators(node) or bool(_bases(node) & MODELS)


def _has_own_fields(definition: ApiDefinition) -> bool:
    """Whether all fields of a class that takes its fields are in its body."""
    node = definition.node
    return isinstance(node, ast.ClassDef) and _bases(node) <= MODELS


def _bases(node: ast.ClassDef) -> set[str]:
    return {dotted(base).rpartition(".")[2] for base in node.bases}


def _is_abstract(definition: ApiDefinition | None) -> bool:
    node = definition.node if definition else None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return bool(decorators(node) & {"abstractmethod", "abstractproperty"})


def _joined(states: list[InRelease]) -> InRelease:
    """One works: it works. All fail: it fails. Otherwise nothing is known."""
    if InRelease.FOUND in states:
        return InRelease.FOUND
    return InRelease.MISSING if states and set(states) == {InRelease.MISSING} else InRelease.UNKNOWN
