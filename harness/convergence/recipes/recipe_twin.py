"""The scaled-down twin of a recipe: which settings it keeps, which it scales, and what it leaves out.

Every setting of a recipe is kept, scaled, in one of the parts below, or listed as another setting, so that
nothing is dropped silently. Pure; host side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
_LOSS_MODE = _ACTOR + "policy_loss.loss_mode"
_BUFFER = r"reward_model\.(?:reward_kwargs\.overlong_buffer_cfg|overlong_buffer)\."

# Responses of the twin's task have three tokens. With five allowed, two of them are the overlong buffer.
RESPONSE_TOKENS, BUFFER_TOKENS = 5, 2
# Responses of a step, whatever the number of responses per prompt.
ROWS = 256
SAMPLES = 8

KEPT = (
    r"algorithm\.adv_estimator",
    r"algorithm\.norm_adv_by_std_in_grpo",
    r"algorithm\.use_kl_in_reward",
    r"algorithm\.kl_ctrl\.kl_coef",
    r"algorithm\.filter_groups\..+",
    r"actor_rollout_ref\.actor\.policy_loss\.loss_mode",
    r"actor_rollout_ref\.actor\.(?:loss_agg_mode|clip_ratio|clip_ratio_low|clip_ratio_high|clip_ratio_c)",
    r"actor_rollout_ref\.actor\.(?:entropy_coeff|use_kl_loss|kl_loss_coef|kl_loss_type|grad_clip)",
    r"reward_model\.reward_manager",
    _BUFFER + r"(?:enable|penalty_factor|log)",
    r"trainer\.use_legacy_worker_impl",
)
"""The objective, the sampling of groups, the shaping of rewards, and which of verl's workers computes."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A part of a recipe that its twin does not have, and the question that it therefore does not answer.

    settings: the recipe's settings of this part, as KEY=VALUE.
    """

    what: str
    unanswered: str
    settings: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Both, for a list."""
        return f"{self.what}: {self.unanswered}"


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Settings that a twin leaves out. keys: a regular expression. harmless: values that change nothing."""

    keys: str
    what: str
    unanswered: str
    harmless: tuple[str, ...] = ()


_PARTS = (
    _Part(
        keys=r"actor_rollout_ref\.(?:actor|ref)\.megatron\..+",
        what="training by Megatron (tensor, pipeline and expert parallelism, its optimizer and "
        "checkpoints); the twin trains with FSDP2",
        unanswered="whether Megatron-core, MindSpeed and mbridge compute and update the same model",
    ),
    _Part(
        keys=r"actor_rollout_ref\.(?:actor|ref)\.(?:fsdp_config\.)?ulysses_sequence_parallel_size",
        what="sequence parallelism (Ulysses)",
        unanswered="whether cards that divide sequences train the same; the check update compares what they "
        "exchange",
        harmless=("1",),
    ),
    _Part(
        keys=r"actor_rollout_ref\.model\.use_remove_padding",
        what="packed sequences (use_remove_padding)",
        unanswered="whether the model computes the same without padding; the checks actor and update do that",
        harmless=("false",),
    ),
    _Part(
        keys=r"actor_rollout_ref\.rollout\.(?:tensor_model_parallel_size|data_parallel_size"
        r"|dp_model_parallel_size|rollout_world_size|enable_expert_parallel)",
        what="parallelism of the rollout",
        unanswered="whether weights are synced to, and responses collected from, several ranks of one engine",
        harmless=("1", "false"),
    ),
    _Part(
        keys=r"actor_rollout_ref\.rollout\.(?:name|max_num_seqs|max_num_batched_tokens|gpu_memory_utilization"
        r"|enable_chunked_prefill|enforce_eager|free_cache_engine|load_format)",
        what="vLLM with its memory and graph settings; the twin samples with transformers",
        unanswered="whether vLLM and vllm-ascend generate correctly; the checks generation and trainer-vllm "
        "do that",
    ),
    _Part(
        keys=r"actor_rollout_ref\..*(?:model_dtype|gradient_checkpointing|_offload|override_config\..+"
        r"|entropy_checkpointing|use_torch_compile|fsdp_size)",
        what="bfloat16 weights, offloading, recomputation and compilation; the twin computes in float32",
        unanswered="what low precision and limited memory change",
        harmless=("false", "-1"),
    ),
    _Part(
        keys=r"actor_rollout_ref\..*(?:use_dynamic_bsz|max_token_len_per_gpu|micro_batch_size_per_gpu)",
        what="micro-batches as the recipe splits them; each mini-batch of the twin is one micro-batch",
        unanswered="whether gradients of several micro-batches add up to that of the mini-batch; the check "
        "update does that",
    ),
    _Part(
        keys=r"(?:actor_rollout_ref\.model\.path|data\..+|critic\..+"
        r"|actor_rollout_ref\.actor\.(?:ppo_mini_batch_size|optim\..+))",
        what="the model, the data and the size of batches; the twin trains a model of two layers on a task "
        "of three tokens",
        unanswered="how well the recipe learns its own task",
    ),
    _Part(
        keys=r"(?:trainer|rollout)\..+|actor_rollout_ref\.rollout\.(?:val_kwargs\..+|temperature|top_p|top_k"
        r"|calculate_log_probs)|actor_rollout_ref\.(?:hybrid_engine|nccl_timeout)",
        what="cards, hosts, length of the run, saving and validation",
        unanswered="whether the job starts on its hosts, saves, resumes and validates",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A recipe scaled down to a tiny model and task: arguments of the trainer program.

    one_step_off: one-step-off-policy training, with the rollout on a second card. dapo: training by
    `recipe.dapo` of verl, which samples groups again that have no variance. experts: the model is a mixture
    of experts. sync: the rollout runs in the trainer's processes. settings: the recipe's settings that the
    twin keeps or scales. left_out: everything else.
    """

    algorithm: str
    one_step_off: bool
    dapo: bool
    experts: bool
    sync: bool
    samples: int
    settings: Mapping[str, str]
    left_out: tuple[LeftOut, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its command line, without the device and the paths."""
        flags = {
            "--one-step-off": self.one_step_off,
            "--dapo": self.dapo,
            "--experts": self.experts,
            "--sync": self.sync,
        }
        samples = ("--samples", str(self.samples)) if self.samples != SAMPLES else ()
        settings = [text for key, value in self.settings.items() for text in ("--set", f"{key}={value}")]
        return (
            "--algorithm",
            self.algorithm,
            *(flag for flag, given in flags.items() if given),
            *samples,
            *settings,
        )


def make_twin(entry: str, settings: Mapping[str, str], model: str) -> Twin:
    """The twin of a recipe with these settings, whose keys may begin with + or ++."""
    kept = {key: value for key, value in settings.items() if _is_kept(_plain(key))}
    plain = {_plain(key): value for key, value in settings.items()}
    samples = _samples(plain)
    left_out = _left_out({key: value for key, value in settings.items() if key not in kept}, plain, samples)
    dapo = entry.startswith("recipe.dapo")
    return Twin(
        algorithm="gspo" if plain.get(_LOSS_MODE) == "gspo" else "grpo",
        one_step_off="one_step_off_policy" in entry,
        dapo=dapo,
        experts=_has_experts(model),
        sync=plain.get(_ROLLOUT + "mode") == "sync",
        samples=samples,
        settings={**kept, **_scaled(settings)},
        left_out=(*left_out, *_model_left_out(model)),
    )


def _plain(key: str) -> str:
    return key.lstrip("+")


def _is_kept(key: str) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in KEPT)


def _samples(plain: Mapping[str, str]) -> int:
    """Responses per prompt: the recipe's, if the twin's mini-batches can be divided by it."""
    text = plain.get(_ROLLOUT + "n", "")
    number = int(text) if re.fullmatch(r"\d+", text) else SAMPLES
    # Many groups of two have no variance, so that the tiny model would learn too slowly.
    return number if number > 2 and (ROWS // 4) % number == 0 else SAMPLES


def _scaled(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of lengths, which become those of the tiny task."""
    scaled: dict[str, str] = {}
    for key in settings:
        if re.fullmatch(_BUFFER + "len", _plain(key)):
            scaled |= {key: str(BUFFER_TOKENS), "data.max_response_length": str(RESPONSE_TOKENS)}
        if _plain(key) == "reward_model.reward_kwargs.max_resp_len":
            scaled[key] = str(RESPONSE_TOKENS)
    return scaled


def _left_out(rest: Mapping[str, str], plain: Mapping[str, str], samples: int) -> Iterator[LeftOut]:
    found: dict[int, list[str]] = {}
    others = []
    answered = {_ROLLOUT + "mode", _ACTOR + "strategy", *(_plain(key) for key in _scaled(rest))}
    for key, value in rest.items():
        name = _plain(key)
        number = next((at for at, part in enumerate(_PARTS) if re.fullmatch(part.keys, name)), None)
        if name in answered or (name == _ROLLOUT + "n" and value == str(samples)):
            continue
        if number is None:
            others.append(f"{key}={value}")
        elif value not in _PARTS[number].harmless:
            found.setdefault(number, []).append(f"{key}={value}")
    for number, settings in sorted(found.items()):
        part = _PARTS[number]
        yield LeftOut(what=part.what, unanswered=part.unanswered, settings=tuple(settings))
    strategy = plain.get(_ACTOR + "strategy", "fsdp")
    if strategy == "fsdp" and not any("megatron" in key for key in plain):
        yield LeftOut(
            what="the strategy fsdp; the twin trains with fsdp2",
            unanswered="whether the first version of FSDP shards and gathers the same weights",
        )
    if others:
        yield LeftOut(what="other settings", unanswered="what they change", settings=tuple(others))


def _has_experts(model: str) -> bool:
    """Whether a model's name is that of a mixture of experts: gpt-oss, or a size with active parameters."""
    return "gpt-oss" in model or re.search(r"-A\d+(?:\.\d+)?B\b", model) is not None


def _model_left_out(model: str) -> Iterator[LeftOut]:
    if "gpt-oss" in model:
        yield LeftOut(
            what="the architecture of gpt-oss; the mixture of experts of the twin is that of Qwen3",
            unanswered="whether attention sinks, sliding windows and its activation train; the check gpt-oss "
            "runs inference with them",
        )
