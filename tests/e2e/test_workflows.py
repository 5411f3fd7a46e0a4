"""Runs the steps of the workflows: a pull request that breaks a patch, its repair, and shards that fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pygit2
import pytest
from actions_runner import ROOT, JobResult, Runner, load
from git_command import git
from patched_checkout import added_line, matrix_of_patches, write_patch

FLOWS = {
    name: load(ROOT / ".github" / "workflows" / f"{name}.yml")
    for name in ("matrix", "patch-gate", "status-page")
}
GH = """\
#!/bin/bash
# Replaces GitHub's comments by a file, which it lists, writes and changes. --jq is ignored.
method=GET; for word in "$@"; do case $last in --method) method=$word;; --field) field=$word;; esac; last=$word; done
echo "$method" >> "$COMMENTS_LOG"
case $method in
  GET) test -s "$COMMENTS_FILE" && head -n 1 "$COMMENTS_FILE" | grep -q '^<!-- npu-matrix gate -->' && echo 7 || true ;;
  *) cat "${field#body=@}" > "$COMMENTS_FILE" ;;
esac
"""


def patch_of(old: int) -> str:
    return added_line("verl/core.py", f"a = {old}", "b = 2")


class Project:
    """A repository with two verl commits and one patch, and the runner of its workflows."""

    def __init__(self, folder: Path, parsed_code: Path) -> None:
        shutil.copytree(parsed_code, folder / "cache")
        self.root = folder / "origin"
        self.root.mkdir()
        self.commits = [self._upstream(folder / "mirrors" / "verl.git", f"c = {n}\n") for n in (1, 2)]
        git(self.root, "init", "-q", "-b", "main")
        self.write(old=1)
        self.commit("base")
        git(self.root, "commit", "-q", "--allow-empty", "-m", "as many are")
        self.comments = folder / "comment"
        self.log = folder / "comments.log"
        self.runner = Runner(
            folder / "runner",
            self.root,
            {
                "NPU_MATRIX_MIRRORS": str(folder / "mirrors"),
                "NPU_MATRIX_CACHE": str(folder / "cache"),
                "COMMENTS_FILE": str(self.comments),
                "COMMENTS_LOG": str(self.log),
            },
        )
        program = self.runner.tools / "gh"
        program.write_text(GH)
        program.chmod(0o755)

    @staticmethod
    def _upstream(folder: Path, other: str) -> str:
        repository = pygit2.init_repository(str(folder), bare=True)
        inner, root = repository.TreeBuilder(), repository.TreeBuilder()
        for name, text in (("core.py", "a = 1\n"), ("other.py", other)):
            inner.insert(name, repository.create_blob(text.encode()), pygit2.enums.FileMode.BLOB)
        root.insert("verl", inner.write(), pygit2.enums.FileMode.TREE)
        who = pygit2.Signature("a", "a@example.org", 1, 0)
        name = f"refs/heads/{other.strip()[-1]}"
        return str(repository.create_commit(name, who, who, "m", root.write(), []))

    def write(self, *, old: int) -> None:
        versions = [f"0.9.{n}@{commit}" for n, commit in enumerate(self.commits)]
        (self.root / "matrix.yaml").write_text(matrix_of_patches(versions))
        write_patch(self.root / "patches" / "verl" / "b", patch_of(old), versions=">=0.6,<=1.0")

    def commit(self, message: str) -> str:
        git(self.root, "add", "-A")
        git(self.root, "commit", "-q", "-m", message)
        return git(self.root, "rev-parse", "HEAD")

    def push_to_main(self, event: str = "push") -> JobResult:
        """Run matrix.yml on main. Its outcomes are the baseline of pull requests."""
        self.runner.new_run()
        flow, head = FLOWS["matrix"], git(self.root, "rev-parse", "main")
        github = {"github.event_name": event}
        planned = self.runner.job(flow, "plan", github, revision=head)
        assert not planned.failed, planned.output
        for shard in json.loads(planned.outputs["hosted"])["include"]:
            context = {**github, **{f"matrix.{name}": value for name, value in shard.items()}}
            assert not self.runner.job(flow, "hosted", context, revision=head).failed
        assert planned.outputs["any-npu"] == "false"
        needs = {"needs.plan.outputs.hosted": planned.outputs["hosted"], **ENDED}
        return self.runner.job(flow, "conclude", {**github, **needs}, revision=head)

    def publish(self) -> JobResult:
        """Run status-page.yml on main."""
        head = git(self.root, "rev-parse", "main")
        return self.runner.job(FLOWS["status-page"], "publish", {"github.token": "t"}, revision=head)

    def pull_request(self, head: str, *, dead: int = 0, npu: str = "skipped") -> tuple[JobResult, JobResult]:
        """Run patch-gate.yml at `head`. dead: how many shards do not run. npu: result of the shards on cards."""
        self.runner.new_run()
        flow, event = (
            FLOWS["patch-gate"],
            {"github.base_ref": "main", "github.event.pull_request.number": "5"},
        )
        planned = self.runner.job(flow, "plan", event, revision=head)
        assert not planned.failed, planned.output
        shards = json.loads(planned.outputs["cheap"])["include"]
        assert (planned.outputs["any"] == "true") == bool(shards)
        for shard in shards[dead:]:
            context = {**event, **{f"matrix.{name}": value for name, value in shard.items()}}
            assert not self.runner.job(flow, "cheap", context, revision=head).failed
        ended = {**event, **ENDED, "needs.npu.result": npu}
        gate = self.runner.job(flow, "gate", ended, revision=head)
        comment = self.runner.job(flow, "comment", event, revision=head)
        return gate, comment


#: Results of the jobs before the last one when no cell needs cards.
ENDED = {"needs.plan.result": "success", "needs.npu.result": "skipped"}


@pytest.fixture
def project(tmp_path: Path, parsed_code: Path) -> Project:
    return Project(tmp_path, parsed_code)


def test_a_pull_request_that_breaks_a_patch_is_blocked_with_one_comment(project: Project) -> None:
    assert not project.push_to_main("schedule").failed
    git(project.root, "checkout", "-q", "-b", "change")
    project.write(old=5)
    gate, comment = project.pull_request(project.commit("break it"))
    assert gate.failed.endswith(": 1"), gate.output
    assert "::error file=patches/verl/b/all.patch,line=1" in gate.output
    assert gate.output.count("more on 2 failed tasks") == 3, "each task is repeated three times"
    assert "failed 4 of 4 attempts" in gate.output
    assert not comment.failed, comment.output
    assert "newly broken" in project.comments.read_text()

    project.write(old=1)
    gate, comment = project.pull_request(project.commit("mend it"))
    assert not gate.failed, gate.output
    assert not comment.failed, comment.output
    assert "green" in project.comments.read_text()
    assert project.log.read_text().split() == ["GET", "POST", "GET", "PATCH"]


def test_the_status_page_is_published_with_its_history_also_when_it_is_red(project: Project) -> None:
    assert not project.push_to_main().failed
    first = project.publish()
    assert not first.failed, first.output
    project.write(old=5)
    project.commit("break it")
    project.push_to_main()
    second = project.publish()
    assert not second.failed, second.output
    names = git(project.root, "ls-tree", "--name-only", "status-page").split()
    assert {"index.html", "report.json", "changes.atom", "weekly.md", "metrics.txt", "history"} <= set(names)
    counts = json.loads(git(project.root, "show", "status-page:report.json"))["counts"]
    assert counts["fail"] > 0
    (earlier,) = [
        name
        for name in git(project.root, "ls-tree", "--name-only", "status-page:history").split()
        if name != "index.html"
    ]
    before = json.loads(git(project.root, "show", f"status-page:history/{earlier}/report.json"))
    assert before["counts"]["fail"] == 0
    assert git(project.root, "rev-list", "--count", "status-page") == "2"
    summary = max(project.runner.folder.glob("job-*-sum"), key=lambda file: file.stat().st_mtime)
    assert "unexpected failure" in summary.read_text()
    assert len(summary.read_bytes()) < 4096


def test_a_shard_that_died_is_red(project: Project) -> None:
    git(project.root, "checkout", "-q", "-b", "change")
    (project.root / "patches" / "verl" / "b" / "all.patch").write_text(patch_of(1).replace("b = 2", "b = 3"))
    head = project.commit("another patch")
    gate, _comment = project.pull_request(head, dead=1)
    assert gate.failed.endswith(": 4"), gate.output


def test_a_shard_on_cards_that_died_is_red(project: Project) -> None:
    git(project.root, "checkout", "-q", "-b", "change")
    (project.root / "NOTES").write_text("nothing that matters\n")
    head = project.commit("a note")
    gate, _comment = project.pull_request(head, npu="failure")
    assert gate.failed.endswith(": 4"), gate.output
    assert "outcomes of checks on NPUs are missing" in gate.output


def test_the_composite_action_gates_another_repository(project: Project) -> None:
    action = load(ROOT / "action.yml")
    defaults = {f"inputs.{name}": option.get("default", "") for name, option in action["inputs"].items()}
    context = {
        **defaults,
        "inputs.base": "origin/main",
        "github.action_path": str(ROOT),
    }
    same = project.runner.job(action, "", context, revision=git(project.root, "rev-parse", "main"))
    assert same.failed.endswith(": 3"), same.output
    git(project.root, "checkout", "-q", "-b", "change")
    (project.root / "NOTES").write_text("nothing that matters\n")
    unchanged = project.runner.job(action, "", context, revision=project.commit("a note"))
    assert not unchanged.failed, unchanged.output
    assert "no key changed" in unchanged.output
    project.write(old=5)
    done = project.runner.job(action, "", context, revision=project.commit("break it"))
    assert done.failed.endswith(": 1"), done.output
    comments = sorted(project.runner.folder.glob("job-*-tmp/npu-matrix.comment"))
    assert "newly broken" in comments[-1].read_text()
    assert "planned, but undecided" not in comments[-1].read_text()
