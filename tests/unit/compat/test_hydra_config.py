from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import yaml

from harness.compat.lint.hydra_config import config_name, read_config
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_check import lint_script
from harness.compat.lint.lint_format import as_github, as_json, as_text
from harness.errors import InputError

PPO = {
    "actor_rollout_ref": {"actor": {"strategy": "fsdp", "optim": {"lr": 1e-6}}, "rollout": {"n": 1}},
    "trainer": {"nnodes": 1, "use_old_workers": None},
    "model_engine": "dp",
}
MEGATRON = {"actor_rollout_ref": {"actor": {"megatron": {"tensor_model_parallel_size": 1}}}}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "verl-0.9.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, config in (("ppo_trainer", PPO), ("ppo_megatron_trainer", MEGATRON)):
            archive.writestr(f"verl/trainer/config/_generated_{name}.yaml", yaml.safe_dump(config))
    return path


def config_findings(wheel: Path | None, arguments: str, entry: str = "verl.trainer.main_ppo") -> list[str]:
    script = parse_script(f"python -m {entry} {arguments}")
    result = lint_script(script, {"verl": "0.9.1"}, wheel)
    return [finding.message.split()[0] for finding in result.findings if finding.rule == "CONFIG-KEY"]


def test_unknown_keys_are_found(wheel: Path) -> None:
    assert config_findings(wheel, "actor_rollout_ref.rollout.n=8 trainer.nnodes=2 model_engine=dp") == []
    assert config_findings(wheel, "actor_rollout_ref.rollout.n=8 algorithm.filter.enable=True") == [
        "algorithm.filter.enable"
    ]
    assert set(config_findings(wheel, "trainer.nnodes.deeper=1 ~trainer.gone")) == {
        "trainer.gone",
        "trainer.nnodes.deeper",
    }


def test_keys_added_with_a_plus_are_not_reported(wheel: Path) -> None:
    assert config_findings(wheel, "+actor_rollout_ref.actor.new=1 ++trainer.more=2 trainer.nnodes=1") == []


def test_the_new_location_of_a_moved_key_is_suggested(wheel: Path) -> None:
    script = parse_script("python -m verl.trainer.main_ppo actor_rollout_ref.actor.lr=1", "run.sh")
    [finding] = [f for f in lint_script(script, {"verl": "0.9.1"}, wheel).findings if f.rule == "CONFIG-KEY"]
    assert "actor_rollout_ref.actor.optim.lr" in finding.fix
    assert (finding.file, finding.line, finding.column) == ("run.sh", 1, 33)


def test_megatron_jobs_are_compared_with_megatrons_configuration(wheel: Path) -> None:
    key = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
    assert config_findings(wheel, f"--config-name=ppo_megatron_trainer.yaml {key}") == []
    assert config_findings(wheel, key) == ["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"]
    [recipe] = parse_script(f"python -m verl.trainer.main_ppo model_engine=megatron {key}").jobs
    assert config_name(recipe) == "ppo_megatron_trainer"


def test_without_the_wheel_the_rule_is_undecided(wheel: Path) -> None:
    result = lint_script(parse_script("python -m verl.trainer.main_ppo a.b=1"), {"verl": "0.9.1"})
    assert "CONFIG-KEY" in {item.rule for item in result.undecided}
    other = lint_script(
        parse_script("python -m verl.trainer.main_ppo --config-name mine a.b=1"), {"verl": "0.9.1"}, wheel
    )
    assert ("the configuration mine of verl 0.9.1",) in {item.unknown for item in other.undecided}


def test_programs_with_their_own_configuration_are_not_checked(wheel: Path) -> None:
    assert config_findings(wheel, "a.b=1", entry="recipe.dapo.main_dapo") == []


@pytest.mark.parametrize(
    ("script", "unchecked"),
    [
        ("python -m verl.trainer.main_ppo trainer.nnodes=1", ()),
        ('python -m verl.trainer.main_ppo trainer.nnodes=1 "$@"', ()),
        (
            "python -m recipe.dapo.main_dapo trainer.nnodes=1",
            ("overrides were not compared with the configuration of recipe.dapo.main_dapo",),
        ),
        (
            'mapfile ARGS < overrides\npython -m verl.trainer.main_ppo "${ARGS[@]}" trainer.nnodes=1',
            ("line 2: the overrides in ${ARGS[@]} are not read",),
        ),
        (
            "python -m verl.trainer.main_ppo $(cat overrides.txt)",
            ("line 1: the overrides in $(cat overrides.txt) are not read",),
        ),
    ],
)
def test_what_was_not_compared_is_told_in_every_format(
    wheel: Path, script: str, unchecked: tuple[str, ...]
) -> None:
    result = lint_script(parse_script(script), {"verl": "0.9.1"}, wheel)
    assert result.unchecked == unchecked
    assert ("incomplete" in as_text(result)) == bool(unchecked)
    assert json.loads(as_json(result))["unchecked"] == list(unchecked)
    assert as_github(result).count("was not checked") == len(unchecked)


def test_a_rule_about_a_setting_that_is_not_set_is_open_where_overrides_were_not_read(wheel: Path) -> None:
    result = lint_script(
        parse_script("python -m verl.trainer.main_ppo $(cat overrides.txt)"), {"verl": "0.9.1"}, wheel
    )
    assert "DYNBSZ" not in {finding.rule for finding in result.findings}
    assert "DYNBSZ" in {item.rule for item in result.undecided}


def test_a_damaged_wheel_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "verl-0.9.1-py3-none-any.whl"
    path.write_bytes(b"PK\x03\x04 truncated")
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
