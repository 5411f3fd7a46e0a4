"""The documentation: commands exist, examples print what the page shows, links are not dead."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

from harness.cli.app import COMMANDS, app, main
from harness.matrix.document.matrix_schema import json_schema

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
TEXTS = sorted([*DOCS.glob("en/*.md"), *DOCS.glob("zh/*.md")])
READMES = sorted(ROOT.glob("README*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
IN_TEXT = re.compile(r"`((?:[A-Z_]+=\S+ )?(?:npu-matrix|nox -s npu_e2e --) [^`]+)`")
# Variables before a command, and the session that passes its arguments to `npu-matrix run`.
VARIABLES, SESSION = re.compile(r"^(?:[A-Z_]+=\S+ )+"), re.compile(r"^nox -s npu_e2e -- ")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def commands_of(text: str) -> list[list[str]]:
    """Every npu-matrix command a page shows, as arguments."""
    lines = [
        line
        for kind, body in FENCE.findall(text)
        if kind in {"sh", "console"}
        for line in body.replace("\\\n", " ").splitlines()
    ]
    indented = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    shown = [line.removeprefix("$ ") for line in lines + indented] + [
        " ".join(found.split()) for found in IN_TEXT.findall(text)
    ]
    shown = [SESSION.sub("npu-matrix run ", VARIABLES.sub("", line)) for line in shown]
    words = [shlex.split(line)[1:] for line in shown if line.startswith("npu-matrix ")]
    return [list(itertools.takewhile(lambda word: word not in {">", "|", "&&", "#"}, line)) for line in words]


@pytest.mark.parametrize("file", [*TEXTS, *READMES], ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_command_shown_exists_and_takes_its_options(file: Path) -> None:
    for arguments in commands_of(file.read_text(encoding="utf-8")):
        parse(arguments)


def parse(arguments: list[str]) -> None:
    """Parse a command line without executing it: global options, each group and the command with its options."""
    command: click.Command | None = app
    context = None
    while command and arguments:
        try:
            context = command.make_context(command.name, list(arguments), parent=context)
        except click.BadParameter as error:
            # The reader's files are not here.
            if "does not exist" in error.message:
                return
            raise
        arguments = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not arguments:
            return
        name, *arguments = arguments
        command = command.get_command(context, name)
        assert command, f"there is no command {name}"


@pytest.mark.parametrize(
    "line", ["npu-matrix --runner a run --profile b", "npu-matrix --runner a rnu", "npu-matrix ledger sgin k"]
)
def test_a_wrong_command_behind_a_global_option_or_in_an_indented_block_is_noticed(line: str) -> None:
    [arguments] = commands_of(f"Sign it:\n\n    {line}\n")
    with pytest.raises((click.UsageError, AssertionError)):
        parse(arguments)


EXAMPLES = {
    body: f"{file.parent.name}/{file.stem}"
    for file in TEXTS
    for kind, body in FENCE.findall(file.read_text(encoding="utf-8"))
    if kind == "console"
}


@pytest.mark.parametrize("body", EXAMPLES, ids=EXAMPLES.get)
def test_examples_print_what_the_page_says(
    body: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    head, *expected = body.splitlines()
    with pytest.raises(SystemExit) as ended:
        main(["--root", str(ROOT), "--state", str(tmp_path), *shlex.split(head.removeprefix("$ "))[1:]])
    assert not ended.value.code
    printed = capsys.readouterr().out.splitlines()
    for line in expected:
        wanted = re.compile(".*".join(re.escape(part) for part in line.split("...")))
        assert any(wanted.fullmatch(given.rstrip()) for given in printed), f"not printed: {line}"


def blocks(wanted: str) -> list[str]:
    """The examples of a kind, on all pages."""
    texts = [file.read_text(encoding="utf-8") for file in TEXTS]
    return [body for text in texts for kind, body in FENCE.findall(text) if kind == wanted]


def test_yaml_examples_have_the_fields_there_are() -> None:
    """Of matrix.yaml by its schema, of a workflow by the inputs of our action."""
    schema = json_schema()
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    seen = set()
    for body in blocks("yaml"):
        example = yaml.safe_load(body)
        seen |= {str(name) for name in example}
        for job in example.get("jobs", {}).values():
            own = [step for step in job["steps"] if "npu-matrix@" in step.get("uses", "")]
            assert own
            assert all(set(step["with"]) <= set(action["inputs"]) for step in own)
        if "jobs" not in example:
            assert set(example) <= set(schema["properties"])
        fields = schema["$defs"]["ExpectationEntry"]
        for entry in example.get("expectations", {}).values():
            assert set(fields["required"]) <= set(entry) <= set(fields["properties"])
        for entry in example.get("profiles", {}).values():
            assert set(entry) <= set(schema["$defs"]["ProfileEntry"]["properties"])
    assert {"jobs", "expectations", "profiles"} <= seen


def test_python_examples_name_and_call_what_there_is() -> None:
    examples = blocks("python")
    assert examples
    for body in examples:
        tree = ast.parse(body)
        names: dict[str, object] = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                exec(compile(ast.Module([node], []), "example", "exec"), names)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in names:
                keywords = {word.arg: None for word in call.keywords if word.arg}
                inspect.signature(names[call.func.id]).bind(*call.args, **keywords)  # type: ignore[arg-type]


def test_both_languages_say_the_same_things() -> None:
    def shape(file: Path) -> list[tuple[str, str]]:
        text = file.read_text(encoding="utf-8")
        fences = [
            ("code", re.sub(r"  +# .*", "", body))  # comments are translated
            for kind, body in FENCE.findall(text)
            if kind != "yaml"
        ]
        return [
            *fences,
            *[("heading", mark) for mark in re.findall(r"^(#+) ", FENCE.sub("", text), re.MULTILINE)],
        ]

    for english in DOCS.glob("en/*.md"):
        chinese = DOCS / "zh" / english.name
        assert shape(chinese) == shape(english), english.name
        # A picture of the page in Chinese has `-zh` in its name.
        links = [
            [
                link.replace("-zh.png", ".png")
                for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8"))
            ]
            for page in (chinese, english)
        ]
        assert links[0] == links[1], english.name


def test_the_site_is_built_with_links_that_hold(tmp_path: Path) -> None:
    build = load("build")
    written = build.build(tmp_path / "site")
    names = {path.relative_to(tmp_path / "site").as_posix() for path in written}
    assert {
        "en/first-report.html",
        "zh/first-report.html",
        "en/commands.html",
        "zh/contributing.html",
    } <= names
    commands = (tmp_path / "site" / "en" / "commands.html").read_text(encoding="utf-8")
    assert all(f"Usage: npu-matrix {name}" in commands for name in COMMANDS)
    codes = (tmp_path / "site" / "en" / "exit-codes.html").read_text(encoding="utf-8")
    assert "interrupted; the same command resumes" in codes
    for path in written:
        assert "<script" not in path.read_text(encoding="utf-8")


def test_the_generated_pages_are_in_chinese_too() -> None:
    build = load("build")
    reference, chinese = build.reference, build.reference.chinese
    labels: set[str] = set()

    def label(text: str) -> str:
        labels.add(text)
        return str(chinese.label(text))

    language = reference.Language(label=label, sentence=chinese.sentence)
    texts = {name: make(language) for name, make in reference.PAGES.items()}
    assert labels == set(chinese.LABELS), "translations of labels that no page has"
    assert "被中断" in texts["exit-codes"]
    assert "## 顶层" in texts["matrix-file"]
    for name, text in texts.items():
        english = reference.PAGES[name](reference.ENGLISH)
        assert text.count("\n| ") == english.count("\n| "), name
        assert text.count("\n#") == english.count("\n#"), name
    assert "本页由代码生成" in build.LANGUAGES["zh"]["generated"]


@pytest.mark.parametrize("file", [*TEXTS, *READMES], ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_files_and_modules_of_ours_that_a_page_names_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/.-])(?:harness|tests|benchmarks|\.github)/[\w/.-]*[\w-]", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for module, name in re.findall(r"\b(harness\.[\w.]+)\.([A-Za-z]\w*)`", text):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("page", ["read-red-numerics", "read-red-generation"])
def test_reasons_that_a_page_quotes_are_given_by_the_checks(page: str) -> None:
    """The quotes are in the table of reasons and at the beginning of list items; both languages have the same."""
    english, chinese = (
        re.findall(
            r"^(?:\| |- )`([A-Za-z][^`]* [^`]*|Not run:)`",
            (DOCS / language / f"{page}.md").read_text("utf-8"),
            re.MULTILINE,
        )
        for language in ("en", "zh")
    )
    assert english == chinese
    assert len(english) >= 4
    files = itertools.chain(
        *(ROOT.glob(f"harness/{name}/**/*.py") for name in ("cell_program", "numerics", "rollout"))
    )
    # Texts that Python joins because they are written one after the other.
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text("utf-8") for file in files))
    assert [quote for quote in english if quote not in code] == []


@pytest.mark.parametrize("file", READMES, ids=lambda file: file.stem)
def test_links_of_the_readme_lead_to_files(file: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", file.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_a_dead_link_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = load("build")
    monkeypatch.setattr(
        build.reference,
        "PAGES",
        {**build.reference.PAGES, "checks": lambda _language: "# Checks\n\n[x](gone.md)\n"},
    )
    with pytest.raises(ValueError, match=r"links to gone\.html"):
        build.build(tmp_path / "site")
