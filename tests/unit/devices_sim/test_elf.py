from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.devices.sim.runtime_build.elf import SharedObject
from harness.errors import InputError


def read_all(path: Path) -> None:
    with SharedObject(path) as library:
        library.imports()
        library.defines("own")
        library.defines("nothing")


@pytest.fixture(params=["gnu", "sysv", "both"])
def library(request: pytest.FixtureRequest, compile_c, tmp_path: Path) -> Path:
    return compile_c(
        """
        #include <stdlib.h>
        int missing_thing(void); extern int weak_thing(void) __attribute__((weak));
        int own(void) { return missing_thing() + (weak_thing ? weak_thing() : 0); }
        int other(void) { free(malloc(3)); return 2; }
        """,
        tmp_path / "libone.so",
        f"-Wl,--hash-style={request.param}",
        "-Wl,-soname,libnamed.so.1",
    )


def test_reads_what_a_library_needs(library: Path) -> None:
    with SharedObject(library) as opened:
        imports = opened.imports()
    assert imports.soname == "libnamed.so.1"
    assert any(name.startswith("libc.so") for name in imports.needed)
    assert imports.undefined["missing_thing"] == ""
    assert imports.undefined["malloc"].startswith("libc.so")
    assert "weak_thing" not in imports.undefined
    assert "own" not in imports.undefined


def test_finds_definitions_as_the_loader_does(library: Path) -> None:
    with SharedObject(library) as opened:
        assert opened.defines("own")
        assert opened.defines("other")
        assert not opened.defines("missing_thing")
        assert not opened.defines("ow")
        assert not opened.defines("")


def test_reads_undefined_symbols_without_any_definition(compile_c, tmp_path: Path) -> None:
    """A GNU hash table without definitions does not say how many symbols there are."""
    path = compile_c(
        "int missing_thing(void); static int (*keep)(void) __attribute__((used)) = missing_thing;",
        tmp_path / "libempty.so",
        "-Wl,--hash-style=gnu",
        "-nostdlib",
    )
    with SharedObject(path) as opened:
        assert "missing_thing" in opened.imports().undefined


def test_reads_the_libraries_of_this_interpreter() -> None:
    libraries = list(Path(sys.base_prefix, "lib").rglob("*.so"))[:20]
    for path in libraries:
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            read_all(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"not a library at all", "magic"),
        (b"\x7fELF\x01\x01" + bytes(58), "64-bit"),
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x02\x00\x3e\x00" + bytes(44), "shared object"),
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x03\x00\x08\x00" + bytes(44), "machine"),
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x03\x00\x3e\x00", "ends before"),
    ],
)
def test_says_what_is_wrong_with_a_file(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_all(path)
    assert str(path) in str(caught.value)
    assert why in str(caught.value)


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_all(tmp_path / "absent.so")


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(data=st.data())
def test_any_damage_is_read_or_reported(library: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(library.read_bytes())
    if data.draw(st.booleans(), "truncate"):
        del content[data.draw(st.integers(0, len(content) - 1), "length") :]
    for _ in range(data.draw(st.integers(0, 4), "bytes")):
        if content:
            # Headers and tables are at the beginning of a small library.
            content[data.draw(st.integers(0, min(len(content), 2048) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.so"
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        read_all(path)


def test_the_original_still_reads(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    shutil.copy(library, copy)
    read_all(copy)
