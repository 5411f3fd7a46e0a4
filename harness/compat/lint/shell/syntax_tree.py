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
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from harness.errors import InfrastructureError, InputError, Location
from harness.serialisation import JsonValue

if sys.platform == "linux":
    import resource

# verl's longest script has 14 KB. The tree of a script is up to 500 times as large as the script.
MAX_SCRIPT_BYTES = 64 << 10
_LONG_PIPELINE = re.compile(rb"(?:\|[^|\n;&]{0,200}){1000}")
#: What shfmt may take. On a busy machine a script takes long and no more of the processor than elsewhere.
PARSE_CPU_S, PARSE_WAIT_S = 1, 30 if sys.platform == "linux" else 1.5
# Go's memory limit is soft; the limit of the script's size bounds the memory.
_MESSAGE = re.compile(r"(?:<standard input>:)?(?P<line>\d+):(?P<column>\d+):(?P<why>[^\n]*)")
# A key of an associative array with a point, which shfmt takes for arithmetic: `[trainer.nnodes]=2`.
_KEYED_ELEMENT = re.compile(rb"(?P<start>[\w(\s])\[(?P<key>[A-Za-z_][\w/@-]*\.[\w./@-]*)\](?=\+?=|\})")
# One whose words shfmt takes for arithmetic: `${names[two words]}`.
_KEY_OF_WORDS = re.compile(
    rb"(?:(?<=[\w(])|(?<=\s))\[(?P<key>[\w./@-]+(?:[ /@.:-]+[\w./@-]+)+)\](?=\+?=|[}:+\-#%/^,@])"
)
_BACKSLASH_IN_COMMENT = re.compile(rb"(?:^|[\s;])#[^\n]*\\(?=\r?\n)", re.MULTILINE)
_BRACKETS = re.compile(rb"[()]")
#: How often a script that shfmt refuses is written otherwise.
MAX_REPAIRS = 20
_ENVIRONMENT = {"GOMEMLIMIT": "200MiB", "GOMAXPROCS": "1"}


@dataclass(frozen=True, kw_only=True)
class ScriptText:
    """The bytes that a tree was made of. file: the script, for locations.

    place: the location of all nodes of a script that is a string inside another script. edits: where bytes
    were inserted that the script does not have, as (offset in `source`, their number).
    """

    source: bytes
    file: str
    place: Location | None = None
    edits: tuple[tuple[int, int], ...] = ()

    def original(self, offset: int) -> int:
        """The offset in the script of an offset in `source`."""
        return offset - sum(count for place, count in self.edits if place < offset)

    def location(self, offset: int, line: int, column: int) -> Location:
        """The location in the script; columns of shfmt count bytes, those of a location count characters."""
        if self.place is not None:
            return self.place
        start = self.source.rfind(b"\n", 0, offset) + 1
        before = self.source[start:offset]
        if before.isascii() and not self.edits:
            return Location(self.file, line, column)
        inserted = sum(count for place, count in self.edits if start <= place < offset)
        return Location(self.file, line, len(before.decode("utf-8", "replace")) + 1 - inserted)


class SyntaxNode:
    """A node of shfmt's typed tree. script: the text that the tree was made of."""

    __slots__ = ("_data", "_order", "_script", "kind")

    def __init__(self, data: Mapping[str, JsonValue], script: ScriptText) -> None:
        self._data, self._script = data, script
        kind = data.get("Type")
        #: The type of the node, such as `CallExpr`; "" for nodes that can have only one type.
        self.kind = kind if isinstance(kind, str) else ""
        #: What was found below this node, once all of it was asked for.
        self._order: Sequence[SyntaxNode] | None = None

    @property
    def location(self) -> Location:
        """File, line and column of the node; line and column count from 1."""
        place, position = self._script.place, self._data.get("Pos")
        if place is not None or not isinstance(position, dict):
            return place or Location(self._script.file)
        line, column, offset = position.get("Line"), position.get("Col"), position.get("Offset", 0)
        if isinstance(line, int) and isinstance(column, int) and isinstance(offset, int):
            return self._script.location(offset, line, column)
        return Location(self._script.file)

    @property
    def raw(self) -> str:
        """The text of the node as written."""
        return self._script.source[slice(*self._written)].decode("utf-8", "replace")

    def literal(self, text: str) -> SyntaxNode:
        """A node of a text that stands in the place of this one."""
        return SyntaxNode({**self._data, "Type": "Lit", "Value": text}, self._script)

    @property
    def span(self) -> slice:
        """The bytes of the script that the node covers."""
        start, end = self._written
        return slice(self._script.original(start), self._script.original(end))

    @property
    def _written(self) -> tuple[int, int]:
        """Start and end in the text that the tree was made of."""
        start, end = (self._data.get(name) for name in ("Pos", "End"))
        first = start.get("Offset", 0) if isinstance(start, dict) else 0
        last = end.get("Offset", 0) if isinstance(end, dict) else 0
        return first if isinstance(first, int) else 0, last if isinstance(last, int) else 0

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
        return SyntaxNode(value, self._script) if isinstance(value, dict) else None

    def children(self, name: str) -> list[SyntaxNode]:
        """A field that is a list of nodes; empty if the node does not have it."""
        value = self._data.get(name)
        if not isinstance(value, list):
            return []
        return [SyntaxNode(item, self._script) for item in value if isinstance(item, dict)]

    def descendants(self) -> Iterator[SyntaxNode]:
        """This node and all below it, parents before their children. A script is surveyed several times."""
        if self._order is not None:
            yield from self._order
            return
        order: list[SyntaxNode] = []
        waiting: list[Mapping[str, JsonValue]] = [self._data]
        while waiting:
            data = waiting.pop()
            node = SyntaxNode(data, self._script)
            order.append(node)
            yield node
            below: list[Mapping[str, JsonValue]] = []
            for value in data.values():
                # Most mappings are positions, which are no nodes.
                if type(value) is dict:
                    if "Offset" not in value:
                        below.append(value)
                elif type(value) is list:
                    below += [one for one in value if type(one) is dict]
            waiting += reversed(below)
        self._order = order


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
        if _LONG_PIPELINE.search(data):
            # shfmt nests it, and writes each command further to the right.
            raise RecursionError
        tree, script = _parsed(ScriptText(source=data, file=file, place=place))
        # Few scripts have such a line, and all of the tree is searched for it.
        ends = _continued_comments(tree) if any(map(_may_continue, data.split(b"\n"))) else []
        if ends:
            changed = bytearray(script.source)
            for end in ends:
                changed[end] = ord(" ")
            tree, script = _parsed(replace(script, source=bytes(changed)))
    except (subprocess.TimeoutExpired, RecursionError, MemoryError) as error:
        raise InputError(
            "this script cannot be parsed", where=Location(file), why="it is nested too deeply or too large"
        ) from error
    return SyntaxNode(tree, script)


def _parsed(script: ScriptText) -> tuple[dict[str, JsonValue], ScriptText]:
    """shfmt's tree, and the text as it was written for shfmt; InputError if shfmt refuses it."""
    refused: re.Match[str] | None = None
    for _ in range(MAX_REPAIRS):
        done = _run_shfmt(script.source)
        if not done.returncode:
            tree: dict[str, JsonValue] = json.loads(done.stdout)
            return tree, script
        message = _MESSAGE.match(done.stderr.decode("utf-8", "replace"))
        if message is None:
            # shfmt itself failed: it has no more memory, or no more time.
            raise MemoryError
        refused = message
        changed = _written_otherwise(script, message)
        if changed is None:
            break
        script = changed
    assert refused is not None
    raise _syntax_error(refused, script.file)


def _run_shfmt(source: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run shfmt with a limit of the processor's time. TimeoutExpired where only waiting can be limited."""
    command = [_shfmt(), "-ln", "bash", "--to-json"]
    pipe = subprocess.PIPE
    environment = {**os.environ, **_ENVIRONMENT}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        if sys.platform == "linux":
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (PARSE_CPU_S, PARSE_CPU_S))
        try:
            output, errors = process.communicate(source, timeout=PARSE_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _written_otherwise(script: ScriptText, message: re.Match[str]) -> ScriptText | None:
    """What bash reads in the same way and shfmt does not refuse here; None if nothing is known."""
    source, lines = script.source, script.source.split(b"\n")
    line = int(message["line"])
    if "zsh feature" in message["why"]:
        return _with_quotes(script, _KEYED_ELEMENT, 0, len(source))
    if line > len(lines):
        return None
    start = sum(len(one) + 1 for one in lines[: line - 1])
    if "arithmetic" in message["why"] or re.search(r"matching `\$?\(\(`", message["why"]):
        quoted = _with_quotes(script, _KEY_OF_WORDS, start, start + len(lines[line - 1]))
        if quoted is not None:
            return quoted
        # `((` without `))` is a command in two subshells, or a subshell in a substitution.
        place = start + int(message["column"]) - 1
        found = place if source.startswith(b"(((", place) else source.rfind(b"((", 0, place + 3)
        is_command = source.startswith(b"(((", found) or _is_command(source, found)
        return _inserted(script, [found + 1], b" ") if is_command else None
    # A comment does not go on in the next line, also if a backslash is at its end.
    places = [found.end() - 1 for found in _BACKSLASH_IN_COMMENT.finditer(source)]
    changed = bytearray(source)
    for place in [place for place in places if place < start][-1:] or places:
        changed[place] = ord(" ")
    return replace(script, source=bytes(changed)) if places else None


def _is_command(source: bytes, place: int) -> bool:
    """Whether the brackets `((` at a place are not closed by `))`, so bash takes them for commands."""
    depth = 0
    for found in _BRACKETS.finditer(source, place) if place >= 0 else ():
        depth += 1 if found[0] == b"(" else -1
        if depth == 1 and found[0] == b")":
            return source[found.end() : found.end() + 1] != b")"
    return False


def _with_quotes(script: ScriptText, pattern: re.Pattern[bytes], start: int, end: int) -> ScriptText | None:
    """The script with quotes around the keys of associative arrays; None if there are none to quote."""
    places = [place for found in pattern.finditer(script.source, start, end) for place in found.span("key")]
    return _inserted(script, places, b'"') if places else None


def _inserted(script: ScriptText, places: Sequence[int], text: bytes) -> ScriptText:
    """The script with a text at several places, which are in order."""
    pieces, before = list[bytes](), 0
    for place in places:
        pieces += [script.source[before:place], text]
        before = place
    moved = [
        (offset + sum(len(text) for place in places if place <= offset), count)
        for offset, count in script.edits
    ]
    added = [(place + index * len(text), len(text)) for index, place in enumerate(places)]
    source = b"".join([*pieces, script.source[before:]])
    return replace(script, source=source, edits=tuple(sorted([*moved, *added])))


def _may_continue(line: bytes) -> bool:
    """Whether a line may have a comment that ends with a backslash."""
    return b"#" in line and line.rstrip(b"\r").endswith(b"\\")


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
