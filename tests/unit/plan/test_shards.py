import json

from hypothesis import given
from hypothesis import strategies as st
from plan_samples import cell, check, plan

from harness.plan.cost.shards import MAX_JOBS, github_output, make_shards
from harness.plan.tasks.host_capabilities import HostFacts, NpuFacts

A2 = HostFacts(npu=NpuFacts(cards=8, soc="a2", driver="25.5.0"))


def made(count: int, **more):
    return plan(
        [cell(torch=f"2.{number}.0") for number in range(count)], [check("loss"), check("lint")], **more
    )


@given(count=st.integers(1, 40), most=st.integers(1, 12), data=st.data())
def test_every_cell_is_dealt_once_and_no_shard_is_far_from_the_best(count, most, data):
    planned = made(count)
    seconds = {key: data.draw(st.floats(0, 100)) for key in planned.tasks}
    dealt = make_shards(planned, seconds, most)
    assert sorted(name for one in dealt for name in one.cells) == sorted(found.id for found in planned.cells)
    assert len(dealt) <= most
    total, longest = sum(one.seconds for one in dealt), max(one.seconds for one in dealt)
    dearest = max(make_shards(planned, seconds, MAX_JOBS), key=lambda one: one.seconds).seconds
    assert longest <= 4 / 3 * max(total / len(dealt), dearest) + dearest / 3 + 1e-6


def test_more_cells_than_github_takes_jobs_share_them():
    dealt = make_shards(made(600), {}, 10_000)
    assert len(dealt) == MAX_JOBS
    assert sum(len(one.cells) for one in dealt) == 600


def test_known_work_costs_nothing_and_shared_work_is_split():
    planned = plan([cell(torch="2.7.1"), cell(torch="2.8.0")], [check("tree", facets=("verl_tree",))])
    (key,) = planned.tasks
    assert [one.seconds for one in make_shards(planned, {key: 8.0}, 2)] == [4.0, 4.0]
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
