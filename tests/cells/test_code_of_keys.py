"""All code that the checks of the default profile run is in their keys: modules, functions and data files.

Each check runs once on one simulated cell, with a recorder in this process and in every program that it starts.

The test was seen to fail: with an analyser that ignores imports inside functions, `lint` and `npu-ops` fail because
of functions of `compat.lint.hydra_config` and `builds.ownership.cache_use`, among others. `environment` failed
until `JobSite`, and with it the artifact store, became part of every key.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, not_built

from harness.builds.cell.cell_command import cell_launcher
from harness.code_graph.module_facts import ModuleFacts
from harness.code_graph.reachable_code import (
    AS_PROGRAM,
    DATA,
    DEFINITION,
    IGNORED_SUFFIXES,
    ON_IMPORT,
    CodeGraph,
    Node,
)
from harness.ledger.store import Ledger
from harness.outcome import Outcome, State
from harness.plan.keys.code_digests import check_nodes, simulator_nodes
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.run.jobs.task_context import RunContext
from harness.settings import load_settings
from harness.workspace.planning.open_plan import open_plan

TRACER = Path(__file__).parent / "code_tracer"
FACETS = {check.name: check.facets for check in all_checks()}


@pytest.fixture(scope="session")
def planned() -> dict[str, tuple[Task, dict[str, Outcome]]]:
    """Check name -> its task on a simulated cell, with the outcomes that it needs."""
    settings = load_settings({}, os.environ, REPOSITORY)
    found: dict[str, tuple[Task, dict[str, Outcome]]] = {}
    if not (settings.path("state") / "ledger.sqlite3").is_file():
        not_built("no cells are")
    plan = open_plan(settings).plan
    # The newest verl first: it has every check.
    cells = sorted(
        plan.cells, key=lambda cell: (cell.device == "sim", cell.axes.get("verl", "")), reverse=True
    )
    with Ledger.open(settings.path("state")) as ledger:
        for cell in cells:
            keys = {
                entry.check: entry.key for entry in plan.entries if entry.cell_id == cell.id and entry.key
            }
            for name, key in keys.items():
                task = plan.tasks[key]
                inputs = {need: ledger.get(keys[need]) for need in task.check.needs if need in keys}
                stored = {need: one for need, one in inputs.items() if one and one.state is State.COMPLETED}
                if name not in found and set(stored) == set(task.check.needs):
                    found[name] = (task, stored)
    missing = {entry.check for entry in plan.entries if entry.key} - found.keys()
    if missing:
        not_built(f"the outcomes that {', '.join(sorted(missing))} need are not")
    return found


@functools.cache
def code_in_keys() -> tuple[CodeGraph, dict[str, set[Node]], set[Node]]:
    graph = CodeGraph()
    return graph, dict(check_nodes(graph, all_checks())), simulator_nodes(graph)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Records the calls of this process while it is active, and the calls of programs that tasks start."""
    folder = tmp_path / "trace"
    folder.mkdir(mode=0o777)
    spec = importlib.util.spec_from_file_location("code_tracer", TRACER / "sitecustomize.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.Recorder(str(folder))
    found.active = False
    found.folder = folder
    sys.addaudithook(found.audit)
    run = RunContext.command

    def run_recorded(self: RunContext, argv: Any, *, env: Any = None, **options: Any) -> Any:
        given = dict(env or {})
        path = [str(TRACER), *filter(None, [given.get("PYTHONPATH", "")])]
        given |= {"PYTHONPATH": os.pathsep.join(path), "NPU_MATRIX_TRACE": str(folder)}
        return run(self, argv, env=given, **options)

    monkeypatch.setattr(RunContext, "command", run_recorded)
    yield found
    found.active = False


def outside_key(check: str, lines: set[str]) -> list[str]:
    """The recorded modules, functions and files that are not in the key of the check."""
    graph, nodes, simulated = code_in_keys()
    inside = nodes[check] | (simulated if "device" in FACETS[check] else set())
    wrong = []
    for line in sorted(lines):
        kind, rest = line.split(" ", 1)
        path, _, number = rest.rpartition(" ") if kind == "call" else (rest, "", "0")
        place = path.rpartition("/harness/")[2]
        name = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = "harness" if place == "__init__.py" else f"harness.{name}"
        if (DATA, place, "") in inside:
            # All bytes of the file are in the key, even if it is a Python file.
            continue
        facts = graph.facts(module) if place.endswith(".py") else None
        if kind == "open":
            file = graph.root / place
            ignored = facts or "__pycache__" in place or file.suffix in IGNORED_SUFFIXES or not file.is_file()
            if not ignored:
                wrong.append(line)
        elif facts is None:
            wrong.append(line)
        elif kind == "module":
            if (ON_IMPORT, module, "") not in inside:
                wrong.append(line)
        elif not any(node in inside for node in nodes_at(module, facts, int(number))):
            wrong.append(line)
    return wrong


def nodes_at(module: str, facts: ModuleFacts, line: int) -> list[Node]:
    """The definitions that contain a line. Code outside of definitions runs on import or as a program."""
    found = [
        (DEFINITION, module, name)
        for name, one in facts.definitions.items()
        if one.first_line <= line <= one.last_line
    ]
    return found or [(ON_IMPORT, module, ""), (AS_PROGRAM, module, "")]


@pytest.mark.parametrize("name", FACETS)
def test_what_a_check_runs_is_in_its_key(name, planned, recorder, tmp_path):
    if name not in planned:
        pytest.skip("no cell of the default profile runs this check")
    task, inputs = planned[name]
    settings = load_settings({}, os.environ, REPOSITORY)

    def run(context: Any) -> Any:
        recorder.active = True
        threading.settrace(recorder.trace)
        sys.settrace(recorder.trace)
        try:
            return task.check.run(context)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            recorder.active = False

    # Recording every call makes programs slower.
    check = replace(task.check, run=run, timeout_s=task.check.timeout_s * 5)
    cache = settings.cache
    # The artifacts of needed checks are copied from the state of the main job, so that nothing is written there.
    shutil.copytree(settings.path("state") / "artifacts", tmp_path / "state" / "artifacts")
    site = JobSite(
        root=REPOSITORY, state=tmp_path / "state", cache=cache, environ=os.environ, cell=cell_launcher(cache)
    )
    outcome = execute(Job(task=replace(task, check=check), inputs=inputs), site)
    assert outcome.state is State.COMPLETED, outcome.failure
    measurements = task.check.read(outcome)
    sys.settrace(recorder.trace)
    try:
        task.check.judge(measurements, task.check.params)
        task.check.holds(measurements, outcome)
        task.check.applies(task.facets)
    finally:
        sys.settrace(None)
    lines = {line for file in recorder.folder.iterdir() for line in file.read_text().splitlines()}
    calls = [line for line in lines if line.startswith("call")]
    assert len(calls) > 5, "nothing was recorded"
    if task.check.device:
        assert len(list(recorder.folder.iterdir())) > 1, "no program of the cell was recorded"
    wrong = outside_key(name, lines)
    assert not wrong, "the check runs code that is not in its key: harness/code_graph must follow it"
