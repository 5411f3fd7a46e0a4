"""A rendered recipe as a bash script, which `lint` and `recipe render --from-script` read."""

from __future__ import annotations

import re
import shlex

from harness.convergence.recipes.recipe_launch import Launch

_PLACE = re.compile(r"\$\{\w+\}")
_SETTING = re.compile(r"[+~]*[\w.@/]+=")
_SPECIAL = re.compile(r"[\\\"`]|\$(?!\{\w+\})")


def script_text(recipe: str, launch: Launch) -> str:
    """The script. Locations that were not given are variables, without which it stops at its start."""
    lines = ["#!/usr/bin/env bash", f"# Recipe {_comment(recipe)}, rendered by npu-matrix.", "set -eu"]
    lines.insert(2, f"# npu-matrix: {launch.hosts}")
    lines += [f"# Run it in {_comment(launch.folder)}."] if launch.folder else []
    lines += [f"# It would fail: {_comment(problem)}." for problem in launch.problems]
    lines += [f': "${{{name}:?set it to its value on this host}}"' for name in launch.unknown]
    for variable in launch.environment:
        lines += ["", f"# {_comment(variable.reason)} ({_comment(variable.source)})"]
        lines.append(f"export {variable.name}={shell_word(variable.value)}")
    # The variables are exported above; a job of a Ray cluster gets them from its runtime environment.
    words = launch.submit if launch.submit[0] == "ray" else launch.argv
    first = next((at for at, word in enumerate(words) if _SETTING.match(word)), len(words))
    head = " ".join(map(shell_word, words[:first]))
    return "\n".join([*lines, "", " \\\n  ".join([head, *map(shell_word, words[first:])])]) + "\n"


def shell_word(text: str) -> str:
    """A word of bash with this text, in which `${NAME}` is expanded."""
    if not _PLACE.search(text):
        return shlex.quote(text)
    return '"' + _SPECIAL.sub(lambda found: f"\\{found[0]}", text) + '"'


def _comment(text: str) -> str:
    return " ".join(text.split())
