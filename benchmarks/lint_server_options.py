"""Whether `lint` agrees with vLLM's own parser about commands of vllm-ascend's documentation.

The commands in the documentation of a release that start a server, and the same commands with one mistake
each: names of options, values, fields of JSON and their types. vLLM's parser was asked of every one
(`server_parser_truth`); its answers are stored beside this file, by the digest of the command. To ask it
anew, name a Python with that vLLM in NPU_MATRIX_BENCHMARK_VLLM. Half of the commands, chosen by their digest,
are only counted: nobody looks at what `lint` says of them. vllm-ascend must be among the mirrors.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.figures import CannotRunError, Figure, user_cache
from benchmarks.lint_agreement import ascend_repository
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.serving.option_source import ServerOption, ServerOptions, server_options
from harness.compat.lint.serving.server_command import SERVE
from harness.compat.lint.serving.server_findings import ServerSources
from harness.compat.lint.serving.server_parser import parse_command
from harness.compat.lint.shell.values import ScriptValue
from harness.digest import digest_json
from harness.errors import InputError, Location
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import run_quietly
from harness.workspace.linting.given_versions import tree_of_vllm

RELEASE = "0.18.0"
STORED = Path(__file__).with_suffix(".json")
ASKED = "NPU_MATRIX_BENCHMARK_VLLM"
BLOCK = re.compile(r"^(?P<indent>[ \t]*)```+\w*[^\n]*\n(?P<text>.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r'"(?P<name>[a-z]\w{3,})"(?=\s*:)')
VALUE = re.compile(r"(?<=:)(?P<space>\s*)(?P<value>\d+|true|false|\[[^\[\]]*\])(?=\s*[,}])")
#: The commands with a mistake that are asked: those with a smaller digest.
SHARE = "4"
WRONG = {"number": "x1", "truth": "maybe", "list": "some"}


@dataclass(frozen=True, kw_only=True)
class ServerWords:
    """The words after `vllm serve`. kind: of the mistake in it, "" for one of the documentation."""

    words: tuple[str, ...]
    kind: str = ""

    @property
    def digest(self) -> str:
        return digest_json([*self.words])[:12]


def documented(text: str) -> Iterator[ServerWords]:
    """The commands in a page of which every word is known."""
    for block in BLOCK.finditer(text):
        lines = block["text"].split("\n")
        plain = "\n".join(line.removeprefix(block["indent"]) for line in lines)
        try:
            script = parse_script(plain)
        except InputError:
            continue
        for server in script.servers:
            if server.program == SERVE and not any(one.unknown or one.whole for one in server.arguments):
                yield ServerWords(words=tuple(one.text for one in server.arguments))


def with_mistakes(command: ServerWords, known: ServerOptions) -> Iterator[ServerWords]:
    """The command with one mistake in a word, for each of its options and for some of its JSON."""
    by_flag = {flag: one for one in known.options for flag in one.flags}
    for place, word in enumerate(command.words):
        option = by_flag.get(word)
        value = command.words[place + 1] if place + 1 < len(command.words) else ""
        for kind, new in (*_names(word), *(_values(option, value) if option is not None else ())):
            at = place + (kind in VALUES)
            words = [*command.words[:at], *new, *command.words[at + 1 :]]
            if tuple(words) != command.words:
                yield ServerWords(words=tuple(words), kind=kind)


VALUES = ("no number", "no choice", "broken JSON", "misspelt field", "wrong type", "no value", "limit")


def _names(word: str) -> Iterator[tuple[str, Sequence[str]]]:
    if word.startswith("--") and len(word) > 6 and "=" not in word:
        middle = 2 + len(word[2:]) // 2
        yield "letter missing", [word[:middle] + word[middle + 1 :]]
        yield (
            "letters swapped",
            [word[:middle] + word[middle + 1 : middle + 2] + word[middle] + word[middle + 2 :]],
        )
        yield "other name", [f"{word}-size"]
        yield "switch with a value", [word, "maybe"]


def _values(option: ServerOption, value: str) -> Iterator[tuple[str, Sequence[str]]]:
    if option.form in ("int", "float", "number") and value:
        yield "no number", [f"{value}x"]
        yield "limit", ["-7"]
    if option.choices and value:
        yield "no choice", [f"{value}s"]
    if not option.form.startswith(("pair", "switch")):
        yield "no value", []
    if value.startswith("{"):
        yield "broken JSON", [value[:-1]]
        for found in list(FIELD.finditer(value))[:3]:
            name = found["name"]
            yield (
                "misspelt field",
                [value[: found.start("name")] + name[:-2] + name[-1] + value[found.end("name") :]],
            )
        for found in list(VALUE.finditer(value))[:3]:
            kind = "number" if found["value"].isdigit() else "list" if found["value"][0] == "[" else "truth"
            yield (
                "wrong type",
                [f'{value[: found.start("value")]}"{WRONG[kind]}"{value[found.end("value") :]}'],
            )


def _asked(commands: Sequence[ServerWords]) -> Mapping[str, str]:
    """What vLLM's parser says of each command: asked now, or as it is stored."""
    python = os.environ.get(ASKED)
    if not python:
        parts: dict[str, str] = json.loads(STORED.read_text("utf-8"))
        return dict.fromkeys(parts["taken"].split(), "") | dict.fromkeys(parts["refused"].split(), "refused")
    truth = Path(__file__).with_name("server_parser_truth.py")
    lines = "".join(f"{json.dumps(one.words)}\n" for one in commands)
    done = subprocess.run([python, str(truth)], input=lines, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]
    if len(answers) != len(commands):
        raise CannotRunError(f"{python} did not parse all: {done.stderr[-300:]}", "name a Python with vLLM")
    found = {one.digest: answer for one, answer in zip(commands, answers, strict=True)}
    # Which field or option is refused is not compared: whether one is, is.
    parts = {
        "refused": " ".join(sorted(one for one in found if found[one])),
        "taken": " ".join(sorted(one for one in found if not found[one])),
    }
    STORED.write_text(json.dumps(parts, indent=1) + "\n", "utf-8")
    return found


def _told(command: ServerWords, known: ServerOptions) -> str:
    """What lint says of a command; "" if nothing."""
    where = Location("serve.sh", 1)
    parsed = parse_command([ScriptValue(text=one, where=where) for one in command.words], known)
    return "; ".join(f"{one.option} {one.problem}" for one in parsed.problems)


def figures() -> Iterator[Figure]:
    sources = ServerSources(
        fetch_vllm=partial(
            tree_of_vllm, {"vllm": RELEASE}, ReleaseFetcher(cache=user_cache(), command=run_quietly)
        )
    )
    known = server_options(sources.vllm, SERVE, None) if sources.vllm is not None else None
    if known is None:
        raise CannotRunError(
            f"the source of vllm {RELEASE} is not to be had", "let the package index be reached"
        )
    tree = ascend_repository().tree(f"v{RELEASE}")
    pages = (one for one in sorted(tree.paths()) if one.startswith("docs/") and one.endswith(".md"))
    plain = {one.digest: one for page in pages for one in documented(tree.read(page).decode("utf-8"))}
    commands = [*plain.values(), *(other for one in plain.values() for other in with_mistakes(one, known))]
    commands = list({one.digest: one for one in commands if not one.kind or one.digest < SHARE}.values())
    truth = _asked(commands)
    asked = [one for one in commands if one.digest in truth]
    for half, is_counted in (("looked at", False), ("only counted", True)):
        of_half = [one for one in asked if (int(one.digest[-1], 16) % 2 == 1) == is_counted]
        yield from _figures(of_half, half, truth, known, is_counted=is_counted)


def _figures(
    commands: Sequence[ServerWords],
    half: str,
    truth: Mapping[str, str],
    known: ServerOptions,
    *,
    is_counted: bool,
) -> Iterator[Figure]:
    told = {one.digest: _told(one, known) for one in commands}
    taken = [one for one in commands if not truth[one.digest]]
    refused = [one for one in commands if truth[one.digest]]
    wrong = [one for one in taken if told[one.digest]]
    missed = [one for one in refused if not told[one.digest]]
    for one in () if is_counted else (*wrong, *missed):
        logging.getLogger(__name__).warning(
            "%s: %s: vLLM: %r, lint: %r", one.kind, " ".join(one.words), truth[one.digest], told[one.digest]
        )
    of_docs = sum(not one.kind for one in commands)
    yield Figure(
        claim=f"of {len(taken)} commands that vLLM {RELEASE} takes ({half}), called wrong",
        measured=round(100 * len(wrong) / max(len(taken), 1), 2),
        unit="%",
        limit=0.5,
    )
    yield Figure(
        claim=f"of {len(refused)} that it refuses ({half}; {of_docs} of all are of the documentation), found",
        measured=round(100 * (1 - len(missed) / max(len(refused), 1)), 1),
        unit="%",
        limit=95,
        is_lower_limit=True,
    )
