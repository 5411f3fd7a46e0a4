# ruff: noqa: E501 - the rows are tables of pieces of scripts
"""Random bash scripts that start programs, for a comparison of what `lint` reads with what bash runs.

Each script is a list of statements from a grammar of what launch scripts do: values, arrays, expansions,
arithmetic, conditions, loops, functions, other shells and the ways to start a program. No statement reads
anything from outside, so bash alone says what the script runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

NAMES = ("A", "B", "C", "LR", "MODEL", "n", "i")
LISTS = ("ARGS", "DATA", "L")
KEYED = ("OPT", "M")
#: Variables that some expansions use and few scripts set.
UNSET = (
    "NEW",
    "EX",
    "x1",
    "j",
    "a",
    "k",
    "v",
    "o",
    "x",
    "y",
    "key",
    "line",
    "opt",
    "run",
    "CMD",
    "DRY",
    "LOUD",
)
KEYS = ("a", "b", "trainer.nnodes", "two words", "0")
TEXTS = (
    "1", "7", "0", "12", "008", "-3", "0x1F", "a", "grpo", "Qwen/Qwen2.5-7B", "a b", "two  words", "x=y", "*",
    "a*b", "['console','wandb']", "[1,2]", "{a:1}", "a,b,c", "data/train.parquet", "1e-6", "", " lead", "trail ",
    "it's", 'say "hi"', "back\\slash", "a:b:c", "--flag", "-n", "~", "#no", "k=v k2=v2", "é", "a/b/c.tar.gz",
    "True", "null", "x{1,2}y", "a\tb", "[ab]", "?", "!x", "100%", "$HOMELESS", "`", "a\\*b",
)  # fmt: skip
PLAIN = tuple(text for text in TEXTS if text.replace("/", "").replace(".", "").replace("-", "").isalnum())
NUMBERS = ("0", "1", "2", "3", "5", "8", "10", "64", "010", "0x10", "2#101", "-2")
PATTERNS = ("*/", "a*", "*.*", "?", "*", "[a-c]", "*:", "Q*/", "[[:digit:]]", "*[!a-z]*", "w*d", ".*", "Qwen")


class Grammar:
    """Makes one script. random: where every choice comes from. depth: how deep blocks are nested now."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.depth = 0
        self.functions = 0
        self.job = 0

    def script(self) -> tuple[list[str], list[str]]:
        """The statements of a script: those that set all its variables, and the others."""
        head = self.random.choices(
            ("", "set -e", "set -x", "set -u", "set -euxo pipefail", "shopt -s extglob"), (12, 2, 2, 1, 2, 1)
        )
        head.append("unset " + " ".join((*NAMES, *LISTS, *KEYED, *UNSET)))
        head.append("declare -A " + " ".join(KEYED))
        head.append(f"REF={self.name()} P={self.name()}")
        head.append(
            "set -- "
            + " ".join(self.quoted(self.random.choice(TEXTS)) for _ in range(self.random.randrange(4)))
        )
        head += [f"{name}={self.word()}" for name in NAMES[:-2]]
        head += [f"n={self.random.choice(NUMBERS)}", f"i={self.random.randrange(3)}"]
        head += [
            f"{name}=({' '.join(self.word() for _ in range(self.random.randrange(4)))})" for name in LISTS
        ]
        head += [f"declare -A {name}=({self.keyed_elements()})" for name in KEYED]
        body = [self.statement() for _ in range(self.random.randrange(2, 7))]
        tail = [self.launch() for _ in range(self.random.randrange(1, 3))]
        return [*filter(None, head)], [*body, *tail]

    def choose(self, makers: Sequence[Callable[[], str]]) -> str:
        """What one of the makers makes."""
        return self.random.choice(makers)()

    # Words

    def name(self) -> str:
        """A variable."""
        return self.random.choice(NAMES)

    def quoted(self, text: str) -> str:
        """A text as bash reads it back, quoted in one of several ways."""
        way = self.random.randrange(4)
        if way == 0 and text in PLAIN:
            return text
        if way == 1:
            escaped = "".join("\\" + one if one in '\\"$`' else one for one in text)
            return f'"{escaped}"'
        if way == 2:
            escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\t", "\\t")
            return f"$'{escaped}'"
        return "'" + text.replace("'", "'\\''") + "'"

    def word(self) -> str:
        """A word of a command."""
        makers = (
            lambda: self.quoted(self.random.choice(TEXTS)),
            lambda: self.quoted(self.random.choice(TEXTS)),
            lambda: f'"{self.inner()}"',
            lambda: f'"{self.inner()}"',
            self.inner,
            lambda: f"{self.random.choice(PLAIN)}={self.inner()}",
            self.every_element,
            lambda: self.random.choice(
                ("{a,b}", "x{1..3}", "{01..03}", "a{,b}c", "{a..e..2}", "p={x,'y z'}")
            ),
            lambda: self.quoted(self.random.choice(TEXTS)) + self.quoted(self.random.choice(TEXTS)),
            lambda: f'{self.random.choice(PLAIN)}"{self.inner()}"{self.inner()}',
        )
        return self.choose(makers)

    def every_element(self) -> str:
        """The elements of an array, in one of many ways."""
        name = self.random.choice(LISTS)
        inside = self.random.choice(
            (
                f"{name}[@]", f"{name}[*]", "@", "*", f"!{name}[@]", f"{name}[@]:1", f"{name}[@]:0:2", "@:2", "@:1:1",
                f"{name}[@]/a/b", f"{name}[@]//[a-c]/_", f"{name}[@]#*=", f"{name}[@]%.*", f"{name}[@]/#/--",
                f"{name}[@]: -1", f"{name}[@]^^", f"{name}[*]:1", f"{name}[@]+x", f"{name}[@]:-none", f"{name}[@]/%/.sh",
                f"{self.random.choice(KEYED)}[@]", f"!{self.random.choice(KEYED)}[@]",
            )
        )  # fmt: skip
        return f'"${{{inside}}}"' if self.random.random() < 0.75 else f"${{{inside}}}"

    def inner(self) -> str:
        """An expansion."""
        makers: tuple[Callable[[], str], ...] = (
            lambda: f"${self.name()}",
            lambda: f"${{{self.name()}}}",
            self.parameter,
            self.parameter,
            self.parameter,
            lambda: f"$(({self.number()}))",
            self.substitution,
            lambda: f"${{{self.random.choice(LISTS)}[{self.index()}]}}",
            lambda: f"${{{self.random.choice(KEYED)}[{self.random.choice(KEYS)}]}}",
            lambda: self.random.choice(("$#", "$1", "${2:-none}", "${@:1:1}", "$*", "${10:-x}")),
        )
        return self.choose(makers)

    def index(self) -> str:
        """The number of an element."""
        return self.random.choice(("0", "1", "-1", "i", "$i", "n%2", "i+1", "${#ARGS[@]}-1"))

    def parameter(self) -> str:
        """An expansion of a variable with an operation."""
        name, pattern = self.name(), self.random.choice(PATTERNS)
        plain = self.random.choice(PLAIN)
        forms = (
            f"{name}:-{plain}", f"{name}-{plain}", f"NEW:={plain}", f"NEW:-{plain}", f"{name}:+{plain}", f"NEW+{plain}",
            f'NEW:-"{plain} x"', f"NEW:-${self.name()}", f"{name}:-'q q'", f"NEW:-$(echo {plain})", f"{name}:?no",
            f"{name}#{pattern}", f"{name}##{pattern}", f"{name}%{pattern}", f"{name}%%{pattern}",
            f'{name}#"${self.name()}"', f"{name}%${self.name()}",
            f"{name}/{pattern}/{plain}", f"{name}//{pattern}/_", f"{name}/#{plain}/_", f"{name}/%{plain}/_",
            f"{name}//o", f"{name}/ /_", f"{name}//,/ ", f"{name}//\\//-", f'{name}//"{plain}"/${self.name()}',
            f"{name}^^", f"{name},,", f"{name}^", f"{name},", f"{name}^^[a-m]", f"{name}:1", f"{name}:1:2", f"{name}: -2", f"{name}:0:-1",
            f"#{name}", "!REF", "!P", f"#{self.random.choice(LISTS)}[@]", f"#{self.random.choice(LISTS)}", f"{name}@Q", f"{name}@U", f"{name}@L",
            f"{name}@u", f"#{self.random.choice(KEYED)}[@]", "!MOD*", f"{name}:$((1+1))", f"{name}:i:1",
        )  # fmt: skip
        return f"${{{self.random.choice(forms)}}}"

    def number(self) -> str:
        """An arithmetic expression."""
        one, two = self.random.choice(NUMBERS), self.random.choice(NUMBERS)
        forms = (
            f"{one}+{two}", f"{one} * {two}", f"{one} - {two}", f"{one} > {two} ? {one} : {two}", f"n={two}", "n++", "++n",
            "n+=2", f"({one}+{two})*2", f"{one}**2", f"{one} << 2", f"{one} & {two}", f"{one} == {two}", "!0", "~5",
            f"{one} / 2", f"{one} % 3", f"-{two.lstrip('-')}", "i", "$i", "${i}+1", "DATA[0]+1", "1 && 0", "1 || 0", f"n={one},n+1",
            "(n=3)*n", "i<3", "n--", "n-=1", "x1 + 2", f"{one}^{two}", "OPT[a]+1", "${#LR}", "08-08" if one == "0" else "1",
        )  # fmt: skip
        return self.random.choice(forms)

    def substitution(self) -> str:
        """The output of commands."""
        text, plain = self.inner() if self.depth < 3 else "x", self.random.choice(PLAIN)
        self.depth += 1
        forms = (
            f'echo "{text}"', f"echo {text}", f"printf '%s' \"{text}\"", f"printf '%s,' {plain} b c", "printf '%03d' 7",
            f"echo {plain} | tr a-z A-Z", "echo a:b:c | cut -d: -f2", f"basename {plain}", f"dirname a/{plain}",
            "seq 1 3", "seq -s, 3", f"echo {plain} | sed 's/a/b/g'", 'IFS=,; echo "${ARGS[*]}"', "echo a; echo b",
            "f0 x" if self.functions else "echo f", f"cat <<< {plain}", "printf '%s\\n' \"${ARGS[@]}\" | wc -l", "expr 1 + 2",
            f"echo -n {plain}", "echo -e 'a\\tb'", '[ "$A" = a ] && echo yes || echo no', "printf '%5.2f|' 3.14159", "echo 1 2 3 | awk '{print $2}'",
            "printf '%s ' \"${ARGS[@]}\"", 'echo "${DATA[@]}" | head -n 1', 'echo "$A" | tr -d " "', "printf '%q' \"$A\"",
            "echo c b a | tr ' ' '\\n' | sort | head -1", "(echo sub) | cat", "{ echo brace; }", "if [[ -n $A ]]; then echo set; else echo unset; fi",
            "for q in 1 2; do echo -n $q; done", "date() { echo today; }; date", "cat <<X\n$A\nX\n",
        )  # fmt: skip
        chosen = self.random.choice(forms)
        self.depth -= 1
        return (
            f"`{chosen}`"
            if "`" not in chosen and "\\" not in chosen and self.random.random() < 0.1
            else f"$({chosen})"
        )

    def keyed_elements(self) -> str:
        """The elements of an associative array."""
        return " ".join(f"[{self.quoted(key)}]={self.word()}" for key in self.random.sample(KEYS, 2))

    # Statements

    def block(self) -> str:
        """Statements inside another one."""
        self.depth += 1
        try:
            return "\n".join(self.statement() for _ in range(self.random.randrange(1, 3)))
        finally:
            self.depth -= 1

    def statement(self) -> str:
        """One statement, which can contain others."""
        simple: tuple[Callable[[], str], ...] = (
            self.assignment,
            self.assignment,
            self.array,
            self.builtin,
            self.launch,
        )
        nested: tuple[Callable[[], str], ...] = (
            self.condition, self.case, self.loop, self.function, self.arguments, self.other_shell, self.grouping
        )  # fmt: skip
        return self.choose(simple if self.depth >= 2 else (*simple, *nested))

    def assignment(self) -> str:
        """A statement that sets a variable."""
        name, word = self.name(), self.word()
        forms = (
            f"{name}={word}", f"{name}+={word}", f"export {name}={word}", f"readonly R{self.random.randrange(99)}={word}",
            f"declare {name}={word}", f"declare -i n={self.quoted(self.number())}", f": ${{{name}:={self.random.choice(PLAIN)}}}",
            ': "${NEW:=a b}"', f"{name}=${{{name}:-{self.random.choice(PLAIN)}}}", f"{name}=$(({self.number()}))", f"unset {name}",
            f"REF={self.name()}", f"declare -n N={self.name()}; N={self.word()}", f"{name}={word} B={self.word()}", f"let n={self.random.choice(NUMBERS)}",
            f"(({self.number()}))", f'{name}="${{{name}}} \\\n  more"', f"{name}=$A$B", f"{name}='multi\nline'", f"export {name}",
            f'{name}+=" {self.random.choice(PLAIN)}=${self.name()}"', "declare -u LOUD=abc; A=$LOUD", "declare -l B=ABC",
        )  # fmt: skip
        return self.random.choice(forms)

    def array(self) -> str:
        """A statement that changes an array."""
        name, words = (
            self.random.choice(LISTS),
            " ".join(self.word() for _ in range(self.random.randrange(4))),
        )
        keyed = self.random.choice(KEYED)
        forms = (
            f"{name}=({words})", f"{name}+=({words})", f"{name}[{self.index()}]={self.word()}", f"{name}+=(\n  a={self.word()} # comment\n  {words}\n)",
            f"unset '{name}[0]'", f'{name}=("${{{name}[@]}}" {words})', f"{name}=([2]=c [0]=a {words})", f"{name}[1]+=x",
            f"{keyed}[{self.random.choice(KEYS)}]={self.word()}", f"{keyed}+=([new]={self.word()})", f"read -ra {name} <<< {self.word()}",
            f"IFS=, read -ra {name} <<< {self.word()}", f"mapfile -t {name} <<< {self.word()}", f"mapfile -t {name} < <(printf '%s\\n' {words or 'a'})",
            f"{name}=(${self.name()})", f"{name}=($(echo {self.inner()}))", f"{name}=()", f"{name}+={self.quoted('tail')}", f"unset {name}",
            f'for k in "${{!{keyed}[@]}}"; do case $k in a) {name}+=("$k=${{{keyed}[$k]}}");; esac; done', f'local_copy=("${{{name}[@]:1}}")',
        )  # fmt: skip
        return self.random.choice(forms)

    def builtin(self) -> str:
        """A builtin that sets a variable, or changes how the shell works."""
        name = self.name()
        forms = (
            f"printf -v {name} '%s-%s' {self.word()} b", f"printf -v {name} '%d' 42", f"read -r {name} <<< {self.word()}",
            f"read -r A B <<< {self.word()}", f"IFS=: read -r A B C <<< {self.quoted('p:q r:s')}", "IFS=,", "IFS=$' \\t\\n'", "unset IFS",
            f"read -r -d '' {name} <<EOF || true\nx=${name}\n  y='1'\nEOF", f"{name}=$(cat <<'EOF'\nraw $A\nEOF\n)", f"echo {self.word()} > /dev/null",
            f"{name}=$(cat <<-EOF\n\ttab ${self.name()}\n\tEOF\n)", "shift", "shift 2 || true", "true", "cd . || exit 1", "trap 'echo bye' EXIT",
            f"echo {self.word()} > out.txt; {name}=$(cat out.txt)", f'eval "{name}={self.random.choice(PLAIN)}"', f"eval '{name}=$B'",
            f"eval {name}=\\${self.name()}", "set -f", "set +f", "set +e", "export EX=exported", "alias ll=ls", "wait", f"[[ $A =~ ([a-z]+)(.*) ]] && {name}=${{BASH_REMATCH[1]}}",
            f'while IFS= read -r line; do {name}+="$line"; done <<< {self.word()}', f"while read -r k v; do {name}=$v; done <<'EOF'\na 1\nb 2\nEOF",
            "echo x | read -r A", f"echo {self.quoted('p q')} | while read -r x y; do {self.launch()}\ndone", "getopts 'n:v' opt -n 5 && A=$OPTARG",
        )  # fmt: skip
        return self.random.choice(forms)

    def test(self) -> str:
        """A condition."""
        name, word = self.name(), self.random.choice(PLAIN)
        forms = (
            f'[ "${name}" = {word} ]', f"[[ ${name} == {self.random.choice(PATTERNS)} ]]", f"[[ -z ${name} ]]", f'[ -n "${name}" ]', '[ -z "${NEW:-}" ]',
            f"(( {self.number()} ))", f'[[ ${name} != "{word}" && -n $A ]]', f"[[ ${name} == a || $B == b ]]", '[ "$#" -gt 1 ]', "[ ${#ARGS[@]} -eq 2 ]",
            f"[[ ${name} =~ ^[0-9]+$ ]]", f"[[ ${name} =~ (a|q)+ ]]", f'! [ "${name}" = {word} ]', "true", "false", '[ "$A" = a -o "$B" = b ]', f'test "${name}" != {word}',
            f"[[ ! ${name} < m ]]", f"[[ -v {name} ]]", "[[ -v NEW ]]", "[[ -n ${OPT[a]+x} ]]", f'[ ! "${name}" ]',
            f'[ "${name}" ] && [ 1 -lt 2 ]', f'[[ "${name}" == "$B" ]]', f"[[ ${name} -gt 3 ]]" if name in ("n", "i") else "[[ 4 -gt 3 ]]", "f0 >/dev/null" if self.functions else "true",
        )  # fmt: skip
        return self.random.choice(forms)

    def condition(self) -> str:
        """An `if`, or the same with `&&` and `||`."""
        forms = (
            lambda: f"if {self.test()}; then\n{self.block()}\nfi",
            lambda: f"if {self.test()}; then\n{self.block()}\nelse\n{self.block()}\nfi",
            lambda: (
                f"if {self.test()}; then\n{self.block()}\nelif {self.test()}; then\n{self.block()}\nelse\n{self.block()}\nfi"
            ),
            lambda: f"{self.test()} && {{ {self.block()}\n}} || {self.assignment()}",
            lambda: f"{self.test()} || {self.assignment()}",
            lambda: f"{self.test()} && {self.assignment()}",
            lambda: f"if {self.test()}; then {self.assignment()}\nexit 0; fi",
        )
        return self.choose(forms)

    def case(self) -> str:
        """A `case` statement."""
        end = self.random.choice((";;", ";;", ";;", ";&", ";;&"))
        subject = self.random.choice(
            (f"${self.name()}", f'"${self.name()}"', '"$1"', f"{self.random.choice(PLAIN)}")
        )
        one, two = self.random.choice(PATTERNS), self.random.choice(PATTERNS)
        return (
            f"case {subject} in\n  {one}|grpo) {self.block()}\n {end}\n  ({two}) {self.block()}\n ;;\n"
            f'  "${self.name()}") {self.block()}\n ;;\n  *) {self.assignment()} ;;\nesac'
        )

    def loop(self) -> str:
        """A loop."""
        items = " ".join(self.word() for _ in range(self.random.randrange(1, 4)))
        leave = self.random.choice(("", "", f"{self.test()} && break\n", f"{self.test()} && continue\n"))
        forms = (
            lambda: f"for A in {items}; do\n{leave}{self.block()}\ndone",
            lambda: f'for A in "${{{self.random.choice(LISTS)}[@]}}"; do\n{leave}{self.block()}\ndone',
            lambda: f"for A; do\n{leave}{self.block()}\ndone",
            lambda: f"for ((j=0; j<3; j++)); do\n{leave}B=$j\n{self.block()}\ndone",
            lambda: f"j=0\nwhile ((j < 3)); do\n((j+=1))\n{leave}{self.block()}\ndone",
            lambda: f"j=3\nuntil [ $j -le 0 ]; do\nj=$((j-1))\n{leave}{self.block()}\ndone",
            lambda: f"for j in {{1..3}}; do\nC=$j\n{self.block()}\ndone",
            lambda: f"for j in $(seq 2); do\nC=$j\n{self.block()}\ndone",
            lambda: f"for j in 1 2; do for A in x y; do [ $j = 2 ] && continue 2; {self.launch()}\ndone; done",
            lambda: 'for key in "${!OPT[@]}"; do [ "$key" = a ] && A="${OPT[$key]}"; done',
        )  # fmt: skip
        return self.choose(forms)

    def function(self) -> str:
        """A function and its call."""
        name = f"f{self.functions}"
        header = self.random.choice((f"{name}() {{", f"function {name} {{", f"{name} ()\n{{"))
        local = self.random.choice(
            (
                "",
                "local A=inner\n",
                'local A="$1" B\nshift\n',
                'local -a L=("$@")\n',
                "local n=5 i\n",
            )
        )
        body = self.block()
        end = self.random.choice(
            (
                "",
                "return 0\n",
                "return 1\n",
                'echo "printed $1"\n',
                "printf '%s\\n' \"$@\"\n",
                "[ $# -gt 0 ] && return\nB=after\n",
            )
        )
        self.functions += 1
        call = self.random.choice(
            (
                f"{name} {self.word()} {self.word()}",
                name,
                f'{name} "$@"',
                f"A=1 {name} x",
                f"{name} y || true",
                f"C=$({name} z | tail -n1)",
            )
        )
        return f"{header}\n{local}{body}\n{end}}}\n{call}"

    def arguments(self) -> str:
        """New arguments of the script, and a reading of them."""
        words = self.random.choice(
            ("--lr 1e-5 --name x rest", "-n 3 --name=y", "a b c", "x=1 y=2 z", "-v -n5 a", "")
        )
        forms = (
            f'set -- {words}\nwhile [[ $# -gt 0 ]]; do\ncase "$1" in\n--lr) LR="$2"; shift 2 ;;\n--name=*) A="${{1#*=}}"; shift ;;\n--name) A=$2; shift 2 ;;\n*) ARGS+=("$1"); shift ;;\nesac\ndone',
            f'set -- {words}\nwhile [ -n "$1" ]; do B="$B.$1"; shift; done',
            f'set -- {words}\nwhile getopts "n:v" o; do case $o in n) n=$OPTARG;; *) B=other;; esac; done\nshift $((OPTIND - 1))',
            f'set -- "${{ARGS[@]}}" {words}\nA="${{1:-d}}"; B=${{@: -1}}',
            f'set -- {words}\nfor a in "$@"; do [[ $a == [a-z]*=* ]] && export "$a"; done',
            f'set -- {words}\nARGS=("${{@:2}}"); n=$#',
        )
        return self.random.choice(forms)

    def other_shell(self) -> str:
        """A script for another shell."""
        inner = self.launch("$B")
        forms = (
            lambda: f"export B={self.quoted('ex ported')}\nbash -c {_single(inner)} prog one 'two three'",
            lambda: f"bash <<'EOF'\n{inner}\nEOF",
            lambda: f"bash -s -- x y <<'EOF'\nB=$2\n{inner}\nEOF",
            lambda: f"sh -c {_single('python3 -m job.sh a=$0 b=$1')} zero one",
            lambda: f"cat > made.sh <<EOF\nB=$A\n{self.plain_launch()}\nEOF\nbash made.sh arg",
            lambda: (
                "cat > lib.sh <<'EOF'\nB=from_lib\nhelper() { C=\"helped $1\"; }\nEOF\nsource ./lib.sh\nhelper me"
            ),
            lambda: f"eval {_single(inner)}",
            lambda: f'CMD={_single("python3 -m job.cmd x=$A y=1")}\neval "$CMD"\n$CMD',
            lambda: "printf 'one\\ntwo words\\n' | xargs -I{} python3 -m job.xargs x={}",
            lambda: "echo a b c | xargs python3 -m job.xargs",
            lambda: "echo a b c | xargs -n1 python3 -m job.xargs",
        )
        return self.choose(forms)

    def grouping(self) -> str:
        """Statements in a group."""
        forms = (
            lambda: f"( {self.block()}\n)",
            lambda: f"{{ {self.block()}\n}}",
            lambda: f"{{ {self.block()}\n}} 2>&1 | tee log.txt",
            lambda: f"{self.assignment()} && {self.assignment()}",
            lambda: f"({self.assignment()}\n{self.launch()}\n)",
            lambda: f"( set -e; {self.test()}; {self.launch()}\n) || true",
        )
        return self.choose(forms)

    # Programs

    def plain_launch(self) -> str:
        """A program without expansions."""
        self.job += 1
        return f"python3 -m job.n{self.job} a=1 b='x y'"

    def launch(self, extra: str = "") -> str:
        """A statement that starts a program."""
        self.job += 1
        entry = f"-m job.n{self.job}"
        words = " ".join(
            self.random.choice((self.word(), f"k{index}={self.word()}", f"+k{index}.x={self.word()}"))
            for index in range(self.random.randrange(1, 4))
        )
        words = f"{words} {extra}".strip()
        joined = words.replace("\n", " ") if "<<" not in words else words
        forms = (
            f"python3 {entry} {words}", f"python3 {entry} {words}", f"python3 {entry} \\\n    {words} \\\n    last=1", f"PYTHONUNBUFFERED=1 python3 {entry} {words}",
            f"env X=1 python3 {entry} {words}", f"nohup python3 {entry} {words} > log 2>&1 &\nwait", f"python3 {entry} {words} 2>&1 | tee run.log",
            f"torchrun --nproc_per_node=2 {entry} {words}", f'run=(python3 {entry} {words})\n"${{run[@]}}"', f'run="python3 {entry}"\n$run {words}',
            f"time python3 {entry} {words}", f"exec python3 {entry} {words}" if self.random.random() < 0.2 else f"command python3 {entry} {words}",
            f"! python3 {entry} {words}", f"python3 {entry} {words} || exit 3", f"B=new python3 {entry} {words}",
            f"timeout 5 python3 {entry} {words}", f"(export B=1; python3 {entry} {words})", f"python3 {entry} {words} && A=done", f"python3 {entry} $@ {words}",
            f"PY=python3; $PY {entry} {joined}", f'python3 {entry} "$@" {words}', f"ray job submit --address=x -- python3 {entry} {words}", f"python3 {entry} {words} # note \\",
            f"export EX=1; bash -c 'python3 {entry} \"$@\" ex=$EX n=$n' _ {words}", f"DRY=; ${{DRY:+echo}} python3 {entry} {words}",
        )  # fmt: skip
        return self.random.choice(forms)


def _single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def random_script(seed: int) -> tuple[list[str], list[str]]:
    """The statements of one script: those that set its variables, and the others. The same for the same seed."""
    return Grammar(random.Random(seed)).script()
