import pytest

from harness.sources.document_tables import plain_text, read_tables

MARKDOWN = """\
# Policy

| Plugin | Python | `CANN` <br> stable |
|:------:|---|---|
| **v1.0** | >= 3.10, < 3.13 | [9.1.0](https://example.org) |
| v0.9 | a \\| b | N/A |

text | with a bar

| Other |
|---|
| x |
"""
SIMPLE = """\
============= ======================================= ==========
依赖          版本                                    说明
============= ======================================= ==========
HDK           ``26.0.rc1``                            NPU硬件驱动
Python        ``>=3.10, <3.12``\\ \uff0c推荐 ``3.11``
triton-ascend ``3.2.1``                               见 `脚本 <../x.sh>`_
                                                      第二行
============= ======================================= ==========

after
"""
GRID = """\
    +-----------+-----------------+
    | software  | version         |
    +===========+=================+
    | CANN      | == 8.5.0        |
    +-----------+-----------------+
    | torch     | == 2.8.0        |
    |           | (cpu)           |
    +-----------+-----------------+
"""
LIST = """\
.. list-table::
   :header-rows: 1

   * - engine
     - trainer
   * - vLLM
     - FSDP
       or Megatron
after
"""


def test_markdown_tables_without_markup_and_with_lines() -> None:
    first, second = read_tables(MARKDOWN)
    assert first.header == ("Plugin", "Python", "CANN stable")
    assert first.line == 3
    assert [(row.line, row.fields) for row in first.rows] == [
        (5, ("v1.0", ">= 3.10, < 3.13", "9.1.0")),
        (6, ("v0.9", "a | b", "N/A")),
    ]
    assert second.rows[0].fields == ("x",)


def test_simple_tables_have_columns_by_width_also_with_chinese_text() -> None:
    (table,) = read_tables(SIMPLE)
    assert table.header == ("依赖", "版本", "说明")
    assert [(row.line, row.fields[:2]) for row in table.rows] == [
        (4, ("HDK", "26.0.rc1")),
        (5, ("Python", ">=3.10, <3.12, 推荐 3.11")),
        (6, ("triton-ascend", "3.2.1")),
    ]
    assert table.rows[2].fields[2] == "见 脚本 第二行"


def test_text_that_crosses_the_border_of_a_column_is_marked() -> None:
    (table,) = read_tables(SIMPLE.replace(f"``3.2.1``{' ' * 30}", f"``3.2.1``{'x' * 32}"))
    assert [row.is_torn for row in table.rows] == [False, False, True]


def test_grid_tables_with_and_without_a_header() -> None:
    (table,) = read_tables(GRID)
    assert table.header == ("software", "version")
    assert [row.fields for row in table.rows] == [("CANN", "== 8.5.0"), ("torch", "== 2.8.0 (cpu)")]
    (headless,) = read_tables(GRID.replace("=", "-"))
    assert headless.header == ()
    assert headless.rows[0].fields == ("software", "version")


def test_list_tables() -> None:
    (table,) = read_tables(LIST)
    assert (table.header, table.line) == (("engine", "trainer"), 4)
    assert table.rows[0].fields == ("vLLM", "FSDP or Megatron")


@pytest.mark.parametrize(
    "text", ["", "| a |\n", "===\n", "+--+\n", ".. list-table::\n", "== ==\n", "a\n==\n"]
)
def test_no_table_and_unfinished_ones(text: str) -> None:
    assert read_tables(text) == ()


def test_what_would_change_a_terminal_is_left_out() -> None:
    assert plain_text("\x1b[31m1.0\u202e") == "[31m1.0"
