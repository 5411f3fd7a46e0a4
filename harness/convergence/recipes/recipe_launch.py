"""A recipe of the matrix as the command that starts it on NPU hosts, and what to look at before.

Pure: the caller says what the recipe is, where models and data lie, and which files exist. Host side.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PYTHON = "python3"
# Memory of one card, GB: Ascend 910B3 and 910_9392 (data sheets of Atlas 800T A2 and A3: 64 GB HBM per die).
CARD_GB = 64.0
# Bytes a trained parameter takes: float32 weight and gradient, two float32 moments of Adam.
TRAINED_BYTES = 16.0
# Bytes of a bfloat16 weight.
SERVED_BYTES = 2.0

_GUIDE = "verl-project/verl docs/ascend_tutorial @v0.9.0"
_PLACE = re.compile(r"\$\{(\w+)\}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*[bB]\b")

# Variable -> why it is set, and who says so.
WHY: Mapping[str, tuple[str, str]] = {
    "HCCL_CONNECT_TIMEOUT": (
        "ranks that load a large model are ready at different times; the default wait of 120 s is too short",
        f"{_GUIDE}, model_support/examples",
    ),
    "HCCL_EXEC_TIMEOUT": (
        "a rank may compute longer than a collective waits by default",
        f"{_GUIDE}, model_support/examples",
    ),
    "VLLM_ASCEND_ENABLE_NZ": (
        "weights in the NZ format cannot be overwritten in place, which every training step does",
        "vllm-project/vllm-ascend docs/source/user_guide/feature_guide/sleep_mode.md @v0.18.0",
    ),
    "VLLM_USE_V1": ("the rollout is written for vLLM's V1 engine", "script of the recipe's source"),
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        "Megatron overlaps communication with computation only when launches stay in order",
        "NVIDIA/Megatron-LM megatron/training/arguments.py",
    ),
    "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": (
        "verl numbers the cards itself; Ray must not hide some of them",
        f"{_GUIDE}, get_start/install_guidance.rst",
    ),
}
# What makes two runs of one seed equal, at a price in speed.
DETERMINISM: Mapping[str, str] = {
    "HCCL_DETERMINISTIC": "true",
    "CLOSE_MATMUL_K_SHIFT": "1",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "LCCL_DETERMINISTIC": "1",
}
_DETERMINISM_WHY = (
    "two runs of one seed give the same numbers, which costs speed",
    f"{_GUIDE}, dev_guide/precision_analysis/precision_alignment_zh.md",
)
# What the twin of a recipe keeps of it: the objective, and which of verl's workers computes it. Everything
# else is a matter of size.
OBJECTIVE = (
    "algorithm.adv_estimator",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.entropy_coeff",
    "trainer.use_legacy_worker_impl",
)
_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable of the job, why it is set and who says so."""

    name: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Estimates per card in GB, activations and buffers left out.

    training: weights, gradients and optimizer of the trained model; rollout: its served weights; budget: what
    the rollout may take.
    """

    training: float
    rollout: float
    budget: float


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A recipe on a tiny model and task, as arguments of `harness.convergence.trainer.trainer_program`.

    one_step_off: sampled one step ahead of the updates, on a card of its own. settings: what it keeps.
    """

    algorithm: str
    one_step_off: bool
    settings: Mapping[str, str]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its command line, without device and places."""
        ahead = ("--one-step-off",) if self.one_step_off else ()
        settings = [text for key, value in self.settings.items() for text in ("--set", f"{key}={value}")]
        return ("--algorithm", self.algorithm, *ahead, *settings)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A rendered recipe. argv: of the training itself; submit: the command to give.

    problems: what would make it fail, found before it starts. unknown: locations nobody has named. folder:
    where to give the command, "" for anywhere. settings: what the recipe's own file has to say, where the
    command line does not.
    """

    argv: tuple[str, ...]
    submit: tuple[str, ...]
    environment: tuple[Variable, ...]
    memory: Memory | None
    problems: tuple[str, ...]
    unknown: tuple[str, ...]
    twin: Twin | None
    folder: str
    settings: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """JSON values, with the command as one would type it."""
        return {
            "command": shlex.join(self.submit),
            "argv": list(self.argv),
            "submit": list(self.submit),
            "environment": [vars(variable) for variable in self.environment],
            "memory_gb": vars(self.memory) if self.memory else None,
            "problems": list(self.problems),
            "unknown_locations": list(self.unknown),
            "twin": vars(self.twin) if self.twin else None,
            "folder": self.folder,
            "settings": dict(self.settings),
        }


def render(
    recipe: Mapping[str, Any],
    *,
    locations: Mapping[str, str],
    config: str = "",
    deterministic: bool = False,
    exists: Callable[[str], bool] | None = None,
    address: str = "",
    known: Sequence[str] = (),
) -> Launch:
    """The launch of `recipe`, the matrix's facet of that name.

    locations: variable -> folder on the runner, for `${VARIABLE}` in the recipe; what it lacks stays.
    config: Hydra's configuration name, if it is not the entry's own. exists: whether a path is on the runner;
    None when nobody can say. address: of the cluster that takes jobs of several nodes. known: what
    makes it fail in the versions it is for.
    """
    settings = {key: _placed(_text(value), locations) for key, value in recipe["overrides"].items()}
    environment = _environment(recipe["env"], deterministic=deterministic)
    argv = _argv(recipe, settings, config)
    variables = {variable.name: variable.value for variable in environment}
    if int(recipe["nodes"]) > 1:
        runtime = json.dumps({"env_vars": variables}, separators=(",", ":"))
        options = [f"--address={address}"] if address else []
        options += [f"--runtime-env-json={runtime}"] if variables else []
        # What no wheel brings to the nodes, Ray does.
        options += ["--working-dir=."] if _of_checkout(recipe) else []
        submit = ["ray", "job", "submit", *options, "--", *argv]
    else:
        given = [f"{name}={value}" for name, value in variables.items()]
        submit = ["env", *given, *argv] if given else argv
    memory = _memory(recipe, settings)
    return Launch(
        argv=tuple(argv),
        submit=tuple(submit),
        environment=tuple(environment),
        memory=memory,
        problems=(
            *_missing(settings, exists),
            *_too_many(recipe, settings),
            *_indivisible(recipe, settings),
            *_too_large(memory),
            *known,
        ),
        unknown=tuple(sorted({name for value in settings.values() for name in _PLACE.findall(value)})),
        twin=twin_of(recipe),
        folder=_folder(recipe),
        settings=settings if _is_script(recipe) else {},
    )


def twin_of(recipe: Mapping[str, Any]) -> Twin | None:
    """The scaled-down twin of a recipe that trains; None for one that does not."""
    if recipe.get("kind") == "infer":
        return None
    settings = {key: _text(value) for key, value in recipe["overrides"].items()}
    kept = {key: settings[key] for key in OBJECTIVE if key in settings}
    return Twin(
        algorithm="gspo" if kept.get(_LOSS_MODE) == "gspo" else "grpo",
        one_step_off="one_step_off_policy" in str(recipe["entry"]),
        settings=kept,
    )


def _argv(recipe: Mapping[str, Any], settings: Mapping[str, str], config: str) -> list[str]:
    entry = str(recipe["entry"])
    if _is_script(recipe):
        return ["bash", entry]
    chosen = ["--config-path=config", f"--config-name={config}.yaml"] if config else []
    return [PYTHON, "-m", entry, *chosen, *(f"{key}={value}" for key, value in settings.items())]


def _is_script(recipe: Mapping[str, Any]) -> bool:
    """What it reads stands in its own files, not on its command line."""
    return str(recipe["entry"]).endswith(".sh")


def _of_checkout(recipe: Mapping[str, Any]) -> bool:
    """verl's wheels have no package `recipe`."""
    return str(recipe["entry"]).startswith("recipe.")


def _folder(recipe: Mapping[str, Any]) -> str:
    if _of_checkout(recipe):
        return "the root of a checkout of verl, whose wheels have no package recipe"
    return f"the root of the repository that has {recipe['entry']}" if _is_script(recipe) else ""


def _environment(given: Mapping[str, Any], *, deterministic: bool) -> list[Variable]:
    found = []
    for name, value in given.items():
        reason, source = WHY.get(name, ("set by the script of the recipe's source", "the recipe"))
        found.append(Variable(name=name, value=str(value), reason=reason, source=source))
    for name, value in DETERMINISM.items() if deterministic else ():
        reason, source = _DETERMINISM_WHY
        found.append(Variable(name=name, value=value, reason=reason, source=source))
    return found


def _placed(text: str, locations: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: locations.get(found[1], found[0]), text)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _missing(settings: Mapping[str, str], exists: Callable[[str], bool] | None) -> list[str]:
    if exists is None:
        return []
    paths = [(key, path.strip()) for key, value in settings.items() for path in value.strip("[]").split(",")]
    return [
        f"{key}: there is no {path} on this runner"
        for key, path in paths
        if path.startswith("/") and not exists(path)
    ]


def _too_many(recipe: Mapping[str, Any], settings: Mapping[str, str]) -> list[str]:
    """Cards that verl asks Ray for, and that the recipe's hosts have not: it waits, then stops."""
    each = _number(settings, "trainer.n_gpus_per_node")
    nodes = max(1, _number(settings, "trainer.nnodes"))
    if not each or (nodes <= int(recipe["nodes"]) and each <= int(recipe["cards"])):
        return []
    asked = f"trainer.nnodes={nodes} and trainer.n_gpus_per_node={each}"
    return [f"{asked} ask for more than {recipe['nodes']} x {recipe['cards']} cards"]


def _indivisible(recipe: Mapping[str, Any], settings: Mapping[str, str]) -> list[str]:
    """What verl's `validate_config` and its worker groups refuse."""
    trained, sampled = _cards(recipe, settings)
    batch, samples = _number(settings, "data.train_batch_size"), _number(settings, _ROLLOUT + "n") or 1
    mini = _number(settings, _ACTOR + "ppo_mini_batch_size")
    tensor = _number(settings, _ROLLOUT + "tensor_model_parallel_size") or 1
    copies = _number(settings, _ROLLOUT + "data_parallel_size") or 1
    parallel = 1
    for name in ("tensor", "pipeline", "context"):
        parallel *= _number(settings, f"{_ACTOR}megatron.{name}_model_parallel_size") or 1
    problems = []
    if sampled % tensor:
        problems.append(f"{sampled} cards are not divisible by the rollout's tensor parallel size {tensor}")
    elif sampled % (tensor * copies):
        problems.append(
            f"{sampled} cards are not divisible by the rollout's tensor parallel size {tensor} x data "
            f"parallel size {copies}"
        )
    if trained % parallel:
        problems.append(f"{trained} cards are not divisible by the training's model parallel size {parallel}")
    elif batch and (batch * samples) % (trained // parallel):
        problems.append(
            f"{batch} prompts x {samples} samples do not divide over {trained // parallel} replicas"
        )
    there = int(recipe["nodes"]) * int(recipe["cards"])
    if _number(settings, "rollout.n_gpus_per_node") and trained + sampled > there:
        problems.append(f"{trained} cards that train and {sampled} that sample are more than {there}")
    if batch and mini and batch < mini:
        problems.append(f"a mini-batch of {mini} prompts is larger than the batch of {batch}")
    return problems


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def _cards(recipe: Mapping[str, Any], settings: Mapping[str, str]) -> tuple[int, int]:
    """Cards that train, and cards that sample: the same ones unless the rollout has its own."""
    own = _number(settings, "rollout.nnodes") * _number(settings, "rollout.n_gpus_per_node")
    if own:
        nodes, each = (_number(settings, f"trainer.{name}") for name in ("nnodes", "n_gpus_per_node"))
        return max(1, nodes) * max(1, each), own
    return (int(recipe["nodes"]) * int(recipe["cards"]),) * 2


def _number(settings: Mapping[str, str], key: str) -> int:
    """A setting as a whole number; 0 without one."""
    text = next((settings[name] for name in (key, f"+{key}", f"++{key}") if name in settings), "")
    return int(text) if re.fullmatch(r"\d+", text) else 0


def _memory(recipe: Mapping[str, Any], settings: Mapping[str, str]) -> Memory | None:
    """From the parameters in the model's name; None where it does not say or nothing is trained."""
    size = _SIZE.search(str(recipe["model"]))
    if size is None or recipe.get("kind") == "infer":
        return None
    billions, (cards, _) = float(size[1]), _cards(recipe, settings)
    offloaded = settings.get(_ACTOR + "fsdp_config.optimizer_offload") == "true"
    trained = billions * (TRAINED_BYTES / 2 if offloaded else TRAINED_BYTES) / cards
    shards = _number(settings, _ROLLOUT + "tensor_model_parallel_size") or 1
    if "true" in (settings.get(plus + _ROLLOUT + "enable_expert_parallel") for plus in ("", "+", "++")):
        # Experts, which are nearly all of such a model, are spread over the data parallel ranks, too.
        sizes = (
            _number(settings, _ROLLOUT + name) for name in ("data_parallel_size", "dp_model_parallel_size")
        )
        shards *= max(*sizes, 1)
    share = settings.get(_ROLLOUT + "gpu_memory_utilization", "0.5")
    budget = CARD_GB * float(share) if re.fullmatch(r"\d*\.?\d+", share) else CARD_GB
    return Memory(
        training=round(trained, 2), rollout=round(billions * SERVED_BYTES / shards, 2), budget=budget
    )


def _too_large(memory: Memory | None) -> Sequence[str]:
    if memory is None:
        return ()
    found = []
    if memory.training > CARD_GB:
        found.append(
            f"training takes {memory.training:g} GB per card without activations; a card has {CARD_GB:g}"
        )
    if memory.rollout > memory.budget:
        found.append(
            f"the rollout's weights take {memory.rollout:g} GB per card; it may take {memory.budget:g}"
        )
    return found
