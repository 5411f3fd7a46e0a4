"""Generates the reference pages from the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chinese
import click

from harness.cli.app import COMMANDS, app
from harness.compat.lint.rule_catalogue import example_word, explained_rules
from harness.devices.stand_in.stands_for import REPLACED
from harness.errors import EXIT_CODES
from harness.matrix.document.matrix_schema import json_schema
from harness.plan.tasks.check_registry import all_checks
from harness.report.formats.json_export import report_schema
from harness.report.model.marks import EVIDENCE, STYLES
from harness.report.query.grid_query import CHANGE, FIELDS, PROOF, STATUS
from harness.settings import OPTIONS
from harness.verdict.triage.catalogue import shipped_catalogue
from harness.workspace.results.row_table import row_lines, rows_of

WIDTH = 100
EXAMPLE = 600


def same(text: str) -> str:
    """The text unchanged: the code is written in English."""
    return text


@dataclass(frozen=True, kw_only=True)
class Language:
    """label: translates a text of this module.

    sentence: translates a text of the code if there is a translation.
    """

    label: Callable[[str], str] = same
    sentence: Callable[[str], str] = same

    def head(self, *names: str) -> tuple[str, ...]:
        """The head of a table."""
        return tuple(map(self.label, names))


ENGLISH = Language()
LANGUAGES = {"en": ENGLISH, "zh": Language(label=chinese.label, sentence=chinese.sentence)}


def cell(text: object) -> str:
    """Text for a cell of a Markdown table."""
    flat = " ".join(str(text).split())
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", flat)


def table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    """A Markdown table; a value that begins with a backtick is code already."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [
        " | ".join(str(value) if str(value).startswith("`") else cell(value) for value in row) for row in rows
    ]
    return "\n".join(f"| {line} |" for line in lines)


def code(text: object) -> str:
    """Text as code in a table."""
    return f"`{str(text).replace('`', '')}`".replace("|", "\\|")


def commands(language: Language = ENGLISH) -> str:
    """Every command with its help, as `--help` prints it."""
    opening = language.label("Every command, as `--help` prints it.")
    parts = [f"# {language.label('Commands')}\n\n{opening}"]
    for name in ["", *COMMANDS]:
        parts += list(_help(app if not name else app.get_command(click.Context(app), name), name))
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command | None, name: str, parent: click.Context | None = None) -> Iterator[str]:
    if command is None:
        return
    context = click.Context(command, info_name=name or "npu-matrix", parent=parent, terminal_width=WIDTH)
    if parent is None and name:
        context = click.Context(
            command, info_name=name, parent=click.Context(app, info_name="npu-matrix"), terminal_width=WIDTH
        )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group) and command is not app:
        for inner in command.list_commands(context):
            yield from _help(command.get_command(context, inner), inner, context)


def exit_codes(language: Language = ENGLISH) -> str:
    """The exit codes of every command."""
    rows = [(code(number), language.sentence(meaning)) for number, meaning in EXIT_CODES.items()]
    return f"# {language.label('Exit codes')}\n\n{table(language.head('code', 'meaning'), rows)}\n"


def settings(language: Language = ENGLISH) -> str:
    """The settings."""
    rows = [
        (code(option.name), code(f"NPU_MATRIX_{option.name.upper()}"), language.sentence(option.help))
        for option in OPTIONS
    ]
    opening = language.label(
        "A command-line option overrides an environment variable, which overrides `npu-matrix.toml`, which "
        "overrides the default. `npu-matrix --show-config` prints each value and where it comes from."
    )
    head = language.head("name", "environment", "what")
    return f"# {language.label('Settings')}\n\n{opening}\n\n{table(head, rows)}\n"


def checks(language: Language = ENGLISH) -> str:
    """All checks."""
    rows = [
        (
            code(check.name),
            check.tier.value,
            language.sentence(check.question),
            ", ".join(check.facets),
            ", ".join(check.needs),
        )
        for check in all_checks()
    ]
    head = language.head("check", "tier", "question", "facets it reads", "needs")
    opening = language.label("The checks of a cell, from cheap to expensive.")
    return f"# {language.label('Checks')}\n\n{opening}\n\n{table(head, rows)}\n"


def matrix_file(language: Language = ENGLISH) -> str:
    """The fields of matrix.yaml."""
    opening = language.label(
        "Editors complete the fields from [the JSON schema](../schema/matrix.schema.json); "
        "`npu-matrix matrix validate` reports all problems at once."
    )
    return _schema_page(f"# matrix.yaml\n\n{opening}", json_schema(), language)


def json_output(language: Language = ENGLISH) -> str:
    """The fields of report.json."""
    opening = language.label(
        "Every JSON that is printed or written has a `schema` with name and version. "
        "report.json is `npu-matrix.report` 1, [as a JSON schema](../schema/report.schema.json); its fields:"
    )
    return _schema_page(f"# report.json\n\n{opening}", report_schema(), language)


def _schema_page(opening: str, schema: Mapping[str, Any], language: Language) -> str:
    parts = [opening, f"## {language.label('Top level')}", _fields(schema, language)]
    for name, definition in schema["$defs"].items():
        if "properties" in definition:
            heading = f"## {name.removesuffix('Entry')}"
            parts += [heading, cell(definition.get("description", "")), _fields(definition, language)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fields(schema: Mapping[str, Any], language: Language) -> str:
    required = schema.get("required", [])
    rows = [
        (
            code(name),
            _kind(facts),
            language.label("yes") if name in required else "",
            facts.get("description", ""),
        )
        for name, facts in schema.get("properties", {}).items()
    ]
    return table(language.head("field", "type", "required", "what"), rows) if rows else ""


def _kind(facts: Mapping[str, Any]) -> str:
    if "$ref" in facts:
        return str(facts["$ref"]).rsplit("/", 1)[-1].removesuffix("Entry")
    if "anyOf" in facts:
        return " or ".join(dict.fromkeys(_kind(option) for option in facts["anyOf"]))
    kind = facts.get("type", "")
    if kind == "array":
        return f"list of {_kind(facts.get('items', {})) or 'anything'}"
    if kind == "object":
        for values in (*facts.get("patternProperties", {}).values(), facts.get("additionalProperties")):
            if isinstance(values, Mapping):
                return f"map to {_kind(values) or 'anything'}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def lint_rules(language: Language = ENGLISH) -> str:
    """The lint rules."""
    opening = language.label(
        "The rules of `npu-matrix lint` and of the check `lint`: why, the fix, the source, an example. "
        "`npu-matrix lint --explain RULE` prints the same."
    )
    why, fix, source, wrong, right = language.head("why", "fix", "source", "wrong", "right")
    rules = [
        f"## {rule.id}\n\n**{cell(rule.severity)}** {cell(rule.summary)}\n\n"
        f"- {why}: {cell(rule.why)}\n- {fix}: {cell(rule.fix)}\n- {source}: {cell(rule.source)}\n"
        f"- {wrong}: {_example(rule.wrong)}\n- {right}: {_example(rule.right)}"
        for rule in explained_rules().values()
    ]
    return "\n\n".join([f"# {language.label('Lint rules')}", opening, *rules]) + "\n"


def _example(settings: Sequence[str]) -> str:
    return ", ".join(code(example_word(setting)) for setting in settings)


def signatures(language: Language = ENGLISH) -> str:
    """The failure signatures."""
    opening = language.label("The failures that `npu-matrix triage` recognises in a log.")
    cause, do, affects, sources = language.head("cause", "do", "affects", "sources")
    known = [
        f"## {found.id}\n\n```text\n{found.example.strip()[:EXAMPLE]}\n```\n\n"
        f"- {cause}: {cell(found.cause)}\n- {do}: {cell(found.remedy)}\n- {affects}: {cell(found.affects)}\n"
        f"- {sources}: {cell('; '.join(found.sources))}"
        for found in shipped_catalogue().signatures
    ]
    return "\n\n".join([f"# {language.label('Failure signatures')}", opening, *known]) + "\n"


TERMS = [
    ("`verl:0.9`", "verl 0.9 and 0.9.x, not 0.90; any axis works"),
    ("`verl>=0.8`", "versions in order; also = != < <= >. Commits are in no order"),
    ("`status:fail`", "checks with that verdict; the field may be left out"),
    ("`evidence:hardware`", "checks with that evidence"),
    ("`check:loss`, `tier:static`", "checks by name, by tier"),
    ("`new`, `is:broken`", "checks that changed since the last run with an outcome"),
    ('`"as released"`', "words with spaces, or that mean something else"),
]
GRAMMAR = """\
or  := and ("|" and)*
and := not ("&"? not)*
not := "!" not | "(" or ")" | term"""


def queries(language: Language = ENGLISH) -> str:
    """The query language."""
    label, sentence = language.label, language.sentence
    marks = [(sentence(style.label), sentence(style.meaning)) for style in STYLES.values()]
    kinds = [(sentence(style.label), sentence(style.meaning)) for style in EVIDENCE.values()]
    parts = (
        f"# {label('Queries')}",
        label(
            "The filter of the report and `npu-matrix status --filter` use the same language. A query is "
            "evaluated for every check of every cell; a cell is shown if one of its checks matches."
        ),
        f"```text\n{GRAMMAR}\n```",
        label("A term is a word (in titles, ids, versions), a verdict, or a field with a value:"),
        table(language.head("term", "selects"), [(term, label(selects)) for term, selects in TERMS]),
        f"{label('Fields')}: {', '.join(code(name) for name in FIELDS)}{label(', and every axis')}.",
        f"{label('Verdicts')}: {_words(STATUS)}.",
        f"{label('Evidence')}: {_words(PROOF)}.",
        f"{label('Changes')}: {_words(CHANGE)}.",
        f"## {label('What verdicts mean')}",
        table(language.head("verdict", "meaning"), marks),
        f"## {label('What evidence means')}",
        table(language.head("evidence", "meaning"), kinds),
    )
    return "\n\n".join(parts) + "\n"


def _words(known: Mapping[str, str]) -> str:
    return ", ".join(code(word) for word in known)


#: JSON schemas that are generated with the site. The schema of matrix.yaml is in docs/schema, for editors.
SCHEMAS: dict[str, Callable[[], Mapping[str, Any]]] = {"report.schema.json": report_schema}


def rehearsal(language: Language = ENGLISH) -> str:
    """What `npu-matrix rehearse` has in place of an NPU host."""
    which = 0 if language is ENGLISH else 1
    rows = [(one.part[which], one.stand_in[which], one.untried[which]) for one in REPLACED]
    opening = language.label(
        "`npu-matrix rehearse` runs cells for NPUs on a stand-in for their host, with the same commands. All "
        "evidence of it is simulated. Each row is a part of a real host."
    )
    head = language.head("part", "in its place", "untried until the real host")
    return f"# {language.label('Rehearsal')}\n\n{opening}\n\n{table(head, rows)}\n"


def stack_rows(language: Language = ENGLISH) -> str:
    """The stacks of matrix.yaml as docs/rows.json has them: `npu-matrix matrix rows --json`."""
    opening = language.label(
        "What was known of each stack on the day in its list, made by `npu-matrix matrix rows --json`. "
        "A change of versions, patches or checks makes a square `not run`, which only the command shows. "
        "[What the squares mean](rows.md)."
    )
    stored = json.loads((Path(__file__).parent / "rows.json").read_text(encoding="utf-8"))
    lines = "\n".join(row_lines(rows_of(stored)))
    return f"# {language.label('The stacks')}\n\n{opening}\n\n{lines}\n"


PAGES: dict[str, Callable[[Language], str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "settings": settings,
    "checks": checks,
    "matrix-file": matrix_file,
    "rehearsal": rehearsal,
    "stacks": stack_rows,
    "report-json": json_output,
    "queries": queries,
    "lint-rules": lint_rules,
    "signatures": signatures,
}
