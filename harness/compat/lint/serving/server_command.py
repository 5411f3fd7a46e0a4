"""The commands of a script that start vLLM's server: `vllm serve MODEL` and its module."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.compat.lint.shell.evaluator import Command
from harness.compat.lint.shell.launchers import is_python
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import Location

#: The module of the server, which `vllm serve` starts too.
MODULE = "vllm.entrypoints.openai.api_server"
SERVE = "vllm serve"


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """A command that starts a server. arguments: the words after `vllm serve`, or after the module.

    may_have_more: whether expansions such as `"$@"` are written in it, which can be any words, or none.
    """

    program: str
    arguments: tuple[ScriptValue, ...]
    environment: Mapping[str, ScriptValue]
    where: Location
    may_have_more: bool = False


def server_commands(commands: Iterable[Command], text: str = "") -> Iterator[ServerCommand]:
    """The commands that start a server, without repetitions. text: of the script."""
    lines = text.split("\n")
    told: list[ServerCommand] = []
    for command in commands:
        found = _started(command.arguments)
        if found is None:
            continue
        program, arguments = found
        server = ServerCommand(
            program=program,
            arguments=tuple(arguments),
            environment=command.environment,
            where=command.where,
            may_have_more="$" in _written(lines, command.where.line),
        )
        if server not in told:
            told.append(server)
            yield server


def _written(lines: Sequence[str], first: int) -> str:
    """The lines of a command, which a backslash at their end continues."""
    last = max(first - 1, 0)
    while last < len(lines) and lines[last].endswith("\\"):
        last += 1
    return "\n".join(lines[max(first - 1, 0) : last + 1])


def _started(words: Sequence[ScriptValue]) -> tuple[str, Sequence[ScriptValue]] | None:
    texts = [word.text for word in words]
    for place, text in enumerate(texts):
        if posixpath.basename(text) == "vllm" and texts[place + 1 : place + 2] == ["serve"]:
            # `echo vllm serve` starts nothing; what launchers start comes as a command of its own.
            is_first = not place or texts[0] not in ("echo", "printf", "grep", "pkill", "pgrep")
            return (SERVE, words[place + 2 :]) if is_first else None
        if is_python(words, place) and texts[place + 1 : place + 3] == ["-m", MODULE]:
            return f"python -m {MODULE}", words[place + 3 :]
    return None
