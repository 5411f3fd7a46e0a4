"""`npu-matrix advise`: the newest stacks for a host, the newest version of an axis, what blocks a version."""

from __future__ import annotations

import json
from typing import Any

import click

from harness.errors import EXIT_NOTHING_SELECTED, EXIT_OK, InputError
from harness.settings import Settings

SCHEMA = {"schema": {"name": "npu-matrix.advice", "version": 1}}
CODES = {
    EXIT_OK: "there is an answer",
    EXIT_NOTHING_SELECTED: "no stack or version fits; the rules that exclude them are printed",
}


@click.command(
    "advise",
    epilog="\b\nExamples:\n  npu-matrix advise\n"
    "  npu-matrix advise --soc a2 --cann 8.5.0 --driver 25.5.0 --need gspo,vllm\n"
    "  npu-matrix advise --soc a3 --cann 9.0.0 --python 3.11 --with 'verl<0.9' --json\n"
    "  npu-matrix advise verl --with cann=8.5.0 --with soc=a2 --probe build\n"
    "  npu-matrix advise verl=0.9.1 --on verl-0-7-1\n\n"
    "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in CODES.items()),
)
@click.argument("wanted", required=False, metavar="[AXIS | AXIS=VALUE]")
@click.option("--soc", help="SoC family, such as a2 or a3. Default: that of this host.")
@click.option("--cann", help="CANN version. Default: that of this host.")
@click.option("--driver", help="Driver version. Default: that of this host.")
@click.option("--python", help="Python version of the environment. Default: the newest that is possible.")
@click.option(
    "--arch", help="Machine architecture, such as x86_64. Default: of a host with NPUs, else aarch64."
)
@click.option(
    "--need",
    "needs",
    multiple=True,
    metavar="WHAT",
    help="What the stack is for: grpo, gspo, vllm, megatron; a,b or repeated.",
)
@click.option(
    "--device", type=click.Choice(["npu", "sim"]), help="Hardware, or the simulated device. Default: npu."
)
@click.option("--index/--no-index", default=True, help="Ask the package index which releases it has.")
@click.option(
    "--most", type=click.IntRange(1, 20), default=3, show_default=True, help="How many stacks to show."
)
@click.option(
    "--with",
    "given",
    multiple=True,
    metavar="AXIS=VALUE",
    help="Only this version; also >=, <, !=. May be repeated.",
)
@click.option(
    "--on",
    "cell",
    metavar="CELL",
    help="With AXIS=VALUE: show what blocks this version on this cell or stack.",
)
@click.option(
    "--probe",
    type=click.Choice(["static", "build", "numerics", "convergence"]),
    help="With AXIS: run missing checks, cheapest tier first, up to this tier.",
)
@click.option(
    "--add",
    metavar="STACK",
    help="Add this stack of the advice to matrix.yaml, and write the file if there is none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.advice).")
@click.pass_obj
def command(settings: Settings, /, wanted: str | None, as_json: bool, **options: Any) -> int:
    """Find the newest stacks that are compatible with a host, with the evidence for each.

    Candidates are combinations of releases from the published tables of matrix.yaml and from the package
    index, not the cells of a profile. For each stack it prints how far documents list it, the checks that
    passed, failed or never ran, risks with what to do about them, and the commands to go on. Outcomes of
    simulated devices do not count for hardware, and outcomes of hardware not for simulated devices.

    With AXIS, the newest version of this axis among the cells of the matrix is printed. For a version without
    outcomes, the command that tests it is shown. With --probe the missing checks are run, newest version and
    cheapest tier first. If a version fails a tier, its more expensive tiers are skipped. With AXIS=VALUE and
    --on, the rules and checks that block this version on a cell are printed.
    """
    from harness.cli.host_advice_output import describe_stacks
    from harness.cli.version_advice_output import describe_newest_versions, describe_obstacles
    from harness.workspace.planning.open_plan import open_matrix

    _refuse_combinations(wanted, options)
    matrix = open_matrix(settings)
    found = True
    if options["cell"] is not None and wanted is not None:
        report, lines = describe_obstacles(settings, matrix, wanted, options["cell"])
    elif wanted is not None:
        report, lines = describe_newest_versions(settings, matrix, wanted, options["given"], options["probe"])
    else:
        report, lines, found = describe_stacks(settings, matrix, options)
    click.echo(json.dumps({**SCHEMA, **report}, indent=2) if as_json else "\n".join(lines))
    return EXIT_OK if found else EXIT_NOTHING_SELECTED


def _refuse_combinations(wanted: str | None, options: dict[str, Any]) -> None:
    """UsageError for options that do not belong together."""
    if options["probe"] and (wanted is None or options["cell"] is not None):
        raise click.UsageError("--probe needs AXIS without a value")
    if (options["cell"] is not None) != (wanted is not None and "=" in wanted):
        raise click.UsageError("AXIS=VALUE and --on need each other")
    if options["add"] and wanted is not None:
        raise click.UsageError("--add is for stacks of a host, without AXIS")
    if options["cell"] is not None and options["given"]:
        raise click.UsageError("--with needs AXIS without a value")
    of_host = [name for name in ("soc", "cann", "driver", "python", "arch", "device") if options[name]]
    if wanted is not None and (of_host or options["needs"]):
        name = of_host[0] if of_host else "need"
        raise InputError(
            f"--{name} cannot be used with {wanted}",
            why="AXIS looks at the cells of the matrix, not at a host",
            fix=f"write --with {name}=VALUE" if of_host and name != "driver" else "leave it out",
        )
