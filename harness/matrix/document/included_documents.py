"""`include:` in matrix.yaml: the included matrices and the own entries, as one document with positions.

An own entry replaces the included entry of the same name as a whole, because a stack with a changed version
no longer is what its source says. Only axes are merged key by key, so that `axes: {verl: {repository: ...}}`
is enough to use another clone. Own pins and overrides come after the included ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import __version__
from harness.errors import InputError, Location, Problem
from harness.matrix.document.yaml_positions import Document, NodePath, load_yaml, parse_yaml
from harness.package import shipped_file

SHIPPED_NAME = "npu-matrix"
INCLUDE = "include"
_SHIPPED = re.compile(rf"{SHIPPED_NAME}:(.*)")
_MERGED = "axes"
_LISTS = ("pins", "overrides", "patches")
_MAX_INCLUDES = 20


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """An entry that replaces an included one, or keys of an axis that do. name: as in `stacks.my-stack`."""

    name: str
    where: Location
    included: Location


@dataclass(frozen=True, kw_only=True)
class LayeredDocument(Document):
    """The document of a file with includes.

    owners: the first two parts of a path -> the documents that define this entry, and its path there; the
    last of them wins. files: the included files of the checkout. replaced: the included entries that have an
    own entry.
    """

    owners: Mapping[NodePath, Sequence[tuple[Document, NodePath]]] = field(repr=False)
    files: tuple[Path, ...] = ()
    replaced: tuple[Replacement, ...] = ()

    @property
    def includes_shipped(self) -> bool:
        """Whether the shipped matrix is among the included ones."""
        return any(
            str(document.file).startswith(f"{SHIPPED_NAME}:")
            for owners in self.owners.values()
            for document, _ in owners
        )

    def where(self, path: NodePath, *, key: bool = False) -> Location:
        """Location of the value at `path` in the file that defines it, see `Document.where`."""
        owners = self.owners.get(path[:2], ())
        for document, place in reversed(owners):
            inner = (*place, *path[2:])
            if inner in (document.keys if key else document.values):
                return document.where(inner, key=key)
        if owners:
            document, place = owners[-1]
            return document.where((*place, *path[2:]), key=key)
        return super().where(path, key=key)


def with_includes(document: Document, file: Path | None) -> Document:
    """The document with what it includes; the document itself if it includes nothing.

    file: the path of the document, from which included files are named; None for a text, which can include
    the shipped matrix only. InputError for everything that goes wrong, with its position.
    """
    if not isinstance(document.data, dict) or INCLUDE not in document.data:
        return document
    top = file.parent if file else None
    layers: list[Document] = []
    _collect(document, file, top, (), layers)
    return _merged(layers, document)


def _collect(
    document: Document, file: Path | None, top: Path | None, chain: Sequence[Path], layers: list[Document]
) -> None:
    """Add what `document` includes, and then the document, to `layers`; each file once."""
    own = Path(os.path.realpath(file)) if file else None
    chain = [*chain, own] if own else list(chain)
    named = document.data.get(INCLUDE) if isinstance(document.data, dict) else None
    entries = [
        ((INCLUDE, index) if isinstance(named, list) else (INCLUDE,), word)
        for index, word in enumerate(named if isinstance(named, list) else [] if named is None else [named])
    ]
    for path, word in entries:
        where = document.where(path)
        if not isinstance(word, str) or not word.strip():
            raise InputError(
                "'include' must be a text, or a list of texts",
                where=where,
                fix=f"write include: {SHIPPED_NAME}:{__version__}",
            )
        shipped = _SHIPPED.fullmatch(word)
        if shipped:
            _require_installed(shipped[1], where)
            target = Path(os.path.realpath(shipped_file("matrix.yaml")))
        else:
            target = _included_file(word, top, where)
        if target in chain:
            names = " -> ".join([*(one.name for one in chain), target.name])
            raise InputError(
                f"files include each other in a cycle: {names}", where=where, fix="remove one of the includes"
            )
        if any(os.path.realpath(str(layer.file)) == str(target) or layer.file == word for layer in layers):
            continue
        if len(layers) >= _MAX_INCLUDES:
            raise InputError(f"more than {_MAX_INCLUDES} files are included", where=where)
        inner = parse_yaml(_read_shipped(target, where), word) if shipped else load_yaml(target)
        if not isinstance(inner.data, dict):
            raise InputError(
                "an included file must be a mapping",
                where=Location(inner.file, 1, 1),
                why=f"included at {where}",
            )
        _collect(inner, target, top, chain, layers)
    layers.append(document)


def _require_installed(version: str, where: Location) -> None:
    if version == __version__:
        return
    raise InputError(
        f"{SHIPPED_NAME} {version or '(no version)'} is included, but {__version__} is installed",
        where=where,
        why="the shipped matrix, patches and checks belong together, in one version",
        fix=f"install {SHIPPED_NAME}=={version or 'VERSION'}, or write include: {SHIPPED_NAME}:{__version__} "
        "and look at what it changes: npu-matrix plan --changed-since HEAD",
    )


def _included_file(word: str, top: Path | None, where: Location) -> Path:
    if top is None or word.startswith(SHIPPED_NAME) or ":" in word:
        raise InputError(
            f"{word!r} cannot be included",
            where=where,
            fix=f"write {SHIPPED_NAME}:{__version__}, or the path of a file below the folder of matrix.yaml",
        )
    target, root = Path(os.path.realpath(top / word)), Path(os.path.realpath(top))
    if not target.is_relative_to(root):
        raise InputError(
            f"{word!r} is outside the folder of matrix.yaml",
            where=where,
            why="a file that is not in the repository has no revisions, so no gate could compare it",
            fix="copy the file into the repository",
        )
    if not target.is_file():
        raise InputError(f"the included file {word!r} does not exist", where=where, fix="check the path")
    return target


def _read_shipped(file: Path, where: Location) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            "the shipped matrix cannot be read", where=where, why=str(error), fix="install npu-matrix again"
        ) from error


def _merged(layers: Sequence[Document], own: Document) -> LayeredDocument:
    data: dict[str, Any] = {}
    owners: dict[NodePath, list[tuple[Document, NodePath]]] = {}
    replaced: list[Replacement] = []
    problems: list[Problem] = []
    for layer in layers:
        problems += layer.problems
        for section, entries in layer.data.items():
            if section == INCLUDE:
                continue
            before = data.get(section)
            if isinstance(entries, dict) and (before is None or isinstance(before, dict)):
                data[section] = dict(before or {})
                for name, entry in entries.items():
                    path = (section, name)
                    if name in data[section]:
                        replaced.append(
                            Replacement(
                                name=f"{section}.{name}",
                                where=layer.where(path, key=True),
                                included=owners[path][-1][0].where(owners[path][-1][1], key=True),
                            )
                        )
                    keeps = section == _MERGED and isinstance(entry, dict)
                    known = data[section].get(name) if keeps else None
                    data[section][name] = _deep(known, entry) if isinstance(known, dict) else entry
                    owners[path] = [*(owners.get(path, []) if keeps else []), (layer, path)]
            elif (
                isinstance(entries, list)
                and section in _LISTS
                and (before is None or isinstance(before, list))
            ):
                start = len(before or [])
                data[section] = [*(before or []), *entries]
                owners |= {(section, start + i): [(layer, (section, i))] for i in range(len(entries))}
            else:
                # Not what the section must be: the position of the later file belongs to the error.
                data[section] = entries
    return LayeredDocument(
        file=own.file,
        data=data,
        values=own.values,
        keys=own.keys,
        problems=tuple(problems),
        owners=owners,
        files=tuple(
            Path(layer.file) for layer in layers if isinstance(layer.file, Path) and layer is not own
        ),
        replaced=tuple(replaced),
    )


def _deep(before: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of both; mappings below them are merged in the same way."""
    merged = dict(before)
    for key, value in entry.items():
        old = merged.get(key)
        merged[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
