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
    """A command that starts a server. arguments: the words after `vllm serve`, or after the module."""

    program: str
    arguments: tuple[ScriptValue, ...]
    environment: Mapping[str, ScriptValue]
    where: Location


def server_commands(commands: Iterable[Command]) -> Iterator[ServerCommand]:
    """The commands that start a server, without repetitions."""
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
        )
        if server not in told:
            told.append(server)
            yield server


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
