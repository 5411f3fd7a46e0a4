"""Uses of a small provider by a small consumer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface, Presence
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use_check import check_uses
from harness.compat.uses.use_finding import UseFinding
from harness.compat.uses.use_visitor import uses_in_file
from harness.errors import InputError
from harness.sources.python_syntax import parse_source

PROVIDER = {
    "lib/__init__.py": "from .core import *\nfrom . import lazy\nfrom .core import make as build\n",
    "lib/core.py": (
        "import torch.nn as nn\n__all__ = ['make', 'Model', 'Layer', 'Flag']\n"
        "def make(a, b=1, *, c=2): ...\n"
        "def hidden(): ...\n"
        "class Base:\n    def __init__(self, size): self.size = size\n    def run(self, x): ...\n"
        "class Model(Base):\n    limit = 3\n    @classmethod\n    def load(cls, name): ...\n"
        "class Layer(nn.Module):\n    def forward(self, x): ...\n"
        "@decorate\nclass Flag: ...\n"
        "@wrapped\ndef odd(a): ...\n"
    ),
    "lib/lazy.py": "def __getattr__(name): ...\n",
    "lib/table.py": "for name in 'abc':\n    globals()[name] = 1\nknown = 1\n",
    "lib/either.py": "try:\n    from fast import go\nexcept ImportError:\n    def go(): ...\n",
    "lib/sub/__init__.py": "from .sub import sub\n",
    "lib/sub/sub.py": "class sub:\n    @staticmethod\n    def mark(a): ...\n",
    "lib/native.cpython-311-x86_64-linux-gnu.so": "",
    "lib/late.py": "import lib.core\nlib.core.added = 1\n",
    "lib/star.py": "from elsewhere import *\n",
    "lib/torn.py": "def broken(:\n",
}


NUMBERS = itertools.count()


def sources(path: Path, files: Mapping[str, str | bytes]) -> ApiSurface:
    return ApiSurface(write_zip(path, files))


@pytest.fixture
def lib(tmp_path: Path) -> ApiSurface:
    return sources(tmp_path / "lib.zip", PROVIDER)


def findings(lib: ApiSurface, text: str) -> list[UseFinding]:
    tree = parse_source(text.encode())
    assert tree is not None
    source = text.encode("utf-8", "surrogatepass")
    uses = uses_in_file(tree, source, "user.a", "user/a.py", {"lib"})
    user = sources(Path(lib.sources.label).with_name(f"user-{next(NUMBERS)}.zip"), {"user/a.py": source})
    return list(check_uses(uses, {"lib": ("lib 1", lib)}, user))


@pytest.mark.parametrize(
    ("name", "presence"),
    [
        ("lib.make", Presence.FOUND),
        ("lib.build", Presence.FOUND),
        ("lib.hidden", Presence.MISSING),
        ("lib.core.hidden", Presence.FOUND),
        ("lib.core.Model.run", Presence.FOUND),
        ("lib.core.Model.size", Presence.FOUND),
        ("lib.core.Model.limit", Presence.FOUND),
        ("lib.core.Model.absent", Presence.MISSING),
        ("lib.core.Layer.absent", Presence.MISSING),
        ("lib.core.Layer.state_dict", Presence.UNKNOWN),
        ("lib.core.Flag.absent", Presence.UNKNOWN),
        ("lib.core.make.absent", Presence.UNKNOWN),
        ("lib.core.added", Presence.UNKNOWN),
        ("lib.lazy.anything", Presence.UNKNOWN),
        ("lib.table.a", Presence.UNKNOWN),
        ("lib.either.go", Presence.FOUND),
        ("lib.star.anything", Presence.UNKNOWN),
        ("lib.torn.anything", Presence.UNKNOWN),
        ("lib.native.anything", Presence.UNKNOWN),
        ("lib.sub.sub.mark", Presence.FOUND),
        ("lib.sub.mark", Presence.MISSING),
        ("lib.gone.name", Presence.MISSING),
        ("lib.core.__version__", Presence.UNKNOWN),
        ("other.name", Presence.UNKNOWN),
    ],
)
def test_names_are_found_missing_or_unknown(lib: ApiSurface, name: str, presence: Presence) -> None:
    assert lib.find(name).presence is presence


@pytest.mark.parametrize(
    "text",
    [
        "from lib import make\nmake(1)\nmake(1, 2, c=3)\nmake(*a)\nmake(1, **k)",
        "import lib.core as c\nc.Model(3)\nc.Model.load('x')\nc.Model.run(m, 1)",
        "from lib.core import Model\nclass Mine(Model):\n    def __init__(self):\n        super().__init__(3)",
        "import lib\nlib = other()\n",
        "from lib.core import odd\nodd(1, 2, 3)",
        "def f(lib):\n    return lib.gone",
        "from lib.lazy import anything",
    ],
)
def test_uses_that_fit_or_cannot_be_checked_are_not_reported(lib: ApiSurface, text: str) -> None:
    assert not [finding for finding in findings(lib, text) if finding.breaks]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("from lib import (\n    make,\n    hidden,\n)", 3, "lib has no hidden"),
        ("import lib.gone", 1, "lib has no gone"),
        ("import lib\nlib.core.gone()", 2, "lib.core has no gone"),
        ("from lib.core import Model\ndef f():\n    return Model.absent", 3, "Model has no absent"),
        ("from lib import make\nmake(1, 2, 3)", 2, "takes 2 positional arguments, but 3 are passed"),
        ("from lib import make\nmake(1, d=2)", 2, "has no parameter 'd'"),
        ("from lib import make\nmake()", 2, "misses a"),
        ("from lib.core import Model\nModel()", 2, "misses size"),
        ("from lib.core import Model\nModel.load()", 2, "misses name"),
        ("import lib.core\nclass M(lib.core.Model):\n  def f(self): super().run()", 3, "misses x"),
        ("import lib.core\nclass M(lib.core.Gone): ...", 2, "lib.core has no Gone"),
        ("from lib.gone import thing\nthing()", 1, "lib has no gone"),
    ],
)
def test_uses_that_must_fail_are_found_with_their_line(
    lib: ApiSurface, text: str, line: int, message: str
) -> None:
    [finding] = [finding for finding in findings(lib, text) if finding.breaks]
    assert finding.line == line
    assert message in finding.text


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from lib import gone\nexcept ImportError:\n    gone = None",
        "try:\n    from lib import make\nexcept ImportError:\n    from lib import gone",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from lib import gone",
        "import lib\nif hasattr(lib, 'gone'):\n    lib.gone()",
        "if version >= 5:\n    from lib import gone\nelse:\n    from lib import make",
        "def f():\n    if not is_lib_available():\n        return\n    from lib import gone",
        "new = parse(lib_version) > 3\nif new:\n    from lib import gone",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lib import gone",
        "import lib\nx = lib.gone if hasattr(lib, 'gone') else None",
    ],
)
def test_guarded_uses_do_not_break(lib: ApiSurface, text: str) -> None:
    found = findings(lib, text)
    assert found
    assert not [finding for finding in found if finding.breaks]


def test_assignments_to_missing_names_have_their_own_kinds(lib: ApiSurface) -> None:
    [dead] = findings(lib, "import lib.core\nlib.core.Model.gone = f\nlib.core.Model.run = f")
    assert (dead.kind, dead.line, dead.breaks) == ("dead-patch", 2, False)
    [read] = findings(lib, "import lib.core\nlib.core.Model.gone = f\ndef g(m): return m.gone()")
    assert (read.kind, read.breaks) == ("patch", False)
    [broken] = findings(lib, "import lib.core\nlib.core.Gone.run = f")
    assert broken.breaks


def test_only_uses_outside_functions_break_an_import(lib: ApiSurface) -> None:
    text = "from lib import gone\ndef f():\n    from lib import away\n"
    assert [(f.name, f.at_import) for f in findings(lib, text)] == [("lib.gone", True), ("lib.away", False)]


def test_a_package_is_read_without_its_tests(tmp_path: Path, lib: ApiSurface) -> None:
    user = sources(
        tmp_path / "user.zip",
        {
            "user/__init__.py": "",
            "user/a.py": "from lib import gone\n",
            "user/old.py": "print 'lib'\n",
            "user/odd.py": "from lib import b\xe4d\n".encode("latin-1"),
            "tests/test_a.py": "from lib import gone\n",
        },
    )
    found = check_uses(find_uses(user, {"lib"}).uses, {"lib": ("lib 1", lib)}, user)
    assert [(f.file, f.line) for f in found] == [("user/a.py", 1)]


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04" + bytes(40)])
def test_a_file_that_is_no_archive_is_reported(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        ApiSurface(path)
    assert str(path) in str(caught.value)


NAMES = st.sampled_from(["lib", "make", "core", "x", "Model"])


@given(
    text=st.one_of(
        st.text(max_size=80),
        st.lists(
            st.builds(
                "from lib.{} import {} as {}\n{}.{}({})".format, NAMES, NAMES, NAMES, NAMES, NAMES, NAMES
            ),
            max_size=4,
        ).map("\n".join),
    )
)
def test_any_source_can_be_read(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = parse_source(text.encode("utf-8", "surrogatepass"))
    if tree is not None:
        uses_in_file(tree, text.encode("utf-8", "surrogatepass"), "user.a", "user/a.py", {"lib"})


@pytest.mark.parametrize(
    ("source", "parsed"),
    [
        (b"from lib import gone  # caf\xc3\xa9\n", True),
        (b"# -*- coding: latin-1 -*-\nfrom lib import gone  # caf\xe9\n", True),
        (b"from lib import gone\nx = 'caf\xe9'\n", False),
        (b"from lib import gone\nprint 'Python 2'\n", False),
        (b"from lib import gone\nasync = 1\n", False),
        (b"from lib import gone\n\x00\n", False),
    ],
)
def test_files_with_other_syntax_or_encoding_are_read_or_listed(
    tmp_path: Path, lib: ApiSurface, source: bytes, parsed: bool
) -> None:
    user = sources(tmp_path / "user.zip", {"user/a.py": source, "user/b.py": "from lib import make\n"})
    found = find_uses(user, {"lib"})
    assert ("lib.gone" in {use.target for use in found.uses}) is parsed
    assert found.unparsed == (() if parsed else ("user/a.py",))
    assert "lib.make" in {use.target for use in found.uses}


LAZY = """
TABLE = {"known": ".core:known"}
def __getattr__(name: str):
    if name in TABLE or name == "other":
        return load(TABLE[name])
    raise AttributeError(name)
"""


@pytest.mark.parametrize(
    ("body", "is_closed"),
    [
        (LAZY, True),
        (LAZY.replace("    raise", "    else:\n        raise"), True),
        (LAZY.replace(" in TABLE or", " not in TABLE:\n        raise AttributeError\n    if"), True),
        (LAZY.replace("raise AttributeError(name)", "return load(name)"), False),
        (LAZY.replace("raise AttributeError(name)", ""), False),
        (LAZY.replace(' or name == "other"', " or name.startswith('o')"), False),
        (LAZY.replace('{"known": ".core:known"}', "dict(read_names())"), False),
        (
            LAZY.replace(
                "    raise",
                "    try:\n        return load(name)\n    except KeyError:\n        pass\n    raise",
            ),
            False,
        ),
        (LAZY + "globals()['x'] = 1\n", False),
    ],
)
def test_a_module_whose_getattr_knows_a_table_has_no_other_names(
    tmp_path: Path, body: str, is_closed: bool
) -> None:
    lib = sources(tmp_path / "lib.zip", {"lib/__init__.py": body, "lib/core.py": "known = 1\n"})
    assert lib.find("lib.absent").presence is (Presence.MISSING if is_closed else Presence.UNKNOWN)
    assert lib.find("lib.known").presence is not Presence.MISSING
    assert lib.find("lib.other").presence is not Presence.MISSING
    assert lib.find("lib.core").presence is Presence.FOUND


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from lib.absent import x", "lib has no absent"),
        ("from lib.absent.deep import x", "lib has no absent"),
        ("import lib.absent", "lib has no absent"),
        ("from lib.put import x", ""),
        ("from lib.native.deep import x", ""),
        ("from lib.core import known", ""),
        ("import lib.core", ""),
        ("from lib import absent", ""),
    ],
)
def test_an_import_statement_needs_a_module_whatever_getattr_returns(
    tmp_path: Path, line: str, message: str
) -> None:
    files = {
        "lib/__init__.py": "import sys\nsys.modules['lib.put'] = sys\ndef __getattr__(name): ...\n",
        "lib/core.py": "known = 1\n",
        "lib/native.cpython-311-x86_64-linux-gnu.so": "",
    }
    lib = sources(tmp_path / "lib.zip", files)
    assert [finding.text for finding in findings(lib, line + "\n")] == ([message] if message else [])
