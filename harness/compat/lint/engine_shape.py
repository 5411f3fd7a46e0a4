"""What vLLM makes of the arguments that it is started with, by the outlines of the surface pack.

`EngineArgs` names, for each argument, the field of a section that it becomes; `VllmConfig` has the sections.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.compat.knowledge.surface_pack import ReleaseSurface
from harness.compat.lint.dry_run.program_values import Value

_ARGUMENTS, _CONFIGURATION = "EngineArgs", "VllmConfig"
_ARGUMENTS_FILE, _FOLDER = "vllm/engine/arg_utils.py", "vllm/config"
#: The sizes of the job are not computed from anything else, as other defaults of vLLM are.
_PLAIN_SECTION = "parallel_config"


@dataclass(frozen=True, kw_only=True)
class EngineShape:
    """The configuration of one release of vLLM.

    sections: the names of its sections. fields: argument -> the sections and fields that it becomes.
    defaults: the fields of a section whose default stays as it is. unset: sections that are None unless an
    argument of their name is given. closed: the fields of sections whose class refuses any other.
    """

    sections: frozenset[str]
    fields: Mapping[str, tuple[tuple[str, str], ...]]
    defaults: Mapping[str, Mapping[str, Value]]
    unset: frozenset[str]
    closed: Mapping[str, frozenset[str]]


@functools.lru_cache(4)
def engine_shape(version: str) -> EngineShape | None:
    """The configuration of a release of vLLM; None if the pack does not have it."""
    pack = shipped_pack().pack
    release = pack.release("vllm", version) if pack is not None and version else None
    if release is None:
        return None
    nodes = {node.name: node for node in _nodes(release)}
    classes = {name: _fields(node) for name, node in nodes.items()}
    arguments, sections = classes.get(_ARGUMENTS, {}), classes.get(_CONFIGURATION, {})
    of_class = {name.lower(): name for name in classes}
    class_of = {
        section: of_class[plain] for section in sections if (plain := section.replace("_", "")) in of_class
    }
    fields = {
        argument: tuple(
            (section, field)
            for section, name in class_of.items()
            if (field := _field(argument, value, name, classes[name]))
        )
        for argument, value in arguments.items()
    }
    sizes = classes.get(class_of.get(_PLAIN_SECTION, ""), {})
    return EngineShape(
        sections=frozenset(sections),
        fields={name: found for name, found in fields.items() if found},
        defaults={
            _PLAIN_SECTION: {
                name: default for name, value in sizes.items() if isinstance(default := _default(value), int)
            }
        },
        unset=frozenset(
            name
            for name, value in sections.items()
            if name in arguments and isinstance(value, ast.Constant) and value.value is None
        ),
        closed={
            section: frozenset(annotated_fields(nodes[name]))
            for section, name in class_of.items()
            if section in arguments and _refuses_others(nodes[name])
        },
    )


def _refuses_others(node: ast.ClassDef) -> bool:
    """Whether a class has only fields of its own: those of vLLM's decorator without arguments."""
    return not node.bases and [ast.unparse(one) for one in node.decorator_list] == ["config"]


def _nodes(release: ReleaseSurface) -> Iterator[ast.ClassDef]:
    """The classes that state arguments and sections."""
    for path in sorted(release.names()):
        if path != _ARGUMENTS_FILE and not (path.startswith(_FOLDER) and path.endswith(".py")):
            continue
        module = release.parse(release.read(path))
        yield from (
            one for one in (module.body if module is not None else ()) if isinstance(one, ast.ClassDef)
        )


def _fields(node: ast.ClassDef) -> Mapping[str, ast.expr]:
    """The fields of a class with their defaults."""
    return {name: value for name, value in annotated_fields(node).items() if value is not None}


def annotated_fields(node: ast.ClassDef) -> Mapping[str, ast.expr | None]:
    """All fields of a class; None for one without a default, which must be given."""
    return {
        one.target.id: one.value
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def _field(argument: str, value: ast.expr, name: str, fields: Mapping[str, ast.expr]) -> str:
    """The field of a class that an argument becomes; "" if it becomes none.

    The argument's default names the field. Where it does not, a field has the argument's name.
    """
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return value.attr if value.value.id == name else ""
    return argument if argument in fields else ""


def _default(value: ast.expr) -> object:
    """The default that a field states as a number or text; None if it does not."""
    if isinstance(value, ast.Call):
        stated = [one.value for one in value.keywords if one.arg == "default"] + value.args[:1]
        return _default(stated[0]) if stated else None
    return value.value if isinstance(value, ast.Constant) else None
