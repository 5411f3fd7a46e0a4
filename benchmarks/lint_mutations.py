"""Mistakes injected into launch scripts of verl: how many of them `lint` reports.

Each mistake is one or more overrides at the end of a job's command line, or variables of its environment
(`env.NAME=value`). It is found if `lint` reports an error or a warning that the job without it does not have.
Scripts that Hydra refuses, or that `lint` says it could not check completely, are left out: another script of
the release takes their place. Half of the kinds is held out, by a digest of their names: their misses are not
to be looked at while `lint` is changed. The scripts are examples of a release of verl; its repository must be
among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.figures import CannotRunError, Figure
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_measurements import CONFIG_RULE
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError
from harness.sources.git.mirrors import find_clone, mirror_folders
from harness.sources.tree import Tree

TAG, VERSION = "v0.9.0", "0.9.0"
REPOSITORIES = ("verl-project/verl", "volcengine/verl")
SCRIPTS = 20
# Each script gets one of so many mistakes: every kind comes into six or seven scripts.
SHARE = 3
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
NO_DYNAMIC = f"{ACTOR}use_dynamic_bsz=False"
MICRO = f"{ACTOR}ppo_micro_batch_size"
MODEL = "actor_rollout_ref.model.path=Qwen/"
VERSIONS = {"verl": VERSION, "vllm_ascend": "0.23.0", "cann": "9.0.0"}
ONE_NODE = "trainer.nnodes=1 trainer.n_gpus_per_node=8"
MISTAKES: dict[str, str] = {
    "misspelled key": f"{ACTOR}ppo_mini_batchsize=64",
    "key of another section": f"{ROLLOUT}ppo_mini_batch_size=64",
    "key of an older release": "algorithm.filter_groups.enabled=True",
    "plus on a key that exists": "+trainer.nnodes=2",
    "key of the configuration without plus": f"{ACTOR}fsdp_config.mixed_precision.param_dtype=bf16",
    "field that the dataclass lacks": f"+{ACTOR}micro_batch=1",
    "field that the optimizer lacks": f"+{ACTOR}optim.learning_rate=1e-6",
    "text for a number": "trainer.nnodes=two",
    "text for a learning rate": f"{ACTOR}optim.lr=fast",
    "text for a truth value": f"{ACTOR}use_kl_loss=yes_please",
    "text for a batch size": "data.train_batch_size=large",
    "text for a micro-batch size": f"{NO_DYNAMIC} {ACTOR}ppo_micro_batch_size_per_gpu=auto",
    "loss aggregation": f"{ACTOR}loss_agg_mode=token_mean",
    "rollout name": f"{ROLLOUT}name=vlm",
    "strategy": f"{ACTOR}strategy=fsdp3",
    "removed rollout mode": f"{ROLLOUT}mode=sync",
    "trainer mode": "trainer.v1.trainer_mode=synchronous",
    "engine": "model_engine=fdsp",
    "broken list": "trainer.logger=[console",
    "tensor parallel above cards": f"{ONE_NODE} {ROLLOUT}tensor_model_parallel_size=16",
    "tensor parallel that does not divide": f"{ONE_NODE} {ROLLOUT}tensor_model_parallel_size=3",
    "batch that cards do not divide": f"{NO_DYNAMIC} {ONE_NODE} {ROLLOUT}n=5 data.train_batch_size=1001",
    "mini-batch above the batch": f"{NO_DYNAMIC} data.train_batch_size=64 {ACTOR}ppo_mini_batch_size=128",
    "both micro-batch sizes": f"{NO_DYNAMIC} {MICRO}=8 {MICRO}_per_gpu=8",
    "no micro-batch size": f"{NO_DYNAMIC} {MICRO}=null {MICRO}_per_gpu=null",
    "no micro-batch size of the rollout": f"{NO_DYNAMIC} {ROLLOUT}log_prob_use_dynamic_bsz=False "
    f"{ROLLOUT}log_prob_micro_batch_size=null {ROLLOUT}log_prob_micro_batch_size_per_gpu=null",
    "greedy sampling with do_sample": f"{ROLLOUT}val_kwargs.do_sample=True {ROLLOUT}temperature=0",
    "expert parallel": f"{ROLLOUT}tensor_model_parallel_size=2 {ROLLOUT}expert_parallel_size=8",
    "LoRA rank": "actor_rollout_ref.model.lora_rank=1000",
    "group of one": "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1",
    "router replay": f"{ACTOR}router_replay.mode=R4",
    "reward manager": "reward.reward_manager.name=niave",
    "space for an equals sign": "data.max_prompt_length 512",
    "warm-up style": f"{ACTOR}optim.lr_scheduler_type=cosin",
    "profiler": "global_profiler.tool=nsis global_profiler.steps=[1]",
    "sequence parallel size": f"{ONE_NODE} {ACTOR}fsdp_config.ulysses_sequence_parallel_size=3",
    "chunked prefill off": f"{ROLLOUT}name=vllm {ROLLOUT}enable_chunked_prefill=False "
    f"{ROLLOUT}max_model_len=32768 {ROLLOUT}max_num_batched_tokens=8192",
    "model length below the prompt": f"{ROLLOUT}name=vllm {ROLLOUT}max_model_len=256 "
    "data.max_prompt_length=512",
    "model length below the sample": f"{ROLLOUT}name=vllm {ROLLOUT}max_model_len=1000",
    "model length above the model": f"{ROLLOUT}name=vllm {ROLLOUT}max_model_len=16384 {MODEL}Qwen2.5-Math-7B",
    "hccl as checkpoint engine": f"{ROLLOUT}checkpoint_engine.backend=hccl",
    "sdpa with packed samples": "+actor_rollout_ref.model.override_config.attn_implementation=sdpa "
    "actor_rollout_ref.model.use_remove_padding=True",
    "KL twice": f"{ACTOR}use_kl_loss=True algorithm.use_kl_in_reward=True",
    "KL coefficient without KL": f"{ACTOR}use_kl_loss=False {ACTOR}kl_loss_coef=0.01",
    "correction without log-probabilities": f"{ROLLOUT}calculate_log_probs=False "
    "algorithm.rollout_correction.rollout_is=token",
    "clip range of GSPO": f"{ACTOR}policy_loss.loss_mode=gspo {ACTOR}clip_ratio_low=0.2 "
    f"{ACTOR}clip_ratio_high=0.28",
    "aggregation of GSPO": f"{ACTOR}policy_loss.loss_mode=gspo {ACTOR}loss_agg_mode=token-mean",
    "short micro-batch": f"{ACTOR}use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=256",
    "loss mode": f"{ACTOR}policy_loss.loss_mode=gsp",
    "advantage estimator": "algorithm.adv_estimator=grop",
    "rollout of no response": f"{ROLLOUT}n=0",
    "task queue in graph mode": f"{ROLLOUT}enforce_eager=False env.TASK_QUEUE_ENABLE=2",
    "expandable segments with sleep mode": f"{ROLLOUT}name=vllm {ROLLOUT}free_cache_engine=True "
    "env.PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
    "NZ layout": f"{ROLLOUT}name=vllm env.VLLM_ASCEND_ENABLE_NZ=1",
    "large model on one node": f"{ONE_NODE} {ACTOR}strategy=fsdp2 {MODEL}Qwen2.5-72B",
    "large model on one rollout card": f"{ROLLOUT}name=vllm {ROLLOUT}tensor_model_parallel_size=1 "
    f"{ROLLOUT}gpu_memory_utilization=0.5 {MODEL}Qwen2.5-32B",
    "two settings of cards": f"{ONE_NODE} env.GPUS_PER_NODE=16",
    "pipeline parallel rollout": f"{ROLLOUT}name=vllm {ROLLOUT}pipeline_model_parallel_size=2",
    "dynamic batches without a length": f"{ACTOR}use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=null",
    "type of the KL loss": f"{ACTOR}use_kl_loss=True {ACTOR}kl_loss_type=low_variance",
    "negative learning rate": f"{ACTOR}optim.lr=[1e-6]",
    "section for a value": "trainer.nnodes={a:1}",
    "group removed twice": "~trainer.nnodes ~trainer.nnodes",
    "path with angle brackets": "actor_rollout_ref.model.path=<path>",
    "choice of a group that does not exist": "actor@actor_rollout_ref.actor=vp_actor",
    "key of the rollout's engine without plus": f"{ROLLOUT}engine_kwargs.vllm.some_option=1",
    "data files as text with a comma": "data.train_files=a.parquet,b.parquet",
}


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mistakes found of those injected."""

    found: int
    injected: int

    @property
    def percent(self) -> float:
        return 100 * self.found / max(1, self.injected)


def verl() -> Tree:
    """The files of the release."""
    mirrors = mirror_folders()
    for name in REPOSITORIES:
        clone = find_clone(mirrors, name)
        if clone is not None and clone.has_tag(TAG):
            return clone.tree(TAG)
    raise CannotRunError(
        f"no mirror has verl {VERSION}", "set NPU_MATRIX_MIRRORS to a folder with a clone of verl"
    )


def jobs(tree: Tree) -> Iterator[JobSettings]:
    """One job of each example script that trains a policy."""
    for path in sorted(path for path in tree.paths() if re.fullmatch(r"examples/\w*po_trainer/.*\.sh", path)):
        try:
            script = parse_script(tree.read(path).decode("utf-8", "replace"), path)
        except InputError:
            continue
        whole = [job for job in script.jobs if not job.has_unread_arguments]
        yield from [job for job in whole if job.entry == "verl.trainer.main_ppo"][:1]


def with_mistake(job: JobSettings, mistake: str) -> JobSettings:
    """The job with further overrides and variables."""
    every = [ScriptValue(text=word, where=job.where) for word in mistake.split()]
    words = tuple(word for word in every if not word.text.startswith("env."))
    environment = {
        name: replace(word, text=value)
        for word in every
        for start, _, value in [word.text.partition("=")]
        for name in [start.removeprefix("env.")]
        if name != start
    }
    keys = {word.text.partition("=")[0]: replace(word, text=word.text.partition("=")[2]) for word in words}
    overrides = {**job.overrides, **{key.lstrip("+"): value for key, value in keys.items()}}
    kept = [one for one in job.arguments if one.text.partition("=")[0] not in keys]
    model = overrides.get("actor_rollout_ref.model.path")
    return replace(
        job,
        overrides=overrides,
        arguments=(*kept, *words),
        env={**job.env, **environment},
        added=job.added | {key.lstrip("+") for key in keys if key.startswith("+")},
        model=model.text if model else job.model,
    )


def is_held_out(name: str) -> bool:
    """Whether a kind of mistake is in the half that was not looked at."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def reported(job: JobSettings, configuration: VerlConfiguration) -> Mapping[tuple[str, str], str]:
    """The errors and warnings of a job, by rule and message, with their severity."""
    result = lint_job(job, VERSIONS, configuration=configuration)
    return {(one.rule, one.message): one.severity for one in result.findings if one.severity != "note"}


def figures() -> Iterator[Figure]:
    tree = verl()
    found = {True: 0, False: 0}
    injected = {True: 0, False: 0}
    before_errors = scripts = 0
    with VerlConfiguration(tree).unpacked() as configuration:
        every = list(jobs(tree))
        step = max(1, len(every) // SCRIPTS)
        for job in [job for first in range(step) for job in every[first::step]]:
            if scripts == SCRIPTS:
                break
            result = lint_job(job, VERSIONS, configuration=configuration)
            errors = [one.rule for one in result.findings if one.severity == "error"]
            # What Hydra refuses is an error of the script (see lint_agreement), and hides others.
            before_errors += sum(rule != CONFIG_RULE for rule in errors)
            if errors or result.unchecked:
                continue
            before = reported(job, configuration)
            scripts += 1
            for name, mistake in list(MISTAKES.items())[scripts % SHARE :: SHARE]:
                injected[is_held_out(name)] += 1
                after = reported(with_mistake(job, mistake), configuration)
                is_found = bool(after.keys() - before.keys())
                found[is_held_out(name)] += is_found
                if not is_found and not is_held_out(name):
                    logging.getLogger(__name__).info("not found in %s: %s", job.name, name)
    for held_out, claim in ((True, "mistakes found, kinds held out"), (False, "mistakes found, other kinds")):
        score = Score(found=found[held_out], injected=injected[held_out])
        yield Figure(claim=claim, measured=score.percent, unit="%", limit=90, is_lower_limit=True)
    yield Figure(claim=f"errors in {scripts} scripts without a mistake", measured=before_errors, limit=0)
