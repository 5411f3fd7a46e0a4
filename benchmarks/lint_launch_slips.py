"""Mistakes of real launch scripts, written before anybody looked at what `lint` says of them.

Kinds that users reported for verl, vllm-ascend and verl-ascend-recipe (misspelt environment variables, Ray
with other resources than the job, values that the engine refuses), and kinds that none of the rules was
written for. Each kind comes into scripts of several releases of verl. A mistake is found if `lint` reports an
error or a warning, or says that it did not read a part, and does not say so of the script without it.
The repository of verl must be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.lint_agreement import verl_repository
from benchmarks.lint_mutations import with_mistake
from benchmarks.lint_script_mistakes import (
    ACTOR,
    CONTINUED,
    LINE,
    ROLLOUT,
    on,
    read,
    reported,
)
from harness.compat.lint.config_findings import compose_job
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import LaunchScript
from harness.compat.lint.lint_measurements import CONFIG_RULE
from harness.sources.tree import Tree

STACKS = {
    "v0.6.1": {"verl": "0.6.1", "vllm_ascend": "0.11.0", "cann": "8.3.RC1"},
    "v0.7.1": {"verl": "0.7.1", "vllm_ascend": "0.13.0", "cann": "8.5.0"},
    "v0.8.0": {"verl": "0.8.0", "vllm_ascend": "0.18.0", "cann": "8.5.0"},
    "v0.9.0": {"verl": "0.9.0", "vllm_ascend": "0.23.0", "cann": "9.0.0"},
    "main": {"verl": "0.9.1", "vllm_ascend": "0.23.0", "cann": "9.0.0"},
}
#: How many scripts of each release get a kind of mistake.
SHARE = 2
SCRIPTS = re.compile(r"(?:examples|recipe)/.*\.sh")
PROGRAMS = ("verl.trainer.main_ppo", "verl.trainer.sft_trainer", "verl.trainer.fsdp_sft_trainer")
START = re.compile(r"\A(?:#!.*\n)?")
COMMAND = re.compile(r"^(?P<start>[ \t]*)(?P<python>python3?) -m verl\.trainer\.main_ppo\b", re.MULTILINE)
EXPORT = re.compile(
    r"^(?P<start>[ \t]*)export (?P<name>(?:HCCL|ASCEND|VLLM|RAY|PYTORCH|TASK|CPU|HYDRA|TORCH|OMP|HF)_\w+)"
    r"=(?P<value>\S+)$",
    re.MULTILINE,
)
NAMED = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)\}(?=_)")
EIGHT = "trainer.nnodes=1 trainer.n_gpus_per_node=8"
QWEN = "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"
FIXED = f"{ACTOR}use_dynamic_bsz=False"


def at_start(line: str) -> Callable[[str], str | None]:
    """A line at the beginning of the script."""
    return on(START, lambda found: f"{found[0]}{line}\n")


def before_command(lines: str) -> Callable[[str], str | None]:
    """Lines before the program starts."""
    return on(COMMAND, lambda found: f"{found['start']}{lines}\n{found[0]}")


def value(pattern: str, new: str) -> Callable[[str], str | None]:
    """Another value for a setting that the script sets in a line of its own."""
    return on(re.compile(rf"(?P<key>(?:{pattern})=)\S+"), lambda found: f"{found['key']}{new}")


def _fewer_letters(found: re.Match[str]) -> str:
    name = found["name"]
    middle = len(name) * 2 // 3
    return f"{found['start']}export {name[:middle]}{name[middle + 1 :]}={found['value']}"


def _late_export(text: str) -> str | None:
    """An exported variable that is set after the program has run."""
    found = next(iter(EXPORT.finditer(text)), None)
    if found is None or found["start"]:
        return None
    return f"{text[: found.start()]}{text[found.end() + 1 :].rstrip()}\n{found[0]}\n"


def _lost_array(text: str) -> str | None:
    """A second part of an array that replaces the first."""
    found = re.search(r"^(?P<start>[ \t]*)(?P<name>[A-Z_]{3,})=\((?P<words>[^()]{20,})\)", text, re.MULTILINE)
    if found is None:
        return None
    more = f"\n{found['start']}{found['name']}=(trainer.total_epochs=3)"
    return text[: found.end()] + more + text[found.end() :]


#: Changes of the text.
SLIPS: Mapping[str, Callable[[str], str | None]] = {
    "two backslashes": on(CONTINUED, lambda found: f"{found[0]}\\"),
    "comment after a backslash": on(CONTINUED, lambda found: f"{found[0]} # tuned for A2"),
    "comment before a backslash": on(
        CONTINUED, lambda found: f"{found[0].removesuffix(chr(92))}# tuned for A2 \\"
    ),
    "quote that is not closed": on(
        CONTINUED, lambda found: f"{found['start']}{found['key']}='{found['value']} \\"
    ),
    "ampersand in a name": on(
        re.compile(r"(?P<key>trainer\.project_name=)\S+"), lambda found: f"{found['key']}gsm8k&math"
    ),
    "interpolation of the configuration in double quotes": on(
        re.compile(r"(?P<key>data\.max_response_length=)\S+"),
        lambda found: f'{found["key"]}"${{data.max_prompt_length}}"',
    ),
    "array replaced by its second part": _lost_array,
    "variable that takes the rest of a name": on(NAMED, lambda found: f"${found['name']}"),
    "path with a variable in single quotes": on(
        re.compile(r"(?P<key>data\.train_files=)[\"']?(?P<path>\$[\w{}/.-]+)[\"']?"),
        lambda found: f"{found['key']}'{found['path']}'",
    ),
    "module with its ending": on(COMMAND, lambda found: f"{found[0]}.py"),
    "module as a path": on(
        COMMAND, lambda found: f"{found['start']}{found['python']} -m verl/trainer/main_ppo"
    ),
    "module that is misspelt": on(COMMAND, lambda found: found[0].replace("main_ppo", "ppo_main")),
    "module without -m": on(COMMAND, lambda found: found[0].replace(" -m", "")),
    "variable not exported": on(EXPORT, lambda found: found[0].replace("export ", "", 1)),
    "exported name without a letter": on(EXPORT, _fewer_letters),
    "export after the program": _late_export,
    "visible cards without their last letter": at_start("export ASCEND_RT_VISIBLE_DEVICE=0,1,2,3,4,5,6,7"),
    "visible cards by the variable of the container": at_start("export ASCEND_VISIBLE_DEVICES=0,1,2,3"),
    "visible cards by the variable of CUDA": at_start("export CUDA_VISIBLE_DEVICES=0,1,2,3"),
    "visible cards as a range": at_start("export ASCEND_RT_VISIBLE_DEVICES=0-7"),
    "visible cards with spaces": at_start("export ASCEND_RT_VISIBLE_DEVICES=0, 1, 2, 3, 4, 5, 6, 7"),
    "visible card twice": at_start("export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,6"),
    "option of the allocator": at_start("export PYTORCH_NPU_ALLOC_CONF=expandable_segment:True"),
    "allocator by the variable of CUDA": at_start("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    "expansion mode of HCCL": at_start("export HCCL_OP_EXPANSION_MODE=AVI"),
    "timeout of HCCL with a unit": at_start("export HCCL_CONNECT_TIMEOUT=30m"),
    "nodes of Slurm": at_start("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1"),
    "Ray with fewer cards": before_command("ray start --head --resources='{\"NPU\": 4}'"),
    "Ray with the cards of a variable that is not set": before_command(
        "ray start --head --resources='{\"NPU\": '$NPU_COUNT_PER_NODE'}'"
    ),
    "torchrun with cards of a variable that is not set": on(
        re.compile(r"--nproc[_-]per[_-]node[= ]\S+"), lambda _found: "--nproc_per_node=$N_CARDS"
    ),
    "torchrun alone on two nodes": on(
        re.compile(r"torchrun (?:--standalone )?--nnodes[= ]\S+"),
        lambda _found: "torchrun --standalone --nnodes=2",
    ),
    "ending of the data": value(r"data\.train_files", "$HOME/data/gsm8k/train.csv"),
    "folder for data": value(r"data\.train_files", "$HOME/data/gsm8k"),
    "list without its comma": value(
        r"data\.train_files", "\"['$HOME/a/train.parquet' '$HOME/b/train.parquet']\""
    ),
    "list in two quotes": value(r"trainer\.logger", "\"'[console,wandb]'\""),
    "loggers with a space": value(r"trainer\.logger", "'console wandb'"),
    "indented with a tab after the value": on(
        LINE, lambda found: f"{found['start']}{found['key']}=\t{found['value']}{found['end']}"
    ),
}
#: Settings at the end of the command line. Only for jobs whose configuration has those without `+`.
VALUES: Mapping[str, str] = {
    "settings of Megatron in a job of FSDP": f"+{ACTOR}megatron.tensor_model_parallel_size=4",
    "data setting misspelt with a plus": "+data.max_prompt_lenght=1024",
    "trainer setting misspelt with a plus": "+trainer.test_frequency=5",
    "algorithm setting misspelt with a plus": "+algorithm.norm_adv_by_std=False",
    "setting of the rollout in the data": "+data.n=8",
    "setting of the rollout in the actor": f"+{ACTOR}gpu_memory_utilization=0.5",
    "misspelt with two pluses": f"++{ROLLOUT}max_model_length=8192",
    "section without its parent": "+rollout.n=8",
    "options of an engine that does not run": f"{ROLLOUT}name=vllm "
    f"+{ROLLOUT}engine_kwargs.sglang.attention_backend=ascend",
    "gigabytes for megabytes": f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes=2GB",
    "timeout with a unit": "actor_rollout_ref.nccl_timeout=10m",
    "heads against tensor parallel of the rollout": f"{EIGHT} {QWEN} {ROLLOUT}name=vllm "
    f"{ROLLOUT}tensor_model_parallel_size=8",
    "heads against Ulysses": f"{EIGHT} {QWEN} {ACTOR}ulysses_sequence_parallel_size=8 "
    "actor_rollout_ref.model.use_remove_padding=True",
    "mini-batch smaller than the cards": f"{FIXED} trainer.nnodes=8 trainer.n_gpus_per_node=8 "
    f"data.train_batch_size=512 {ACTOR}ppo_mini_batch_size=2 {ROLLOUT}n=4 "
    f"{ROLLOUT}tensor_model_parallel_size=1",
    "micro-batch larger than the mini-batch of a card": f"{EIGHT} {FIXED} data.train_batch_size=64 "
    f"{ROLLOUT}n=1 {ACTOR}ppo_mini_batch_size=32 {ACTOR}ppo_micro_batch_size_per_gpu=16",
    "no file for validation": "data.val_files=null trainer.test_freq=5",
    "checkpoint that is not read": "trainer.resume_mode=auto "
    "trainer.resume_from_path=/ckpts/run/global_step_100",
    "checkpoint without its path": "trainer.resume_mode=resume_path trainer.resume_from_path=null",
    "critic of a job without a critic": "algorithm.adv_estimator=grpo critic.optim.lr=3e-5",
    "clip range reversed": f"{ACTOR}clip_ratio_low=0.28 {ACTOR}clip_ratio_high=0.2",
    "dual clip below 1": f"{ACTOR}clip_ratio_c=0.2",
    "advantages of a critic without a critic": "algorithm.adv_estimator=gae critic.enable=False",
    "alpha of LoRA without LoRA": "actor_rollout_ref.model.lora_rank=0 actor_rollout_ref.model.lora_alpha=64",
    "model without mbridge": f"{ACTOR}megatron.use_mbridge=False",
    "dtype of the model": f"{ACTOR}fsdp_config.model_dtype=fp61",
    "attention of GPUs": "+actor_rollout_ref.model.override_config.attn_implementation=flash_attention_3",
    "device by another name": "trainer.device=ascend",
    "batch with a decimal point": "data.train_batch_size=512.0",
    "endless steps": "trainer.total_training_steps=-1",
    "half an epoch": "trainer.total_epochs=0.5",
}


#: Releases in which a kind is a mistake, if not in all.
ONLY_IN = {"model without mbridge": ("v0.8.0", "v0.9.0", "main")}


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A mistake in a script, and the new sentences of `lint`."""

    kind: str
    script: str
    told: tuple[str, ...]

    @property
    def found(self) -> bool:
        return bool(self.told)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script that `lint` reads, and what it says of it."""

    path: str
    text: str
    read: LaunchScript
    before: frozenset[str]


def scripts(tag: str, tree: Tree, verl: VerlConfiguration) -> Iterator[Script]:
    """Scripts with one job of verl that Hydra takes, those for NPUs first."""
    paths = sorted(path for path in tree.paths() if SCRIPTS.fullmatch(path))
    for path in sorted(paths, key=lambda path: ("npu" not in path and "ascend" not in path, path)):
        text = tree.read(path).decode("utf-8", "replace")
        script = read(text, path)
        if script is None or len(script.jobs) != 1 or script.jobs[0].entry not in PROGRAMS:
            continue
        job = script.jobs[0]
        # Mistakes about cards are none for jobs with fewer.
        if 0 < job.cards < 8 or job.nodes == 4:
            continue
        before = reported(script, STACKS[tag], verl)
        # What Hydra refuses hides other mistakes.
        if not any(item.startswith(CONFIG_RULE) for item in before):
            yield Script(path=path, text=text, read=script, before=before)


def changed(script: Script, kind: str, verl: VerlConfiguration) -> LaunchScript | str | None:
    """The script with a mistake: its new text, or its new job; None if the script has no place for it."""
    if kind in SLIPS:
        return SLIPS[kind](script.text)
    (job,) = script.read.jobs
    if not _has_settings(job, VALUES[kind], verl):
        return None
    return LaunchScript(jobs=(with_mistake(job, VALUES[kind]),), notes=script.read.notes)


def _has_settings(job: JobSettings, mistake: str, verl: VerlConfiguration) -> bool:
    """Whether the job trains by RL, and its configuration has each setting that is no new one."""
    made = compose_job(job, verl)
    if made is None or job.entry != PROGRAMS[0]:
        return False
    if mistake.startswith(f"+{ACTOR}megatron") and not made[1].has(f"{ACTOR}fsdp_config"):
        return False
    names = (word.partition("=")[0] for word in mistake.split())
    return all(name.startswith("+") or made[1].has(name) for name in names)


def injected(tag: str, tree: Tree, kinds: Sequence[str], share: int = SHARE) -> Iterator[Injected]:
    """Each kind of mistake in some scripts of one release."""
    kinds = [kind for kind in kinds if tag in ONLY_IN.get(kind, STACKS)]
    left = dict.fromkeys(kinds, share)
    with VerlConfiguration(tree).unpacked() as verl:
        for number, script in enumerate(scripts(tag, tree, verl)):
            # Another part of the kinds for each script, so that kinds do not share their scripts.
            for kind in [
                kind for place, kind in enumerate(kinds) if (place + number) % 3 == 0 and left[kind]
            ]:
                new = changed(script, kind, verl)
                if new is None or new == script.text:
                    continue
                left[kind] -= 1
                after = read(new, script.path) if isinstance(new, str) else new
                told = reported(after, STACKS[tag], verl) - script.before if after else {"not read"}
                yield Injected(kind=kind, script=f"{tag} {script.path}", told=tuple(sorted(told)))
            if not any(left.values()):
                return


def figures() -> Iterator[Figure]:
    """Inject the mistakes into scripts of each release."""
    kinds = (*SLIPS, *VALUES)
    every = [one for tag in STACKS for one in injected(tag, verl_repository().tree(tag), kinds)]
    for one in every:
        logging.getLogger(__name__).info("%s: %s in %s", one.told or "not found", one.kind, one.script)
    yield Figure(
        claim=f"of {len(every)} mistakes of {len(kinds)} kinds in scripts of {len(STACKS)} releases, found",
        measured=round(100 * sum(one.found for one in every) / max(1, len(every)), 1),
        unit="%",
        limit=90,
        is_lower_limit=True,
    )
