"""Whatever a check judged is changed after the check was green. No check may then be green by its stored outcome.

The checks are those of the default profile in the registry, and those of upstreams' test suites. Each declares what it depends on: facets, other checks,
releases, an environment. For each kind of dependency this module has changes of the world, and a test fails for a
check with a dependency that has none.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from altered_files import ALTERED, edit_unseen, in_packages, standard_library
from small_world import TORCH, World, hunted_checks, in_cell, small_world, stand_in

from harness.check import Check
from harness.ledger.store import Ledger
from harness.outcome import Failure, Outcome, State, Tier
from harness.package import PACKAGE_ROOT
from harness.plan.keys.code_digests import code_of_checks, simulator_digest
from harness.plan.keys.facets import FACETS
from harness.plan.keys.key import key_changes, question_digest
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan
from harness.settings import load_settings
from harness.upstream_tests.suite_check import SUITE_CHECK_NAMES
from harness.workspace.planning import open_plan as open_plan_module
from harness.workspace.planning.open_plan import open_plan

no_reason = Check.__dataclass_fields__["holds"].default
CHECKS = {check.name: check for check in hunted_checks()}
GREEN = "pass"
DAY_S = 86400.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with small_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture
def green(world: World) -> World:
    """The world in which every check passed, and the next run reuses every outcome."""
    if not world.is_green:
        first = world.run()
        assert first.code == 0, first.output
        if first.why:
            assert not world.run().why
        assert first.status == dict.fromkeys(CHECKS, GREEN)
        world.is_green = True
    return world


def planned(world: World, package_root: Path | None = None) -> Plan:
    flags = {"cache": str(world.cache)}
    return open_plan(load_settings(flags, os.environ, world.root), package_root=package_root).plan


def edit(text: str, before: str, after: str) -> str:
    assert before in text
    return text.replace(before, after, 1)


# Facets: what the matrix, the patches and this host say.


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of a file of the checkout that changes the facet."""

    facet: str
    file: str = "matrix.yaml"
    before: str
    after: str


PIN = "pins:\n  - {when: {verl: '*'}, require: torch>=2, reason: made up, source: made up}\nprofiles:\n"
OVERRIDE = "overrides:\n  - {when: {verl: '*'}, of: verl, override: torch, reason: made up, source: made up}\nprofiles:\n"
EDITS = (
    Edit(facet="constraints", before="same_as: torch,", after="same_as: verl,"),
    Edit(facet="device", before="cann: 8.5.0", after="cann: 8.3.RC1"),
    Edit(facet="device", before="soc_name: Ascend910B3", after="soc_name: Ascend910B4"),
    Edit(
        facet="patches[verl]", file="patches/verl/empty-mean/all.patch", before="return 0", after="return 1"
    ),
    Edit(
        facet="patches[vllm_ascend]",
        file="patches/vllm_ascend/empty-mean/all.patch",
        before="return 0",
        after="return 1",
    ),
    Edit(
        facet="patches[others]", file="patches/vllm/empty-mean/all.patch", before="return 0", after="return 1"
    ),
    Edit(facet="pins", before="profiles:\n", after=PIN),
    Edit(facet="pins", before="profiles:\n", after=OVERRIDE),
    Edit(facet="pins", before="torch: 2.13.0", after="torch: 2.12.0"),
    Edit(facet="platform", before="python: host", after="python: 3.9"),
    Edit(facet="recipe", before="trainer.nnodes: 1", after="trainer.nnodes: 2"),
    Edit(facet="recipe", before="cards: 1", after="cards: 2"),
    Edit(facet="suites", before="paths: [tests/npu]", after="paths: [tests/other]"),
    Edit(facet="torch_npu", before="torch_npu: 2.13.0", after="torch_npu: 2.12.0"),
    Edit(facet="verl_tree", before="verl: 0.9.1", after="verl: 0.9.0"),
    Edit(facet="versions", before="cann: 8.5.0", after="cann: 8.3.RC1"),
    Edit(facet="vllm_ascend", before="vllm_ascend: 0.18.0", after="vllm_ascend: 0.18.1"),
)


# What checks can depend on. Each test here fails for a new kind of dependency until this module changes it.


def test_every_facet_is_changed() -> None:
    """Except for one that is empty in every cell of a matrix: it has what `inspect` reads in a list."""
    assert {edit.facet for edit in EDITS} == set(FACETS) - {"paired"}


def test_every_check_that_others_need_is_measured_with_another_result() -> None:
    """A new archive on the index gives another lock, and with it another environment; a patch is a facet."""
    assert {need for check in all_checks() for need in check.inputs} == {"resolve", "patches", "environment"}


def test_every_check_that_describes_files_of_this_host_has_them_altered() -> None:
    """Those of test suites describe what a tag of a clone names."""
    altered = {check.name for check in all_checks() if check.altered}
    assert altered == {"environment"} | SUITE_CHECK_NAMES


def test_every_check_that_waits_for_something_is_asked_again_when_it_is_there() -> None:
    """They are for outcomes that are not green, except that an environment may be gone."""
    waits = {check.name for check in all_checks() if check.holds is not no_reason}
    assert waits == {"resolve", "lint", "patches", "npu-ops", "api", "environment"} | SUITE_CHECK_NAMES


def test_what_a_stand_in_replaces_depends_on_nothing_but_its_key_and_its_environment() -> None:
    """Except for test suites, whose stand-ins ask for their tag as the checks do."""
    for check in all_checks():
        if in_cell(check):
            assert check.inputs == ("environment",), check.name
            assert check.holds is no_reason or check.name in SUITE_CHECK_NAMES, check.name
            assert not check.altered or check.name in SUITE_CHECK_NAMES, check.name
            assert (stand_in(check).holds, stand_in(check).altered) == (check.holds, check.altered)
            assert not reads_releases(check), check.name


@pytest.mark.parametrize("name", CHECKS)
def test_parameters_are_in_the_key(name: str) -> None:
    check = CHECKS[name]
    other = replace(check, params={**check.params, "steps": 99})
    assert question_digest(other, "code") != question_digest(check, "code")


def changed_parts(world: World, before: Plan, after: Plan) -> dict[str, list[str]]:
    """Check -> the parts of its key that changed. No changed key may have an outcome."""
    was = {task.check.name: task for task in before.tasks.values()}
    now = {task.check.name: task for task in after.tasks.values()}
    with Ledger.open(world.state) as ledger:
        changed = [name for name, task in now.items() if task.key != was[name].key]
        assert not ledger.get_many(now[name].key for name in changed)
    return {
        name: [part.part for part in key_changes(was[name].record(), now[name].record())] for name in changed
    }


@pytest.mark.parametrize("change", EDITS, ids=lambda change: f"{change.facet}-{change.after[:12]}")
def test_a_changed_facet_is_no_longer_answered(green: World, change: Edit) -> None:
    before, file = planned(green), green.root / change.file
    text = file.read_text()
    file.write_text(edit(text, change.before, change.after))
    try:
        parts = changed_parts(green, before, planned(green))
    finally:
        file.write_text(text)
    for check in CHECKS.values():
        if change.facet in check.facets:
            named = [part for part in parts.get(check.name, ()) if part.startswith(f"facets.{change.facet}")]
            assert named, (check.name, parts.get(check.name))


@pytest.mark.parametrize("changed", ["python", "architecture"])
def test_another_python_or_architecture_of_the_host_is_not_answered(
    green: World, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = planned(green)
    if changed == "python":
        monkeypatch.setattr(
            open_plan_module, "sys", SimpleNamespace(version_info=SimpleNamespace(major=3, minor=99))
        )
    else:
        monkeypatch.setattr(open_plan_module.platform, "machine", lambda: "riscv64")
    parts = changed_parts(green, before, planned(green))
    for check in CHECKS.values():
        if "platform" in check.facets:
            assert any(part.startswith("facets.platform") for part in parts[check.name]), check.name


# Code and data files.


def test_changed_code_data_and_simulator_are_not_answered(tmp_path: Path) -> None:
    """Every data file gets another content, and so does what runs when the module of a check is imported."""
    copy = tmp_path / "harness"
    shutil.copytree(PACKAGE_ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = code_of_checks(CHECKS.values(), copy)
    data = {name for code in before.values() for name in code.modules if (copy / name).is_file()}
    assert data
    for name in data:
        (copy / name).write_bytes((copy / name).read_bytes() + b"\n")
    after = code_of_checks(CHECKS.values(), copy)
    for name, code in before.items():
        read = data & code.modules.keys()
        assert all(after[name].modules[file] != code.modules[file] for file in read)
        assert (after[name].digest != code.digest) == bool(read), name
    for check in CHECKS.values():
        module = copy.parent / Path(*check.run.__module__.split("."))
        source = module.with_suffix(".py")
        source.write_text(source.read_text() + "\nraise SystemExit\n")
    last = code_of_checks(CHECKS.values(), copy)
    assert not [name for name in CHECKS if last[name].digest == after[name].digest]
    simulator = simulator_digest(copy)
    runtime = next((copy / "devices/sim/runtime_build/runtime").glob("*.c"))
    runtime.write_text(runtime.read_text() + "\n/* another device */\n")
    assert simulator_digest(copy) != simulator


# Environments: what commands find in the folders that a stored outcome describes.


def in_environment() -> list[str]:
    return [name for name, check in CHECKS.items() if name == "environment" or "environment" in check.inputs]


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_environment_is_stale_and_so_is_what_ran_in_it(green: World, name: str) -> None:
    with ALTERED[name].made(green.environment()) as path:
        told, shown = green.why_rerun(), green.status()
    for check in in_environment():
        assert not told[check]["reused"], check
        assert path.name in told[check]["reason"], told[check]
        assert shown[check] == "stale", check
    assert green.status() == dict.fromkeys(CHECKS, GREEN)


def test_a_run_measures_again_what_ran_in_an_altered_environment(green: World) -> None:
    file = in_packages("verl/core.py")(green.environment())
    edit_unseen(file)
    asked = green.run()
    assert asked.code == 0, asked.output
    assert asked.why.keys() == set(in_environment())
    assert all("verl/core.py" in why for why in asked.why.values())


def test_a_removed_environment_is_built_again_for_the_next_task(green: World) -> None:
    home = Path(green.environment().prefix).parent
    shutil.rmtree(home)
    asked = green.run("--check", "loss", "--fresh")
    assert asked.code == 0, asked.output
    assert "is gone" in asked.why["environment"]


@pytest.mark.parametrize("removed", [True, False])
def test_outcomes_rest_on_what_the_environment_contained(green: World, removed: bool) -> None:
    """It is built again alone: first with the same interpreter, then with another one."""
    home, interpreter = Path(green.environment().prefix).parent, standard_library(green.environment())
    shutil.rmtree(home)
    assert green.run("--check", "environment", "--fresh").code == 0
    asked = green.run()
    assert not asked.why, "the same packages and interpreter"
    edit_unseen(interpreter / "random.py")
    if removed:
        shutil.rmtree(home)
    again = green.run("--check", "environment", "--fresh")
    assert again.code == 0, again.output
    told = green.why_rerun()
    asked = green.run()
    assert asked.code == 0, asked.output
    for check in set(in_environment()) - {"environment"}:
        assert not told[check]["reused"], check
        assert "environment has a new outcome" in asked.why.get(check, ""), (check, asked.why)


# Releases: what the index publishes, and what is stored of it in the cache.


def reads_releases(check: Check) -> bool:
    shapes = check.measurements.shapes if check.measurements else ()
    return any(hasattr(shape, "archives_read") or "archives_read" in fields_of(shape) for shape in shapes)


def fields_of(shape: type) -> set[str]:
    return {field.name for field in fields(shape)}


def readers(world: World, package: str) -> set[str]:
    """The checks that read the archive of this package."""
    return {
        name
        for name, outcome in world.outcomes().items()
        if any(one["package"] == package for one in outcome.measurements.get("archives_read", ()))
    }


def test_replaced_archives_are_not_answered(green: World) -> None:
    packages = ("verl", "torch-npu", "vllm-ascend")
    reading = set.union({"resolve"}, *(readers(green, package) for package in packages))
    assert reading == {name for name, check in CHECKS.items() if reads_releases(check)}
    for package in packages:
        green.replace_wheel(package)
    asked = green.run()
    assert asked.code == 0, asked.output
    assert all(".whl" in asked.why[name] or "new outcome" in asked.why[name] for name in reading), asked.why
    # The lock is another one, and so is everything that is built from it.
    assert set(in_environment()) <= asked.why.keys(), asked.why


def test_an_altered_cache_changes_no_verdict(green: World) -> None:
    """The stored outcomes stay right, and whatever is measured again does not use what was altered.

    Environments and their lists of files are altered elsewhere: then outcomes are stale.
    """
    before = green.outcomes()
    kinds = set()
    for file in sorted(green.cache.rglob("*")):
        kind = file.relative_to(green.cache).parts[0]
        if kind not in {"cells", "devices"} and file.is_file() and file.stat().st_size:
            kinds.add(kind)
            middle, data = file.stat().st_size // 2, bytearray(file.read_bytes())
            data[middle] ^= 1
            file.chmod(0o644)
            file.write_bytes(data)
    assert {"sources", "pairs", "code", "bundle"} <= kinds
    told = green.why_rerun()
    assert all(told[name]["reused"] for name in CHECKS), told
    asked = green.run("--fresh")
    assert asked.code == 0, asked.output
    after = green.outcomes()
    for name, outcome in before.items():
        if CHECKS[name].tier is Tier.STATIC:
            assert without_times(after[name]) == without_times(outcome), name


def without_times(outcome: Outcome) -> dict[str, object]:
    return {name: value for name, value in outcome.measurements.items() if "seconds" not in name}


# Tags of upstreams' repositories, which name the tests of a suite.


def test_a_tag_that_names_another_commit_is_not_answered(green: World) -> None:
    green.tag_suites()
    told, shown = green.why_rerun(), green.status()
    for check in SUITE_CHECK_NAMES:
        assert not told[check]["reused"], check
        assert "was moved" in told[check]["reason"], told[check]
    assert {name for name, status in shown.items() if status != GREEN} <= SUITE_CHECK_NAMES, shown
    asked = green.run()
    assert asked.code == 0, asked.output
    assert asked.why.keys() == SUITE_CHECK_NAMES


# The ledger and its files.


def test_altered_files_of_outcomes_are_not_used(green: World) -> None:
    outcomes = {name: outcome for name, outcome in green.outcomes().items() if outcome.artifacts}
    assert {"resolve", "patches"} <= outcomes.keys()
    with Ledger.open(green.state) as ledger:
        for outcome in outcomes.values():
            for ref in outcome.artifacts:
                file = ledger.artifacts.get(ref)
                if ref.size:
                    file.chmod(0o644)
                    edit_unseen(file)
    asked = green.run()
    assert asked.code == 0, asked.output
    for name in outcomes:
        assert "was altered" in asked.why.get(name, ""), (name, asked.why)


@contextmanager
def kept_ledger(world: World) -> Iterator[Path]:
    """The ledger's file; afterwards it is as before."""
    file = world.state / "ledger.sqlite3"
    copy = world.root / "before.sqlite3"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    try:
        yield file
    finally:
        for left in world.state.glob("ledger.sqlite3*"):
            left.unlink()
        copy.rename(file)


@pytest.mark.parametrize("statement", ["UPDATE outcomes SET body = body || ' '", "DELETE FROM outcomes"])
def test_altered_and_removed_rows_are_no_outcomes(green: World, statement: str) -> None:
    with kept_ledger(green) as file:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(statement)
        told, shown = green.why_rerun(), green.status()
    assert not [name for name in CHECKS if told[name]["reused"]]
    assert GREEN not in shown.values(), shown


@pytest.mark.parametrize("state", [State.TIMEOUT, State.ERROR])
def test_a_later_failure_counts_even_if_the_clock_was_set_back(green: World, state: State) -> None:
    outcomes = green.outcomes()
    failed = [
        replace(
            outcomes[name],
            state=state,
            measurements={},
            artifacts=(),
            failure=Failure(kind="Crash", message="it failed later"),
            started=outcomes[name].started - DAY_S,
            finished=outcomes[name].finished - DAY_S,
        )
        for name in CHECKS
    ]
    with kept_ledger(green):
        with Ledger.open(green.state) as ledger:
            for outcome in failed:
                ledger.record(outcome)
        told = green.why_rerun()
    assert not [name for name in CHECKS if told[name]["reused"]]


def test_what_ran_in_an_environment_that_cannot_be_built_any_more_is_not_green(green: World) -> None:
    green.replace_wheel("torch", {"torch/__init__.py": "raise ImportError\n"})
    asked = green.run()
    try:
        assert asked.code == 1, asked.output
        assert asked.status["environment"] == "fail"
        shown = {name: asked.status[name] for name, check in CHECKS.items() if "environment" in check.inputs}
        assert GREEN not in shown.values(), shown
    finally:
        green.replace_wheel("torch", {"torch/__init__.py": TORCH})
