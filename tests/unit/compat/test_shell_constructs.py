"""bash is the oracle: each script starts `run`, and its words are those that are read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.compat.lint.shell.evaluator import Evaluator

START = "unset A B C N M L X\nset --\n"
SCRIPTS = {
    "braces around quotes": "A='x y'\nrun p={x,'y z',\"$A\"} a{b,\"$A\"}c {1..3}'q' \\{a,b}",
    "unset is not from outside": "A=1\nunset A\nrun a=$A b=${A:-x} c=${A+y} d=${#A} e=$((A+1))",
    "unset with set -u": "set -u\nA=1\nrun before\nunset A\nrun a=$A",
    "required variable": "run before\n: ${A:?no}\nrun after",
    "required variable that is empty": "A=\nrun before\n: ${A:?no}\nrun after",
    "set -e after a failed condition": "set -e\nrun before\n[ 1 = 2 ]\nrun after",
    "set -e with a counter at 0": "set -e\nn=0\nrun before\n((n++))\nrun after",
    "set -e does not end what is tested": "set -e\nif [ 1 = 2 ]; then :; fi\n[ 1 = 2 ] && :\n! true\nrun after",
    "set -e in a function": "set -e\nf() { [ 1 = 2 ]; run inside; }\nf || :\nf\nrun after",
    "set +e": "set -e\nset +e\nfalse\nrun after",
    "getopts": "set -- -n5 -v -o x rest\nwhile getopts 'n:vo:' o; do L+=\"$o$OPTARG,\"; done\n"
    'shift $((OPTIND - 1))\nrun "$L" "$@"',
    "getopts of letters together": 'while getopts ab:c o -ab7 -c; do A+=$o$OPTARG; done\nrun "$A"',
    "getopts of an unknown letter": "while getopts a o -z 2>/dev/null; do A+=$o; done\nrun $A",
    "bash -c has exported variables only": "A=1\nexport B=2\nbash -c 'run a=$A b=$B c=${C:-$0} \"$@\"' zero one",
    "bash -s": "A=1\nbash -s -- x <<'EOF'\nrun $1 $A\nEOF",
    "xargs -n": "echo 'a b' c | xargs -n2 run x\necho a b | xargs -n1 run\nprintf 'p q\\nr\\n' | xargs -I{} run x={}",
    "letters of values": "A=grpo\nB='a b'\nrun ${A@U} ${A@u} ${A@L} \"${B@Q}\" ${A^} ${A^^[gr]} ${A,,}",
    "names of variables": 'MOD_A=1\nMOD_B=2\nrun ${!MOD*} "${!MOD@}"',
    "cut from the end": "A=abcdef\nrun ${A:0:-2} ${A: -3:2} ${A:1:-1}",
    "last argument": 'set -- a b c\nrun ${@: -1} ${@:2:1} "${@:0:2}"',
    "last argument of none": "run ${@: -1}",
    "quotes in a default": "run \"${A:-'q q'}\" ${A:-'q q'} \"${A:-\"q q\"}\"",
    "regular expression": 'A=Qwen2.5-7B\n[[ $A =~ ^([A-Za-z]+)([0-9.]+)-([0-9]+)B$ ]] && run "${BASH_REMATCH[@]:1}"\n'
    "[[ $A =~ ^[0-9]+$ ]] && run number || run text",
    "quoted regular expression": 'A=a.c\n[[ abc =~ "$A" ]] || run literal\n[[ abc =~ $A ]] && run pattern',
    "keys in the order of bash": "declare -A M=([actor.lr]=1 [b]=2 [a]=3 [zeta]=4)\n"
    'for k in "${!M[@]}"; do L+=("$k=${M[$k]}"); done\nrun "${L[@]}" "${M[@]}"',
    "key of two words": 'declare -A M=(["two words"]=7 [trainer.n]=1)\nM[other key]=8\n'
    'run ${M[two words]} ${M[other key]} ${M[trainer.n]}',
    "document without tabs": 'run "$(cat <<-EOF\n\tone\n\t\ttwo\n\tEOF\n)"',
    "empty element at the end of a word": "L=('' b)\nrun a=${L[@]} x",
    "declared in lower case": "declare -l A=ABC\ndeclare -u B=abc\nA+=DEF\nrun $A $B",
    "read at the end of the input": "read -r -d '' A <<EOF || true\nx=1\ny\nEOF\nrun \"$A\"",
    "read at the end of the input with set -e": "set -e\nrun before\nread -r -d '' A <<EOF\nx=1\nEOF\nrun $A",
    "sort, awk, rev and paste": "run $(echo c b a | tr ' ' '\\n' | sort | head -1) $(echo 1 2 3 | awk '{print $2}') "
    "$(echo a:b | awk -F: '{print $NF}') $(echo ab | rev) $(printf '1\\n2\\n' | paste -sd,)",
    "test of several conditions": "[ ! a = b -a c = c ] && run one\n[ ! a = a -o c = c ] && run two\n[ a -a b ] && run three",
    "variable that is set": "A=\n[[ -v A ]] && run set\n[[ -v B ]] || run unset",
    "indirect expansion of nothing": "run before ${!A}\nrun after",
    "subshell that is no arithmetic": "A=$((echo 7) | cat)\nrun $A",
}  # fmt: skip


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    stub = folder / "run"
    # Each program is a line; `@Q` quotes line ends.
    stub.write_text('#!/bin/bash\necho "RUN ${*@Q}" >> "$RECORD"\n')
    stub.chmod(0o755)
    return folder


def started_by_bash(script: str, stubs: Path, record: Path) -> list[str]:
    record.touch()
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "RECORD": str(record), "LC_ALL": "C.UTF-8"}
    command = ["bash", "--norc", "--noprofile", "script.sh"]
    (record.parent / "script.sh").write_text(script)
    subprocess.run(
        command,
        cwd=record.parent,
        env=environment,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return record.read_text().splitlines()


def started_as_read(script: str) -> list[str]:
    evaluator = Evaluator("script.sh", None)
    evaluator.read(script)
    assert not any(note.unread for note in evaluator.notes)
    found = []
    for command in evaluator.commands:
        words = [word.text for word in command.arguments]
        if words[0] == "run":
            assert not any(word.unknown for word in command.arguments), command
            found.append(words[1:])
    quoted = subprocess.run(
        ["bash", "-c", 'for one; do echo "RUN $one"; done', "bash", *(" ".join(map(bash_quoted, words)) for words in found)],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    return quoted.stdout.splitlines()


def bash_quoted(text: str) -> str:
    done = subprocess.run(
        ["bash", "-c", 'echo -n "${1@Q}"', "bash", text], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_programs_are_those_that_bash_starts(name: str, stubs: Path, tmp_path: Path) -> None:
    script = START + SCRIPTS[name] + "\n"
    assert started_as_read(script) == started_by_bash(script, stubs, tmp_path / "record")
