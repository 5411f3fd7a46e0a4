"""Five weeks of runs on three machines, made with the ledger's own commands, with seeded changes of keys.

The machine with NPUs keeps the ledger; those of the CI machine and of a laptop are merged into it every Friday.
Seeded: on day 30 an upstream commit breaks `patches` on two cells; `lint` is flaky on the CI machine;
`resolve` fails on the laptop only; `loss` is a known failure from day 20 on; GSPO ran on hardware on day 12, and
its torch_npu changed on day 25.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.check import Check
from harness.digest import digest_json
from harness.ledger.attestation.ssh_keygen import NAMESPACE, Signer, sign
from harness.ledger.attestation.statement import Attestation, make_statement
from harness.ledger.plan_record import CellFacts, PlanEntry, PlannedExpectation
from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Origin, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.report.model.gather import join_report_inputs, outcomes_of_run
from harness.report.model.report_inputs import KnownFailure, ReportInputs, RunFacts
from harness.sources.issue_states import IssueState
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.verdict import ExpectedFailure

START = 1_792_800_000.0
DAY = 86_400.0
NPU, CI, LAPTOP = ("npu-host-" + "1" * 31, "ci-" + "2" * 37, "laptop-" + "3" * 33)
LAB = "lab-" + "4" * 36
LAB_DEVICE = {"kind": "npu", "soc": "Ascend910B3"}
BEFORE, AFTER = "5a2e0b1c" + "0" * 32, "9f3d77aa" + "0" * 32
KNOWN_REASON = "the entropy term of this release differs from the reference"


def judge(measured: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    if measured["good"]:
        return Judgement(status=Status.PASS)
    return Judgement(status=Status.FAIL, reasons=(str(measured["why"]),), remedies=("Look at the log.",))


def _run(_context: object) -> Measured:
    return Measured(measurements={"good": True}, evidence=Evidence.STATIC)


CHECKS = {
    name: Check(name=name, tier=tier, question=question, facets=("pins",), run=_run, judge=judge)
    for name, tier, question in (
        ("patches", Tier.STATIC, "Do our patches still apply?"),
        ("lint", Tier.STATIC, "Does the recipe fit this verl?"),
        ("resolve", Tier.STATIC, "Do the pins resolve together?"),
        ("loss", Tier.NUMERICS, "Are the policy losses correct on this device?"),
        ("gspo-smoke", Tier.CONVERGENCE, "Does GSPO learn?"),
    )
}
CELLS = {
    "gspo-async": {"verl": "main", "torch_npu": "2.7.1", "cann": "8.3.RC1", "soc": "Ascend910B3"},
    "gptoss-20b-grpo": {"verl": "main", "torch_npu": "2.7.1", "cann": "8.5.0", "soc": "Ascend910B3"},
}
TITLES = {"gspo-async": "GSPO async rollout", "gptoss-20b-grpo": "gpt-oss-20b GRPO"}


def facets_of(cell: str, check: str, day: int) -> dict[str, Any]:
    """The inputs of a check of a cell on a day."""
    pins = dict(CELLS[cell])
    if check == "patches":
        return {"pins": pins, "verl_tree": {"commit": AFTER if day >= 30 else BEFORE}}
    if check == "gspo-smoke":
        pins["torch_npu"] = "2.9.0" if day >= 25 else pins["torch_npu"]
        return {"pins": pins, "device": {"kind": "npu"}}
    return {"pins": pins}


def expected_on(day: int) -> tuple[PlannedExpectation, ...]:
    """The expected failures of matrix.yaml on a day."""
    if day < 20:
        return ()
    known = PlannedExpectation(
        id="loss-entropy",
        check="loss",
        state="fail",
        reason=KNOWN_REASON,
        source="https://github.com/verl-project/verl/issues/4242",
        owner="numerics-team",
        until="2027-03-31",
        cells=tuple(CELLS),
    )
    return (known,)


def expected_today(cell: str, check: str) -> ExpectedFailure | None:
    """The expectation of the last day."""
    found = next((one for one in expected_on(35) if one.check == check and cell in one.cells), None)
    if found is None:
        return None
    return ExpectedFailure(
        id=found.id,
        owner=found.owner,
        state="numeric-drift",
        reason=found.reason,
        source=found.source,
        until=found.until,
    )


def plan_on(day: int, checks: tuple[str, ...] = tuple(CHECKS)) -> Plan:
    """The plan of a day; keys are digests of the check and its facets."""
    tasks: dict[str, Task] = {}
    entries = []
    for cell in CELLS:
        for name in checks:
            facets = facets_of(cell, name, day)
            key = digest_json({"check": name, **facets})
            tasks[key] = Task(
                key=key,
                check=CHECKS[name],
                facets=facets,
                facet_digests={facet: digest_json(value) for facet, value in facets.items()},
                code_digest="c0de",
            )
            check = CHECKS[name]
            entries.append(
                PlanEntry(cell_id=cell, check=name, tier=check.tier, question=check.question, key=key)
            )
    cells = tuple(
        CellFacts(
            id=cell,
            title=TITLES[cell],
            stack=cell,
            device="npu",
            axes={**axes, "torch_npu": "2.9.0" if day >= 25 else axes["torch_npu"]},
            recipe="gspo" if "gspo" in cell else "grpo",
        )
        for cell, axes in CELLS.items()
    )
    expected = tuple(replace(one, state="numeric-drift") for one in expected_on(day))
    return Plan(
        profile="default",
        matrix_digest="m",
        cells=cells,
        entries=tuple(entries),
        tasks=tasks,
        expected=expected,
    )


@dataclass
class Machine:
    """A machine with its own ledger; `skew` seconds are added to its clock."""

    folder: Path
    host: str
    runner: str
    skew: float = 0.0
    signers: Mapping[str, Signer] = field(default_factory=dict)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger.open(self.folder, host=self.host, signers=lambda: self.signers)

    def go(
        self,
        day: int,
        checks: tuple[str, ...],
        bad: Mapping[tuple[str, str], str] | None = None,
        *,
        revision: str = "",
        hour: float = 0.0,
        evidence: Mapping[str, Evidence] | None = None,
    ) -> str:
        """A run of some checks on a day. bad: (cell, check) -> why it fails."""
        now = START + day * DAY + hour * 3600 + self.skew
        plan = plan_on(day, checks)
        facts = {"host": self.host, "runner": self.runner, "revision": revision}
        run_id = self.ledger.begin_run(plan.record(), ["run"], facts, now=now)
        for entry in plan.entries:
            why = (bad or {}).get((entry.cell_id, entry.check), "")
            kind = (evidence or {}).get(entry.check, Evidence.STATIC)
            if entry.check == "gspo-smoke" and kind is Evidence.STATIC:
                if self.ledger.get(entry.key) is not None:
                    continue
                unrun = Disposition(
                    cell_id=entry.cell_id,
                    check=entry.check,
                    key=entry.key,
                    status=Status.NOT_RUN,
                    reason="this host has no NPU",
                )
                self.ledger.record_dispositions(run_id, [unrun])
                continue
            self.ledger.record(
                Outcome(
                    key=entry.key,
                    check=entry.check,
                    tier=entry.tier,
                    state=State.COMPLETED,
                    evidence=kind,
                    facets={"device": digest_json(LAB_DEVICE)} if kind is Evidence.HARDWARE else {},
                    measurements={"good": not why, "why": why},
                    started=now,
                    finished=now + 30,
                    run_id=run_id,
                    origin=Origin(host=self.host, runner=self.runner, version="1"),
                )
            )
        self.ledger.finish_run(run_id, 0, now=now + 60)
        return run_id


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A host of other people that ran GSPO on NPUs on day 33. It signed the outcome of one cell only."""

    key: Path
    public: str
    signed_cell: str = "gspo-async"

    @property
    def signers(self) -> Mapping[str, Signer]:
        """The runner as matrix.yaml names it."""
        return {"a2-lab": Signer(name="a2-lab", keys=(self.public,), socs=frozenset({LAB_DEVICE["soc"]}))}

    def ledger_file(self, folder: Path) -> Path:
        """The ledger of its run."""
        machine = Machine(folder, LAB, "a2-lab")
        machine.go(33, ("gspo-smoke",), evidence={"gspo-smoke": Evidence.HARDWARE}, hour=12)
        key = next(
            entry.key for entry in plan_on(33, ("gspo-smoke",)).entries if entry.cell_id == self.signed_cell
        )
        (outcome,) = machine.ledger.history(key=key)
        text = make_statement(outcome, Status.PASS, runner="a2-lab", device=LAB_DEVICE, lock="")
        signature = sign(text.encode(), self.key, NAMESPACE)
        machine.ledger.attest(outcome, Attestation(statement=text, signature=signature))
        machine.ledger.close()
        return machine.ledger.path


def weeks_of_runs(
    folder: Path, commits: Mapping[str, str] | None = None, lab: Lab | None = None
) -> tuple[Ledger, str]:
    """The ledger of the machine with NPUs after five weeks, and the id of its last run.

    commits: the revisions of this repository `before` and `after` day 30. lab: whose ledger is merged too.
    """
    commits = commits or {"before": "a" * 40, "after": "b" * 40}
    npu = Machine(folder / "npu", NPU, "npu-1", signers=lab.signers if lab else {})
    static = ("patches", "lint", "resolve", "loss")
    last = ""
    for week in range(5):
        others = [
            Machine(folder / f"{name}-{week}", host, name) for name, host in (("ci", CI), ("laptop", LAPTOP))
        ]
        for day in range(7 * week + 1, 7 * week + 6):
            revision = commits["after"] if day >= 30 else commits["before"]
            flaky = {("gspo-async", "lint"): "the index did not respond"} if day % 9 == 4 else {}
            broken = (
                dict.fromkeys(((cell, "patches") for cell in CELLS), "2 hunks do not apply")
                if day >= 30
                else {}
            )
            drift = dict.fromkeys(((cell, "loss") for cell in CELLS), "the loss differs by 3 ulp")
            others[0].go(day, static, {**flaky, **broken, **drift}, revision=revision)
            lost = {("gptoss-20b-grpo", "resolve"): "no wheel for this interpreter"}
            others[1].go(day, ("resolve",), lost, revision=revision, hour=1)
        for other in others:
            other.ledger.close()
            npu.ledger.merge(other.ledger.path)
        day = 7 * week + 5
        if day == 33 and lab:
            npu.ledger.merge(lab.ledger_file(folder / "lab"))
        if day == 12:
            npu.go(day, ("gspo-smoke",), {}, evidence={"gspo-smoke": Evidence.HARDWARE}, hour=20)
        broken = (
            dict.fromkeys(((cell, "patches") for cell in CELLS), "2 hunks do not apply") if day >= 30 else {}
        )
        drift = dict.fromkeys(((cell, "loss") for cell in CELLS), "the loss differs by 3 ulp")
        revision = commits["after"] if day >= 30 else commits["before"]
        last = npu.go(day, tuple(CHECKS), {**broken, **drift}, revision=revision, hour=22)
    return npu.ledger, last


def inputs_after_weeks(ledger: Ledger, run_id: str) -> ReportInputs:
    """What the report of the last run is made of."""
    plan = plan_on(33)
    outcomes = outcomes_of_run(ledger, plan.tasks, run_id)
    verdicts = judge_plan(plan, outcomes, ledger.dispositions(run_id), expected_today)
    run = RunFacts(run_id=run_id, profile="default", started=START + 33 * DAY, revision="b" * 40)
    facts = ReportInputs(generated=START + 34 * DAY, run=run, known=known_after_weeks())
    return join_report_inputs(plan, verdicts, ledger, facts)


def known_after_weeks() -> tuple[KnownFailure, ...]:
    """The expected failures of the last day, with the state of the issue as last seen on day 28."""
    (found,) = expected_on(35)
    seen = IssueState(
        url=found.source, state="closed", title="The entropy term is wrong", checked=START + 28 * DAY
    )
    return (
        KnownFailure(
            id=found.id,
            owner=found.owner,
            check=found.check,
            state=found.state,
            reason=found.reason,
            source=found.source,
            until=found.until,
            where="matrix.yaml:12:3",
            cells=found.cells,
            issues=(seen,),
        ),
        KnownFailure(
            id="old-one",
            owner="patch-team",
            check="patches",
            state="fail",
            reason="the next release moves the file",
            source="a report of a user",
            until="2026-11-01",
            where="matrix.yaml:20:3",
            fault="expired on 2026-11-01: repair the cell, or set a new reason and date",
        ),
    )


def seeded_repository(folder: Path) -> dict[str, str]:
    """A git repository whose second commit changes matrix.yaml; the ids of both commits."""
    git = shutil.which("git")
    assert git

    def run(*arguments: str) -> str:
        identity = ("-c", "user.name=A. Maintainer", "-c", "user.email=a@example.org")
        done = subprocess.run(
            [git, "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    folder.mkdir(parents=True)
    run("init", "-q", "-b", "main")
    (folder / "matrix.yaml").write_text("a: 1\n")
    run("add", ".")
    run("commit", "-qm", "first")
    before = run("rev-parse", "HEAD")
    (folder / "README").write_text("b\n")
    run("add", ".")
    run("commit", "-qm", "a text that no check reads")
    (folder / "matrix.yaml").write_text("a: 2\n")
    run("commit", "-qam", "verl moves to 9f3d77aa")
    return {"before": before, "after": run("rev-parse", "HEAD")}
