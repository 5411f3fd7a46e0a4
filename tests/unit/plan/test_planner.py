import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_samples import INPUTS, cell, check, plan

from harness.code_graph.reachable_code import ReachedCode
from harness.digest import digest_json
from harness.ledger.plan_record import CodeRecord, PlanRecord, TaskRecord
from harness.ledger.run_record import Disposition
from harness.outcome import Evidence, Outcome, State, Status, Tier
from harness.package import IMPORT_ROOT
from harness.plan.keys.code_digests import record_code
from harness.plan.keys.facets import facet_values
from harness.plan.keys.key import key_changes
from harness.plan.tasks.check_registry import all_checks, order_checks, with_needed_checks
from harness.plan.tasks.host_capabilities import HostFacts, NpuFacts
from harness.plan.tasks.task import Task, plan_of_record
from harness.serialisation import dumps, load
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.verdict import ExpectedFailure, Standing


def test_cells_that_share_facet_values_share_a_task():
    checks = [check("whole"), check("tree", facets=("verl_tree",))]
    made = plan([cell(), cell(torch="2.12.0")], checks)
    keys = {(entry.cell_id, entry.check): entry.key for entry in made.entries}
    assert len({key for (_cell, name), key in keys.items() if name == "tree"}) == 1
    assert len({key for (_cell, name), key in keys.items() if name == "whole"}) == 2
    assert len(made.tasks) == 3


def test_an_npu_cell_on_a_host_without_one_is_not_run_and_says_why():
    made = plan([cell("npu")], [check("loss", Tier.NUMERICS, device=True), check("lint")])
    loss, lint = made.entries
    assert (loss.key, loss.skip.status, loss.skip.reason) == ("", Status.NOT_RUN, "no NPU on this host")
    assert lint.key


@pytest.mark.parametrize(
    ("npu", "reason"),
    [
        (NpuFacts(cards=8, soc="a3", driver="25.5.0"), "the cell needs a2, this host has a3"),
        (
            NpuFacts(cards=8, soc="a2", driver="old"),
            "CANN 8.5.0 needs a newer driver than old; update the driver, or use an older CANN",
        ),
    ],
)
def test_a_host_with_other_cards_or_an_old_driver_runs_no_hardware_check(npu, reason):
    host = HostFacts(
        npu=npu,
        cann_misfit=lambda cann, driver: (
            f"CANN {cann} needs a newer driver than {driver}" if driver == "old" else ""
        ),
    )
    (entry,) = plan([cell("npu", soc="a2", cann="8.5.0")], [check("loss", device=True)], host).entries
    assert entry.skip.reason == reason


def test_a_host_of_another_architecture_runs_no_hardware_check():
    host = HostFacts(npu=NpuFacts(cards=8, soc="a2", driver="25.5.0"), arch="x86_64")
    checks = [check("loss", facets=("platform",), device=True)]
    (entry,) = plan([cell("npu", soc="a2", cann="8.5.0")], checks, host).entries
    assert entry.skip.reason == "the cell is for aarch64, this host is x86_64"


def test_the_axis_arch_names_the_architecture_of_an_npu_host():
    host = HostFacts(npu=NpuFacts(cards=8, soc="a2", driver="25.5.0"), arch="x86_64")
    checks = [check("loss", facets=("platform",), device=True)]
    (entry,) = plan([cell("npu", soc="a2", cann="8.5.0", arch="x86_64")], checks, host).entries
    assert entry.key


def test_a_host_with_fitting_cards_plans_the_hardware_check():
    host = HostFacts(npu=NpuFacts(cards=8, soc="a2", driver="25.5.0"))
    (entry,) = plan([cell("npu", soc="a2", cann="8.5.0")], [check("loss", device=True)], host).entries
    assert entry.key
    assert entry.skip is None


def test_what_a_profile_leaves_out_is_not_run_with_what_needs_it_and_keeps_its_reason():
    checks = [check("lint"), check("train"), check("curve", needs=("train",))]
    lint, train, curve = plan([cell()], checks, without={"train": "it takes minutes"}).entries
    assert lint.key
    assert (train.key, train.skip.status, train.skip.reason) == ("", Status.NOT_RUN, "it takes minutes")
    assert (curve.key, curve.skip.reason) == ("", "it depends on train, which is not run: it takes minutes")


def test_adding_a_cell_changes_no_other_key():
    checks = [check("whole"), check("tree", facets=("verl_tree", "patches[verl]"))]
    before = plan([cell()], checks)
    after = plan([cell(torch="2.12.0"), cell()], checks)
    assert set(before.tasks) <= set(after.tasks)


def test_cells_share_the_facet_of_an_upstreams_patches_until_one_is_for_their_version():
    chosen = {"1.0": [], "2.0": [], "3.0": [{"id": "vllm_ascend/fix", "digest": "d"}]}
    inputs = replace(INPUTS, patches=lambda upstream, axes: chosen[axes[upstream]])
    values = [
        facet_values(cell(vllm_ascend=version), ("patches[vllm_ascend]",), inputs)["patches[vllm_ascend]"]
        for version in chosen
    ]
    tree = {"package": "vllm_ascend", "version": "3.0", "kind": "release"}
    assert values == [[], [], [{"id": "vllm_ascend/fix", "digest": "d", "tree": tree}]]
    assert facet_values(cell(), ("patches[vllm_ascend]",), inputs) == {"patches[vllm_ascend]": []}


@given(st.sampled_from(["code", "params", "patch", "verl"]))
def test_a_key_changes_when_its_code_parameters_or_facets_do(part):
    checks = [check("tree", facets=("verl_tree", "patches[verl]"), params={"seed": 1})]
    base = plan([cell()], checks)
    changed = {
        "code": lambda: plan([cell()], checks, code={"tree": "other"}),
        "params": lambda: plan([cell()], [replace(checks[0], params={"seed": 2})]),
        "patch": lambda: plan([cell()], checks, inputs=replace(INPUTS, patches=lambda _u, _v: [])),
        "verl": lambda: plan([cell(verl="0.6.1")], checks),
    }[part]()
    assert set(base.tasks).isdisjoint(changed.tasks)
    (old,), (new,) = base.record().tasks, changed.record().tasks
    parts = [change.part for change in key_changes(old, new)]
    expected = {"code": "code", "params": "params.seed", "patch": "facets.patches[verl]", "verl": "facets."}[
        part
    ]
    assert parts
    assert any(name.startswith(expected) for name in parts)


@pytest.mark.parametrize("each", all_checks(), ids=lambda each: each.name)
def test_a_task_differs_in_nothing_from_itself_as_it_is_stored(each):
    task = Task(key="k", check=each, facets={}, facet_digests={}, code_digest="a").record()
    stored = load(TaskRecord, dumps(replace(task, code_digest="b")))
    assert [change.part for change in key_changes(stored, task)] == ["code"]
    assert [change.part for change in key_changes(task, stored)] == ["code"]


def test_equal_tasks_have_no_changes():
    task = plan([cell()], [check("whole")]).record().tasks[0]
    assert key_changes(task, task) == ()


def test_needs_come_before_what_needs_them_and_cycles_are_named():
    late = check("late", Tier.BUILD, facets=("versions",), needs=("early",))
    early = check("early", Tier.BUILD)
    assert [each.name for each in order_checks([late, early])] == ["early", "late"]
    with pytest.raises(ValueError, match="depend on each other"):
        order_checks([late, replace(early, needs=("late",))])
    with pytest.raises(ValueError, match="no package declares"):
        order_checks([late])
    with pytest.raises(ValueError, match="two checks"):
        order_checks([early, early])


def test_a_question_about_nothing_is_not_asked_and_no_pass():
    idle = check(
        "patches", facets=("patches[verl]",), applies=lambda facets: "" if facets["patches[verl]"] else "none"
    )
    after = check("build", Tier.BUILD, facets=("patches[verl]",), needs=("patches",))
    inputs = replace(INPUTS, patches=lambda _upstream, _version: [])
    first, second = plan([cell()], [idle, after], inputs=inputs).entries
    assert (first.key, first.skip.status, first.skip.reason) == ("", Status.UNSUPPORTED, "none")
    made = plan([cell()], [idle, after], inputs=inputs)
    assert made.tasks[second.key].needs == ()
    assert plan([cell()], [idle, after]).entries[0].key


def test_a_check_must_read_what_its_needs_read():
    with pytest.raises(ValueError, match="does not read its facets"):
        order_checks([check("early"), check("late", facets=("device",), needs=("early",))])


def test_selecting_a_check_selects_what_it_needs():
    checks = order_checks([check("a"), check("b", needs=("a",)), check("c")])
    assert [each.name for each in with_needed_checks({"b"}, checks)] == ["a", "b"]


def test_a_plan_survives_json():
    checks = [check("whole"), check("loss", Tier.NUMERICS, device=True)]
    made = plan([cell(), cell("npu")], checks)
    read = plan_of_record(load(PlanRecord, dumps(made.record())), {each.name: each for each in checks})
    assert read == made


def test_a_check_that_is_gone_is_noticed():
    made = plan([cell()], [check("whole")])
    read = plan_of_record(load(PlanRecord, dumps(made.record())), {})
    assert read.tasks == {}
    assert "'whole'" in read.notices[0]


def outcome(key, status="pass", state=State.COMPLETED):
    return Outcome(
        key=key,
        check="x",
        tier=Tier.STATIC,
        state=state,
        evidence=Evidence.STATIC,
        facets={},
        measurements={"status": status},
    )


def test_what_was_planned_and_has_no_outcome_is_an_error():
    made = plan([cell()], [check("whole")])
    (verdict,) = judge_plan(made, {}, [], lambda _cell, _check: None)
    assert verdict.status is Status.ERROR
    assert verdict.standing is Standing.INCOMPLETE


def test_an_entry_blocked_behind_a_known_failure_is_known():
    made = plan([cell()], [check("first"), check("second", Tier.BUILD)])
    first, second = made.entries
    known = ExpectedFailure(state="fail", reason="r", source="s")
    blocked = Disposition(
        cell_id=second.cell_id,
        check="second",
        key=second.key,
        status=Status.BLOCKED,
        reason="first failed",
    )
    verdicts = judge_plan(
        made,
        {first.key: outcome(first.key, "fail")},
        [blocked],
        lambda _cell, name: known if name == "first" else None,
    )
    assert [verdict.standing for verdict in verdicts] == [Standing.KNOWN, Standing.KNOWN]
    alone = judge_plan(
        made,
        {first.key: outcome(first.key, "fail")},
        [blocked],
        lambda _cell, _name: None,
    )
    assert [verdict.standing for verdict in alone] == [Standing.UNEXPECTED, Standing.INCOMPLETE]


def test_an_unknown_facet_is_a_mistake_in_the_check():
    with pytest.raises(ValueError, match="no facet is called 'colour'"):
        facet_values(cell(), ("colour",), INPUTS)


def test_a_commit_names_its_repository():
    values = facet_values(cell(verl="0.6.1@d62da495"), ("verl_tree",), INPUTS)
    assert values["verl_tree"]["kind"] == "commit"
    assert values["verl_tree"]["commit"] == "d62da495"


def test_the_shipped_checks_are_in_order_of_need():
    names = [each.name for each in all_checks()]
    assert names.index("resolve") < names.index("environment") < names.index("loss") < names.index("grpo")


def test_a_change_of_code_names_the_modules_that_changed():
    probe = check("probe")

    def planned(**modules: str) -> PlanRecord:
        code = ReachedCode(digest=digest_json(modules), modules=modules)
        made = plan([cell()], [probe], code={"probe": code.digest}, code_record=record_code([code]))
        return load(PlanRecord, dumps(made.record()))

    before, after = planned(a="1", b="2", c="3"), planned(a="1", b="4", d="5")
    (change,) = key_changes(before.tasks[0], after.tasks[0], before.code, after.code)
    assert change.modules == ("b", "c", "d")
    assert str(change).endswith("changed in b, c, d")
    # A plan of an earlier version says nothing of its modules.
    (change,) = key_changes(before.tasks[0], after.tasks[0], CodeRecord(), after.code)
    assert change.modules == ()
    old = json.loads(dumps(before))
    del old["code"]
    assert load(PlanRecord, json.dumps(old)).code == CodeRecord()


def test_the_checks_are_read_without_numpy():
    code = (
        "import sys; from harness.plan.tasks.check_registry import all_checks; all_checks(); "
        "sys.exit('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(IMPORT_ROOT)}, check=False)
    assert done.returncode == 0, (
        "numpy takes a fifth of the time of `npu-matrix plan`: import it where it is used"
    )
