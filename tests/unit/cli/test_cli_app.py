"""What every command does with a reader that is gone, a full disk and words that are nearly right."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness.cli import app as group
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_UNEXPECTED

ROOT = Path(__file__).parents[3]


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "harness", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        check=False,
        **more,
    )


#: Packages that a command may load only when it runs, not for its `--help`.
HEAVY = (
    *("harness.workspace", "harness.report", "harness.patchstack", "harness.verdict", "harness.ledger"),
    *("harness.run", "numpy", "pydantic", "pygit2", "rich"),
)
#: Makes the help of every command and sub-command; fails on the first command that loads one of HEAVY.
LOAD_ALL = f"""
import sys
import click
from harness.cli.app import COMMANDS, app

context = click.Context(app)
for name in COMMANDS:
    command = app.get_command(context, name)
    for sub_command in getattr(command, "commands", {{}}).values():
        sub_command.get_help(click.Context(sub_command))
    command.get_help(click.Context(command))
    loaded = [package for package in {HEAVY!r} if package in sys.modules]
    if loaded:
        sys.exit(f"{{name}} --help loads {{loaded}}")
"""


def test_help_of_no_command_loads_what_the_command_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [("triage", "--list"), ("--show-config",), ("--help",)])
def test_a_reader_that_is_gone_is_no_failure_of_a_cell(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(*arguments, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == EXIT_INCOMPLETE
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_said_in_a_sentence(unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run("--show-config", stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == EXIT_INCOMPLETE
    assert b"No space left on device" in done.stderr
    assert b"internal error" not in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_name_that_is_not_utf_8_where_none_can_be_is_bad_usage(tmp_path: Path) -> None:
    python = tmp_path / "caf\udce9"
    python.touch()
    done = run(
        *("--state", str(tmp_path / "state"), "--cache", str(tmp_path / "cache")),
        *("numerics", "battery", "--device", "cpu", "--python", str(python)),
        stdout=subprocess.PIPE,
    )
    assert done.returncode == EXIT_BAD_INPUT
    assert b"name is not valid UTF-8" in done.stderr
    assert b"internal error" not in done.stderr


@pytest.mark.parametrize(
    ("first", "code", "says"),
    [
        (KeyboardInterrupt(), EXIT_INTERRUPTED, "resumes"),
        (ValueError("x"), EXIT_INCOMPLETE, "internal error"),
    ],
)
def test_ctrl_c_while_a_module_is_imported_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: BaseException,
    code: int,
    says: str,
) -> None:
    def importing(**_given: object) -> None:
        raise RuntimeError("Error calling __set_name__ on 'a' instance 'b' in 'C'") from first

    module = importlib.import_module("harness.cli.app")
    monkeypatch.setattr(module.app, "main", importing)
    with pytest.raises(SystemExit) as ended:
        module.main(["plan"])
    assert ended.value.code == code
    assert says in capsys.readouterr().err


def test_a_closed_standard_input_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m harness triage - <&-'],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == EXIT_BAD_INPUT
    assert b"standard input is closed" in done.stderr


@pytest.mark.parametrize("encoding", ["gbk", "latin-1", "utf-8", "ascii"])
def test_words_a_terminal_cannot_show_do_not_cost_the_answer(encoding: str, tmp_path: Path) -> None:
    log = tmp_path / os.fsdecode("失败\udcff.log".encode("utf-8", "surrogateescape"))
    log.write_text(
        'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    g()\nValueError: 中 \U0001f600\n',
        encoding="utf-8",
    )
    done = run(
        "triage",
        str(log),
        str(log) + ".gone",
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert b"internal error" not in done.stderr
    assert b"gone" in done.stderr
    done = run("triage", str(log), stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert b"unknown-" in done.stdout
    assert b"ValueError" in done.stdout
    assert done.returncode == EXIT_UNEXPECTED


def test_what_the_system_refuses_names_the_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/var/state/ledger")

    monkeypatch.setattr(group.app, "get_command", lambda _ctx, _name: command)
    with pytest.raises(SystemExit) as ended:
        group.main(["plan"])
    assert ended.value.code == EXIT_INCOMPLETE
    said = capsys.readouterr().err
    assert "error: /var/state/ledger: Permission denied" in said
    assert "do:" in said


@pytest.mark.parametrize(("typed", "meant"), [("pln", "plan"), ("doctr", "doctor"), ("triag", "triage")])
def test_the_nearest_command_is_named(typed: str, meant: str) -> None:
    done = run(typed)
    assert done.returncode == EXIT_BAD_INPUT
    assert meant.encode() in done.stderr


def test_the_list_of_subcommands_shows_whole_sentences():
    context = click.Context(group.app)
    for name in group.COMMANDS:
        command = group.app.get_command(context, name)
        for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
            short = subcommand.get_short_help_str(limit=62)
            assert not short.endswith("..."), f"{name} {subcommand.name}: {short}"


def options_with_values() -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """(path of the command, option) for every option of every command that takes a value."""

    def walk(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Option]]:
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag:
                yield path, option
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                yield from walk((*path, name), below)

    yield from walk((), group.app)


def arguments_of(path: tuple[str, ...]) -> list[str]:
    """Something for each required argument of a command, which click reports before the values of options."""
    command: click.Command = group.app
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return ["." for one in command.params if isinstance(one, click.Argument) and one.required]


@pytest.mark.parametrize(
    ("path", "option"),
    [pytest.param(*found, id=" ".join([*found[0], found[1].opts[0]])) for found in options_with_values()],
)
def test_every_option_refuses_what_it_cannot_mean(
    path: tuple[str, ...], option: click.Option, capsys: pytest.CaptureFixture[str]
) -> None:
    name = option.opts[0]
    assert option.type not in {click.INT, click.FLOAT}, (
        "a number needs a range: click.IntRange, click.FloatRange"
    )
    values = [""] if name not in group.MAY_BE_EMPTY else []
    if isinstance(option.type, (click.IntRange, click.FloatRange)):
        values += ["nan", "-1", "9" * 5000, "1e999", "\N{SUPERSCRIPT TWO}", "0x1", "one"]
    if isinstance(option.type, click.Choice):
        values += ["no such choice"]
    for value in values:
        with pytest.raises(SystemExit) as stop:
            group.main([*path, f"{name}={value}", *arguments_of(path)])
        assert stop.value.code == EXIT_BAD_INPUT, value
        said = capsys.readouterr().err
        assert name in said, said


@pytest.mark.parametrize(
    "arguments",
    [
        ["patches", "check", "no-such-patch"],
        ["patches", "check", "--ref=main"],
        ["patches", "check", "--version=nope"],
        ["patches", "check", f"--version={'9' * 5000}"],
        ["patches", "apply", "--tree=.", f"--version={'9' * 5000}"],
        ["patches", "forecast", f"--repo={'x' * 300}"],
        ["patches", "import", ".", "--repo=no-such-clone"],
        ["patches", "import", ".", "--for=nope"],
        ["lint", "README.md", "--verl=nope"],
        ["doctor", "--need=nope"],
        ["run", "--base-image=-rm", "--only=nope"],
        ["run", "--executor=local", "--ray-address=10.0.0.1:6379"],
        ["run", "--ray-address=10.0.0.1:6379"],
        ["run", "--engine=venv", "--base-image=my-registry/base:1"],
        ["explain", ""],
    ],
    ids=lambda arguments: " ".join(arguments)[:50],
)
def test_a_name_or_number_that_cannot_be_is_bad_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        group.main(["--root", str(ROOT), *arguments])
    said = capsys.readouterr().err
    assert stop.value.code == EXIT_BAD_INPUT, said
    assert "internal error" not in said


def test_a_current_folder_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # A shell whose current folder is deleted before it starts the command.
    script = 'rmdir "$PWD"; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "harness", "plan"],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (EXIT_BAD_INPUT, "")
    assert "the current folder has been deleted" in done.stderr
