"""Run verl's trainer on a tiny model and task.

    python -m harness.convergence.trainer.trainer_program --algorithm gspo --device npu --folder F --out J

Exit code 0 when the trainer was started, even if it crashed or hung; 2 for bad usage; 4 when it could not be
started. In-cell module.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from harness.cell_program.torch_device import device_facts, package_version
from harness.convergence.decision import run_gates
from harness.convergence.decision.bands import arrays
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.smoke.smoke_program import versions
from harness.convergence.telemetry.machine_load import OtherProcesses, machine_load
from harness.convergence.telemetry.series import encode_series
from harness.convergence.telemetry.verl_log import VerlLog
from harness.convergence.trainer import tiny_task, trainer_environment, trainer_recipe
from harness.convergence.trainer.supervision import supervised_run, zygote_client
from harness.convergence.trainer.trainer_measurements import TrainerRun, TrainerSeconds
from harness.convergence.trainer.trainer_recipe import (
    DAPO_RECIPE,
    ENTRY,
    ONE_STEP_OFF,
    ONE_STEP_OFF_RECIPE,
    RECIPES,
    TrainerRecipe,
)
from harness.digest import digest_json
from harness.errors import HarnessError, InfrastructureError, InputError
from harness.serialisation import to_json

SCHEMA = {"name": "npu-matrix/trainer-run", "version": 1}
# At start-up, 4 to 6 processes import torch and verl: 35 s on two cores, more on a busy machine.
START_UP_SECONDS = 300.0
STEP_SECONDS = 120.0
# Replaces the seed in the digest that all runs of a reference set share.
ANY_SEED = -1
# The path of a socket has at most 107 bytes, of which Ray needs 60.
LONGEST_FOLDER = 40
VERL_PLUGIN = "harness.convergence.trainer.verl_extensions.verl_plugin"
DEVICE_PLUGIN = "harness.devices.sim.start.sim_plugin"
CPU_PLUGIN = "harness.convergence.trainer.verl_extensions.cpu_device"
# Environment variable with the number of simulated devices.
CARDS = "NPU_SIM_COUNT"
ZYGOTE = "harness.convergence.trainer.supervision.zygote"
ONE_STEP_PLUGIN = "harness.convergence.trainer.verl_extensions.one_step_rollout"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="harness.convergence.trainer.trainer_program", description=__doc__.split("\n")[0]
    )
    result.add_argument("--algorithm", choices=trainer_recipe.ALGORITHMS, required=True)
    result.add_argument("--device", choices=("npu", "cpu"), required=True)
    result.add_argument("--folder", type=Path, required=True, help="existing folder for the task's files")
    result.add_argument("--out", type=Path, required=True, help="JSON of the run, overwritten")
    result.add_argument("--steps", type=int)
    result.add_argument("--seed", type=int)
    result.add_argument("--cards", type=int)
    result.add_argument("--learning-rate", type=float)
    result.add_argument(
        "--one-step-off",
        action="store_true",
        help="one-step-off-policy training, with the rollout on an additional card",
    )
    result.add_argument(
        "--dapo", action="store_true", help="training by verl's recipe DAPO, which samples groups dynamically"
    )
    result.add_argument("--experts", action="store_true", help="the model is a mixture of experts")
    result.add_argument(
        "--sync", action="store_true", help="sample in the trainer's processes, also where verl has servers"
    )
    result.add_argument("--samples", type=int, help="responses per prompt")
    result.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="an additional Hydra override"
    )
    result.add_argument(
        "--plugin", action="append", default=[], help="an additional external module for verl"
    )
    result.add_argument("--live", type=Path, help="JSON of the series so far, replaced after every step")
    result.add_argument(
        "--stop-file", type=Path, help="stop the run after the step in which this file appears"
    )
    result.add_argument("--start-up-seconds", type=float, default=START_UP_SECONDS)
    result.add_argument("--step-seconds", type=float, default=STEP_SECONDS)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trainer and write the JSON of the run."""
    options = parser().parse_args(argv)
    try:
        result = run(options)
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    options.out.write_text(json.dumps(to_json(result), allow_nan=False) + "\n", encoding="utf-8")
    return 0


def run(options: argparse.Namespace) -> TrainerRun:
    """Train, and return what was recorded of the run."""
    chosen = _recipe(options)
    verl = _verl()
    host, others = machine_load(), OtherProcesses()
    folder = options.folder.resolve()
    prepared = time.monotonic()
    tiny_task.write(folder, seed=chosen.seed, prompts=chosen.prompts * chosen.steps, experts=options.experts)
    (folder / "processes").mkdir()
    ray_folder = _short_folder()
    entry = _entry(options)
    settings = {
        **trainer_recipe.overrides(
            chosen,
            trainer_recipe.version_of(verl),
            task=folder,
            device=options.device,
            sync=options.sync,
        ),
        **(trainer_recipe.one_step_off_overrides(entry) if options.one_step_off else {}),
        **(trainer_recipe.dapo_overrides(chosen) if options.dapo else {}),
        **trainer_recipe.ray_overrides(
            ray_folder, device=options.device, worker=_worker(options, ray_folder)
        ),
        **_overrides(options.set),
    }
    argv = [sys.executable, "-m", entry, *(f"{key}={value}" for key, value in settings.items())]
    log = VerlLog("verl", steps=chosen.steps)
    try:
        ending = supervised_run.run_supervised(
            argv,
            env=_environment(chosen, options, entry, folder / "processes"),
            cwd=folder,
            process_folder=folder / "processes",
            take=lambda text: _print_and_parse(log, text),
            steps=lambda: _steps(log, others),
            stop_reason=lambda: _stop_reason(log, options),
            limits=supervised_run.TimeLimits(start_up=options.start_up_seconds, step=options.step_seconds),
            helper=[sys.executable, "-m", ZYGOTE, str(_socket(ray_folder))] if _forks(options) else (),
        )
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    telemetry = log.telemetry()
    recorded = telemetry.runs[0] if telemetry.runs else None
    return TrainerRun(
        schema=SCHEMA,
        state=_state(ending),
        stopped=ending.stop_reason,
        returncode=ending.returncode,
        where=ending.where,
        stacks=ending.stacks,
        stack_problems=ending.problems,
        algorithm=chosen.algorithm,
        recipe=chosen,
        digest=_identity(chosen.digest(), options),
        settings=settings_digest(options),
        argv=tuple(argv[1:]),
        plugins=tuple(_plugins(options, entry)),
        versions=versions(options.device),
        ray=package_version("ray"),
        device=device_facts("npu:0" if options.device == "npu" else "cpu"),
        host=replace(host, others=others.share()),
        processes=_processes(folder / "processes"),
        seconds=TrainerSeconds(
            prepare=round(time.monotonic() - prepared - ending.seconds, 3),
            start_up=None if ending.start_up is None else round(ending.start_up, 3),
            whole=round(ending.seconds, 3),
        ),
        swept=ending.swept,
        series=encode_series(recorded.series) if recorded else {},
        complete=bool(recorded and recorded.complete),
        problems=(*telemetry.problems, *(recorded.problems if recorded else ())),
    )


def _recipe(options: argparse.Namespace) -> TrainerRecipe:
    given = {name: getattr(options, name) for name in ("steps", "seed", "cards", "learning_rate")}
    chosen = dataclasses.replace(
        RECIPES[options.algorithm], **{name: value for name, value in given.items() if value is not None}
    )
    if options.samples is not None:
        chosen = trainer_recipe.with_samples(chosen, options.samples)
    if chosen.steps < 1 or chosen.cards < 1 or (chosen.mini_batch * chosen.samples) % chosen.cards:
        raise InputError(
            f"{chosen.steps} steps on {chosen.cards} cards cannot be trained",
            why=f"a mini-batch of {chosen.mini_batch * chosen.samples} responses is split over the cards",
            fix="give at least one step, and 1, 2, 4 or 8 cards",
        )
    return chosen


def settings_digest(options: argparse.Namespace) -> str:
    """The digest of all settings but the seed. Runs with the same digest can form a reference set."""
    return _identity(dataclasses.replace(_recipe(options), seed=ANY_SEED).digest(), options)


def _identity(digest: str, options: argparse.Namespace) -> str:
    """The digest of the recipe, combined with the options that are not part of the recipe."""
    more = {"set": _overrides(options.set), "one_step_off": options.one_step_off}
    kinds = {name: True for name in ("dapo", "experts", "sync") if getattr(options, name)}
    return digest_json([digest, {**more, **kinds}]) if any((*more.values(), kinds)) else digest


def _verl() -> str:
    found = package_version("verl")
    if not found:
        raise InfrastructureError(
            "verl is not installed in this environment", fix="run this program in a cell's environment"
        )
    return found


def _entry(options: argparse.Namespace) -> str:
    """The module of this verl that trains like this. InfrastructureError if it has none."""
    if options.dapo:
        if _is_installed(DAPO_RECIPE):
            return DAPO_RECIPE
        raise InfrastructureError(
            "this verl has no DAPO recipe",
            why=f"there is no module {DAPO_RECIPE}; wheels leave it out",
            fix="use a checkout of verl up to 0.7.0 (the profile `twins` has one)",
        )
    return _one_step_off() if options.one_step_off else ENTRY


def _is_installed(entry: str) -> bool:
    package, *inside = entry.split(".")
    # `find_spec` of the module itself would import verl.
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return any(Path(folder, *inside).with_suffix(".py").is_file() for folder in folders)


def _one_step_off() -> str:
    """The module of this verl for one-step-off-policy training."""
    for entry in (ONE_STEP_OFF, ONE_STEP_OFF_RECIPE):
        if _is_installed(entry):
            return entry
    raise InfrastructureError(
        "this verl has no one-step-off-policy training",
        why=f"there is neither {ONE_STEP_OFF} nor {ONE_STEP_OFF_RECIPE}; the wheel of 0.7.1 leaves it out",
        fix="use verl 0.9.1, or a checkout of verl up to 0.7.0 (the profile `twins` has one)",
    )


def _plugins(options: argparse.Namespace, entry: str) -> list[str]:
    # The recipe supports vLLM only. Without vLLM, our rollout replaces it.
    replaces_vllm = entry == ONE_STEP_OFF_RECIPE and importlib.util.find_spec("vllm") is None
    return [VERL_PLUGIN, *([ONE_STEP_PLUGIN] if replaces_vllm else []), *options.plugin]


def _overrides(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair!r} is not KEY=VALUE")
        found[key] = value
    return found


def _environment(
    chosen: TrainerRecipe, options: argparse.Namespace, entry: str, processes: Path
) -> dict[str, str]:
    """The environment of this process, with settings that isolate verl and Ray from others on the host."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    device = [DEVICE_PLUGIN] if _simulated() else []
    device = [CPU_PLUGIN] if options.device == "cpu" else device
    return {
        **inherited,
        "VERL_USE_EXTERNAL_MODULES": ",".join([*device, *_plugins(options, entry)]),
        trainer_environment.SEED: str(chosen.seed),
        trainer_environment.PROCESSES: str(processes),
        "HYDRA_FULL_ERROR": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        # Actors without a device may see it: verl reads the kind of device there.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Workers that Ray starts in advance lack verl's runtime environment, so they would never be used.
        "RAY_prestart_worker_first_driver": "0",
        # Ray's default niceness of 15 would make workers wait for all other processes of a busy machine.
        "RAY_worker_niceness": "0",
        # The default of 8 is reduced to the number of processors in each of some 400 calls of a step, each
        # time with two warnings that Ray forwards.
        "TQ_NUM_THREADS": "1",
        **({CARDS: str(chosen.cards + 1)} if options.one_step_off and _simulated() else {}),
    }


def _forks(options: argparse.Namespace) -> bool:
    """Whether Ray's workers are forked from the zygote. Not on a real device: its driver may not survive it.

    vLLM spawns its own processes, also from a forked worker.
    """
    return options.device == "cpu" or _simulated()


def _socket(ray_folder: Path) -> Path:
    return ray_folder / "zygote"


def _worker(options: argparse.Namespace, ray_folder: Path) -> tuple[str, ...]:
    if not _forks(options):
        return ()
    return (sys.executable, "-I", "-S", zygote_client.__file__, str(_socket(ray_folder)))


def _simulated() -> bool:
    from harness.devices.sim.start import sim_probe

    return sim_probe.is_simulated()


def _short_folder() -> Path:
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="npm-", dir=parent if len(parent) <= LONGEST_FOLDER else "/tmp"))  # noqa: S108


def _print_and_parse(log: VerlLog, text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
    log.feed(text)


def _steps(log: VerlLog, others: OtherProcesses) -> int:
    """The number of steps so far. It is called often, so it also samples the load by other processes."""
    others.look()
    return max((run.steps for run in log.telemetry().runs), default=0)


def _stop_reason(log: VerlLog, options: argparse.Namespace) -> str:
    """Write the live file, and return why the run should stop (the stop file or a failed gate), or ""."""
    runs = log.telemetry().runs
    if options.live is not None:
        temporary = options.live.with_suffix(".new")
        temporary.write_text(json.dumps(encode_series(runs[0].series) if runs else {}), encoding="utf-8")
        temporary.replace(options.live)
    if options.stop_file is not None and options.stop_file.exists():
        return options.stop_file.read_text(encoding="utf-8") or "the stop file was created"
    gate = (
        run_gates.first_failed_gate(arrays(runs[0].series), Rule())
        if runs and "reward" in runs[0].series
        else None
    )
    return gate.reason if gate is not None else ""


def _state(ending: supervised_run.TrainerEnd) -> Literal["measured", "crashed", "hung"]:
    if ending.returncode is None:
        return "measured" if ending.stop_reason else "hung"
    return "crashed" if ending.returncode else "measured"


def _processes(folder: Path) -> tuple[Mapping[str, object], ...]:
    return tuple(json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))


if __name__ == "__main__":
    sys.exit(main())
