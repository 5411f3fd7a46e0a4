"""Scripts that are not trusted: each is read within bounds on work, nothing is executed, and what is left out is told."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.compat.lint.launch_script import MAX_JOBS, NoJobError, parse_script, read_script
from harness.compat.lint.lint_scripts import lint_file, lint_folder
from harness.compat.lint.shell import syntax_tree
from harness.errors import InputError

JOB = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 "
TOO_LARGE = {
    "braces": JOB + "{a,b}" * 30,
    "long sequences": JOB + "{1..999999}{1..999999}{1..999999}",
    "a value that doubles": "a=xxxxxxxxxx\n" + "a=$a$a$a$a$a$a$a$a\n" * 12 + JOB,
    "an array that doubles": 'for i in {1..200}; do a+=("${a[@]}" x); done\n' + JOB,
    "words that double": 'a=({1..1000})\nb=("${a[@]}"' + ' "${a[@]}"' * 100 + ")\n" + JOB,
    "recursion": "f() { f; f; }\nf\n" + JOB,
    "a script that sources itself": "source ./script.sh\n" + JOB,
    "eval of itself": 'x=\'eval "$x"\'; eval "$x"\n' + JOB,
    "eval in loops": 'for i in {1..200}; do for j in {1..200}; do eval "a$i=$j"; done; done\n' + JOB,
    "nested loops": "for a in {1..200}; do for b in {1..200}; do x=$a$b; done; done\n" + JOB,
    "functions that call two": "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(24))
    + "f24() { x=1; }\nf0\n"
    + JOB,
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_script_without_bound_is_given_up_and_says_where(name: str, tmp_path: Path) -> None:
    file = tmp_path / "script.sh"
    file.write_text(TOO_LARGE[name])
    with pytest.raises(InputError, match="as far as it was read") as error:
        read_script(file)
    assert not isinstance(error.value, NoJobError)
    where = error.value.problems[0].where
    assert where is not None
    assert where.line


def test_a_folder_tells_the_scripts_that_were_given_up(tmp_path: Path) -> None:
    (tmp_path / "good.sh").write_text(JOB)
    (tmp_path / "bad.sh").write_text(TOO_LARGE["recursion"])
    (tmp_path / "none.sh").write_text("echo nothing\n")
    result = lint_folder(tmp_path, {})
    assert [note.text for note in result.notes if "bad.sh" in note.text]
    assert not [note.text for note in result.notes if "none.sh" in note.text]


@pytest.mark.parametrize(
    "script",
    [
        "for i in {1..100}; do " + JOB + "trainer.nnodes=$i; done",
        "i=0; while true; do " + JOB + "trainer.nnodes=$((++i)); done",
        "".join(f"{JOB} trainer.nnodes={i}\n" for i in range(300)),
    ],
)
def test_only_the_first_of_many_jobs_are_compared_and_this_is_told(script: str) -> None:
    found = parse_script(script)
    assert len(found.jobs) == MAX_JOBS
    assert any("different jobs" in note.text and note.unread for note in found.notes)


@pytest.mark.parametrize(
    "script",
    [
        "x=$(touch PWNED); `touch PWNED`; touch PWNED; exec touch PWNED\n",
        "a='a[$(touch PWNED)]'; echo $((a)); let 'b=a[$(touch PWNED)]'; [[ $a -eq 1 ]]\n",
        "source <(touch PWNED); cat <(touch PWNED) > PWNED; eval 'touch PWNED'; bash -c 'touch PWNED'\n",
        "trap 'touch PWNED' EXIT; coproc x { touch PWNED; }; printf -v x '%s' $(touch PWNED)\n",
        "echo > PWNED; : > PWNED; exec 3> PWNED; read x < PWNED; ${x:-$(touch PWNED)}\n",
    ],
)
def test_nothing_is_executed(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parse_script(script + JOB, "script.sh", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("HOME", "/hunter2")
    script = (
        JOB
        + "a.b=$SECRET_TOKEN c.d=${HOME} e.f=~/x g.h=${!S*} i.j=$(echo $SECRET_TOKEN) k.l=$((SECRET_TOKEN))"
    )
    assert "hunter2" not in repr(parse_script(script))


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/urandom", "pipe.sh", "socket.sh"])
def test_what_is_no_file_is_not_waited_for(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.sh")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.sh")
        with pytest.raises(InputError):
            lint_file(Path(path), {})


def test_odd_entries_of_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "good.sh").write_text(JOB)
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "loop.sh").symlink_to("loop.sh")
    (tmp_path / "zero.sh").symlink_to("/dev/zero")
    (tmp_path / "folder.sh").mkdir()
    (tmp_path / "again").symlink_to(tmp_path)
    result = lint_folder(tmp_path, {})
    assert {note.text.split("/")[-1].split(" ")[0] for note in result.notes if note.unread} >= {
        "pipe.sh",
        "loop.sh",
        "zero.sh",
        "folder.sh",
    }


def test_folders_that_are_nested_deeply_are_read(tmp_path: Path) -> None:
    (tmp_path / "good.sh").write_text(JOB)
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert len(lint_folder(tmp_path, {}).undecided) > 0
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (JOB.encode("utf-16"), 0),
        (JOB.encode() + b"\0", 0),
        (b"#\n# caf\xe9\n" + JOB.encode(), 2),
        (b"#!/usr/bin/env fish\nset -x A 1\nif test -f x\n  ls\nend\n", 3),
        (b"#!/bin/csh\nforeach i (1 2)\n ls\nend\n", 2),
        (b"import os\nos.system('x')\n", 2),
        (b"$x = @(1)\nforeach ($i in 1..3) { ls }\n", 2),
        (b"x=$(" * 3000, 1),
        (b"x=$((" + b"(" * 3000 + b"1" + b")" * 3000 + b"))\n", 0),
        (b"a=" + b"x" * (10 << 20), 0),
    ],
    ids=[
        "UTF-16",
        "NUL",
        "Latin-1",
        "fish",
        "csh",
        "Python",
        "PowerShell",
        "nesting",
        "parentheses",
        "10 MB",
    ],
)
def test_what_is_no_bash_is_told_with_its_place(data: bytes, line: int, tmp_path: Path) -> None:
    file = tmp_path / "script.sh"
    file.write_bytes(data)
    with pytest.raises(InputError) as error:
        read_script(file)
    where = error.value.problems[0].where
    assert where is not None
    assert (where.line, str(where.file)) == (line, str(file))


def test_windows_line_ends_are_read() -> None:
    script = parse_script("#!/bin/bash\r\n" + JOB + "\\\r\n trainer.nnodes=2 \\\r\n trainer.x=3\r\n")
    assert {key: value.text for key, value in script.jobs[0].overrides.items()}["trainer.nnodes"] == "2"


WORDS = [
    "$x",
    "${x:-1}",
    "${x##*[a}",
    "${!x}",
    "${!x*}",
    "${x[@]}",
    '"${x[@]}"',
    "${#x[@]}",
    "${x:1:-2}",
    "${x/#a/b}",
    "${x//[z-a]/}",
    "${x@Q}",
    "${x^^[a}",
    "$((x++))",
    "$((1/0))",
    "$((2**70))",
    "$((x[1]))",
    "$(x)",
    "$(echo",
    "a",
    "b)",
    "$(seq",
    "1",
    "3)",
    "<(x)",
    "{a,b}",
    "{1..3}",
    "{z..a..2}",
    "~",
    "~x",
    "'a",
    "b'",
    '"a',
    '$x"',
    "$'\\x41'",
    '$"a"',
    "a*b",
    "[a-z]",
    "\\*",
    "a=b",
    "x=1",
    "x=(1",
    "2)",
    "x+=(3)",
    "x[2]=1",
    "x[-9]=1",
    "x[$y]=1",
    "x+=1",
    "declare",
    "local",
    "export",
    "unset",
    "eval",
    "source",
    ".",
    "exec",
    "env",
    "-i",
    "-u",
    "A=1",
    "bash",
    "-c",
    "read",
    "printf",
    "-v",
    "set",
    "--",
    "shift",
    "99",
    "getopts",
    "test",
    "[",
    "]",
    "[[",
    "]]",
    "-eq",
    "-n",
    "==",
    "=~",
    "!",
    "true",
    "false",
    "exit",
    "return",
    "break",
    "continue",
    ":",
    "cd",
    "pwd",
    "nohup",
    "time",
    "torchrun",
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "a.b=1",
    "+c=2",
    "~d",
]
GLUE = ["\n", " ; ", " && ", " || ", " | ", " & ", " ", " ", " "]
BLOCKS = [
    "if {}; then {}; else {}; fi",
    "for x in {}; do {}; {}; done",
    "while {}; do {}; {}; done",
    "case {} in {}) {} ;; esac",
    "f() {{ {}; {}; {}; }}; f",
    "( {}; {}; {} )",
    "x=$({}; {}; {})",
    "for ((i=0;i<3;i++)); do {}; {}; {}; done",
    "cat <<EOF\n{} {} {}\nEOF\n",
    'bash -c "{}; {}; {}"',
]
SIMPLE = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GLUE)), min_size=1, max_size=6).map(
    lambda pairs: "".join(word + glue for word, glue in pairs).strip(" ;&|") or ":"
)
SCRIPTS = st.recursive(
    SIMPLE,
    lambda inner: st.tuples(st.sampled_from(BLOCKS), inner, inner, inner).map(
        lambda parts: parts[0].format(*parts[1:])
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(SCRIPTS)
@example("x=abc; [[ $x == [z-a]* ]]; case $x in [[]) ;; esac; y=${x#[z-a]}")
def test_random_scripts_are_read_or_refused(script: str) -> None:
    try:
        parse_script(f"{script}\n{JOB}")
    except InputError as error:
        assert error.problems[0].where is not None  # noqa: PT017


def test_a_parser_that_computes_without_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = tmp_path / "shfmt"
    busy.write_text("#!/bin/sh\nwhile :; do :; done\n")
    busy.chmod(0o755)
    monkeypatch.setattr(syntax_tree, "_shfmt", lambda: str(busy))
    with pytest.raises(InputError, match="cannot be parsed"):
        syntax_tree.parse_bash("echo a\n", "run.sh")


def test_a_parser_that_waits_for_a_busy_machine_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "shfmt"
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec {syntax_tree._shfmt()} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(syntax_tree, "_shfmt", lambda: str(slow))
    assert syntax_tree.parse_bash("echo a\n", "run.sh").children("Stmts")
