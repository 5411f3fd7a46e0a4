"""`include:`: own entries over included ones, and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import __version__
from harness.errors import EXIT_BAD_INPUT, InputError
from harness.matrix.reading.load_matrix import load_matrix, parse_matrix
from harness.matrix.reading.unused_entries import find_unused_entries

ROOT = Path(__file__).parents[3]
SHIPPED = f"npu-matrix:{__version__}"
OWN = f"""\
format: 1
include: {SHIPPED}
axes:
  verl: {{repository: https://example.com/verl}}
stacks:
  mine:
    title: mine
    source: here
    axes: {{verl: 0.9.1, torch: 2.7.1, torch_npu: 2.7.1, python: 3.11, cann: 8.5.0, soc: a2, device: npu}}
profiles:
  default: {{title: mine, select: [{{stacks: [mine]}}]}}
"""


def problem_of(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_matrix(text, "m.yaml")
    assert caught.value.exit_code == EXIT_BAD_INPUT
    return str(caught.value.problems[0])


def test_the_shipped_entries_are_there_and_the_own_ones_replace_them() -> None:
    shipped, matrix = load_matrix(ROOT / "matrix.yaml"), parse_matrix(OWN, "m.yaml")
    assert matrix.includes_shipped
    assert set(matrix.stacks) == {*shipped.stacks, "mine"}
    assert [cell.stack for cell in matrix.cells("default")] == ["mine"]
    assert matrix.constraints.keys() == shipped.constraints.keys()
    assert matrix.pin_rules == shipped.pin_rules, "positions are not compared"


def test_keys_of_an_axis_are_merged_and_each_value_has_its_position() -> None:
    shipped, matrix = load_matrix(ROOT / "matrix.yaml"), parse_matrix(OWN, "m.yaml")
    assert matrix.axes["verl"].repository == "https://example.com/verl"
    assert matrix.axes["verl"].package == shipped.axes["verl"].package
    assert matrix.axes["soc"] == shipped.axes["soc"]
    where = matrix.stacks["mine"].provenance["verl"]
    assert (str(where.file), where.line) == ("m.yaml", 9)
    name = next(iter(shipped.constraints))
    line = shipped.constraints[name].where.line
    assert str(matrix.constraints[name].where).startswith(f"{SHIPPED}:{line}:")
    assert matrix.pin_rules[0].where.line == shipped.pin_rules[0].where.line


def test_every_replaced_entry_is_listed_with_both_positions() -> None:
    replaced = {one.name: one for one in parse_matrix(OWN, "m.yaml").replaced}
    assert set(replaced) == {"axes.verl", "profiles.default"}
    assert str(replaced["profiles.default"].where).startswith("m.yaml:11:")
    assert str(replaced["profiles.default"].included).startswith(f"{SHIPPED}:")


def test_a_replaced_stack_needs_a_source_of_its_own() -> None:
    text = (
        OWN.replace("  mine:", "  gspo-qwen25-3b:").replace("    source: here\n", "").replace("[mine]", "all")
    )
    assert problem_of(text) == "m.yaml:7:5: key 'source' is missing\n  do:  add 'source:'"


def test_an_error_in_an_own_pin_has_its_position_in_the_own_file() -> None:
    text = f"{OWN}pins:\n  - {{when: {{verl: nonsense}}, require: x, reason: r, source: s}}\n"
    assert problem_of(text).startswith("m.yaml:13:19:")


def test_unused_entries_of_the_included_matrix_are_no_warnings() -> None:
    found = [str(problem) for problem in find_unused_entries(parse_matrix(OWN, "m.yaml"))]
    assert found == []


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("npu-matrix:9.9.9", f"npu-matrix 9.9.9 is included, but {__version__} is installed"),
        ("'npu-matrix:'", f"npu-matrix (no version) is included, but {__version__} is installed"),
        ("npu-matrix", "'npu-matrix' cannot be included"),
        ("other.yaml", "'other.yaml' cannot be included"),
        ("[]", "key 'axes' is missing"),
        ("{a: b}", "'include' must be a text, or a list of texts"),
        ("[[x]]", "'include' must be a text, or a list of texts"),
        ("null", "key 'axes' is missing"),
    ],
)
def test_what_cannot_be_included_is_an_error_with_its_position(word: str, expected: str) -> None:
    found = problem_of(
        f"format: 1\ninclude: {word}\nprofiles:\n  p: {{title: t, select: [{{stacks: all}}]}}\n"
    )
    assert expected in found
    assert found.startswith("m.yaml:")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("axes: 3", "m.yaml:3:7: 'axes' must be a mapping, not 3"),
        ("profiles: null", "m.yaml:3:11: 'profiles' must be a mapping, not empty"),
        ("pins: {a: b}", "m.yaml:3:7: 'pins' must be a list, not a mapping"),
        ("stacks: []", "m.yaml:3:9: 'stacks' must be a mapping, not a list"),
        ("patches: [x]", "m.yaml:3:11: 'patches[1]' must be a mapping, not 'x'"),
        ("patches: [{folder: p, upstream: verl, versions: []}]", "m.yaml:3:49: "),
    ],
)
def test_a_section_of_another_kind_is_one_error_in_the_own_file(section: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_matrix(f"format: 1\ninclude: {SHIPPED}\n{section}\n", "m.yaml")
    own = [str(problem) for problem in caught.value.problems if str(problem.where).startswith("m.yaml")]
    assert own[0].startswith(expected)
    assert len(own) == 1


def test_files_of_the_repository_are_included_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    row = "stacks:\n  {0}: {{title: '{0}', source: s, axes: {{verl: {1}}}}}\n"
    (tmp_path / "rows/a.yaml").write_text(row.format("x", "0.7.0"))
    (tmp_path / "rows/b.yaml").write_text(row.format("x", "0.7.1") + f"include: [{SHIPPED}]\n")
    profiles = "profiles: {default: {title: t, select: [{stacks: [x]}]}}\n"
    file = tmp_path / "matrix.yaml"
    file.write_text(f"format: 1\ninclude: [{SHIPPED}, rows/a.yaml, rows/b.yaml]\n{profiles}")
    matrix = load_matrix(file)
    assert matrix.stacks["x"].axes == {"verl": "0.7.1"}
    assert [path.name for path in matrix.included_files] == ["a.yaml", "b.yaml"]
    assert str(matrix.stacks["x"].where).endswith("rows/b.yaml:2:3")


def test_cycles_escapes_and_missing_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("format: 1\n")
    top = tmp_path / "checkout"
    top.mkdir()
    (top / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (top / "a.yaml").write_text("include: b.yaml\n")
    (top / "b.yaml").write_text("include: [a.yaml]\n")
    (top / "list.yaml").write_text("- x\n")
    for word, expected in {
        "../outside.yaml": "is outside the folder of matrix.yaml",
        str(tmp_path / "outside.yaml"): "is outside the folder of matrix.yaml",
        "link.yaml": "is outside the folder of matrix.yaml",
        "gone.yaml": "does not exist",
        "matrix.yaml": "in a cycle: matrix.yaml -> matrix.yaml",
        "a.yaml": "in a cycle: matrix.yaml -> a.yaml -> b.yaml -> a.yaml",
        "list.yaml": "must be a mapping",
    }.items():
        (top / "matrix.yaml").write_text(f"format: 1\ninclude: {word}\n")
        with pytest.raises(InputError, match=expected) as caught:
            load_matrix(top / "matrix.yaml")
        assert caught.value.problems[0].where is not None
        assert caught.value.problems[0].where.line
