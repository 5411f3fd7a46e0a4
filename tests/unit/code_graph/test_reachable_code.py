"""Reached code is all code that can run, and no other code of the same files."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.check import Check
from harness.code_graph.module_facts import RUN_LATER
from harness.code_graph.reachable_code import CodeGraph
from harness.code_graph.stored_facts import StoredFacts, reached_code, tree_digest
from harness.package import PACKAGE_ROOT

TREE = {
    "__init__.py": '"""The package."""\n',
    "package.py": "def data_folder(name): ...\ndef data_file(name): ...\n",
    "check.py": "class Check:\n    def __init__(self, **named): ...\n",
    "a/__init__.py": "",
    "a/start.py": """
        import re
        from harness.a.tools import helper
        from harness.a import names
        from harness.a import registry

        LIMIT = 3

        def run(ctx):
            from harness.a.late import work
            ctx.command(["python", "-m", "harness.a.program"])
            return helper(LIMIT) + work(names.used)

        def unrelated():
            return 1
    """,
    "a/tools.py": """
        from harness.a.deep import base

        def helper(x):
            # a comment
            return base(x)

        def other(x):
            return x
    """,
    "a/deep.py": "def base(x):\n    return x\n",
    "a/late.py": "from harness.a.deep import base\n\ndef work(x):\n    return x\n",
    "a/names.py": "used = 1\nunused = 2\n",
    "a/program.py": """
        from harness.package import data_folder
        RULES = data_folder("a/rules")

        def main():
            return RULES

        if __name__ == "__main__":
            main()
    """,
    "a/rules/one.json": '{"plugin": "harness.a.plugin:go"}',
    "a/plugin.py": "def go():\n    return 1\n",
    "a/registry.py": """
        KNOWN = {}

        def register(function):
            KNOWN[function.__name__] = function
            return function

        @register
        def entry():
            return 5

        def plain():
            return 6
    """,
    "a/aside.py": "def nobody():\n    return 1\n",
}
ROOTS = ("harness.a.start:run",)


def lay_out(folder: Path, **changes: str) -> Path:
    """The tree with some files replaced; the keyword `a__start` replaces a/start.py."""
    import textwrap

    root = folder / "harness"
    for name, text in TREE.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        key = name.removesuffix(".py").replace("/", "__").replace(".", "_")
        file.write_text(textwrap.dedent(changes.get(key, text)))
    return root


def digest(root: Path, roots: tuple[str, ...] = ROOTS) -> str:
    graph = CodeGraph(root)
    return graph.digest(graph.reach(roots)).digest


def reached(root: Path, roots: tuple[str, ...] = ROOTS) -> set[tuple[str, str]]:
    return {(place, name) for _kind, place, name in CodeGraph(root).reach(roots)}


def edited(name: str, old: str, new: str) -> dict[str, str]:
    text = TREE[name]
    assert old in text
    return {name.removesuffix(".py").replace("/", "__").replace(".", "_"): text.replace(old, new)}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a/tools.py", "return base(x)", "return base(x) + 1"),
        ("a/deep.py", "return x", "return -x"),
        ("a/late.py", "def work(x):\n    return x", "def work(x):\n    return x + 1"),
        ("a/names.py", "used = 1", "used = 3"),
        ("a/program.py", "return RULES", "return 2"),
        ("a/program.py", "    main()\n    ", "    main(1)\n    "),
        ("a/rules/one.json", "}", "} "),
        ("a/plugin.py", "return 1", "return 2"),
        ("a/registry.py", "return 5", "return 55"),
        ("a/registry.py", "KNOWN[function.__name__]", "KNOWN[1]"),
        ("a/start.py", "LIMIT = 3", "LIMIT = 4"),
        ("a/start.py", "LIMIT = 3", "LIMIT = 3\n        print(LIMIT)"),
        ("a/start.py", "import re", "import re\n        import numpy"),
        # Names that no longer exist.
        ("a/deep.py", "def base", "def renamed"),
        ("a/tools.py", "def helper", "def renamed"),
        ("a/late.py", "def work", "def renamed"),
    ],
)
def test_what_runs_changes_the_digest(tmp_path, name, old, new):
    before = digest(lay_out(tmp_path / "before"))
    assert digest(lay_out(tmp_path / "after", **edited(name, old, new))) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a/tools.py", "# a comment", "# another comment\n\n"),
        ("a/tools.py", "def helper(x):", 'def helper(x):\n            """What it does."""'),
        ("a/tools.py", "return base(x)", "return (\n            base(x)\n            )"),
        ("a/tools.py", "def other(x):\n            return x", "def other(x):\n            return x + 1"),
        ("a/start.py", "return 1", "return 2"),
        ("a/names.py", "unused = 2", "unused = 3"),
        ("a/registry.py", "return 6", "return 7"),
        ("a/aside.py", "return 1", "return 2"),
        ("__init__.py", "The package", "This package"),
    ],
)
def test_prose_and_what_does_not_run_change_nothing(tmp_path, name, old, new):
    before = digest(lay_out(tmp_path / "before"))
    assert digest(lay_out(tmp_path / "after", **edited(name, old, new))) == before


@given(st.sampled_from([name for name in TREE if name.endswith(".py")]))
def test_a_statement_at_the_end_of_an_imported_module_counts(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("tree")
    before = lay_out(folder / "before")
    after = lay_out(folder / "after")
    with (after / name).open("a") as stream:
        stream.write("\nraise SystemExit\n")
    module = ".".join(["harness", *name.removesuffix(".py").split("/")]).removesuffix(".__init__")
    runs = module in {place for place, _name in reached(before)}
    assert (digest(before) != digest(after)) == runs
    assert runs == (name not in {"a/aside.py", "check.py"})


@given(st.text(alphabet="abc #'\"\\\n", max_size=20))
def test_comments_of_any_text_change_nothing(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("tree")
    before = lay_out(folder / "before")
    after = lay_out(folder / "after")
    comment = "".join(f"# {line}\n" for line in text.split("\n"))
    for file in after.rglob("*.py"):
        file.write_text(comment + file.read_text() + comment)
    assert digest(before) == digest(after)


def one_module(tmp_path: Path, text: str, **more: str) -> Path:
    root = lay_out(tmp_path)
    (root / "x.py").write_text(text)
    for name, content in more.items():
        (root / f"{name}.py").write_text(content)
    return root


def test_a_module_that_is_passed_on_counts_whole(tmp_path):
    root = one_module(
        tmp_path, "from harness import y\ndef run(name):\n    return getattr(y, name)\n", y="A = 1\nB = 2\n"
    )
    assert {("harness.y", "A"), ("harness.y", "B")} <= reached(root, ("harness.x:run",))


def test_what_a_call_on_import_calls_counts(tmp_path):
    text = "from harness.y import make, Box\nTABLE = make(3)\nBOX = Box(later)\ndef later(): ...\ndef run(): ...\n"
    root = one_module(tmp_path, text, y="def make(n): return inner(n)\ndef inner(n): ...\nclass Box: ...\n")
    found = reached(root, ("harness.x:run",))
    assert {
        ("harness.y", "make"),
        ("harness.y", "inner"),
        ("harness.x", "TABLE"),
        ("harness.y", "Box"),
    } <= found
    # An object is created from it, and nothing uses the object.
    assert not {("harness.x", "later"), ("harness.x", "BOX")} & found


def test_a_function_given_to_a_foreign_call_on_import_counts(tmp_path):
    text = (
        "def parse(x): ...\ndef keep(x): ...\nROWS = tuple(map(parse, '12'))\nfrom functools import partial\n"
    )
    root = one_module(tmp_path, text + "LATER = partial(keep, 1)\ndef run(): ...\n")
    found = reached(root, ("harness.x:run",))
    assert ("harness.x", "parse") in found
    assert ("harness.x", "keep") not in found


def test_branches_of_a_module_run_and_those_for_type_checkers_do_not(tmp_path):
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from harness.y import T\n"
        "try:\n    from harness.z import f\nexcept ImportError:\n    f = None\ndef run(a: T): return f()\n"
    )
    root = one_module(tmp_path, text, y="class T: ...\n", z="def f(): ...\n")
    found = reached(root, ("harness.x:run",))
    assert ("harness.z", "f") in found
    assert "harness.y" not in {place for place, _name in found}


def test_shapes_of_fields_count_as_they_are_validated(tmp_path):
    text = "from harness.y import Inner\nclass Outer:\n    inner: Inner\ndef run(): return Outer()\n"
    root = one_module(tmp_path, text, y="class Inner: ...\n")
    assert ("harness.y", "Inner") in reached(root, ("harness.x:run",))


@pytest.mark.parametrize(
    "call",
    [
        "import_module('harness.y').f()",
        "__import__('harness.y')",
        "start('harness.y')",
        "start(['-m', 'harness.y'])",
        "start('harness.y:f')",
        "start('harness.y.f')",
        "start('import sys; from harness.y import f; f()')",
        "import_module(f'harness.{name}').f()",
        "start(module.__file__)",
    ],
)
def test_modules_started_by_their_name_count(tmp_path, call):
    text = f"from importlib import import_module\nfrom harness import y as module\ndef run(name): return {call}\n"
    root = one_module(tmp_path, text, y="def f(): ...\n")
    assert ("harness.y", "f") in reached(root, ("harness.x:run",))


def test_an_attribute_of_an_imported_module_is_that_one_alone(tmp_path):
    text = "from importlib import import_module\ndef run(): return import_module('harness.y').f()\n"
    root = one_module(tmp_path, text, y="def f(): ...\ndef g(): ...\n")
    assert ("harness.y", "g") not in reached(root, ("harness.x:run",))


def test_a_name_handed_on_by_another_module_is_followed(tmp_path):
    root = one_module(
        tmp_path,
        "from harness import y\ndef run(): return y.f()\n",
        y="from harness.z import f\n",
        z="def f(): ...\n",
    )
    assert ("harness.z", "f") in reached(root, ("harness.x:run",))


@pytest.mark.parametrize(
    "text",
    [
        "from harness.y import *\n",
        "from . import y\n",
        "def run(name): return __import__('harness.' + name)\n",
        "from harness.package import data_folder\ndef run(name): return data_folder(name)\n",
    ],
)
def test_what_cannot_be_followed_is_a_problem(tmp_path, text):
    facts = CodeGraph(one_module(tmp_path, text, y="")).facts("harness.x")
    assert facts is not None
    assert len(facts.problems) == 1


def test_planning_does_not_count_what_checks_run(tmp_path):
    text = (
        "from harness.check import Check\ndef run(): ...\ndef applies(): ...\n"
        "CHECK = Check(run=run, applies=applies)\n"
    )
    graph = CodeGraph(one_module(tmp_path, text))
    planning = graph.reach(["harness.x:CHECK"], checks=False)
    everything = graph.reach(["harness.x:CHECK"])
    assert {name for _kind, _place, name in everything - planning} == {"run"}
    assert ("name", "harness.x", "applies") in planning


def test_modules_that_are_not_entered_are_left_out(tmp_path):
    graph = CodeGraph(lay_out(tmp_path))
    assert "harness.a.plugin" not in {one[1] for one in graph.reach(ROOTS, stop=["harness.a.program"])}


def test_a_file_that_is_no_python_counts_byte_by_byte(tmp_path):
    one = digest(one_module(tmp_path / "one", "def run(:\n"), ("harness.x",))
    assert one != digest(one_module(tmp_path / "two", "def run(:\n\n"), ("harness.x",))


def test_this_project_can_be_followed_completely():
    graph = CodeGraph(PACKAGE_ROOT)
    problems = {}
    for module in graph.modules():
        facts = graph.facts(module)
        assert facts is not None
        if facts.problems:
            problems[module] = facts.problems
    assert problems == {}, "name modules and data files by literals, see harness/code_graph/module_facts.py"


def test_what_was_read_is_kept_and_a_damaged_cache_is_not_used(tmp_path):
    root, cache = lay_out(tmp_path / "tree"), tmp_path / "cache"
    plain = reached_code({"one": ROOTS}, root=root)
    assert reached_code({"one": ROOTS}, root=root, cache=cache) == plain
    assert reached_code({"one": ROOTS}, root=root, cache=cache) == plain
    files = list((cache / "code").iterdir())
    assert len(files) == 2
    for damage in (
        b"",
        b"{",
        b"[]",
        b'{"facts": {"a": 1}, "reached": {"one": []}}',
        b'{"reached": {"one": 3}}',
    ):
        for file in files:
            file.write_bytes(damage)
        assert reached_code({"one": ROOTS}, root=root, cache=cache) == plain
    (root / "a/deep.py").write_text("def base(x):\n    return 7\n")
    assert reached_code({"one": ROOTS}, root=root, cache=cache) != plain


def test_stored_facts_are_those_that_are_read(tmp_path):
    store = StoredFacts(tmp_path)
    first = CodeGraph(PACKAGE_ROOT, store)
    module = "harness.plan.keys.code_digests"
    facts = first.facts(module)
    store.save()
    again = CodeGraph(PACKAGE_ROOT, StoredFacts(tmp_path))
    assert again.facts(module) == facts
    assert CodeGraph(PACKAGE_ROOT).facts(module) == facts


def test_the_digest_of_a_tree_sees_every_file_but_compiled_copies_and_prose(tmp_path):
    root = lay_out(tmp_path)
    before = tree_digest(root)
    (root / "a" / "__pycache__").mkdir()
    (root / "a" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (root / "README.md").write_text("x")
    assert tree_digest(root) == before
    (root / "a" / "rules" / "two.json").write_text("")
    assert tree_digest(root) != before


def test_files_of_this_package_are_found_by_the_data_helpers_alone():
    found = {}
    for module in CodeGraph().modules():
        text = CodeGraph().file(module).read_text()
        # Code that uses `other_module.__file__` starts that module, and the reference is followed.
        if module != "harness.package" and re.search(r"(?<![\w.\"])__file__(?!\")", text):
            found[module] = "__file__"
        for use in re.findall(r".*\bIMPORT_ROOT\b.*", text):
            if not re.search(r"import|str\(IMPORT_ROOT\)", use) and module != "harness.package":
                found[module] = use.strip()
    # The schema of matrix.yaml, which no check reads.
    found.pop("harness.matrix.document.form", None)
    assert found == {}, "use harness.package.data_folder with a literal: then the files are in the keys"


def test_planning_does_not_contain_what_only_a_run_calls() -> None:
    functions = {field.name for field in fields(Check) if "Callable" in str(field.type)}
    assert set(RUN_LATER) == functions - {"applies"}
