from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import InputError, Location
from harness.matrix.document import yaml_positions
from harness.matrix.document.yaml_positions import load_yaml, parse_yaml


def problems(text: str) -> list[str]:
    """The problems of a text, including those that do not stop the reading."""
    try:
        found = parse_yaml(text, "f.yaml").problems
    except InputError as error:
        found = error.problems
    assert found
    return [f"{problem.where}: {problem.what}" for problem in found]


def refusal(read: Callable[[], object]) -> InputError | None:
    try:
        read()
    except InputError as error:
        return error
    return None


@pytest.fixture(params=["CBaseLoader", "BaseLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_positions, "_LOADER", getattr(yaml, request.param))


@pytest.mark.usefixtures("loader")
def test_only_words_and_whole_numbers_are_resolved() -> None:
    text = "[8.10, 3:15, on, yes, 0123, 1e3, 0x10, 1_000, ~, True, 2026-01-01, .5, +1, 1, -7, 0, true, false, null]"
    assert parse_yaml(text, "f").data == [
        *["8.10", "3:15", "on", "yes", "0123", "1e3", "0x10", "1_000", "~", "True", "2026-01-01", ".5", "+1"],
        *[1, -7, 0, True, False, None],
    ]


@pytest.mark.usefixtures("loader")
def test_quoted_and_block_scalars_stay_text() -> None:
    assert parse_yaml("""{a: "1", b: 'true', c: "null"}""", "f").data == {"a": "1", "b": "true", "c": "null"}
    assert parse_yaml("a: |\n  true\nb:\n", "f").data == {"a": "true\n", "b": None}


@pytest.mark.usefixtures("loader")
def test_every_value_and_key_has_its_position() -> None:
    document = parse_yaml("a:\n  - x\n  - {b: 1,  c: 2}\nd: |\n  text\n", "m.yaml")
    assert document.where(("a", 1, "c")) == Location("m.yaml", 3, 16)
    assert document.where(("a", 1, "c"), key=True) == Location("m.yaml", 3, 13)
    assert document.where(("d",)) == Location("m.yaml", 4, 4)
    assert str(document.where(("a", 0))) == "m.yaml:2:5"


def test_a_missing_part_is_located_at_the_nearest_one_there_is() -> None:
    document = parse_yaml("a:\n  b: 1\n", "m.yaml")
    assert document.where(("a", "missing", 3)) == Location("m.yaml", 2, 3)
    assert document.where(("a", "missing"), key=True) == Location("m.yaml", 2, 3)


@pytest.mark.usefixtures("loader")
def test_duplicate_keys_are_all_reported() -> None:
    found = problems("a: {x: 1}\nb: 1\na: {x: 2, y: 1, y: 2}\nb: 2\n")
    assert found == [
        "f.yaml:3:1: duplicate key 'a'",
        "f.yaml:3:17: duplicate key 'y'",
        "f.yaml:4:1: duplicate key 'b'",
    ]
    assert parse_yaml("a: {x: 1}\na: {x: 2}\n", "f.yaml").data == {"a": {"x": 1}}


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "1:1", "empty"),
        ("# nothing\n", "1:1", "empty"),
        ("a:\n\t- 1", "2:1", "tab"),
        ("a: &x [1]\nb: *x", "1:4", "anchor"),
        ("a: [*x]", "1:5", "alias"),
        ("a: !!python/object:os.system x", "1:4", "tag"),
        ("a: !custom x", "1:4", "tag"),
        ("a: 1\n---\nb: 2", "2:1", "second document"),
        ("? [a]\n: 1", "1:3", "key"),
        ("{[a]: 1}", "1:2", "key"),
        ("<<: {a: 1}", "1:1", "merge"),
        ("a: \x00", "1:4", "U+0000"),
        ("a: 'b", "1:6", "not YAML"),
        ("a: b: c", "1:5", "not YAML"),
        ("[" * 100_000, "1:41", "nested"),
        ("- " * 5_000, "1:81", "nested"),
        ("a: 1\nb:\n  - " + "[" * 2_000 + "]" * 2_000, "3:43", "nested"),
        ("{a: " * 2_000, "1:161", "nested"),
    ],
)
def test_what_cannot_be_read_is_located(text: str, where: str, what: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"f.yaml:{where}: ")
    assert what in found


def test_an_alias_bomb_costs_nothing() -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "anchor &a0" in problems("\n".join(["a0: &a0 [x]", *rows]))[0]


def test_a_long_list_of_problems_is_cut() -> None:
    assert len(problems("a: 1\n" * 500)) == yaml_positions.MAX_PROBLEMS


def test_what_ends_the_reading_is_told_beside_a_long_list_that_is_cut() -> None:
    told = problems("a: 1\n" * 500 + "b: &x 1\n")
    assert len(told) == yaml_positions.MAX_PROBLEMS
    assert "anchor &x" in told[-1]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a: 1\nb: \xff\n", "m.yaml:2:4: byte 0xff is not UTF-8"),
        ("a: 1".encode("utf-16"), "m.yaml:1:1: byte 0xff is not UTF-8"),
        (b"#" * (5 * 2**20 + 1), "m.yaml: the file is larger than 5 MB"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "m.yaml").write_bytes(raw)
    with pytest.raises(InputError) as caught:
        load_yaml(tmp_path / "m.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            load_yaml(path)


def test_a_pipe_and_a_device_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(InputError, match="is not a regular file"):
            load_yaml(path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_yaml(tmp_path / "m.yaml").data == {"a": 1}


YAML_LIKE = st.lists(
    st.sampled_from(
        [*"{}[],:-?&*!|>'\"%@`#~ \n\t", "a", "1", "- ", ": ", "<<", "---\n", "!!", "\n  ", "é", "\u2028"]
    ),
    max_size=40,
).map("".join)


@settings(deadline=None)
@given(st.text(max_size=200) | YAML_LIKE)
@example("%TAG ! tag:x:\n--- !a b")
@example("\ud800")
@example("!!int x")
def test_any_text_is_read_or_refused(text: str) -> None:
    for name in ("CBaseLoader", "BaseLoader"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml_positions, "_LOADER", getattr(yaml, name, yaml.BaseLoader))
            error = refusal(lambda: parse_yaml(text, "f"))
        assert error is None or all(problem.where is not None for problem in error.problems)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(raw)
    error = refusal(lambda: load_yaml(path))
    assert error is None or str(error).startswith(str(path))
