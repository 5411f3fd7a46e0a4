"""The checks `upstream-tests` and `upstream-tests-cpu`: run test suites of upstreams inside the cell."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.cell_program.built_environment import ENVIRONMENT_FORMAT, EnvironmentBuilt
from harness.check import Check, TaskContext
from harness.digest import digest_bytes, digest_json
from harness.errors import InfrastructureError
from harness.evidence import DeviceFacts, evidence_of
from harness.matrix.model.suite_facet import SuiteFacet
from harness.measurements import read_shape
from harness.numerics.checks import FACETS
from harness.outcome import Evidence, Measured, Outcome, Tier
from harness.package import data_folder
from harness.serialisation import to_json
from harness.upstream_tests import suite_judge
from harness.upstream_tests.disabled_tests import read_disabled
from harness.upstream_tests.failure_classes import failure_class, message_class, stored_message
from harness.upstream_tests.in_cell.file_results import (
    FileLimits,
    FileResult,
    FilesToRun,
    FileToRun,
    RunReport,
    TestResult,
)
from harness.upstream_tests.result_cache import ResultCache, StoredResult
from harness.upstream_tests.suite_measurements import (
    GOOD,
    SUITES_FORMAT,
    MeasuredFile,
    MeasuredSuite,
    MeasuredTest,
    SuitesMeasured,
)
from harness.upstream_tests.suite_source import (
    ExportedTree,
    NoSource,
    SuiteSource,
    export_tree,
    find_source,
    moved,
)
from harness.upstream_tests.test_requirements import requirements_folder

#: A suite can have hundreds of files. What has ended is kept if the task is stopped.
SUITES_TIMEOUT_S = 24 * 3600.0
#: Results are stored after each program of the cell. A shorter time starts more programs, each of which
#: imports torch again.
PROGRAM_BUDGET_S = 300.0
#: Read by the simulated device; a real one has the cards that the task leased.
SIMULATED_CARDS = "NPU_SIM_COUNT"
WORKERS_VARIABLE = "NPU_MATRIX_TEST_WORKERS"


def run_on_device(context: TaskContext) -> Measured[SuitesMeasured]:
    """Run the suites that need the device of the cell."""
    return _run(context, "npu")


def run_on_cpu(context: TaskContext) -> Measured[SuitesMeasured]:
    """Run the suites that need no device."""
    return _run(context, "cpu")


def _run(context: TaskContext, device: str) -> Measured[SuitesMeasured]:
    environment = ENVIRONMENT_FORMAT.read(context.inputs["environment"].measurements)
    if not isinstance(environment, EnvironmentBuilt):
        raise InfrastructureError("the cell has no environment", fix="run the check `environment` first")
    measured, artifacts = [], {}
    for suite in _suites(context.facets, device):
        run = _SuiteRun.begin(context, suite, environment)
        if isinstance(run, MeasuredSuite):
            context.log(f"suite {suite.name} is not run: {run.not_run}")
            measured.append(run)
            continue
        before = run.stored_files()
        results = run.run()
        context.log(
            f"suite {suite.name}: {len(results)} files, {len(results) - len(before)} of them run now, "
            f"{len(before)} with a stored result"
        )
        measured.append(run.measured(results, before))
        name = f"failures-{suite.name}.json"
        (context.workdir / name).write_text(json.dumps(to_json(_failures(results))), encoding="utf-8")
        artifacts[name] = name
    evidence = [evidence_of(one.device) for one in measured if one.device is not None]
    return Measured(
        measurements=SuitesMeasured(suites=tuple(measured)),
        evidence=min(evidence, key=lambda one: one.rank, default=Evidence.CPU),
        artifacts=artifacts,
    )


def _suites(facets: Mapping[str, Any], device: str) -> Iterator[SuiteFacet]:
    for stored in facets["suites"]:
        suite = read_shape(SuiteFacet, stored)
        if suite.device == device:
            yield suite


def _failures(results: Sequence[FileResult]) -> list[FileResult]:
    """The files with failures, with those tests alone, and the ends of their tracebacks."""
    kept = [
        replace(one, tests=tuple(test for test in one.tests if test.ended not in GOOD)) for one in results
    ]
    return [one for one in kept if one.tests or one.uncollected]


@dataclass(frozen=True, kw_only=True)
class _SuiteRun:
    """One suite in one cell. keys: path of each test file -> the key of its stored result."""

    context: TaskContext
    suite: SuiteFacet
    source: SuiteSource
    tree: ExportedTree
    requirements: Path | None
    keys: Mapping[str, str]

    @classmethod
    def begin(
        cls, context: TaskContext, suite: SuiteFacet, environment: EnvironmentBuilt
    ) -> _SuiteRun | MeasuredSuite:
        """Find and export the tests; a measurement that says why, if they are not here."""
        packages = Path(environment.site_packages) if environment.container is None else None
        source = find_source(suite, packages)
        if isinstance(source, NoSource):
            return MeasuredSuite(name=suite.name, not_run=source.why, fix=source.fix)
        tree = export_tree(source, suite, context.cache)
        platform = context.facets["platform"]
        requirements = requirements_folder(
            context, suite.requirements, python=environment.python, platform=platform
        )
        keys = file_keys(context.facets, context.inputs["environment"], suite, tree)
        return cls(
            context=context, suite=suite, source=source, tree=tree, requirements=requirements, keys=keys
        )

    @property
    def _results(self) -> ResultCache:
        return ResultCache(self.context.cache / "upstream-tests" / "results")

    def stored_files(self) -> frozenset[str]:
        """The files whose results are stored, which are not run again."""
        return frozenset(path for path in self.tree.tests if self._read(path) is not None)

    def run(self) -> list[FileResult]:
        """Run the files without a stored result, and return the results of all files.

        A program of the cell runs for a few minutes, then what has ended is stored; so a run that is stopped
        goes on where it was.
        """
        while missing := [path for path in self.tree.tests if self._read(path) is None]:
            out = self.context.workdir / f"files-{self.suite.name}"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            try:
                self._run_program(missing, out)
            finally:
                finished = self._store(missing, out)
                # A folder that stays after an interruption is searched for secrets, file by file.
                shutil.rmtree(out, ignore_errors=True)
            if not finished:
                raise InfrastructureError(
                    f"no test file of the suite {self.suite.name} could be run in the cell",
                    why="the program that runs them ended first; see the log",
                    fix="run again; if it happens again, run the check `environment` with --fresh",
                )
        return [found for path in self.tree.tests if (found := self._read(path)) is not None]

    def _run_program(self, missing: Sequence[str], out: Path) -> None:
        tree, requirements = self.tree.folder, self.requirements
        if "engine" in self.context.facets["device"]:
            # A container sees the working folder of the task, but not the cache.
            tree, requirements = _copied(tree, out / "tree"), _copied(requirements, out / "requirements")
        suite, kind = self.suite, self.context.facets["device"]["kind"]
        files = tuple(
            FileToRun(path=path, key=self.keys[path][:32], left_out=left_out(suite, path)) for path in missing
        )
        work = FilesToRun(
            tree=str(tree),
            out=str(out),
            files=files,
            cwd=suite.cwd,
            python_path=suite.python_path,
            requirements=str(requirements or ""),
            config=suite.config,
            env=dict(suite.env),
            preload=suite.preload,
            device=suite.device,
            workers=workers(kind),
            # Tests for several cards use fixed ports. On NPUs, HCCL needs the network of the host.
            own_network=suite.cards > 1 and kind != "npu",
            budget_s=PROGRAM_BUDGET_S,
            limits=FileLimits(
                test_s=float(suite.test_seconds),
                file_s=float(suite.file_seconds),
                memory_bytes=suite.memory_mib << 20,
            ),
            # On an NPU, as the tests were written.
            warm_children=suite.device == "npu" and kind == "sim",
        )
        list_file, report = out / "work.json", out / "report.json"
        list_file.write_text(json.dumps(to_json(work)), encoding="utf-8")
        self.context.in_cell(
            "harness.upstream_tests.in_cell.run_files",
            *("--work", str(list_file), "--report", str(report)),
            # The simulated device counts its cards when the program starts, before the work list is read.
            env={SIMULATED_CARDS: str(suite.cards)},
            # Tests that need much memory run alone when the other files have ended.
            timeout=PROGRAM_BUDGET_S + (2.0 + work.workers) * suite.file_seconds + 120.0,
            on_cpu=suite.device == "cpu",
        )

    def _store(self, missing: Sequence[str], out: Path) -> int:
        """Store the results that the program wrote. Returns how many there are.

        A program that was stopped reports no device, and then its results are stored only if an earlier one
        of this suite did: all run in the same environment on the same device.
        """
        report = out / "report.json"
        device = read_shape(RunReport, report).device if report.is_file() else self._device()
        if device is None:
            return 0
        written = {path: out / f"{self.keys[path][:32]}.json" for path in missing}
        found = {path: file for path, file in written.items() if file.is_file()}
        for path, file in found.items():
            stored = StoredResult(result=read_shape(FileResult, file), device=device)
            self._results.write(self.keys[path], stored)
        return len(found)

    def _device(self) -> DeviceFacts | None:
        stored = (self._results.read(self.keys[path]) for path in self.tree.tests)
        return next((one.device for one in stored if one is not None), None)

    def _read(self, path: str) -> FileResult | None:
        stored = self._results.read(self.keys[path])
        return stored.result if stored is not None else None

    def measured(self, results: Sequence[FileResult], before: frozenset[str]) -> MeasuredSuite:
        """The suite with all its tests."""
        device = self._device()
        disabled: Mapping[str, str] = {}
        if self.suite.disabled and self.source.tree.mode(self.suite.disabled) is not None:
            disabled = read_disabled(self.source.tree.read(self.suite.disabled), self.suite.disabled)
        simulated = device is not None and device.simulated
        return MeasuredSuite(
            name=self.suite.name,
            commit=self.source.commit,
            rule=self.source.rule,
            exact=self.source.exact,
            tag=self.source.tag,
            files=tuple(
                _measured_file(one, disabled, simulated=simulated, reused=one.path in before)
                for one in results
            ),
            left_out=tuple(f"{one.test}: {one.reason}" for one in self.suite.left_out),
            device=device,
        )


def _copied(folder: Path | None, target: Path) -> Path:
    if folder is not None:
        shutil.copytree(folder, target, symlinks=True)
    return target


def left_out(suite: SuiteFacet, path: str) -> tuple[str, ...]:
    """The names of classes and tests in this file that the suite does not run."""
    named = [one.test.partition("::") for one in suite.left_out if "::" in one.test]
    return tuple(name for file, _, name in named if file == path)


def workers(device: str) -> int:
    """How many files run at a time: one on an NPU, elsewhere one per processor of this process."""
    chosen = os.environ.get(WORKERS_VARIABLE, "")
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen)
    return 1 if device == "npu" else max(1, len(os.sched_getaffinity(0)))


def file_keys(
    facets: Mapping[str, Any], environment: Outcome, suite: SuiteFacet, tree: ExportedTree
) -> dict[str, str]:
    """Path of each test file -> the key of its result: everything that can change how its tests end.

    Other test files count only if the file mentions their module.
    """
    names = {path.rpartition("/")[2].removesuffix(".py"): path for path in tree.blobs if _is_test(path)}
    shared = sorted((path, blob) for path, blob in tree.blobs.items() if not _is_test(path))
    common = digest_json(
        {
            "code": _program_digest(),
            "device": facets["device"] if suite.device == "npu" else {"kind": "cpu"},
            "environment": environment.content_digest,
            "platform": facets["platform"],
            "shared": shared,
            "suite": {name: getattr(suite, name) for name in _READ_BY_TESTS},
            "env": {**suite.env, SIMULATED_CARDS: str(suite.cards)},
        }
    )
    keys = {}
    for path in tree.tests:
        text = (tree.folder / path).read_text(encoding="utf-8", errors="replace")
        used = sorted((other, tree.blobs[other]) for name, other in names.items() if name in text)
        keys[path] = digest_json([common, path, tree.blobs[path], used, left_out(suite, path)])
    return keys


_READ_BY_TESTS = (
    "cwd",
    "python_path",
    "config",
    "preload",
    "cards",
    "requirements",
    "test_seconds",
    "file_seconds",
    "memory_mib",
)


def _is_test(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _program_digest() -> str:
    folder = data_folder("upstream_tests/in_cell")
    return digest_json({path.name: digest_bytes(path.read_bytes()) for path in sorted(folder.glob("*.py"))})


def _measured_file(
    result: FileResult, disabled: Mapping[str, str], *, simulated: bool, reused: bool
) -> MeasuredFile:
    skipped = result.uncollected.startswith("skipped: ")
    return MeasuredFile(
        path=result.path,
        tests=tuple(_measured_test(test, disabled, simulated=simulated) for test in result.tests),
        seconds=result.seconds,
        processes=result.processes,
        uncollected=result.uncollected,
        reused=reused,
        kind=message_class(result.uncollected, "", simulated=simulated)
        if result.uncollected and not skipped
        else None,
    )


def _measured_test(test: TestResult, disabled: Mapping[str, str], *, simulated: bool) -> MeasuredTest:
    name = test.id.partition("::")[2]
    bad = test.ended not in GOOD
    return MeasuredTest(
        name=name,
        ended=test.ended,
        seconds=test.seconds,
        kind=failure_class(test, simulated=simulated) if bad else None,
        message=stored_message(test, simulated=simulated) if bad else test.message,
        disabled=disabled.get(name.partition("[")[0], ""),
    )


def _applies(device: str, facets: Mapping[str, Any]) -> str:
    if any(suite["device"] == device for suite in facets["suites"]):
        return ""
    what = "on its device" if device == "npu" else "on the CPU"
    return f"matrix.yaml names no suite of an upstream that this cell could run {what}"


def _applies_on_device(facets: Mapping[str, Any]) -> str:
    return _applies("npu", facets)


def _applies_on_cpu(facets: Mapping[str, Any]) -> str:
    return _applies("cpu", facets)


def _holds(measured: SuitesMeasured, _outcome: Outcome) -> str:
    """Suites without a mirror are tried again."""
    waiting = [one.name for one in measured.suites if one.not_run]
    return f"the tests of {waiting[0]} were not here" if waiting else ""


def _altered(measured: SuitesMeasured, _outcome: Outcome) -> str:
    """A tag may name another commit than it did: then other tests are those of the cell."""
    return next((why for one in measured.suites if one.tag and (why := moved(one.tag))), "")


SUITE_FACETS = (*FACETS, "suites")
ON_DEVICE, ON_CPU = "upstream-tests", "upstream-tests-cpu"
SUITE_CHECK_NAMES = frozenset({ON_DEVICE, ON_CPU})

SUITE_CHECKS: tuple[Check, ...] = (
    Check(
        name=ON_DEVICE,
        tier=Tier.CONVERGENCE,
        question="Do the upstreams' own tests for NPUs pass in this cell, on its device?",
        facets=SUITE_FACETS,
        measurements=SUITES_FORMAT,
        run=run_on_device,
        judge=suite_judge.judge,
        needs=("environment",),
        stops=False,
        device=True,
        timeout_s=SUITES_TIMEOUT_S,
        expected_s=1800.0,
        applies=_applies_on_device,
        holds=_holds,
        altered=_altered,
    ),
    Check(
        name=ON_CPU,
        tier=Tier.CONVERGENCE,
        question="Do the upstreams' own tests that need no device pass with the packages of this cell?",
        facets=SUITE_FACETS,
        measurements=SUITES_FORMAT,
        run=run_on_cpu,
        judge=suite_judge.judge,
        needs=("environment",),
        stops=False,
        timeout_s=SUITES_TIMEOUT_S,
        expected_s=600.0,
        applies=_applies_on_cpu,
        holds=_holds,
        altered=_altered,
    ),
)
