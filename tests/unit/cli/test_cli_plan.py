"""`plan`, `explain`, `advise` and `bisect` from the command line, on a small matrix in a git checkout."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from git_command import git

from harness.cli.app import main
from harness.errors import EXIT_BAD_INPUT, EXIT_OK
from harness.ledger.plan_record import PlanRecord
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolveMeasured, ResolveProblem
from harness.sources.packages.uv_errors import UvFailureKind

REPOSITORY = Path(__file__).parents[3]
MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: made up}
  torch: {title: torch, scheme: pep440, package: torch, source: made up}
  torch_npu: {title: torch_npu, scheme: pep440, package: torch-npu, source: made up}
  python: {title: Python, scheme: python, source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady:
    title: a row
    source: made up
    axes: {verl: 0.9.1, torch: 2.7.1, torch_npu: 2.7.1, python: host, device: sim}
constraints:
  torch-npu-release:
    require: {torch_npu: {same_as: torch, part: release}}
    reason: a torch_npu wheel requires exactly its torch
    source: made up
  verl-torch:
    when: {verl: ">=0.9"}
    require: {torch: ">=2.7"}
    reason: verl 0.9 uses what torch 2.7 brought
    source: made up
profiles:
  default:
    title: all
    select:
      - stacks: all
      - with: {device: sim, python: host}
        product:
          verl: [0.6.1, 0.9.1]
          torch: [2.6.0, 2.7.1, 2.8.0]
          torch_npu: [2.6.0, 2.7.1, 2.8.0]
"""
RESOLVE_FAILED = RESOLVE_FORMAT.write(
    ResolveMeasured(
        resolved=False,
        problems=(
            ResolveProblem(kind=UvFailureKind.CONFLICT, text="torch contradicts torch-npu", remedy=""),
        ),
    )
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "matrix.yaml").write_text(MATRIX)
    shutil.copytree(REPOSITORY / "patches", folder / "patches")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def command(checkout: Path, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str, root: Path = checkout) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(root), *arguments])
        seen = capsys.readouterr()
        return int(stopped.value.code or 0), seen.out, seen.err

    return call


def test_nothing_differs_from_the_commit_that_is_checked_out(command):
    code, out, _ = command("plan", "--changed-since", "HEAD")
    assert code == 0
    assert ": 0 of " in out
    assert "unchanged, proved by their keys" in out


def test_a_reason_why_checks_are_not_run_is_printed_once_for_all_cells(command):
    _, out, _ = command("plan")
    cells = [line for line in out.splitlines() if line.endswith(" not run)")]
    reasons = [line.partition(" x ")[2] for line in out.splitlines() if line.startswith("not run: ")]
    assert len(cells) > 1
    assert "the cell has no recipe" in reasons
    assert len(reasons) == len(set(reasons))
    assert not any("the cell has no recipe" in line for line in cells)


def test_several_globs_and_checks_are_named_with_commas_and_one_that_matches_nothing_is_said(command):
    code, out, _ = command(
        "plan", "--only", "verl-0-6-1-*,verl-0-9-9*", "--check", "npu-ops,patches", "--json"
    )
    plan = json.loads(out)
    assert code == 0
    assert {cell["id"][:11] for cell in plan["cells"]} == {"verl-0-6-1-"}
    assert {task["check"] for task in plan["tasks"]} == {"npu-ops", "patches", "resolve"}
    assert "no cell matches 'verl-0-9-9*'" in " ".join(plan["notices"])
    code, _, err = command("plan", "--only", "verl-0-9-9*,vrel*")
    assert code == 3
    assert "no cell matches 'verl-0-9-9*'" in err


def test_a_stack_is_selected_by_its_name(command):
    code, out, _ = command("plan", "--only", "steady", "--check", "patches", "--json")
    assert code == 0
    [cell] = json.loads(out)["cells"]
    assert (cell["stack"], cell["id"] != "steady") == ("steady", True)
    code, _, err = command("plan", "--only", "staedy")
    assert code == 3
    assert "nearest: steady" in err


@pytest.mark.parametrize("option", ["--only", "--check", "--changed-since"])
def test_an_empty_variable_of_a_script_selects_nothing_rather_than_everything(command, option):
    code, _, err = command("plan", option, "")
    assert code == EXIT_BAD_INPUT
    assert f"{option!r} is empty" in err


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff", b"[]", b'{"cells": [1]}', b""])
def test_a_file_that_is_no_plan_is_told(command, tmp_path, content):
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    code, _, err = command("plan", "--strength", "1", "--keep", str(file))
    assert code == EXIT_BAD_INPUT
    assert f"{file}: this is not a plan" in err


def test_an_edited_patch_touches_only_the_tasks_that_read_it(command, checkout):
    body = next((checkout / "patches" / "verl").glob("grpo-equal-rewards/*.patch"))
    body.write_bytes(body.read_bytes() + b"\n")
    code, out, _ = command("plan", "--changed-since", "main", "--json")
    report = json.loads(out)
    touched = {task["check"] for task in report["tasks"] if task["effect"] == "changed"}
    assert code == 0
    assert report["since"]["commit"] == git(checkout, "rev-parse", "main")
    assert {"patches", "environment"} <= touched
    assert not {"resolve", "lint"} & touched
    parts = {
        change["part"]
        for task in report["tasks"]
        if task["effect"] == "changed"
        for change in task["changes"]
    }
    facets = ("facets.patches[verl].verl/grpo-equal-rewards",)
    assert not {part for part in parts if not part.startswith(facets)}, (
        "other parts of keys changed than the patch: a new facet of patches must be added to `facets`"
    )


def test_a_matrix_named_by_its_whole_path_is_compared_with_that_of_the_revision(command, checkout, tmp_path):
    (checkout / "matrix.yaml").write_text(MATRIX.replace("2.8.0", "2.9.0"))
    inside = command("plan", "--changed-since", "HEAD", "--check", "resolve", "--json")
    whole = command(
        "--matrix",
        str(checkout / "matrix.yaml"),
        "plan",
        "--changed-since",
        "HEAD",
        "--check",
        "resolve",
        "--json",
    )
    effects = [
        {task["key"]: task["effect"] for task in json.loads(out)["tasks"]} for _, out, _ in (inside, whole)
    ]
    assert effects[0] == effects[1]
    assert set(effects[0].values()) - {"unchanged"}
    (tmp_path / "elsewhere.yaml").write_text(MATRIX)
    code, _, err = command("--matrix", str(tmp_path / "elsewhere.yaml"), "plan", "--changed-since", "HEAD")
    assert code == EXIT_BAD_INPUT
    assert "outside of this checkout" in err


def test_another_engine_in_the_settings_file_is_a_change(command, checkout):
    (checkout / "npu-matrix.toml").write_text('engine = "docker"\n')
    arguments = ("plan", "--changed-since", "HEAD", "--check", "environment", "--json")
    changed = [task for task in json.loads(command(*arguments)[1])["tasks"] if task["effect"] == "changed"]
    assert {task["check"] for task in changed} == {"environment"}
    assert {"facets.device.engine"} <= {change["part"] for change in changed[0]["changes"]}
    flag = json.loads(command("--engine", "docker", *arguments)[1])["tasks"]
    assert {task["effect"] for task in flag} == {"unchanged"}


def test_a_comment_in_the_matrix_changes_nothing(command, checkout):
    (checkout / "matrix.yaml").write_text("# a word\n" + MATRIX)
    assert ": 0 of " in command("plan", "--changed-since", "HEAD")[1]


def test_a_new_value_is_new_and_a_removed_cell_is_gone(command, checkout):
    (checkout / "matrix.yaml").write_text(MATRIX.replace("[0.6.1, 0.9.1]", "[0.7.1, 0.9.1]"))
    report = json.loads(command("plan", "--changed-since", "HEAD", "--json")[1])
    assert {task["effect"] for task in report["tasks"]} == {"new", "unchanged"}
    assert all(gone["cell"].startswith("verl-0-6-1-sim-") for gone in report["gone"])
    assert report["gone"]


WITHOUT = "    title: all\n    without:\n      {}: it takes minutes\n"


def test_a_profile_can_leave_checks_out_and_the_command_line_can_ask_for_them(command, checkout):
    (checkout / "matrix.yaml").write_text(MATRIX.replace("    title: all\n", WITHOUT.format("grpo")))
    entries = json.loads(command("plan", "--json")[1])["entries"]
    assert {entry["skip"]["reason"] for entry in entries if entry["check"] == "grpo"} == {
        "not in profile default: it takes minutes"
    }
    assert all(not entry["key"] for entry in entries if entry["check"] == "grpo")
    asked = json.loads(command("plan", "--check", "grpo", "--json")[1])["entries"]
    assert any(entry["key"] for entry in asked if entry["check"] == "grpo")


def test_a_profile_that_leaves_out_a_check_nobody_declares(command, checkout):
    (checkout / "matrix.yaml").write_text(MATRIX.replace("    title: all\n", WITHOUT.format("grppo")))
    code, _, err = command("plan")
    assert code == EXIT_BAD_INPUT
    assert "matrix.yaml:27:7" in err
    assert "grpo" in err


def test_a_revision_that_is_not_there(command):
    code, _, err = command("plan", "--changed-since", "nowhere")
    assert code == 2
    assert "revision 'nowhere' is not in this checkout" in err
    assert "git fetch origin nowhere" in err


@pytest.mark.parametrize("name", ["a;id", "$(id)", "`id`", "origin/-x", "a&b|c", "it's"])
def test_a_command_to_copy_runs_nothing_of_a_branch_name(command, name):
    _, _, err = command("plan", "--changed-since", name)
    [told] = [line for line in err.splitlines() if "git fetch origin" in line]
    words = shlex.split(told.partition("or ")[2])
    assert words[:3] == ["git", "fetch", "origin"]
    assert len(words) == 4
    assert not words[3].startswith("-")
    assert shlex.join(words) in told


def test_a_shallow_checkout_says_how_to_fetch(command, checkout, tmp_path):
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth=1", checkout.as_uri(), "shallow")
    code, _, err = command("plan", "--changed-since", first, root=tmp_path / "shallow")
    assert code == 2
    assert "shallow" in err
    assert f"git fetch --depth=1 origin {first}, or git fetch --unshallow" in err
    git(tmp_path / "shallow", "fetch", "-q", "--depth=1", "origin", first)
    assert command("plan", "--changed-since", first, root=tmp_path / "shallow")[0] == EXIT_OK


def test_a_branch_that_a_shallow_checkout_lacks_is_there_after_the_fetch_it_is_told(
    command, checkout, tmp_path
):
    git(checkout, "branch", "release")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth=1", checkout.as_uri(), "shallow")
    shallow = tmp_path / "shallow"
    for name in ("origin/release", "release"):
        err = command("plan", "--changed-since", name, root=shallow)[2]
        told = err.partition("do:  git ")[2].partition(", or")[0].split()
        assert told[-1] == "release:refs/remotes/origin/release"
    git(shallow, *told)
    assert command("plan", "--changed-since", "origin/release", root=shallow)[0] == EXIT_OK


def test_an_option_is_no_revision(command):
    code, _, err = command("plan", "--changed-since", "--output=x")
    assert code == 2
    assert "is not a revision" in err


def test_a_folder_that_is_no_checkout(command, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "matrix.yaml").write_text(MATRIX)
    code, _, err = command("plan", "--changed-since", "HEAD", root=tmp_path / "plain")
    assert code == 2
    assert "not a git checkout" in err


def test_a_covering_plan_says_what_it_holds_and_costs(command):
    code, out, _ = command("plan", "--strength", "2", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["held"] == report["feasible"] == sum(cell["gained"] for cell in report["cells"])
    assert report["cells"][0]["why"] == "stack steady"
    assert report["forecast"]["error_s"] > 0
    assert report["forecast"]["guessed"] == report["forecast"]["tasks"]


def test_a_budget_cuts_the_plan_and_the_next_hour_is_offered(command):
    code, out, _ = command("plan", "--strength", "2", "--budget", "2min")
    assert code == 0
    assert "do not fit 2min" in out
    assert "would add" in out


def test_a_budget_that_is_no_time(command):
    code, _, err = command("plan", "--strength", "2", "--budget", "soon")
    assert code == 2
    assert "8h" in err


def test_cells_of_an_earlier_plan_stay(command, checkout):
    earlier = json.loads(command("plan", "--strength", "2", "--json")[1])
    file = checkout / "earlier.json"
    file.write_text(json.dumps(earlier))
    (checkout / "matrix.yaml").write_text(MATRIX.replace("[0.6.1, 0.9.1]", "[0.6.1, 0.9.1, 0.9.2]"))
    later = json.loads(command("plan", "--strength", "2", "--keep", str(file), "--json")[1])
    ids = [cell["id"] for cell in later["cells"]]
    assert {cell["id"] for cell in earlier["cells"]} <= set(ids)
    file.write_text("[]")
    code, _, err = command("plan", "--strength", "2", "--keep", str(file))
    assert code == 2
    assert "this is not a plan" in err


def test_the_order_puts_cheap_tiers_first(command):
    report = json.loads(command("plan", "--order", "--json")[1])
    tiers = {task["key"]: task["tier"] for task in report["tasks"]}
    told = [tiers[key] for key in report["order"]]
    ranks = ["static", "build", "numerics", "convergence"]
    assert sorted(told, key=ranks.index) == told
    assert len(told) == len(report["tasks"])


def ask_clone(checkout: Path) -> dict[str, str]:
    """Check -> what changed first, as the program of the checkout itself says it."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", "plan", "--changed-since", "HEAD", "--json"],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )
    tasks = json.loads(done.stdout)["tasks"]
    return {task["check"]: task["changes"][0]["part"] for task in tasks if task["effect"] == "changed"}


def test_code_counts_as_far_as_it_is_read(checkout):
    """A check's own code touches it and what needs it; other planning code is asked itself for its keys."""
    shutil.copytree(
        REPOSITORY / "harness", checkout / "harness", ignore=shutil.ignore_patterns("__pycache__")
    )
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "with the program")
    assert ask_clone(checkout) == {}
    judge = checkout / "harness" / "compat" / "resolve" / "resolve_problems.py"
    judge.write_text(judge.read_text().replace("Correct the requirement", "Change the requirement"))
    behind = {"resolve", "environment", "loss", "grpo", "gspo"}
    changed = ask_clone(checkout)
    assert behind <= set(changed)
    assert set(changed.values()) == {"code"}
    assert "constraints" not in changed
    git(checkout, "commit", "-qam", "a word")
    facets = checkout / "harness" / "plan" / "keys" / "facets.py"
    facets.write_text(facets.read_text().replace("arch=inputs.host_arch", 'arch=inputs.host_arch + "-other"'))
    changed = ask_clone(checkout)
    assert changed["environment"] == "facets.platform.arch"
    assert "lint" not in changed


def test_a_combination_is_explained_with_rule_place_and_proof(command):
    code, out, _ = command("explain", "--axes", "torch=2.6.0,torch_npu=2.8.0")
    assert code == 0
    assert "matrix.yaml:14:3: torch-npu-release" in out
    assert "proof: made up" in out
    assert "nearest valid cells" in out


def test_a_cell_is_explained_with_its_facets_and_where_they_are_written(command):
    out = command("explain", "steady")[1]
    assert "in profiles: default" in out
    assert "verl       0.9.1                        matrix.yaml:12:18" in out
    patches = out.splitlines()[
        next(n for n, line in enumerate(out.splitlines()) if "  patches[verl]" in line) + 1
    ]
    assert patches.strip() == "from matrix.yaml:12:18, patches/verl/series"
    assert "nothing: the cell has no such part" in out
    report = json.loads(command("explain", "steady", "--json")[1])
    assert report["facets"].keys() == report["facets_from"].keys()
    assert report["facets_from"]["device"] == ["matrix.yaml:12:79"]


def test_a_cell_of_another_profile_is_explained_too(command, checkout):
    other = "  other: {title: o, select: [{product: {verl: [0.8.0], torch: [2.7.1]}, with: {device: sim}}]}\n"
    (checkout / "matrix.yaml").write_text(MATRIX + other)
    plan = json.loads(command("--profile", "other", "plan", "--json")[1])
    out = command("explain", plan["cells"][0]["id"])[1]
    assert "in profiles: other" in out
    assert "  lint " in out
    assert command("why-rerun", plan["cells"][0]["id"])[0] == EXIT_OK
    code, _, err = command("explain", "verl-0-8-1-sim")
    assert code == EXIT_BAD_INPUT
    assert "verl-0-8-0-sim" in err


def test_explain_wants_a_cell_or_a_combination(command):
    assert command("explain")[0] == 2
    assert command("explain", "steady", "--axes", "verl=0.9.1")[0] == 2
    code, _, err = command("explain", "--axes", "tortch=1")
    assert code == 2
    assert "torch" in err


def test_rules_that_leave_no_cell_are_named(command, checkout):
    text = MATRIX.replace("      - stacks: all\n", "").replace("[0.6.1, 0.9.1]", "[0.9.1]")
    (checkout / "matrix.yaml").write_text(
        text.replace("torch: [2.6.0, 2.7.1, 2.8.0]", "torch: [2.6.0, 2.7.1]").replace(
            "torch_npu: [2.6.0, 2.7.1, 2.8.0]", "torch_npu: [2.6.0]"
        )
    )
    code, _, err = command("plan")
    assert code == 3
    assert "torch-npu-release" in err
    assert "verl-torch" in err


def test_the_newest_version_is_asked_for(command):
    code, out, _ = command("advise", "verl", "--with", "torch=2.6.0")
    assert code == 0
    assert "no verl with torch=2.6.0 is known to work; the newest that has not failed: 0.6.1" in out
    assert "verl-torch" in out
    assert "run --only verl-0-6-1-sim-" in out


def test_a_simulated_cell_does_not_answer_for_hardware(command, checkout):
    matrix = MATRIX.replace("{sim: {title: simulated}}", "{sim: {title: simulated}, npu: {title: NPU}}")
    hardware = """\
      - with: {python: "3.11", device: npu}
        product: {verl: [0.6.1], torch: [2.6.0], torch_npu: [2.6.0]}
"""
    (checkout / "matrix.yaml").write_text(matrix + hardware)

    _, out, _ = command("advise", "verl")
    assert "no verl with device=npu is known to work; the newest that has not failed: 0.6.1" in out
    assert "-npu-" in out
    assert json.loads(command("advise", "verl", "--json")[1])["with"] == ["device=npu"]

    _, out, _ = command("advise", "verl", "--with", "device=sim")
    assert "no verl with device=sim is known to work; the newest that has not failed: 0.9.1" in out


def test_probing_asks_cheap_tiers_first_none_dearer_than_told_and_ends(command, monkeypatch):
    asked = []

    def machine_that_never_answers(bench, _ledger, keys):
        asked.append({bench.plan.tasks[key].check.tier.value for key in keys})
        return False

    monkeypatch.setattr("harness.workspace.execution.version_probe.rerun_tasks", machine_that_never_answers)
    code, _, err = command("advise", "verl", "--with", "torch=2.6.0", "--probe", "build")
    assert code == 0
    assert asked == [{"static"}, {"build"}]
    assert "probing verl 0.6.1: " in err
    assert command("advise", "--probe", "build")[0] == EXIT_BAD_INPUT


def test_what_blocks_a_version(command):
    report = json.loads(command("advise", "torch=2.6.0", "--on", "steady", "--json")[1])
    assert {one["rule"] for one in report["objections"]} == {"torch-npu-release", "verl-torch"}
    assert report["nearest"][0]["changes"]["verl"] == ["0.9.1", "0.6.1"]


@pytest.mark.parametrize(
    "arguments",
    [("verll",), ("verl=1",), ("verl", "--on", "steady"), ("verl", "--with", "torch"), ("--with", "x=1")],
)
def test_questions_advise_does_not_understand(command, arguments):
    code, _, err = command("advise", *arguments)
    assert code == 2
    assert err


def test_a_search_is_forecast_without_running_anything(command, checkout):
    cell = json.loads(command("plan", "--only", "verl-0-6-1-*", "--json")[1])["cells"][0]["id"]
    code, out, _ = command("bisect", cell, "steady", "--check", "loss", "--dry-run", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["changes"]["verl"] == ["0.6.1", "0.9.1"]
    assert report["expected"]["probes"] >= 1
    assert report["expected"]["seconds"] > 0
    assert not (checkout / ".npu-matrix").exists()


def test_two_cells_between_which_nothing_is_known(command):
    cell = json.loads(command("plan", "--only", "verl-0-6-1-*", "--json")[1])["cells"][0]["id"]
    code, _, err = command("bisect", cell, "steady")
    assert code == 2
    assert "--check" in err
    code, _, err = command("bisect", "steady", "steady", "--check", "loss")
    assert code == 2
    assert "the same versions" in err


def test_the_guilty_change_is_found_and_what_is_known_is_not_run_again(command, checkout):
    """torch_npu without its torch is guilty, not verl, which differs as well."""
    odd = "  odd: {title: o, source: s, axes: {verl: 0.6.1, torch: 2.7.1, torch_npu: 2.6.0, device: sim}}\n"
    file = checkout / "matrix.yaml"
    file.write_text(MATRIX.replace("stacks:\n", "stacks:\n" + odd, 1))
    code, out, _ = command("bisect", "steady", "odd", "--check", "constraints")
    assert code == 0
    assert "found: torch_npu 2.7.1 -> 2.6.0" in out
    report = json.loads(command("bisect", "steady", "odd", "--check", "constraints", "--json")[1])
    assert report["found"]
    assert {one["how"] for one in report["observations"]} == {"known"}


def test_an_expectation_of_a_check_that_does_not_exist(command, checkout):
    file = checkout / "matrix.yaml"
    known = "{cells: 'steady*', check: CHECK, state: fail, reason: r, source: s, owner: o, until: 2099-01-01}"
    file.write_text(f"{MATRIX}expectations:\n  known: {known}\n".replace("CHECK", "resolve"))
    assert command("matrix", "validate")[0] == EXIT_OK
    file.write_text(f"{MATRIX}expectations:\n  known: {known}\n".replace("CHECK", "resolv"))
    code, _, told = command("matrix", "validate")
    assert code == EXIT_BAD_INPUT
    assert "unknown check 'resolv'" in told
    assert "did you mean 'resolve'" in told


def test_the_plan_is_the_same_in_every_process(checkout):
    texts = {
        subprocess.run(
            [sys.executable, "-m", "harness", "--root", str(checkout), "plan", "--strength", "2", "--json"],
            cwd=REPOSITORY,
            env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(texts) == 1


def test_the_order_of_a_products_keys_changes_nothing(command, checkout):
    before = json.loads(command("plan", "--strength", "2", "--json")[1])
    lines = MATRIX.splitlines()
    axes = [lines.pop(), lines.pop(), lines.pop()]
    (checkout / "matrix.yaml").write_text("\n".join([*lines, *axes]) + "\n")
    after = json.loads(command("plan", "--strength", "2", "--json")[1])
    assert after == before


def record_resolve(checkout, key):
    """An outcome in the checkout's ledger: nothing resolved, in seven seconds."""
    from harness.ledger.store import Ledger
    from harness.outcome import Evidence, Outcome, State, Tier

    with Ledger.open(checkout / ".npu-matrix") as ledger:
        ledger.record(
            Outcome(
                key=key,
                check="resolve",
                tier=Tier.STATIC,
                state=State.COMPLETED,
                evidence=Evidence.STATIC,
                facets={},
                measurements=RESOLVE_FAILED,
                started=100.0,
                finished=107.0,
            )
        )


def test_what_was_red_is_planned_first_and_what_is_known_costs_nothing(command, checkout):
    plan = json.loads(command("plan", "--json")[1])
    cell = next(one["id"] for one in plan["cells"] if one["axes"]["torch"] == "2.8.0")
    key = next(one["key"] for one in plan["entries"] if one["cell"] == cell and one["check"] == "resolve")
    record_resolve(checkout, key)
    report = json.loads(command("plan", "--strength", "2", "--json")[1])
    assert [one["why"] for one in report["cells"][:2]] == ["stack steady", "failed last time"]
    assert report["cells"][1]["id"] == cell


def test_a_forecast_goes_by_this_kind_of_host_also_when_another_ran_last(command, checkout):
    from harness.ledger.store import Ledger
    from harness.outcome import Evidence, Outcome, State, Tier
    from harness.workspace.planning.open_plan import host_kind, inspect_this_host

    kinds = [
        (host_kind(inspect_this_host()), 7.0),
        ({"machine": "elsewhere", "cpus": "999", "npu": "none"}, 500.0),
    ]
    with Ledger.open(checkout / ".npu-matrix") as ledger:
        for hour, (kind, seconds) in enumerate(kinds):
            run = ledger.begin_run(PlanRecord(profile="default"), [], kind, now=3600.0 * hour)
            for number in range(5):
                ledger.record(
                    Outcome(
                        key=f"{hour}{number}".ljust(64, "0"),
                        check="resolve",
                        tier=Tier.STATIC,
                        state=State.COMPLETED,
                        evidence=Evidence.STATIC,
                        facets={},
                        measurements={**RESOLVE_FAILED, "resolved": True},
                        started=100.0,
                        finished=100.0 + seconds,
                        run_id=run,
                    )
                )
    report = json.loads(command("plan", "--strength", "1", "--check", "resolve", "--json")[1])
    assert {one["seconds"] for one in report["cells"]} <= {0.0, 7.0}
    assert report["forecast"]["guessed"] == 0


def test_a_plan_says_what_each_cell_and_all_will_take_and_what_the_figures_rest_on(command, checkout):
    report = json.loads(command("plan", "--json")[1])
    costs = report["estimates"]
    assert costs["tasks"].keys() == {task["key"] for task in report["tasks"]}
    assert {task["measured"] for task in costs["tasks"].values()} == {0}
    assert all("guess" in task["basis"] for task in costs["tasks"].values())
    for cell, cost in costs["cells"].items():
        keys = {entry["key"] for entry in report["entries"] if entry["cell"] == cell and entry["key"]}
        assert cost["tasks"] == len(keys)
        assert cost["seconds"] == pytest.approx(sum(costs["tasks"][key]["seconds"] for key in keys))
    built = [task for task in report["tasks"] if task["check"] == "environment"]
    assert built
    assert costs["total"]["disk_mib"] == sum(costs["tasks"][task["key"]]["disk_mib"] for task in built) > 0
    assert costs["total"]["seconds"] <= sum(cost["seconds"] for cost in costs["cells"].values())

    resolve = next(task for task in report["tasks"] if task["check"] == "resolve")
    record_resolve(checkout, resolve["key"])
    after = json.loads(command("plan", "--json")[1])["estimates"]
    assert costs["tasks"].keys() - after["tasks"].keys() == {resolve["key"]}
    assert {task["measured"] for task in after["tasks"].values()} == {0, 1}
    *_, summary, time, disk, index = command("plan")[1].splitlines()
    assert index == "note: no run of this ledger has asked the package index whether archives were replaced"
    assert "to run" in summary
    assert f"{after['total']['disk_mib'] / 1024:.1f} GiB of disk in total" in time
    assert f"{after['total']['guessed']} by a documented figure" in time
    assert "measured without vllm-ascend" in disk


def test_explain_says_what_each_check_of_a_cell_will_take(command):
    report = json.loads(command("explain", "steady", "--json")[1])
    text = command("explain", "steady")[1]
    wanted = {check["key"] for check in report["checks"] if check["key"]}
    assert report["estimates"]["tasks"].keys() == wanted
    assert not any(check["known"] for check in report["checks"])
    assert "GiB of disk (a guess: it has not run yet)" in text
    assert text.splitlines()[-2].startswith("estimates: about ")


def test_cells_are_dealt_out_to_jobs_and_of_a_change_only_those_it_touches(command, checkout):
    matrix, some = command("plan", "--github", "2")[1].splitlines()
    jobs = json.loads(matrix.removeprefix("matrix="))["include"]
    dealt = [cell for job in jobs for cell in job["cells"].split()]
    planned = [cell["id"] for cell in json.loads(command("plan", "--json")[1])["cells"]]
    assert (sorted(dealt), some) == (sorted(planned), "any=true")
    assert command("plan", "--changed-since", "HEAD", "--github", "2")[1].endswith("any=false\n")
    (checkout / "matrix.yaml").write_text(MATRIX.replace("[0.6.1, 0.9.1]", "[0.7.1, 0.9.1]"))
    changed = command("plan", "--changed-since", "HEAD", "--github", "8")[1]
    assert "verl-0-7-1-sim" in changed
    assert "verl-0-9-1-sim" not in changed
    assert command("plan", "--cards", "8")[0] == EXIT_BAD_INPUT
