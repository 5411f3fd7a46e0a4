"""Slips of the pen in scripts: misspelt texts and variables, options that Hydra lacks, torn assignments."""

from __future__ import annotations

import time

import pytest

from harness.compat.lint.compared_texts import compared_texts
from harness.compat.lint.launch_script import parse_script

SOURCE = """
class Loader:
    how: Literal["left", "right"] = "left"

    def __init__(self, config):
        self.truncation = config.get("truncation", "error")
        if self.truncation == "middle" or config["truncation"] not in ("left", "right"):
            raise NotImplementedError
        if config.get("mode", "sync").lower() != "async":
            pass
"""


def notes(text: str) -> list[str]:
    return [note.text for note in parse_script(text).notes if note.unread]


def test_texts_are_those_that_the_code_compares_a_name_with() -> None:
    texts = compared_texts([("a.py", SOURCE)])
    assert texts.of("truncation") == {"middle", "left", "right"}
    assert texts.of("how") == {"left", "right"}
    assert texts.of("mode") == {"async"}
    assert texts.of("other") == frozenset()
    assert {"error", "sync"} <= texts.words


@pytest.mark.parametrize("word", ["--trainer.nnodes=2", "-trainer.nnodes=2", "--trainer.nnodes"])
def test_an_option_that_hydra_lacks_is_kept_with_its_place(word: str) -> None:
    [job] = parse_script(f"python3 -m verl.trainer.main_ppo a=1 {word}\n").jobs
    assert [(one.text, one.where.column) for one in job.unknown_options] == [(word, 38)]


@pytest.mark.parametrize(
    "words",
    ["--config-name=x", "--config-name x", "-cn x", "--cfg job", "--multirun", "--config-n x", "-m", "a=-1"],
)
def test_options_of_hydra_are_taken(words: str) -> None:
    [job] = parse_script(f"python3 -m verl.trainer.main_ppo a=1 {words}\n").jobs
    assert job.unknown_options == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("LR = 1e-6\npython3 -m a.b x=1\n", "sets no variable"),
        ("LR =1e-6\npython3 -m a.b x=1\n", "sets no variable"),
        ("MODEL_PATH=/m\npython3 -m a.b x=$MODLE_PATH\n", "`MODLE_PATH` is set nowhere"),
        ("if [ $# > 1 ]; then A=1; fi\npython3 -m a.b x=1\n", "`> 1` in `[ ... ]` compares nothing"),
        ("python3 -m a.b x=1 2>1 | tee log\n", "`2>1` writes to a file with the name 1: is `2>&1` meant?"),
        ("ray start --head --num-npus=8\npython3 -m a.b x=1\n", "`ray start` has no option `--num-npus`"),
        ("srun -N1 ray start --adress $A --block\npython3 -m a.b x=1\n", "is `--address` meant?"),
        ('ray start --head --resources={"NPU":8}\npython3 -m a.b x=1\n', "as JSON, and gets {NPU:8}"),
        ("ray job submit --runtime_env=e.yaml -- python3 -m a.b x=1\n", "is `--runtime-env` meant?"),
        (
            "ray job submit --runtime-env='{\"env_vars\": {}}' -- python3 -m a.b x=1\n",
            "reads the file that `--runtime-env` names, and gets {",
        ),
        (
            "python3 -m a.b x=1 2>&1 | tee log \\\n    trainer.nnodes=2 a.b.c=1\n",
            "`tee` gets `trainer.nnodes=2`, and not the program",
        ),
        (
            "node=\ntorchrun --node_rank=$node --nproc-per-node=8 -m a.b x=1\n",
            "gets an empty value for `--node_rank`",
        ),
        (
            "addr=\ntorchrun --master_addr $addr --nproc-per-node=8 -m a.b x=1\n",
            "no value for `--master_addr`, because `--nproc-per-node=8` follows",
        ),
        ("ray start --address --head\npython3 -m a.b x=1\n", "`ray start` gets no value for `--address`"),
        ("torchrun --nproc-per-gpu=8 -m a.b x=1\n", "`torchrun` has no option `--nproc-per-gpu`"),
        ("python3 -m torch.distributed.run --nprocs 8 -m a.b x=1\n", "has no option `--nprocs`"),
    ],
)
def test_a_slip_is_told(text: str, said: str) -> None:
    assert any(said in note for note in notes(text))


@pytest.mark.parametrize(
    "text",
    [
        "[ a = b ] || true\npython3 -m a.b x=1\n",
        # Redirections that are meant, and comparisons.
        "[ $# -gt 1 ] 2>/dev/null\n[[ a > b ]]\n[ -f x ] > log || true\npython3 -m a.b x=1\n",
        # Both are used: two variables with names that are alike.
        "NODES=1\npython3 -m a.b x=$NNODES y=$NODES\n",
        "MODEL_PATH=/m\npython3 -m a.b x=$DATA_PATH\n",
        "MODEL_PATH=/m\npython3 -m a.b x=${MODLE_PATH:-/n}\n",
        "TP=1\npython3 -m a.b x=$PT\n",
        "python3 -m a.b x=1 > 1 2>&1\n",
        # What torchrun takes: underscores, and the first letters of an option; of ray, words of other commands.
        "torchrun --nproc_per_node 8 --nnodes=1 --stand -m a.b x=1 --y\n",
        "torchrun --master_port $PORT $OPTIONS -m a.b x=1\n",
        (
            "ray start --head --port 6379 --resources='{\"NPU\": 8}' -v --dashboard-host=0.0.0.0 && echo --x\n"
            "python3 -m a.b x=1\n"
        ),
        "ray job submit --no-wait --working-dir . -- python3 -m a.b x=1 --config-name=y\n",
        'ray start --head --resources="$RESOURCES"\npython3 -m a.b x=1\n',
    ],
)
def test_what_is_no_slip_is_not_told(text: str) -> None:
    assert notes(text) == []


def test_expressions_that_take_too_long_are_not_known() -> None:
    conditions = "[[ $A =~ a*a*b ]] && echo x\n" * 300
    started = time.process_time()
    assert len(parse_script(f"A={'a' * 1_400}\n{conditions}python3 -m a.b x=1\n").jobs) == 1
    assert time.process_time() - started < 2


def test_many_unknown_names_are_compared_in_bounded_time() -> None:
    names = "".join(f"VARIABLE_{number}=1\n" for number in range(1_000))
    words = " ".join(f"x{number}=$VARAIBLE_{number}" for number in range(300))
    started = time.process_time()
    assert len(parse_script(f"{names}python3 -m a.b {words}\n").jobs) == 1
    assert time.process_time() - started < 2
