"""What a Python file calls of vLLM is compared with the source of that vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_engine_verifications import CHECKS, PLACE, tree
from test_server_commands import ARGUMENTS, CONFIG, FILES, PLATFORM

from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.lint_scripts import lint_paths
from harness.compat.lint.serving.server_findings import ServerSources
from harness.errors import InputError

VERSIONS = {"vllm_ascend": "0.18.0"}
LLM = """\
from vllm.engine.arg_utils import EngineArgs
class LLM(Mixin):
    def __init__(self, model: str, *, seqs: int = 1, **kwargs) -> None:
        if "gone" in kwargs:
            kwargs.pop("gone")
        self.engine = EngineArgs(model=model, seqs=seqs, **kwargs)
class Mixin:
    pass
class Open(Elsewhere):
    def __init__(self, a: int) -> None:
        pass
"""
PARAMS = """\
import msgspec
class SamplingParams(msgspec.Struct, omit_defaults=True):
    n: int = 1
    top_p: float = 1.0
    stop: str | list[str] | None = None
    greedy: bool = False
    heat: float = 1.0
    def __post_init__(self):
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.stop is None:
            self.stop = []
        if 0 < self.heat < 0.01:
            self.heat = 0.01
        if self.n < 1:
            raise ValueError(f"n {self.n}")
        self._verify_args()
        if self.greedy:
            self._verify_greedy()
    def _verify_args(self):
        if self.top_p > 1.0:
            raise ValueError(f"top_p {self.top_p}")
        assert isinstance(self.stop, list)
        if self.heat < 0:
            raise ValueError(f"heat {self.heat}")
    def _verify_greedy(self):
        if self.n > 1:
            raise ValueError("n")
"""
FIELDS = ("model", "seqs", "max_model_len", "dtype", "fraction", "enforce_eager", "additional_config")
ENGINE = ARGUMENTS.replace(
    "class EngineArgs:\n",
    "@dataclass\nclass EngineArgs:\n" + "".join(f"    {name}: object = None\n" for name in FIELDS),
).replace("class AsyncEngineArgs", "@dataclass\nclass AsyncEngineArgs")
VLLM = {
    **FILES,
    "vllm/__init__.py": "from vllm.entrypoints.llm import LLM, Open\nfrom vllm.sampling_params import SamplingParams\n",
    "vllm/entrypoints/llm.py": LLM,
    "vllm/sampling_params.py": PARAMS,
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/config/all.py": CONFIG.replace(PLACE, PLACE + CHECKS),
}
HEAD = "import vllm\nfrom vllm import LLM, Open, SamplingParams\nfrom vllm.engine.arg_utils import AsyncEngineArgs\n"


def lint(folder: Path, text: str, name: str = "offline.py", *, skip_others: bool = False) -> LintResult:
    script = folder / name
    script.write_text(text)
    servers = ServerSources(
        fetch_vllm=lambda: tree(VLLM), fetch_ascend=lambda: tree({"vllm_ascend/platform.py": PLATFORM})
    )
    return lint_paths([script], VERSIONS, None, skip_others=skip_others, servers=servers)


@pytest.mark.parametrize(
    ("call", "message", "fix"),
    [
        ("LLM('m', seq=2)", "LLM of vllm 0.18.0 has no argument seq", "write seqs"),
        ("vllm.LLM('m', fracton=2)", "LLM of vllm 0.18.0 has no argument fracton", "write fraction"),
        ("AsyncEngineArgs(dtyp=1)", "AsyncEngineArgs of vllm 0.18.0 has no argument dtyp", "write dtype"),
        ("SamplingParams(topp=1)", "SamplingParams of vllm 0.18.0 has no argument topp", "write top_p"),
        ("SamplingParams(top_p=2)", "vllm stops: top_p 2", "change the value of top_p"),
        ("SamplingParams(n=0, stop=None)", "vllm stops: n 0", "change the value of n"),
        ("SamplingParams(heat=-1, stop='x')", "vllm stops: heat -1", "change the value of heat"),
        ("SamplingParams(n=2, greedy=True)", "vllm stops: n", "change the value of n or greedy"),
        (
            "LLM('m', fraction=-1)",
            "vllm stops: fraction: it takes more than 0",
            "change the value of fraction",
        ),
        (
            "SIZE = 16\nLLM('m', seqs=8, max_model_len=SIZE, enforce_eager=False)",
            "vllm stops: seqs (8) is smaller than max_model_len (16)",
            "change the value of seqs or max_model_len or enforce_eager",
        ),
        (
            "LLM('m', additional_config={'graph': True})",
            "vllm-ascend stops: no graph",
            "change the value of additional_config",
        ),
    ],
)
def test_what_this_vllm_does_not_take_is_an_error(tmp_path: Path, call: str, message: str, fix: str) -> None:
    [found] = lint(tmp_path, f"{HEAD}{call}\n").findings
    assert (found.severity, found.message, found.fix) == ("error", message, fix)
    assert found.line == 4 + call.count("\n")


@pytest.mark.parametrize(
    "call",
    [
        "LLM('m', seqs=2, gone=1, dtype='half', fraction=0.5, additional_config={'graph': False})",
        "LLM('m', **{'seq': 1})",
        "LLM('m', seqs=8, max_model_len=SIZE, enforce_eager=False)",
        "for SIZE in (4, 16): LLM('m', seqs=8, max_model_len=SIZE, enforce_eager=False)",
        "SamplingParams(n=2, top_p=0.5, stop='x')",
        "SamplingParams(top_p=float(given))",
        "SamplingParams(heat=0.001, n=3)",
        "SamplingParams(3, 2.0, greedy=True)",
        "SamplingParams(greedy=True, **{'n': 2})",
        "SamplingParams(greedy=given, n=2)",
        "def f(LLM): LLM(seq=1)",
        f"LLM('m', seqs={'-' * 90}1, max_model_len={'1+' * 900}1, enforce_eager=False)",
        f"if {'not ' * 150}x:\n    LLM('m', seqs={'x.' * 900}y)",
        "try:\n    LLM('m', seq=1)\nexcept TypeError:\n    LLM('m')",
        "if version >= '1':\n    LLM('m', seq=1)",
    ],
)
def test_what_it_takes_or_may_take_is_none(tmp_path: Path, call: str) -> None:
    assert lint(tmp_path, f"{HEAD}{call}\n").findings == ()


def test_a_class_that_is_not_understood_is_told(tmp_path: Path) -> None:
    result = lint(tmp_path, f"{HEAD}Open(b=1)\n")
    assert result.findings == ()
    [undecided] = result.undecided
    assert undecided.unknown == ("the arguments of Open, which were not understood",)


def test_of_very_many_calls_the_first_are_read_and_the_rest_is_told(tmp_path: Path) -> None:
    result = lint(tmp_path, f"{HEAD}{'LLM(seq=1)' + chr(10)}" + "LLM(model='m')\n" * 5000 + "LLM(seq=1)\n")
    assert len(result.findings) == 1
    assert any("after the first 100 calls" in text for one in result.undecided for text in one.unknown)


def test_without_the_source_of_vllm_it_is_told_that_calls_were_not_compared(tmp_path: Path) -> None:
    script = tmp_path / "offline.py"
    script.write_text(f"{HEAD}LLM('m', seq=1)\n")
    result = lint_paths([script], {}, None, skip_others=False, servers=ServerSources(fetch_vllm=lambda: None))
    assert result.findings == ()
    [told] = result.unchecked
    assert told.startswith("line 4: the calls of vLLM were not compared")


def test_a_file_without_vllm_is_an_error_or_skipped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not use vLLM"):
        lint(tmp_path, "print(1)\n")
    assert lint(tmp_path, "print(1)\n", skip_others=True).findings == ()
    with pytest.raises(InputError, match="cannot be parsed"):
        lint(tmp_path, "import vllm(\n")
