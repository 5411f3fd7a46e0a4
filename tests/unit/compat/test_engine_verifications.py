"""What the classes of vLLM's configuration verify, with the arguments that jobs of verl give vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree
from test_server_commands import CONFIG, FILES
from test_undecided_rules import ASCEND, KWARGS, VERL, VERSIONS

from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.serving.server_findings import ServerSources
from harness.sources.tree import Tree, TreeFile

CHECKS = """
    def verify_length(self, max_model_len):
        if self.seqs < max_model_len and not self.enforce_eager:
            raise ValueError(f"seqs ({self.seqs}) is smaller than max_model_len ({max_model_len})")
        if self.quantization is None:
            raise ValueError("no quantization")
        if self.extra.level > 3 or self.images.get("a"):
            raise ValueError("what is in an object is not looked at")
"""
PLACE = "    images: dict[str, int] | None = None\n"
VLLM = {**FILES, "vllm/config/all.py": CONFIG.replace(PLACE, PLACE + CHECKS)}
#: verl starts vLLM by a class of vLLM, and not by a command.
BY_CLASS = VERL["verl/trainer/main_ppo.py"].replace(
    "    build_cli_args_from_config({", "    from vllm import LLM\n    LLM(**{"
)
SHORT = {"seqs": "8", "max_model_len": "16"}


def tree(files: dict[str, str]) -> Tree:
    return MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in files.items()})


def lint(folder: Path, options: dict[str, str], main: str = "", vllm: dict[str, str] | None = VLLM):
    script = folder / "run.sh"
    words = " ".join(f"{KWARGS}.{name}={value}" for name, value in options.items())
    script.write_text(f"python -m verl.trainer.main_ppo {words}\n")
    verl = {**VERL, "verl/trainer/main_ppo.py": main or VERL["verl/trainer/main_ppo.py"]}
    servers = ServerSources(fetch_vllm=lambda: tree(vllm) if vllm is not None else None)
    return lint_file(script, VERSIONS, tree(verl), engine=tree(ASCEND), servers=servers)


def stops(folder: Path, options: dict[str, str], main: str = "") -> list[tuple[str, str]]:
    found = lint(folder, options, main).findings
    return [(one.message, one.why) for one in found if one.rule == "ENGINE-CHECK"]


def test_a_check_of_vllm_that_fails_with_what_verl_gives_it_is_an_error(tmp_path: Path) -> None:
    [(message, why)] = stops(tmp_path, {**SHORT, "enforce_eager": "False"}, BY_CLASS)
    assert message == "vllm stops: seqs (8) is smaller than max_model_len (16)"
    assert why.startswith("vllm/config/all.py:")
    assert "of vllm 0.18.0 raises ValueError" in why
    assert "engine_kwargs.vllm.seqs=8" in why
    assert "engine_kwargs.vllm.max_model_len=16" in why


@pytest.mark.parametrize("options", [SHORT, {"seqs": "16", "max_model_len": "16", "enforce_eager": "False"}])
def test_a_check_that_holds_or_rests_on_what_vllm_computes_is_none(
    tmp_path: Path, options: dict[str, str]
) -> None:
    assert stops(tmp_path, options) == stops(tmp_path, options, BY_CLASS) == []


def test_a_command_gets_no_option_that_is_false(tmp_path: Path) -> None:
    """verl leaves it out, and vLLM then takes its own default."""
    assert stops(tmp_path, {**SHORT, "enforce_eager": "False"}) == []
    assert stops(tmp_path, {"seqs": "8", "quantization": "null"}, BY_CLASS) == []


def test_texts_for_numbers_and_objects_are_not_computed_with(tmp_path: Path) -> None:
    others = {"seqs": "'8'", "max_model_len": "auto", "enforce_eager": "False"}
    assert stops(tmp_path, others, BY_CLASS) == []
    assert stops(tmp_path, {"extra": "text", "images": "text", "seqs": "8"}, BY_CLASS) == []


def test_a_vllm_that_is_not_to_be_had_is_told(tmp_path: Path) -> None:
    undecided = lint(tmp_path, {**SHORT, "enforce_eager": "False"}, BY_CLASS, None).undecided
    assert [one.unknown for one in undecided if one.rule == "ENGINE-CHECK"] == [
        ("the source of vllm 0.18.0",)
    ]


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("dtype", "bf16", "argument --dtype: it takes auto, bfloat16, half"),
        ("max_model_len", "many", "argument --max-model-len: it takes a whole number, such as 4096 or 4k"),
        ("max_model_len", "4k", ""),
        ("images", "{a: text}", ""),
        ("dtype", "half", ""),
        ("dtype", "$DTYPE", ""),
        ("seqs", "\\'8\\'", ""),
    ],
)
def test_a_value_that_the_parser_of_vllm_refuses_is_an_error(
    tmp_path: Path, option: str, value: str, problem: str
) -> None:
    found = stops(tmp_path, {option: value})
    assert [message for message, _ in found] == ([f"vllm stops: {problem}"] if problem else [])
    # A class of vLLM gets the value itself.
    assert stops(tmp_path, {option: value}, BY_CLASS) == []


def test_json_of_a_job_is_compared_with_the_types_of_this_vllm(tmp_path: Path) -> None:
    [(message, why)] = stops(tmp_path, {"compilation_config.mode": "9"})
    assert message == "vllm stops: argument --compilation-config: its field mode is 9: it takes at most 3"
    assert "vllm/config/all.py:" in why
    assert stops(tmp_path, {"compilation_config.mode": "3"}) == []
