from pathlib import Path

import pytest
from git_command import git

from harness.matrix.reading.load_matrix import load_matrix
from harness.plan.bisection.cells_between import bisection_cells, commit_values
from harness.plan.bisection.search import Bisection, Culprit
from harness.sources.git.git_repository import Repository

SHIPPED = Path(__file__).parents[3] / "matrix.yaml"


@pytest.fixture(scope="module")
def matrix():
    return load_matrix(SHIPPED)


def sims(matrix):
    return {cell.axes["verl"]: cell for cell in matrix.cells("default").cells if cell.device == "sim"}


def test_an_axis_steps_through_the_releases_in_between(matrix):
    ends = sims(matrix)
    space = bisection_cells(matrix, ends["0.6.1"], ends["0.9.1"])
    (span,) = space.spans
    assert span.values == ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
    assert space.cells[0] == ends["0.6.1"]
    assert space.cells[-1] == ends["0.9.1"]
    assert len({cell.id for cell in space.cells}) == len(space.cells)


def test_it_goes_backwards_when_the_newer_one_is_good(matrix):
    ends = sims(matrix)
    (span,) = bisection_cells(matrix, ends["0.9.1"], ends["0.6.1"]).spans
    assert span.values[0] == "0.9.1"
    assert span.values[-1] == "0.6.1"


def test_mixtures_break_no_rule_that_both_ends_keep(matrix):
    releases = list(matrix.cells("releases"))
    good = next(cell for cell in releases if cell.axes["torch"] == "2.9.0")
    bad = next(
        cell for cell in releases if cell.axes["torch"] == "2.10.0" and cell.axes["soc"] == good.axes["soc"]
    )
    space = bisection_cells(matrix, good, bad)
    assert (0,) * len(space.spans) in space.probes
    assert tuple(span.steps for span in space.spans) in space.probes
    for cell in space.cells:
        assert not list(matrix.violations.of_constraints(matrix.versions(cell.axes)))
    # torch and torch_npu move together in every valid cell, so no probe tells them apart.
    torch = [span.axis for span in space.spans].index("torch")
    search = Bisection([span.steps for span in space.spans], probes=space.probes)
    together = next(group for group in search.culprits if any(one.span == torch for one in group))
    assert "torch_npu" in {space.spans[one.span].axis for one in together}


def test_another_job_is_a_change_too(matrix):
    space = bisection_cells(matrix, matrix.stack_cell("gspo-async"), matrix.stack_cell("gspo-engine-worker"))
    (span,) = space.spans
    assert (span.axis, span.values) == ("recipe", ("gspo-async", "gspo-engine-worker"))
    assert space.name(Culprit(span=0, step=1)) == "recipe gspo-async -> gspo-engine-worker"
    assert "does not fail" in space.name(Culprit(span=-1, step=0))


def test_commits_on_the_line_of_first_parents(tmp_path, matrix):
    git(tmp_path, "init", "-q", "-b", "main")
    commits = []
    for number in range(4):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    git(tmp_path, "checkout", "-q", "-b", "side", commits[0])
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "aside")
    aside = git(tmp_path, "rev-parse", "HEAD")
    parse = matrix.axes["verl"].parse
    repository = Repository(tmp_path)
    good, bad = parse(f"0.6.1@{commits[0][:12]}"), parse(f"0.7.0.dev0@{commits[3]}")
    assert commit_values(repository, good, bad) == [
        str(good),
        f"0.7.0.dev0@{commits[1]}",
        f"0.7.0.dev0@{commits[2]}",
        str(bad),
    ]
    assert commit_values(repository, parse(f"0.6.1@{aside}"), bad) == []
    assert commit_values(repository, parse("0.6.1@" + "a" * 40), bad) == []
