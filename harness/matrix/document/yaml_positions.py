"""YAML with positions: plain Python data, and the line and column of every key and value.

Only `true`, `false`, `null` and decimal integers are resolved; every other scalar stays the text that was
written, because YAML would turn the version 8.10 into the number 8.1, `3:15` into 195 and `on` into true.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.errors import InputError, Location, Problem

MAX_BYTES = 5 << 20
MAX_DEPTH = 40
MAX_PROBLEMS = 50

# CBaseLoader resolves nothing, so the rule below is the only one; libyaml is missing from some builds.
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "": None}
_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "bool", "null", "map", "seq")} | {"!"}

NodePath = tuple[str | int, ...]
Mark = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Document:
    """The data of a file, and the position of each part (lines and columns count from 1).

    problems: duplicate keys; the data contains the first value of each, so that the rest is checked too.
    """

    file: Path | str
    data: Any
    values: dict[NodePath, Mark] = field(repr=False)
    keys: dict[NodePath, Mark] = field(repr=False)
    problems: tuple[Problem, ...] = ()

    def where(self, path: NodePath, *, key: bool = False) -> Location:
        """Location of the value at `path` (of its key when `key`), or of the nearest part that exists."""
        for end in range(len(path), -1, -1):
            known = self.keys if key and end == len(path) else self.values
            mark = known.get(path[:end])
            if mark is not None:
                return Location(self.file, *mark)
        return Location(self.file)


def load_yaml(path: Path) -> Document:
    """Read a YAML file, see `parse_yaml`."""
    return parse_yaml(_read_text(path), path)


def parse_yaml(text: str, file: Path | str) -> Document:
    """The document in `text`; `file` names it in errors. Raises InputError only.

    Duplicate keys do not stop the reading; they are listed in the document's `problems`.
    """
    bad = _UNPRINTABLE.search(text)
    if bad:
        where = _location(file, text, bad.start())
        raise InputError(
            f"character U+{ord(bad.group()):04X} is not allowed in YAML",
            where=where,
            fix="write it as an escape in double quotes, or remove it",
        )
    reader = _EventReader(file)
    try:
        reader.read(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        if "nesting" in (error.problem or ""):
            _refuse_nesting(file, text)
        raise InputError.of(
            [*reader.problems[: MAX_PROBLEMS - 1], _syntax_problem(file, text, error)]
        ) from error
    if not reader.documents:
        raise InputError(
            "the file is empty", where=Location(file, 1, 1), fix="see `npu-matrix matrix schema`"
        )
    return Document(
        file=file,
        data=reader.documents[0],
        values=reader.values,
        keys=reader.keys,
        problems=tuple(reader.problems[:MAX_PROBLEMS]),
    )


def _refuse_nesting(file: Path | str, text: str) -> None:
    """Raise the InputError of this module for a text that libyaml refuses because of its depth.

    From 0.2.6 on libyaml has a limit of its own, far above `MAX_DEPTH`. To see whether a bracket starts a key
    it scans ahead, and thus stops before it has reported the level that is one too deep. The parser in Python
    has no limit.
    """
    # Whatever else is wrong, the caller reports the error of libyaml.
    with suppress(yaml.MarkedYAMLError):
        _EventReader(file).read(yaml.parse(text, Loader=yaml.BaseLoader))


def _read_text(path: Path) -> str:
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
            raw = stream.read(MAX_BYTES + 1) if regular else b""
    except OSError as error:
        raise InputError(
            f"cannot read {path}",
            where=Location(path),
            why=error.strerror or str(error),
            fix="check the path, or pass another file with --matrix",
        ) from error
    if not regular:
        raise InputError(
            f"{path} is not a regular file",
            where=Location(path),
            why="the matrix is read more than once, which is impossible for a pipe or a device",
            fix="write the matrix to a file, and pass it with --matrix",
        )
    if len(raw) > MAX_BYTES:
        raise InputError(
            f"the file is larger than {MAX_BYTES >> 20} MB",
            where=Location(path),
            why="a matrix is written by hand and never this large",
            fix="check that this is the right file",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        raise InputError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            where=_location(path, before, len(before)),
            fix="save the file as UTF-8",
        ) from error


class _EventReader:
    """Builds data from YAML events without recursion, so that deep nesting cannot overflow the call stack."""

    def __init__(self, file: Path | str) -> None:
        self.file = file
        self.documents: list[Any] = []
        self.values: dict[NodePath, Mark] = {}
        self.keys: dict[NodePath, Mark] = {}
        self.problems: list[Problem] = []

    def read(self, events: Iterator[Any]) -> None:
        stack: list[_OpenCollection] = []
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self._check_node(event)
                if stack and stack[-1].wants_key:
                    self._key(stack[-1], event)
                else:
                    self._place(stack, event, self._scalar(event))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._check_node(event)
                if stack and stack[-1].wants_key:
                    self._stop(event, "a key must be plain text", "write the key as plain text")
                container: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
                path = self._place(stack, event, container)
                stack.append(_OpenCollection(container, path))
                if len(stack) > MAX_DEPTH:
                    self._stop(event, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
            elif isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
            elif isinstance(event, yaml.AliasEvent):
                self._stop(event, f"alias *{event.anchor} is not supported", "write the value instead")
            elif isinstance(event, yaml.DocumentStartEvent) and self.documents:
                self._stop(event, "a second document starts here", "keep one document per file")

    def _place(self, stack: list[_OpenCollection], event: Any, value: Any) -> NodePath:
        mark = (event.start_mark.line + 1, event.start_mark.column + 1)
        if not stack:
            self.documents.append(value)
            self.values[()] = mark
            return ()
        top = stack[-1]
        if isinstance(top.container, dict):
            if top.key is None:
                path = (*top.path, *mark)
            else:
                path = (*top.path, top.key)
                top.container[top.key] = value
            top.wants_key = True
        else:
            path = (*top.path, len(top.container))
            top.container.append(value)
        self.values[path] = mark
        return path

    def _key(self, top: _OpenCollection, event: Any) -> None:
        name: str = event.value
        path = (*top.path, name)
        mark = (event.start_mark.line + 1, event.start_mark.column + 1)
        if path in self.keys:
            line, column = self.keys[path]
            self.problems.append(
                Problem(
                    f"duplicate key {name!r}",
                    Location(self.file, *mark),
                    why=f"the first is at line {line}, column {column}; "
                    f"a YAML parser would silently ignore one of them",
                    fix="remove one of them",
                )
            )
        elif name == "<<" and event.implicit[0]:
            self._stop(event, "merge keys (<<) are not supported", "write the values instead")
        # The first value is kept. The second gets a separate path: it is checked, but not stored.
        top.key = None if path in self.keys else name
        top.wants_key = False
        self.keys.setdefault(path, mark)

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.style or not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        return int(text) if _INTEGER.fullmatch(text) else text

    def _check_node(self, event: Any) -> None:
        if event.tag is not None and event.tag not in _CORE_TAGS:
            self._stop(event, f"tag {event.tag} is not supported", "write plain values")
        if event.anchor is not None:
            self._stop(
                event, f"anchor &{event.anchor} is not supported", "write the value wherever it is used"
            )

    def _stop(self, event: Any, what: str, fix: str) -> None:
        where = Location(self.file, event.start_mark.line + 1, event.start_mark.column + 1)
        raise InputError.of([*self.problems[: MAX_PROBLEMS - 1], Problem(what, where, fix=fix)])


@dataclass
class _OpenCollection:
    """A collection whose end has not been read yet."""

    container: Any
    path: NodePath
    key: str | None = None
    wants_key: bool = field(init=False)

    def __post_init__(self) -> None:
        self.wants_key = isinstance(self.container, dict)


def _location(file: Path | str, text: str, index: int) -> Location:
    line_start = text.rfind("\n", 0, index) + 1
    return Location(file, text.count("\n", 0, index) + 1, index - line_start + 1)


def _syntax_problem(file: Path | str, text: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(f"not YAML: {error.problem or error}", Location(file))
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1]:
        return Problem(
            "a tab is used for indentation",
            Location(file, mark.line + 1, line.index("\t") + 1),
            why="YAML allows spaces only",
            fix="replace it with spaces",
        )
    return Problem(
        f"not YAML: {error.problem or 'syntax error'}",
        Location(file, mark.line + 1, mark.column + 1),
        why=error.context or "",
        fix="check the indentation, quotes and brackets here and in the lines above",
    )
