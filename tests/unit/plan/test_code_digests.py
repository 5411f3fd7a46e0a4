"""The code part of a key contains everything that a check can run, for every check of this project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from plan_samples import check as sample_check

from harness.code_graph.reachable_code import DATA, DEFINITION, MISSING, ON_IMPORT, WHOLE, CodeGraph
from harness.outcome import Tier
from harness.package import IMPORT_ROOT, PACKAGE_ROOT
from harness.plan.change.revision import PLANNING_ROOTS, planning_digest
from harness.plan.keys.code_digests import (
    SIMULATED_DEVICE,
    check_nodes,
    check_roots,
    code_digests,
    code_of_checks,
    simulator_digest,
    simulator_nodes,
)
from harness.plan.tasks.check_registry import all_checks, with_needed_checks

CHECKS = all_checks()
NAMES = [check.name for check in CHECKS]
SIMULATOR = "harness.devices.sim"


@pytest.fixture(scope="module")
def nodes():
    return check_nodes(CodeGraph(), CHECKS)


@pytest.fixture(scope="module")
def changed_everywhere(tmp_path_factory):
    """The root of a copy of the package in which every module has an additional statement at its end."""
    root = tmp_path_factory.mktemp("tree") / "harness"
    shutil.copytree(PACKAGE_ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    for module in CodeGraph(root).modules():
        file = CodeGraph(root).file(module)
        with file.open("a") as stream:
            stream.write("\n\nraise SystemExit\n")
    return root


@pytest.fixture(scope="module")
def imported():
    """Module -> the modules of this project that are really imported when it is imported."""
    known: dict[str, set[str]] = {}

    def find(module: str) -> set[str]:
        if module not in known:
            code = (
                f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('harness')))"
            )
            done = subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                check=True,
                env={"PYTHONPATH": str(IMPORT_ROOT)},
            )
            known[module] = set(done.stdout.split())
        return known[module]

    return find


def test_every_starting_point_is_there(nodes):
    missing = {name: [one for one in found if one[0] == MISSING] for name, found in nodes.items()}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("name", NAMES)
def test_what_a_check_imports_is_in_its_key(name, nodes, imported):
    runs = {place for kind, place, _name in nodes[name] if kind == ON_IMPORT}
    modules = {root.partition(":")[0] for root in check_roots(CHECKS)[name]}
    for module in modules - {"harness"}:
        entered = {one for one in imported(module) if not one.startswith(SIMULATOR)}
        assert entered <= runs, f"importing {module} runs code outside the key"


def test_a_statement_at_the_end_of_any_imported_module_changes_the_key(nodes, changed_everywhere):
    before, after = code_of_checks(CHECKS), code_of_checks(CHECKS, changed_everywhere)
    for name, found in nodes.items():
        assert before[name].digest != after[name].digest
        modules = {place for kind, place, _name in found if kind == ON_IMPORT}
        assert modules
        same = {one for one in modules if before[name].modules.get(one) == after[name].modules[one]}
        assert not same, f"{name} imports these modules, and they are not in its key"


def test_the_simulated_device_is_in_a_digest_of_its_own(nodes, changed_everywhere):
    assert simulator_digest() != simulator_digest(changed_everywhere)
    graph = CodeGraph()
    reached = simulator_nodes(graph)
    assert not [one for one in reached if one[0] == MISSING]
    assert not [module for module in SIMULATED_DEVICE if graph.file(module) is None]
    simulated = {one[1] for one in reached}
    for check in CHECKS:
        with_it = graph.reach(check_roots(CHECKS)[check.name])
        without = nodes[check.name]
        assert {one[1] for one in with_it} <= {one[1] for one in without} | simulated
        # Importing a module that imports the simulator starts nothing.
        started = {(WHOLE, module, "") for module in SIMULATED_DEVICE}
        started.add((DEFINITION, "harness.devices.sim.runtime_build.runtime_library", "build_runtime"))
        if with_it & started:
            assert "device" in check.facets, f"{check.name} can start the simulated device"


def test_a_check_without_a_device_does_not_count_how_cells_are_entered(nodes):
    entry = (DEFINITION, "harness.builds.cell.cell_command", "cell_command")
    for check in CHECKS:
        if check.tier is Tier.STATIC:
            assert entry not in nodes[check.name]
        if check.device:
            assert entry in nodes[check.name]


def test_what_measures_a_dependency_is_in_the_key_and_what_judges_it_is_not(nodes):
    graph, by_name = CodeGraph(), {check.name: check for check in CHECKS}
    for check in CHECKS:
        for need in check.needs:
            run = by_name[need].run
            measured = graph.reach([f"{run.__module__}:{run.__qualname__}"], stop=SIMULATED_DEVICE)
            assert measured <= nodes[check.name]
    judge = (DEFINITION, "harness.builds.cell.environment_judge", "judge")
    assert [name for name in NAMES if judge in nodes[name]] == ["environment"]


def test_the_key_of_a_check_does_not_contain_a_check_that_it_does_not_need(nodes):
    for name in NAMES:
        used = {(each.run.__module__, each.run.__qualname__) for each in with_needed_checks({name}, CHECKS)}
        for other in CHECKS:
            run = (other.run.__module__, other.run.__qualname__)
            assert run in used or (DEFINITION, *run) not in nodes[name], (
                f"each change of {other.name} would renew the outcomes of {name}: call measurement_format on a "
                "line of its own and not within Check(...)"
            )


def test_other_parameters_of_a_need_are_another_key():
    early = sample_check("early")
    late = replace(sample_check("late", Tier.BUILD), needs=("early",))
    one = code_digests([early, late])
    other = code_digests([replace(early, params={"strict": True}), late])
    assert one["late"] != other["late"]
    assert one["early"] == other["early"]


def test_a_module_that_a_parameter_names_is_part_of_it():
    check = replace(sample_check("one"), params={"loss": "harness.numerics.loss.isolate:main"})
    assert any(one[1] == "harness.numerics.loss.isolate" for one in check_nodes(CodeGraph(), [check])["one"])


def test_the_same_code_elsewhere_has_the_same_digest(tmp_path):
    shutil.copytree(PACKAGE_ROOT, tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    assert code_digests(CHECKS, tmp_path / "harness") == code_digests(CHECKS)
    assert code_digests(CHECKS, tmp_path / "harness", tmp_path / "cache") == code_digests(CHECKS)


def test_planning_is_followed_and_does_not_count_what_checks_run():
    reached = CodeGraph().reach(PLANNING_ROOTS, checks=False)
    assert not [one for one in reached if one[0] == MISSING]
    names = {(place, name) for kind, place, name in reached if kind == DEFINITION}
    assert ("harness.compat.checks", "CHECKS") in names
    assert ("harness.plan.keys.keyring", "Keyring") in names
    assert ("harness.compat.checks", "_run_resolve") not in names
    assert planning_digest(PACKAGE_ROOT)


def test_checks_read_the_package_through_the_data_helpers(nodes):
    """Other code that check keys contain and that names the folder of the package makes the bundle or reads
    code for a digest."""
    graph = CodeGraph()
    folder = (DEFINITION, "harness.package", "PACKAGE_ROOT")
    users = {
        node[1]
        for node in set().union(*nodes.values())
        if node[0] == DEFINITION and folder in {one for _marked, one in graph.neighbours(node)}
    }
    assert users <= {
        "harness.builds.cell.cell_command",
        "harness.builds.cell.cell_probe",
        "harness.builds.cell.found_environment",
        "harness.code_graph.reachable_code",
        "harness.code_graph.stored_facts",
        "harness.package",
    }


def test_the_data_that_checks_read_is_in_their_keys(nodes):
    data = {one[1] for found in nodes.values() for one in found if one[0] == DATA}
    data |= {one[1] for one in simulator_nodes(CodeGraph()) if one[0] == DATA}
    folders = {name.rpartition("/")[0] for name in data}
    assert folders >= {
        "compat/lint/rules",
        "convergence/decision/references",
        "convergence/trainer/references",
        "devices/sim/runtime_build/absent",
        "devices/sim/runtime_build/runtime",
        "devices/sim/start/pyacl/acl",
    }
    assert any(name.endswith("entry_points.txt") for name in data)
