"""`npu-matrix junit merge` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.app import main
from harness.cli.junit_command import command
from harness.ledger.junit.junit_merge import merge_junit
from harness.settings import load_settings
from harness.sources.secrets.masking import Masker

ROOT = Path(__file__).parents[3]
GOOD = '<testsuite name="s"><testcase name="x"/></testsuite>'
BAD = '<testsuite name="s"><testcase name="y"><failure message="::error::boo"/></testcase></testsuite>'


@pytest.fixture
def merge(tmp_path):
    def run(*arguments, code=0):
        result = CliRunner().invoke(
            command,
            ["merge", str(tmp_path / "out.xml"), *map(str, arguments)],
            obj=load_settings({}, {}, ROOT),
            standalone_mode=False,
        )
        if result.exception is not None:
            raise result.exception
        assert result.return_value == code, result.output
        return result.output

    run.out = tmp_path / "out.xml"
    return run


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_the_exit_code_says_whether_a_case_failed_or_a_file_is_not_whole(merge, file):
    good, bad, cut = file("good.xml", GOOD), file("bad.xml", BAD), file("cut.xml", GOOD[:-5])
    merge(good)
    assert "failed: s: y" in merge(good, bad, code=1)
    assert "cut.xml: unclosed token" in merge(good, bad, cut, code=4)
    merge(file("none.xml", '<testsuite name="s"/>'), code=3)
    skipped = file("skipped.xml", '<testsuite name="s"><testcase name="z"><skipped/></testcase></testsuite>')
    merge(skipped, code=3)
    merge(good, skipped)


def test_a_folder_is_all_its_xml_but_never_the_merged_file_itself(merge, file, tmp_path):
    file("reports/a/one.xml", GOOD)
    file("reports/two.xml", GOOD)
    merge(tmp_path / "reports")
    assert "3 tests" not in merge(tmp_path / "reports")
    merge.out.rename(tmp_path / "reports" / "out.xml")
    merge.out.symlink_to(tmp_path / "reports" / "out.xml")
    assert "2 tests" in merge(tmp_path / "reports")


def test_a_cell_gives_its_axes_to_what_its_own_tests_wrote(merge, file, tmp_path):
    found = json.loads(merge(file("inner.xml", GOOD), "--cell", "gspo-qwen25-3b", "--json"))
    assert found["schema"] == {"name": "npu-matrix.junit-merge", "version": 1}
    assert found["counts"]["tests"] == 1
    text = merge.out.read_text()
    assert '<property name="cell" value="gspo-qwen25-3b-' in text
    assert '<property name="verl" value="0.7.0.dev0' in text
    assert merge_junit(tmp_path / "again.xml", [merge.out], mask=Masker(())).files[0].problem == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.xml"], "cannot read the JUnit file"),
        (["good.xml", "--cell", "gspo-qwen25-3"], "nearest: gspo-qwen25-3b"),
        (["empty"], r"no \*\.xml"),
        (["out.xml"], "also one of the files"),
    ],
)
def test_bad_input_is_told_and_leaves_nothing_behind(merge, file, tmp_path, arguments, says, monkeypatch):
    file("good.xml", GOOD)
    (tmp_path / "empty").mkdir()
    if "out.xml" in arguments:
        file("out.xml", GOOD)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Exception, match=says):
        merge(*arguments)
    assert sorted(tmp_path.iterdir()) == before


def test_what_a_case_says_commands_no_runner(merge, file, capsys):
    text = BAD.replace('name="y"', 'name="::set-output name=a::b&#10;::error::c"').replace(
        'name="s"', 'name=""'
    )
    output = merge(file("bad.xml", text), code=1)
    assert not [line for line in output.splitlines() if line.lstrip().startswith("::")]
    with pytest.raises(SystemExit) as stop:
        main(["junit", "merge", str(merge.out), "/nonexistent.xml"])
    assert stop.value.code == 2
    assert "cannot read" in capsys.readouterr().err
