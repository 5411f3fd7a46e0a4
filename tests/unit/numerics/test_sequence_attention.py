"""What ranks exchange around attention: by definition, with arrays in the place of tensors, and in records."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from harness.numerics.loss.candidate import StandInError, is_own_call
from harness.numerics.loss.release_objectives import release_objective
from harness.numerics.update.sequence_attention import ATTENTIONS, AttentionHeads, _RankThreads
from harness.numerics.update.update_compare import judge_record
from harness.numerics.update.update_record import UpdateRecord
from tests.unit.numerics.test_sequence_ranks import Array, made
from tests.unit.numerics.update_fixture import recorded

ULYSSES = recorded("ulysses")


def attention(query, key, value):
    """The stand-in for attention of all heads in plain Python."""
    group = query.shape[2] // key.shape[2]
    output = np.zeros_like(query)
    for head in range(query.shape[2]):
        output[:, :, head] = query[:, :, head] + key[:, :, head // group] * value[:, :, head // group]
    return output


@pytest.mark.parametrize("heads", ATTENTIONS, ids=lambda one: one.named("is"))
def test_results_and_gradients_are_those_of_the_stand_in(heads: AttentionHeads):
    drawn, expected = heads.drawn(), heads.expected()
    inputs = [drawn[name] for name in ("query", "key", "value")]
    assert np.array_equal(expected["output"], attention(*inputs))
    rng = np.random.default_rng(3)
    for number, name in enumerate(("query gradient", "key gradient", "value gradient")):
        direction = rng.integers(-9, 9, inputs[number].shape).astype(np.float64)
        ends = [
            attention(*[one + sign * direction if at == number else one for at, one in enumerate(inputs)])
            for sign in (0.5, -0.5)
        ]
        slope = ((ends[0] - ends[1]) * drawn["output gradient"]).sum()
        assert slope == (direction * expected[name]).sum()


def test_the_ranks_of_a_case_have_fewer_equal_and_more_heads_than_ranks():
    assert {one.repeats for one in ATTENTIONS} == {1, 2}
    assert any(one.queries // one.ranks > one.keys // one.ranks > 1 for one in ATTENTIONS)


def threads(size: int) -> _RankThreads:
    return _RankThreads(SimpleNamespace(), size)


def test_each_rank_gets_its_part_of_every_other():
    group = threads(3)

    def step(rank: int) -> tuple[list[float], list[float]]:
        whole = [made(np.zeros(1)) for _ in range(3)]
        group._gather(whole, made([rank]))
        parts = [made(np.zeros(1)) for _ in range(3)]
        group._exchange(parts, [made([10 * rank + to]) for to in range(3)]).wait()
        return [float(one[0]) for one in whole], [float(one[0]) for one in parts]

    assert group.run(step) == [([0, 1, 2], [rank, 10 + rank, 20 + rank]) for rank in range(3)]


def test_what_one_rank_raises_is_raised_and_no_rank_waits_for_it():
    group = threads(2)

    def step(rank: int) -> None:
        if rank:
            raise ValueError("no heads")
        group._gather([made(np.zeros(1)) for _ in range(2)], made([1.0]))

    with pytest.raises(ValueError, match="no heads"):
        group.run(step)


def test_ranks_with_different_numbers_of_collectives_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("harness.numerics.update.sequence_attention.PATIENCE_S", 0.1)
    group = threads(2)

    def step(rank: int) -> None:
        for _ in range(1 + rank):
            group._gather([made(np.zeros(1)) for _ in range(2)], made([1.0]))

    with pytest.raises(StandInError, match="different numbers"):
        group.run(step)


def test_a_collective_of_other_shapes_is_an_error_of_verl():
    group = threads(2)

    def step(rank: int) -> None:
        found: list[Array] = [made(np.zeros(2)) for _ in range(2)]
        group._gather(found, made(np.ones(2 + rank)))

    with pytest.raises(StandInError, match="are expected") as raised:
        group.run(step)
    assert not is_own_call(raised.value)


def named(record: UpdateRecord) -> list[str]:
    return [one.name for one in record.quantities if one.name.startswith("attention ")]


@pytest.mark.parametrize("version", ULYSSES)
def test_verl_exchanges_what_is_defined(version):
    record = ULYSSES[version]
    assert named(record) == [heads.named(name) for heads in ATTENTIONS for name in heads.expected()]
    assert judge_record(record, release_objective(version)).wrong == ()


@pytest.mark.parametrize("version", ULYSSES)
@pytest.mark.parametrize("heads", ATTENTIONS, ids=lambda one: one.named("of"))
def test_each_quantity_that_is_wrong_or_missing_is_found(version, heads):
    record = ULYSSES[version]
    for name in heads.expected():
        for change in ("swapped", "missing"):
            quantities = [one for one in record.quantities if one.name != heads.named(name)]
            found = record.find(heads.named(name))
            if change == "swapped":
                wrong = found[::-1] + (found.shape[0] == 1)
                kept = next(one for one in record.quantities if one.name == heads.named(name))
                quantities.append(type(kept)(name=kept.name, values=wrong))
                if np.array_equal(wrong, found):
                    # The settings and positions of all ranks are the same.
                    continue
            outcome = judge_record(
                UpdateRecord(
                    case="ulysses", path=record.path, quantities=tuple(quantities), places=record.places
                ),
                release_objective(version),
            )
            assert [one.quantity for one in outcome.wrong] == [heads.named(name)]
            assert "verl/" in outcome.wrong[0].place


def test_a_collective_without_the_group_is_an_error_of_verl(monkeypatch):
    """verl's function also runs without a division, where a collective would ask all processes of the job."""
    distributed = SimpleNamespace(get_rank=None, get_world_size=None, all_gather=None, all_to_all=None)
    ulysses = SimpleNamespace(set_ulysses_sequence_parallel_group=lambda _: None)
    monkeypatch.setattr("harness.numerics.update.sequence_attention.import_module", lambda _: ulysses)
    for size in (1, 2):
        group = _RankThreads(SimpleNamespace(distributed=distributed), size)
        with group.active(), pytest.raises(StandInError, match="all_gather is called without the group"):
            distributed.all_gather([], made([1.0]), group=None)
        assert distributed.all_gather is None
