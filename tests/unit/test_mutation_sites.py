"""Mutants of verl's functions: which places are changed, and that a mutant is the code with that change."""

from __future__ import annotations

import ast

from benchmarks.numerics.mutation import (
    Verdict,
    is_known,
    obsolete,
    of_entries,
    score,
    verdict,
    why_equivalent,
)
from benchmarks.numerics.mutation_sites import mutants, mutated
from benchmarks.numerics.trained_mutants import overlay
from benchmarks.numerics.trainer_lines import lines_in
from benchmarks.numerics.update_path import OTHER_FEATURES

SOURCE = '''
class Actor:
    def update(self, old, new, mask, use_images=False):
        """Documentation: 1."""
        if mask is None:
            raise ValueError("no mask")
        logger.info(3)
        shift = new - old
        if use_images:
            shift = shift * 7
        spread = old * 11
        if spread > 13:
            assert mask is not None
            metrics_of_old = {"spread": spread}
        metrics = {"spread": spread}
        return sum(one * keep for one, keep in zip(shift, mask[1:], strict=True)), metrics
'''


def found(skipped=("use_images",)):
    return list(mutants(SOURCE, "actor.py", ["Actor.update", "Actor.missing"], skipped))


def test_what_decides_the_update_is_changed_and_nothing_else():
    changes = {(one.operator, one.before, one.after) for one in found()}

    assert ("sign", "new - old", "new + old") in changes
    assert ("dropped term", "one * keep", "one") in changes
    assert ("shift by one", "1:", "1:-1") in changes
    assert ("dropped statement", "shift = new - old", "") in changes
    texts = " ".join(one.before for one in found())
    assert "* 11" not in texts, "only a metric"
    assert "13" not in texts, "a branch with nothing but a metric"
    assert "* 7" not in texts, "a branch of another feature"
    assert "no mask" not in texts
    assert "logger" not in texts
    assert "Documentation" not in texts
    assert any("* 7" in one.before for one in found(skipped=()))


def test_a_mutant_is_the_source_with_one_change():
    original = ast.unparse(ast.parse(SOURCE))
    shifted = next(one for one in found() if one.operator == "shift by one")

    assert ast.unparse(mutated(SOURCE, shifted, ["use_images"])) == original.replace("mask[1:]", "mask[1:-1]")
    for one in found():
        assert ast.unparse(mutated(SOURCE, one, ["use_images"])) != original, one


def test_operators_that_were_added_later_make_other_mutants_which_may_all_be_looked_at():
    first = {one.key for one in found()}
    more = list(mutants(SOURCE, "actor.py", ["Actor.update"], ["use_images"], more=True))
    changes = {(one.operator, one.before, one.after) for one in more}

    unseen = ("dropped argument", "zip(shift, mask[1:], strict=True)", "zip(shift, mask[1:])")
    assert unseen not in changes, "lists have the same length"
    assert ("dropped argument", "zip(shift, mask[1:], strict=True)", "zip(shift, strict=True)") in changes
    assert ("scaled result", "shift = new - old", "shift = (new - old) * 1.1") in changes
    assert not first & {one.key for one in more}
    assert all(one.is_looked_at for one in more)
    assert "* 7" not in " ".join(one.before for one in more)
    original = ast.unparse(ast.parse(SOURCE))
    for one in more:
        assert ast.unparse(mutated(SOURCE, one, ["use_images"])) != original, one


LOOP = """
def total(rows, row_masks, old_rows):
    count = 0
    for number, row in enumerate(rows):
        count += row[number]
    if count > 3:
        count = old_rows.any(dim=1)
    return count
"""


def test_loops_names_and_comparisons_are_changed_by_the_later_operators():
    more = list(mutants(LOOP, "total.py", ["total"], more=True))
    changes = {(one.operator, one.after) for one in more}

    assert ("reversed comparison", "count < 3") in changes
    assert ("function", "old_rows.all(dim=1)") in changes
    assert ("dropped argument", "old_rows.any()") in changes
    assert ("shift by one", "row[number - 1]") in changes
    assert ("other variable", "old_rows") in changes
    assert ("sign", "count -= row[number]") in changes
    assert ("dropped term", "count = row[number]") in changes
    loops = [one.after for one in more if one.operator == "loop"]
    assert [one.rpartition(" ")[2] == "break" for one in loops] == [True, False, False]
    assert "enumerate(rows))[1:]:" in loops[1]
    assert "enumerate(rows))[::-1]:" in loops[2]


def test_a_half_does_not_depend_on_where_the_function_stands():
    moved = list(mutants("\n\n" + SOURCE, "actor.py", ["Actor.update"], ["use_images"]))

    assert [one.number for one in moved] == [one.number for one in found()]
    assert [one.line - 2 for one in moved] == [one.line for one in found()]


def kill(**fields):
    return {
        "by": "",
        "case": "grpo",
        "quantity": "",
        "place": "",
        "error": "",
        "reached": True,
        "not_applicable": "",
        **fields,
    }


def test_verdicts_and_score():
    mutant = next(one for one in found() if one.operator == "sign")
    entries = [{"function": "Actor.update", "before": "new - old", "after": "new", "reason": "no"}]
    statuses = {
        "killed": kill(by="update", quantity="advantages", place="verl/actor.py:3 update"),
        "raised": kill(by="update", error="TypeError: no"),
        "survived": kill(),
        "not-applicable": kill(not_applicable="closure"),
        "off-path": kill(reached=False),
    }
    verdicts = [verdict(mutant, one, entries, {}) for one in statuses.values()]

    assert [one.status for one in verdicts] == list(statuses)
    assert verdicts[0].located is True
    assert score(verdicts) == 2 / 3
    # A line that a training executed is on the path, also if no case executes it.
    trained = {mutant.file: frozenset({mutant.line})}
    assert verdict(mutant, statuses["off-path"], entries, trained).status == "survived"
    dropped = next(one for one in found() if (one.before, one.after) == ("new - old", "new"))
    assert why_equivalent(dropped, entries) == "no"
    assert verdict(dropped, kill(), entries, {}).status == "equivalent"
    # A list of equivalent mutants that a case kills is wrong, and the kill counts.
    assert verdict(dropped, statuses["killed"], entries, {}).status == "killed"
    of_statement = [{"function": "Actor.update", "code": r"^no such", "reason": "no"}]
    assert not why_equivalent(dropped, of_statement)
    assert not why_equivalent(mutant, entries)
    assert score([Verdict(mutant=mutant, status="equivalent", why="")]) == 0
    # If another mutant has the same source and is wrong, both are run.
    assert is_known(dropped, entries)
    assert not is_known(dropped, [{**entry, "killed": "the first"} for entry in entries])
    assert not is_known(mutant, entries)


def test_lines_of_a_training_are_those_of_all_processes_in_files_of_the_path(tmp_path):
    losses, advantages = "trainer/ppo/core_algos.py", "trainer/ppo/ray_trainer.py"
    for process, text in (
        ("grpo/1", f"{losses} 12\n{losses} 7\n{advantages} 3\n"),
        ("grpo/2", f"{losses} 12\nutils/tracking.py 9\n"),
        ("gspo/1", f"{losses} 40\n"),
    ):
        file = tmp_path / f"{process}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")

    found = lines_in([tmp_path / "grpo", tmp_path / "gspo"])

    assert found == {losses: [7, 12, 40], advantages: [3]}


def test_a_draw_is_another_order_and_entries_that_no_mutant_needs_are_listed():
    changes = found()
    orders = [sorted(changes, key=lambda one: one.drawn(draw)) for draw in (0, 1, 2)]
    assert len({tuple(one.key for one in order) for order in orders}) == 3

    entries = [
        {"operator": "shift by one", "reason": "first"},
        {"code": "sum", "reason": "second"},
        {"function": "none"},
    ]
    chosen = of_entries(changes, entries, 1)
    assert [why_equivalent(one, entries) for one in chosen] == ["first", "second"]
    verdicts = [
        Verdict(mutant=one, status=status, why="")
        for one, status in zip(chosen, ("equivalent", "killed"), strict=True)
    ]
    assert obsolete(verdicts, entries) == entries[1:2]
    assert obsolete(verdicts[:1], entries) == []


def test_a_package_with_a_mutant_is_the_package_with_one_changed_file(tmp_path):
    original = tmp_path / "verl"
    (original / "utils").mkdir(parents=True)
    (original / "actor.py").write_text(SOURCE)
    (original / "utils" / "other.py").write_text("x = 1\n")
    mutant = next(one for one in found(skipped=OTHER_FEATURES) if one.operator == "shift by one")

    overlay(original, tmp_path / "overlay", mutant)

    folder = tmp_path / "overlay" / "verl"
    assert (folder / "utils" / "other.py").resolve() == original / "utils" / "other.py"
    assert "mask[1:-1]" in (folder / "actor.py").read_text()
    assert (original / "actor.py").read_text() == SOURCE
