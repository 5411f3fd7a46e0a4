"""Mutants of verl, as the benchmark `numerics.mutation` makes them, turn the check `update` red in a cell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.numerics.mutation import all_mutants
from benchmarks.numerics.mutation_sites import Mutant
from benchmarks.numerics.trained_mutants import overlay
from harness.outcome import Status
from harness.verdict.verdict import judge_outcome

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]

#: The first ten of these that a release has are tried.
FUNCTIONS = (
    "compute_grpo_outcome_advantage",
    "agg_loss",
    "compute_policy_loss_vanilla",
    "compute_policy_loss_gspo",
    "kl_penalty_forward",
    "compute_rollout_correction_and_rejection_mask",
    "entropy_from_logits",
    "masked_sum",
    "update_policy",
    "_forward_micro_batch",
    "ppo_loss",
    "no_padding_2_padding",
)
OPERATORS = ("sign", "axis")


def sample(folder: Path) -> list[Mutant]:
    """Ten mutants that change a sign or an axis, each of another function."""
    found = [one for one in all_mutants(folder, more=False) if one.operator in OPERATORS]
    of_each = {name: [one for one in found if one.function.rpartition(".")[2] == name] for name in FUNCTIONS}
    firsts = [one for mutants in of_each.values() for one in mutants[:1]]
    return firsts[:10]


def installed_verl(cell) -> Path:
    argv, variables = cell.command("harness.numerics.update.update_program", "--help")
    code = "import importlib.util as u; print(u.find_spec('verl').submodule_search_locations[0])"
    found = subprocess.run([argv[0], "-c", code], env=variables, capture_output=True, text=True, check=True)
    return Path(found.stdout.split()[-1])


@pytest.mark.parametrize("number", range(10))
def test_a_mutant_of_verl_turns_the_update_red(cell, tmp_path, number):
    original = installed_verl(cell)
    mutant = sample(original)[number]
    overlay(original, tmp_path / "overlay", mutant)

    outcome = cell.execute("update", tmp_path, python_path=[tmp_path / "overlay"])
    judgement = judge_outcome(cell.tasks["update"].check, outcome)

    assert judgement.status is Status.FAIL, (mutant.key, judgement.reasons)
    assert "On the CPU" in " ".join(judgement.reasons) or "raised" in " ".join(judgement.reasons)


def update_with(cell, folder, original, place, before, after):
    """The judgement of the update with a verl in which one text of a file is another."""
    shutil.copytree(original, folder / "overlay" / "verl")
    copied = folder / "overlay" / "verl" / place
    changed = copied.read_text("utf-8").replace(before, after, 1)
    assert changed != copied.read_text("utf-8")
    copied.write_text(changed, "utf-8")
    outcome = cell.execute("update", folder, python_path=[folder / "overlay"])
    return judge_outcome(cell.tasks["update"].check, outcome)


@pytest.mark.parametrize(
    ("file", "before", "after", "first", "place"),
    [
        (
            "utils/ulysses.py",
            "grad_output * ctx.sp_world_size",
            "grad_output",
            "logits_gradient",
            "gather_outputs_and_unpad",
        ),
        (
            "utils/ulysses.py",
            "slice(sp_rank * parts, (sp_rank + 1) * parts)",
            "slice(0, parts)",
            "log_prob",
            "slice_input_tensor",
        ),
        (
            "utils/ulysses.py",
            "        return wait\n    return torch.cat(output_list,",
            "        return wait\n    return torch.cat(output_list[::-1],",
            "attention query",
            "all_to_all_tensor",
        ),
        (
            "models/transformers/monkey_patch.py",
            "position_ids = torch.concat(position_ids_list, dim=-1)",
            "position_ids = torch.concat(position_ids_list[::-1], dim=-1)",
            "attention positions",
            "_ulysses_flash_attention_forward",
        ),
        (
            "single_controller/base/decorator.py",
            "local_dp_rank = dp_rank_mapping[i]",
            "local_dp_rank = dp_rank_mapping[i - 1]",
            "rows for ranks of compute_log_prob",
            "dispatch_nd_compute",
        ),
        (
            "single_controller/ray/base.py",
            "sliced_args = tuple(arg[i] for arg in args)",
            "sliced_args = tuple(arg[i - 1] for arg in args)",
            "rows for ranks of compute_log_prob",
            "execute_all_async",
        ),
        (
            "protocol.py",
            "np.repeat(val, repeat_times, axis=0)",
            "np.tile(val, repeat_times)",
            "rows repeated",
            "repeat",
        ),
    ],
)
def test_what_ranks_get_wrongly_turns_the_update_red(cell, tmp_path, file, before, after, first, place):
    """Of one update's ranks, only the cases are wrong that have several of this kind."""
    judgement = update_with(cell, tmp_path, installed_verl(cell), file, before, after)

    assert judgement.status is Status.FAIL
    wrong = [reason for reason in judgement.reasons if "first wrong quantity" in reason]
    assert wrong
    divides_tokens = file in ("utils/ulysses.py", "models/transformers/monkey_patch.py")
    cases = ("ulysses ",) if divides_tokens else ("dapo ", "dynamic-packed ")
    assert all(one.startswith(cases) and first in one and place in one for one in wrong)


def test_a_micro_batch_left_on_the_host_turns_the_update_red(cell, tmp_path):
    """On a CPU that changes nothing, so that the benchmark of mutants cannot try it."""
    original = installed_verl(cell)
    places = ("workers/actor/dp_actor.py", "workers/engine/fsdp/transformer_impl.py")
    place = next(one for one in places if (original / one).is_file())
    judgement = update_with(cell, tmp_path, original, place, "micro_batch.to(get_device_id())", "micro_batch")

    assert judgement.status is Status.FAIL
    assert "same device" in " ".join(judgement.reasons)
