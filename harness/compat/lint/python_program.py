"""The Python program in a command line: its module or file, its options, and the words after it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import yaml

from harness.compat.lint.shell.launchers import is_python
from harness.compat.lint.shell.values import Expansion, ScriptValue

CONFIG_OPTIONS = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")
#: Options of `hydra.main` that are followed by a value which is no override.
VALUED_OPTIONS = (*CONFIG_OPTIONS, "--cfg", "-c", "--package", "-p")
MULTIRUN = ("--multirun", "-m")
#: The options of `hydra.main`; argparse takes their first letters for them.
HYDRA_OPTIONS = (
    *("--config-name", "--config-path", "--config-dir", "--cfg", "--resolve", "--package", "--run", "--help"),
    *("--multirun", "--shell-completion", "--experimental-rerun", "--info", "--hydra-help", "--version"),
)
_SHORT_OPTION = re.compile(r"-(?:cn|cp|cd|sc|[hcprmi])")
#: Characters of a value that is read as a list of values.
MAX_SWEEP = 4_000
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_MODULE_OPTIONS = ("-m", "--module")
#: The module that `torchrun` starts.
_TORCHRUN = ["-m", "torch.distributed.run"]
#: The name of a module where Python takes a file: `-m` is missing before it.
_NAMED_MODULE = re.compile(r"(?:verl|recipe)(?:\.[A-Za-z_]\w*)+")


def python_program(words: Sequence[ScriptValue]) -> tuple[str, Sequence[ScriptValue]]:
    """The module or file that a command starts, and the words after it; ("", ()) if it starts none.

    A module that starts another one, such as `torch.distributed.run -m MODULE`, is not the program.
    """
    for position in range(len(words)):
        if is_python(words, position):
            entry, after = _entry(words[position + 1 :])
            if entry:
                return entry, words[position + 1 + after :]
    return "", ()


def _entry(words: Sequence[ScriptValue]) -> tuple[str, int]:
    entry, after = "", 0
    for index, word in enumerate(words):
        text = word.text
        following = words[index + 1].text if index + 1 < len(words) else ""
        starts_others = (
            bool(entry) and not entry.endswith(".py") and not entry.startswith(("verl.", "recipe."))
        )
        if entry and (not starts_others or ("=" in text and not text.startswith("-"))):
            break
        if text == "-c" and not entry:
            break
        if text in _MODULE_OPTIONS and following and (not entry or _MODULE.fullmatch(following)):
            entry, after = following, index + 2
        elif text.startswith("-m") and _MODULE.fullmatch(text[2:]) and not entry:
            entry, after = text[2:], index + 1
        elif text.endswith(".py") or (not entry and _NAMED_MODULE.fullmatch(text)):
            entry, after = text, index + 1
    return entry, after


def is_module(words: Sequence[ScriptValue], entry: str) -> bool:
    """Whether Python gets its program as a module, as in `python -m ENTRY`, and not as a file."""
    texts = [word.text for word in words]
    return f"-m{entry}" in texts or any(
        one in _MODULE_OPTIONS and other == entry for one, other in pairwise(texts)
    )


def option(words: Sequence[ScriptValue], name: str) -> str:
    """The value of `--name VALUE` or `--name=VALUE`; "" if it is not given."""
    found = option_word(words, name)
    return found.text if found is not None else ""


def torchrun_words(words: Sequence[ScriptValue]) -> Sequence[ScriptValue]:
    """The words after `torchrun` or its module; none if a command does not start it."""
    for start, word in enumerate(words):
        if word.text.rpartition("/")[2] == "torchrun":
            return words[start + 1 :]
        if [one.text for one in words[start : start + 2]] == _TORCHRUN:
            return words[start + 2 :]
    return ()


def torchrun_processes(words: Sequence[ScriptValue]) -> int:
    """The processes that `torchrun` starts on all nodes; 0 if it is not started, or only a run knows them."""
    after = torchrun_words(words)
    found = [
        next((value for name in names if (value := option(after, name))), default)
        for names, default in ((("--nproc_per_node", "--nproc-per-node"), ""), (("--nnodes",), "1"))
    ]
    is_known = all(one.isascii() and one.isdigit() for one in found)
    return int(found[0]) * int(found[1]) if is_known else 0


def option_word(words: Sequence[ScriptValue], name: str) -> ScriptValue | None:
    """The value of an option with its place; None if it is not given."""
    for position, word in enumerate(words):
        if word.text == name and position + 1 < len(words):
            return words[position + 1]
        if word.text.startswith(f"{name}="):
            return ScriptValue(
                text=word.text.removeprefix(f"{name}="), unknown=word.unknown, where=word.where
            )
    return None


def unknown_options(words: Sequence[ScriptValue]) -> tuple[ScriptValue, ...]:
    """The words that begin with a dash and are no option of Hydra, which stops at them."""
    return tuple(
        word
        for position, word in enumerate(words)
        if re.match(r"--?[A-Za-z]", word.text)
        and not (position and words[position - 1].text in VALUED_OPTIONS)
        and not any(name.startswith(word.text.partition("=")[0]) for name in HYDRA_OPTIONS)
        and not _SHORT_OPTION.match(word.text)
    )


def override_words(words: Sequence[ScriptValue]) -> tuple[ScriptValue, ...]:
    """The words that Hydra reads as overrides: all but options, their values, and words from outside.

    With `--multirun`, a value with commas stands for several jobs, and is not known here.
    """
    sweeps = any(word.text in MULTIRUN for word in words)
    return tuple(
        ScriptValue(text=word.text, unknown="a sweep of Hydra", where=word.where)
        if sweeps and not word.unknown and is_sweep(word.text)
        else word
        for position, word in enumerate(words)
        if not word.text.startswith("-")
        and not is_from_outside(word)
        and not (position and words[position - 1].text in VALUED_OPTIONS)
    )


def words_from_outside(words: Sequence[ScriptValue]) -> list[ScriptValue]:
    """The words that can be any override; the values of Hydra's options are none."""
    return [
        word
        for position, word in enumerate(words)
        if is_from_outside(word) and not (position and words[position - 1].text in VALUED_OPTIONS)
    ]


def is_from_outside(word: ScriptValue) -> bool:
    """Whether a word is an unknown that can be any override, or none."""
    return word.whole or bool(word.unknown and "=" not in word.text and not word.text.startswith(("-", "~")))


def is_sweep(override: str) -> bool:
    """Whether an override has several values for `--multirun`: commas outside of brackets and quotes."""
    value = override.partition("=")[2]
    if len(value) > MAX_SWEEP:
        return True
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|\([^)]*\)", "", value)
    return "," in plain or bool(re.match(r"(?:choice|range|interval|glob)\(", value))


@dataclass(frozen=True, kw_only=True)
class RuntimeVariables:
    """The variables of a job's runtime environment of Ray. problem: why they are not known, or ""."""

    values: dict[str, ScriptValue]
    problem: str = ""


def runtime_variables(
    words: Sequence[ScriptValue], file_text: Callable[[ScriptValue], Expansion | None]
) -> RuntimeVariables:
    """The variables of `ray job submit --runtime-env FILE` or `--runtime-env-json TEXT`.

    file_text: the text of a file beside the script, None if there is none.
    """
    given, path = option_word(words, "--runtime-env-json"), option_word(words, "--runtime-env")
    if given is None and path is None:
        return RuntimeVariables(values={})
    source = given or path
    assert source is not None
    name = "the value of --runtime-env-json" if given is not None else f"`{source.text}`"
    text: Expansion | None = source if given is not None else file_text(source)
    if text is None:
        return RuntimeVariables(
            values={}, problem=f"{name} is not read: no such file lies beside this script"
        )
    try:
        environment = json.loads(text.text) if given is not None else yaml.safe_load(text.text)
    except (ValueError, yaml.YAMLError, RecursionError):
        known = f"only a run knows {text.unknown}" if text.unknown else "it is not valid"
        return RuntimeVariables(values={}, problem=f"{name} is not read: {known}")
    variables = environment.get("env_vars") if isinstance(environment, dict) else None
    if not isinstance(variables, dict):
        problem = "" if isinstance(environment, dict) and variables is None else f"{name} has no variables"
        return RuntimeVariables(values={}, problem=problem)
    return RuntimeVariables(
        values={
            str(name): ScriptValue(
                text=str(value), unknown=text.unknown if "$" in str(value) else "", where=source.where
            )
            for name, value in variables.items()
        }
    )
