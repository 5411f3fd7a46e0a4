"""Which rows ranks get and return: by definition, of batches, and in records of the real verl."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from harness.numerics.loss.release_objectives import release_objective
from harness.numerics.update import rank_dispatch
from harness.numerics.update.rank_dispatch import (
    INFERENCE,
    LAYOUTS,
    METHODS,
    RankLayout,
    _Actor,
    _got,
    _Reference,
    dispatched_rows,
    found_rows,
    rows_of,
    settings_of,
)
from harness.numerics.update.update_cases import ROWS
from harness.numerics.update.update_compare import judge_record
from harness.numerics.update.update_record import Quantity, UpdateRecord
from tests.unit.numerics.update_fixture import recorded

DAPO = recorded("dapo")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_each_row_is_on_all_ranks_of_one_data_parallel_rank_and_returned_once(layout: RankLayout):
    rows = layout.rows()
    assert rows.shape == (len(layout.returning), ROWS // (max(layout.data_ranks) + 1))
    for first, one in zip(layout.data_ranks, rows, strict=True):
        for second, other in zip(layout.data_ranks, rows, strict=True):
            assert set(one) == set(other) if first == second else not set(one) & set(other)
    returned = [row for row, is_taken in zip(rows, layout.returning, strict=True) if is_taken]
    assert np.concatenate(returned).tolist() == list(range(ROWS))


def test_every_layout_has_every_method():
    names = list(dispatched_rows(legacy=False))
    assert len(names) == len(set(names))
    for layout in LAYOUTS:
        for method in METHODS:
            own = [name for name in names if name.endswith(f" of {method}, {layout.name}")]
            assert len(own) == 2 + (method in INFERENCE)


class Values(np.ndarray):
    """An array in the place of a tensor."""

    def unbind(self):
        return list(self)

    def cpu(self):
        return self

    contiguous = numpy = cpu


def values(rows) -> np.ndarray:
    return np.asarray(rows, dtype=np.int64).view(Values)


class Mixed(dict):
    """A dictionary in the place of a TensorDict."""


@pytest.fixture
def without_torch(monkeypatch):
    class Stack(list):
        tolist = list.copy

    class Single(SimpleNamespace):
        pass

    modules = {
        "torch": SimpleNamespace(is_tensor=lambda one: isinstance(one, Values)),
        "tensordict": SimpleNamespace(NonTensorStack=Stack, NonTensorData=Single),
    }
    monkeypatch.setattr(rank_dispatch, "import_module", modules.__getitem__)
    return modules["tensordict"]


def test_rows_are_found_by_all_of_their_fields(without_torch):
    stack, single = without_torch.NonTensorStack, without_torch.NonTensorData
    tokens = [[1, 2], [1, 2], [3, 4]]

    def batch(rows, numbers):
        return Mixed(
            tokens=values([tokens[row] for row in rows]), number=stack(numbers), setting=single(data=0.7)
        )

    whole = rows_of(batch([0, 1, 2], [0, 1, 2]))
    assert found_rows(batch([2, 0], [2, 0]), whole) == [2, 0]
    # The same tokens with the number of another row, and a number without its tokens.
    assert found_rows(batch([1, 2], [0, 1]), whole) == [0, -1]
    assert found_rows(Mixed(number=stack([0])), whole) == [-1]
    assert settings_of(batch([0], [0])) == {"setting": 0.7}


def test_rows_of_a_padded_batch(without_torch):
    batch = SimpleNamespace(
        batch=Mixed(tokens=values([[1], [2]])),
        non_tensor_batch={"number": np.array([0, 1], dtype=object)},
        meta_info={"temperature": 0.7},
    )
    assert found_rows(batch, rows_of(batch)) == [0, 1]
    assert settings_of(batch) == {"temperature": 0.7}
    longer = SimpleNamespace(**{**vars(batch), "non_tensor_batch": {"number": np.arange(3).astype(object)}})
    assert found_rows(longer, rows_of(batch)) == [0, 1, -1]


def test_an_actor_gets_objects_and_returns_references():
    actor = _Actor(SimpleNamespace(add=lambda one, *, other: one + other))
    found = actor.add.remote(_Reference(1), other=_Reference(2))
    assert found == _Reference(3)
    assert _got([found, _Reference(4)]) == [3, 4]
    assert _got(found) == 3


@pytest.mark.parametrize("version", DAPO)
def test_verl_gives_each_rank_its_rows(version):
    record, expected = DAPO[version], dispatched_rows(legacy=version == "0.6.1")
    assert [one.name for one in record.quantities if one.name in expected] == list(expected)
    assert judge_record(record, release_objective(version)).wrong == ()


@pytest.mark.parametrize("name", dispatched_rows(legacy=False))
def test_rows_that_are_wrong_are_found(name):
    record = DAPO["0.9.1"]
    kept = next(one for one in record.quantities if one.name == name)
    assert found_wrong(record, name, (type(kept)(name=name, values=kept.values - 1),)) == [name]


@pytest.mark.parametrize("version", DAPO)
def test_rows_that_were_not_noted_are_found(version):
    name = next(iter(dispatched_rows(legacy=True)))
    assert found_wrong(DAPO[version], name, ()) == [name]


def found_wrong(record: UpdateRecord, name: str, instead: tuple[Quantity, ...]) -> list[str]:
    """The quantities that are wrong, each with a place in verl, if one is replaced."""
    quantities = (*(one for one in record.quantities if one.name != name), *instead)
    changed = UpdateRecord(case="dapo", path=record.path, quantities=quantities, places=record.places)
    objective = release_objective("0.9.1" if record is DAPO["0.9.1"] else "0.6.1")
    wrong = judge_record(changed, objective).wrong
    assert all("verl/" in one.place for one in wrong)
    return [one.quantity for one in wrong]
