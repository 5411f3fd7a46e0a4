"""Renders a recipe of the matrix as the command that starts it on NPU hosts, and checks it beforehand.

Pure: the caller passes the recipe, the locations of models and data, and which files exist. Host side.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.convergence.recipes.recipe_twin import Twin, make_twin
from harness.measurements import read_shape
from harness.serialisation import JsonValue, json_form, json_object

Overrides = Mapping[str, str | int | float | bool | None]

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

# Variable -> why it is set, and the source of that reason.
WHY: Mapping[str, tuple[str, str]] = {
    "HCCL_CONNECT_TIMEOUT": (
        "ranks finish loading a large model at different times; the default timeout of 120 s is too short",
        f"{_GUIDE}, model_support/examples",
    ),
    "HCCL_EXEC_TIMEOUT": (
        "a rank may compute for longer than the default timeout of a collective",
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
        "verl assigns the cards itself, so Ray must not hide any of them",
        f"{_GUIDE}, get_start/install_guidance.rst",
    ),
}
# Variables that make runs with the same seed equal. They slow the training down.
DETERMINISM: Mapping[str, str] = {
    "HCCL_DETERMINISTIC": "true",
    "CLOSE_MATMUL_K_SHIFT": "1",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "LCCL_DETERMINISTIC": "1",
}
_DETERMINISM_WHY = (
    "two runs with the same seed compute the same numbers; this is slower",
    f"{_GUIDE}, dev_guide/precision_analysis/precision_alignment_zh.md",
)


@dataclass(frozen=True, kw_only=True)
class RecipeFacet:
    """The facet `recipe` of a cell (see `harness.matrix.model.definitions.Recipe`)."""

    entry: str
    overrides: Overrides
    nodes: int
    cards: int
    model: str
    kind: str = "train"
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether the recipe trains; others only run inference."""
        return self.kind != "infer"

    @property
    def is_script(self) -> bool:
        """Whether the recipe is a shell script, which contains its settings itself."""
        return self.entry.endswith(".sh")

    @property
    def needs_checkout(self) -> bool:
        """Whether the recipe needs a checkout of verl: verl's wheels do not contain the package `recipe`."""
        return self.entry.startswith("recipe.")

    @property
    def total_cards(self) -> int:
        """The cards of all nodes."""
        return self.nodes * self.cards


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable of the job, why it is set, and the source of that reason."""

    name: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Estimates of the memory per card in GB, without activations and buffers.

    training: weights, gradients and optimizer states of the trained model. rollout: the weights that the
    rollout loads. budget: the memory that the rollout is allowed to use.
    """

    training: float
    rollout: float
    budget: float


@json_form(memory="memory_gb", unknown="unknown_locations")
@dataclass(frozen=True, kw_only=True)
class Launch:
    """A rendered recipe.

    argv: the command of the training itself. submit: the command that the user runs.
    problems: why the recipe would fail, found before it starts. unknown: locations that were not given.
    folder: where to run the command, "" for anywhere. settings: for recipes that are scripts, the settings
    that the script has to contain. hosts: what the job gets, as `2 x 8 cards`.
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
    hosts: str

    def as_json(self) -> dict[str, JsonValue]:
        """JSON values, with the command in shell syntax."""
        return {"command": shlex.join(self.submit), **json_object(self)}


def render(
    facet: Mapping[str, JsonValue],
    *,
    locations: Mapping[str, str],
    options: Mapping[str, str] | None = None,
    deterministic: bool = False,
    exists: Callable[[str], bool] | None = None,
    address: str = "",
    known_problems: Sequence[str] = (),
) -> Launch:
    """Render the facet `recipe` of a cell.

    locations: variable -> folder on the runner, or another value of the host, for `${VARIABLE}` in the
    recipe. Other variables stay.
    options: those with which Hydra finds the configuration, where it is not the program's own.
    exists: tells whether a path exists on the runner; None if that cannot be checked.
    address: the Ray cluster to which jobs with several nodes are submitted.
    known_problems: known reasons why the recipe fails with the cell's versions.
    """
    recipe = read_shape(RecipeFacet, facet)
    settings = {key: _placed(value, locations) for key, value in _texts(recipe.overrides).items()}
    placed = {name: _placed(value, locations) for name, value in recipe.env.items()}
    environment = _environment(placed, deterministic=deterministic)
    argv = _argv(recipe, settings, options or {})
    variables = {variable.name: variable.value for variable in environment}
    if recipe.nodes > 1:
        runtime = json.dumps({"env_vars": variables}, separators=(",", ":"))
        given = [f"--address={address}"] if address else []
        given += [f"--runtime-env-json={runtime}"] if variables else []
        # Ray copies the checkout to the nodes, because no wheel contains the package `recipe`.
        given += ["--working-dir=."] if recipe.needs_checkout else []
        submit = ["ray", "job", "submit", *given, "--", *argv]
    else:
        assignments = [f"{name}={value}" for name, value in variables.items()]
        submit = ["env", *assignments, *argv] if assignments else argv
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
            *known_problems,
        ),
        unknown=tuple(
            sorted(
                {name for value in (*settings.values(), *placed.values()) for name in _PLACE.findall(value)}
            )
        ),
        twin=_twin(recipe),
        folder=_folder(recipe),
        hosts=f"{recipe.nodes} x {recipe.cards} cards",
        settings=settings if recipe.is_script else {},
    )


def twin_of(facet: Mapping[str, JsonValue]) -> Twin | None:
    """The scaled-down twin of the facet `recipe` of a cell; None if the recipe does not train."""
    return _twin(read_shape(RecipeFacet, facet))


def _twin(recipe: RecipeFacet) -> Twin | None:
    return make_twin(recipe.entry, _texts(recipe.overrides), recipe.model) if recipe.trains else None


def _argv(recipe: RecipeFacet, settings: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    if recipe.is_script:
        return ["bash", recipe.entry]
    words = [f"{name}={value}" for name, value in (*options.items(), *settings.items())]
    return [PYTHON, "-m", recipe.entry, *words]


def _folder(recipe: RecipeFacet) -> str:
    if recipe.needs_checkout:
        return "the root of a checkout of verl, because verl's wheels do not contain the package recipe"
    return f"the root of the repository that contains {recipe.entry}" if recipe.is_script else ""


def _environment(variables: Mapping[str, str], *, deterministic: bool) -> list[Variable]:
    found = []
    for name, value in variables.items():
        reason, source = WHY.get(name, ("set by the script of the recipe's source", "the recipe"))
        found.append(Variable(name=name, value=value, reason=reason, source=source))
    for name, value in DETERMINISM.items() if deterministic else ():
        reason, source = _DETERMINISM_WHY
        found.append(Variable(name=name, value=value, reason=reason, source=source))
    return found


def _placed(text: str, locations: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: locations.get(found[1], found[0]), text)


def _texts(overrides: Overrides) -> dict[str, str]:
    """Overrides as Hydra reads them on a command line."""
    words = {None: "null", True: "true", False: "false"}
    return {
        key: words[value] if value is None or isinstance(value, bool) else str(value)
        for key, value in overrides.items()
    }


def _missing(settings: Mapping[str, str], exists: Callable[[str], bool] | None) -> list[str]:
    if exists is None:
        return []
    paths = [(key, path.strip()) for key, value in settings.items() for path in value.strip("[]").split(",")]
    return [
        f"{key}: {path} does not exist on this runner"
        for key, path in paths
        if path.startswith("/") and not exists(path)
    ]


def _too_many(recipe: RecipeFacet, settings: Mapping[str, str]) -> list[str]:
    """Problems: verl would wait for more cards than the recipe's hosts have, and then fail."""
    each = _number(settings, "trainer.n_gpus_per_node")
    nodes = max(1, _number(settings, "trainer.nnodes"))
    if not each or (nodes <= recipe.nodes and each <= recipe.cards):
        return []
    requested = f"trainer.nnodes={nodes} and trainer.n_gpus_per_node={each}"
    return [f"{requested} request more than {recipe.nodes} x {recipe.cards} cards"]


def _indivisible(recipe: RecipeFacet, settings: Mapping[str, str]) -> list[str]:
    """Problems: sizes that verl's `validate_config` or its worker groups reject."""
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
            f"{batch} prompts x {samples} samples cannot be divided among {trained // parallel} replicas"
        )
    if _number(settings, "rollout.n_gpus_per_node") and trained + sampled > recipe.total_cards:
        problems.append(
            f"{trained} cards for training and {sampled} for the rollout are more than {recipe.total_cards}"
        )
    if batch and mini and batch < mini:
        problems.append(f"a mini-batch of {mini} prompts is larger than the batch of {batch}")
    return problems


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def _cards(recipe: RecipeFacet, settings: Mapping[str, str]) -> tuple[int, int]:
    """The numbers of cards for training and for the rollout, which share the cards unless set otherwise."""
    rollout = _number(settings, "rollout.nnodes") * _number(settings, "rollout.n_gpus_per_node")
    if rollout:
        nodes, each = (_number(settings, f"trainer.{name}") for name in ("nnodes", "n_gpus_per_node"))
        return max(1, nodes) * max(1, each), rollout
    return recipe.total_cards, recipe.total_cards


def _number(settings: Mapping[str, str], key: str) -> int:
    """A setting as a whole number; 0 if it is not set or not a number."""
    text = next((settings[name] for name in (key, f"+{key}", f"++{key}") if name in settings), "")
    return int(text) if re.fullmatch(r"\d+", text) else 0


def _memory(recipe: RecipeFacet, settings: Mapping[str, str]) -> Memory | None:
    """Estimate from the parameter count in the model's name; None without one, or if nothing is trained."""
    size = _SIZE.search(recipe.model)
    if size is None or not recipe.trains:
        return None
    billions, (cards, _) = float(size[1]), _cards(recipe, settings)
    offloaded = settings.get(_ACTOR + "fsdp_config.optimizer_offload") == "true"
    trained = billions * (TRAINED_BYTES / 2 if offloaded else TRAINED_BYTES) / cards
    shards = _number(settings, _ROLLOUT + "tensor_model_parallel_size") or 1
    if "true" in (settings.get(plus + _ROLLOUT + "enable_expert_parallel") for plus in ("", "+", "++")):
        # Expert parallelism: the experts, nearly all weights of a MoE model, are also split over the data
        # parallel ranks.
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
            f"training needs {memory.training:g} GB per card without activations; a card has {CARD_GB:g} GB"
        )
    if memory.rollout > memory.budget:
        found.append(
            f"the rollout's weights need {memory.rollout:g} GB per card; its budget is {memory.budget:g} GB"
        )
    return found
