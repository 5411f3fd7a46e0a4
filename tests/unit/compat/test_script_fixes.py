"""Fixes of launch scripts: what is offered, what is not, and that no other byte changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_tree import MemoryTree

from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import script_of
from harness.compat.lint.lint_measurements import LintResult, SettingChange
from harness.compat.lint.lint_scripts import lint_script
from harness.compat.lint.script_edits import ScriptEdit, before_edits, edit_of, edited
from harness.compat.lint.script_fixes import FixedScript, FixTrials
from harness.compat.lint.setting_changes import nearest_word, typing_errors
from harness.compat.lint.shell.syntax_tree import parse_bash
from harness.errors import InputError
from harness.sources.tree import REGULAR, TreeFile

FILES = {
    "verl/trainer/main_ppo.py": """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    if config.actor_rollout_ref.actor.loss_agg_mode not in ["token-mean", "seq-mean-token-mean"]:
        raise ValueError(f"Invalid loss_agg_mode: {config.actor_rollout_ref.actor.loss_agg_mode}")
    if config.data.train_batch_size < config.actor_rollout_ref.actor.ppo_mini_batch_size:
        raise ValueError("the mini-batch is larger than the batch")
if __name__ == "__main__":
    main()
""",
    "verl/trainer/config/ppo_trainer.yaml": """\
actor_rollout_ref:
  rollout: {n: 4, name: vllm, calculate_log_probs: true, enforce_eager: true, free_cache_engine: false,
    top_k: 1, top_p: 1}
  actor: {ppo_mini_batch_size: 8, loss_agg_mode: token-mean, use_dynamic_bsz: true, use_torch_compile: false}
  ref: {use_torch_compile: false}
algorithm: {adv_estimator: grpo}
data: {train_batch_size: 64, train_files: ~/train.parquet}
trainer: {nnodes: 1, n_gpus_per_node: 8}
""",
}
PATH = Path("run.sh")
ACTOR = "actor_rollout_ref.actor"
Fixer = Callable[[bytes], FixedScript]


@pytest.fixture(scope="module")
def lint() -> Iterator[Callable[[bytes], LintResult]]:
    tree = MemoryTree(
        files={path: TreeFile(mode=REGULAR, data=text.encode()) for path, text in FILES.items()}
    )
    with VerlConfiguration(tree).unpacked() as unpacked:
        yield lambda script: lint_script(script_of(script, PATH), {"verl": "0.9.1"}, unpacked)


@pytest.fixture(scope="module")
def fix(lint: Callable[[bytes], LintResult]) -> Fixer:
    return lambda script: FixTrials(PATH, script, lint).fixed(lambda _finding: True)


def job(*words: str) -> bytes:
    return (
        " ".join(["python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo", *words]).encode() + b"\n"
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (f"{ACTOR}.ppo_mini_batch_szie=16", f"{ACTOR}.ppo_mini_batch_size=16"),
        (f'"{ACTOR}.ppo_mini_batch_szie=16"', f'"{ACTOR}.ppo_mini_batch_size=16"'),
        (f"'{ACTOR}.ppo_mini_batch_szie'=16", f"'{ACTOR}.ppo_mini_batch_size'=16"),
        (f'{ACTOR}.ppo_mini_batch_szie="16"', f'{ACTOR}.ppo_mini_batch_size="16"'),
        (f"{ACTOR}.ppo_mini_batch_szie=${{MINI}}", f"{ACTOR}.ppo_mini_batch_size=${{MINI}}"),
        ("+trainer.nnodes=2", "trainer.nnodes=2"),
        ("trainer.nnodes= 2", "trainer.nnodes=2"),
        ("trainer.nnodes=  \t 2", "trainer.nnodes=2"),
        (f"{ACTOR}.use_dynamic_bsz=Ture", f"{ACTOR}.use_dynamic_bsz=True"),
        (f"{ACTOR}.use_dynamic_bsz='Ture'", f"{ACTOR}.use_dynamic_bsz='True'"),
        (f"{ACTOR}.loss_agg_mode=tokn-mean", f"{ACTOR}.loss_agg_mode=token-mean"),
        (f"\"{ACTOR}.loss_agg_mode='tokn-mean'\"", f"\"{ACTOR}.loss_agg_mode='token-mean'\""),
        (
            "actor_rollout_ref.rollout.calculate_log_probs=False",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
        ),
    ],
)
def test_a_certain_fix_changes_one_word(fix: Fixer, wrong: str, right: str) -> None:
    found = fix(job("trainer.nnodes=1" if "nnodes" not in wrong else "", wrong))
    assert found.fixed == job("trainer.nnodes=1" if "nnodes" not in wrong else "", right)
    assert len(found.fixes) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("export TASK_QUEUE_ENABLE=2\n{job}", "export TASK_QUEUE_ENABLE=1\n{job}"),
        ('export TASK_QUEUE_ENABLE="2" # 2\n{job}', 'export TASK_QUEUE_ENABLE="1" # 2\n{job}'),
        ("TASK_QUEUE_ENABLE=2 {job}", "TASK_QUEUE_ENABLE=1 {job}"),
        ("env TASK_QUEUE_ENABLE=2 {job}", "env TASK_QUEUE_ENABLE=1 {job}"),
        ("bash -c 'TASK_QUEUE_ENABLE=2 {line}'\n", "bash -c 'TASK_QUEUE_ENABLE=1 {line}'\n"),
    ],
)
def test_a_variable_is_fixed_where_it_is_written(fix: Fixer, before: str, after: str) -> None:
    text = job("actor_rollout_ref.rollout.enforce_eager=False").decode()
    names = {"job": text, "line": text.strip()}
    found = fix(before.format(**names).encode())
    assert found.fixed.decode() == after.format(**names)


@pytest.mark.parametrize(
    "script",
    [
        # The value is in a variable, comes from outside, or is made by the script.
        b"X=Ture\n" + job(f"{ACTOR}.use_dynamic_bsz=$X"),
        b'Q=${QUEUE:-2}\nexport TASK_QUEUE_ENABLE="$Q"\n'
        + job("actor_rollout_ref.rollout.enforce_eager=False"),
        b"for v in Ture; do " + job(f"{ACTOR}.use_dynamic_bsz=$v").strip() + b"; done\n",
        # Two keys are equally near, none is near, or the word is too short to tell.
        job("actor_rollout_ref.rollout.top_x=1"),
        job(f"{ACTOR}.no_such_setting=1"),
        job("actor_rollout_ref.rollout.m=4"),
        # The value is none of those that verl takes.
        job(f"{ACTOR}.use_dynamic_bsz=perhaps"),
        job(f"{ACTOR}.loss_agg_mode=sum"),
    ],
)
def test_what_is_not_certain_is_not_fixed(fix: Fixer, script: bytes) -> None:
    found = fix(script)
    assert (found.fixed, found.fixes) == (script, ())


def test_a_fix_that_uncovers_an_error_is_not_offered(fix: Fixer) -> None:
    script = job(f"{ACTOR}.ppo_mini_batch_szie=128")
    found = fix(script)
    assert found.fixed == script
    [rejected] = found.rejected
    assert "VERL-CHECK would be found then: verl stops: the mini-batch is larger" in rejected.why


def test_a_fix_is_offered_with_the_fix_of_what_it_uncovers(fix: Fixer) -> None:
    found = fix(job(f"{ACTOR}.ppo_mini_batch_szie=16", f"{ACTOR}.loss_agg_mode=tokn-mean"))
    assert found.fixed == job(f"{ACTOR}.ppo_mini_batch_size=16", f"{ACTOR}.loss_agg_mode=token-mean")
    assert [one.rule for one in found.after.findings if one.severity == "error"] == []


def test_only_wanted_findings_are_fixed(lint: Callable[[bytes], LintResult]) -> None:
    script = job("+trainer.nnodes=1", f"{ACTOR}.use_dynamic_bsz=Ture")
    found = FixTrials(PATH, script, lint).fixed(lambda finding: finding.rule == "CONFIG-TYPE")
    assert found.fixed == script.replace(b"Ture", b"True")


WRONG = {
    f"{ACTOR}.ppo_mini_batch_szie=16": f"{ACTOR}.ppo_mini_batch_size=16",
    "+trainer.nnodes=1": "trainer.nnodes=1",
    f"{ACTOR}.use_dynamic_bsz=Ture": f"{ACTOR}.use_dynamic_bsz=True",
    f"{ACTOR}.loss_agg_mode=tokn-mean": f"{ACTOR}.loss_agg_mode=token-mean",
    "actor_rollout_ref.rollout.calculate_log_probs=False": "actor_rollout_ref.rollout.calculate_log_probs=True",
}
RIGHT = ("trainer.n_gpus_per_node=8", "data.train_files=$DATA", "data.train_files='[/é/a b.parquet]'", '"$@"')
QUOTES = ("{}", "'{}'", '"{}"')
GAPS = (" ", "\t", "  ", " \\\n\t", " \\\r\n  ")


@st.composite
def scripts(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A script with mistakes, and the same without."""
    wrong = draw(st.lists(st.sampled_from(sorted(WRONG)), unique=True, max_size=4))
    words = [*wrong, *draw(st.lists(st.sampled_from(RIGHT), max_size=3))]
    words = draw(st.permutations(words))
    before = after = draw(st.sampled_from(["", "\ufeff", "#!/bin/bash\r\n", "# é\n\n\n", "set -x; "]))
    if before == "\ufeff":
        before = after = ""
    in_array = draw(st.booleans())
    head = "ARGS=(" if in_array else "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"
    before, after = before + head, after + head
    for word in words:
        gap = draw(st.sampled_from(GAPS if not in_array else (" ", "\n", "\r\n\t", " # Ture\n")))
        quote = draw(st.sampled_from(QUOTES)) if word in WRONG else "{}"
        before += gap + quote.format(word)
        after += gap + quote.format(WRONG.get(word, word))
    tail = ')\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "${ARGS[@]}"' if in_array else ""
    tail += draw(st.sampled_from(["", "\n", "\r\n", "\n# +trainer.nnodes=1 Ture\n", "; echo done"]))
    return (before + tail).encode(), (after + tail).encode()


@settings(max_examples=8, deadline=None, phases=(Phase.generate,))
@given(scripts())
def test_a_fixed_script_differs_only_in_the_words_that_are_wrong(
    fix: Fixer, pair: tuple[bytes, bytes]
) -> None:
    before, after = pair
    try:
        found = fix(before)
    except InputError:
        return
    assert found.fixed == after
    again = fix(found.fixed)
    assert (again.fixed, again.fixes) == (found.fixed, ())


@given(st.binary(max_size=40), st.data())
def test_edits_change_nothing_outside_of_their_bytes(script: bytes, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(script)), max_size=6, unique=True)))
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    edits = [ScriptEdit(start=a, end=b, new=data.draw(st.binary(max_size=5))) for a, b in pairs]
    done = edited(script, edits)
    position = shift = 0
    for edit in edits:
        assert done[position + shift : edit.start + shift] == script[position : edit.start]
        moved = ScriptEdit(start=edit.end + shift + len(edit.new) - (edit.end - edit.start), end=0, new=b"")
        assert before_edits(moved, edits).start == edit.end
        position, shift = edit.end, shift + len(edit.new) - (edit.end - edit.start)
    assert done[position + shift :] == script[position:]


@pytest.mark.parametrize("new", ["a b", "$(id)", "`id`", "x;y", "x'y", 'x"y', "x\\", "*", "\n"])
def test_no_text_with_a_meaning_for_bash_is_written(new: str) -> None:
    script = b"python x a=1\n"
    change = SettingChange(part="value", name="a", old="1", new=new, line=1, column=10)
    assert edit_of(script, parse_bash(script.decode(), "x"), change) is None


@given(st.text("abc_", max_size=8), st.text("abc_", max_size=8))
def test_typing_errors_are_a_distance(word: str, other: str) -> None:
    errors = typing_errors(word, other, 20)
    assert errors == typing_errors(other, word, 20)
    assert (errors == 0) == (word == other)
    assert abs(len(word) - len(other)) <= errors <= max(len(word), len(other))
    assert typing_errors(word, other, 1) == min(errors, 2)


def test_a_misspelling_of_two_words_is_not_decided() -> None:
    assert nearest_word("cat", ["car", "cap"]) == ""
    assert nearest_word("grop", ["grpo", "gae"]) == "grpo"
    assert nearest_word("ab", ["abc"]) == ""
