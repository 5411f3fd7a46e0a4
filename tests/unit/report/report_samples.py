"""A report with every verdict, every kind of evidence, and measurements like those of the real checks."""

from __future__ import annotations

import dataclasses
import enum
import math
import random
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from harness.compat.lint.lint_measurements import LINT_FORMAT, LintFinding, LintMeasured
from harness.convergence.decision.decision import Decision, Deviation, InterimTest, Statistic
from harness.convergence.smoke.smoke_measurements import SMOKE_FORMAT, SmokeMeasurements, SmokeRun
from harness.convergence.telemetry.training_records import (
    CurveBand,
    ReferenceProvenance,
    RewardCurve,
    TelemetryCurves,
    TrainingCurves,
)
from harness.digest import digest_bytes
from harness.evidence import DeviceFacts
from harness.ledger.plan_record import CellFacts, CellFinding, PlanEntry
from harness.numerics.actor.actor_measurements import (
    ACTOR_FORMAT,
    ActorMeasured,
    ActorReferenceFacts,
    GradientError,
    GradientResolution,
    LocatedFault,
    PackedRows,
    RecomputedMatmuls,
    TensorKindSummary,
)
from harness.numerics.loss.loss_measurements import (
    LOSS_FORMAT,
    REQUIRED,
    ROBUSTNESS,
    LossCaseOutcome,
    LossFinding,
    LossInjectedFault,
    LossMeasured,
    LossReferenceFacts,
    LossStatus,
    SourceFile,
)
from harness.numerics.twin.twin_measurements import (
    TWIN_FORMAT,
    Horizon,
    RoundingGrowth,
    TwinInjectedFault,
    TwinMeasured,
    TwinReferenceFacts,
)
from harness.outcome import ArtifactRef, Evidence, Outcome, State, Status, Tier
from harness.patchstack.apply.patch_verdict import HunkPlace, MeasuredPatch, PatchVerdict
from harness.patchstack.patch_measurements import PATCHES_FORMAT, PatchesMeasured
from harness.report.model.report_inputs import (
    CheckColumn,
    ComparisonRun,
    DiagnosisCard,
    ExcludedCombination,
    PublishedStatement,
    RememberedRun,
    ReportInputs,
    ReportResult,
    RunFacts,
)
from harness.report.model.streak import EarlierVerdict, History, HistoryEntry
from harness.report.model.survival_facts import SurvivalFacts
from harness.report.model.visible_text import as_bytes
from harness.upstream_tests.in_cell.file_results import Ended
from harness.upstream_tests.suite_measurements import (
    SUITES_FORMAT,
    FailureClass,
    MeasuredFile,
    MeasuredSuite,
    MeasuredTest,
    SuitesMeasured,
)
from harness.verdict.verdict import ExpectedFailure, Standing, Verdict

NOW = 1_795_161_600.0
DAY = 86_400.0
CHECKS = (
    CheckColumn(name="resolve", tier=Tier.STATIC, question="Do the pins resolve together?"),
    CheckColumn(name="patches", tier=Tier.STATIC, question="Do our patches still apply?"),
    CheckColumn(name="lint", tier=Tier.STATIC, question="Does the recipe fit this verl?"),
    CheckColumn(
        name="environment", tier=Tier.BUILD, question="Can the environment be built, and is it what it says?"
    ),
    CheckColumn(name="loss", tier=Tier.NUMERICS, question="Are verl's policy losses right on this device?"),
    CheckColumn(name="grpo", tier=Tier.CONVERGENCE, question="Does GRPO learn?"),
    CheckColumn(name="gspo", tier=Tier.CONVERGENCE, question="Does GSPO learn?"),
)
TIER = {check.name: check.tier for check in CHECKS}
NAMES = tuple(check.name for check in CHECKS)

ROWS = (
    ("verl-0.9.1-sim", "verl 0.9.1 on the simulated NPU", "sim", "0.9.1", "2.13.0", "—", "9.0.0", "sim"),
    ("verl-0.6.1-sim", "verl 0.6.1 on the simulated NPU", "sim", "0.6.1", "2.13.0", "—", "9.0.0", "sim"),
    (
        "gptoss-20b-grpo",
        "gpt-oss-20b GRPO",
        "npu",
        "0.6.1+d62da495",
        "2.7.1",
        "941d54a2",
        "8.5.0",
        "Ascend910B3",
    ),
    ("verl-npu-plugin", "verl_npu plugin", "npu", "796871d7", "2.7.1", "1de16ead", "8.3.RC1", "Ascend910B3"),
    (
        "one-step-off-2card",
        "One step off, 2 cards",
        "npu",
        "ccd7d934",
        "2.7.1",
        "0.11.0rc1",
        "8.3.RC1",
        "Ascend910_9382",
    ),
    ("gptoss-infer", "gpt-oss inference", "npu", "—", "7.2.RC1", "—", "8.3.RC1.alpha002", "Ascend910_9382"),
    (
        "gspo-qwen25-3b",
        "GSPO Qwen2.5-3B",
        "npu",
        "0.7.0.dev0",
        "2.7.1",
        "0.10.0rc1",
        "8.2.RC2",
        "Ascend910B3",
    ),
    (
        "gspo-qwen3-30b-a3b",
        "GSPO Qwen3-30B-A3B",
        "npu",
        "0.7.0.dev0",
        "2.7.1",
        "0.10.0rc1",
        "8.2.RC2",
        "Ascend910B3",
    ),
    ("gspo-async", "GSPO async rollout", "npu", "5a2e0b1c", "2.7.1", "0.11.0rc1", "8.3.RC1", "Ascend910B3"),
    ("verl-0.7.1-a2", "verl 0.7.1 as released", "npu", "0.7.1", "2.7.1", "0.11.0", "8.3.RC1", "Ascend910B3"),
    ("verl-0.8.0-a3", "verl 0.8.0 as released", "npu", "0.8.0", "2.9.0", "0.14.0", "8.5.0", "Ascend910_9382"),
    (
        "verl-0.9.0-a3",
        "verl 0.9.0 as released",
        "npu",
        "0.9.0",
        "2.10.0",
        "0.17.0",
        "8.5.0",
        "Ascend910_9382",
    ),
)


DEVICE = DeviceFacts(device="npu:0", kind="npu", simulated=True, soc="Ascend910B3", torch_npu="2.13.0")


def curve(seed: int, start: float, end: float, steps: int = 60, noise: float = 0.02) -> list[float]:
    """A learning curve from `start` to `end`."""
    draw = random.Random(seed)
    return [
        round(end + (start - end) * math.exp(-4 * step / steps) + draw.gauss(0, noise), 5)
        for step in range(steps)
    ]


def loss_measured(verl: str = "0.9.1", *, broken: bool = False) -> LossMeasured:
    """A battery of loss cases, each with the share of its tolerance that is used."""
    draw = random.Random(7)
    cases = [
        LossCaseOutcome(
            name=f"{algorithm}/{mode}/{shape}",
            kind="policy loss",
            severity=REQUIRED,
            status=LossStatus.PASS,
            reasons=(),
            budget=round(draw.uniform(0.02, 0.6), 4),
            scale=1.0,
        )
        for algorithm in ("vanilla", "gspo")
        for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
        for shape in ("short", "ragged", "one token")
    ]
    if broken:
        cases[3] = replace(
            cases[3], status=LossStatus.FAIL, budget=3.5, reasons=("gradient off by a factor",)
        )
    cases.append(
        LossCaseOutcome(
            name="vanilla/padding-not-finite",
            kind="policy loss",
            severity=ROBUSTNESS,
            status=LossStatus.FAIL,
            reasons=("not finite",),
            budget=1e300,
            scale=1.0,
        )
    )
    finding = LossFinding(
        id="gspo-ignores-loss-agg-mode",
        what="GSPO ignores loss_agg_mode",
        source="measured",
        kind="objective",
        cases=tuple(case.name for case in cases[9:12]),
    )
    return LossMeasured(
        verl=verl,
        findings=(finding,) if verl < "0.9.1" else (),
        capabilities=("gspo", "vanilla", *(("token-sum",) if verl >= "0.9.1" else ())),
        seed=7,
        cases=tuple(cases),
        counts={"pass": len(cases)},
        worst_budget=0.59,
        self_test=tuple(
            LossInjectedFault(
                fault=fault,
                what=what,
                caught=True,
                caught_in=("vanilla/token-mean",),
                missed_in=(),
                scale={"vanilla/token-mean": -1.0},
            )
            for fault, what in (
                ("sign", "advantages negated"),
                ("mask", "padding counted"),
                ("clip", "clip ignored"),
            )
        ),
        device=DEVICE,
        core_algos=SourceFile(file="core_algos.py", digest="0" * 64),
        reference=LossReferenceFacts(python="3.11", numpy="2", frameworks_loaded=(), seconds=1.0),
        seconds={"battery": 1.0},
    )


def loss_measurements(verl: str = "0.9.1", *, broken: bool = False) -> dict:
    """`loss_measured` as the ledger stores it."""
    return LOSS_FORMAT.write(loss_measured(verl, broken=broken))


def actor_measurements() -> dict:
    """One update through verl's actor, tensor by tensor, as the ledger stores it."""
    gradients = tuple(
        GradientError(
            name=f"model.layers.{layer}.self_attn.{part}_proj.weight",
            step=step,
            relative_error=1.5e-6 * (layer + 1) * step,
            tolerance=1.4e-4,
            budget=round(0.011 * (layer + 1) * step, 4),
        )
        for layer in range(2)
        for part in "qkvo"
        for step in (1, 2)
    )
    return ACTOR_FORMAT.write(
        ActorMeasured(
            verl="0.9.1",
            path="DataParallelPPOActor",
            compute="float32",
            finding="",
            device=DEVICE,
            tensors=674,
            diverged=0,
            first=None,
            named=(),
            kinds={
                kind: TensorKindSummary(tensors=54, diverged=0, worst_budget=share)
                for kind, share in (("forward", 0.086), ("backward", 0.026), ("gradient", 0.024))
            },
            gradients=gradients,
            missing=(),
            bypassed=0,
            differing=(),
            resolution=GradientResolution(steps={"1": 0.1, "2": 0.1}, unobservable=(), unjudged=()),
            guessed=(),
            matmuls=RecomputedMatmuls(),
            packed=PackedRows(tensors=54),
            self_test=(
                LocatedFault(
                    fault="gradient-sign",
                    what="one gradient has the wrong sign",
                    caught=True,
                    place="x",
                    first="x",
                ),
                LocatedFault(
                    fault="activation-bf16",
                    what="one output is rounded",
                    caught=False,
                    place="x",
                    first="",
                ),
            ),
            reference=ActorReferenceFacts(
                verl="0.9.1",
                torch="2.7.1",
                samples=8,
                contract="fp32",
                paths=("DataParallelPPOActor",),
                slack=9.0,
                unbounded_operators=(),
                frameworks_loaded=(),
                seconds=1.0,
            ),
            seconds={"all": 2.0},
        )
    )


def twin_measurements(worst: tuple[float | None, ...]) -> dict:
    """A twin run with these worst errors over tolerance by step, as the ledger stores it."""
    return TWIN_FORMAT.write(
        TwinMeasured(
            verl="0.9.1",
            path="DataParallelPPOActor",
            device=DEVICE,
            steps=3,
            planned_steps=3,
            worst_by_step=worst,
            worst_budget=0.11,
            tensors=100,
            bypassed=0,
            diverged=0,
            first=None,
            named=(),
            guessed=(),
            self_test=(
                TwinInjectedFault(
                    fault="moments-lost",
                    what="Adam forgets its moments",
                    caught=True,
                    place="x",
                    step=2,
                    first=None,
                ),
            ),
            reference=TwinReferenceFacts(
                verl="0.9.1",
                torch="2.7.1",
                samples=6,
                contract="fp32",
                horizon=Horizon(horizon=3, slack=(9.0, 9.0, 9.0), limited_by=""),
                rounding=RoundingGrowth(noise=(1e-6, 1e-6, 1e-6), growth=1.1),
                unbounded_operators=(),
                frameworks_loaded=(),
                seconds=1.0,
            ),
            seconds={"all": 2.0},
        )
    )


def training_measured(*, learns: bool = True, seed: int = 1) -> SmokeMeasurements:
    """A training's curves with the reference's band and telemetry."""

    def band(start: float, end: float, width: float) -> dict[str, tuple[float, ...]]:
        mean = curve(seed + 50, start, end, noise=0.004)
        return {
            "mean": tuple(mean),
            "low": tuple(x - width for x in mean),
            "high": tuple(x + width for x in mean),
        }

    telemetry = {
        "entropy": (2.1, 0.7, 0.2, 0.04),
        "kl": (0.0, 0.04, 0.01, 0.002),
        "grad_norm": (1.4, 0.3, 0.2, 0.06),
        "clip_fraction": (0.12, 0.02, 0.02, 0.004),
    }
    looks = tuple(
        InterimTest(
            purpose="screen",
            runs=1,
            fraction=fraction,
            statistic=Statistic(
                name=name,
                look=fraction,
                runs=1,
                candidate=0.31,
                reference=0.92,
                sd=0.1,
                t=-1.0,
                p=0.19 if learns else 0.0004,
                shared=False,
            ),
            level=level,
            alarm=not learns and fraction > 0.4,
        )
        for fraction, level, name in (
            (0.25, 0.01, "pg_loss/final"),
            (0.5, 0.02, "ppo_kl/final"),
            (0.75, 0.03, "reward/mean"),
            (1.0, 0.09, "entropy/mean"),
        )
    )
    run = SmokeRun(
        seed=1000,
        fault=None,
        problems=(),
        series={"reward": tuple(curve(seed, 0.2, 0.9))},
        stopped=None,
        host=None,
        performance={},
    )
    return SmokeMeasurements(
        state="measured",
        algorithm="grpo",
        recipe_digest="",
        recipe={},
        reference="",
        reference_provenance=ReferenceProvenance(device=DeviceFacts(device="cpu"), date="2026-11-01"),
        runs=(run,),
        curves=TrainingCurves(
            reference=CurveBand(**band(0.25, 0.92, 0.09)),
            candidate=(RewardCurve(seed=1000, reward=tuple(curve(seed, 0.24, 0.9 if learns else 0.31))),),
            telemetry={
                name: TelemetryCurves(
                    **band(start, end, width),
                    candidate=(tuple(curve(seed + 1, start, end, noise=noise)),),
                )
                for name, (start, end, width, noise) in telemetry.items()
            },
            looks=(15, 30, 45, 60),
        ),
        device=DEVICE,
        seconds_per_step=0.41,
        decision=Decision(
            status=Status.PASS if learns else Status.FAIL,
            decided_by="non-inferiority" if learns else "screen",
            reasons=(),
            looks=looks,
            twins=(Deviation(series="ppo_kl", size=1.8e-06, limit=0.03, step=0),),
            runs_used=1,
            shortfall=0.06 if learns else 0.7,
        ),
    )


def training_measurements(*, learns: bool = True, seed: int = 1) -> dict:
    """`training_measured` as the ledger stores it."""
    return SMOKE_FORMAT.write(training_measured(learns=learns, seed=seed))


def lint_measurements(findings: tuple[LintFinding, ...]) -> dict:
    """What the lint of a recipe found, as the ledger stores it."""
    return LINT_FORMAT.write(LintMeasured(findings=findings, undecided=(), recipe="recipe", is_verl_job=True))


LOGS = tempfile.TemporaryDirectory(prefix="report-samples-")
LOCK = "\n".join(f"package-{i}==1.{i}.0 --hash=sha256:{i:064x}" for i in range(40))
LOG = "\n".join(
    [f"[{i:04d}] compile kernel {i} ok" for i in range(260)]
    + ["RuntimeError: NCCL is not available, and this build of verl asked for it", "exit code 1"]
)


@cache
def log_file(text: str) -> Path:
    """A file with this log, which is removed when the process ends."""
    file = Path(LOGS.name, f"{digest_bytes(as_bytes(text))}.log")
    file.write_bytes(as_bytes(text))
    return file


def result(
    cell: str,
    check: str,
    status: Status,
    *,
    tier: Tier | None = None,
    standing: Standing = Standing.AS_EXPECTED,
    evidence: Evidence | None = None,
    reasons: tuple[str, ...] = (),
    remedies: tuple[str, ...] = (),
    expected: ExpectedFailure | None = None,
    key: str = "",
    measurements: Mapping[str, Any] | None = None,
    started: float = NOW - 400,
    seconds: float = 12.5,
    artifacts: tuple[ArtifactRef, ...] = (),
    history: Iterable[HistoryEntry] = (),
    **more: Any,
) -> ReportResult:
    """A result with what every executed task has."""
    tier = tier or TIER[check]
    if evidence is None and status in {Status.PASS, Status.FAIL, Status.INCONCLUSIVE}:
        evidence = Evidence.STATIC if tier is Tier.STATIC else Evidence.SIMULATED
    question = next((item.question for item in CHECKS if item.name == check), "")
    key = key or (f"{cell}:{check}".encode().hex() * 8)[:64]
    outcome = Outcome(
        key=key,
        check=check,
        tier=tier,
        state=State.COMPLETED,
        evidence=evidence or Evidence.STATIC,
        facets={},
        measurements=measurements or {},
        artifacts=artifacts,
        started=started,
        finished=started + seconds,
        run_id="20261120-0731",
    )
    verdict = Verdict(
        cell_id=cell,
        check=check,
        status=status,
        standing=standing,
        reasons=reasons,
        remedies=remedies,
        evidence=evidence,
        expected=expected,
        key=key,
        outcome=outcome,
    )
    facts: dict[str, Any] = {
        "facets": {"pins": "9f2c" * 16, "platform": {"python": "3.11", "arch": "x86_64"}},
        "reproduce": f"npu-matrix run --only {cell} --check {check}",
    }
    return ReportResult(
        entry=PlanEntry(cell_id=cell, check=check, tier=tier, question=question, key=key),
        verdict=verdict,
        history=history if isinstance(history, History) else History(history),
        **(facts | more),
    )


def changed(
    item: ReportResult, *, measurements: Mapping[str, Any] | None = None, **verdict: Any
) -> ReportResult:
    """A result with other fields of its verdict, or other measurements."""
    outcome = item.verdict.outcome
    if outcome and measurements is not None:
        verdict["outcome"] = replace(outcome, measurements=measurements)
    return replace(item, verdict=replace(item.verdict, **verdict))


def _simulated(cell: str, verl: str) -> list[ReportResult]:
    lock = [
        {"name": name, "version": version, "via": ["verl"]}
        for name, version in (
            ("torch", "2.13.0+cpu"),
            ("torch-npu", "2.13.0"),
            ("verl", verl),
            ("ray", "2.60.0"),
        )
    ]
    patches = PatchesMeasured(
        selected=("npu-device-name", "nccl-guard"),
        tree=f"verl {verl}",
        applies=True,
        verdicts=(
            MeasuredPatch(
                patch="npu-device-name",
                verdict=PatchVerdict.CLEAN,
                hunks=(HunkPlace(path="verl/utils/device.py", line=41, offset=0, symbol="get_device_name"),),
            ),
            MeasuredPatch(
                patch="nccl-guard",
                verdict=PatchVerdict.OFFSET,
                offset=14,
                reasons=("the file grew above the hunk",),
                hunks=(HunkPlace(path="verl/workers/engine.py", line=120, offset=14, symbol="init_group"),),
            ),
        ),
    )
    return [
        result(cell, "resolve", Status.PASS, measurements={"packages": lock}, seconds=4.1),
        result(
            cell,
            "patches",
            Status.PASS,
            measurements=PATCHES_FORMAT.write(patches),
            seconds=0.3,
        ),
        result(cell, "lint", Status.PASS, measurements=lint_measurements(()), seconds=0.2),
        result(
            cell,
            "environment",
            Status.PASS,
            measurements={
                "versions": {"torch": "2.13.0+cpu", "torch_npu": "2.13.0", "verl": verl},
                "patched_files": 3,
            },
            log=log_file(LOG[:3000]),
            history=(
                HistoryEntry(
                    time=NOW - DAY,
                    run_id="20261119-0200",
                    verdict=EarlierVerdict(status=Status.PASS, evidence=Evidence.SIMULATED),
                ),
            ),
        ),
    ]


def night_of(days: int) -> str:
    """The id of the run so many nights ago."""
    return f"{time.strftime('%Y%m%d', time.gmtime(NOW - days * DAY))}-0200"


def past(*statuses: Status, evidence: Evidence = Evidence.SIMULATED) -> History:
    """One run a night, the last one yesterday; a new key with the third run from the end."""
    return History(
        HistoryEntry(
            time=NOW - days * DAY,
            run_id=night_of(days),
            verdict=EarlierVerdict(
                status=status,
                evidence=evidence if status in {Status.PASS, Status.FAIL} else None,
                key="old" if days > 2 else "new",
            ),
            reused=days > 2,
            figures=(("last reward", 0.8 + days / 100),) if status in {Status.PASS, Status.FAIL} else (),
        )
        for days, status in zip(range(len(statuses), 0, -1), statuses, strict=True)
    )


def earlier_run(results: list[ReportResult]) -> ComparisonRun:
    """Yesterday's run: verdicts from the history where there is one, otherwise those of today, with four differences."""
    verdicts = {
        (item.cell_id, item.check): item.history[-1].verdict
        if item.history
        else EarlierVerdict(status=item.verdict.status, evidence=item.verdict.evidence, key=item.entry.key)
        for item in results
    }
    failed = EarlierVerdict(status=Status.FAIL, reason="entropy collapsed", evidence=Evidence.SIMULATED)
    verdicts["verl-0.9.1-sim", "grpo"] = failed
    verdicts["one-step-off-2card", "environment"] = EarlierVerdict(
        status=Status.PASS, evidence=Evidence.HARDWARE
    )
    verdicts["verl-0.7.1-a2", "environment"] = EarlierVerdict(status=Status.PASS, evidence=Evidence.HARDWARE)
    verdicts["removed-cell", "resolve"] = EarlierVerdict(status=Status.PASS, evidence=Evidence.STATIC)
    return ComparisonRun(
        run_id="20261119-0200",
        started=NOW - DAY,
        revision="9e1d2c3b4a5f60718293a4b5c6d7e8f901234567",
        verdicts=verdicts,
        causes={
            ("verl-0.9.1-sim", "gspo"): (
                "verl_tree.version: '0.9.0' -> '0.9.1'",
                "patches[verl].verl/agg-loss.digest: 'a1b2' -> 'c3d4'",
            ),
        },
    )


def sample_survival() -> SurvivalFacts:
    """Three patches over forty commits."""
    commits = [
        {
            "commit": f"{number:040x}",
            "date": f"2026-10-{40 - number if number > 9 else 30:02}T00:00:00Z",
            "subject": f"[trainer] change {number}",
        }
        for number in range(40)
    ]
    turn = {**commits[12], "from": "clean", "to": "conflict"}
    mended = {**commits[4], "from": "conflict", "to": "offset"}
    patches = [
        {"id": "verl/nccl-guard", "verdicts": [1] * 4 + [6] * 9 + [0] * 27, "applies_to": 0.775},
        {"id": "verl/npu-device-name", "verdicts": [3] * 10 + [0] * 30, "applies_to": 0.75},
        {
            "id": "verl/agg-loss",
            "verdicts": [0] * 40,
            "applies_to": 1.0,
            "bodies": [
                {"file": "0.8.0.patch", "versions": ">=0.8.0,<0.9.0", "verdicts": [6] * 10 + [0] * 30},
                {"file": "0.9.0.patch", "versions": ">=0.9.0", "verdicts": [0] * 20 + [6] * 20},
            ],
        },
    ]
    return SurvivalFacts.model_validate(
        {
            "schema": {"name": "npu-matrix/survival", "version": 1},
            "range": "v0.8.0..v0.9.1",
            "commits": commits,
            "legend": [
                "clean",
                "offset",
                "merged",
                "already-upstream",
                "line-endings",
                "misplaced",
                "conflict",
            ],
            "patches": [{**patches[0], "breaks": [turn], "fixes": [mended]}, *patches[1:]],
        }
    )


def sample_inputs() -> ReportInputs:
    """The whole sample."""
    cells = []
    results: list[ReportResult] = []
    for identity, title, device, verl, torch_npu, ascend, cann, soc in ROWS:
        axes = {
            "verl": verl,
            "torch_npu": torch_npu,
            "vllm_ascend": ascend,
            "cann": cann,
            "soc": soc,
            "python": "3.11" if device == "sim" else "3.10",
        }
        cells.append(
            CellFacts(
                id=identity,
                title=title,
                stack=identity,
                axes=axes,
                provenance={axis: f"matrix.yaml:{40 + place}:7" for place, axis in enumerate(axes)},
                findings=(
                    CellFinding(
                        what="The article pins vllm 0.11.0 but its log shows 0.10.1.", source="seeds/002"
                    ),
                )
                if identity == "one-step-off-2card"
                else (),
                device=device,
                recipe="gspo-3b" if "gspo" in identity else "",
            )
        )
    planned = {
        cell.id: tuple(
            name for name in NAMES if cell.id != "gptoss-infer" or TIER[name] is not Tier.CONVERGENCE
        )
        for cell in cells
    }
    results += _simulated("verl-0.9.1-sim", "0.9.1")
    results += [
        result("verl-0.9.1-sim", "loss", Status.PASS, measurements=loss_measurements(), seconds=9.4),
        result(
            "verl-0.9.1-sim",
            "grpo",
            Status.PASS,
            measurements=training_measurements(),
            seconds=48,
            history=past(*[Status.PASS] * 5, Status.FAIL, Status.NOT_RUN, Status.FAIL, Status.FAIL),
        ),
        result(
            "verl-0.9.1-sim",
            "gspo",
            Status.FAIL,
            standing=Standing.UNEXPECTED,
            reasons=(
                "The reward stays at 0.31 where the reference reaches 0.92: outside its band from step 9 on.",
                "entropy falls as usual, so the policy moves, but not uphill",
            ),
            remedies=(
                "Compare the sign of the advantages in verl/trainer/ppo/core_algos.py with 0.6.1.",
                "npu-matrix bisect --check gspo --good 0.8.0 --bad 0.9.1",
            ),
            diagnosis=DiagnosisCard(
                id="nccl",
                known=True,
                line=261,
                excerpt="RuntimeError: NCCL is not available, and this build of verl asked for it",
                cause="the weight sync asks for a group of a backend that NPUs do not have",
                remedy="verl 0.7.0 or later",
                affects="verl < 0.7.0",
                sources=("verl-project/verl#4651",),
                also=("torch-missing-op",),
            ),
            measurements=training_measurements(learns=False, seed=9),
            seconds=51,
            log=log_file(LOG),
            history=past(*[Status.FAIL] * 2, *[Status.PASS] * 9),
        ),
    ]
    results += _simulated("verl-0.6.1-sim", "0.6.1")
    results += [
        result(
            "verl-0.6.1-sim",
            "loss",
            Status.PASS,
            standing=Standing.UNEXPECTED_PASS,
            measurements=loss_measurements("0.6.1"),
            expected=ExpectedFailure(
                state="fail",
                reason="gspo divided by the padded length",
                source="expectations.yaml:12:3",
                until="2026-12-31",
            ),
            reasons=("Listed as a known failure, but it passes.",),
            remedies=("Remove expectations.yaml:12, or run npu-matrix expect update.",),
        ),
        result("verl-0.6.1-sim", "grpo", Status.PASS, measurements=training_measurements(seed=3)),
        result(
            "verl-0.6.1-sim",
            "gspo",
            Status.INCONCLUSIVE,
            reasons=("3 of 5 seeds end inside the band: not enough to decide at 5 %.",),
            remedies=("Run with --seeds 12.",),
            measurements=training_measurements(seed=4),
        ),
    ]
    for identity, _, _, _, torch_npu, _, cann, _ in ROWS[2:]:
        known = torch_npu == "2.7.1" and cann == "8.2.RC2"
        results.append(
            result(
                identity,
                "resolve",
                Status.FAIL if known else Status.PASS,
                standing=Standing.KNOWN if known else Standing.AS_EXPECTED,
                reasons=(
                    "vllm-ascend 0.10.0rc1 wants torch-npu 2.7.1.dev20250724, which is not on any index.",
                )
                if known
                else (),
                expected=ExpectedFailure(
                    state="fail",
                    reason="development wheel was withdrawn",
                    source="expectations.yaml:4:3",
                    until="2027-01-31",
                )
                if known
                else None,
                measurements={"packages": []},
            )
        )
        results.append(
            result(identity, "patches", Status.UNSUPPORTED if identity == "gptoss-infer" else Status.PASS)
        )
        if identity == "one-step-off-2card":
            findings = tuple(
                LintFinding(
                    rule=rule,
                    severity="error",
                    file="examples/one_step_off.sh",
                    line=line,
                    column=5,
                    message=message,
                    why=why,
                    fix=fix,
                    source="release notes of verl",
                )
                for line, rule, message, why, fix in (
                    (41, "nccl-on-npu", "builds an NCCL group", "NPUs have HCCL", "apply patch nccl-guard"),
                    (57, "renamed-option", "sets n_gpus_per_node", "it is n_cards here", "rename it"),
                )
            )
            results.append(
                result(
                    identity,
                    "lint",
                    Status.FAIL,
                    standing=Standing.UNEXPECTED,
                    reasons=("2 findings that stop the training before the first step.",),
                    remedies=("Apply patch nccl-guard.",),
                    measurements=lint_measurements(findings),
                )
            )
        elif identity == "verl-0.8.0-a3":
            results.append(
                result(identity, "lint", Status.STALE, reasons=("The recipe changed after this outcome.",))
            )
        else:
            results.append(result(identity, "lint", Status.PASS))
        if identity == "gspo-async":
            results.append(
                result(
                    identity,
                    "environment",
                    Status.ERROR,
                    reasons=("The package index answered 503 five times.",),
                    remedies=("Try again; nothing else was lost.",),
                )
            )
        elif known:
            results.append(
                result(identity, "environment", Status.BLOCKED, reasons=("resolve did not pass.",))
            )
        elif identity == "verl-0.9.0-a3":
            results.append(
                result(
                    identity,
                    "environment",
                    Status.PASS,
                    evidence=Evidence.HARDWARE,
                    artifacts=(ArtifactRef(name="lock.txt", digest="", size=len(LOCK)),),
                )
            )
            results.append(
                result(
                    identity,
                    "loss",
                    Status.PASS,
                    evidence=Evidence.HARDWARE,
                    measurements=loss_measurements(),
                )
            )
        elif identity == "verl-0.7.1-a2":
            results.append(result(identity, "environment", Status.PASS, evidence=Evidence.CPU))
        else:
            results.append(
                result(identity, "environment", Status.NOT_RUN, reasons=("no NPU on this machine",))
            )
        done = {item.check for item in results if item.cell_id == identity}
        results += [
            result(
                identity,
                check,
                Status.BLOCKED if known else Status.NOT_RUN,
                reasons=("resolve did not pass." if known else "no NPU on this machine",),
                started=0.0,
                seconds=0.0,
            )
            for check in planned[identity]
            if check not in done and not (identity == "gspo-async" and check == "gspo")
        ]
    return ReportInputs(
        generated=NOW,
        cells=tuple(cells),
        planned=planned,
        exports={
            cell.id: {"requirements.txt": LOCK, "install.sh": "#!/usr/bin/env bash\n"}
            for cell in cells
            if cell.device == "sim"
        },
        earlier=earlier_run(results),
        runs=tuple(
            RememberedRun(
                run_id=night_of(days),
                started=NOW - days * DAY,
                revision=f"{days:040x}",
            )
            for days in range(1, 12)
        ),
        survival=sample_survival(),
        checks=CHECKS,
        results=tuple(results),
        run=RunFacts(
            run_id="20261120-0731",
            command="npu-matrix run",
            profile="default",
            revision="168809f",
            version="0.1.0",
            started=NOW - 420,
            seconds=254,
            executed=26,
            reused=58,
            exit_code=1,
            options=("--state", "elsewhere"),
        ),
        host={"machine": "x86_64, 2 cores", "NPUs": "none", "python": "3.11.7", "driver": "—"},
        excluded=(
            ExcludedCombination(
                axes={"torch_npu": "2.9.0", "cann": "8.3.RC1"},
                reason="torch_npu 2.9.0 asks for CANN 8.5.0 or later.",
                source="vllm-ascend release notes",
            ),
        ),
        published=(
            PublishedStatement(
                cell_id="gspo-qwen25-3b",
                what="The reward rises on A2 over 300 steps.",
                source="seeds/004",
                date="2025-10-12",
            ),
        ),
    )


def _night(draw: random.Random) -> list[Status]:
    """Fifty verdicts as runs give them: one in twenty differs from the one before."""
    now, found = Status.PASS, []
    for _ in range(50):
        now = draw.choice(list(Status)) if draw.random() < 0.05 else now
        found.append(now)
    return found


def suite_inputs() -> ReportInputs:
    """Two suites of upstreams in two cells: failures that nobody knows, no failure, a suite that was not run."""

    def suite(name: str, passed: int, failed: int) -> MeasuredSuite:
        ended = (*[Ended.PASSED] * passed, *[Ended.FAILED] * failed)
        tests = tuple(
            MeasuredTest(
                name=f"test_{number}",
                ended=end,
                kind=FailureClass.NOT_SIMULATED if end is Ended.FAILED else None,
                message="not simulated: aclnnRoll" if end is Ended.FAILED else "",
            )
            for number, end in enumerate(ended)
        )
        return MeasuredSuite(
            name=name, commit="c0ffee123456", rule="tag", files=(MeasuredFile(path="t.py", tests=tests),)
        )

    measured = {
        "verl-0.9.1-sim": (suite("torch-npu-nn", 101, 5), suite("vllm-ascend-ops", 12, 0)),
        "verl-0.6.1-sim": (
            suite("torch-npu-nn", 106, 0),
            MeasuredSuite(
                name="vllm-ascend-ops", not_run="The tests of vllm-ascend are not here.", fix="clone"
            ),
        ),
    }
    return ReportInputs(
        generated=NOW,
        cells=tuple(CellFacts(id=cell, title=f"{cell} on the simulated NPU") for cell in measured),
        checks=(CheckColumn(name="upstream-tests", tier=Tier.NUMERICS),),
        results=tuple(
            result(
                cell,
                "upstream-tests",
                Status.FAIL if cell == "verl-0.9.1-sim" else Status.PASS,
                tier=Tier.NUMERICS,
                evidence=Evidence.SIMULATED,
                measurements=SUITES_FORMAT.write(SuitesMeasured(suites=suites)),
            )
            for cell, suites in measured.items()
        ),
    )


def many_inputs(cells: int, checks: int = 8, history: int = 0) -> ReportInputs:
    """A large matrix: `cells` cells named c00000 and on, `checks` checks each, every verdict among them.

    `history`: how many earlier runs each of them remembers.
    """
    draw = random.Random(11)
    pasts = random.Random(12)
    nights = [History(past(*_night(pasts))[:history]) for _ in range(200)]
    columns = (
        *CHECKS,
        *(CheckColumn(name=f"extra{i}", tier=Tier.CONVERGENCE) for i in range(checks - len(CHECKS))),
    )
    statuses = (
        [Status.PASS] * 6 + [Status.NOT_RUN] * 3 + [Status.FAIL, Status.BLOCKED, Status.STALE, Status.ERROR]
    )
    facts = []
    results = []
    for number in range(cells):
        identity = f"c{number:05d}"
        axes = {
            "verl": f"0.{number % 9 + 1}.{number // 9 % 4}",
            "torch_npu": f"2.{number % 7 + 5}.0",
            "vllm_ascend": f"0.{number % 11 + 7}.0rc1",
            "cann": f"8.{number % 5}.RC{number // 5 % 3 + 1}",
            "soc": ("Ascend910B3", "Ascend910_9382")[number % 2],
            "python": f"3.{number % 3 + 10}",
        }
        facts.append(
            CellFacts(id=identity, title=f"Synthetic stack {number}", stack=f"stack-{number % 50}", axes=axes)
        )
        for column in columns[:checks]:
            status = draw.choice(statuses)
            ran = status in {Status.PASS, Status.FAIL}
            results.append(
                result(
                    identity,
                    column.name,
                    status,
                    tier=column.tier,
                    standing=Standing.KNOWN if number % 3 and status is Status.FAIL else Standing.AS_EXPECTED,
                    reasons=()
                    if status is Status.PASS
                    else (f"reason {draw.randrange(400)} for this verdict",),
                    evidence=draw.choice(list(Evidence)) if ran else None,
                    key=f"{draw.getrandbits(256):064x}",
                    facets={"pins": f"{number % 97:064x}", "device": {"kind": "sim", "soc": "Ascend910B3"}},
                    measurements={"seconds": 1.5, "budget": draw.random()} if ran else {},
                    started=NOW - 500 if ran else 0.0,
                    seconds=3.5 if ran else 0.0,
                    history=nights[pasts.randrange(len(nights))] if history else History(),
                )
            )
    return ReportInputs(
        generated=NOW,
        cells=tuple(facts),
        checks=columns[:checks],
        results=tuple(results),
        runs=tuple(
            RememberedRun(
                run_id=night_of(50 - night), started=NOW - (50 - night) * DAY, revision=f"{night:040x}"
            )
            for night in reversed(range(min(history, 50)))
        ),
    )


def poison(value: Any, text: str) -> Any:
    """`value` with `text` appended to every string and every mapping's names."""
    if isinstance(value, enum.Enum) or not value:
        return value
    if isinstance(value, str):
        return value + text
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return replace(value, **{name: poison(item, text) for name, item in fields.items()})
    if isinstance(value, Path):
        return log_file(value.read_text("utf-8", "replace") + text)
    if isinstance(value, SurvivalFacts):
        return SurvivalFacts.model_validate(poison_survival(value.model_dump(by_alias=True), text))
    if isinstance(value, Mapping):
        return {poison(name, text): poison(item, text) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(poison(item, text) for item in value)
    return value


def poison_survival(data: dict[str, Any], text: str) -> dict[str, Any]:
    """A survival with `text` in what it says of commits, patches and verdicts; its shape stays valid."""
    commits = [{name: poison(value, text) for name, value in commit.items()} for commit in data["commits"]]
    patches = [
        {
            **patch,
            "id": patch["id"] + text,
            "breaks": [_poison_turn(turn, text) for turn in patch["breaks"]],
            "bodies": [
                {**body, "file": body["file"] + text, "versions": body["versions"] + text}
                for body in patch["bodies"]
            ],
        }
        for patch in data["patches"]
    ]
    legend = [data["legend"][0], *(entry + text for entry in data["legend"][1:])]
    return {**data, "range": data["range"] + text, "commits": commits, "patches": patches, "legend": legend}


def _poison_turn(turn: dict[str, str], text: str) -> dict[str, str]:
    return {name: value + text for name, value in turn.items()}


def small_inputs() -> ReportInputs:
    """Two cells with everything a page can show."""
    inputs = sample_inputs()
    kept = {"verl-0.9.1-sim", "gspo-qwen25-3b"}
    return replace(
        inputs,
        cells=tuple(cell for cell in inputs.cells if cell.id in kept),
        results=tuple(item for item in inputs.results if item.cell_id in kept),
        notes=("a note",),
    )


def poisoned_inputs(text: str) -> ReportInputs:
    """`small_inputs` with `text` in every field."""
    return poison(small_inputs(), text)
