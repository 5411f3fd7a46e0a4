"""A small world in which every check is green: a matrix, an index of tiny wheels, patches, and a built cell.

Static checks and the check `environment` run for real, on a simulated runtime that is compiled here. The packages
are tiny, so what checks run inside the cell is replaced: they report a pass. Their keys and inputs are real. Those of
upstreams' test suites find theirs by a tag of a repository here, as real ones do.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from git_command import commit_all, git
from patched_checkout import EMPTY_MEAN, MEAN, write_patch
from wheelhouse import Wheels, only_index

from harness.builds.cell import cell_command, cell_probe, interpreter, venv_environment
from harness.cell_program.built_environment import ENVIRONMENT_FORMAT, EnvironmentBuilt
from harness.check import Check, TaskContext
from harness.cli.app import main
from harness.devices.sim.runtime_build.compiler import compile_library, find_compiler
from harness.ledger.store import Ledger
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.plan.tasks.check_registry import CHECK_PACKAGES, all_checks
from harness.sources.git.mirrors import MIRRORS, find_clone, mirror_folders
from harness.upstream_tests.suite_check import SUITE_CHECK_NAMES
from harness.upstream_tests.suite_measurements import MeasuredSuite, SuitesMeasured, Tag

MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, source: made up, repository: "https://example.org/verl"}
  torch: {title: torch, scheme: pep440, package: torch, source: made up}
  torch_npu: {title: torch_npu, scheme: pep440, package: torch-npu, source: made up, repository: "https://example.org/n"}
  vllm: {title: vLLM, scheme: pep440, package: vllm, source: made up}
  vllm_ascend: {title: vllm-ascend, scheme: pep440, package: vllm-ascend, source: made up, repository: "https://example.org/a"}
  cann: {title: CANN, scheme: name, source: made up}
  python: {title: Python, scheme: python, source: made up}
  soc: {title: SoC, scheme: name, source: made up, values: {a2: {title: A2, soc_name: Ascend910B3}}}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady:
    title: a row
    source: made up
    recipe: small
    axes: {verl: 0.9.1, torch: 2.13.0, torch_npu: 2.13.0, vllm: 0.18.0, vllm_ascend: 0.18.0, cann: 8.5.0, python: host, soc: a2, device: sim}
constraints:
  pair: {require: {torch_npu: {same_as: torch, part: release}}, reason: made for each other, source: made up}
recipes:
  small:
    title: a small recipe
    algorithm: grpo
    entry: verl.trainer.main_ppo
    nodes: 1
    cards: 1
    model: tiny
    source: made up
    overrides: {trainer.nnodes: 1, actor_rollout_ref.actor.use_dynamic_bsz: true}
suites:
  own:
    title: tests of verl on the device
    upstream: verl
    revision: ["v{version}"]
    paths: [tests/npu]
    source: made up
  own-cpu:
    title: tests of verl on the CPU
    upstream: verl
    revision: ["v{version}"]
    paths: [tests/cpu]
    device: cpu
    source: made up
profiles:
  default:
    title: all
    select: [{stacks: all}]
    without: {WITHOUT}
"""
TORCH = """\
import ctypes

__version__ = "2.13.0"


class _Ones:
    def __init__(self, count):
        self.count = count

    def sum(self):
        return self

    def cpu(self):
        return float(self.count)


def ones(count, device):
    return _Ones(count)


class npu:
    @staticmethod
    def device_count():
        number = ctypes.c_uint32(0)
        ctypes.CDLL("libascendcl.so").aclrtGetDeviceCount(ctypes.byref(number))
        return number.value

    @staticmethod
    def is_available():
        return npu.device_count() > 0

    @staticmethod
    def get_device_name(_index):
        return "Ascend910B3"
"""
MAIN = """\
import hydra
import torch


@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    torch.ones(config.trainer.nnodes, "cpu")
"""
CONFIG = "trainer: {nnodes: 1}\nactor_rollout_ref: {actor: {use_dynamic_bsz: false}}\n"
OPERATORS = 'custom:\n- func: "npu_swiglu(Tensor self, int dim=-1) -> Tensor"\n'
STEADY = "steady"
SUITE_REPOSITORY, SUITE_TAG = "https://example.org/suites/tests", "v0.9.1"
REPOSITORY = Path(__file__).parents[2]


def in_cell(check: Check) -> bool:
    """Whether the check starts programs of the tested packages in the cell."""
    return "environment" in check.inputs


@functools.cache
def without() -> dict[str, str]:
    """The checks that the default profile of this repository leaves out, and why.

    Not those of test suites: no other check depends on tags.
    """
    left_out = load_matrix(REPOSITORY / "matrix.yaml").profiles["default"].without
    return {one.check: one.reason for one in left_out if one.check not in SUITE_CHECK_NAMES}


def hunted_checks() -> tuple[Check, ...]:
    """The checks of the default profile, and those of upstreams' test suites."""
    return tuple(check for check in all_checks() if check.name not in without())


def _measure_pass(_context: TaskContext) -> Measured[Mapping[str, Any]]:
    return Measured(measurements={"ok": True}, evidence=Evidence.CPU)


def _measure_suite(_context: TaskContext) -> Measured[SuitesMeasured]:
    clone = find_clone(mirror_folders(), SUITE_REPOSITORY)
    assert clone is not None
    tag = Tag(repository=SUITE_REPOSITORY, name=SUITE_TAG, commit=clone.commit(f"refs/tags/{SUITE_TAG}"))
    suite = MeasuredSuite(name="own", commit=tag.commit, tag=tag)
    return Measured(measurements=SuitesMeasured(suites=(suite,)), evidence=Evidence.CPU)


def _judge_pass(_measurements: object, _params: Mapping[str, Any]) -> Judgement:
    return Judgement(status=Status.PASS)


def _applies(_facets: Mapping[str, Any]) -> str:
    return ""


def stand_in(check: Check) -> Check:
    """The check with a measurement that needs no torch."""
    if check.name in SUITE_CHECK_NAMES:
        return replace(check, run=_measure_suite, judge=_judge_pass, applies=_applies)
    return replace(check, run=_measure_pass, judge=_judge_pass, applies=_applies, measurements=None)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command answered about the cell. why: check -> why its stored outcome was not reused, and only
    for checks that were measured again. status: check -> its status afterwards."""

    code: int
    output: str
    why: Mapping[str, str]
    status: Mapping[str, str]


@functools.cache
def own_interpreter(folder: Path) -> Path:
    """A copy of the interpreter that tests may alter, with the part of the standard library that cells need."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base, copy = Path(sys.base_prefix), folder / "python"
    (copy / "bin").mkdir(parents=True)
    shutil.copy2(base / "bin" / name, copy / "bin" / name)
    left_out = (
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "__pycache__",
        "idlelib",
        "config-*",
        "ensurepip",
    )
    shutil.copytree(base / "lib" / name, copy / "lib" / name, ignore=shutil.ignore_patterns(*left_out))
    for library in base.glob(f"lib/lib{name}*.so*"):
        shutil.copy2(library, copy / "lib" / library.name)
    return copy / "bin" / name


class World:
    """The checkout, the index, the cache and the ledger of the cell `steady`."""

    def __init__(self, folder: Path, wheels: Wheels) -> None:
        self.root, self.cache, self.wheels = folder / "checkout", folder / "cache", wheels
        self.mirrors = folder / "mirrors"
        self.state = self.root / ".npu-matrix"
        self.is_green = False
        self._replaced = 0
        self._events = folder / "events.jsonl"
        self.matrix = self.root / "matrix.yaml"
        self.root.mkdir()
        self.matrix.write_text(MATRIX.replace("{WITHOUT}", json.dumps(without())))
        self.patches = {
            axis: self._patch(axis, file, versions)
            for axis, file, versions in (
                ("verl", "verl/core.py", ">=0.9,<0.10"),
                ("vllm_ascend", "vllm_ascend/core.py", ">=0.18,<0.19"),
                ("vllm", "vllm/core.py", ">=0.18,<0.19"),
            )
        }
        self._publish(folder)
        self.suites.mkdir(parents=True)
        self.tag_suites()

    @property
    def suites(self) -> Path:
        """The clone of the repository with the test suite."""
        return self.mirrors / "suites" / "tests"

    def tag_suites(self) -> None:
        """Commit, and let the tag name this commit."""
        commit_all(self.suites)
        git(self.suites, "tag", "--force", SUITE_TAG)

    def _patch(self, axis: str, file: str, versions: str) -> Path:
        folder = self.root / "patches" / axis / "empty-mean"
        write_patch(folder, EMPTY_MEAN.format(file=file), versions=versions)
        return folder / "all.patch"

    def _publish(self, folder: Path) -> None:
        source, library = folder / "npu.c", folder / "libtorch_npu.so"
        source.write_text("int aclInit(const char *);\nint use(void) { return aclInit(0); }\n")
        compile_library(find_compiler(), [source], library)
        use = (
            "import torch\nimport torch_npu\n\n\ndef swiglu(x):\n    return torch_npu.npu_swiglu(x, dim=1)\n"
        )
        self._releases: dict[str, tuple[str, dict[str, str | bytes]]] = {
            "verl": (
                "0.9.1",
                {
                    "verl/core.py": MEAN,
                    "verl/ops.py": use,
                    "verl/trainer/__init__.py": "",
                    "verl/trainer/main_ppo.py": MAIN,
                    "verl/trainer/config/ppo_trainer.yaml": CONFIG,
                },
            ),
            "torch": ("2.13.0", {"torch/__init__.py": TORCH}),
            "torch-npu": (
                "2.13.0",
                {
                    "torch_npu/lib/libtorch_npu.so": library.read_bytes(),
                    "torch_npu/csrc/aten/npu_native_functions.yaml": OPERATORS,
                },
            ),
            "vllm": ("0.18.0", {"vllm/__init__.py": '__version__ = "0.18.0"\n', "vllm/core.py": MEAN}),
            "vllm-ascend": (
                "0.18.0",
                {
                    "vllm_ascend/core.py": MEAN,
                    "vllm_ascend/ops.py": use,
                    "vllm_ascend/pair.py": "from vllm import __version__\n",
                },
            ),
        }
        for package, (version, files) in self._releases.items():
            self.wheels.add(package, version, files=files)

    def replace_wheel(self, package: str, files: Mapping[str, str] | None = None) -> Path:
        """Publish another archive of the same release: with other `files`, or with one more file."""
        version, known = self._releases[package]
        self._replaced += 1
        added = files or {f"{package.replace('-', '_')}/more.py": f"NUMBER = {self._replaced}\n"}
        return self.wheels.add(package, version, files={**known, **added})

    def command(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and messages of a command in this process."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as stopped,
        ):
            main(["--root", str(self.root), "--cache", str(self.cache), *arguments])
        return int(stopped.value.code or 0), out.getvalue(), err.getvalue()

    def run(self, *arguments: str) -> Asked:
        """Run the profile: which checks are measured again and why, and what is then shown of each."""
        self.is_green = False
        self._events.unlink(missing_ok=True)
        code, output, messages = self.command("run", "--events", str(self._events), *arguments)
        lines = self._events.read_text().splitlines() if self._events.is_file() else []
        started = [event for event in map(json.loads, lines) if event["event"] == "TaskStarted"]
        return Asked(
            code=code,
            output=output + messages,
            why={event["check"]: event["why"] for event in started},
            status=self.status(),
        )

    def status(self) -> dict[str, str]:
        """Check of the profile -> status of the latest run."""
        _, output, messages = self.command("status", "--json")
        assert output, messages
        statuses = {one["check"]: one["status"] for one in json.loads(output)["verdicts"]}
        return {name: status for name, status in statuses.items() if name not in without()}

    def why_rerun(self) -> dict[str, Any]:
        """Check -> whether a run would reuse its outcome, and why not."""
        code, output, messages = self.command("why-rerun", STEADY, "--json")
        assert code == 0, messages
        return {one["check"]: one for one in json.loads(output)["checks"]}

    def environment(self) -> EnvironmentBuilt:
        """Where the environment is."""
        built = ENVIRONMENT_FORMAT.read(self.outcomes()["environment"].measurements)
        assert isinstance(built, EnvironmentBuilt)
        return built

    def outcomes(self) -> dict[str, Outcome]:
        """Check -> its last outcome."""
        with Ledger.open(self.state) as ledger:
            return {outcome.check: outcome for outcome in reversed(ledger.history())}


@contextlib.contextmanager
def small_world(folder: Path) -> Iterator[World]:
    """The world, while stand-ins replace what needs real packages."""
    with pytest.MonkeyPatch.context() as patched:
        wheels = only_index(folder, patched)
        patched.setattr(interpreter, "_base_executable", lambda: own_interpreter(folder))
        # A library that the probe is said to have used stands for the CANN of an NPU host.
        library = folder / "ascend" / "lib64" / "libascendcl.so"
        library.parent.mkdir(parents=True)
        library.write_text("CANN")
        (library.parents[1] / "version.info").write_text("Version=8.5.0\n")
        patched.setattr(
            venv_environment,
            "probe_cell",
            lambda *given, **options: replace(
                cell_probe.probe_cell(*given, **options), libraries=(str(library),)
            ),
        )
        # The launcher installs operators into a real torch.
        patched.setattr(cell_command, "LAUNCHER", ())
        for package in CHECK_PACKAGES:
            module = import_module(f"harness.{package}.checks")
            checks = tuple(stand_in(check) if in_cell(check) else check for check in module.CHECKS)
            patched.setattr(module, "CHECKS", checks)
        patched.setenv(MIRRORS, str(folder / "mirrors"))
        yield World(folder, wheels)
