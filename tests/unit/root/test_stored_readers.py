"""No flipped bit in stored data changes what a reader returns: it returns the same, or refuses the file.

`stored_readers` finds every function that parses. Each needs an entry below: a probe that flips bits in what it
reads, or the reason why nothing that it reads outlives the command or decides a verdict.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from stored_readers import find_readers

from harness.builds.cell.environment_files import FINISHED, earlier_manifest, store_manifest
from harness.builds.installed.file_manifest import WatchedFolder, make_manifest
from harness.code_graph.stored_facts import read_json, write_json
from harness.compat.uses.analysis_cache import SqliteCache
from harness.convergence.decision import reference_set
from harness.convergence.trainer import record_trainer
from harness.digest import digest_bytes
from harness.errors import HarnessError
from harness.evidence import DeviceFacts
from harness.numerics.loss.cases.loss_case import read_npz, write_npz
from harness.patchstack.apply.stack_install import JOURNAL, _write_journal, finish_install
from harness.run.scheduling.run_lock import lock_holder, run_lock
from harness.upstream_tests.in_cell.file_results import Ended, FileResult, TestResult
from harness.upstream_tests.result_cache import ResultCache, StoredResult

FLIPS = 60
LEDGER = "tests/unit/ledger/test_damaged_ledger.py"
ARTIFACT = "an artifact, which is compared with its digest: tests/unit/ledger/test_ledger_artifacts.py"
WRITTEN_BY_USERS = (
    "a file that users write or pass and that keys or messages name; nothing of ours is stored there"
)
SHIPPED = "a file of this package or of a verified archive"
SAME_TASK = "a file in the folder of a task, written by the program that the task has just run"
PROCESS = "the arguments, the environment or the output of a process that runs now"
HOST = "settings of other programs on this host"
ANSWER = "the answer of a server to the request that was just made"
COMMITTED = "a file of the repository that a team commits, reviews and may edit"
IN_MEMORY = "a text or an object that its caller has verified"


@dataclass(frozen=True)
class Probe:
    """write: make the file in a folder. read: what a reader says of it; None or {} if it refuses the file."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]


def write_environment(folder: Path) -> Path:
    (folder / "venv").mkdir()
    (folder / "venv" / "module.py").write_text("x = 1\n")
    stored = store_manifest(make_manifest([WatchedFolder(path=str(folder / "venv"))]), folder)
    return Path(stored.manifest)


def write_finished(folder: Path) -> Path:
    write_environment(folder)
    return folder / FINISHED


def write_code_facts(folder: Path) -> Path:
    write_json(
        folder / "facts.json", {"reached": {"check": {"files": ["a.py", "b.py"], "digest": "ab" * 32}}}
    )
    return folder / "facts.json"


def write_analyses(folder: Path) -> Path:
    with SqliteCache(folder / "files.sqlite", "code") as cache:
        cache.put({f"key {number}": f'{{"missing": ["torch.name{number}"]}}' * 9 for number in range(90)})
    return folder / "files.sqlite"


def read_analyses(file: Path) -> dict[str, str]:
    with SqliteCache(file, "code") as cache:
        found = cache.get([f"key {number}" for number in range(90)])
    with SqliteCache(file, "code") as cache:
        cache.put({"after": "the damage"})
    with SqliteCache(file, "code") as cache:
        # A damaged cache repairs itself at the latest when it is used once more.
        assert cache.get(["after"]) or not file.exists()
    return found


def copy_reference(folder: Path) -> Path:
    return Path(shutil.copy(min(reference_set.FOLDER.glob("*.json")), folder))


def copy_record(folder: Path) -> Path:
    return Path(shutil.copy(min(record_trainer.FOLDER.glob("*.json")), folder))


def write_arrays(folder: Path) -> Path:
    write_npz(folder / "x.npz", {"format": "f", "seed": 1}, {"loss": np.arange(50.0), "mask": np.ones(9)})
    return folder / "x.npz"


def read_arrays(file: Path) -> object:
    index, arrays = read_npz(file, "f")
    return index, {name: array.tolist() for name, array in arrays.items()}


def write_lock_holder(folder: Path) -> Path:
    with run_lock(folder, command=["npu-matrix", "run"], wait=False):
        (source,) = folder.glob("run.lock?*")
        content = source.read_bytes()
    source.write_bytes(content)
    return source


def write_install(folder: Path) -> Path:
    for name in ("a.py", "b.py", "c.py"):
        (folder / name).write_text(name)
    (folder / "a.py.npu-matrix-new").write_bytes(b"new")
    _write_journal(folder, {"a.py": digest_bytes(b"new"), "b.py": None})
    return folder / JOURNAL


def read_install(journal: Path) -> object:
    folder = journal.parent
    finish_install(folder)
    found = {
        name: (folder / name).read_text() for name in ("a.py", "b.py", "c.py") if (folder / name).exists()
    }
    (folder / "a.py").write_text("a.py")
    (folder / "b.py").write_text("b.py")
    (folder / "c.py").write_text("c.py")
    (folder / "a.py.npu-matrix-new").write_bytes(b"new")
    return found


def write_test_result(folder: Path) -> Path:
    test = TestResult(id="test_a.py::test_b", ended=Ended.FAILED, message="AssertionError: 1 != 2")
    result = FileResult(path="test_a.py", tests=(test,), seconds=1.5)
    device = DeviceFacts(device="npu:0", kind="npu", simulated=True)
    ResultCache(folder).write("ab" * 32, StoredResult(result=result, device=device))
    return folder / f"{'ab' * 32}.json"


READERS: dict[str, Probe | str] = {
    "builds/cell/cell_probe.py:_probe_patched": SAME_TASK,
    "builds/cell/cell_probe.py:probe_cell": SAME_TASK,
    "builds/cell/environment_files.py:earlier_manifest": Probe(
        write_finished, lambda file: earlier_manifest(file.parent)
    ),
    "builds/cell/environment_spec.py:_patched_input": ARTIFACT,
    "builds/cell/found_environment.py:_probe": SAME_TASK,
    "builds/cell/interpreter_files.py:ask_interpreter": PROCESS,
    "builds/installed/found_python.py:changed_files": PROCESS,
    "builds/installed/found_python.py:read_found": PROCESS,
    "builds/engines/container_run.py:main": PROCESS,
    "builds/installed/file_manifest.py:_read": "compared with its digest; the probe of read_manifest",
    "builds/installed/file_manifest.py:read_manifest": Probe(
        write_environment, lambda file: earlier_manifest(file.parent)
    ),
    "cell_program/built_environment.py:read_cell_device": IN_MEMORY,
    "cell_program/found_packages.py:_package": HOST,
    "cell_program/torch_device.py:_published": PROCESS,
    "code_graph/stored_facts.py:read_json": Probe(write_code_facts, read_json),
    "compat/api/stated_consumers.py:entry_modules": SHIPPED,
    "compat/lint/command_options.py:_is_json": WRITTEN_BY_USERS,
    "compat/lint/hydra_compose.py:_groups": SHIPPED,
    "compat/lint/hydra_loader.py:of": IN_MEMORY,
    "compat/lint/python_program.py:runtime_variables": WRITTEN_BY_USERS,
    "compat/lint/ruleset.py:_read": SHIPPED,
    "compat/lint/shell/syntax_tree.py:_parsed": PROCESS,
    "compat/surface/operator_schema.py:read_operators": SHIPPED,
    "compat/uses/analysis_cache.py:__enter__": Probe(write_analyses, read_analyses),
    "compat/uses/analysis_cache.py:load": IN_MEMORY,
    "compat/uses/analysis_process.py:analyse": SAME_TASK,
    "compat/uses/analysis_process.py:serve": SAME_TASK,
    "convergence/decision/reference_set.py:load": Probe(copy_reference, reference_set.load),
    "convergence/inference/inference_check.py:run": SAME_TASK,
    "convergence/recipes/recipe_launch.py:render": IN_MEMORY,
    "convergence/recipes/recipe_launch.py:twin_of": IN_MEMORY,
    "convergence/telemetry/series.py:_record": WRITTEN_BY_USERS,
    "convergence/telemetry/verl_log.py:_json": WRITTEN_BY_USERS,
    "convergence/trainer/judging/reference_comparison.py:read_live_series": SAME_TASK,
    "convergence/trainer/record_trainer.py:load": Probe(copy_record, record_trainer.load),
    "convergence/trainer/record_trainer.py:main": WRITTEN_BY_USERS,
    "convergence/trainer/supervision/process_stacks.py:of_py_spy": PROCESS,
    "convergence/trainer/supervision/zygote.py:_fork": PROCESS,
    "convergence/trainer/trainer_program.py:_processes": SAME_TASK,
    "convergence/trainer/trainer_runs.py:read_run": SAME_TASK,
    "convergence/trainer/verl_extensions/verl_plugin.py:write_facts": PROCESS,
    "convergence/trainer/vllm_check.py:_limits": SAME_TASK,
    "devices/cards/card_leases.py:_read": "only shown; the kernel's lock decides whether a card is leased",
    "devices/cards/driver_files.py:_registered": HOST,
    "devices/stand_in/host_faults.py:_lost_card": "a file of a stand-in host, which this package has just written",
    "devices/stand_in/host_faults.py:_without_node": "a file of a stand-in host, which this package has just written",
    "devices/stand_in/host_faults.py:_with_node": "a file of a stand-in host, which this package has just written",
    "devices/host/container_service.py:query_engine": PROCESS,
    "devices/sim/faults/fault_spec.py:_json_entries": WRITTEN_BY_USERS,
    "fixtures/cell_files.py:changed_files": "by its digest: tests/unit/fixtures/test_cell_files.py",
    "fixtures/environment_probe.py:main": SAME_TASK,
    "fixtures/patch_probe.py:main": SAME_TASK,
    "fixtures/plugin.py:patched": SAME_TASK,
    "fixtures/runtime_patches.py:main": SAME_TASK,
    "ledger/attestation/statement.py:read_statement": "signed: tests/unit/ledger/test_signed_outcomes.py",
    "ledger/database.py:_connect": LEDGER,
    "ledger/ledger_schema.py:versions_by_schema": IN_MEMORY,
    "ledger/outcome_record.py:outcome_uid": LEDGER,
    "ledger/outcome_record.py:read_outcome": LEDGER,
    "ledger/run_record.py:read_plan": LEDGER,
    "ledger/run_record.py:read_run": LEDGER,
    "ledger/salvage.py:read": LEDGER,
    "ledger/salvage.py:salvage": LEDGER,
    "matrix/document/form.py:_committed_schema": SHIPPED,
    "measurements.py:read_shape": IN_MEMORY,
    "numerics/actor/actor_check.py:_run_path": SAME_TASK,
    "numerics/calibration/calibration_check.py:_constants": SAME_TASK,
    "numerics/loss/cases/loss_case.py:read_npz": Probe(write_arrays, read_arrays),
    "numerics/loss/release_objectives.py:known_losses": SHIPPED,
    "numerics/twin/twin_check.py:run": SAME_TASK,
    "numerics/twin/twin_program.py:main": PROCESS,
    "numerics/twin/twin_program.py:work": PROCESS,
    "patchstack/apply/stack_install.py:finish_install": Probe(write_install, read_install),
    "patchstack/rebase/rebase_kit.py:_check": WRITTEN_BY_USERS,
    "patchstack/runtime/target_registry.py:read_registry": WRITTEN_BY_USERS,
    "report/formats/json_export.py:json_line": IN_MEMORY,
    "report/pages/chinese.py:_words": SHIPPED,
    "report/pages/chinese.py:reason_words": SHIPPED,
    "report/pages/html.py:_pages_words": SHIPPED,
    "report/formats/json_export.py:run_of_report": IN_MEMORY,
    "report/model/patch_facts.py:_read": WRITTEN_BY_USERS,
    "report/model/survival_facts.py:_read": WRITTEN_BY_USERS,
    "sources/issue_states.py:ask_issue_state": ANSWER,
    "sources/issue_states.py:read_issue_states": COMMITTED,
    "rollout/generation/generation_checks.py:_reference": SAME_TASK,
    "rollout/generation/generation_checks.py:run_generation": SAME_TASK,
    "rollout/generation/generation_checks.py:run_plumbing": SAME_TASK,
    "rollout/generation/reference_log_probs.py:read_cases": SAME_TASK,
    "rollout/contact/contact_checks.py:_measured": SAME_TASK,
    "rollout/contact/hosts_check.py:run": SAME_TASK,
    "rollout/imports/import_checks.py:run": SAME_TASK,
    "rollout/imports/import_program.py:_forked": PROCESS,
    "run/programs/supervise.py:_read_request": PROCESS,
    "run/scheduling/run_lock.py:lock_holder": "only shown; tested below",
    "serialisation.py:load": IN_MEMORY,
    "serialisation.py:to_json": IN_MEMORY,
    "settings.py:_read_file": WRITTEN_BY_USERS,
    "sources/packages/index_lookup.py:files": SAME_TASK,
    "sources/packages/project_file.py:read_project": SHIPPED,
    "sources/packages/setup_config.py:read_setup_config": SHIPPED,
    "sources/secrets/credential_text.py:_json_members": WRITTEN_BY_USERS,
    "sources/packages/uv_config.py:_read": HOST,
    "sources/packages/wheel_variants.py:read_variants": ANSWER,
    "verdict/triage/catalogue.py:_read": WRITTEN_BY_USERS,
    "compat/lint/dry_run/followed_engine.py:_mapping": WRITTEN_BY_USERS,
    "compat/lint/script_facts.py:_ray_cards": WRITTEN_BY_USERS,
    "compat/lint/serving/server_parser.py:_join": WRITTEN_BY_USERS,
    "compat/lint/serving/server_parser.py:_json": WRITTEN_BY_USERS,
    "verdict/triage/code_tables.py:_yaml": SHIPPED,
    "verdict/triage/log_record.py:_fields": WRITTEN_BY_USERS,
    "compat/knowledge/pack_file.py:__init__": "by digests: tests/unit/compat/test_surface_pack.py",
    "compat/knowledge/pack_file.py:definitions": "by digests: tests/unit/compat/test_surface_pack.py",
    "compat/knowledge/pack_file.py:package": "by digests: tests/unit/compat/test_surface_pack.py",
    "compat/knowledge/pack_file.py:write_pack": IN_MEMORY,
    "compat/knowledge/raised_messages.py:from_line": "by digests: tests/unit/compat/test_surface_pack.py",
    "sources/packages/index_listing.py:listed_releases": ANSWER,
    "compat/patched_sources.py:patch_texts": "facets of the plan, which the key names",
    "compat/patched_sources.py:unread_patches": "facets of the plan, which the key names",
    "compat/inspection/distributions.py:_direct_url": WRITTEN_BY_USERS,
    "compat/inspection/environments.py:interpreter_installation": PROCESS,
    "compat/inspection/image_archive.py:_json": WRITTEN_BY_USERS,
    "workspace/execution/reference_recording.py:_trainer_set": SAME_TASK,
    "workspace/execution/reference_recording.py:_finished_run": "sealed: tests/unit/root/test_cache_seal.py",
    "workspace/results/foreign_secrets.py:problem": IN_MEMORY,
    "workspace/planning/covering_plan.py:_earlier": WRITTEN_BY_USERS,
    "workspace/planning/revision_comparison.py:_expectations_there": PROCESS,
    "workspace/planning/revision_comparison.py:_planned_there": PROCESS,
    "devices/sim/refusals/permissive_calls.py:read_permissive_calls": SAME_TASK,
    "devices/stand_in/enter_host.py:mount_host": PROCESS,
    "workspace/execution/rehearsal.py:read_report": PROCESS,
    "workspace/execution/rehearsed_hosts.py:_read": PROCESS,
    "workspace/pins/pinned_versions.py:_always_required": WRITTEN_BY_USERS,
    "upstream_tests/disabled_tests.py:read_disabled": "a file of a commit, whose content its id verifies",
    "upstream_tests/in_cell/run_files.py:_facts_in_child": SAME_TASK,
    "upstream_tests/in_cell/run_files.py:_read_events": SAME_TASK,
    "upstream_tests/in_cell/run_files.py:main": SAME_TASK,
    "upstream_tests/result_cache.py:read": Probe(
        write_test_result, lambda file: ResultCache(file.parent).read("ab" * 32)
    ),
    "upstream_tests/suite_check.py:_store": SAME_TASK,
    "upstream_tests/suite_check.py:_suites": "facets of the plan, which the key names",
    "verdict/suite_known_failures.py:_load": COMMITTED,
}
PROBES = {name: entry for name, entry in READERS.items() if isinstance(entry, Probe)}


def test_every_reader_has_a_probe_or_a_reason() -> None:
    assert find_readers() - READERS.keys() == set()


def test_every_entry_is_for_a_reader_that_exists() -> None:
    assert READERS.keys() - find_readers() == set(), "remove these entries, or rename them with their readers"


def test_a_new_reader_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "import json\ndef known(file):\n    return json.loads(file.read_text())\ndef other(file):\n    return file\n"
    )
    assert find_readers(tmp_path) == {"new.py:known"}


def flips(data: bytes) -> list[tuple[int, bytes]]:
    """Bit and content with this bit flipped, for random bits."""
    bits = range(len(data) * 8)
    chosen = random.Random(11).sample(bits, min(FLIPS, len(bits)))
    return [
        (bit, data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        for bit in chosen
    ]


@pytest.mark.parametrize("name", PROBES)
def test_a_flipped_bit_is_refused_or_changes_nothing(name: str, tmp_path: Path) -> None:
    probe = PROBES[name]
    file = probe.write(tmp_path)
    data = file.read_bytes()
    whole = probe.read(file)
    assert whole, "what is intact is read"
    refused = 0
    for bit, content in flips(data):
        file.write_bytes(content)
        try:
            found = probe.read(file)
        except HarnessError:
            found = None
        refused += found != whole
        assert not found or found == whole or is_part(found, whole), bit
    assert refused


def is_part(found: object, whole: object) -> bool:
    """Whether some entries of a mapping are missing and the others are the same."""
    return isinstance(found, dict) and isinstance(whole, dict) and found.items() <= whole.items()


def test_a_flipped_bit_in_the_name_of_the_process_that_holds_the_lock_ends_no_command(tmp_path: Path) -> None:
    file = write_lock_holder(tmp_path)
    assert "npu-matrix run" in str(lock_holder(tmp_path))
    for _bit, content in flips(file.read_bytes()):
        file.write_bytes(content)
        assert str(lock_holder(tmp_path))
