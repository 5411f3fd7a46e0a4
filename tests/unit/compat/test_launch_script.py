"""Launch scripts with the settings, and the known problems, of published scripts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compat.lint.job_settings import parsed_value
from harness.compat.lint.launch_script import parse_script, read_script
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_scripts import lint_file, lint_script
from harness.errors import InputError

ONE_STEP = r"""
set -x
export VLLM_ASCEND_ENABLE_NZ=0

NGPUS_PER_NODE=${NGPUS_PER_NODE:-2}
train_gpus=$((NGPUS_PER_NODE - 1))
prompt=$((1024 * 2))
response=$((1024 * 32))
python3 -m recipe.one_step_off_policy.main_ppo \
    algorithm.adv_estimator=grpo \
    data.max_prompt_length=${prompt} \
    data.max_response_length=${response} \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.ref.use_torch_compile=False \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((prompt + response) / 1)) \
    trainer.logger=['console','tensorboard'] \
    trainer.device=npu \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node="${train_gpus}" $@
"""
GSPO_COMMON = r"""
export GPUS_PER_NODE=8 NNODES=1
{exports}
adv_estimator=grpo loss_mode=gspo loss_agg_mode="{agg}"
clip_ratio_low=0.0003 # as the paper recommends, see Sec. 5.1
clip_ratio_high=0.0004
max_prompt_length=$((1024 * 2)); max_response_length=$((1024*8))
len=$(((max_prompt_length + max_response_length)*1))
rollout_engine=vllm
if [ "$rollout_engine" = "vllm" ]; then
  export VLLM_USE_V1=1
fi
{launcher} -m verl.trainer.main_ppo {config} \
    algorithm.adv_estimator=${{adv_estimator}} \
    actor_rollout_ref.actor.policy_loss.loss_mode=${{loss_mode}} \
    actor_rollout_ref.actor.loss_agg_mode=${{loss_agg_mode}} \
    actor_rollout_ref.actor.clip_ratio_low=${{clip_ratio_low}} \
    actor_rollout_ref.actor.clip_ratio_high=${{clip_ratio_high}} \
    data.max_prompt_length=$max_prompt_length \
    data.max_response_length=$max_response_length \
    data.train_batch_size=512 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$len \
    actor_rollout_ref.rollout.name=$rollout_engine \
    {more} \
    trainer.nnodes=1
"""


def gspo(
    agg: str = "seq-mean-token-mean",
    exports: str = "",
    launcher: str = "python3",
    config: str = "",
    more: str = "",
) -> str:
    return GSPO_COMMON.format(agg=agg, exports=exports, launcher=launcher, config=config, more=more)


BATCHES = "actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.rollout.n=16"
CASE_1 = gspo(more=f"{BATCHES} trainer.n_gpus_per_node=16")
CASE_2 = gspo(
    agg="token-mean",
    launcher="ray job submit --runtime-env=env.yaml -- python3",
    config="--config-path=config --config-name='ppo_megatron_trainer.yaml'",
    more="actor_rollout_ref.rollout.n=2 actor_rollout_ref.actor.ppo_mini_batch_size=4 "
    "actor_rollout_ref.actor.clip_ratio_c=10.0 actor_rollout_ref.model.path=/w/Qwen3_30B/Qwen3_30B "
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8 "
    "actor_rollout_ref.rollout.calculate_log_probs=True "
    "data.train_files=/d/dapo.parquet data.val_files=/d/dapo.parquet algorithm.filter_groups.enable=False",
)
CASE_3 = gspo(exports="export VLLM_ASCEND_ENABLE_NZ=0", more=f"{BATCHES} trainer.n_gpus_per_node=8")
CASE_4 = gspo(
    exports="export VLLM_ASCEND_ENABLE_NZ=0",
    more=f"{BATCHES} trainer.n_gpus_per_node=8 trainer.use_legacy_worker_impl=disable",
)
OLD = {"verl": "0.7.0.dev0", "vllm_ascend": "0.10.0rc1", "cann": "8.2.RC2", "megatron_core": "0.12.1"}
NEW = {"verl": "0.7.0.dev0@5a2e0b1c", "vllm_ascend": "0.11.0rc1", "cann": "8.3.RC1"}


def found(text: str, versions: dict[str, str]) -> dict[str, int]:
    return {finding.rule: finding.line for finding in lint_script(parse_script(text), versions).findings}


def test_the_one_step_off_script_has_its_known_problem() -> None:
    rules = found(ONE_STEP, {"verl": "0.7.0.dev0@ccd7d934", "vllm_ascend": "0.11.0rc1"})
    assert rules == {"HCCL-ONESTEP": 9, "KL-COEF-DEAD": 15, "LOGP-OFF": 9}
    assert "HCCL-ONESTEP" not in found(ONE_STEP, {"verl": "0.7.0", "vllm_ascend": "0.11.0rc1"})


def test_the_dense_gspo_script_has_its_known_problems() -> None:
    assert set(found(CASE_1, OLD)) == {"COMPILE-NPU", "GPUS-MISMATCH", "LOGP-OFF"}


def test_the_moe_gspo_script_has_its_known_problems() -> None:
    rules = set(found(CASE_2, OLD))
    assert rules == {
        "GSPO-AGG-IGNORED",
        "GSPO-DUALCLIP",
        "GROUP-SMALL",
        "TP-GQA",
        "VAL-TRAIN",
        "FILTER-GROUPS",
        "TESTFREQ",
    }
    assert "GSPO-AGG" in found(CASE_2, {**OLD, "verl": "0.9.1"})


@pytest.mark.parametrize(
    ("config", "too_long", "undecided"),
    [("", True, False), ("ppo_megatron_trainer", False, False), ("our_trainer", False, True)],
)
def test_without_a_verl_the_defaults_are_those_of_the_configuration(
    config: str, too_long: bool, undecided: bool
) -> None:
    named = f"--config-path=config --config-name={config}.yaml" if config else ""
    job = (
        f"python -m verl.trainer.main_ppo {named} actor_rollout_ref.actor.use_dynamic_bsz=True "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4480 data.max_prompt_length=1024 "
        "data.max_response_length=34816 actor_rollout_ref.actor.megatron.context_parallel_size=8"
    )
    result = lint_script(parse_script(job), {"verl": "0.6.1"})
    assert ("DYNBSZ-LEN" in {finding.rule for finding in result.findings}) is too_long
    assert ("DYNBSZ-LEN" in {rule.rule for rule in result.undecided}) is undecided


@pytest.mark.parametrize(("case", "compiled"), [(CASE_3, "COMPILE-NPU"), (CASE_4, "COMPILE-NPU-ENGINE")])
def test_the_later_gspo_scripts_have_their_known_problem(case: str, compiled: str) -> None:
    assert set(found(case, NEW)) == {compiled, "LOGP-OFF"}
    assert "NZ" in found(case.replace("export VLLM_ASCEND_ENABLE_NZ=0", ""), NEW)


def test_values_entry_and_locations_are_read() -> None:
    [recipe] = parse_script(ONE_STEP, "run.sh").jobs
    assert recipe.entry == "recipe.one_step_off_policy.main_ppo"
    assert (recipe.nodes, recipe.cards, recipe.device) == (1, 1, "npu")
    length = recipe.overrides["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"]
    assert parsed_value(length) == 34816
    assert str(length.where) == "run.sh:22:5"
    assert recipe.env["VLLM_ASCEND_ENABLE_NZ"].text == "0"
    assert "NGPUS_PER_NODE" not in recipe.env


def test_a_launch_through_ray_and_its_config_are_read() -> None:
    [recipe] = parse_script(CASE_2).jobs
    assert (recipe.entry, recipe.config) == ("verl.trainer.main_ppo", "ppo_megatron_trainer.yaml")
    assert recipe.model == "/w/Qwen3_30B/Qwen3_30B"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x=5; y=$x", "5"),
        ("y='$x'", "$x"),
        ('x=5; y="a${x}b"', "a5b"),
        ("y=${missing:-7}", "7"),
        ("x=; y=${x:-7}", "7"),
        ("x=; y=${x-7}", ""),
        ("y=${a:-${b:-deep}}", "deep"),
        ("y=$((7 / 2))", "3"),
        ("y=$((-7 / 2))", "-3"),
        ("y=$((2 ** 10 % 1000))", "24"),
        ("n=3; y=$((n * (1 + $n)))", "12"),
        ("y=a\\\nb", "ab"),
        ("y=a\\ b", "a b"),
        ("y=1; y+=2", "12"),
        ("y=[1,2] # comment", "[1,2]"),
        ("y=a#b", "a#b"),
    ],
)
def test_shell_values(line: str, value: str) -> None:
    [recipe] = parse_script(f'{line}\npython -m verl.trainer.main_ppo k="$y"\n').jobs
    assert (recipe.overrides["k"].text, recipe.overrides["k"].unknown) == (value, "")


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("y=$HOME/data", "HOME"),
        ("y=$(date)", "$(date)"),
        ("y=`date`", "`date`"),
        ("y=$((missing + 1))", "missing"),
        ("y=$((1 / 0))", "division by zero"),
        ("y=${path%/*}", "path"),
    ],
)
def test_values_that_only_a_run_shows_are_unknown(line: str, unknown: str) -> None:
    [recipe] = parse_script(f"{line}\npython -m verl.trainer.main_ppo k=$y\n").jobs
    assert recipe.overrides["k"].unknown == unknown


def test_a_rule_on_an_unknown_value_is_undecided() -> None:
    script = parse_script(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=$N"
    )
    result = lint_script(script, {"verl": "0.9.1"})
    assert "GROUP-1" in {item.rule for item in result.undecided}
    assert not {"GROUP-1", "GROUP-SMALL"} & {finding.rule for finding in result.findings}


def test_loops_are_unrolled_and_documents_are_no_commands() -> None:
    script = parse_script(
        "cat <<EOF > x\npython -m not.this a=1\nEOF\nfor i in 1 2; do\npython -m verl.trainer.main_ppo k=$i\ndone\n"
    )
    assert script.notes == ()
    assert [(job.entry, job.overrides["k"].text) for job in script.jobs] == [
        ("verl.trainer.main_ppo", "1"),
        ("verl.trainer.main_ppo", "2"),
    ]


def test_hydras_prefixes_are_distinguished() -> None:
    [recipe] = parse_script("python -m verl.trainer.main_ppo +a.b=1 ++c.d=2 ~e.f g=3").jobs
    assert set(recipe.overrides) == {"a.b", "c.d", "g"}
    assert (recipe.added, recipe.removed) == (frozenset({"a.b", "c.d"}), frozenset({"e.f"}))


def test_a_space_between_key_and_value_is_found() -> None:
    torn = "python -m verl.trainer.main_ppo \\\n  data.train_files= ${TRAIN} \\\n  data.val_files= -x \\\n  a=1\n"
    [finding] = [f for f in lint_script(parse_script(torn), {}).findings if f.rule == "TORN-OVERRIDE"]
    assert (finding.line, finding.severity) == (2, "error")
    assert "data.train_files=" in finding.message
    assert "TORN-OVERRIDE" not in found(torn.replace("train_files= ", "train_files="), {})


def test_environment_variables_before_the_command_are_read() -> None:
    [recipe] = parse_script("A=1\nB=2 nohup python -m verl.trainer.main_ppo k=1 > log 2>&1 &").jobs
    assert {name: value.text for name, value in recipe.env.items()} == {"B": "2"}
    assert set(recipe.overrides) == {"k"}


@pytest.mark.parametrize(
    ("data", "unknown"),
    [
        (b"echo hello\n", "starts no training job"),
        (b"\xff\xfe broken", "not UTF-8"),
        (b"\0binary", "not a launch script"),
        (b"#" * (2 << 20), "not a launch script"),
    ],
)
def test_bad_files_are_input_errors(tmp_path: Path, data: bytes, unknown: str) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        lint_file(path, {})
    assert unknown in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_wrong_version_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_script(tmp_path / "missing.sh")
    (tmp_path / "run.sh").write_text(ONE_STEP)
    with pytest.raises(InputError):
        lint_file(tmp_path / "run.sh", {"verl": "newest"})


@given(text=st.text(alphabet="abPython -m=$(){}[]'\"\\\n#;&|<>`+~:.1/*", max_size=120))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_script(text)
    with contextlib.suppress(InputError):
        parse_script(f"python -m verl.trainer.main_ppo a={text}")


def test_the_variables_of_a_ray_job_are_those_of_its_runtime_environment() -> None:
    [job] = parse_script(
        'ray job submit --runtime-env-json=\'{"env_vars": {"TASK_QUEUE_ENABLE": "2"}}\' -- '
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"
    ).jobs
    assert {name: value.text for name, value in job.env.items()} == {"TASK_QUEUE_ENABLE": "2"}
    for broken in ("{", "[1]", '{"env_vars": 3}', "$UNKNOWN"):
        text = f"ray job submit --runtime-env-json='{broken}' -- python -m verl.trainer.main_ppo a.b=1"
        assert parse_script(text).jobs[0].env == {}


PPO = "verl.trainer.main_ppo"


@pytest.mark.parametrize(
    "start",
    [
        f"python3 -m {PPO}",
        f"python3 -u -X faulthandler -m{PPO}",
        f"torchrun --nproc-per-node 8 --module {PPO}",
        f"python -m torch.distributed.run --nproc_per_node=8 -m {PPO}",
        f"python -m torch.distributed.launch --module {PPO}",
        f"accelerate launch --num_processes 8 -m {PPO}",
        f"python -m cProfile -o x.prof -m {PPO}",
        f"PY=$(which python3); $PY -m {PPO}",
    ],
)
def test_the_program_is_the_one_that_gets_the_overrides(start: str) -> None:
    [job] = parse_script(f"{start} trainer.nnodes=2").jobs
    assert (job.entry, job.arguments[0].text) == (PPO, "trainer.nnodes=2")


def test_options_of_hydra_are_no_overrides() -> None:
    [job] = parse_script(f"python -m {PPO} --cfg job trainer.nnodes=2").jobs
    assert [word.text for word in job.arguments] == ["trainer.nnodes=2"]


def test_a_sweep_is_a_value_that_is_not_known() -> None:
    [job] = parse_script(f"python -m {PPO} -m trainer.nnodes=1,2 data.train_files=[a,b]").jobs
    assert [word.unknown for word in job.arguments] == ["a sweep of Hydra", ""]


def test_a_word_from_outside_is_no_override_and_is_told() -> None:
    script = parse_script(f'python -m {PPO} trainer.nnodes=1 "$1" "$FOO" "$(date)"')
    [job] = script.jobs
    assert [word.text for word in job.arguments] == ["trainer.nnodes=1"]
    assert [note.unread for note in script.notes] == [False, False, True]


@pytest.mark.parametrize(
    "start", ["trainer.nnodes=1\n", "trainer.nnodes=1 \\\n  # data.val_batch_size=2 \\\n", "\n"]
)
def test_overrides_that_bash_does_not_pass_are_reported(start: str) -> None:
    [job] = parse_script(f"python -m {PPO} {start}  trainer.n_gpus_per_node=4 \\\n  data.seed=1\n").jobs
    assert [word.text for word in job.cut_off] == ["trainer.n_gpus_per_node=4", "data.seed=1"]
    found = lint_job(job, {"verl": "0.9.1"}).findings
    assert "bash runs this line as another command" in next(
        one.message for one in found if one.rule == "TORN-OVERRIDE"
    )


def test_the_variables_of_a_ray_job_are_those_of_a_file_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text('env_vars:\n  TASK_QUEUE_ENABLE: "2"\n')
    (tmp_path / "bad.yaml").write_text("env_vars: [")
    start = "ray job submit --runtime-env"
    script = parse_script(f"{start} ./env.yaml -- python -m {PPO} a.b=1", "run.sh", tmp_path)
    assert script.jobs[0].env["TASK_QUEUE_ENABLE"].text == "2"
    for file, problem in {"bad.yaml": "it is not valid", "other.yaml": "no such file"}.items():
        script = parse_script(f"{start}={file} -- python -m {PPO} a.b=1", "run.sh", tmp_path)
        assert problem in script.notes[0].text


def test_windows_line_ends_are_told() -> None:
    script = parse_script(f"python -m {PPO} \\\r\n  trainer.nnodes=1\r\n")
    assert script.notes[0].unread
    assert "dos2unix" in script.notes[0].text


@pytest.mark.parametrize(
    "launcher",
    [
        '"${CONDA_BIN}python3"',
        "$PYTHON",
        "uv run --isolated --extra verl",
        "uv run python",
        "$ROOT/bin/python -u",
    ],
)
def test_a_python_whose_path_only_a_run_knows_starts_the_job(launcher):
    script = parse_script(f"{launcher} -m verl.trainer.main_ppo trainer.nnodes=2\n")
    assert [(job.entry, job.nodes) for job in script.jobs] == [("verl.trainer.main_ppo", 2)]
    assert not script.notes


WAITING = """wait_for_server() {
    local attempt=0
    while [ $attempt -lt 60 ]; do
        if curl -s http://localhost/health; then return 0; fi
        attempt=$((attempt + 1))
        sleep 10
    done
    return 1
}
if ! wait_for_server; then exit 1; fi
while true; do
    count=$(ray status | grep -c GPU)
    if [ "$count" -eq 8 ]; then break; fi
    sleep 1
done
monitor() { while true; do sleep 60; done; }
monitor &
python3 -m verl.trainer.main_ppo trainer.nnodes=2
"""


def test_loops_that_wait_for_other_processes_do_not_hide_the_job_behind_them():
    script = parse_script(WAITING)
    assert [job.nodes for job in script.jobs] == [2]
    assert not [note for note in script.notes if note.unread]


def test_what_a_waiting_loop_counts_is_not_known_after_it():
    script = parse_script(WAITING.replace("local ", "").replace("nnodes=2", "nnodes=$attempt"))
    assert any(job.overrides["trainer.nnodes"].unknown for job in script.jobs)


def test_a_long_list_with_open_conditions_is_read_to_its_end():
    items = " ".join(f"data{number}" for number in range(30))
    script = parse_script(
        f'for name in {items}; do\n  file=$(find . -name $name)\n  if [ -z "$file" ]; then continue; fi\n'
        "  if [ $name = data29 ]; then python3 -m verl.trainer.main_ppo trainer.nnodes=2; fi\ndone\n"
    )
    assert [job.nodes for job in script.jobs] == [2]
    assert not [note for note in script.notes if note.unread]


def test_the_element_of_an_array_with_an_index_that_only_a_run_knows_is_not_empty():
    script = parse_script(
        'set -u\nLRS=(1e-6 1e-5)\npython3 -m verl.trainer.main_ppo trainer.x="${LRS[$SLURM_ARRAY_TASK_ID]}"\n'
    )
    assert script.jobs[0].overrides["trainer.x"].unknown


def test_a_script_is_found_by_the_folder_that_its_path_names(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "env.sh").write_text("NODES=2\n")
    (scripts / "inner.sh").write_text('python3 -m verl.trainer.main_ppo trainer.nnodes=$NODES "$@"\n')
    (scripts / "run.sh").write_text(
        'source "$PROJECT/scripts/env.sh"\nexport NODES\nbash /home/me/project/scripts/inner.sh trainer.x=1\n'
        "bash /home/me/elsewhere/inner.sh trainer.x=2\n"
    )
    script = read_script(scripts / "run.sh")
    assert [(job.nodes, job.overrides["trainer.x"].text) for job in script.jobs] == [(2, "1")]
    assert ["elsewhere" in note.text for note in script.notes] == [True]


def test_scripts_that_activate_an_environment_are_told_and_leave_nothing_unread():
    script = parse_script(
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh\nsource .venv/bin/activate\n"
        "python3 -m verl.trainer.main_ppo trainer.nnodes=2\n"
    )
    assert len(script.notes) == 2
    assert not any(note.unread for note in script.notes)


def test_values_of_options_and_words_of_other_programs_are_no_overrides():
    script = parse_script(
        "python -m verl_tool.servers.serve --host $(hostname -i) --port $(shuf -i 1-9 -n 1)\n"
        'python3 -m verl.trainer.main_ppo --config-path "$(pwd)/recipe/fapo/config" trainer.nnodes=2\n'
    )
    assert not [note for note in script.notes if note.unread]
    assert not script.jobs[-1].has_unread_arguments


def test_an_array_that_is_set_nowhere_is_told():
    text = 'ACTOR=(a.b=1)\nread -r -a WORDS <<< "e.f=1 g.h=2"\npython3 -m verl.trainer.main_ppo c.d=1 "${ACTOR[@]}" "${WORDS[@]}"\n'
    assert not parse_script(text).notes
    misspelt = parse_script(text.replace('"${ACTOR[@]}"', '"${ACTORS[@]}"')).notes
    assert [(note.line, note.unread, "`ACTOR` meant" in note.text) for note in misspelt] == [(3, True, True)]
    absent = parse_script(text.replace('"${ACTOR[@]}"', '"${ROLLOUT[@]}" ${EXTRA[@]+"${EXTRA[@]}"}')).notes
    assert [note.unread for note in absent if "ROLLOUT" in note.text] == [False]


def test_a_variable_in_single_quotes_is_told():
    text = "N=2\npython3 -m verl.trainer.main_ppo 'trainer.nnodes=$N' 'a.b=${trainer.nnodes}' 'c.d=$X'\n"
    assert [(note.unread, "$N" in note.text) for note in parse_script(text).notes] == [(True, True)]


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("export CARDS=0, 1, 2", "`export` refuses `1,`"),
        ("A=(a.b=1)\nA=(c.d=2)", "the elements of the array `A` are replaced"),
        ("A=(a.b=1)\nA+=(c.d=2)", ""),
        ("A=(a.b=1)\nA=(${A[@]} c.d=2)", ""),
        ("A=(a.b=1)\nrun() { :; }\nrun\nA=(c.d=2)", ""),
        ("A=()\nA=(c.d=2)", ""),
        ("sp=4\nfsdp=2\nsp=8", "the value of `sp` is replaced below"),
        ("sp=4\nsp=$((sp * 2))", ""),
        ("sp=4\nsp=${sp:-8}", ""),
        ("sp=4\nsp=4", ""),
        ("sp=4\nsp+=2", ""),
        ("sp=4\nif true; then\n  sp=8\nfi", ""),
        ("sp=4\necho $sp\nsp=8", ""),
        ("sp=4\nother=$(compute)\nsp=8", ""),
        ("sp=4\nother=${!name}\nsp=8", ""),
        ("sp=4 other=$sp\nsp=8", ""),
        ("sp=4\nother=(a $sp)\nsp=8", ""),
        ("model=qwen\nname=$model_grpo\n: ", "is `${model}_grpo` meant?"),
        ("model=qwen\nname=${model}_grpo", ""),
        ("DATA=(a)\nname=$DATA_ROOT", ""),
        ("torchrun --standalone --nnodes=2 -m verl.trainer.sft_trainer data.x=1", "starts one node"),
        ("torchrun --standalone --nnodes=1 -m verl.trainer.sft_trainer data.x=1", ""),
        (
            "ray job submit --no-wait python3 -m verl.trainer.main_ppo data.x=1",
            "takes `-m` for an option of its own",
        ),
        ("ray job submit --no-wait -- python3 -m verl.trainer.main_ppo data.x=1", ""),
        ("ray job submit python3 main_ppo.py data.x=1", ""),
        ("DATA=(data.x=1 data.y=2)", "no command gets the overrides in the array `DATA`"),
        ('DATA=(data.x=1)\nB=("${DATA[@]}")\necho $B', ""),
        ("FILES=(a.parquet b.parquet)", ""),
        ('cards=$1\npython3 -m verl.trainer.main_ppo data.x=$cards "$@"', "is `shift` missing?"),
        ('cards=$1\nshift\npython3 -m verl.trainer.main_ppo data.x=$cards "$@"', ""),
        ('engine=${1:-vllm}\npython3 -m verl.trainer.main_ppo data.x=1 "$@"', ""),
        ('f() {\n  cards=$1\n}\npython3 -m verl.trainer.main_ppo data.x=1 "$@"', ""),
    ],
)
def test_what_bash_drops_is_told(line: str, note: str) -> None:
    job = 'python3 -m verl.trainer.main_ppo "${A[@]}" algorithm.adv_estimator=grpo trainer.experiment_name=$name'
    told = [one.text for one in parse_script(f"{line}\n{job}").notes if one.unread]
    relevant = [text for text in told if "`A`" not in text or "replaced" in text]
    assert bool(relevant) == bool(note), relevant
    assert note in " ".join(relevant)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("cards=8\nleft=$((cards - rolout))", {"rolout"}),
        ("cards=8\nrollout=2\nleft=$((cards - rollout))", set()),
        ("left=$((${CARDS:-8} - 0x10 + $(nproc)))", set()),
        ("for ((i = 0; i < 3; i++)); do echo $((i * 16#ff)); done", set()),
        # A note already says that this is read as one name.
        ("data=x\nname=$data_dir", set()),
    ],
)
def test_a_variable_of_arithmetic_that_nothing_sets_is_told(lines: str, names: set[str]) -> None:
    job = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=$left x=$name"
    (read,) = parse_script(f"{lines}\n{job}").jobs
    assert set(read.unset_variables) - {"left", "name"} == names


def test_an_ampersand_leaves_the_rest_of_the_overrides() -> None:
    script = parse_script(
        "python3 -m verl.trainer.main_ppo trainer.project_name=gsm8k&math \\\n    trainer.nnodes=2"
    )
    assert [word.text for word in script.jobs[0].cut_off] == ["trainer.nnodes=2"]
