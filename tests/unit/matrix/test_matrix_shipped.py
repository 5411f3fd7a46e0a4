"""The shipped matrix.yaml: its stacks, and the consistency of its entries."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.matrix.cells.pins import pins_facet
from harness.matrix.model.constraints import TableRequirement, ViolationKind
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.reading.unused_entries import find_unused_entries

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrix.yaml")
ROWS = {
    "gptoss-20b-grpo": {"cann": "8.5.0", "torch_npu": "2.7.1", "verl": "0.6.1@d62da495"},
    "verl-npu-plugin": {
        "cann": "8.3.RC1",
        "vllm": "0.10.1@38217877",
        "vllm_ascend": "0.10.1rc1.dev0@1de16ead",
    },
    "one-step-off-2card": {
        "vllm": "0.11.0",
        "vllm_ascend": "0.11.0rc1",
        "verl": "0.7.0.dev0@ccd7d934",
        "soc": "a3",
    },
    "gptoss-infer": {"cann": "8.3.RC1.alpha002", "torch": "2.6.0", "soc": "a3"},
    "gspo-qwen25-3b": {
        "cann": "8.2.RC2",
        "transformers": "4.53.3",
        "driver": "24.1.0.3",
        "python": "3.10.12",
    },
    "gspo-qwen3-30b-a3b": {"cann": "8.2.RC2", "vllm_ascend": "0.10.0rc1", "mbridge": "0.13.1"},
    "gspo-async": {"cann": "8.3.RC1", "transformers": "4.57.3", "verl": "0.7.0.dev0@5a2e0b1c"},
    "gspo-engine-worker": {"cann": "8.3.RC1", "vllm": "0.11.0", "verl": "0.7.0.dev0@5a2e0b1c"},
    "verl-0-6-1": {"verl": "0.6.1", "cann": "8.2.RC1", "torch_npu": "2.5.1", "vllm_ascend": "0.9.1"},
    "verl-0-7-0": {"verl": "0.7.0", "cann": "8.3.RC1", "torch_npu": "2.7.1", "vllm_ascend": "0.11.0rc1"},
    "verl-0-7-1": {"verl": "0.7.1", "cann": "8.5.0", "torch_npu": "2.8.0"},
    "verl-0-8-0": {"verl": "0.8.0", "cann": "9.0.0", "torch_npu": "2.9.0.post2", "vllm_ascend": "0.18.0"},
    "verl-0-9-0": {"verl": "0.9.0", "cann": "9.0.0", "torch_npu": "2.10.0.post2"},
    "verl-main": {"cann": "9.1.0", "torch_npu": "2.10.0.post4", "python": "3.12"},
}


@pytest.mark.parametrize("name", ROWS)
def test_each_row_is_planned_as_its_authors_state_it(name: str) -> None:
    cell = MATRIX.cells("default").get(name)
    assert cell is not None
    assert {axis: cell.axes[axis][: len(value)] for axis, value in ROWS[name].items()} == ROWS[name]
    assert cell.recipe in MATRIX.recipes
    assert cell.source
    assert cell.device == "npu"


def test_each_release_of_verl_whose_guide_names_cann_8_2_or_later_is_a_stack() -> None:
    guides = MATRIX.published["verl-quickstart"]
    rows = [dict(zip(guides.columns, row, strict=True)) for row in guides.rows]
    wanted = {
        (row["verl"], row["cann"])
        for row in rows
        if row["verl"] != "main" and not str(row["cann"]).startswith("8.1")
    }
    stacks = {(stack.axes.get("verl"), stack.axes["cann"]) for stack in MATRIX.stacks.values()}
    assert len(wanted) >= 5
    assert wanted - stacks == set()


def test_the_default_profile_starts_with_the_two_simulated_cells() -> None:
    first, second, *rows = MATRIX.cells("default")
    assert [cell.device for cell in (first, second)] == ["sim", "sim"]
    assert pins_facet(first, MATRIX.axes).requirements == (
        "verl==0.6.1",
        "torch==2.13.0",
        "torch-npu==2.13.0",
        "transformers>=4.57,<5",
        "pyarrow<26",
        "einops",
    )
    assert pins_facet(second, MATRIX.axes).requirements == (
        "verl==0.9.1",
        "torch==2.13.0",
        "torch-npu==2.13.0",
        "cachetools",
        "einops",
        "TransferQueue>=0.1.10",
        "uvicorn",
        "fastapi",
        "transformers>=5.5.3,<5.11",
    )
    assert [cell.axes["python"] for cell in (first, second)] == ["host", "host"]
    assert {cell.stack for cell in rows} == set(MATRIX.stacks)
    assert (first.id, second.id) == ("verl-0-6-1-sim-bf5bece628da", "verl-0-9-1-sim-768b268fa815")


@pytest.mark.parametrize(
    ("name", "constraints"),
    [
        ("gptoss-20b-grpo", {"torch-npu-cann", "vllm-ascend-vllm-minor"}),
        ("one-step-off-2card", set()),
        ("gspo-qwen25-3b", {"vllm-ascend-torch-npu", "vllm-ascend-cann"}),
        ("gspo-async", set()),
        ("verl-0-7-1", {"torch-npu-cann", "vllm-ascend-torch-npu"}),
        ("verl-0-8-0", {"vllm-ascend-torch-npu", "vllm-ascend-cann", "vllm-ascend-triton"}),
        (
            "verl-0-9-0",
            {"vllm-ascend-torch-npu", "vllm-ascend-transformers", "vllm-ascend-cann", "vllm-ascend-triton"},
        ),
        ("verl-main", {"vllm-ascend-transformers"}),
    ],
)
def test_inconsistent_stacks_carry_what_is_known_against_them(name: str, constraints: set[str]) -> None:
    findings = MATRIX.stack_cell(name).findings
    assert {finding.constraint for finding in findings} & set(MATRIX.constraints) == constraints


def test_published_tables_are_complete() -> None:
    sizes = {name: len(table.rows) for name, table in MATRIX.published.items()}
    assert sizes == {
        "vllm-ascend": 37,
        "torch-npu": 26,
        "torch-python": 9,
        "vllm-ascend-metadata": 49,
        "verl-metadata": 11,
        "vllm-ascend-main": 1,
        "verl-image-tags": 12,
        "verl-dockerfile-names": 18,
        "verl-dockerfiles": 18,
        "mindspeed-rl-docs": 2,
        "cann-images": 12,
        "verl-quickstart": 10,
        "verl-quickstart-pages": 4,
    }
    assert MATRIX.published["torch-npu"].column("cann")["2.7.1.post2"] == "8.5.0"
    assert all(table.source and table.date for table in MATRIX.published.values())


def test_everything_that_a_package_itself_requires_is_a_constraint_that_can_fail() -> None:
    """The metadata of a release breaks a cell; a table of versions that somebody tested does not."""
    checked = {
        (rule.table, rule.axis)
        for constraint in MATRIX.constraints.values()
        if constraint.kind is not ViolationKind.UNLISTED
        for rule in constraint.require
        if isinstance(rule, TableRequirement)
    }
    required = {
        (table.name, column)
        for table in MATRIX.published.values()
        if table.name.endswith("-metadata")
        for column in table.columns
        if column in MATRIX.axes and column != table.key
    }
    assert ("vllm-ascend-metadata", "python") in required
    assert required <= checked


def test_constraints_leave_the_combinations_that_are_known_to_resolve() -> None:
    cells = MATRIX.cells("releases")
    pairs = {(cell.axes["verl"], cell.axes["vllm_ascend"]) for cell in cells}
    assert {vllm_ascend for verl, vllm_ascend in pairs if verl in {"0.9.0", "0.9.1"}} == {
        "0.20.2rc1",
        "0.23.0",
    }
    assert ("0.7.1", "0.13.0") in pairs
    assert all(cell.axes["torch_npu"].startswith(cell.axes["torch"]) for cell in cells)


#: Releases that are compatible with nothing yet. They are listed so that the exclusions are reported.
ALONE = {"vllm_ascend 0.24.0rc1", "torch_npu 2.8.0", "torch_npu 2.9.0.post2", "python 3.13"}


def test_nothing_in_it_is_without_effect_but_some_releases() -> None:
    found = list(find_unused_entries(MATRIX))
    assert {problem.what for problem in found} == {
        f"no cell of profile 'releases' has {value}" for value in ALONE
    }
    assert all(problem.why.startswith("excluded by ") for problem in found)


def test_it_names_its_schema_and_no_place_of_one_machine() -> None:
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=docs/schema/matrix.schema.json\n")
    assert not re.search(r"(?<![\w.-])/(home|root|work|opt|tmp|data)/", text)


def test_loading_it_does_not_import_the_slow_parts() -> None:
    code = (
        "import sys; from pathlib import Path; from harness.matrix.reading.load_matrix import load_matrix; "
    )
    code += "load_matrix(Path('matrix.yaml')).cells('default'); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
