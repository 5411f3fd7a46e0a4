"""The check `loss` from battery to judgement. Each way in which it can fail is caused on purpose."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from mutants import MUTANTS, REGRESSIONS, changed
from plain_losses import PlainCandidate

from harness.cell_program.program_run import Unsupported, cell_device
from harness.digest import canonical_json
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, InfrastructureError
from harness.numerics.checks import CHECKS
from harness.numerics.loss.candidate import UnsupportedCaseError
from harness.numerics.loss.loss_check import judge, run
from harness.numerics.loss.loss_measurements import LOSS_FORMAT, LossStatus
from harness.numerics.loss.release_objectives import release_objective
from harness.outcome import Evidence, Status

COUNTS_EMPTY_ROWS = "ccd7d934f91be98bb3732c78bd1870fa39c399ad"


def test_a_right_loss_passes_with_everything_that_was_seen(context):
    measured = run(context)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.PASS
    assert "agree with the float64 reference" in judgement.reasons[0]
    assert measured.evidence is Evidence.SIMULATED
    assert set(measured.artifacts) == {"battery.npz", "results.npz", "reference.npz"}
    assert all((context.workdir / file).is_file() for file in measured.artifacts.values())
    counts = measured.measurements.counts
    assert set(counts) == {"pass"}
    assert {"advantage/equal-rewards", "aggregation/all-masked"} <= {
        entry.name for entry in measured.measurements.cases
    }
    assert all(entry.caught for entry in measured.measurements.self_test)
    assert 0 < measured.measurements.worst_budget <= 1


def test_measurements_are_stored_as_json_and_can_be_judged_again(context):
    stored = json.loads(canonical_json(LOSS_FORMAT.write(run(context).measurements)))
    assert judge(LOSS_FORMAT.read(stored), {}).status is Status.PASS


def test_the_reference_is_computed_by_a_process_of_its_own(context):
    context.real = True
    measured = run(context)
    assert [argv[1:3] for argv in context.commands] == [
        ("-m", "harness.numerics.loss.loss_reference_program")
    ]
    assert measured.measurements.reference.frameworks_loaded == ()


@pytest.mark.parametrize("name", ["sign", "loss-three-per-mille", "gspo-gradient-doubled", "clip-swapped"])
def test_a_wrong_loss_fails_and_says_which_cases(context, name):
    context.cell.candidate = MUTANTS[name]()
    measured = run(context)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.FAIL
    assert "loss cases are wrong on npu:0" in judgement.reasons[0]
    assert any(reason.startswith("policy/") for reason in judgement.reasons)
    assert judgement.remedies


def test_the_defects_our_patches_mend_are_red_with_their_remedies(context):
    class Unpatched(PlainCandidate):
        def group(self, case, rewards):
            dyadic = rewards[0] in {0.0, 1.0}
            wrong = super().group if dyadic else MUTANTS["advantage-equal-rewards"]().group
            return wrong(case, rewards)

        def denominator(self, case, mask):
            found = super().denominator(case, mask)
            return found if mask.any() else found * float("nan")

    context.cell.candidate = Unpatched()
    measured = run(context)
    failed = {entry.name for entry in measured.measurements.cases if entry.status is LossStatus.FAIL}
    assert {"advantage/equal-rewards", "aggregation/all-masked"} <= failed
    assert all(name.startswith(("advantage/equal-rewards", "aggregation/all-masked")) for name in failed)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.FAIL
    assert any("patch" in remedy for remedy in judgement.remedies)


def test_a_self_test_that_misses_a_fault_withholds_green(context):
    context.cell.faulty = {**context.cell.faulty, "gradient-sign": PlainCandidate}
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.INCONCLUSIVE
    assert "gradient-sign" in judgement.reasons[0]


def test_a_self_test_that_did_not_run_withholds_green(context):
    context.cell.faulty = {}
    assert judge(run(context).measurements, {}).status is Status.INCONCLUSIVE


def test_a_fault_that_only_crashes_is_not_caught(context):
    def crash(case):
        raise RuntimeError("not the fault's doing")

    context.cell.faulty = dict.fromkeys(context.cell.faulty, lambda: crash)
    assert judge(run(context).measurements, {}).status is Status.INCONCLUSIVE


def test_a_hang_names_the_case(context):
    context.cell.timed_out, context.cell.returncode = True, -9
    context.cell.hangs_in = "kl/k3/large"
    measured = run(context)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.FAIL
    assert "hung during kl/k3/large" in judgement.reasons[0]
    assert measured.evidence is Evidence.CPU


def test_a_crash_before_the_first_case_shows_its_last_words(context):
    context.cell.returncode = 1
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.FAIL
    assert "before the first case" in judgement.reasons[0]
    assert "aicore error" in judgement.reasons[1]


@pytest.mark.parametrize("code", [EXIT_BAD_INPUT, EXIT_INCOMPLETE])
def test_a_cell_that_could_not_be_set_up_is_not_the_losses_fault(context, code):
    context.cell.returncode = code
    with pytest.raises(InfrastructureError, match="could not be set up"):
        run(context)


class WithoutGlobalDenominators(PlainCandidate):
    def __call__(self, case):
        if "global_denominators" in case.requires:
            raise UnsupportedCaseError("verl 0.6.1 has no global_denominators")
        return super().__call__(case)


def test_what_a_release_never_had_is_counted_not_failed(context):
    context.cell.candidate = WithoutGlobalDenominators()
    context.facets["verl_tree"]["version"] = "0.6.1"
    measured = run(context)
    assert judge(measured.measurements, {}).status is Status.PASS
    assert measured.measurements.counts["unsupported"] > 0
    finding = next(entry for entry in measured.measurements.findings if entry.kind == "capability")
    assert "packed" in finding.what


def test_what_a_release_has_and_the_installed_package_does_not_is_red(context):
    context.cell.candidate = WithoutGlobalDenominators()
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.FAIL
    assert any("lost: verl 0.9.1 as released computes this" in reason for reason in judgement.reasons)
    assert any("lacks a function" in remedy for remedy in judgement.remedies)


def test_a_commit_is_judged_by_its_own_source_not_by_the_next_release(context):
    """The commit divides by all rows and by dp_size, which its neighbours 0.6.1 and 0.7.0 do not."""

    def share(_self, original, case, mask):
        size = case.setting("dp_size", 1) if case.setting("dp_size_divides") else 1
        return original(case, mask) / size**2

    class CountsEmptyRows(changed(sequences=lambda _self, _original, mask: len(mask), share=share)):
        def __call__(self, case):
            return super().__call__(objective.released_case(case)[0])

    name = f"0.7.0.dev0@{COUNTS_EMPTY_ROWS}"
    objective = release_objective(name)
    context.cell.candidate = CountsEmptyRows()
    version, _, commit = name.partition("@")
    context.facets["verl_tree"].update(version=version, commit=commit)
    assert judge(run(context).measurements, {}).status is Status.PASS
    del context.facets["verl_tree"]["commit"]
    assert judge(run(context).measurements, {}).status is Status.FAIL


def calls_another_interface(case):
    """A candidate whose own call raises, as of a function with other arguments."""
    raise TypeError("agg_loss() got an unexpected keyword argument 'dp_size'")


def through_the_adapter(monkeypatch):
    """The calls of the candidate count as calls of the adapter."""
    monkeypatch.setattr("harness.numerics.loss.candidate.ADAPTERS", "own")
    monkeypatch.setitem(calls_another_interface.__globals__, "__package__", "own")


def test_an_unknown_commit_with_other_interfaces_is_unsupported_not_wrong(context, monkeypatch):
    through_the_adapter(monkeypatch)
    context.cell.candidate = calls_another_interface
    context.facets["verl_tree"].update(version="0.7.0.dev0", commit="f" * 40)
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.UNSUPPORTED
    assert any("has other interfaces" in reason for reason in judgement.reasons)
    assert not any("wrong" in text for text in (*judgement.reasons, *judgement.remedies))


def test_a_release_that_the_check_knows_is_not_accused_of_wrong_arithmetic(context, monkeypatch):
    through_the_adapter(monkeypatch)
    context.cell.candidate = calls_another_interface
    judgement = judge(run(context).measurements, {})
    assert judgement.status is Status.FAIL
    assert any("a patch that changes the arguments" in remedy for remedy in judgement.remedies)
    assert not any("arithmetic of the device is wrong" in remedy for remedy in judgement.remedies)


def test_a_verl_that_refuses_the_configuration_is_unsupported():
    measured = Unsupported(why="the check cannot build ActorConfig of verl 0.6.0.dev0")
    assert judge(measured, {}).status is Status.UNSUPPORTED


def test_a_candidate_that_offers_nothing_is_red(context):
    def refuse(case):
        raise UnsupportedCaseError("nothing here")

    context.cell.candidate = refuse
    assert judge(run(context).measurements, {}).status is Status.FAIL


def with_ill_posed(measured, *prefixes):
    """Measurements in which the cases with these name prefixes are ill-posed."""
    cases = tuple(
        replace(case, status=LossStatus.ILL_POSED) if case.name.startswith(prefixes) else case
        for case in measured.measurements.cases
    )
    return replace(measured.measurements, cases=cases)


def test_a_question_that_only_ill_posed_cases_ask_withholds_green(context):
    measured = run(context)
    judgement = judge(with_ill_posed(measured, "policy/gspo-near/"), {})
    assert judgement.status is Status.INCONCLUSIVE
    assert "In 2 groups of cases" in judgement.reasons[0]
    assert "(policy/gspo-near, policy/gspo-near@bf16-io)" in judgement.reasons[0]
    assert "another seed" in judgement.remedies[0]


def test_an_ill_posed_case_beside_one_that_answers_is_told(context):
    measured = run(context)
    judgement = judge(with_ill_posed(measured, "policy/gspo-near/token-mean"), {})
    assert judgement.status is Status.PASS
    assert judgement.reasons[1] == "2 cases are ill-posed in this arithmetic and were not judged."


def test_fp32_does_not_answer_for_another_contract(context):
    cases = [entry.name for entry in run(context).measurements.cases]
    bf16 = tuple(name for name in cases if name.startswith("policy/gspo-near/") and "@" in name)
    judgement = judge(with_ill_posed(run(context), *bf16), {})
    assert judgement.status is Status.INCONCLUSIVE
    assert "(policy/gspo-near@bf16-io)" in judgement.reasons[0]


def test_numbers_leaking_from_padding_are_a_finding(context):
    class Leaking(PlainCandidate):
        def read(self, case, name):
            return case.inputs[name].astype(self.dtype)

        def rollout_weights(self, case):
            return super().rollout_weights(case) * self.mask(case)

    context.cell.candidate = Leaking()
    measured = run(context)
    assert [entry.id for entry in measured.measurements.findings] == ["padding-leaks"]


def _ignoring_mode(case):
    if case.settings["loss_mode"] == "gspo":
        case = case.with_settings(loss_agg_mode="seq-mean-token-mean")
    return PlainCandidate.policy(PlainCandidate(), case)


def test_an_older_objective_passes_for_its_release_and_is_a_finding(context):
    context.cell.candidate = changed(policy=lambda self, original, case: _ignoring_mode(case))()
    context.facets = {**context.facets, "verl_tree": {"version": "0.9.0"}}
    measured = run(context)
    assert judge(measured.measurements, {}).status is Status.PASS
    finding = next(entry for entry in measured.measurements.findings if entry.kind == "objective")
    assert finding.id == "gspo-ignores-loss-agg-mode"
    assert "policy/gspo-near/token-mean" in finding.cases


def test_an_older_objective_fails_where_the_release_should_honour_the_setting(context):
    context.cell.candidate = changed(policy=lambda self, original, case: _ignoring_mode(case))()
    assert judge(run(context).measurements, {}).status is Status.FAIL


def test_the_standard_objective_passes_for_an_older_release_and_is_a_finding(context):
    context.facets = {**context.facets, "verl_tree": {"version": "0.9.0"}}
    measured = run(context)
    assert judge(measured.measurements, {}).status is Status.PASS
    assert any(entry.id.startswith("standard-despite-") for entry in measured.measurements.findings)


def test_low_precision_is_red(context):
    context.cell.candidate = REGRESSIONS["exp-bf16"]()
    assert judge(run(context).measurements, {}).status is Status.FAIL


def test_a_broken_reference_process_says_nothing_about_the_cell(context, monkeypatch):
    context.real = True
    monkeypatch.setattr("harness.numerics.loss.loss_check.sys.executable", "/bin/false")
    with pytest.raises(InfrastructureError, match="reference process failed"):
        run(context)


def test_the_check_is_declared_for_the_planner():
    check = next(check for check in CHECKS if check.name == "loss")
    assert (check.name, check.needs, check.device) == ("loss", ("environment",), True)
    assert cell_device(SimpleNamespace(facets={"device": {"kind": "sim"}})) == "npu:0"
    assert cell_device(SimpleNamespace(facets={"device": {"kind": "cpu"}})) == "cpu"
