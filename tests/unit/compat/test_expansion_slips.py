"""What bash reads otherwise than it looks: defaults, exports, divisions, texts of settings, scripts that end."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compat.lint.launch_script import NoJobError, parse_script, read_script
from harness.compat.lint.lint_check import lint_job
from harness.errors import InputError

JOB = "python3 -m verl.trainer.main_ppo trainer.nnodes=${NNODES} data.train_batch_size=8 a.b=1\n"


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("NNODES=${NNODES:1}", "`${NNODES:1}` gives no default: is `${NNODES:-1}` meant?"),
        ("NNODES=${NODES-:2}", "the default in `${NODES-:2}` is `:2`: is `${NODES:-2}` meant?"),
        (
            "export $HCCL_EXEC_TIMEOUT=60",
            "`export $HCCL_EXEC_TIMEOUT=...` does not set `HCCL_EXEC_TIMEOUT`: is `export HCCL_EXEC_TIMEOUT=60` meant?",
        ),
        (
            "NNODES=$((2 + 6)) / 8",
            "`NNODES` gets no value here: bash starts a program `/`; compute in `$((...))`",
        ),
    ],
)
def test_a_slip_is_told_at_its_line(line: str, note: str) -> None:
    script = parse_script(f"set -x\n{line}\n{JOB}")
    assert [(one.line, one.text) for one in script.notes if one.unread] == [(2, note)]


@pytest.mark.parametrize(
    "lines",
    [
        "NNODES=16x; NNODES=${NNODES:1}",
        "NNODES=${NNODES:0:1}",
        "NNODES=${NODES-2}",
        "name=A; export $name=60",
        "NNODES=1 env",
        "date=$(date +%s); short=${date:5}",
    ],
)
def test_what_is_meant_so_is_not_told(lines: str) -> None:
    told = [note.text for note in parse_script(f"{lines}\n{JOB}").notes if note.unread]
    assert not [text for text in told if "meant" in text or "gets no value" in text]


def test_an_override_in_a_text_of_several_lines_has_its_own_line() -> None:
    text = 'ARGS="\\\n  algorithm.adv_estimator=grpo \\\n  actor_rollout_ref.rollout.n=1 \\\n  x=1"\n'
    script = parse_script(text + "python3 -m verl.trainer.main_ppo $ARGS\n")
    where = script.jobs[0].overrides["actor_rollout_ref.rollout.n"].where
    assert (where.line, where.column) == (3, 3)
    findings = lint_job(script.jobs[0], {"verl": "0.9.1"}).findings
    assert [one.line for one in findings if one.rule == "GROUP-1"] == [3]


CHOICE = "case ${{MODE:-{mode}}} in a) N=1;; *) echo no; exit 1;; esac\npython3 -m verl.trainer.main_ppo \\\n"


def test_a_script_that_ends_before_its_job_is_refused_at_the_exit(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    settings = "  trainer.nnodes=1 \\\n  data.shuffle=True \\\n  data.seed=1\n"
    file.write_text(CHOICE.format(mode="b") + settings)
    with pytest.raises(InputError, match="ends with an error before it starts") as caught:
        read_script(file)
    assert not isinstance(caught.value, NoJobError)
    file.write_text(CHOICE.format(mode="a") + settings)
    assert read_script(file).jobs
    file.write_text("exit 1\n")
    with pytest.raises(NoJobError):
        read_script(file)


@pytest.mark.parametrize(("head", "cards"), [("#SBATCH --nodes=2\n", 0), ("", 2)])
def test_slurm_sets_its_variables_in_a_script_for_sbatch(head: str, cards: int) -> None:
    text = f"#!/bin/bash\n{head}N=${{SLURM_GPUS_ON_NODE:-2}}\n"
    script = parse_script(text + "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$N\n")
    assert script.jobs[0].cards == cards


@pytest.mark.parametrize(
    ("option", "is_told"),
    [
        ("--nproc_per_node", False),
        ("--nproc-per-node", False),
        ("--nproc-per_node", True),
        ("--nproc", False),
    ],
)
def test_torchrun_takes_dashes_or_underscores(option: str, is_told: bool) -> None:
    script = parse_script(f"torchrun {option}=8 -m verl.trainer.sft_trainer data.max_length=8\n")
    assert any("torchrun" in note.text for note in script.notes) is is_told
