from hypothesis import given
from hypothesis import strategies as st
from plan_samples import cell, check, plan

from harness.outcome import Status, Tier
from harness.plan.tasks.demand import (
    MARKER,
    Demand,
    applicable_demand,
    capacity,
    card_count,
    resource_demand,
    unmet_reason,
)
from harness.plan.tasks.host_capabilities import HostFacts

NPU = {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}
LOSS = check("loss", Tier.NUMERICS, device=True)
HOSTS = check("hosts", Tier.NUMERICS, device=True, each_host=True, facets=("device", "recipe"))
A2 = {"CPU": 8.0, "NPU": 8.0, "soc:a2": 1.0, "cann:8.5.0": 1.0}


def test_a_device_task_asks_for_its_card_its_family_and_its_cann():
    assert resource_demand(LOSS, {"device": NPU}) == Demand(
        resources={"CPU": 1.0, "NPU": 1.0, "soc:a2": MARKER, "cann:8.5.0": MARKER}
    )


def test_a_build_reserves_no_card_of_a_cluster_but_goes_to_a_host_with_cards():
    build = check("build", Tier.BUILD, device=True, holds_cards=False)
    demand = resource_demand(build, {"device": NPU})
    assert demand == Demand(resources={"CPU": 1.0, "soc:a2": MARKER, "cann:8.5.0": MARKER})
    assert card_count(build, {"device": NPU}) == 1
    # Only its card shows that a node has cards if the cell names no chip.
    assert resource_demand(build, {"device": {**NPU, "soc": ""}}).resources["NPU"] == 1


def test_a_container_brings_its_cann():
    contained = {**NPU, "engine": "docker", "base_image": ""}
    assert "cann:8.5.0" not in resource_demand(LOSS, {"device": contained}).resources
    assert "cann:8.5.0" in resource_demand(LOSS, {"device": {**NPU, "engine": "found"}}).resources


def test_a_plan_says_why_no_card_of_the_host_can_be_used():
    facts = HostFacts(no_card="the driver is not running")
    loss = check("loss", device=True, facets=("device",))
    (entry,) = plan([cell("npu", soc="a2", cann="8.5.0")], [loss], facts).entries
    assert entry.skip.reason == "no card of this host can be used: the driver is not running"


def test_the_capacity_of_a_cluster_is_that_of_its_scarcest_resource():
    eight = resource_demand(LOSS, {"device": NPU, "recipe": {"nodes": 1, "cards": 8}})
    two = resource_demand(HOSTS, {"device": NPU, "recipe": {"nodes": 2, "cards": 8}})
    nodes = [{**A2, "NPU": 24.0}, {**A2, "CPU": 2.0, "NPU": 64.0}, {**A2, "soc:a2": 0.0}, {"CPU": 4.0}]
    assert (capacity(eight, nodes), capacity(two, nodes)) == (5, 2)
    assert capacity(Demand(resources={"CPU": 1.0}), nodes) == 22
    assert capacity(eight, []) == 0


def test_a_recipe_says_how_many():
    two_hosts = {"device": NPU, "recipe": {"nodes": 2, "cards": 16}}
    assert resource_demand(LOSS, two_hosts).nodes == 1
    found = resource_demand(HOSTS, two_hosts)
    assert (found.nodes, found.resources["NPU"]) == (2, 16.0)
    assert str(found) == "2 nodes with 1 CPU, 16 NPU, cann:8.5.0, soc:a2 each"


def test_static_and_simulated_tasks_ask_for_no_card():
    sim = {"device": {**NPU, "kind": "sim"}, "platform": {"host": True, "arch": "aarch64", "python": "3.11"}}
    assert resource_demand(check("lint"), {"device": NPU}).resources == {"CPU": 1.0}
    assert resource_demand(LOSS, sim).resources == {"CPU": 1.0, "arch:aarch64": MARKER}


def test_where_no_node_names_its_machine_all_are_alike():
    wanted = Demand(resources={"CPU": 1.0, "arch:aarch64": MARKER})
    assert unmet_reason(wanted, [{"CPU": 2.0}]) == ""
    assert applicable_demand(wanted, [{"CPU": 2.0}]).resources == {"CPU": 1.0}
    assert unmet_reason(wanted, [{"CPU": 2.0, "arch:x86_64": 1.0}]).endswith("no node has arch:aarch64")


def test_what_is_missing_is_named():
    wanted = resource_demand(LOSS, {"device": NPU})
    assert unmet_reason(wanted, [A2]) == ""
    assert unmet_reason(wanted, [{**A2, "NPU": 0.0}]).endswith("no node has NPU")
    assert unmet_reason(
        wanted, [{"CPU": 1.0, "NPU": 8.0}, {"CPU": 1.0, "soc:a2": 1.0, "cann:8.5.0": 1.0}]
    ).endswith("0 of 2 nodes fit; a node lacks cann:8.5.0, soc:a2; a node lacks NPU")
    without = {**A2, "NPU": 0.0, "node:10.0.0.2": 1.0, "node:__internal_head__": 1.0}
    two = resource_demand(HOSTS, {"device": NPU, "recipe": {"nodes": 2, "cards": 8}})
    assert unmet_reason(two, [A2]).endswith("1 of 1 nodes fit")
    assert unmet_reason(two, [A2, without]).endswith("1 of 2 nodes fit; the node 10.0.0.2 lacks NPU")
    assert unmet_reason(two, [A2, A2]) == ""


def test_a_plan_for_a_cluster_takes_its_nodes_and_not_this_host():
    device = {"facets": ("device",)}
    npu = cell("npu", soc="a2", cann="8.5.0")
    (entry,) = plan([npu], [check("loss", device=True, **device)], HostFacts(nodes=(A2,))).entries
    assert entry.key
    (entry,) = plan([npu], [check("loss", device=True, **device)], HostFacts(nodes=({"CPU": 4.0},))).entries
    assert entry.skip.status is Status.NOT_RUN
    assert "no node has NPU" in entry.skip.reason


@given(
    wanted=st.dictionaries(
        st.sampled_from(["CPU", "NPU", "soc:a2"]), st.integers(1, 4).map(float), min_size=1
    ),
    nodes=st.lists(
        st.dictionaries(st.sampled_from(["CPU", "NPU", "soc:a2"]), st.integers(0, 4).map(float)), max_size=4
    ),
    count=st.integers(1, 3),
)
def test_a_demand_is_met_exactly_when_enough_nodes_have_all_of_it(wanted, nodes, count):
    fitting = sum(all(node.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in nodes)
    assert (unmet_reason(Demand(resources=wanted, nodes=count), nodes) == "") == (fitting >= count)
