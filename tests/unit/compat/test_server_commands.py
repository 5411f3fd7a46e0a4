"""Commands of a script that start vLLM's server, read with the options in the source of that vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_scripts import NOT_COMPARED, lint_file
from harness.compat.lint.serving.server_findings import NO_VERSION, SERVE_RULE, ServerSources
from harness.compat.lint.serving.verified_options import NO_SOURCE
from harness.errors import InputError
from harness.sources.tree import Tree, TreeFile

SERVE = """\
from vllm.entrypoints.openai.cli_args import make_arg_parser
class ServeSubcommand:
    def subparser_init(self, subparsers):
        serve_parser = subparsers.add_parser("serve")
        return make_arg_parser(serve_parser)
"""
CLI_ARGS = """\
import json
from vllm.config import config
from vllm.engine.arg_utils import AsyncEngineArgs
class BaseArgs:
    origins: list[str]
    port: int = 8000
    tool_parser: str | None = None
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["origins"]["type"] = json.loads
        del frontend_kwargs["origins"]["nargs"]
        return frontend_kwargs
    @classmethod
    def add_cli_args(cls, parser):
        from vllm.engine.arg_utils import get_kwargs
        frontend_kwargs = get_kwargs(cls)
        frontend_kwargs = cls._customize_cli_kwargs(frontend_kwargs)
        group = parser.add_argument_group(title="frontend")
        for key, value in frontend_kwargs.items():
            group.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser
class FrontendArgs(BaseArgs):
    key: list[str] | None = None
def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true")
    parser = FrontendArgs.add_cli_args(parser)
    parser = AsyncEngineArgs.add_cli_args(parser)
    return parser
"""
ARGUMENTS = """\
from typing import Literal
import json
from vllm.config import ModelConfig, CompilationConfig, SpeculativeConfig, VllmConfig
from vllm.platforms import current_platform
def _compute_kwargs(cls):
    for name in cls:
        if name == "max_model_len":
            kwargs[name]["type"] = human_readable_int_or_auto
        kwargs[name]["const"] = True
def get_kwargs(cls):
    return _compute_kwargs(cls)
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="model")
        if not ("serve" in sys.argv[1:]):
            group.add_argument("--model", **model_kwargs["model"])
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        group.add_argument("--seqs", **{**model_kwargs["seqs"], "default": None})
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--enforce-eager", **model_kwargs["enforce_eager"])
        group.add_argument("--fraction", **model_kwargs["fraction"])
        group.add_argument("--token", **model_kwargs["token"])
        group.add_argument("--extra", **model_kwargs["extra"])
        group.add_argument("--images", **model_kwargs["images"])
        group.add_argument("--odd", **odd_kwargs())
        vllm_kwargs = get_kwargs(VllmConfig)
        vllm_kwargs["speculative"]["type"] = json.loads
        group.add_argument("--compilation-config", "-cc", **vllm_kwargs["compilation_config"])
        group.add_argument("--speculative", **vllm_kwargs["speculative"])
        return parser
    def create_speculative_config(self):
        return SpeculativeConfig(**self.speculative)
class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser, async_args_only=False):
        parser = EngineArgs.add_cli_args(parser)
        parser.add_argument("--log-requests", action=argparse.BooleanOptionalAction)
        current_platform.pre_register_and_update(parser)
        return parser
"""
CONFIG = """\
from typing import Any, Annotated, Literal, TYPE_CHECKING
if TYPE_CHECKING:
    from somewhere import Extra
else:
    Extra = Any
Base = Literal["auto", "half"]
Number = Literal[Base, "bfloat16"]
@config
class ModelConfig:
    model: str = "m"
    max_model_len: int | None = None
    seqs: int = 1
    quantization: Literal["fp8"] | str | None = None
    dtype: Number | Extra = "auto"
    enforce_eager: bool = False
    fraction: Annotated[float, Field(gt=0)] = 0.9
    token: bool | str | None = None
    extra: dict[str, Any] | str = ""
    images: dict[str, int] | None = None
@config
class PassConfig:
    sp: bool = False
class Mode(enum.IntEnum):
    NONE = 0
    FULL = 2
@config
class CompilationConfig:
    mode: int = Field(default=0, ge=-1, le=3)
    sizes: list[int] | None = None
    level: Mode = None
    passes: PassConfig = None
    kind: Literal["a", "b"] | None = None
    seen: int = field(default=0, init=False)
    free: dict[str, Any] = None
    @field_validator("level", mode="before")
    @classmethod
    def level_before(cls, value):
        if isinstance(value, str):
            return Mode[value.upper()]
        return value
    @field_validator("passes", mode="before")
    @classmethod
    def passes_before(cls, value):
        if isinstance(value, dict):
            return PassConfig(**value)
        return value
    @field_validator("kind", mode="wrap")
    @classmethod
    def kind_wrapped(cls, value, handler):
        return handler(value)
@config
class SpeculativeConfig:
    tokens: int = Field(default=None, gt=0)
    method: str | None = None
@config
class VllmConfig:
    compilation_config: CompilationConfig = None
    speculative: dict[str, Any] | None = None
"""
FILES = {
    "vllm/entrypoints/cli/serve.py": SERVE,
    "vllm/entrypoints/openai/cli_args.py": CLI_ARGS,
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/config/__init__.py": "from vllm.config.all import ModelConfig, CompilationConfig, SpeculativeConfig, VllmConfig\n",
    "vllm/config/all.py": CONFIG,
    "vllm/config/utils.py": "def config(cls):\n    return dataclass(cls, config=ConfigDict(extra='forbid'))\n",
}
PLATFORM = """\
class NPUPlatform:
    @classmethod
    def check_and_update_config(cls, vllm_config):
        if vllm_config.parallel_config.tensor_parallel_size > 4:
            raise ValueError("at most 4 cards")
        if (vllm_config.additional_config or {}).get("graph"):
            raise ValueError("no graph")
"""


def tree(files: dict[str, str]) -> Tree:
    return MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in files.items()})


def sources(folder: Path, files: dict[str, str] = FILES) -> ServerSources:
    return ServerSources(
        fetch_vllm=lambda: tree(files),
        fetch_ascend=lambda: tree({"vllm_ascend/platform.py": PLATFORM}),
        cache=folder / "cache",
    )


def told(folder: Path, command: str, files: dict[str, str] = FILES) -> list[str]:
    script = folder / "serve.sh"
    script.write_text(f"{command}\n")
    for _ in range(2):  # The second time from the store.
        found = lint_file(script, {"vllm_ascend": "0.18.0"}, servers=sources(folder, files)).findings
    return [one.message for one in found if one.rule in (SERVE_RULE, "ENGINE-CHECK")]


@pytest.mark.parametrize(
    "arguments",
    [
        "m --max-model-len 8k --max_model_len=-1 --seqs 3 --dtype half -q any",
        "m --enforce-eager --no-enforce-eager --token --token abc --log-requests",
        "m --extra text --extra '{\"a\": 1}' --images '{\"image\": 1}' --images None --dty auto",
        "m -cc '{\"mode\": 3, \"sizes\": [1]}' -cc.mode=3 --compilation-config.sizes '[1]'",
        'm -cc \'{"mode": "2", "level": "full", "passes": {"sp": "on"}, "kind": null}\'',
        'm -cc \'{"level": 2, "passes": null, "free": {"x": [1]}, "mode": true}\'',
        'm --speculative \'{"tokens": 1, "method": null}\' --seqs 1',
        "--seqs 1 --model m --headless",
        "--seqs 1 --model=m",
        'm --port $PORT --seqs ${SEQS} --dtype $DTYPE $MORE "$@" --max-model-len ${LEN:-auto}',
        "--model m --origins '[\"*\"]' --key a b --odd --headless --speculative '{\"tokens\": 1}' -h",
        "m --odd a b --fraction 0.5 --tool-parser x",
    ],
)
def test_what_the_parser_takes_is_no_finding(tmp_path: Path, arguments: str) -> None:
    assert told(tmp_path, f"vllm serve {arguments}") == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("m --max-model-length 8192", "vllm 0.18.0 has no option --max-model-length"),
        ("m --enforce-eager true", "vllm serve takes no argument true at this place"),
        ("m --dtype bf16", "--dtype of vllm 0.18.0 does not take bf16"),
        ("m --port 80O0", "--port of vllm 0.18.0 does not take 80O0"),
        ("m --fraction=90%", "--fraction of vllm 0.18.0 does not take 90%"),
        ("m --seqs 4k", "--seqs of vllm 0.18.0 does not take 4k"),
        ("m --max-model-len 4x", "--max-model-len of vllm 0.18.0 does not take 4x"),
        ("m --images '{\"a\": 1'", '--images of vllm 0.18.0 does not take {"a": 1'),
        ("m --extra '{\"a\": x}'", '--extra of vllm 0.18.0 does not take {"a": x}'),
        ("m -cc '{\"mod\": 3}'", '-cc of vllm 0.18.0 does not take {"mod": 3}'),
        ("m -cc.mod=3", '-cc of vllm 0.18.0 does not take {"mod": 3}'),
        ("m -cc '{\"mode\": 4}'", '-cc of vllm 0.18.0 does not take {"mode": 4}'),
        ("m -cc '{\"mode\": -2}'", '-cc of vllm 0.18.0 does not take {"mode": -2}'),
        ('m -cc \'{"mode": "x"}\'', '-cc of vllm 0.18.0 does not take {"mode": "x"}'),
        ('m -cc \'{"sizes": [1, "x"]}\'', '-cc of vllm 0.18.0 does not take {"sizes": [1, "x"]}'),
        ('m -cc \'{"level": "all"}\'', '-cc of vllm 0.18.0 does not take {"level": "all"}'),
        ('m -cc \'{"passes": {"sq": true}}\'', '-cc of vllm 0.18.0 does not take {"passes": {"sq": true}}'),
        ('m -cc \'{"passes": {"sp": 2}}\'', '-cc of vllm 0.18.0 does not take {"passes": {"sp": 2}}'),
        ('m -cc \'{"kind": "c"}\'', '-cc of vllm 0.18.0 does not take {"kind": "c"}'),
        ("m -cc '{\"seen\": 1}'", '-cc of vllm 0.18.0 does not take {"seen": 1}'),
        ("m -cc '{\"free\": 1}'", '-cc of vllm 0.18.0 does not take {"free": 1}'),
        ("m -cc 3", "-cc of vllm 0.18.0 does not take 3"),
        ("m --speculative '{\"token\": 1}'", '--speculative of vllm 0.18.0 does not take {"token": 1}'),
        ("m --speculative '{\"tokens\": 0}'", '--speculative of vllm 0.18.0 does not take {"tokens": 0}'),
        ("m --fraction 0", "--fraction of vllm 0.18.0 does not take 0"),
        ("m other", "vllm serve takes no argument other at this place"),
        ("m --speculative-model x --seqs 1", "vllm 0.18.0 has no option --speculative-model"),
    ],
)
def test_what_the_parser_refuses_is_told(tmp_path: Path, arguments: str, expected: str) -> None:
    assert told(tmp_path, f"VLLM_X=1 nohup vllm serve {arguments} > log &") == [expected]
    module = f"python3 -m vllm.entrypoints.openai.api_server {arguments}"
    assert told(tmp_path, module) == [
        expected.replace("vllm serve takes", "python -m vllm.entrypoints.openai.api_server takes")
    ]


def test_an_option_without_a_type_that_is_known_is_not_compared(tmp_path: Path) -> None:
    lost = {**FILES, "vllm/config/all.py": CONFIG.replace("seqs: int", "seqs: strange()")}
    assert told(tmp_path, "vllm serve m --seqs many", lost) == []
    # Code that adds options in a way that is not understood: any option may exist.
    more = FILES | {
        "vllm/engine/arg_utils.py": ARGUMENTS.replace(
            "return parser", "more(parser)\n        return parser", 1
        )
    }
    assert told(tmp_path, "vllm serve m --seqs 1 --unheard-of 1", more) == []
    assert told(tmp_path, "vllm serve m --seqs many", more) == ["--seqs of vllm 0.18.0 does not take many"]


def test_checks_of_vllm_ascend_are_followed_with_the_options(tmp_path: Path) -> None:
    sized = ARGUMENTS.replace('"--seqs"', '"--tensor-parallel-size", "-tp"').replace(
        '"--extra"', '"--additional-config"'
    )
    files = {**FILES, "vllm/engine/arg_utils.py": sized}
    assert told(tmp_path, "vllm serve m -tp 4", files) == []
    assert told(tmp_path, "vllm serve m -tp $TP", files) == []
    assert told(tmp_path, "vllm serve m -tp 8", files) == ["vllm-ascend stops: at most 4 cards"]
    config = "--additional-config '{\"graph\": true}'"
    assert told(tmp_path, f"vllm serve m {config}", files) == ["vllm-ascend stops: no graph"]


def test_without_the_source_of_vllm_a_server_counts_as_not_compared(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m --unheard-of\n")
    result = lint_file(script, {})
    assert [note.text for note in result.notes] == [f"{NOT_COMPARED}{NO_VERSION}"]
    assert result.unchecked
    [unreachable] = lint_file(script, {"vllm": "0.18.0"}).notes
    assert (unreachable.text, unreachable.unread) == (f"{NOT_COMPARED}{NO_SOURCE}", True)
    script.write_text("vllm serve m\npython -m verl.trainer.main_ppo algorithm.adv_estimator=grpo\n")
    assert not any(NO_VERSION in note.text for note in lint_file(script, {}).notes)
    script.write_text("echo vllm serve m\n")
    with pytest.raises(InputError):
        lint_file(script, {})


def test_variables_of_a_server_are_compared(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("VLLM_USE_V1=0 vllm serve m\n")
    found = lint_file(script, {"vllm_ascend": "0.18.0"}, servers=sources(tmp_path)).findings
    assert [one.rule for one in found] == ["ENV-NAME"]


def test_what_classes_of_vllm_verify_is_followed_with_the_options(tmp_path: Path) -> None:
    checks = """
    def verify_length(self, max_model_len):
        if self.seqs < max_model_len and not self.enforce_eager:
            raise ValueError(f"seqs ({self.seqs}) is smaller than max_model_len ({max_model_len})")
    @model_validator(mode="after")
    def _validate_parts(self):
        if self.fraction > self.other:
            raise ValueError("not known")
        if self.seqs > 100:
            raise ValueError("too many")
    @field_validator("seqs")
    @classmethod
    def _validate_seqs(cls, value):
        raise ValueError("no object")
"""
    config = CONFIG.replace(
        "    images: dict[str, int] | None = None\n", "    images: dict[str, int] | None = None\n" + checks
    )
    files = {**FILES, "vllm/config/all.py": config}
    short = "--seqs 8 --max-model-len 16"
    stops = ["vllm stops: seqs (8) is smaller than max_model_len (16)"]
    assert told(tmp_path, f"vllm serve m {short} --no-enforce-eager", files) == stops
    assert told(tmp_path, "vllm serve m --seqs 101", files) == ["vllm stops: too many"]
    # What vLLM computes is not known, and so is what comes from outside.
    for right in (short, f"{short} --enforce-eager", "--seqs $X --max-model-len 16 --no-enforce-eager"):
        assert told(tmp_path, f"vllm serve m {right}", files) == []


def test_a_class_that_may_have_other_fields_is_an_object_if_vllm_reads_json_alone(tmp_path: Path) -> None:
    plain = {**FILES, "vllm/config/all.py": CONFIG.replace("@config\nclass Comp", "@config()\nclass Comp")}
    read = ARGUMENTS.replace('kwargs[name]["const"] = True', "TypeAdapter(cls).validate_json(value)")
    strict = {**plain, "vllm/engine/arg_utils.py": read}
    assert told(tmp_path, "vllm serve m -cc 3", plain) == []
    assert told(tmp_path, "vllm serve m -cc 3", strict) == ["-cc of vllm 0.18.0 does not take 3"]
    assert told(tmp_path, "vllm serve m -cc '{\"any\": 3}'", strict) == []


def test_a_shortened_option_that_can_mean_several_is_told(tmp_path: Path) -> None:
    more = {
        **FILES,
        "vllm/engine/arg_utils.py": ARGUMENTS.replace('"--quantization", "-q"', '"--seq-quantization", "-q"'),
    }
    assert told(tmp_path, "vllm serve m --seq 1", more) == ["--seq of vllm 0.18.0 does not take --seq"]
    assert told(tmp_path, "vllm serve m --seqs 1", more) == []


def test_a_server_without_a_model_starts_the_default(tmp_path: Path) -> None:
    assert told(tmp_path, "vllm serve --seqs 1") == ["vllm serve gets no model, and starts m"]
    for right in ("vllm serve x --seqs 1", "vllm serve --model x", "vllm serve $MODEL", 'vllm serve "$@"'):
        assert told(tmp_path, right) == []
    assert told(tmp_path, "python -m vllm.entrypoints.openai.api_server --seqs 1") == []


def test_a_server_is_found_where_scripts_start_it() -> None:
    text = "uv run vllm serve a\nbash -c 'vllm serve b'\n/opt/bin/vllm serve c &\nvllm bench serve\ngrep vllm serve\n"
    assert [one.arguments[0].text for one in parse_script(text).servers] == ["a", "b", "c"]


def test_what_vllm_checks_of_its_arguments_is_followed(tmp_path: Path) -> None:
    checks = """
def validate_parsed_serve_args(args):
    if hasattr(args, "subparser") and args.subparser != "serve":
        return
    if args.enforce_eager and not args.tool_parser:
        raise TypeError("--enforce-eager requires --tool-parser")
    if args.headless and args.strange:
        raise TypeError("not known")
"""
    files = {**FILES, "vllm/entrypoints/openai/cli_args.py": CLI_ARGS + checks}
    assert told(tmp_path, "vllm serve m --enforce-eager", files) == [
        "vllm stops: --enforce-eager requires --tool-parser"
    ]
    for right in ("--enforce-eager --tool-parser x", "--enforce-eager --tool-parser $X", "--headless", ""):
        assert told(tmp_path, f"vllm serve m {right}", files) == []
