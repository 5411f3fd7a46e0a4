"""The gate over a small checkout in git, with outcomes recorded by hand: no index, no network, no cell."""

from __future__ import annotations

import json
import time
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from edit_ledger import NEW_PLAN_DIGESTS, edit_ledger
from git_command import git
from patched_checkout import added_line, write_patch

from harness.cli.app import main
from harness.cli.gate_command import command
from harness.cli.plan_command import command as plan_command
from harness.cli.triage_command import command as triage_command
from harness.errors import InputError
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome, State
from harness.patchstack.apply.patch_verdict import MeasuredPatch, PatchVerdict
from harness.patchstack.patch_measurements import PATCHES_FORMAT, PatchesMeasured
from harness.plan.tasks.check_registry import all_checks
from harness.serialisation import dumps
from harness.settings import load_settings
from harness.verdict.expectations import ExpectationList, ExpectationSurvey
from harness.workspace.planning import revision_comparison
from harness.workspace.planning.index_review import IndexReview
from harness.workspace.planning.open_plan import inspect_this_host, open_plan
from harness.workspace.planning.other_host_plans import host_with_chip
from harness.workspace.results import gate_base, gate_comparison

MATRIX = """\
format: 1
axes:
  verl: {{title: verl, scheme: pep440, package: verl, source: a test, repository: "https://example.org/verl"}}
  python: {{title: Python, scheme: python, source: a test}}
  device: {{title: device, scheme: name, source: a test, values: {{sim: {{title: simulated}}, npu: {{title: NPU}}}}}}
  soc: {{title: chip, scheme: name, source: a test, values: {{a2: {{title: A2}}}}}}
profiles:
  default:
    title: a test
    select:
      - product: {{verl: [{versions}]}}
        with: {{python: host, device: {device}}}
{more}
"""
CLEAN = MeasuredPatch(patch="verl/b", verdict=PatchVerdict.CLEAN)
GOOD = PATCHES_FORMAT.write(
    PatchesMeasured(tree="verl 0.9.1", selected=("verl/b",), applies=True, verdicts=(CLEAN,))
)
BAD = PATCHES_FORMAT.write(
    PatchesMeasured(tree="verl 0.9.1", selected=("verl/b",), relations=("verl/b conflicts",), applies=False)
)


def patch_of(value):
    return added_line("verl/core.py", "a = 1", f"b = {value}")


class Repository:
    def __init__(self, root):
        self.root = root
        self.settings = load_settings({}, {}, root)
        self.git("init", "-q", "-b", "main")
        self.write()
        self.commit()
        # The checkout is never the same as the base, but most tests do not change a key.
        (root / "notes.txt").write_text("a file that no key reads\n")

    def git(self, *arguments):
        return git(self.root, *arguments)

    def write(self, value=1, versions="0.6.1, 0.9.1", more="", device="sim"):
        (self.root / "matrix.yaml").write_text(MATRIX.format(versions=versions, more=more, device=device))
        write_patch(self.root / "patches" / "verl" / "b", patch_of(value))

    def commit(self):
        self.git("add", "-A", "matrix.yaml", "patches")
        self.git("commit", "-q", "-m", "x")

    def answer(
        self, measurements, *, only="", state=State.COMPLETED, folder=None, age=0.0, log=b"", keys=None
    ):
        """Record an outcome for every key of today's plan whose cell has `only` in its id; a run of its own."""
        plan = open_plan(self.settings, checks=["patches"]).plan
        now = time.time() - age
        with Ledger.open(folder or self.settings.path("state")) as ledger:
            run = ledger.begin_run(plan.record(), ["run"], {}, now=now)
            mine = (entry for entry in plan.entries if entry.check == "patches" and only in entry.cell_id)
            for key in keys or {entry.key for entry in mine}:
                task = plan.tasks[key]
                ledger.record(
                    Outcome(
                        key=key,
                        check=task.check.name,
                        tier=task.check.tier,
                        state=state,
                        evidence=Evidence.STATIC,
                        facets=task.facet_digests,
                        measurements=measurements,
                        started=now,
                        finished=now,
                        run_id=run,
                        log=ledger.artifacts.put(log, "log.txt") if log else None,
                    )
                )
            ledger.finish_run(run, 0)
        return run

    def gate(self, *arguments, code, base="main"):
        others = ",".join(check.name for check in all_checks() if check.name != "patches")
        result = CliRunner().invoke(
            command,
            ["--base", base, "--check", "patches", "--awaiting", others, *map(str, arguments)],
            obj=self.settings,
            standalone_mode=False,
        )
        if result.exception:
            raise result.exception
        assert result.return_value == code, result.output
        return result.stdout

    def classes(self, *arguments, code, base="main"):
        report = json.loads(self.gate("--json", *arguments, code=code, base=base))
        report["items"] = [item for item in report["items"] if item["check"] == "patches"]
        return {item["cell"][:10]: item["class"] for item in report["items"]}, report


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "checkout"
    root.mkdir()
    return Repository(root)


def test_nothing_answered_is_red_not_green(repository):
    assert "planned" in repository.gate(code=4)


def test_a_patch_that_breaks_is_new_and_the_patch_is_to_blame(repository, tmp_path, monkeypatch):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(BAD, only="0-9-1")
    repository.answer(GOOD, only="0-6-1")
    classes, report = repository.classes(code=1)
    assert classes == {"verl-0-6-1": "passed", "verl-0-9-1": "new"}
    broken = next(item for item in report["items"] if item["class"] == "new")
    assert broken["file"] == "patches/verl/b/all.patch"
    assert any("digest" in change for change in broken["changes"])
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    output = repository.gate(
        "--github", "--comment", tmp_path / "c.md", "--sarif", tmp_path / "s.json", code=1
    )
    assert "::error file=patches/verl/b/all.patch,line=1,title=" in output
    assert "newly broken" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "c.md").read_text().startswith("<!-- npu-matrix gate -->")
    assert json.loads((tmp_path / "s.json").read_text())["runs"][0]["results"]


def test_a_failure_is_explained_by_its_log(repository):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(BAD, log=b"Hunk #1 FAILED at 22 (different line endings).\n")
    _classes, report = repository.classes(code=1)
    item = report["items"][0]
    assert any("patch-crlf" in reason for reason in item["reasons"])
    assert any("line endings" in remedy for remedy in item["remedies"])


def test_unknown_failures_of_a_run_are_clustered_across_its_cells(repository):
    unknown = (
        b'Traceback (most recent call last):\n  File "/a/b.py", line %d, in f\n    g()\nValueError: tile %d\n'
    )
    repository.answer(BAD, only="0-6-1", log=unknown % (3, 17))
    repository.answer(BAD, only="0-9-1", log=unknown % (4, 18))
    with Ledger.open(repository.settings.path("state")) as ledger:
        keys = [one.key for one in ledger.history()]
        run = ledger.begin_run(open_plan(repository.settings, checks=["patches"]).plan.record(), ["run"], {})
        assert len(set(keys)) == 2
        ledger.finish_run(run, 1)
    found = CliRunner().invoke(
        triage_command, ["--run", "latest", "--json"], obj=repository.settings, standalone_mode=False
    )
    assert found.return_value == 1
    report = json.loads(found.output)
    assert len(report["logs"]) == 2
    (cluster,) = report["clusters"]
    assert [place.split()[1] for place in cluster["logs"]] == ["patches", "patches"]
    assert len({place.split()[0] for place in cluster["logs"]}) == 2


def test_what_a_change_does_not_touch_cannot_be_its_fault(repository):
    repository.answer(BAD)
    classes, report = repository.classes(code=0)
    assert set(classes.values()) == {"known"}
    assert "cannot have caused" in report["items"][0]["evidence"][0]


def test_what_fails_alike_on_the_base_is_known_and_what_passes_now_is_fixed(repository):
    repository.answer(BAD)
    repository.write(value=2)
    repository.answer(BAD, only="0-9-1")
    repository.answer(GOOD, only="0-6-1")
    classes, _report = repository.classes(code=0)
    assert classes == {"verl-0-6-1": "fixed", "verl-0-9-1": "known"}


@pytest.mark.parametrize("named", [(), ("--check", "patches")])
def test_a_check_that_the_change_removes_is_missed_whatever_the_user_selects(repository, named):
    run = repository.answer(GOOD)
    file = repository.settings.path("state") / "ledger.sqlite3"
    edit_ledger(
        file,
        'UPDATE plans SET body = replace(body, \'"check":"patches"\', \'"check":"bygone"\')',
        *NEW_PLAN_DIGESTS,
    )
    result = CliRunner().invoke(
        command, ["--base", run, "--json", *named], obj=repository.settings, standalone_mode=False
    )
    gone = json.loads(result.stdout)["gone"]
    assert [entry["check"] for entry in gone] == ["bygone"] * 2
    assert result.return_value == 4


def test_a_run_and_another_ledger_serve_as_base(repository, tmp_path):
    run = repository.answer(GOOD)
    repository.answer(GOOD, folder=tmp_path / "other")
    repository.write(value=2)
    repository.answer(BAD)
    for base in (run, str(tmp_path / "other"), str(tmp_path / "other" / "ledger.sqlite3")):
        classes, _report = repository.classes(code=1, base=base)
        assert set(classes.values()) == {"new"}


def test_a_folder_called_like_the_base_branch_does_not_stand_in_its_place(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main").mkdir()
    repository.answer(GOOD)
    classes, report = repository.classes(code=0)
    assert set(classes.values()) == {"passed"}
    assert report["base"].startswith("main")
    with pytest.raises(InputError, match="there is no ledger here"):
        repository.gate(code=2, base=str(tmp_path))


def test_shards_are_merged_and_a_missing_one_is_red(repository, tmp_path):
    repository.answer(GOOD, only="0-6-1", folder=tmp_path / "shard-1")
    repository.answer(GOOD, only="0-9-1", folder=tmp_path / "shard-2")
    classes, _report = repository.classes("--merge", tmp_path / "shard-1", code=4)
    assert classes == {"verl-0-6-1": "passed", "verl-0-9-1": "infra"}
    classes, _report = repository.classes("--merge", tmp_path / "shard-2", code=0)
    assert set(classes.values()) == {"passed"}


def test_logs_of_shards_come_along_and_explain_what_failed_there(repository, tmp_path):
    repository.answer(GOOD)
    repository.write(value=2)
    log = b"Hunk #1 FAILED at 22 (different line endings).\n"
    for number, cell in enumerate(("0-6-1", "0-9-1")):
        repository.answer(BAD, only=cell, folder=tmp_path / f"shard-{number}", log=log)
    _classes, report = repository.classes(
        "--merge", tmp_path / "shard-0", "--merge", tmp_path / "shard-1", code=1
    )
    for item in report["items"]:
        assert any("patch-crlf" in reason for reason in item["reasons"])


def test_a_merged_pass_that_ended_later_does_not_replace_a_failure_of_this_machine(repository, tmp_path):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(BAD)
    for attempt in range(1, 5):
        repository.answer(GOOD, folder=tmp_path / "far", age=-attempt)
    classes, report = repository.classes("--merge", tmp_path / "far", code=1)
    assert set(classes.values()) == {"new"}
    assert {item["status"] for item in report["items"]} == {"fail"}


def test_the_history_of_a_flake_comes_along_with_merged_ledgers(repository, tmp_path):
    for measurements in (GOOD, BAD, GOOD, GOOD):
        repository.answer(measurements, age=1000, folder=tmp_path / "base")
    repository.write(value=2)
    for measurements in (BAD, GOOD, GOOD, GOOD):
        repository.answer(measurements, folder=tmp_path / "shard")
    classes, _report = repository.classes("--merge", tmp_path / "base", "--merge", tmp_path / "shard", code=0)
    assert set(classes.values()) == {"flaky"}


def test_a_timeout_is_a_failure_and_an_error_of_the_machine_is_no_answer(repository):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer({}, only="0-9-1", state=State.TIMEOUT)
    repository.answer({}, only="0-6-1", state=State.ERROR)
    classes, _report = repository.classes(code=1)
    assert classes == {"verl-0-6-1": "infra", "verl-0-9-1": "new"}


def test_a_pass_after_a_failure_on_one_key_is_not_silently_green(repository):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(BAD)
    repository.answer(GOOD)
    classes, report = repository.classes(code=1)
    assert set(classes.values()) == {"new"}
    assert "failed 1 of 2 attempts" in report["items"][0]["evidence"][0]


def test_chance_that_came_with_the_change_blocks_however_often_it_passes_afterwards(repository):
    repository.answer(GOOD)
    repository.write(value=2)
    for measurements in (BAD, GOOD, GOOD, GOOD, GOOD):
        repository.answer(measurements)
    classes, report = repository.classes(code=1)
    assert set(classes.values()) == {"new"}
    assert "no key both passed and failed" in report["items"][0]["evidence"][0]


def test_a_broken_machine_does_not_wipe_out_what_was_decided_before(repository):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer({}, state=State.TIMEOUT)
    repository.answer({}, state=State.ERROR)
    assert set(repository.classes(code=1)[0].values()) == {"new"}


def test_chance_failures_from_before_with_passes_in_a_row_are_flaky_and_shown(repository):
    for measurements in (GOOD, BAD, GOOD, GOOD):
        repository.answer(measurements, age=1000)
    repository.write(value=2)
    for measurements in (BAD, GOOD, GOOD, GOOD):
        repository.answer(measurements)
    output = repository.gate("--github", code=0)
    assert "flaky: " in output
    assert "::warning " in output


class Machine:
    """Stands for `run_again`: answers every key it is asked for from a list, and keeps what it was asked."""

    def __init__(self, repository, *answers):
        self.repository, self.answers, self.asked = repository, list(answers), []

    def __call__(self, _bench, _ledger, keys):
        self.asked.append(set(keys))
        self.repository.answer(self.answers.pop(0), keys=keys)
        return False


@pytest.fixture
def machine(repository, monkeypatch):
    def made(*answers):
        found = Machine(repository, *answers)
        monkeypatch.setattr("harness.workspace.execution.rerun_tasks.rerun_tasks", found)
        return found

    return made


def test_reruns_decide_that_a_known_flake_is_one_and_ask_no_more_than_needed(repository, machine):
    for measurements in (GOOD, BAD, GOOD, GOOD):
        repository.answer(measurements, age=1000)
    repository.write(value=2)
    repository.answer(GOOD, only="0-6-1")
    repository.answer(BAD, only="0-9-1")
    asked = machine(GOOD, GOOD, GOOD, GOOD, GOOD, GOOD)
    classes, report = repository.classes("--reruns", "6", code=0)
    assert classes == {"verl-0-6-1": "passed", "verl-0-9-1": "flaky"}
    assert [len(keys) for keys in asked.asked] == [1, 1, 1]
    flaky = next(item for item in report["items"] if item["class"] == "flaky")
    assert "passed 3 times in a row" in flaky["evidence"][0]


def test_reruns_of_a_real_failure_add_evidence_and_excuse_nothing(repository, machine, monkeypatch):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(BAD)
    asked = machine(BAD, BAD, BAD)
    planned = Mock(side_effect=gate_base.plan_of_revision)
    monkeypatch.setattr(gate_base, "plan_of_revision", planned)
    classes, report = repository.classes("--reruns", "3", code=1)
    assert set(classes.values()) == {"new"}
    assert len(asked.asked) == 3
    assert planned.call_count == 1, "the base is planned once"
    assert any("failed 4 of 4 attempts" in said for said in report["items"][0]["evidence"])


def test_chance_without_a_history_is_decided_by_one_rerun_and_blocks(repository, machine):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(BAD)
    asked = machine(GOOD)
    classes, _report = repository.classes("--reruns", "6", code=1)
    assert set(classes.values()) == {"new"}
    assert len(asked.asked) == 1


def test_without_new_failures_nothing_is_run_again(repository, machine):
    repository.answer(GOOD)
    repository.write(value=2)
    repository.answer(GOOD)
    asked = machine()
    repository.gate("--reruns", "6", code=0)
    assert asked.asked == []


def test_a_cell_that_is_planned_no_more_is_said(repository):
    repository.answer(GOOD)
    repository.write(versions="0.9.1")
    _classes, report = repository.classes(code=4)
    assert {one["cell"][:10] for one in report["gone"]} == {"verl-0-6-1"}
    repository.classes("--accept-removed", "verl-0-6-1*:*", code=0)


def test_a_cell_that_only_another_host_could_run_is_judged_by_what_that_host_answered(repository):
    repository.write(versions="0.9.1", device="npu, soc: a2")
    repository.commit()
    plan = open_plan(repository.settings, checks=["environment"]).plan
    assert next(entry for entry in plan.entries if entry.check == "environment").skip
    away = open_plan(
        repository.settings, checks=["environment"], host=host_with_chip(inspect_this_host(), "a2")
    ).plan
    task = away.tasks[next(entry.key for entry in away.entries if entry.check == "environment")]
    with Ledger.open(repository.settings.path("state")) as ledger:
        ledger.record(
            Outcome(
                key=task.key,
                check="environment",
                tier=task.check.tier,
                state=State.TIMEOUT,
                evidence=Evidence.HARDWARE,
                facets=task.facet_digests,
            )
        )
    found = CliRunner().invoke(
        command, ["--base", "main", "--json"], obj=repository.settings, standalone_mode=False
    )
    items = {item["check"]: item for item in json.loads(found.output)["items"]}
    assert items["environment"]["status"] == "fail"
    assert items["environment"]["class"] == "known"
    assert items["environment"]["obtained"] == "hardware"
    assert items["loss"]["class"] == "not-run"


EXPECTATION = (
    'expectations:\n  known: {cells: "verl-0-9-1*", check: patches, state: fail, reason: moved,\n'
    '    source: "https://example.org/1", owner: tests, until: %s}\n'
)


def test_an_expected_failure_is_known_its_pass_and_its_expiry_are_red(repository):
    repository.answer(GOOD)
    repository.write(value=2, more=EXPECTATION % "2099-01-01")
    repository.answer(BAD, only="0-9-1")
    repository.answer(GOOD, only="0-6-1")
    assert repository.classes(code=0)[0]["verl-0-9-1"] == "known"
    repository.write(value=2, more=EXPECTATION % "2020-01-01")
    classes, report = repository.classes(code=1)
    assert classes["verl-0-9-1"] == "new"
    assert "expired" in report["problems"][0]
    repository.write(value=3, more=EXPECTATION % "2099-01-01")
    repository.answer(GOOD)
    assert repository.classes(code=1)[0]["verl-0-9-1"] == "fixed"


def test_the_plan_of_a_base_is_that_of_its_own_matrix_and_patches(repository):
    repository.write(value=2, versions="0.6.1, 0.8.0, 0.9.1")
    repository.answer(GOOD)
    _classes, report = repository.classes(code=0)
    assert report["base"].startswith("main (")
    changes = {item["cell"][:10]: item["changes"] for item in report["items"]}
    assert changes["verl-0-8-0"] == []
    assert changes["verl-0-9-1"]


@pytest.mark.parametrize("base", ["nosuch", "--output=x", "main:matrix.yaml"])
def test_a_base_that_is_none_is_bad_input(repository, base, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--root", str(repository.root), "gate", f"--base={base}", "--check", "patches"])
    assert stop.value.code == 2
    assert "revision" in capsys.readouterr().err


def test_a_base_whose_matrix_is_broken_is_never_green(repository, capsys):
    (repository.root / "matrix.yaml").write_text("format: 2\n")
    repository.commit()
    repository.write()
    repository.answer(GOOD)
    with pytest.raises(SystemExit) as stop:
        main(["--root", str(repository.root), "gate", "--base", "main", "--check", "patches"])
    assert stop.value.code == 2
    assert "format" in capsys.readouterr().err


def test_a_file_that_is_no_ledger_is_bad_input_and_left_alone(repository, tmp_path, capsys):
    file = tmp_path / "x.sqlite3"
    file.write_bytes(b"no database")
    with pytest.raises(SystemExit) as stop:
        main(["--root", str(repository.root), "gate", "--base", str(file), "--check", "patches"])
    assert stop.value.code == 2
    assert file.read_bytes() == b"no database"
    capsys.readouterr()


def test_a_changed_key_that_is_not_selected_still_needs_an_outcome(repository):
    repository.write(value=2)
    repository.answer(GOOD)
    found = CliRunner().invoke(
        command,
        ["--base", "main", "--check", "patches", "--json"],
        obj=repository.settings,
        standalone_mode=False,
    )
    assert found.return_value == 4
    report = json.loads(found.stdout)
    missing = [item for item in report["items"] if item["blocks"] == "incomplete" and item["changed"]]
    assert "loss" in {item["check"] for item in missing}
    assert report["scope"]["without_outcome"] == len({item["key"] for item in missing})
    assert all("npu-matrix" in item["remedies"][-1] for item in missing)


def test_a_changed_key_that_this_host_cannot_run_blocks_until_it_is_awaited(repository):
    repository.write(device="npu, soc: a2", value=2)
    repository.commit()
    repository.write(device="npu, soc: a2", value=3)
    repository.answer(GOOD)
    report = json.loads(repository.gate("--json", code=0))
    assert "loss" in {item["check"] for item in report["items"] if item["class"] == "awaited"}
    found = CliRunner().invoke(command, ["--base", "main"], obj=repository.settings, standalone_mode=False)
    assert found.return_value == 4
    assert "--merge FOLDER" in found.stdout
    text = repository.gate("--awaiting", "npu", code=0)
    assert "awaited from other jobs" in text.splitlines()[1]


def write_stack(repository, device):
    """A profile of one stack on this device."""
    repository.write()
    text = (repository.root / "matrix.yaml").read_text().partition("      - product")[0]
    axes = "soc: a2, " if device == "npu" else ""
    stack = f"{{title: t, source: x, axes: {{verl: 0.9.1, python: host, {axes}device: {device}}}}}"
    (repository.root / "matrix.yaml").write_text(f"{text}      - stacks: all\nstacks:\n  s: {stack}\n")


@pytest.mark.parametrize(("before", "after"), [("npu", "sim"), ("sim", "npu")])
def test_a_stack_that_the_change_moves_to_another_device_is_still_verified(repository, before, after):
    write_stack(repository, before)
    repository.commit()
    write_stack(repository, after)
    repository.answer(GOOD)
    options = ["--base", "main", "--json", "--awaiting", "npu", "--impacted"]
    found = CliRunner().invoke(command, options, obj=repository.settings, standalone_mode=False)
    assert found.return_value == 4
    wanted = "removed" if after == "sim" else "not-run"
    items = [item for item in json.loads(found.stdout)["items"] if item["check"] == "loss"]
    assert [item["blocks"] for item in items if item["class"] == wanted] == ["incomplete"]
    accepted = CliRunner().invoke(
        command,
        [*options, "--accept-removed", "*", "--awaiting", "*"],
        obj=repository.settings,
        standalone_mode=False,
    )
    assert accepted.return_value == 0


def test_a_base_that_is_the_checkout_itself_compares_nothing(repository):
    repository.answer(GOOD)
    (repository.root / "notes.txt").unlink()
    assert "the base is this checkout itself" in repository.gate(code=3)
    repository.git("commit", "-q", "--allow-empty", "-m", "no file changes")
    assert "no key changed" in repository.gate(code=0, base="HEAD^")


def test_files_that_no_key_reads_and_other_profiles_are_named_first(repository):
    folder = repository.root / "elsewhere"
    folder.mkdir()
    (folder / "x.patch").write_text(patch_of(3))
    repository.answer(GOOD)
    profile = (
        "  nightly: {title: t, select: [{product: {verl: [0.8.0]}, with: {python: host, device: sim}}]}\n"
    )
    repository.write(more=profile)
    lines = repository.gate(code=0).splitlines()
    assert "2 of 3 changed files" in "\n".join(lines[:3])
    assert "elsewhere/x.patch, notes.txt" in "\n".join(lines[:3])
    assert any("adds profile nightly" in line for line in lines[:4])
    assert "no key changed" in lines[-1]


def test_rules_that_the_change_removes_or_replaces_are_named(repository):
    rule = (
        "constraints:\n  no-old: {forbid: {verl: '0.6.1'}, reason: '-', source: '-'}\n"
        "overrides:\n  - {of: verl, override: 'torch>=2', reason: '-', source: '-'}\n"
    )
    repository.write(more=rule)
    repository.commit()
    repository.write(more=rule.partition("overrides")[0].replace("0.6.1", "0.5.0"))
    text = (repository.root / "matrix.yaml").read_text()
    own = text.replace("package: verl,", "package: verl, extra_index: ['https://example.org/simple'],")
    (repository.root / "matrix.yaml").write_text(own)
    notes = repository.classes("--impacted", code=4)[1]["scope"]["notes"]
    assert "the change modifies the constraint no-old" in notes
    assert "the change removes the override of verl: torch>=2" in notes
    assert "the change modifies where packages come from for the axis verl" in notes


def test_a_removed_expectation_of_a_failing_check_blocks(repository):
    repository.write(more=EXPECTATION % "2099-01-01")
    repository.commit()
    repository.answer(BAD, only="0-9-1")
    repository.answer(GOOD, only="0-6-1")
    repository.classes(code=0)
    repository.write()
    classes, report = repository.classes(code=1)
    assert classes["verl-0-9-1"] == "new"
    assert any("removes the expected failure known" in note for note in report["scope"]["notes"])


def test_an_archive_that_the_index_replaced_makes_the_evidence_of_the_change_stale(repository, monkeypatch):
    repository.answer(GOOD)
    old = open_plan(repository.settings, checks=["patches"]).plan.tasks
    repository.write(value=2)
    repository.answer(GOOD)
    new = open_plan(repository.settings, checks=["patches"]).plan.tasks
    for tasks, code, status in ((new, 4, "stale"), (old, 0, "pass")):
        review = IndexReview(outdated=dict.fromkeys(tasks, "another x.whl"), asked=3, unreached=1)
        monkeypatch.setattr(gate_comparison, "review_index", lambda _plan, _ledger, found=review: found)
        _classes, report = repository.classes(code=code)
        assert {item["status"] for item in report["items"]} == {status}
        (note,) = [note for note in report["scope"]["notes"] if note.startswith("package index")]
        assert "asked for 3 archives" in note
        assert "no response for 1" in note


@pytest.mark.parametrize("finds", ["altered_outcomes", "outdated_attempts"])
def test_evidence_of_what_was_altered_or_of_another_lock_is_stale_in_a_gate(repository, monkeypatch, finds):
    repository.write(value=2)
    repository.answer(GOOD)
    assert {item["status"] for item in repository.classes(code=0)[1]["items"]} == {"pass"}
    keys = open_plan(repository.settings, checks=["patches"]).plan.tasks
    monkeypatch.setattr(gate_comparison, finds, lambda *_given: dict.fromkeys(keys, "it is another one now"))
    assert {item["status"] for item in repository.classes(code=4)[1]["items"]} == {"stale"}


@pytest.mark.parametrize("lists", [True, False])
def test_a_base_whose_matrix_only_its_own_version_can_read_keeps_its_expectations(
    repository, monkeypatch, lists
):
    """The code of the base is a stand-in that plans, and lists its expectations or cannot."""
    repository.answer(BAD, only="0-9-1")
    repository.answer(GOOD, only="0-6-1")
    plan = open_plan(repository.settings).plan
    survey = ExpectationSurvey(
        id="known", where="matrix.yaml:9", check="patches", state="fail", reason="moved", source="x",
        owner="o", until="2099-01-01", fault="",
        cells=tuple(cell.id for cell in plan.cells if "0-9-1" in cell.id),
    )  # fmt: skip
    package = repository.root / "harness"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plan.json").write_text(dumps(plan.record()))
    (package / "expect.json").write_text(dumps(ExpectationList(expectations=(survey,))) if lists else "{}")
    (package / "__main__.py").write_text(
        "import pathlib, sys\n"
        "name = 'plan' if 'plan' in sys.argv else 'expect'\n"
        "print(pathlib.Path(__file__).with_name(f'{name}.json').read_text())\n"
    )
    (repository.root / "matrix.yaml").write_text("format: 2\n")
    repository.git("add", "harness")
    repository.commit()
    repository.write()
    (package / "__main__.py").write_text("")
    monkeypatch.setattr(revision_comparison, "PACKAGE_ROOT", package)
    classes, report = repository.classes("--impacted", code=1 if lists else 4)
    assert classes["verl-0-9-1"] == ("new" if lists else "known")
    assert any("the matrix of the base cannot be read" in note for note in report["scope"]["notes"])
    assert bool(report["unverified"]) is not lists


def test_an_expectation_that_the_change_widens_is_one_that_it_declares(repository):
    narrow = EXPECTATION.replace("state: fail,", "state: fail, because: [does not apply],")
    repository.write(more=narrow % "2099-01-01")
    repository.commit()
    repository.write(more=EXPECTATION % "2099-01-01")
    repository.answer(BAD, only="0-9-1")
    repository.answer(GOOD, only="0-6-1")
    assert "1 failures that this change itself declares" in repository.classes(code=0)[1]["verdict"]
    repository.write(more=EXPECTATION.replace("moved", "moved again") % "2098-01-01")
    repository.commit()
    repository.write(more=EXPECTATION % "2099-01-01")
    assert "declares" not in repository.classes(code=0)[1]["verdict"]


@pytest.mark.parametrize("added", [True, False])
def test_an_expectation_that_nothing_verifies_blocks_and_its_check_is_planned(repository, added):
    if not added:
        repository.write(more=EXPECTATION % "2099-01-01")
        repository.commit()
    repository.write(more=EXPECTATION % "2099-01-01" if added else "")
    classes, report = repository.classes("--impacted", code=4)
    assert classes == {"verl-0-9-1": "infra"}
    assert "modifies its expected failure" in report["items"][0]["evidence"][0]
    found = CliRunner().invoke(
        plan_command, ["--changed-since", "main", "--json"], obj=repository.settings, standalone_mode=False
    )
    touched = [task for task in json.loads(found.stdout)["tasks"] if task["effect"] != "unchanged"]
    assert [(task["check"], task["effect"]) for task in touched] == [("patches", "expected")]
    repository.answer(BAD if added else GOOD)
    assert repository.classes("--impacted", "--only", "verl-0-9-1*", code=0)[0]


def test_a_narrowed_profile_blocks(repository):
    repository.answer(GOOD)
    profile = "    without: {patches: saves time}\n"
    text = (repository.root / "matrix.yaml").read_text()
    (repository.root / "matrix.yaml").write_text(text + profile)
    found = CliRunner().invoke(
        command,
        ["--base", "main", "--json", "--impacted"],
        obj=repository.settings,
        standalone_mode=False,
    )
    assert found.return_value == 4
    assert "patches" in {item["check"] for item in json.loads(found.stdout)["gone"]}
