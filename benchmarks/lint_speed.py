"""Speed of `lint` on example scripts of verl, against Hydra's own composition in a process of its own.

The repository of verl must be among the mirrors (NPU_MATRIX_MIRRORS).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, Timing, timed
from benchmarks.lint_mutations import VERSION, jobs, verl
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_scripts import lint_folder
from harness.sources.tree import Tree

SCRIPTS = 12
RIVAL_SCRIPTS = 3
LIMIT_S = 0.3
FOLDER_S = 20
FOLDER = "verl/trainer/config"
COMPOSE = """
import sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
with initialize_config_dir(config_dir=sys.argv[1], version_base=None):
    print(OmegaConf.to_yaml(compose("ppo_trainer", overrides=sys.argv[2:])))
"""


def figures() -> Iterator[Figure]:
    tree = verl()
    every = list(jobs(tree))
    chosen = every[:: max(1, len(every) // SCRIPTS)][:SCRIPTS]
    with VerlConfiguration(tree).unpacked() as configuration:
        with timed() as first:
            lint_job(chosen[0], {"verl": VERSION}, configuration=configuration)
        with timed() as others:
            for job in chosen:
                lint_job(job, {"verl": VERSION}, configuration=configuration)
    with tempfile.TemporaryDirectory() as cache:
        for what in ("", ", again with stored results"):
            folder = folder_timing(tree, Path(cache))
            yield Figure(
                claim=f"lint of the whole folder `examples`, {os.cpu_count()} processors{what}",
                measured=round(folder.seconds, 1),
                unit="s",
                limit=FOLDER_S,
                rival=round(folder.cpu, 1),
                rival_name="processor time of all processes",
            )
    rival = hydra_seconds(tree, chosen[:RIVAL_SCRIPTS])
    yield Figure(
        claim=f"lint of one of {len(chosen)} example scripts, composed and followed, verl read before",
        measured=round(others.cpu / len(chosen), 3),
        unit="s of CPU",
        limit=LIMIT_S,
        rival=round(rival, 3),
        rival_name="hydra.compose alone, a process each",
    )
    yield Figure(claim="the first script, with reading verl", measured=round(first.cpu, 2), unit="s of CPU")


def folder_timing(tree: Tree, cache: Path) -> Timing:
    """How long `lint` takes for the folder of examples, with reading verl."""
    with tempfile.TemporaryDirectory() as name:
        for path in tree.paths():
            if path.startswith("examples/") and path.endswith(".sh"):
                target = Path(name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tree.read(path))
        with timed() as timing:
            lint_folder(Path(name, "examples"), {"verl": VERSION}, tree, cache)
    return timing


def hydra_seconds(tree: Tree, chosen: list[JobSettings]) -> float:
    """Processor seconds of one composition by Hydra."""
    with tempfile.TemporaryDirectory() as name:
        for path in tree.paths():
            if path.startswith(f"{FOLDER}/"):
                target = Path(name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tree.read(path))
        with timed() as timing:
            for job in chosen:
                words = [word.text for word in job.arguments if not word.unknown]
                subprocess.run(
                    [sys.executable, "-c", COMPOSE, str(Path(name, FOLDER)), *words],
                    check=False,
                    capture_output=True,
                    env={**os.environ, "PYTHONWARNINGS": "ignore"},
                )
    return timing.cpu / len(chosen)
