"""`npu-matrix api survival` over a git history whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from git_command import git

from harness.cli.app import main

CONSUMER = {
    "user/__init__.py": "",
    "user/a.py": (
        "from lib.core import make, Base\n"
        "import lib.core\n"
        "try:\n    from lib.core import quick\nexcept ImportError:\n    quick = None\n"
        "def go():\n    return make(1, size=2)\n"
        "class Mine(Base):\n    def run(self, x): ...\n"
        "def patched(x): ...\n"
        "lib.core.hook = patched\n"
    ),
}
CORE = (
    "def make(a, size=1): ...\n"
    "def quick(): ...\n"
    "def hook(x): ...\n"
    "class Base:\n    def run(self, x): ...\n"
    "def drive(one):\n    hook(one)\n    one.run(3)\n"
)
STEPS = {
    "start": CORE,
    "a body": CORE.replace("    hook(one)\n", "    hook(one)\n    print(one)\n"),
    "rename size": CORE.replace("size=1", "length=1"),
    "size is back": CORE,
    "quick is gone": CORE.replace("def quick(): ...\n", ""),
    "run takes y <b>": CORE.replace("run(self, x)", "run(self, x, y)").replace("one.run(3)", "one.run(3, 4)"),
    "hook is called begin": CORE.replace("hook", "begin"),
    "end": CORE.replace("hook", "begin"),
}


class _Clone:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self("init", "-q", "-b", "main")

    def __call__(self, *arguments: str) -> str:
        return git(self.folder, *arguments)

    def commit(self, files: Mapping[str, str], message: str) -> None:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self("add", "-A")
        self("commit", "-q", "--allow-empty", "-m", message)


Survey = Callable[..., str]


@pytest.fixture
def survey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Survey:
    lib, user = _Clone(tmp_path / "lib"), _Clone(tmp_path / "user")
    for message, core in STEPS.items():
        lib.commit({"lib/__init__.py": "", "lib/core.py": core}, message)
    user.commit(CONSUMER, "one")

    def run(*arguments: str, code: int = 1) -> str:
        clones = (str(user.folder), str(lib.folder))
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(tmp_path), "api", "survival", *clones, *arguments])
        said = capsys.readouterr()
        assert stopped.value.code == code, said
        return said.out or said.err

    return run


def test_each_use_has_the_commits_that_broke_and_mended_it(survey: Survey) -> None:
    found = json.loads(survey("--range", "main~7..main", "--release", "HEAD", "--json"))
    assert found["schema"] == {"name": "npu-matrix/api-survival", "version": 1}
    assert [one["subject"] for one in found["commits"]] == list(STEPS)[::-1]
    turns = {
        (one["kind"], one["name"]): (
            [turn["subject"] for turn in one["breaks"]],
            [turn["subject"] for turn in one["fixes"]],
        )
        for one in found["uses"]
    }
    assert turns[("call", "lib.core.make")] == (["rename size"], ["size is back"])
    assert turns[("override", "lib.core.Base.run")] == (["run takes y <b>"], ["hook is called begin"])
    assert turns[("patch", "lib.core.hook")] == (["hook is called begin"], [])
    assert set(turns) == {
        ("call", "lib.core.make"),
        ("override", "lib.core.Base.run"),
        ("patch", "lib.core.hook"),
    }
    assert found["distinct"] < found["pairs"]


def test_text_and_page_name_the_commit_and_escape_what_upstream_writes(
    survey: Survey, tmp_path: Path
) -> None:
    text = survey("--range", "main~7..main", "--release", "HEAD", "--html", str(tmp_path / "map.html"))
    assert "hook is called begin" in text
    assert "1 at" in text.splitlines()[-2]
    page = (tmp_path / "map.html").read_text()
    assert "run takes y &lt;b&gt;" in page
    assert "<b>" not in page


def test_nothing_breaks_at_the_last_version_is_code_0(survey: Survey) -> None:
    assert "0 at" in survey("--range", "main~7..main~4", "--release", "HEAD", code=0)


def test_stored_facts_give_the_same_answers(survey: Survey) -> None:
    first = survey("--range", "main~7..main", "--json")
    assert survey("--range", "main~7..main", "--json") == first


@pytest.mark.parametrize("revisions", ["main", "absent..main", "main~7..absent"])
def test_an_unknown_range_is_code_2(survey: Survey, revisions: str) -> None:
    assert "error" in survey("--range", revisions, code=2).lower()
