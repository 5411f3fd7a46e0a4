import json

from hypothesis import given
from hypothesis import strategies as st
from plan_samples import cell, check, plan

from harness.plan.cost.shards import MAX_JOBS, github_output, lower_bound, make_shards
from harness.plan.tasks.host_capabilities import HostFacts, NpuFacts

A2 = HostFacts(npu=NpuFacts(cards=8, soc="a2", driver="25.5.0"))


def made(count: int, **more):
    return plan(
        [cell(torch=f"2.{number}.0") for number in range(count)], [check("loss"), check("lint")], **more
    )


@given(count=st.integers(1, 12), most=st.integers(1, 12), data=st.data())
def test_every_check_is_dealt_once_and_no_shard_is_far_from_the_best(count, most, data):
    planned = made(count)
    seconds = {key: data.draw(st.floats(0, 100)) for key in planned.tasks}
    dealt = make_shards(planned, seconds, most)
    every = ("loss", "lint")
    pairs = sorted((name, one) for shard in dealt for name in shard.cells for one in shard.checks or every)
    assert pairs == sorted((found.id, one) for found in planned.cells for one in every)
    assert len(dealt) <= most
    bound = lower_bound(planned, seconds, most, {found.id for found in planned.cells})
    dearest = max(
        sum(seconds[entry.key] for entry in planned.entries if entry.cell_id == found.id)
        for found in planned.cells
    )
    assert max(one.seconds for one in dealt) <= bound + dearest + 1e-6


def test_a_cell_that_is_longer_than_a_fair_share_is_divided_by_its_checks():
    """Its build is repeated in each part, which the bound cannot avoid either."""
    named = [f"training-{number}" for number in range(8)]
    build = check("build")
    planned = plan([cell()], [build, *(check(name, needs=("build",)) for name in named)])
    seconds = {key: 10.0 if task.check.name == "build" else 60.0 for key, task in planned.tasks.items()}
    dealt = make_shards(planned, seconds, 4)
    assert [one.seconds for one in dealt] == [130.0] * 4
    assert sorted(name for one in dealt for name in one.checks if name != "build") == named
    assert max(one.seconds for one in dealt) <= 1.15 * lower_bound(planned, seconds, 4, {planned.cells[0].id})


def test_several_long_cells_are_divided():
    cells = [cell(torch=f"2.{number}.0") for number in range(3)]
    planned = plan(cells, [check(f"training-{number}") for number in range(8)])
    seconds = dict.fromkeys(planned.tasks, 60.0)
    dealt = make_shards(planned, seconds, 12)
    assert [one.seconds for one in dealt] == [120.0] * 12


def test_cells_with_the_same_build_go_to_the_same_job():
    cells = [cell(torch=f"2.{number}.0") for number in range(4)]
    build = check("build", facets=("verl_tree",))
    use = check("use", facets=("verl_tree", "versions"), needs=("build",))
    planned = plan(cells, [build, use])
    seconds = {key: 50.0 if task.check.name == "build" else 10.0 for key, task in planned.tasks.items()}
    dealt = make_shards(planned, seconds, 2)
    assert max(one.seconds for one in dealt) == 70.0
    one_job = make_shards(
        planned, {key: 50.0 for key in seconds if planned.tasks[key].check.name == "build"}, 2
    )
    assert [len(one.cells) for one in one_job] == [4]


def test_more_cells_than_github_takes_jobs_share_them():
    dealt = make_shards(made(600), {}, 10_000)
    assert len(dealt) == MAX_JOBS
    assert sum(len(one.cells) for one in dealt) == 600


def test_known_work_costs_nothing_and_shared_work_is_done_once():
    planned = plan([cell(torch="2.7.1"), cell(torch="2.8.0")], [check("tree", facets=("verl_tree",))])
    (key,) = planned.tasks
    assert [(one.seconds, len(one.cells)) for one in make_shards(planned, {key: 8.0}, 2)] == [(8.0, 2)]
    assert [one.seconds for one in make_shards(planned, {}, 2)] == [0.0, 0.0]


def test_cells_on_cards_go_to_runners_of_their_family():
    cells = [cell("npu", soc="a2"), cell("npu", soc="a3"), cell("sim")]
    dealt = make_shards(plan(cells, [check("loss", device=True)], A2), {}, 4, cards=8)
    assert [(one.name, one.label) for one in dealt] == [
        ("a2-1", "linux-aarch64-a2-8"),
        ("a3-1", "linux-aarch64-a3-8"),
    ]
    assert [one.cells for one in dealt] == [(cells[0].id,), (cells[1].id,)]


def test_the_output_is_two_lines_and_an_empty_matrix_says_so():
    matrix, some = github_output(make_shards(made(2), {}, 2)).splitlines()
    assert [job["name"] for job in json.loads(matrix.removeprefix("matrix="))["include"]] == ["1", "2"]
    assert some == "any=true"
    assert github_output(make_shards(made(2), {}, 2, only=())).splitlines()[1] == "any=false"
