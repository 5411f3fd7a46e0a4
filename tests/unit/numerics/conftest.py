"""A task context for tests: the "cell" is a plain candidate in this process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutants import MUTANTS, REGRESSIONS
from plain_losses import PlainCandidate

from harness.check import Completed
from harness.evidence import DeviceFacts
from harness.numerics.calibration.calibration_measurements import DeviceConstant, DeviceConstants
from harness.numerics.loss.candidate import Candidate, CandidateResult, evaluate, save_results
from harness.numerics.loss.cases.loss_battery import default_battery
from harness.numerics.loss.cases.loss_case import LossCase, load_cases
from harness.numerics.loss.expected_result import save_expected
from harness.numerics.loss.loss_faults import SELF_TEST_CASES, SEPARATOR
from harness.numerics.loss.loss_measurements import LossProgramFacts, LossReferenceFacts, SourceFile
from harness.numerics.loss.loss_reference_program import references
from harness.numerics.loss.release_objectives import named_differences
from harness.serialisation import json_object

AS_FAULTS = {
    "gradient-sign": MUTANTS["gradient-sign"],
    "gradient-doubled": MUTANTS["gradient-doubled"],
    "low-precision": REGRESSIONS["exp-bf16"],
    "mask-shifted": MUTANTS["mask-shifted"],
}


DEVICE = DeviceFacts(device="npu:0", kind="npu", simulated=True)


@dataclass
class Cell:
    """The simulated cell: the candidate, the results with each fault injected, and how the program ends."""

    candidate: Candidate = field(default_factory=PlainCandidate)
    faulty: Mapping[str, Callable[[], Candidate]] = field(default_factory=lambda: AS_FAULTS)
    constants: tuple[DeviceConstant, ...] = (
        DeviceConstant(constant="exp_ulp", measured=0.5, contract=4.0, holds=True),
    )
    returncode: int = 0
    timed_out: bool = False
    hangs_in: str = ""

    def run(self, cases: Sequence[LossCase], out: Path) -> None:
        """Write results and then the self-test, as the program in the cell does."""
        if self.hangs_in:
            out.with_name(out.name + ".progress").write_text(self.hangs_in)
        if self.returncode or self.timed_out:
            return
        results: dict[str, CandidateResult] = evaluate(self.candidate, cases)
        chosen = [case for case in cases if case.name in SELF_TEST_CASES]
        for fault, make in self.faulty.items():
            found = evaluate(make(), chosen)
            results.update({f"{fault}{SEPARATOR}{name}": result for name, result in found.items()})
        facts = LossProgramFacts(
            device=DEVICE,
            python="3.11",
            numpy="2",
            verl="0.9.1",
            core_algos=SourceFile(file="core_algos.py", digest="0" * 64),
            capabilities=("gspo", "vanilla"),
            seconds={"import": 1.0, "battery": 0.1, "faults": 0.1},
        )
        save_results(out, results, facts)


@dataclass
class Context:
    """The part of a TaskContext that the numerics checks use."""

    workdir: Path
    cell: Cell
    facets: Mapping[str, Any] = field(
        default_factory=lambda: {"device": {"kind": "sim"}, "verl_tree": {"version": "0.9.1"}}
    )
    params: Mapping[str, Any] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    real: bool = False

    def in_cell(self, module: str, *args: str, env: Any = None, timeout: Any = None) -> Completed:
        options = dict(zip(args[::2], args[1::2], strict=False))
        if module == "harness.numerics.calibration.constants_program":
            report = DeviceConstants(device=DEVICE, constants=self.cell.constants)
            Path(options["--out"]).write_text(json.dumps(json_object(report)))
            return Completed(argv=args, returncode=0, tail="", seconds=1.0)
        assert module == "harness.numerics.loss.loss_program"
        self.cell.run(load_cases(Path(options["--cases"])), Path(options["--out"]))
        return Completed(
            argv=args,
            returncode=self.cell.returncode,
            tail="Traceback\nRuntimeError: aicore error\n" if self.cell.returncode else "",
            seconds=1.0,
            timed_out=self.cell.timed_out,
        )

    def command(
        self, argv: Sequence[str], *, env: Any = None, cwd: Any = None, timeout: Any = None
    ) -> Completed:
        """The reference, computed in this process unless `real`, because starting a process takes longer."""
        self.commands.append(tuple(argv))
        if self.real:
            done = subprocess.run(
                argv,
                env={**os.environ, **(env or {})},
                cwd=self.workdir,
                capture_output=True,
                text=True,
                check=False,
            )
            tail = done.stdout + done.stderr
            return Completed(argv=tuple(argv), returncode=done.returncode, tail=tail, seconds=0.1)
        options = dict(zip(argv[3::2], argv[4::2], strict=True))
        cases = load_cases(Path(options["--cases"]))
        intervals = references(cases, named_differences(options["--differences"].split(",")))
        facts = LossReferenceFacts(python="3.11", numpy="2", frameworks_loaded=(), seconds=0.1)
        save_expected(Path(options["--out"]), intervals, facts)
        return Completed(argv=tuple(argv), returncode=0, tail="", seconds=0.1)


@pytest.fixture(scope="session")
def small_battery() -> tuple[LossCase, ...]:
    """The default battery without the large families and with one family of the second contract; all branches
    occur."""
    return tuple(
        case
        for case in default_battery()
        if "-large/" not in case.name and ("@" not in case.name or "-near/" in case.name)
    )


@pytest.fixture
def context(tmp_path: Path, small_battery: tuple[LossCase, ...], monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(
        "harness.numerics.loss.cases.loss_battery.default_battery", lambda seed: small_battery
    )
    return Context(workdir=tmp_path, cell=Cell())
