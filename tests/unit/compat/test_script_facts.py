"""What a launch script shows of the machines of its jobs."""

from __future__ import annotations

import pytest

from harness.compat.lint.launch_script import parse_script

JOB = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8"


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        ("""ray start --head --resources='{"NPU": 8}'""", {"ray_cards": 8}),
        ("""ray start --head --resources='{"NPU": 8}'\nray start --resources='{"NPU": 16}'""", {}),
        ("ray start --head", {}),
        # A head node without cards is for the driver; the workers are started elsewhere.
        ("""ray start --head --resources='{"NPU": 0}'""", {}),
        (
            """ray start --head --resources='{"NPU": 0}'\nray start --resources='{"NPU": 8}'""",
            {"ray_cards": 8},
        ),
        ("#SBATCH --nodes=2\n#SBATCH -N 4", {"slurm_nodes": 4}),
        ("#SBATCH --nodes=2-4", {}),
    ],
)
def test_the_facts_of_a_script(lines: str, facts: dict[str, int]) -> None:
    [job] = parse_script(f"{lines}\n{JOB}").jobs
    assert job.facts == facts
