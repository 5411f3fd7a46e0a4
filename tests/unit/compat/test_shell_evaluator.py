"""What scripts run, compared with what bash itself runs."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from missing_programs import required_program

from harness.compat.lint.shell.evaluator import MAX_COMMANDS, Evaluator
from harness.errors import InputError

# A function in place of the program records its arguments; no other program can be found.
RECORD = "python() { printf '%s\\0' \"$@\"; printf '\\n\\0'; }\nPATH=/nowhere\n"


def commands_of_bash(script: str, folder: Path) -> list[list[str]]:
    done = subprocess.run(
        [required_program("bash", "bash"), "--norc", "-c", RECORD + script],
        cwd=folder,
        env={},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )
    records = done.stdout.decode("utf-8", "surrogateescape").split("\n\0")
    return [record.split("\0")[:-1] for record in records[:-1]]


def commands_read(script: str, folder: Path | None = None) -> list[list[str]]:
    evaluator = Evaluator("script.sh", folder)
    evaluator.read(script)
    return [
        [argument.text for argument in command.arguments[1:]]
        for command in evaluator.commands
        if command.arguments[0].text == "python"
    ]


SCRIPTS = [
    'A=(a "b c"); python ${A[@]+"${A[@]}"} end; B=(); python ${B[@]+"${B[@]}"} end; python "${B[@]:-none}" ${C[@]-"d e"}',
    'X="e f"; python ${X:+"$X"} ${X:+--flag "$X"} ${Y:-"g h" i} p${X:+"$X"}q ${Y:+"no"} ${Y-a"b c"d e}',
    'a[2]=x; a[0]=y; python "${a[@]}" ${!a[@]} ${a[-1]} ${#a[@]} "${a[1]-gap}"; a+=(z); python ${!a[@]}; unset "a[2]"; python ${a[@]} ${!a[@]}',
    'a=([3]=c [1]=a); python "${a[@]}" ${!a[@]}; a[1]+=b; python ${a[1]}; i=3; python ${a[i]} ${a[$i]}; for k in "${!a[@]}"; do python $k=${a[$k]}; done',
    'A=(1 2 3); unset "A[1]"; python ${!A[@]}; A=("${A[@]}"); python ${!A[@]} ${A[1]}; A[7]=q; python "${A[@]:1}"',
    'X=1 eval "python \\$X"; python ${X-unset}; f() { python ${Y-none} $1; Y=changed; }; Y=2 f a; python ${Y-gone}; Z=3; Z=4 f b; python $Z',
    "printf '%b|%s\\n' 'a\\tb' 'c\\td' | while read -r x; do python \"$x\"; done; python $'\\x41\\101' \"$(printf '\\x42\\103')\"",
    "x=$(false) || python failed; y=$(true) && python fine; if z=$(echo 1); then python $z; fi",
    'n=0; while read -r a b; do n=$((n + b)); done < <(printf "x 1\\ny 2\\n"); python $n; mapfile -t L < <(printf "a\\n\\nb\\n"); python ${#L[@]}',
    "f-x() { python dash $1; }; f-x 1; f.y() { python dot; }; f.y; function a:b { python colon; }; a:b",
    "python $((16#ff)) $((2#101)) $((10#09 + 1)); n=08; python $((10#$n)) $((10#${n} + 1))",
    'A="a b"; B=${A:+"$A"}; python "$B"; C=(${A:+"$A"} ${A:+$A}); python ${#C[@]} "${C[0]}"; for i in ${A:+"$A"}; do python "$i"; done',
    'opt=; python a $opt b "$opt" ${opt:+x} ${opt:-}; opt="--k v"; python $opt "$opt"; flag=${DEBUG:+--debug}; python $flag end',
    'run() { local n=$1; shift; python "$n" "$@" ${EXTRA:+"$EXTRA"}; }; EXTRA="e f" run a b; run c',
    'A=(x y z); python "${A[@]::2}" "${A[@]: -1}" "${A[*]:-none}" "${U[*]:-no ne}"',
    'f() { python "${@:2}"; python "${@: -1}" "${*: -2:1}"; }; f a b c',
    'set -- a b c; for x; do python $x; done; for x in "$@"; do python =$x; done; for x in; do python no; done',
    "f() { return 1; }; f && python no; f || python yes; g() { return 0; }; g && python g",
    "p=/a/b/c.sh; d=${p%/*}; python $d ${d##*/} ${p##*.}; python a sh",
    "declare -A m; m[a]=1; m[b]+=2; m[a]+=3; python ${m[a]} ${m[b]}; unset 'm[a]'; python ${m[a]-gone} ${m[c]:-none}",
    "x=a; case $x in a) python a ;;& b) python b ;; *) python star ;; esac; case $x in a) python 1 ;& b) python 2 ;; *) python 3;; esac",
    "printf '%s\\0' a 'b c' | while IFS= read -r -d '' x; do python \"$x\"; done",
    "source /dev/stdin <<< 'Z=8'; python $Z",
    'eval "$(echo X=5)"; python $X; eval "$(printf \'Y=%s\\n\' 6)"; python $Y',
    "while IFS='=' read -r k v; do python \"$k\" \"$v\"; done <<'EOF'\na=1\nb=2=3\nEOF",
    "python a=1 \\\n  # b=2 \\\n  c=3\npython d # e \\\npython f",
    "declare -A M=([t.n]=1 [d.x-y]=2); M[a.b]=3; python ${M[t.n]} ${M[d.x-y]} ${M[a.b]} ${#M[@]}",
    "for a in 1 2 3; do for b in x y; do [ $a$b = 2x ] && continue 2; python $a$b; done; done",
    "for a in 1 2 3; do [ $a = 2 ] && break; python $a; done; python $a",
    "while true; do for i in 1 2; do python $i; break 2; done; python no; done; python end",
    "for ((i = 0; ; i++)); do [ $i = 3 ] && break; [ $i = 1 ] && continue; python $i; done",
    'A=(a b c d); unset \'A[1]\'; python "${A[@]}"; unset A[0]; python "${A[@]}"; unset A; python ${A-none}',
    'f() { local -n out=$1; out+=(x=$2); }; A=(a); f A 1; f A 2; python "${A[@]}"; out=3; python $out ${#A[@]}',
    "declare -n r=X; X=1; r=2; python $X $r",
    "I=1; : $((I <<= 2)) $((I |= 3)); python $I; J=7; ((J &= 5)); ((J ^= 1, J >>= 1)); python $J",
    "declare -i C=6/2; C+=3; python $C; X='2 * 4'; python $((X + 1)) $((Y = X))",
    "IFS=: X=a:b::c; IFS=:; python $X; IFS=' ,'; Y=' a , b,,c '; python $Y",
    "A=(a b c); IFS=,; python \"${A[*]}\" ${A[*]}; IFS=; Z='x y'; python $Z",
    "IFS=, read -r A B <<< '3,4,5'; python $A $B; read -r C D <<< ' x  y z '; python \"$C|$D\"",
    "IFS=';' read -ra P <<< 'a=1;b=2;'; python \"${P[@]}\"; read -d '' Q <<EOF\na\n b\nEOF\npython $Q",
    "while read -r q r; do python $q-$r; done <<EOF\n1 2\n3 4 5\nEOF",
    "printf '%s\\n' 3 4 | while read -r q; do python $q; done; python ${q-none}",
    "mapfile -t A <<EOF\na 1\nb\nEOF\npython \"${A[@]}\"; readarray -t B < <(printf '%s\\n' x 'y z'); python \"${B[@]}\"",
    "printf -v N 'e_%s_%03d_%.1e' q 8 0.000001; python $N \"$(printf \"'%s',\" a b)\" \"$(printf '%5s|%-4s|%%' x y)\"",
    't() { echo 4; }; f() { local d=$1; echo "[\'$d/a\']"; }; python $(t) "$(f /x)" `t` $(t | while read -r x; do echo $x$x; done)',
    'j() { local IFS=$1; shift; echo "$*"; }; A=(a b c); python $(j , "${A[@]}") $(IFS=+; echo "${A[*]}")',
    "x=$(if [ a = a ]; then echo yes; else echo no; fi); python $x $(false || echo or) $([ 1 = 2 ] && echo and)",
    "x=1; y=$(x=2; echo $x); python $x $y; python $(: # nothing\n) `# comment` end",
    "f() { for i in 1 2 3; do [ $i = 2 ] && return; python $i; done; }; f; python end",
    "set -e; set -- a b; python $1; set x y z; python $2 $#",
    "python [{a,b}]x y=[{1,2},3] {a,b=[c]}",
    "X=a; [[ -v X ]] && python set; f() { echo \"$@\"; }; python $(f {1..3}) $(f 'a b')",
    'A=(a=1 "b c" d); python "${A[@]}"',
    "A=(a=1 'b c' d); python ${A[@]} end",
    'A=(1 2); A+=(3); python "${A[*]}" "${#A[@]}" ${A[1]} "${A[@]:1:1}" ${A[-1]}',
    'declare -A M=([x]=1 [y]=\'2 3\'); python "${M[x]}" "${M[y]}"',
    'C="a=1 \\\n  b=2 "; python ${C}c=3 $C',
    'X=; python $X "$X" a${X}b ${X:-d} ${X-e} ${Y-f} ${X:+g} ${X+h}',
    'P=/a/b.tar.gz; python ${P##*/} ${P%.*} ${P%%.*} ${P#*/} ${P/b/c} ${P//a/z} ${P:1:3} ${#P} ${P^^} "${P,,}"',
    "python $((2**10 % 7)) $(( (3 + 4) * -2 )) $((7 / -2)) $((1 ? 5 : 6))",
    "i=3; ((i++)); ((i *= 2)); let i+=1; python $i $((i == 9))",
    "for i in {a,b} x$((1+1)); do python $i; done",
    "for ((i = 0; i < 3; i++)); do python $i; done",
    "i=0; while [ $i -lt 3 ]; do python $i; i=$((i + 1)); done",
    "i=3; until [[ $i -eq 0 ]]; do python $i; ((i--)); done",
    "f() { local x=$1; shift; python $x \"$@\" $#; }; f a 'b c' d; f z",
    'set -- a=1 "b c"; python "$@" $# $2; shift; python "$1"',
    'X=; if [ -z "$X" ] && [[ ab == a* ]]; then X=1; else X=2; fi; python $X',
    "python x{a,b}y {1..3} {3..1} 'no{a,b}' \\{a,b\\} k={a:1,b:2} {single}",
    "X=gsm8k; case $X in a*|b) python 1;; g*) python 2;; *) python 3;; esac",
    "CMD='python -m x a=1'; CMD+=' b=2'; $CMD; eval \"$CMD c='d e'\"",
    'A=1 B=2; C=$A$B D="$A-$B"; python $C $D',
    "python a\\ b 'c\\d' \"e\\\"f\\$g\" $'h\\ti' \\\n  end",
    "( X=1; python $X ); python ${X:-2}",
    "true && python 1 || python 2; false || python 3; ! true || python 4",
    "python a=[1,2] 'x={y: z}' \"k='v w'\" l=['a','b']",
    "X=a; Y=X; python ${!Y}; A=(p q); python ${!A[@]}",
    "function g { return 0; python no; }; g; python yes; exit 0; python never",
    "IFS=, ; python done",
    "unset X; X=${X:=5}; python $X ${X:?no}",
    "echo() { :; }; python 1 >/dev/null 2>&1; python 2 | cat; { python 3; }",
    'A=(); python "${A[@]}" ${A[@]+x} end; A[2]=c; python "${A[@]}"',
    'X=\' a  b \'; python p$X"q" "$X"',
    "x=1; f() { local x=2 y=3; python $x $y; }; f; python $x ${y-none}",
    "x=1; f() { local x; python [$x]; x=5; g; }; g() { python $x; x=7; }; f; python $x",
    "f() { local v=$1; if [ $v -gt 0 ]; then f $((v - 1)); fi; python $v; }; f 2; python ${v-none}",
    "x=1; f() { declare x=$x$x; python $x; declare -g y=4; }; f; python $x $y",
    "declare -A M; M[k]=1; f() { local -A M; M[j]=2; python ${M[j]} [${M[k]}]; }; f; python ${M[k]}",
    "cat() { :; }; read -r -d '' T <<'EOF'\na=1 b=$c\nEOF\npython $T",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_what_bash_runs(script: str, tmp_path: Path) -> None:
    real = [command for command in commands_of_bash(script, tmp_path) if command]
    read = commands_read(script)
    if "| cat" in script or "||" in script:
        assert set(map(tuple, real)) <= set(map(tuple, read))
    else:
        assert distinct(read) == distinct(real)


names = st.sampled_from(["A", "B", "C"])
texts = st.text(alphabet="ab1 =/.", max_size=6)
words = st.one_of(
    texts.map(lambda text: f"'{text}'"),
    texts.map(lambda text: f'"{text}"'),
    st.sampled_from(["a=1", "b/c.d", "''", "x"]),
    names.map(lambda name: f"${{{name}}}"),
    names.map(lambda name: f'"${{{name}}}"'),
    names.map(lambda name: f'"${{{name}[@]}}"'),
    names.map(lambda name: f"${{{name}[*]}}"),
    st.tuples(names, st.sampled_from([":-", "-", ":+", "+", "#", "%", "##", "%%"]), texts).map(
        lambda parts: f'"${{{parts[0]}{parts[1]}{parts[2].replace(" ", "")}}}"'
    ),
    st.tuples(names, st.integers(0, 3), st.integers(0, 3)).map(
        lambda parts: f'"${{{parts[0]}:{parts[1]}:{parts[2]}}}"'
    ),
    st.tuples(st.integers(-9, 9), st.sampled_from(["+", "-", "*", "<", "=="]), st.integers(0, 9)).map(
        lambda parts: f"$(({parts[0]} {parts[1]} {parts[2]}))"
    ),
)
joined_words = st.lists(words, min_size=1, max_size=3).map("".join)
lines = st.one_of(
    st.tuples(names, joined_words).map(lambda parts: f"{parts[0]}={parts[1]}"),
    st.tuples(names, joined_words).map(lambda parts: f"{parts[0]}+={parts[1]}"),
    st.tuples(names, st.lists(joined_words, max_size=3)).map(
        lambda parts: f"{parts[0]}=({' '.join(parts[1])})"
    ),
    st.tuples(names, st.lists(joined_words, max_size=2)).map(
        lambda parts: f"{parts[0]}+=({' '.join(parts[1])})"
    ),
    st.lists(joined_words, min_size=1, max_size=3).map(lambda parts: f"python mark {' '.join(parts)}"),
    joined_words.map(lambda word: f"[ {word} = a ] && python mark yes"),
    joined_words.map(lambda word: f"for x in {word} end; do python mark $x; done"),
)


@settings(max_examples=40, deadline=None)
@given(script=st.lists(lines, min_size=1, max_size=6).map("\n".join))
def test_any_script_of_assignments_and_expansions_runs_what_bash_runs(
    script: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = "A= B= C=\n"
    real = commands_of_bash(start + script, tmp_path_factory.getbasetemp())
    assert distinct(commands_read(start + script)) == distinct(real), script


def distinct(commands: list[list[str]]) -> list[list[str]]:
    return [command for index, command in enumerate(commands) if command not in commands[:index]]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("if [ $X = 1 ]; then A=1; else A=2; fi; python $A", [["1"], ["2"]]),
        ('A=(a); if [ -n "$X" ]; then A+=(b); fi; python "${A[@]}"', [["a", "b"], ["a"]]),
        ("case $X in a) A=1;; b) A=2;; *) A=3;; esac; python $A", [["1"], ["2"], ["3"]]),
        ('if [ "$#" -lt 2 ]; then exit 1; fi; python $1', [["$1"]]),
        ("while [ $# -gt 0 ]; do A=1; shift; done; python ${A:-0}", [["1"], ["0"]]),
        ("for x in $LIST; do python $x; done", [["$x"]]),
        ("grep -q x y || python 1; mkdir -p d && python 2", [["1"], ["2"]]),
    ],
)
def test_both_branches_of_what_only_a_run_can_know_are_read(script: str, expected: list[list[str]]) -> None:
    assert sorted(commands_read(script)) == sorted(expected)


def test_scripts_beside_this_one_are_read_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text("ARGS=(a=1 b=2)\nexport SEEN=1\n")
    (tmp_path / "inner.sh").write_text('python "$1" $SEEN')
    (tmp_path.parent / "outside.sh").write_text("ARGS=(stolen)")
    (tmp_path / "link.sh").symlink_to(tmp_path.parent / "outside.sh")
    script = 'source common.sh; . ../outside.sh; source link.sh; python "${ARGS[@]}"; bash inner.sh x'
    assert commands_read(script, tmp_path) == [["a=1", "b=2"], ["x", "1"]]


def test_commands_in_strings_and_environments_are_read() -> None:
    evaluator = Evaluator("run.sh", None)
    evaluator.read(
        "export A=1 B\nC=2 env D=3 nohup bash -lc 'python $A x=\"$D\"' &\n"
        "ray job submit --address x -- python3 -m y z=1\n"
    )
    first, second = evaluator.commands
    assert [one.text for one in first.arguments] == ["python", "1", "x=3"]
    assert {name: value.text for name, value in first.environment.items()} == {"A": "1", "C": "2", "D": "3"}
    assert [one.text for one in second.arguments][-4:] == ["python3", "-m", "y", "z=1"]


def test_a_text_with_unknown_parts_is_split_like_any_other() -> None:
    evaluator = Evaluator("run.sh", None)
    evaluator.read('C="a=$HOME/x b=2 c=$(date +%F x) $Z"; python $C')
    words = [(one.text, one.unknown, one.whole) for one in evaluator.commands[0].arguments[1:]]
    assert words == [
        ("a=$HOME/x", "HOME", False),
        ("b=2", "", False),
        ("c=$(date +%F x)", "HOME", False),
        ("$Z", "Z", True),
    ]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("-u A", {"B"}),
        ("--unset=A -uB", set()),
        ("-i A=4", {"A"}),
        ("-u A A=1", {"A", "B"}),
        ("", {"A", "B"}),
    ],
)
def test_env_removes_variables(options: str, left: set[str]) -> None:
    evaluator = Evaluator("run.sh", None)
    evaluator.read(f"export A=1 B=2\nenv {options} python x")
    assert set(evaluator.commands[0].environment) == left


@pytest.mark.parametrize(
    ("file", "unread"),
    # Files that activate an environment start no job and set nothing of it: they are only told.
    [("/opt/settings.sh", True), ("/opt/set_env.sh", False), ("$HOME/venv/bin/activate", False)],
)
def test_a_sourced_file_that_is_not_there_leaves_the_script_incomplete(
    file: str, unread: bool, tmp_path: Path
) -> None:
    evaluator = Evaluator("run.sh", tmp_path)
    evaluator.read(f"source {file}\npython x")
    assert [(note.line, note.unread) for note in evaluator.notes] == [(1, unread)]


@pytest.mark.parametrize(
    "bomb",
    [
        "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A$A$A\n" * 40 + "python $A",
        "f() { f; f; }\nf",
        "while true; do X=1; done",
        "for i in 1 2 3 4 5 6 7 8 9; do " * 9 + "python $i;" + "done;" * 9,
        "if [ $A ]; then B=1; fi\n" * 3000 + "python x",
        "".join(f"if [ $A{index} ]; then B{index}=1; fi\n" for index in range(60)) + "python $B0",
        "echo " + "$(" * 3000 + ")" * 3000,
        "python " + "${A:-" * 500 + "}" * 500,
        "A='" + "*" * 5000 + "'; B=${A%%" + "*a" * 200 + "}",
        "python $((" + "(" * 2000 + "1" + ")" * 2000 + "))",
        "x\n" * 50_000,
        "a" * (1 << 20),
    ],
    ids=lambda text: text[:30],
)
def test_hostile_scripts_end(bomb: str) -> None:
    evaluator = Evaluator("bomb.sh", None)
    with contextlib.suppress(InputError):
        evaluator.read(bomb)
    assert len(evaluator.commands) <= MAX_COMMANDS


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("D=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)\npython a.py d=$D", "d=npu"),
        ("if python3 -c 'import torch, torch_npu'; then D=npu; else D=gpu; fi\npython a.py d=$D", "d=npu"),
        ('eval "$(conda shell.bash hook)"\npython a.py d=1', "d=1"),
        ("D=$([ a = b ] && echo yes || echo no)\npython a.py d=$D", "d=no"),
        ("D=$(cd -- /opt/x/.. >/dev/null && pwd)\npython a.py d=$D", "d=/opt"),
        ("D=$(unknown && echo yes || echo no)\npython a.py d=$D", "d=$(unknown && echo yes || echo no)"),
    ],
)
def test_a_script_is_read_as_on_a_machine_with_npus(script: str, expected: str) -> None:
    assert commands_read(script) == [["a.py", expected]]


def programs(script: str) -> list[str]:
    """The last words of the programs that a script starts."""
    evaluator = Evaluator("script.sh", None)
    evaluator.read(script)
    return [command.arguments[-1].text for command in evaluator.commands if len(command.arguments) > 1]


@pytest.mark.parametrize(
    "script",
    [
        "cat > /tmp/r_$$.sh <<'EOF'\npython -m x a=1\nEOF\nbash /tmp/r_$$.sh",
        "cat <<EOF | tee r.sh\npython -m x a=1\nEOF\nchmod +x r.sh\n./r.sh",
        "{ echo 'python -m x \\'; echo 'a=1'; } > r.sh; source ./r.sh",
        "N=1\nbash <<EOF\npython -m x a=$N\nEOF",
        "bash -s -- 1 <<'EOF'\npython -m x a=$1\nEOF",
        "ssh host <<'EOF'\npython -m x a=1\nEOF",
        "echo 'python -m x a=1' | sh",
        "ssh host 'cd /d; python -m x a=1'",
        "tmux new-session -d 'python -m x a=1'",
        "sbatch --wrap='python -m x a=1'",
        "xargs -I{} python -m x a={} <<< 1",
        "echo a=1 | xargs python -m x",
        "out=$(python -m x a=1)",
        "diff <(python -m x a=1) b",
        "conda run -n e python -m x a=1",
        "trap 'python -m x a=1' EXIT",
        "python -m x a=1 | tee -a log.txt",
    ],
)
def test_a_program_is_found_wherever_a_script_starts_it(script: str) -> None:
    assert "a=1" in programs(script)


@pytest.mark.parametrize(
    "script", ["pkill -f 'python -m x a=1'", "grep 'python -m x a=1' f", "echo 'python -m x a=1' > notes"]
)
def test_a_text_about_a_program_starts_none(script: str) -> None:
    assert "a=1" not in programs(script)


def test_a_script_that_is_not_there_is_told() -> None:
    evaluator = Evaluator("script.sh", None)
    evaluator.read("bash other.sh a=1")
    assert [note.text for note in evaluator.notes] == [
        "`other.sh` is not read: no such file lies beside this script"
    ]
