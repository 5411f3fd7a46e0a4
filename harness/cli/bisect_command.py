"""`npu-matrix bisect GOOD [BAD]`: find the change between two cells that makes a check fail."""

from __future__ import annotations

from typing import Any

import click

from harness.cli.number_range import NumberRange
from harness.errors import EXIT_OK, InputError
from harness.serialisation import dumps
from harness.settings import Settings


@click.command(
    "bisect",
    epilog="\b\nExamples:\n  npu-matrix bisect GOOD BAD --check loss --dry-run\n"
    "  npu-matrix bisect GOOD BAD\n  npu-matrix bisect GOOD BAD --check grpo --false-fail 0.2\n"
    "  npu-matrix bisect CELL --check loss\n  npu-matrix bisect CELL+3 CELL --check loss\n"
    "  npu-matrix bisect CELL+verl/hf-rollout CELL --check loss",
)
@click.argument("good", metavar="GOOD[+PATCHES]")
@click.argument("bad", required=False, metavar="[BAD[+PATCHES]]")
@click.option(
    "--check",
    "check",
    help="The check that fails. Default: the cheapest check known to pass on GOOD and fail on BAD.",
)
@click.option(
    "--false-fail", type=NumberRange(0, 0.49), help="Probability that the check fails on a good cell."
)
@click.option(
    "--false-pass", type=NumberRange(0, 0.49), help="Probability that the check passes on a bad cell."
)
@click.option(
    "--confidence",
    type=NumberRange(0.5, 0.9999),
    default=0.995,
    show_default=True,
    help="Stop when the culprit is this probable.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum number of cells to run.",
)
@click.option(
    "--dry-run", is_flag=True, help="Run nothing; show the first cell to run and the expected cost."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.bisect).")
@click.pass_obj
def command(settings: Settings, /, good: str, bad: str | None, check: str | None, **options: Any) -> int:
    """Find the change between GOOD and BAD (cells or stacks) that makes a check fail.

    Every difference is a candidate: each axis with the versions in between, upstream commits if
    NPU_MATRIX_MIRRORS has their history, and our patches in series order. Stored outcomes are used; missing
    ones are run, starting with the cell that gives the most information for its cost. A flaky check is
    repeated until the result has the requested confidence.

    A cell has all patches for its versions. CELL+none has no patches, CELL+3 the first three, and
    CELL+verl/a,verl/b only these two. Without BAD, GOOD is compared with the same cell with all its patches.
    """
    from harness.plan.bisection.cells_between import bisection_cells
    from harness.plan.bisection.search import Bisection
    from harness.plan.keys.variant import patch_series
    from harness.workspace.execution.bisect_search import (
        BisectSearch,
        cell_with_patches,
        check_noise,
        commits_between,
        distinguishing_check,
        runnable_probes,
    )
    from harness.workspace.planning.open_plan import facet_inputs, open_matrix, open_plan

    matrix = open_matrix(settings)
    inputs = facet_inputs(settings, matrix)
    words = (good, bad) if bad else (good if "+" in good else f"{good}+none", good.partition("+")[0])
    first, last = (cell_with_patches(settings, matrix, word, inputs) for word in words)
    if (dict(first.axes), first.recipe, first.without) == (dict(last.axes), last.recipe, last.without):
        raise InputError(
            f"{words[0]} and {words[1]} have the same versions, recipe and patches",
            fix="name two cells that differ",
        )
    name = check or distinguishing_check(settings, (first, last))
    space = bisection_cells(
        matrix,
        first,
        last,
        commits_between(matrix, first, last),
        series=lambda axes: patch_series(axes, inputs),
    )
    context = open_plan(settings, checks=[name], choose=lambda _matrix: space.cells)
    space = space.with_probes(runnable_probes(context, space, name))
    search = Bisection(
        [span.steps for span in space.spans],
        probes=space.probes,
        noise=check_noise(context, name, options["false_fail"], options["false_pass"]),
        confidence=options["confidence"],
    )
    log = (lambda _text: None) if options["as_json"] else click.echo
    bisection = BisectSearch(context, space, search, name, log)
    bisection.use_stored_outcomes()
    if options["dry_run"]:
        report, code = bisection.forecast(), EXIT_OK
    else:
        report, code = bisection.go(options["limit"])
    if options["as_json"]:
        click.echo(dumps(report, indent=2))
    return code
