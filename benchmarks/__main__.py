"""Run the benchmarks and print one table: `python -m benchmarks [NAME ...] [--json FILE] [--write] [--list]`.

Exit code 1: a limit was not kept, or a benchmark failed. What cannot run here is listed with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import Figure, run_benchmark

#: Each is a module of this package with a function `figures()` that yields `Figure`s.
BENCHMARKS = (
    "start_up",
    "planning_scale",
    "impact",
    "covering",
    "bisection",
    "shared_tasks",
    "patch_survival",
    "gate_speed",
    "flaky_policy",
    "log_triage",
    "log_damage",
    "reported_stacks",
    "version_cases",
    "retrodiction",
    "parameter_changes",
    "junit_merge",
    "card_leases",
    "report_speed",
    "decision_rule",
    "trainer_references",
    "loss_judge",
    "known_releases",
    "verl_losses",
    "lint_agreement",
    "lint_random_scripts",
    "lint_mutations",
    "lint_script_mistakes",
    "lint_launch_slips",
    "lint_server_options",
    "lint_written_slips",
    "lint_mended_scripts",
    "lint_precision",
    "lint_speed",
    "lint_bad_input",
    "allocator_options",
    "package_names",
    "advise_tables",
    "static_checks",
    "ledger_damage",
    "ray_cluster",
    "hardware_path",
    "device_faults",
    "device_limits",
    "first_report",
    "main_job",
)
HERE = Path(__file__).parent
STORED = HERE / "figures.json"
TABLE_START, TABLE_END = "<!-- table: start -->\n", "<!-- table: end -->\n"
HEADER = ("benchmark", "claim", "limit", "figure", "rival in the same run", "kept")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table: a figure, or why there is none."""

    benchmark: str
    date: str
    load: float
    figure: Figure | None = None
    not_run: str = ""
    failed: str = ""

    @property
    def is_good(self) -> bool:
        return not self.failed and (self.figure is None or self.figure.is_kept)

    def columns(self) -> tuple[str, ...]:
        """The texts of the table's columns."""
        if self.figure is None:
            return (self.benchmark, self.not_run or self.failed, "", "", "", "NO" if self.failed else "")
        one = self.figure
        sign = ">=" if one.is_lower_limit else "<="
        return (
            self.benchmark,
            one.claim,
            "" if one.limit is None else f"{sign} {show(one.limit, one.unit)}",
            show(one.measured, one.unit),
            "" if one.rival is None else f"{one.rival_name}: {show(one.rival, one.unit)}",
            "" if one.limit is None else "yes" if one.is_kept else "NO",
        )


def show(value: float, unit: str) -> str:
    """A number and its unit: three significant digits, or all digits of a large number."""
    digits = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()


def rows_of(name: str) -> list[Row]:
    """Run a benchmark in a separate process, so that its peak memory can be measured."""
    load, date = round(os.getloadavg()[0], 1), time.strftime("%Y-%m-%d")
    started = time.monotonic()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found, not_run, failed = pool.submit(run_benchmark, name).result()
    print(f"{name}: {time.monotonic() - started:.0f} s, load {load}", file=sys.stderr)
    rows = [Row(benchmark=name, date=date, load=load, figure=figure) for figure in found]
    if not found and not not_run:
        failed = failed or "failed: it yielded no figure"
    if not_run or failed:
        rows.append(Row(benchmark=name, date=date, load=load, not_run=not_run, failed=failed))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned Markdown."""
    lines = [HEADER, *(tuple(text.replace("|", "\\|") for text in row.columns()) for row in rows)]
    full = [line for line in lines if line[3]]
    widths = [max(len(line[place]) for line in full) for place in range(len(HEADER))]
    texts = [
        f"| {' | '.join(text.ljust(width) for text, width in zip(line, widths, strict=True))} |"
        for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts) + "\n"


def to_json(rows: Sequence[Row]) -> str:
    return json.dumps([{**asdict(row), "is_kept": row.is_good} for row in rows], indent=1) + "\n"


def read_stored() -> list[Row]:
    """The rows that the last `--write` stored."""
    stored = json.loads(STORED.read_text("utf-8")) if STORED.is_file() else []
    rows = []
    for one in stored:
        one.pop("is_kept")
        rows.append(Row(**{**one, "figure": Figure(**one["figure"]) if one["figure"] else None}))
    return rows


def write(rows: Sequence[Row]) -> None:
    """Replace the stored rows of the benchmarks that ran, and the table in README.md.

    An older figure stays if this machine cannot measure it.
    """
    measured = {row.benchmark for row in rows if row.figure}
    older = [row for row in read_stored() if row.benchmark not in measured]
    known = measured | {row.benchmark for row in older if row.figure}
    new = [row for row in rows if row.benchmark in measured or row.benchmark not in known]
    again = {row.benchmark for row in new}
    merged = [row for row in older if row.benchmark not in again] + new
    merged = [row for row in merged if row.benchmark in BENCHMARKS]
    merged.sort(key=lambda row: BENCHMARKS.index(row.benchmark))
    STORED.write_text(to_json(merged), "utf-8")
    loads = sorted(row.load for row in merged)
    days = sorted({row.date for row in merged})
    machine = (
        f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))} on {os.cpu_count()} cores "
        f"({platform.machine()}, Python {platform.python_version()}), at a load of {loads[0]} to {loads[-1]} "
        "from other work.\n\n"
    )
    missing = [name for name in BENCHMARKS if name not in {row.benchmark for row in merged}]
    note = f"\nNot measured on this machine yet: {', '.join(missing)}.\n" if missing else ""
    readme = HERE / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(TABLE_START)
    after = rest.partition(TABLE_END)[2]
    readme.write_text(f"{before}{TABLE_START}{machine}{table(merged)}{note}{TABLE_END}{after}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default: all")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--write", action="store_true", help="update figures.json and README.md here")
    parser.add_argument("--list", action="store_true", help="print what each benchmark measures")
    options = parser.parse_args()
    names = options.names or BENCHMARKS
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.list:
        for name in names:
            description = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
            print(f"{name}: {description.splitlines()[0]}")
        return 0
    rows = [row for name in names for row in rows_of(name)]
    print(table(rows), end="")
    if options.json:
        options.json.write_text(to_json(rows), "utf-8")
    if options.write:
        write(rows)
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
