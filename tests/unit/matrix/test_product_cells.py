"""Cells of a product are made from shared parts and must equal cells that are made separately."""

from __future__ import annotations

import itertools

import pytest

from harness.matrix.cells import product_cells
from harness.matrix.cells.pins import resolve_rules
from harness.matrix.model.cell import cell_id
from harness.matrix.reading.load_matrix import parse_matrix

MATRIX = """\
format: 1
axes:
  cann: {{title: CANN, scheme: cann, source: s}}
  verl: {{title: verl, scheme: pep440, source: s, package: verl}}
  soc: {{title: SoC, scheme: name, source: s}}
  torch: {{title: torch, scheme: pep440, source: s, package: torch}}
constraints:
  old: {{when: {{{first}: "{value}"}}, forbid: {{{second}: "{other}"}}, reason: r, source: s}}
pins:
  - {{when: {{verl: ">=0.7"}}, require: "torchdata=={{torch}}", reason: r, source: s}}
profiles:
  default:
    title: t
    select: [{{product: {{verl: [0.6.1, 0.9.1@abcdef1], torch: [2.7.1, 2.8.0, 2.9.0], cann: [8.3.RC1, 8.5.0]}}, with: {{soc: a2}}}}]
"""
RULES = [
    ("verl", "0.6.1", "torch", "2.7.1"),
    ("verl", "0.6.1", "cann", "8.5.0"),
    ("torch", "2.8.0", "cann", "8.5.0"),
    ("soc", "a3", "soc", "a3"),
    ("soc", "a2", "cann", "8.3.RC1"),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tails", [0, 2, 5, 4096])
def test_a_cell_made_from_shared_parts_is_the_cell_made_alone(
    monkeypatch: pytest.MonkeyPatch, rule: tuple[str, ...], tails: int
) -> None:
    first, value, second, other = rule
    monkeypatch.setattr(product_cells, "MAX_TAIL_COMBINATIONS", tails)
    matrix = parse_matrix(MATRIX.format(first=first, value=value, second=second, other=other))
    cells = matrix.cells("default").cells
    (selection,) = matrix.profiles["default"].select
    expected = []
    # The first axis of the file changes last.
    for cann, verl, torch in itertools.product(
        *(selection.product[one] for one in ("cann", "verl", "torch"))
    ):
        axes = {"cann": cann, "verl": verl, "soc": "a2", "torch": torch}
        versions = matrix.versions(axes)
        if not list(matrix.violations.of_constraints(versions)):
            expected.append((axes, resolve_rules(matrix.pin_rules, versions)))
    assert [(dict(cell.axes), cell.pins) for cell in cells] == expected
    assert [list(cell.axes) for cell in cells] == [list(axes) for axes, _ in expected]
    for cell in cells:
        assert cell.id == cell_id("", cell.axes)
        assert cell.title.startswith(f"verl {cell.axes['verl'].partition('@')[0]}, cann {cell.axes['cann']}")
        assert {axis: where.line for axis, where in cell.provenance.items()} == dict.fromkeys(
            cell.axes, selection.where.line
        )
