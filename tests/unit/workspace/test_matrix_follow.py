"""`matrix follow` with real repositories: what is added, what is only reported, and what stays as it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from git_command import commit_all
from git_server import git_server

from harness.cli.app import main
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_OK
from harness.matrix.reading.load_matrix import load_matrix

POLICY = """\
# Policy

| Plugin | Engine | Python | CANN | Torch/NPU |
|--------|--------|--------|------|-----------|
| v0.24.0rc1 | v0.24.0 | >= 3.10, < 3.13 | CANN 9.1.0 | 2.11.0 / 2.11.0.post1 |
| v0.23.0 | v0.23.0/v0.23.1 | >= 3.10, < 3.13 | 9.1.0 | 2.10.0 / 2.10.0.post4 |
| v0.22.0 | v0.22.0 | >= 3.10, < 3.12 | 9.0.0 | 2.10.0 / 2.10.0 |
| main | {{commit}} | >= 3.10 | 9.1.0 | 2.10.0 / 2.10.0 |
"""
NAMES = {"CANN": "``{cann}``", "Python": "``>=3.10, <3.13``, 推荐 ``3.12``", "Plugin": "``{plugin}``"}


def guide(cann: str, plugin: str) -> str:
    rule = f"{'=' * 9} {'=' * 40} ====\n"
    rows = {"依赖": "版本", **NAMES, "Megatron": "``core_r0.16.0``"}
    lines = [
        f"{name}{' ' * (9 - width(name))} {text}{' ' * (40 - width(text))} x\n"
        for name, one in rows.items()
        for text in [one.format(cann=cann, plugin=plugin)]
    ]
    return f"Guide\n=====\n\n{rule}{lines[0]}{rule}{''.join(lines[1:])}{rule}"


def width(text: str) -> int:
    return sum(2 if letter > "\u2e80" else 1 for letter in text)


MATRIX = """\
# A comment at the head.
format: 1
axes:
  trainer: {{title: trainer, scheme: pep440, repository: "https://example.org/a/trainer", tag: "v{{version}}", source: t}}
  plugin: {{title: plugin, scheme: pep440, repository: "https://example.org/a/plugin", source: made up}}
  engine: {{title: engine, scheme: pep440, source: made up}}
  torch: {{title: torch, scheme: pep440, source: made up}}
  torch_npu: {{title: torch_npu, scheme: pep440, source: made up}}
  python: {{title: Python, scheme: python, source: made up}}
  cann: {{title: CANN, scheme: cann, source: made up}}
  soc: {{title: SoC, scheme: name, source: made up, values: {{a2: {{title: A2}}}}}}
stacks:
  trainer-0-8-0:
    title: the guide of 0.8.0
    source: made up
    axes: {{trainer: 0.8.0, plugin: 0.22.0, engine: 0.22.0, python: 3.11, cann: 9.0.0, soc: a2}}   # behind
    # The last comment of the stacks.

published:
  plugins:
    title: releases of the plugin
    source: a/plugin policy.md @0123456789
    date: 2026-01-02
    key: plugin
    columns: [plugin, engine, python, cann, torch, torch_npu]
    follow:
      axis: plugin
      document: docs/policy.md
      headers: {{plugin: Plugin, engine: Engine, python: Python, cann: CANN, torch: Torch/NPU, torch_npu: Torch/NPU}}
      adds: migration
    rows:
      - [0.22.0, 0.22.0, ">=3.10,<3.12", 9.0.0, 2.10.0, 2.10.0]   # a comment behind a row
      # A comment between rows.
      - [0.21.0, 0.21.0, ">=3.10,<3.12", 9.0.0, 2.9.0, 2.9.0]
  guides:
    title: the guide of each release
    source: a/trainer at each tag
    date: 2026-01-02
    key: trainer
    columns: [trainer, released, cann, python, plugin, megatron]
    follow:
      axis: trainer
      document: docs/guide.rst
      each_release: true
      headers: {{cann: CANN, python: Python, plugin: Plugin, megatron: Megatron}}
      adds: stack
    rows:
      - [0.8.0, 2026-01-01, 9.0.0, ">=3.10,<3.12 (3.11 recommended)", 0.22.0, core_r0.16.0]
profiles:
  default: {{title: all, select: [{{stacks: all}}]}}
# The end.
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    upstream = tmp_path / "mirrors/a"
    for name in ("plugin", "trainer"):
        (upstream / name / "docs").mkdir(parents=True)
        git(upstream / name, "init", "-q", "-b", "main")
    (upstream / "plugin/docs/policy.md").write_text(POLICY)
    commit_all(upstream / "plugin")
    for version, cann, plugin in (("0.8.0", "9.0.0", "0.22.0"), ("0.9.0", "9.1.0", "0.23.0")):
        (upstream / "trainer/docs/guide.rst").write_text(guide(cann, plugin))
        commit_all(upstream / "trainer")
        git(upstream / "trainer", "tag", f"v{version}")
    ours = tmp_path / "ours"
    ours.mkdir()
    git(ours, "init", "-q", "-b", "main")
    (ours / "matrix.yaml").write_text(MATRIX.format())
    commit_all(ours)
    monkeypatch.chdir(ours)
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    return ours


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def change(checkout: Path, old: str, new: str, name: str = "plugin/docs/policy.md") -> None:
    file = checkout.parent / "mirrors/a" / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    commit_all(checkout.parent / "mirrors/a" / name.partition("/")[0])


def test_new_rows_become_rows_a_stack_and_a_migration(checkout: Path) -> None:
    assert run("matrix", "follow", "--write") == EXIT_OK
    matrix = load_matrix(checkout / "matrix.yaml")
    assert matrix.published["plugins"].rows[:2] == (
        ("0.24.0rc1", "0.24.0", ">=3.10,<3.13", "9.1.0", "2.11.0", "2.11.0.post1"),
        ("0.23.0", "0.23.0 / 0.23.1", ">=3.10,<3.13", "9.1.0", "2.10.0", "2.10.0.post4"),
    )
    row = matrix.published["guides"].rows[-1]
    assert (row[0], *row[2:]) == (
        "0.9.0",
        "9.1.0",
        ">=3.10,<3.13 (3.12 recommended)",
        "0.23.0",
        "core_r0.16.0",
    )
    stack = matrix.stacks["trainer-0-9-0"]
    assert dict(stack.axes) == {
        "trainer": "0.9.0",
        "plugin": "0.23.0",
        "python": "3.12",
        "cann": "9.1.0",
        "soc": "a2",
    }
    assert "docs/guide.rst @v0.9.0:" in stack.source
    assert any("core_r0.16.0" in note for note in stack.notes)
    # The stack of the guide has plugin 0.23.0 already, and 0.24.0rc1 is no final release.
    assert not matrix.migrations


def test_a_row_that_only_the_document_of_its_own_release_has_is_found(checkout: Path) -> None:
    """A document of a release branch is not always merged."""
    plugin = checkout.parent / "mirrors/a/plugin"
    matrix = checkout / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace('a/plugin", source', 'a/plugin", tag: "v{version}", source'))
    change(checkout, "| v0.24.0rc1 |", "| v0.25.0rc1 |")
    git(plugin, "tag", "v0.25.0rc1", "HEAD")
    git(plugin, "tag", "v0.24.0rc1", "HEAD^")
    change(
        checkout,
        "| v0.25.0rc1 | v0.24.0 | >= 3.10, < 3.13 | CANN 9.1.0 |",
        "| v0.25.0rc1 | v0.24.0 | >= 3.9 | 9.2.0 |",
    )
    assert run("matrix", "follow", "--write", "--only", "plugins") == EXIT_OK
    rows = {row[0]: row for row in load_matrix(matrix).published["plugins"].rows}
    assert rows["0.25.0rc1"][2:4] == (">=3.9", "9.2.0")
    assert rows["0.24.0rc1"][2:4] == (">=3.10,<3.13", "9.1.0")
    assert set(rows) == {"0.25.0rc1", "0.24.0rc1", "0.23.0", "0.22.0", "0.21.0"}


def test_a_release_without_a_guide_becomes_a_migration_of_the_newest_stack(checkout: Path) -> None:
    git(checkout.parent / "mirrors/a/trainer", "tag", "-d", "v0.9.0")
    assert run("matrix", "follow", "--write") == EXIT_OK
    migration = load_matrix(checkout / "matrix.yaml").migrations["trainer-0-8-0-to-plugin-0-23-0"]
    assert migration.stack == "trainer-0-8-0"
    # Python 3.11 is in the published range, and the field of the engine names two versions.
    assert dict(migration.to) == {"plugin": "0.23.0", "cann": "9.1.0"}
    assert "docs/policy.md" in migration.source


def test_every_other_byte_stays_and_nothing_is_added_twice(checkout: Path) -> None:
    before = (checkout / "matrix.yaml").read_text().splitlines()
    assert run("matrix", "follow", "--write") == EXIT_OK
    after = (checkout / "matrix.yaml").read_text()
    gone = [line for line in before if line not in after.splitlines()]
    assert [line.split(":")[0].strip() for line in gone] == ["source", "date", "date"]
    assert run("matrix", "follow", "--write") == EXIT_OK
    assert (checkout / "matrix.yaml").read_text() == after


def test_the_change_is_a_patch_for_git_am(checkout: Path) -> None:
    assert run("matrix", "follow", "--patch", "news.patch") == EXIT_OK
    assert git(checkout, "status", "--porcelain") == "?? news.patch\n"
    git(checkout, "am", "-q", "news.patch")
    assert "3 new rows, 1 stacks, 0 migrations" in git(checkout, "log", "-1", "--format=%s")
    assert "trainer-0-9-0" in load_matrix(checkout / "matrix.yaml").stacks
    assert run("matrix", "follow", "--patch", "none.patch") == EXIT_OK
    assert not (checkout / "none.patch").exists()


@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("# The end.\n", "# The end.")])
def test_the_patch_is_for_the_line_ends_that_the_file_has(checkout: Path, old: str, new: str) -> None:
    file = checkout / "matrix.yaml"
    file.write_bytes(file.read_text().replace(old, new).encode())
    commit_all(checkout)
    assert run("matrix", "follow", "--patch", "news.patch") == EXIT_OK
    git(checkout, "am", "-q", "--keep-cr", "news.patch")
    text = file.read_bytes()
    assert text.count(b"\r\n") in {0, text.count(b"\n")}
    assert "trainer-0-9-0" in load_matrix(file).stacks


def test_a_patch_that_cannot_be_written_is_bad_usage(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("matrix", "follow", "--patch", "nowhere/news.patch") == EXIT_BAD_INPUT
    assert "the patch cannot be written" in capsys.readouterr().err


def test_rows_on_one_line_cannot_be_added_to(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkout / "matrix.yaml"
    lines = file.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if "[0.8.0, 2026-01-01" in line)
    lines[at - 1 : at + 1] = [f"    rows: [{lines[at].strip().removeprefix('- ')}]\n"]
    file.write_text("".join(lines))
    assert run("matrix", "follow", "--only", "guides") == EXIT_BAD_INPUT
    assert "the rows of table 'guides' are not a list with one row per line" in capsys.readouterr().err


def test_without_an_option_the_change_is_printed(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (checkout / "matrix.yaml").read_bytes()
    assert run("matrix", "follow") == EXIT_OK
    out = capsys.readouterr().out
    assert "+      - [0.23.0, 0.23.0 / 0.23.1," in out
    assert "'main' is not a release" in out
    assert (checkout / "matrix.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("| CANN |", "| Toolkit |", ":3: this table has no column CANN"),
        ("| Plugin | Engine | Python | CANN | Torch/NPU |", "| A | B | C | D | E |", ":1: no table has any"),
        (
            "| 9.1.0 | 2.10.0 / 2.10.0.post4 |",
            "| next quarter | 2.10.0 / 2.10.0.post4 |",
            ":6: 'next quarter' is",
        ),
        ("| 2.10.0 / 2.10.0.post4 |", "| 2.10.0.post4 |", ":6: '2.10.0.post4' has 1 parts"),
        ("| 2.10.0 / 2.10.0.post4 |", "| 2.10.0 | 2.10.0.post4 |", ":6: this row has 6 fields"),
    ],
)
def test_what_is_not_understood_is_told_with_its_line_and_never_guessed(
    checkout: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    change(checkout, old, new)
    assert run("matrix", "follow", "--only", "plugins", "--write") == EXIT_INCOMPLETE
    assert said in capsys.readouterr().out
    table = load_matrix(checkout / "matrix.yaml").published["plugins"]
    assert "0.23.0" not in [row[0] for row in table.rows]


def test_a_guide_of_another_shape_is_told(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = checkout.parent / "mirrors/a/trainer"
    (trainer / "docs/guide.rst").write_text("Guide\n=====\n\nInstall the newest of everything.\n")
    commit_all(trainer)
    git(trainer, "tag", "-f", "v0.9.0")
    git(trainer, "rm", "-q", "docs/guide.rst")
    git(trainer, "commit", "-q", "-m", "moved")
    git(trainer, "tag", "v0.9.1")
    assert run("matrix", "follow", "--only", "guides", "--write") == EXIT_INCOMPLETE
    out = capsys.readouterr().out
    assert "docs/guide.rst @v0.9.0:1: no table of this document names most of" in out
    assert "a/trainer has no file docs/guide.rst at v0.9.1" in out
    assert list(load_matrix(checkout / "matrix.yaml").stacks) == ["trainer-0-8-0"]


def test_a_changed_row_is_reported_and_not_changed(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(checkout, "| 9.0.0 | 2.10.0 / 2.10.0 |", "| 9.0.1 | 2.10.0 / 2.10.0 |")
    assert run("matrix", "follow", "--only", "plugins", "--json") == EXIT_OK
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert any(
        "cann of 0.22.0 is 9.0.1 in the document, and 9.0.0 in the table" in one for one in table["notes"]
    )


def test_repositories_are_fetched_and_each_call_sees_what_is_new_there(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPU_MATRIX_MIRRORS")
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))
    file = checkout / "matrix.yaml"
    with git_server(tmp_path / "mirrors") as server:
        file.write_text(file.read_text().replace("https://example.org/a/", server.url("a/")))
        assert run("matrix", "follow", "--write", "--fetch") == EXIT_OK
        assert "trainer-0-9-0" in load_matrix(file).stacks
        change(
            checkout, "| v0.22.0 |", "| v0.23.1 | v0.23.1 | >= 3.10 | 9.1.0 | 2.10.0 / 2.10.0 |\n| v0.22.0 |"
        )
        assert run("matrix", "follow", "--write", "--fetch") == EXIT_OK
    assert "0.23.1" in [row[0] for row in load_matrix(file).published["plugins"].rows]
    assert "trainer-0-9-0-to-plugin-0-23-1" in load_matrix(file).migrations


def test_without_the_repository_the_reason_is_told(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(checkout))
    assert run("matrix", "follow", "--no-fetch") == EXIT_INCOMPLETE
    assert "no clone of https://example.org/a/plugin can be read" in capsys.readouterr().out


def test_a_table_without_a_source_cannot_be_followed(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("matrix", "follow", "--only", "pluginz") == EXIT_BAD_INPUT
    assert "followed are plugins, guides" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("axis: plugin\n", "axis: engine\n", "are looked up by plugin"),
        ("headers: {plugin: Plugin, ", "headers: {", "lack the column that is the key"),
        ("{plugin: Plugin, engine:", "{plugin: Plugin, motor:", "unknown column 'motor'"),
        ("      document: docs/policy.md\n", "", "names no package"),
    ],
)
def test_a_source_that_cannot_be_right_is_an_error_with_its_line(
    checkout: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    file = checkout / "matrix.yaml"
    file.write_text(file.read_text().replace(old, new, 1))
    assert run("matrix", "validate") == EXIT_BAD_INPUT
    err = capsys.readouterr().err
    assert said in err
    assert "matrix.yaml:2" in err
