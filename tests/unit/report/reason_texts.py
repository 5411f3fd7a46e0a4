"""The reasons and remedies of verdicts, read from the sources that write them; `{}` stands for what is filled in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
HARNESS = ROOT / "harness"
#: Packages whose texts a report shows.
JUDGES = ("builds", "compat", "convergence", "numerics", "patchstack", "plan", "rollout", "cell_program")
NAMES = {"reasons", "remedies", "reason", "remedy"}
FINDING = {"message", "why", "fix"}
#: Files whose texts only commands print.
COMMANDS = ("builds/cleanup/", "plan/change/", "patchstack/stacks/patch_sources", "compat/inspection/")
#: A file whose `message`, `why` and `fix` are those of a finding.
LINT_MODULES = (
    "config_findings",
    "registry_findings",
    "torn_overrides",
    "program_findings",
    "environment_findings",
    "unread_settings",
)


def written_reasons() -> dict[str, str]:
    """Text -> the place that writes it."""
    found: dict[str, str] = {}
    for path in sorted(HARNESS.rglob("*.py")):
        inside = path.relative_to(HARNESS).as_posix()
        shown = inside.split("/")[0] in JUDGES or inside in {"verdict/verdict.py", "verdict/plan_verdicts.py"}
        if not shown or inside.startswith(COMMANDS):
            continue
        names = NAMES | FINDING if path.stem in LINT_MODULES else NAMES
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in names:
                for text in _texts(node.value):
                    if re.search(r"[A-Za-z]{2,} [A-Za-z`{]", text):
                        found.setdefault(text, f"{inside}:{node.value.lineno}")
    return found


def lint_texts() -> dict[str, str]:
    """Messages, explanations and remedies of the lint rules -> the file of the rule."""
    found: dict[str, str] = {}
    for path in sorted((HARNESS / "compat/lint/rules").glob("*.yaml")):
        rules = yaml.safe_load(path.read_text("utf-8"))
        for rule in rules if isinstance(rules, list) else []:
            if "id" in rule:
                texts = (rule[name] for name in ("message", "why", "fix") if name in rule)
                found |= {re.sub(r"\{[^{}]*\}", "{}", text): path.name for text in texts}
    return found


def _texts(node: ast.AST) -> Iterator[str]:
    text = _text(node)
    if text is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None
