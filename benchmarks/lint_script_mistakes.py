"""Slips of the pen in launch scripts of several releases of verl: how many of them `lint` reports.

Other than in `lint_mutations`, the text of the script is changed where people slip: a space after a
backslash, an array without `[@]`, a misspelt variable, typographic quotes. Further kinds set values that this
verl does not take. What Hydra and verl take without harm, such as `+` before a list, is no slip. A slip is
found if `lint` reports an error or a warning, or says that it did not read a part, which it does not say of
the script without the slip. `HELD_OUT` are kinds whose misses were not looked at while `lint` was changed.
The repository of verl must be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.lint_agreement import verl_repository
from benchmarks.lint_mutations import with_mistake
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import LaunchScript, parse_script
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_measurements import CONFIG_RULE
from harness.errors import InputError
from harness.sources.tree import Tree

#: Tags of verl with the versions of a job on them, and how many of its scripts get each kind of slip.
STACKS = {
    "v0.7.1": {"verl": "0.7.1", "vllm_ascend": "0.13.0", "cann": "8.5.0"},
    "v0.8.0": {"verl": "0.8.0", "vllm_ascend": "0.18.0", "cann": "8.5.0"},
    "main": {"verl": "0.9.1", "vllm_ascend": "0.23.0", "cann": "9.0.0"},
}
SCRIPTS = 8
SHARE = 4
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
LINE = re.compile(r"^(?P<start>[ \t]+)(?P<key>\w+(?:\.\w+)+)=(?P<value>\S+)(?P<end> \\| *)$", re.MULTILINE)
CONTINUED = re.compile(r"^(?P<start>[ \t]+)(?P<key>\w+(?:\.\w+)+)=(?P<value>\S+) \\$", re.MULTILINE)
ARRAY = re.compile(r'"\$\{(\w+)\[@\]\}"')
ASSIGNED = re.compile(r"^(?:export )?(?P<name>[A-Za-z_]{4,})=(?P<value>[^\s(;]\S*)$", re.MULTILINE)


def on(pattern: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> Callable[[str], str | None]:
    """A slip at the middle one of the places that a pattern finds; None if it finds none."""

    def slip(text: str) -> str | None:
        found = list(pattern.finditer(text))
        if not found:
            return None
        chosen = found[len(found) // 2]
        changed = text[: chosen.start()] + change(chosen) + text[chosen.end() :]
        return changed if changed != text else None

    return slip


def _used_variable(text: str) -> str | None:
    """One use of a variable that the script sets, with two letters exchanged."""
    for found in ASSIGNED.finditer(text):
        name = found["name"]
        use = re.search(rf"=\"?\$\{{?{name}\b", text[found.end() :])
        if use is not None and name[1] != name[2]:
            start, end = found.end() + use.start(), found.end() + use.end()
            return text[:start] + use[0].replace(name, name[0] + name[2] + name[1] + name[3:]) + text[end:]
    return None


def _late_variable(text: str) -> str | None:
    """A variable that is set at the end of the script, after its use."""
    for found in ASSIGNED.finditer(text):
        if re.search(rf"=\"?\$\{{?{found['name']}\b", text[found.end() :]) and "$" not in found["value"]:
            return text[: found.start()] + text[found.end() + 1 :] + f"\n{found[0]}\n"
    return None


#: Changes of the text.
EARLIER_SLIPS: Mapping[str, Callable[[str], str | None]] = {
    "space after a backslash": on(CONTINUED, lambda found: f"{found[0]} "),
    "comment between continued lines": on(CONTINUED, lambda found: f"{found[0]}\n    # a comment"),
    "array without [@]": on(ARRAY, lambda found: f"${found[1]}"),
    "misspelt variable": _used_variable,
    "key with a colon": on(
        LINE, lambda found: f"{found['start']}{found['key']}:{found['value']}{found['end']}"
    ),
    "key as an option": on(
        LINE, lambda found: f"{found['start']}--{found['key']}={found['value']}{found['end']}"
    ),
    "list with a space": on(
        re.compile(r"trainer\.logger=\S+"), lambda _found: "trainer.logger=[console, wandb]"
    ),
    "assignment with spaces": on(ASSIGNED, lambda found: f"{found['name']} = {found['value']}"),
    "key twice with two values": on(
        CONTINUED, lambda found: f"{found[0]}\n{found['start']}{found['key']}=0.777 \\"
    ),
    "missing backslash": on(CONTINUED, lambda found: found[0].removesuffix(" \\")),
    "spaces around the equals sign": on(
        LINE, lambda found: f"{found['start']}{found['key']} = {found['value']}{found['end']}"
    ),
    "typographic quotes": on(
        LINE, lambda found: f"{found['start']}{found['key']}=\u201c{found['value']}\u201d{found['end']}"
    ),
    "quote that is not closed": on(
        LINE, lambda found: f'{found["start"]}{found["key"]}="{found["value"]}{found["end"]}'
    ),
    "two overrides in one word": on(
        LINE, lambda found: f"{found['start']}{found['key']}={found['value']},trainer.nnodes=2{found['end']}"
    ),
    "variable set after its use": _late_variable,
    "no-break space": on(LINE, lambda found: f"\u00a0{found[0].lstrip()}"),
    "decimal comma": on(LINE, lambda found: f"{found['start']}{ACTOR}clip_ratio=0,2{found['end']}"),
    "two spaces after a backslash": on(CONTINUED, lambda found: f"{found[0]}  "),
    "semicolon at the end of a line": on(CONTINUED, lambda found: found[0].removesuffix(" \\") + "; \\"),
    "capital letter in a key": on(
        LINE, lambda found: found[0].replace(found["key"], found["key"].capitalize(), 1)
    ),
    "array that is spelt otherwise": on(ARRAY, lambda found: f'"${{{found[1]}S[@]}}"'),
    "brace of a variable not closed": on(ARRAY, lambda found: f'"${{{found[1]}[@]"'),
    "value without its key": on(LINE, lambda found: f"{found['start']}={found['value']}{found['end']}"),
    "key with a slash": on(LINE, lambda found: found[0].replace(".", "/", 1)),
    "dash for an underscore": on(
        LINE, lambda found: f"{found['start']}{found['key'].replace('_', '-')}={found['value']}{found['end']}"
    ),
}
#: Values, as overrides at the end of the command line.
EARLIER_VALUES: Mapping[str, str] = {
    "None for null": "trainer.total_training_steps=None",
    "percent": f"{ROLLOUT}gpu_memory_utilization=60",
    "no nodes": "trainer.nnodes=0",
    "shards that do not divide": f"trainer.nnodes=1 trainer.n_gpus_per_node=8 {ACTOR}fsdp_config.fsdp_size=3",
    "kind of KL in the reward": "algorithm.use_kl_in_reward=True algorithm.kl_penalty=k9",
    "load format": f"{ROLLOUT}load_format=dumy",
    "truncation": "data.truncation=rihgt",
    "logger": "trainer.logger=[console,wandbb]",
    "quotient of 0": f"{ACTOR}use_dynamic_bsz=False {ACTOR}ppo_micro_batch_size_per_gpu=0",
    "removal of what is not there": "~trainer.nnode",
    "number with a unit": f"{ROLLOUT}max_num_batched_tokens=8k",
    "negative length": "data.max_response_length=-1",
    "fraction of a sample": f"{ROLLOUT}n=2.5",
    "no validation samples": f"{ROLLOUT}val_kwargs.n=0",
    "kind of KL controller": "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptve",
    "rollout dtype": f"{ROLLOUT}dtype=bf17",
    "resume mode": "trainer.resume_mode=atuo",
    "contents of checkpoints": f"{ACTOR}checkpoint.save_contents=[model,optimzer]",
    "no cards": "trainer.n_gpus_per_node=0",
    "probability above 1": f"{ROLLOUT}top_p=1.5",
    "batch of 0": "data.train_batch_size=0",
    "true value spelt otherwise": f"{ACTOR}use_kl_loss=Treu",
    "warm-up that is misspelt": f"{ACTOR}optim.lr_warmup_step=10",
    "number with an underscore and a letter": f"{ACTOR}ppo_mini_batch_size=1_000x",
    "shards of text": f"{ACTOR}fsdp_config.fsdp_size=all",
    "reward manager": "reward_model.reward_manager=daop reward.reward_manager.name=daop",
    "negative number of samples": f"{ROLLOUT}n=-4",
    "quantile for a temperature": f"{ROLLOUT}temperature=-0.5",
    "frequency of text": "trainer.save_freq=often",
    "steps of a list": "trainer.total_epochs=[15]",
    "entropy from a word": f"{ACTOR}entropy_coeff=none_at_all",
    "tensor parallel of 0": f"{ROLLOUT}tensor_model_parallel_size=0",
    "pipeline parallel that does not divide": "trainer.nnodes=1 trainer.n_gpus_per_node=8 "
    f"{ROLLOUT}name=vllm {ROLLOUT}tensor_model_parallel_size=6",
    "context parallel that does not divide": f"trainer.nnodes=1 trainer.n_gpus_per_node=8 "
    f"{ACTOR}ulysses_sequence_parallel_size=3",
}
#: Slips that were written last, when `lint` found the others. Each makes the job stop, or do nothing.
LATEST_SLIPS: Mapping[str, Callable[[str], str | None]] = {
    "overrides behind a pipe": on(CONTINUED, lambda found: f"{found[0]}\n    2>&1 | tee train.log \\"),
    "two equals signs": on(
        LINE, lambda found: f"{found['start']}{found['key']}=={found['value']}{found['end']}"
    ),
    "comma at the end of a value": on(CONTINUED, lambda found: found[0].removesuffix(" \\") + ", \\"),
    "variable in braces without its dollar": on(
        LINE, lambda found: f"{found['start']}{found['key']}={{VALUE}}{found['end']}"
    ),
    "variable in single quotes": on(
        re.compile(
            r"^(?P<start>[ \t]+)(?P<word>[\w.]+(?:nnodes|n_gpus_per_node|size|length|lr)=\$\S+)", re.MULTILINE
        ),
        lambda found: f"{found['start']}'{found['word']}'",
    ),
    "backslash with two overrides in one line": on(
        re.compile(r"^([ \t]+\w+\.[\w.]+=\S+ \\)\n[ \t]+(\w+\.[\w.]+=\S+ \\)$", re.MULTILINE),
        lambda found: f"{found[1]} {found[2]}",
    ),
    "full-width equals sign": on(
        LINE, lambda found: f"{found['start']}{found['key']}\uff1d{found['value']}{found['end']}"
    ),
    "zero-width space": on(
        LINE, lambda found: f"{found['start']}{found['key']}\u200b={found['value']}{found['end']}"
    ),
    "misspelt configuration": on(
        re.compile(r"-m verl\.trainer\.main_ppo"), lambda found: f"{found[0]} --config-name=ppo_trianer"
    ),
    "export with spaces": on(
        re.compile(r"^export (?P<name>\w+)=(?P<value>\S+)$", re.MULTILINE),
        lambda found: f"export {found['name']} = {found['value']}",
    ),
    "bracket that is not closed": on(
        re.compile(r"trainer\.logger=\S+"), lambda _found: 'trainer.logger=\'["console","wandb"\''
    ),
    "key of the actor in the rollout": on(
        re.compile(r"actor_rollout_ref\.actor\.(?=ppo_|use_kl|entropy|kl_loss)"),
        lambda _found: "actor_rollout_ref.rollout.",
    ),
    "semicolon in a list": on(
        re.compile(r"trainer\.logger=\S+"), lambda _found: "'trainer.logger=[console;wandb]'"
    ),
    "fewer visible cards than the job has": on(
        re.compile(r"\A(?:#!.*\n)?"), lambda found: f"{found[0]}export ASCEND_RT_VISIBLE_DEVICES=0,1\n"
    ),
}
LATEST_VALUES: Mapping[str, str] = {
    "temperature of 0": f"{ROLLOUT}temperature=0",
    "estimator in capitals": "algorithm.adv_estimator=GRPO",
    "strategy in capitals": f"{ACTOR}strategy=FSDP",
    "count in scientific notation": "data.train_batch_size=1e3",
    "mini-batch larger than the batch": f"{ACTOR}ppo_mini_batch_size=1000000",
    "rollout by the name of the plugin": f"{ROLLOUT}name=vllm_ascend",
    "mode by another word": f"{ROLLOUT}mode=asynchronous",
    "yes for true": "algorithm.use_kl_in_reward=yes",
    "no epochs": "trainer.total_epochs=0 trainer.total_training_steps=null",
    "no sequences at once": f"{ROLLOUT}max_num_seqs=0",
    "no epochs of an update": f"{ACTOR}ppo_epochs=0",
    "model without a path": "actor_rollout_ref.model.path=",
    "negative learning rate": f"{ACTOR}optim.lr=-1e-6",
    "loss with a dash": f"{ACTOR}policy_loss.loss_mode=gspo-token",
    "micro-batch shorter than a sequence": f"{ACTOR}use_dynamic_bsz=True "
    f"{ACTOR}ppo_max_token_len_per_gpu=100",
}
SLIPS = {**EARLIER_SLIPS, **LATEST_SLIPS}
VALUES = {**EARLIER_VALUES, **LATEST_VALUES}
#: Kinds whose misses were not looked at while `lint` was changed.
HELD_OUT = frozenset((*LATEST_SLIPS, *LATEST_VALUES))


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A slip in a script, and whether it was found."""

    kind: str
    script: str
    found: bool


def reported(script: LaunchScript, versions: Mapping[str, str], verl: VerlConfiguration) -> frozenset[str]:
    """What `lint` reports of a script: errors, warnings, and what it did not read."""
    found = {note.text for note in script.notes if note.unread}
    for job in script.jobs:
        result = lint_job(job, versions, configuration=verl)
        found |= {f"{one.rule} {one.message}" for one in result.findings if one.severity != "note"}
    return frozenset(found)


def read(text: str, path: str) -> LaunchScript | None:
    """The script; None if it cannot be read or starts no job, which `lint` tells."""
    try:
        script = parse_script(text, path)
    except InputError:
        return None
    return script if script.jobs else None


def injected(tag: str, tree: Tree, kinds: frozenset[str], scripts: int = SCRIPTS) -> Iterator[Injected]:
    """Each script of one release with a share of the slips."""
    paths = sorted(path for path in tree.paths() if re.fullmatch(r"examples/\w*po_trainer/.*\.sh", path))
    names = [name for name in (*SLIPS, *VALUES) if name in kinds]
    with VerlConfiguration(tree).unpacked() as verl:
        count = 0
        for path in paths[:: max(1, len(paths) // (2 * scripts))]:
            text = tree.read(path).decode("utf-8", "replace")
            script = read(text, path)
            if script is None or len(script.jobs) != 1 or script.jobs[0].entry != "verl.trainer.main_ppo":
                continue
            before = reported(script, STACKS[tag], verl)
            # What Hydra refuses hides other mistakes.
            if any(item.startswith(CONFIG_RULE) for item in before):
                continue
            count += 1
            for name in names[count % SHARE :: SHARE]:
                changed = SLIPS[name](text) if name in SLIPS else ""
                if changed is None:
                    continue
                after = (
                    read(changed, path)
                    if changed
                    else LaunchScript(jobs=(with_mistake(script.jobs[0], VALUES[name]),), notes=script.notes)
                )
                is_found = after is None or bool(reported(after, STACKS[tag], verl) - before)
                yield Injected(kind=name, script=f"{tag} {path}", found=is_found)
            if count == scripts:
                return


def figures() -> Iterator[Figure]:
    """Inject the slips into scripts of each release."""
    every = [
        one
        for tag in STACKS
        for one in injected(tag, verl_repository().tree(tag), frozenset((*SLIPS, *VALUES)))
    ]
    for held_out, claim in ((True, "kinds held out"), (False, "other kinds")):
        chosen = [one for one in every if (one.kind in HELD_OUT) is held_out]
        for one in chosen:
            if not one.found and not held_out:
                logging.getLogger(__name__).info("not found: %s in %s", one.kind, one.script)
        yield Figure(
            claim=f"of {len(chosen)} slips in scripts of {len(STACKS)} releases, those found, {claim}",
            measured=round(100 * sum(one.found for one in chosen) / max(1, len(chosen)), 1),
            unit="%",
            limit=90,
            is_lower_limit=True,
        )
