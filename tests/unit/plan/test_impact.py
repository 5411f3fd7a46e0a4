from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_samples import INPUTS, cell, check, plan

from harness.digest import digest_bytes, digest_json
from harness.plan.change.impact import Effect, compare_plans
from harness.plan.keys.facets import FACETS, READS, facet_values
from harness.plan.keys.key import key_changes, question_digest
from harness.plan.keys.keyring import Keyring

TREE = check("tree", facets=("verl_tree", "patches[verl]"))
WHOLE = check("whole")


def test_a_plan_against_itself_is_unchanged():
    made = plan([cell()], [TREE, WHOLE])
    found = compare_plans(made, made.record())
    assert [task.effect for task in found.tasks] == [Effect.UNCHANGED, Effect.UNCHANGED]
    assert found.gone == ()


def test_a_changed_patch_touches_the_checks_that_read_it_and_names_it():
    before = plan([cell()], [TREE, WHOLE])
    patched = replace(INPUTS, patches=lambda u, v: [{**INPUTS.patches(u, v)[0], "digest": "new"}])
    found = compare_plans(plan([cell()], [TREE, WHOLE], inputs=patched), before.record())
    (touched,) = found.of(Effect.CHANGED)
    assert touched.check == "tree"
    assert touched.reason == "facets.patches[verl].p.digest: 'verl0.9.1' -> 'new'"


def test_a_patch_more_is_named_alone():
    before = plan([cell()], [TREE])
    both = replace(INPUTS, patches=lambda u, v: [*INPUTS.patches(u, v), {"id": "q", "digest": "d"}])
    (touched,) = compare_plans(plan([cell()], [TREE], inputs=both), before.record()).of(Effect.CHANGED)
    assert [change.part for change in touched.changes] == ["facets.patches[verl].q"]


def test_patches_in_another_order_are_another_facet():
    task = plan([cell()], [TREE]).record().tasks[0]
    two = [{"id": "p"}, {"id": "q"}]
    (change,) = key_changes(
        replace(task, facets={"patches[verl]": two}), replace(task, facets={"patches[verl]": two[::-1]})
    )
    assert change.part == "facets.patches[verl] (order)"


def test_a_new_cell_is_new_where_it_shares_nothing():
    before = plan([cell()], [TREE, WHOLE])
    found = compare_plans(plan([cell(), cell(torch="2.12.0")], [TREE, WHOLE]), before.record())
    assert [(task.check, len(task.cells)) for task in found.of(Effect.UNCHANGED)] == [
        ("tree", 2),
        ("whole", 1),
    ]
    assert [task.check for task in found.of(Effect.NEW)] == ["whole"]


def test_a_stack_whose_versions_were_edited_is_compared_with_itself():
    before = plan([replace(cell(), id="old", stack="row")], [TREE])
    found = compare_plans(plan([replace(cell(verl="0.9.2"), id="new", stack="row")], [TREE]), before.record())
    (touched,) = found.of(Effect.CHANGED)
    assert touched.changes
    assert found.gone == (("old", "tree"),)


VALUES = st.fixed_dictionaries(
    {
        "verl": st.sampled_from(["0.6.1", "0.9.1", "0.9.1@abcdef1"]),
        "torch": st.sampled_from(["2.7.1", "2.13.0"]),
    },
    optional={
        "python": st.sampled_from(["host", "3.10"]),
        "soc": st.sampled_from(["a2", "a3"]),
        "cann": st.sampled_from(["8.5.0", "9.0.0"]),
    },
)
DEVICES = st.sampled_from(["sim", "npu"])


def task_key(check, code, cell):
    """The key of one task as it is defined, without what a `Keyring` shares between cells."""
    facets = {name: digest_json(value) for name, value in facet_values(cell, check.facets, INPUTS).items()}
    return digest_bytes(f"{question_digest(check, code)}{digest_json(facets)}".encode())


@given(st.lists(st.tuples(DEVICES, VALUES), min_size=1, max_size=8))
def test_a_keyring_has_the_keys_and_facets_of_each_cell_alone(drawn):
    checks = [
        check("everything", facets=tuple(FACETS), params={"seed": [1, "\u00e9"]}),
        check("lint", facets=("recipe", "versions")),
        check("resolve", facets=("platform", "pins")),
    ]
    code = {each.name: f"code of {each.name}" for each in checks}
    ring = Keyring(checks, INPUTS, code)
    cells = [cell(device, **axes) for device, axes in drawn]
    together = ring.keys(cells)
    for number, one in enumerate(cells):
        alone = [task_key(each, code[each.name], one) for each in checks]
        assert {name: keys[number] for name, keys in together.items()} == dict(
            zip([each.name for each in checks], alone, strict=True)
        )
        assert ring.keys([one]) == {name: [keys[number]] for name, keys in together.items()}
        values = {name: facet.value for name, facet in ring.facets(one).items()}
        assert values == facet_values(one, tuple(FACETS), INPUTS)


ASKED = [check(f"of {name}", facets=(name,)) for name in FACETS] + [
    check("resolve", facets=("platform", "pins")),
    check("loss", facets=("verl_tree", "patches[verl]", "device", "versions")),
]


@given(st.lists(st.tuples(DEVICES, VALUES), min_size=2, max_size=6))
def test_keys_differ_exactly_where_a_facet_does(drawn):
    cells = [cell(device, **axes) for device, axes in drawn]
    keys = Keyring(ASKED, INPUTS, {each.name: "code" for each in ASKED}).keys(cells)
    for each in ASKED:
        values = [facet_values(one, each.facets, INPUTS) for one in cells]
        for one in range(len(cells)):
            for other in range(one):
                same = keys[each.name][one] == keys[each.name][other]
                assert same == (values[one] == values[other])


@pytest.mark.parametrize("facet", sorted(READS))
def test_a_facet_depends_only_on_the_axes_that_reads_lists(facet):
    names = {"torch_npu", "vllm", "vllm_ascend", "megatron_core", "python", "soc", "cann", *READS[facet]}
    one = replace(
        cell(), axes={**dict.fromkeys(names, "1"), "verl": "0.9.1", "torch": "2.13.0", "device": "sim"}
    )
    value = FACETS[facet](one, INPUTS)
    for axis in one.axes.keys() - READS[facet]:
        other = replace(one, axes={**one.axes, axis: "npu" if axis == "device" else "2"})
        assert FACETS[facet](other, INPUTS) == value, (
            f"{facet} depends on the axis {axis}: add it to READS[{facet!r}]"
        )
    for member, text in {"without": ("p",), "recipe": "another", "overrides": ()}.items():
        other = replace(one, **{member: text})
        assert FACETS[facet](other, INPUTS) == value, (
            f"{facet} depends on the member {member!r} of a cell, and not only on axes: remove it from READS"
        )


@given(
    st.lists(st.tuples(DEVICES, VALUES), min_size=1, max_size=5),
    st.lists(st.tuples(DEVICES, VALUES), max_size=5),
    st.randoms(use_true_random=False),
)
def test_no_cell_that_is_added_changes_the_key_of_another(drawn, added, chance):
    before = [cell(device, **axes) for device, axes in drawn]
    after = [*before, *(cell(device, **axes) for device, axes in added)]
    chance.shuffle(after)
    keys = {(entry.cell_id, entry.check): entry.key for entry in plan(after, ASKED).entries if entry.key}
    for entry in plan(before, ASKED).entries:
        assert not entry.key or keys[entry.cell_id, entry.check] == entry.key


def test_a_digest_that_a_changed_cell_inherited_is_not_believed():
    from dataclasses import replace

    one = cell()
    checks = [check("lint", facets=("versions",))]
    ring = Keyring(checks, INPUTS, {"lint": "code"})
    digest = digest_json(facet_values(one, ("versions",), INPUTS)["versions"])
    known = replace(one, id=f"x-{digest[:12]}", digest=digest)
    changed = replace(known, id="y-000000000000", axes={**one.axes, "verl": "9.9"})
    assert ring.keys([known]) == ring.keys([one])
    assert ring.keys([changed]) == ring.keys([replace(changed, digest="")])
    assert ring.keys([changed]) != ring.keys([known])


def test_a_facet_nobody_defines_is_named_by_a_keyring_too():
    ring = Keyring([check("odd", facets=("nonsense",))], INPUTS, {"odd": ""})
    with pytest.raises(ValueError, match="no facet is called 'nonsense'"):
        ring.keys([cell()])
