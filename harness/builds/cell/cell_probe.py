"""What is inside a cell's environment, asked of its own Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.builds.cell.environment_spec import BuildStepError, EnvironmentSpec
from harness.check import TaskContext
from harness.package import PACKAGE_ROOT

PROBE = "harness.fixtures.environment_probe"
PATCH_PROBE = "harness.fixtures.patch_probe"
# What a training imports first. Metadata does not say everything: pyarrow 26 installs beside numpy 1, and
# cannot be imported there.
PROBED_MODULES = (
    *("torch", "torch_npu", "torchvision", "torchaudio", "vllm", "vllm_ascend", "verl", "tensordict"),
    *("transformers", "ray", "pyarrow", "datasets"),
)
SECONDS_TO_PROBE = 300.0


def probe_cell(
    ctx: TaskContext, spec: EnvironmentSpec, facts: Mapping[str, Any], site_packages: Path
) -> Mapping[str, Any]:
    """What the environment's own Python finds: packages, files that were patched, modules, the device.

    facts: the measurements so far, by which the cell is entered. BuildStepError when it cannot be asked.
    """
    bundle = make_bundle(PACKAGE_ROOT, ctx.cache)
    names = ctx.workdir / "patched-names.json"
    names.write_text(json.dumps(sorted(spec.manifest)), "utf-8")
    out = ctx.workdir / "probe.json"
    modules = [name for name in PROBED_MODULES if name in facts["expected"] or _locked(spec, name)]
    if spec.device["kind"] == "cpu":
        modules = [name for name in modules if name != "torch_npu"]
    args = ["--out", str(out), "--root", str(site_packages), "--files", str(names)]
    args += ["--device", "cpu" if spec.device["kind"] == "cpu" else "npu", "--modules", ",".join(modules)]
    argv, variables = cell_command(facts, bundle, PROBE, args)
    # The first import of these packages writes their bytecode, which every later start in this cell saves.
    variables["PYTHONDONTWRITEBYTECODE"] = ""
    completed = ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_PROBE)
    if completed.timed_out or completed.returncode != 0 or not out.is_file():
        reason = "The environment could not be looked into: "
        reason += (
            "no answer in time." if completed.timed_out else f"the probe ended with {completed.returncode}."
        )
        raise BuildStepError("probe", reason, tail=completed.tail)
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    found["patched"] = _probe_patched(ctx, spec, facts, bundle)
    return found


def _probe_patched(ctx: TaskContext, spec: EnvironmentSpec, facts: Mapping[str, Any], bundle: Path) -> Any:
    """What the cell's import system takes for each patched file; None without patches. Imports nothing."""
    if not spec.manifest:
        return None
    expected, out = ctx.workdir / "patched.json", ctx.workdir / "patched-report.json"
    expected.write_text(json.dumps(spec.manifest), "utf-8")
    # Without the device, which it does not need.
    plain = {**facts, "requested_device": {"kind": "cpu"}}
    argv, variables = cell_command(plain, bundle, PATCH_PROBE, [str(expected), str(out)])
    completed = ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_PROBE)
    if completed.returncode != 0 or not out.is_file():
        raise BuildStepError("probe", "The patched files could not be looked at.", tail=completed.tail)
    return json.loads(out.read_text("utf-8"))["files"]


def _locked(spec: EnvironmentSpec, module: str) -> bool:
    return any(package.name == module.replace("_", "-") for package in spec.packages)
