"""The syntax tree of a bash script, parsed by shfmt (mvdan.cc/sh).

shfmt was chosen over tree-sitter-bash: of the 683 scripts in verl 0.6.1, 0.7.0 and main, it parses all, like
`bash -n`; tree-sitter-bash reports errors in 19. Its tree is typed and keeps expansions apart from text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from harness.errors import InfrastructureError, InputError, Location
from harness.serialisation import JsonValue

# verl's longest script has 14 KB. The tree of a script is up to 500 times as large as the script.
MAX_SCRIPT_BYTES = 64 << 10
PARSE_TIMEOUT_S = 1.5
# Go's memory limit is soft; the limit of the script's size bounds the memory.
_MESSAGE = re.compile(r"(?:<standard input>:)?(?P<line>\d+):(?P<column>\d+):(?P<why>[^\n]*)")
# A key of an associative array with a point, which shfmt takes for arithmetic: `[trainer.nnodes]=2`.
_KEYED_ELEMENT = re.compile(rb"(?P<start>[\w(\s])\[(?P<key>[A-Za-z_][\w/@-]*\.[\w./@-]*)\](?=\+?=|\})")
_ENVIRONMENT = {"GOMEMLIMIT": "200MiB", "GOMAXPROCS": "1"}


class SyntaxNode:
    """A node of shfmt's typed tree.

    file: the script, for locations. place: the location of all nodes of a script that is a string inside
    another script.
    """

    __slots__ = ("_data", "_file", "_place")

    def __init__(self, data: Mapping[str, JsonValue], file: str, place: Location | None = None) -> None:
        self._data, self._file, self._place = data, file, place

    @property
    def kind(self) -> str:
        """The type of the node, such as `CallExpr`; "" for nodes that can have only one type."""
        return self.text("Type")

    @property
    def location(self) -> Location:
        """File, line and column of the node; line and column count from 1."""
        if self._place is not None:
            return self._place
        position = self._data.get("Pos")
        if not isinstance(position, dict):
            return Location(self._file)
        line, column = position.get("Line"), position.get("Col")
        return Location(
            self._file, line if isinstance(line, int) else 0, column if isinstance(column, int) else 0
        )

    @property
    def span(self) -> slice:
        """The bytes of the script that the node covers."""
        start, end = (self._data.get(name) for name in ("Pos", "End"))
        first = start.get("Offset", 0) if isinstance(start, dict) else 0
        last = end.get("Offset", 0) if isinstance(end, dict) else 0
        return slice(
            first if isinstance(first, int) else 0,
            last if isinstance(last, int) else 0,
        )

    def text(self, name: str = "Value") -> str:
        """A text field; "" if the node does not have it."""
        value = self._data.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool:
        """A boolean field; False if the node does not have it."""
        return self._data.get(name) is True

    def child(self, name: str) -> SyntaxNode | None:
        """A field that is a node; None if the node does not have it."""
        value = self._data.get(name)
        return SyntaxNode(value, self._file, self._place) if isinstance(value, dict) else None

    def children(self, name: str) -> list[SyntaxNode]:
        """A field that is a list of nodes; empty if the node does not have it."""
        value = self._data.get(name)
        if not isinstance(value, list):
            return []
        return [SyntaxNode(item, self._file, self._place) for item in value if isinstance(item, dict)]

    def descendants(self) -> Iterator[SyntaxNode]:
        """This node and all below it, parents before their children."""
        yield self
        for name, value in self._data.items():
            children = [self.child(name)] if isinstance(value, dict) else self.children(name)
            for node in children:
                if node is not None:
                    yield from node.descendants()


def parse_bash(text: str, file: str, place: Location | None = None) -> SyntaxNode:
    """The tree of a script; InputError with line and column if bash would not accept it, or it is too large.

    place: the location of the string, if the script is a string inside another script.
    """
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > MAX_SCRIPT_BYTES:
        raise InputError(
            "this script is too large",
            where=Location(file),
            why=f"it has more than {MAX_SCRIPT_BYTES >> 10} KiB",
            fix="pass the script that contains the `python -m verl...` command",
        )
    try:
        tree = _parsed(data, file)
        ends = _continued_comments(tree)
        if ends:
            changed = bytearray(data)
            for end in ends:
                changed[end] = ord(" ")
            tree = _parsed(bytes(changed), file)
    except (subprocess.TimeoutExpired, RecursionError, MemoryError) as error:
        raise InputError(
            "this script cannot be parsed", where=Location(file), why="it is nested too deeply or too large"
        ) from error
    return SyntaxNode(tree, file, place)


def _parsed(data: bytes, file: str) -> dict[str, JsonValue]:
    """shfmt's tree; InputError if it refuses the script."""
    done = subprocess.run(
        [_shfmt(), "-ln", "bash", "--to-json"],
        input=data,
        capture_output=True,
        timeout=PARSE_TIMEOUT_S,
        env={**os.environ, **_ENVIRONMENT},
        check=False,
    )
    if not done.returncode:
        tree: dict[str, JsonValue] = json.loads(done.stdout)
        return tree
    message = _MESSAGE.match(done.stderr.decode("utf-8", "replace"))
    if message is None:
        # shfmt itself failed: it has no more memory.
        raise MemoryError
    keyed = _KEYED_ELEMENT.sub(rb'\g<start>["\g<key>"]', data)
    if "zsh feature" in message["why"] and keyed != data:
        return _parsed(keyed, file)
    raise _syntax_error(message, file)


def _continued_comments(tree: JsonValue) -> list[int]:
    """The offsets of backslashes at the end of comments: for shfmt the command goes on, for bash it ends."""
    found: list[int] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += [one for one in node.values() if isinstance(one, (dict, list))]
            text, end = node.get("Text"), node.get("Hash")
            start = end.get("Offset") if isinstance(end, dict) else None
            if isinstance(text, str) and isinstance(start, int) and re.search(r"\\\r?\n\Z", text):
                found.append(start + len(text[: text.rindex("\\")].encode()) + 1)
    return found


def _syntax_error(message: re.Match[str], file: str) -> InputError:
    return InputError(
        "bash would not accept this script",
        where=Location(file, int(message["line"]), int(message["column"])),
        why=message["why"].strip(),
        fix="correct the script, or pass one that is written for bash",
    )


def _shfmt() -> str:
    """The path of shfmt, which the package shfmt-py installs."""
    try:
        files = distribution("shfmt-py").files or ()
    except PackageNotFoundError:
        files = ()
    for entry in files:
        if entry.name in ("shfmt", "shfmt.exe"):
            path = Path(str(entry.locate())).resolve()
            if path.is_file():
                return str(path)
    found = shutil.which("shfmt", path=sysconfig.get_path("scripts")) or shutil.which("shfmt")
    if not found:
        raise InfrastructureError(
            "shfmt is not installed",
            why="npu-matrix parses bash scripts with it",
            fix="reinstall npu-matrix, or `pip install shfmt-py`",
        )
    return found
