"""The functions that verl's worker calls, from small packages with the names and layout of verl."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import pytest

from harness.numerics.loss.trainer_functions import TrainerFunctions, advantage_step

CORE = """
POLICY_LOSS_REGISTRY = {"vanilla": lambda: "registered vanilla", "gspo": lambda: "registered gspo"}

def get_policy_loss_fn(name):
    if name not in POLICY_LOSS_REGISTRY:
        raise ValueError(name)
    return POLICY_LOSS_REGISTRY[name]

def compute_policy_loss(cliprange=None): return "function"
def compute_policy_loss_gspo(): return "attribute"
def agg_loss(): return "original"
"""
LEGACY = "from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn\n"
ENGINE = LEGACY + 'def ppo_loss(data, f):\n    f(data["response_mask"].to(bool), rollout_is_weights=None)\n'


@pytest.fixture
def package(tmp_path, monkeypatch) -> Callable[[dict[str, str]], TrainerFunctions]:
    def make(files: dict[str, str]) -> TrainerFunctions:
        for name, text in {
            "verl.trainer.ppo.core_algos": CORE,
            "verl.utils.torch_functional": "def entropy_from_logits(): ...\n",
            **files,
        }.items():
            file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            for folder in [file.parent, *file.parent.parents]:
                if folder == tmp_path:
                    break
                (folder / "__init__.py").touch()
            file.write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        return TrainerFunctions()

    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


def test_a_function_replaced_in_core_algos_only_is_not_the_one_that_trains(package):
    functions = package({"verl.workers.actor.dp_actor": LEGACY})
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    core.agg_loss = lambda: "replaced"
    assert functions.taken("agg_loss")() == "original"


def test_losses_come_from_the_registry(package):
    functions = package({"verl.workers.utils.losses": ENGINE})
    assert functions.policy_loss("gspo")() == "registered gspo"
    assert functions.policy_loss("vanilla")() == "registered vanilla"
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    del core.POLICY_LOSS_REGISTRY["gspo"]
    assert not functions.offers_policy_loss("gspo"), (
        "an attribute of core_algos is not what the trainer calls"
    )


def test_old_workers_call_the_vanilla_loss_by_name(package):
    text = "from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss, get_policy_loss_fn\n"
    functions = package({"verl.workers.actor.dp_actor": text})
    assert functions.policy_loss("vanilla")() == "function"
    assert not functions.passes_rollout_weights


def test_what_the_worker_passes_is_read_from_the_worker(package):
    functions = package({"verl.workers.utils.losses": ENGINE})
    assert functions.passes_rollout_weights
    assert functions.converts_mask_to_bool


def test_a_worker_that_cannot_be_imported_is_an_error(package):
    with pytest.raises(ImportError):
        package({"verl.workers.actor.dp_actor": "from verl.trainer.ppo.core_algos import gone\n"})


def test_the_newest_trainer_that_is_installed_computes_advantages(package):
    package({"verl.trainer.ppo.ray_trainer": "def compute_advantage(): return 'old'\n"})
    assert advantage_step()() == "old"
    newest = "def compute_advantage_for_multi_trajectories(): return 'new'\n"
    package({"verl.trainer.ppo.v1.utils": newest})
    assert advantage_step()() == "new"
