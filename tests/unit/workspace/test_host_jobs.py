"""Jobs for hosts with NPUs: every planned cell is in one, and the files are what their systems read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from harness.builds.export.container_files import ContainerOptions
from harness.cli.app import main
from harness.errors import InputError
from harness.package import shipped_file
from harness.settings import load_settings
from harness.workspace.ci.host_jobs import FORMATS, HostJob, HostJobOptions, host_jobs
from harness.workspace.planning.plan_history import open_plan_with_history

STACKS = ("verl-0-7-1", "verl-0-9-0", "one-step-off-2card")
OPTIONS = HostJobOptions(profile="full", container=ContainerOptions(cards=4))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[HostJob, ...]:
    return planned_jobs(tmp_path_factory.mktemp("root"), STACKS)


def planned_jobs(root: Path, only: tuple[str, ...]) -> tuple[HostJob, ...]:
    given = {"profile": "full", "matrix": str(shipped_file("matrix.yaml")), "cache": str(root)}
    settings = load_settings(given, {}, root)
    return host_jobs(*open_plan_with_history(settings, only=only, elsewhere=True), 3, OPTIONS)


def parts(job: HostJob) -> list[tuple[str, str]]:
    return [(cell, check) for cell in job.shard.cells for check in job.shard.checks or ("all",)]


def test_each_check_of_a_cell_is_in_one_job_and_costs_something(jobs: tuple[HostJob, ...]) -> None:
    counted = Counter(part for job in jobs for part in parts(job))
    assert set(counted.values()) == {1}
    assert {cell.rpartition("-")[0] for cell, _ in counted} == set(STACKS)
    # This host has no NPU; the cost is that of the hosts of the jobs.
    assert all(job.shard.seconds > 60 for job in jobs)
    assert {job.soc for job in jobs} == {"a2", "a3"}
    # A job has one image, so that all of its cells find their CANN.
    assert {job.image.partition(":")[2].partition("-")[0] for job in jobs} >= {"8.5.0", "9.0.0"}


def test_the_kubernetes_jobs_fit_the_schema_of_kubernetes(jobs: tuple[HostJob, ...]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="not run: group `test` is not installed")
    made = yaml.safe_load(FORMATS["kubernetes"](jobs, OPTIONS))
    assert len(made["items"]) == len(jobs)
    for item in made["items"]:
        validate.validate(item, validate.latest_version(), strict=True)
        (container,) = item["spec"]["template"]["spec"]["containers"]
        assert list(container["resources"]["limits"].values()) == [4]
    made["items"][0]["spec"]["backofLimit"] = 0
    with pytest.raises(validate.ValidationError):
        validate.validate(made["items"][0], validate.latest_version(), strict=True)


def test_the_runner_sets_have_pods_that_fit_and_the_labels_of_the_plan(jobs: tuple[HostJob, ...]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="not run: group `test` is not installed")
    made = list(yaml.safe_load_all(FORMATS["runners"](jobs, OPTIONS)))
    assert {one["runnerScaleSetName"] for one in made} == {"linux-aarch64-a2-4", "linux-aarch64-a3-4"}
    for one in made:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runner"}, **one["template"]}
        validate.validate(pod, validate.latest_version(), strict=True)


def test_the_compose_file_fits_the_schema_of_compose(jobs: tuple[HostJob, ...], tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="not run: group `test` is not installed")
    file = tmp_path / "compose.yaml"
    file.write_text(FORMATS["compose"](jobs, OPTIONS))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_of_the_slurm_array_runs_its_arguments(tmp_path: Path) -> None:
    of_one_soc = planned_jobs(tmp_path, STACKS[:2])
    script = tmp_path / "jobs.sh"
    script.write_text(FORMATS["slurm"](of_one_soc, OPTIONS))
    assert f"#SBATCH --array=0-{len(of_one_soc) - 1}\n" in script.read_text()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    # In place of Python: `-m venv FOLDER` makes programs that print their arguments.
    python = bin_folder / "python3"
    python.write_text(
        '#!/bin/bash\nmkdir -p "$3/bin"\nfor name in python npu-matrix; do\n'
        '  printf \'#!/bin/bash\\nprintf "%%s\\\\n" "$@"\\n\' > "$3/bin/$name"; chmod +x "$3/bin/$name"\ndone\n'
    )
    python.chmod(0o755)
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    for number, job in enumerate(of_one_soc):
        env = {"PATH": path, "SLURM_ARRAY_TASK_ID": str(number), "TMPDIR": str(tmp_path)}
        done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, check=True)
        arguments = job.run_arguments(OPTIONS)
        assert done.stdout.splitlines()[-len(arguments) :] == arguments


def test_one_array_has_one_kind_of_host(jobs: tuple[HostJob, ...]) -> None:
    with pytest.raises(InputError, match="a2 and with a3"):
        FORMATS["slurm"](jobs, OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("claim", "a b"),
        ("partition", "x\n#SBATCH --uid=0"),
        ("package", "x; rm -rf /"),
        ("repository", "$(x)"),
    ],
)
def test_values_that_a_shell_or_yaml_would_read_are_refused(name: str, value: str) -> None:
    with pytest.raises(InputError, match="cannot be"):
        HostJobOptions(profile="full", **{name: value})


def test_the_command_prints_the_file_and_what_each_job_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(shipped_file("matrix.yaml"), tmp_path)
    file = tmp_path / "jobs.yaml"
    common = ["--cache", str(tmp_path / "cache"), "--profile", "full", "jobs", "compose", "--only"]
    with pytest.raises(SystemExit) as ended:
        main([*common, "verl-0-9-0", "--check", "loss", "--output", str(file)])
    assert not ended.value.code
    (service,) = yaml.safe_load(file.read_text())["services"].values()
    assert service["command"][-2:] == ["--check", "loss"]
    assert "npu-matrix-a2-1: 1 cell, about " in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*common, "verl-0-9-1*sim*"])
    assert ended.value.code == 2
    assert "no planned cell is on an NPU" in capsys.readouterr().err


@pytest.mark.parametrize(("shape", "file"), [("bake", "docker-bake.json"), ("compose", "compose.yaml")])
def test_the_files_of_the_shipped_cells_are_current(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: str, file: str
) -> None:
    shutil.copy(shipped_file("matrix.yaml"), tmp_path)
    shutil.copytree(shipped_file("patches"), tmp_path / "patches")
    command = [
        "--root",
        str(tmp_path),
        "--cache",
        str(tmp_path / "cache"),
        "--profile",
        "default",
        "jobs",
        shape,
    ]
    committed = shipped_file(f"docker/{file}").read_text("utf-8")
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    current = capsys.readouterr().out
    assert current == committed, f"npu-matrix --profile default jobs {shape} --output docker/{file}"
    # A cell with another CANN has another id, image and host.
    matrix = (tmp_path / "matrix.yaml").read_text("utf-8")
    changed = matrix.replace("      cann: 8.3.RC1.alpha002\n", "      cann: 8.5.0\n", 1)
    assert changed != matrix
    (tmp_path / "matrix.yaml").write_text(changed, "utf-8")
    with pytest.raises(SystemExit):
        main(command)
    assert capsys.readouterr().out != committed


def test_the_bake_file_has_one_image_for_each_cell_and_a_group_for_each_host(
    jobs: tuple[HostJob, ...],
) -> None:
    made = json.loads(FORMATS["bake"](jobs, OPTIONS))
    cells = {cell for job in jobs for cell in job.shard.cells}
    assert set(made["target"]) == set(made["group"]["default"]["targets"]) == cells
    assert len(made["group"]["default"]["targets"]) == len(cells)
    (a3,) = made["group"]["a3"]["targets"]
    assert a3.startswith("one-step-off-2card-")
    assert made["target"][a3]["platforms"] == ["linux/arm64"]
    # Bake refuses names with other characters.
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in made["target"])
    variables = set(re.findall(r"\$\{(\w+)\}", json.dumps(made["target"])))
    assert variables == set(made["variable"])
