from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import EXIT_BAD_INPUT, InputError
from harness.matrix.reading.load_matrix import load_matrix, parse_matrix
from harness.matrix.reading.unused_entries import find_unused_entries

ROOT = Path(__file__).parents[3]
GOOD = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, source: s, package: verl}
  cann: {title: CANN, scheme: cann, source: s}
  soc: {title: SoC, scheme: name, source: s, values: {a2: {chip: 910b}, a3: {chip: a3}}}
  python: {title: Python, scheme: python, source: s}
stacks:
  row:
    title: a row
    source: a document
    recipe: smoke
    axes: {verl: 0.6.1, cann: 8.3.rc1, soc: a2, python: 3.10}
published:
  verl-cann: {title: t, source: s, date: 2026-01-01, key: verl, columns: [verl, cann], rows: [[0.6.1, 8.5.0]]}
constraints:
  published: {require: {cann: {table: verl-cann}}, reason: they say so, source: s}
pins:
  - {when: {verl: "<0.8"}, require: "x>=1,<2", reason: r, source: s}
recipes:
  smoke: {title: t, algorithm: grpo, entry: e, model: m, source: s, overrides: {a: 1e-6, b: 1, c: true}}
  child: {title: t, algorithm: grpo, entry: e, model: m, source: s, base: smoke, overrides: {b: 2}}
profiles:
  default:
    title: t
    select:
      - {product: {verl: [0.6.1, 0.7.1]}, with: {cann: 8.10, python: host}, recipe: child}
      - {stacks: all}
runners:
  local: {title: t, kind: local, devices: [sim]}
expectations:
  known: {cells: "row*", check: resolve, state: fail, reason: r, source: s, owner: me, until: 2027-01-31}
"""


def problems(old: str = "", new: str = "", text: str = GOOD) -> list[str]:
    assert old in text
    with pytest.raises(InputError) as caught:
        parse_matrix(text.replace(old, new, 1), "m.yaml")
    assert caught.value.exit_code == EXIT_BAD_INPUT
    return [str(problem) for problem in caught.value.problems]


def test_a_good_file_loads() -> None:
    matrix = parse_matrix(GOOD, "m.yaml")
    row = matrix.stacks["row"]
    assert row.axes == {"verl": "0.6.1", "cann": "8.3.RC1", "soc": "a2", "python": "3.10"}
    assert str(row.provenance["cann"]) == "m.yaml:12:31"
    assert matrix.recipes["child"].overrides == {"a": "1e-6", "b": 2, "c": True}
    assert matrix.profiles["default"].select[0].fixed["cann"] == "8.10"


@pytest.mark.parametrize(
    ("old", "new", "at", "what"),
    [
        (
            "axes: {verl: 0.6.1",
            "axis: {verl: 0.6.1",
            "axis",
            "unknown key 'axis'\n  do:  did you mean 'axes'?",
        ),
        ("title: a row", "titel: a row", "titel", "unknown key 'titel'\n  do:  did you mean 'title'?"),
        ("recipe: smoke", "recipe: smok", "smok", "unknown recipe 'smok'\n  do:  did you mean 'smoke'?"),
        ("cann: 8.3.rc1", "canm: 8.3.rc1", "canm", "unknown axis 'canm'\n  do:  did you mean 'cann'?"),
        ("cann: 8.3.rc1", "cann: 8.3.rcx", "8.3.rcx", "'8.3.rcx' is not a CANN version"),
        ("soc: a2", "soc: a4", "a4", "unknown value of axis soc 'a4'\n  do:  known: a2, a3"),
        ("stacks: all", "stacks: [rou]", "rou", "unknown stack 'rou'\n  do:  did you mean 'row'?"),
        (
            "stacks: all",
            "stacks: row",
            "row",
            "'stacks' must be a list or all, not 'row'\n  do:  write [row]",
        ),
        ("table: verl-cann", "table: verl-can", "verl-can", "unknown table 'verl-can'"),
        ("cann]", "cans]", "", "unknown column of table 'verl-cann' 'cann'"),
        ("[[0.6.1, 8.5.0]]", "[[0.6.1]]", "[0.6.1]", "the row has 1 fields, but the table has 2 columns"),
        ("[[0.6.1, 8.5.0]]", "[[1, 2], [1, 3]]", "[1, 3]", "another row above also has verl '1'"),
        ("[[0.6.1, 8.5.0]]", "[[null, 2]]", "[null", "the row has no value for the key column 'verl'"),
        ("[[0.6.1, 8.5.0]]", "[[0.6.1, x]]", "", "row '0.6.1' of table 'verl-cann': 'x' is not a CANN"),
        ("[[0.6.1, 8.5.0]]", "[[x, 8.5.0]]", "", "row 'x' of table 'verl-cann': 'x' is not a version"),
        ("key: verl,", "key: vrl,", "vrl", "unknown column 'vrl'"),
        ("{cann: {table: verl-cann}}", "{cann: {same_as: x}}", "x}", "unknown axis 'x'"),
        ("{cann: {table: verl-cann}}", "{cann: {same_as: verl, prt: x}}", "prt", "unknown key 'prt'"),
        ("require: {cann: {table: verl-cann}}, ", "", "", "needs either 'require' or 'forbid'"),
        ('"<0.8"', '"<<0.8"', '"<<', "'<<0.8' is not a comparison"),
        ('"x>=1,<2"', '"x>>1"', '"x', "'x>>1' is not a requirement"),
        ('"x>=1,<2"', '"x=={vrel}"', '"x', "unknown axis 'vrel'\n  do:  did you mean 'verl'?"),
        ('"x>=1,<2"', '"x=={verl.y}"', '"x', "{verl.y} in 'x=={verl.y}' is not a plain name"),
        ('"x>=1,<2"', '"x=={"', '"x', ""),
        ("base: smoke", "base: child", "child", "recipes extend each other in a cycle: child -> child"),
        ("base: smoke", "base: smke", "smke", "unknown recipe 'smke'"),
        (
            "scheme: cann",
            "scheme: can",
            "can",
            "'axes.cann.scheme' must be 'pep440', 'cann', 'python' or 'name'",
        ),
        ("2027-01-31", "soon", "soon", "'soon' is neither a date nor a condition"),
        ("2027-01-31", "verk >=0.7", "verk", "unknown axis 'verk'"),
        ("2027-01-31", "soc >=a2", "soc", "'>=a2': names have no order"),
        ("recipe: child}", "with: {verl: 1}}", "with", "duplicate key 'with'"),
        ("with: {cann: 8.10", "with: {verl: 8.10", "8.10", "'verl' is in both 'product' and 'with'"),
        (
            "stacks: all}",
            "stacks: all, with: {verl: 1}}",
            "",
            "'with' and 'recipe' can only be used with 'product'",
        ),
        ("{stacks: all}", "{recipe: smoke}", "{recipe", "a selection needs either 'stacks' or 'product'"),
        ("[0.6.1, 0.7.1]", "[0.6.1, v0.6.1]", "v0.6.1", "0.6.1 is listed twice"),
        ("[0.6.1, 0.7.1]", "[0.6.1@main]", "0.6.1@main", "'main' is a moving branch"),
        ("[0.6.1, 0.7.1]", "[]", "[]", "'profiles.default.select[0].product.verl'"),
        (
            "m, source: s, overrides",
            "m, source: s, nodes: 0, overrides",
            "0",
            "'recipes.smoke.nodes' must be greater than or equal to 1, not 0",
        ),
        ("devices: [sim]", "devices: [gpu]", "gpu", "'runners.local.devices[0]' must be"),
        (
            "{b: 2}",
            "{b: [2]}",
            "[2]",
            "'recipes.child.overrides.b' must be text, a whole number, true, false or null, not",
        ),
        ("source: a document", "source: [a]", "[a]", "'stacks.row.source' must be text, not a list"),
        ("source: a document", "source: ''", "''", "'stacks.row.source' must not be empty"),
        (
            "source: a document",
            f"source: {'a' * 2001}",
            "aaa",
            "'stacks.row.source' is longer than 2000 characters",
        ),
        ("title: a row", 'title: "a\\n::error::b"', '"a', "'stacks.row.title' must be one line"),
        ("title: a row", 'title: "a\\e[2J"', '"a', "'stacks.row.title' must be one line"),
        ("    source: a document\n", "", "", "key 'source' is missing"),
        ("  row:", "  Row One:", "Row One", "'Row One' is not a valid value here"),
        ("format: 1", "format: 2", "2", "'format' must be 1, not 2"),
        ("format: 1", "", "", "key 'format' is missing"),
        ("source: s, package: verl", "source: s, tag: v", "v", "tag 'v' must contain {version}"),
        (
            "source: s, package: verl",
            "source: s, package: v, on_index: false",
            "",
            "is not on the package index",
        ),
        ("a2: {chip: 910b}", "'a 2': {}", "'a 2'", "'a 2' is not a name"),
    ],
)
def test_each_problem_says_what_and_where(old: str, new: str, at: str, what: str) -> None:
    found = "\n".join(problems(old, new))
    start = GOOD.index(old) + new.index(at)
    edited = GOOD.replace(old, new, 1)
    line, column = edited.count("\n", 0, start) + 1, start - edited.rfind("\n", 0, start)
    assert (f"m.yaml:{line}:{column}: {what}" if at else what) in found


def test_all_problems_are_reported_together_in_the_order_of_the_file() -> None:
    text = GOOD.replace("title: a row", "titel: a row").replace("recipe: child", "recipe: chid")
    text = (
        text.replace("kind: local", "kind: locl")
        .replace("cells:", "cell:")
        .replace("state: fail", "state: bad")
    )
    found = problems(text=text)
    assert [line.splitlines()[0].partition(": ")[2] for line in found] == [
        "key 'title' is missing",
        "unknown key 'titel'",
        "unknown recipe 'chid'",
        "'runners.local.kind' must be 'local' or 'ray', not 'locl'",
        "key 'cells' is missing",
        "unknown key 'cell'",
        "'expectations.known.state' must be 'fail', 'numeric-drift', 'timeout', 'crash', 'inconclusive', 'unsupported' or 'error', not 'bad'",
    ]


def test_a_key_written_twice_hides_nothing_else() -> None:
    text = GOOD.replace("soc: a2, python", "soc: a2, soc: a3, python").replace(
        "recipe: child", "recipe: chid"
    )
    assert [line.splitlines()[0].partition(": ")[2] for line in problems(text=text)] == [
        "duplicate key 'soc'",
        "unknown recipe 'chid'",
    ]


def test_an_unknown_key_hides_nothing_else_of_its_entry() -> None:
    text = GOOD.replace("    recipe: smoke\n", "    recipe: smke\n    reciep: smoke\n")
    assert [line.splitlines()[0].partition(": ")[2] for line in problems(text=text)] == [
        "unknown recipe 'smke'",
        "unknown key 'reciep'",
    ]


def test_an_entry_that_is_wrong_is_still_known_by_its_name() -> None:
    found = problems("smoke: {title: t", "smoke: {titel: t")
    assert all("unknown recipe" not in line for line in found)
    assert len(found) == 2


def test_the_positions_of_pins_survive_a_wrong_one_before() -> None:
    wrong = "pins:\n  - {require: 1, reasn: r, source: s}\n"
    found = problems("pins:\n", wrong, GOOD.replace('verl: "<0.8"', "verk: 1"))
    assert any("m.yaml:19:13: unknown axis 'verk'" in line for line in found)


def test_versions_written_as_numbers_keep_their_text() -> None:
    matrix = parse_matrix(GOOD.replace("0.6.1, cann: 8.3.rc1", "1, cann: 8.10"), "m.yaml")
    assert matrix.stacks["row"].axes["verl"] == "1"
    assert matrix.stacks["row"].axes["cann"] == "8.10"


def test_true_is_no_version() -> None:
    assert (
        "'stacks.row.axes.verl' must be text, not True"
        in problems("verl: 0.6.1, cann", "verl: true, cann")[0]
    )


@pytest.mark.parametrize(
    "text", ["x", "[]", "1", "null", "{}", "axes: 1", "format: 1\naxes: {}\nprofiles: {}"]
)
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_matrix(text)


LINES = GOOD.splitlines(keepends=True)
CHARACTERS = st.sampled_from([*"{}[],:'\"<>=@*!&-. \n", "a", "1", "verl", "all", ": ", "null"])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 12), st.lists(CHARACTERS, max_size=3).map("".join))
def test_any_edit_is_read_or_refused(start: int, length: int, new: str) -> None:
    text = GOOD[:start] + new + GOOD[start + length :]
    try:
        matrix = parse_matrix(text, "m.yaml")
    except InputError as error:
        refused = error.problems
    else:
        refused = ()
        for name in matrix.profiles:
            assert matrix.cells(name).profile == name
        assert list(find_unused_entries(matrix)) is not None
    assert all(problem.where is not None for problem in refused)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, len(LINES) - 1))
def test_any_line_may_be_missing(index: int) -> None:
    text = "".join(LINES[:index] + LINES[index + 1 :])
    try:
        matrix = parse_matrix(text)
    except InputError as error:
        assert_located = error.problems
    else:
        assert_located = ()
        assert matrix.axes
    assert all(problem.what for problem in assert_located)


def test_the_shipped_matrix_is_read_from_disk() -> None:
    assert len(load_matrix(ROOT / "matrix.yaml").stacks) >= 12


PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJjYjBmYjBmYjBmYjBmYjBmYjBmYjBm"
RUNNER = "local: {title: t, kind: local, devices: [sim]}"


def with_runner(fields: str) -> str:
    return GOOD.replace(RUNNER, f"a2-host: {{title: t, kind: local, devices: [npu], {fields}}}")


def test_a_runner_can_have_keys_that_sign_its_outcomes() -> None:
    dated = f'"valid-before=\\"20270101Z\\" {PUBLIC} me@host"'
    fields = f"soc: [a2], keys: [{PUBLIC}, {dated}], revoked_keys: revoked.krl, namespace: npu-matrix@us"
    runner = parse_matrix(with_runner(fields), "m.yaml").runners["a2-host"]
    assert runner.socs == ("a2",)
    assert runner.keys == (PUBLIC, f'valid-before="20270101Z" {PUBLIC} me@host')
    assert (runner.revoked_keys, runner.namespace) == ("revoked.krl", "npu-matrix@us")
    assert parse_matrix(GOOD, "m.yaml").runners["local"].namespace == "npu-matrix"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (f"keys: [{PUBLIC}]", "has keys but no soc"),
        (f"soc: [a9], keys: [{PUBLIC}]", "unknown SoC family 'a9'"),
        ("soc: [a2], keys: [nonsense]", "a public key is one line"),
        (f"soc: [a2], keys: ['* {PUBLIC}']", "a public key is one line"),
        (f"soc: [a2], keys: ['cert-authority {PUBLIC}']", "a public key is one line"),
        (f'soc: [a2], keys: ["{PUBLIC}\\nother {PUBLIC}"]', "a public key is one line"),
        (f'soc: [a2], keys: ["{PUBLIC}\\n"]', "a public key is one line"),
        (f"soc: [a2], keys: [{PUBLIC}], namespace: 'a b'", "a namespace has"),
    ],
)
def test_a_runner_key_that_could_vouch_for_anybody_else_is_an_error(fields: str, said: str) -> None:
    assert any(said in problem for problem in problems(text=with_runner(fields)))


def with_stacks(second: str, first: str = "failures: [{logs: [boom], cause: c, source: s}]") -> str:
    axes = "axes: {verl: 0.6.1, cann: 8.3.rc1, soc: a2, python: 3.10}\n"
    return GOOD.replace(
        axes, f"{axes}    {first}\n  other:\n    title: o\n    source: s\n    {axes}    {second}\n", 1
    )


def test_a_stack_has_the_failures_of_the_stacks_it_names_after_its_own() -> None:
    text = with_stacks("failures_of: [row]\n    failures: [{logs: [bang], cause: d, source: s}]")
    found = parse_matrix(text, "m.yaml").stacks
    assert [failure.cause for failure in found["other"].failures] == ["d", "c"]
    assert [failure.cause for failure in found["row"].failures] == ["c"]
    searched = parse_matrix(with_stacks("no_failures: none in the issues"), "m.yaml").stacks["other"]
    assert (searched.failures, searched.no_failures) == ((), "none in the issues")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (with_stacks("failures_of: [gone]"), "'gone' is no other stack"),
        (with_stacks("failures_of: [other]"), "'other' is no other stack"),
        (with_stacks("failures_of: [row]", "notes: [n]"), "the stack 'row' lists no failures"),
        (with_stacks("failures_of: [row]\n    no_failures: none"), "the stack 'other' has failures"),
    ],
)
def test_failures_that_contradict_each_other_are_problems(text: str, said: str) -> None:
    assert any(said in problem for problem in problems(text=text))
