"""JSON that verl hands on to vLLM, or that its server gets: names that vllm-ascend or vLLM do not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree
from test_engine_checks import CONFIG, MAIN
from test_server_commands import ARGUMENTS, FILES

from harness.compat.lint.additional_options import read_names
from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.serving.server_findings import ServerSources
from harness.sources.tree import Tree, TreeFile

KWARGS = "+actor_rollout_ref.rollout.engine_kwargs.vllm"
READERS = """\
class AscendConfig:
    def __init__(self, vllm_config):
        additional_config = vllm_config.additional_config if vllm_config.additional_config else {}
        self.graph = Graph(additional_config.get("graph_config", {}))
        self.experts = bool(additional_config.get("experts", False))
        if "refresh" in additional_config:
            pass
class Graph:
    def __init__(self, graph_config):
        self.enabled = graph_config.get("enabled", False)
"""
OTHER = """\
def update(vllm_config):
    given = vllm_config.additional_config or {}
    given.setdefault("sharding", {})
    return getattr(vllm_config, "additional_config", {})["size"]
"""
PLATFORM = """\
class NPUPlatform:
    @classmethod
    def check_and_update_config(cls, vllm_config):
        pass
"""
ASCEND = {
    "vllm_ascend/platform.py": PLATFORM,
    "vllm_ascend/config.py": READERS,
    "vllm_ascend/other.py": OTHER,
}
VERSIONS = {"verl": "0.9.1", "vllm_ascend": "0.18.0"}


def tree(texts: dict[str, str]) -> Tree:
    return MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in texts.items()})


def verl_job(folder: Path, settings: str, ascend: dict[str, str] = ASCEND) -> list[str]:
    script = folder / "run.sh"
    script.write_text(f"python -m verl.trainer.main_ppo {settings}\n")
    config = CONFIG.replace("rollout:\n", "rollout:\n    name: vllm\n")
    verl = tree({"verl/trainer/main_ppo.py": MAIN, "verl/trainer/config/ppo_trainer.yaml": config})
    found = lint_file(script, VERSIONS, verl, folder / "cache", tree(ascend)).findings
    return [one.message for one in found if one.rule == "ENGINE-OPTION"]


def server(folder: Path, text: str) -> list[str]:
    script = folder / "serve.sh"
    script.write_text(f"vllm serve m --additional-config '{text}'\n")
    arguments = ARGUMENTS.replace('"--extra"', '"--additional-config"')
    files = {**FILES, "vllm/engine/arg_utils.py": arguments}
    sources = ServerSources(fetch_vllm=lambda: tree(files), fetch_ascend=lambda: tree(ASCEND))
    return [one.message for one in lint_file(script, VERSIONS, servers=sources).findings]


def test_the_names_that_vllm_ascend_reads_are_collected_from_its_code() -> None:
    found = read_names(ModuleSources(tree(ASCEND)), None)
    assert found.names == {"graph_config", "experts", "refresh", "sharding", "size"}
    assert found.closed
    handed_on = {**ASCEND, "vllm_ascend/more.py": "def f(config):\n    use(config.additional_config)\n"}
    assert not read_names(ModuleSources(tree(handed_on)), None).closed


UNREAD = "vllm-ascend 0.18.0 does not read {} in additional_config"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("graph_config", "{enabled: true}", []),
        ("experts", "true", []),
        ("sharding", "{}", []),
        ("expert", "true", [UNREAD.format("expert")]),
        ("enabled", "true", [UNREAD.format("enabled")]),
        ("graph_config", "{enable: true}", [UNREAD.format("enable") + ".graph_config"]),
    ],
)
def test_names_in_additional_config_that_nothing_reads_are_told(
    tmp_path: Path, name: str, value: str, expected: list[str]
) -> None:
    assert verl_job(tmp_path, f"'{KWARGS}.additional_config={{{name}: {value}}}'") == expected
    text = f'{{"{name}": {value.replace("enabled:", chr(34) + "enabled" + chr(34) + ":")}}}'
    assert server(tmp_path, text.replace("enable:", '"enable":')) == expected


def test_a_name_that_other_code_may_read_is_not_told(tmp_path: Path) -> None:
    handed_on = {**ASCEND, "vllm_ascend/more.py": "def f(config):\n    use(config.additional_config)\n"}
    assert verl_job(tmp_path, f"{KWARGS}.additional_config.enabled=true", handed_on) == []
    assert verl_job(tmp_path, f"{KWARGS}.additional_config.nowhere=true", handed_on) == [
        UNREAD.format("nowhere")
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("compilation_config.cudagraph_mode=FULL", []),
        ("compilation_config={mode: 3, cudagraph_mode: FULL}", []),
        ("speculative_config={method: mtp, num_speculative_tokens: 1}", []),
        (
            "compilation_config.graph_kind=FULL",
            ["compilation_config of vllm 0.18.0 has no field graph_kind"],
        ),
        (
            "compilation_config={graph_mode: FULL}",
            ["compilation_config of vllm 0.18.0 has no field graph_mode"],
        ),
        ("speculative_config={num_tokens: 1}", ["speculative_config of vllm 0.18.0 has no field num_tokens"]),
    ],
)
def test_names_in_sections_of_vllm_that_its_classes_lack_are_told(
    tmp_path: Path, settings: str, expected: list[str]
) -> None:
    assert verl_job(tmp_path, f"'{KWARGS}.{settings}'") == expected


@pytest.mark.parametrize(("release", "undecided"), [("0.13.0", True), ("0.18.0", False)])
def test_fields_of_a_class_that_may_take_others_are_undecided(
    tmp_path: Path, release: str, undecided: bool
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python -m verl.trainer.main_ppo {KWARGS}.compilation_config.level=3\n")
    config = CONFIG.replace("rollout:\n", "rollout:\n    name: vllm\n")
    verl = tree({"verl/trainer/main_ppo.py": MAIN, "verl/trainer/config/ppo_trainer.yaml": config})
    found = lint_file(script, {**VERSIONS, "vllm_ascend": release}, verl, tmp_path / "cache", tree(ASCEND))
    texts = [text for one in found.undecided if one.rule == "ENGINE-OPTION" for text in one.unknown]
    assert texts == (["which fields compilation_config of vllm 0.13.0 refuses"] if undecided else [])
