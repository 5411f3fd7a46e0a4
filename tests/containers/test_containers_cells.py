"""A simulated cell as a container says what the same cell says as a virtual environment.

With the cells that `nox -s npu_e2e` built: their ledger is used, and gets the container's outcomes beside.
NPU_MATRIX_TEST_CELLS names the verl versions (default 0.9.1), NPU_MATRIX_TEST_ENGINES the engines (docker).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import BASE, REPOSITORY, missing

from harness.cli.bench import open_bench
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome
from harness.plan.task import Plan
from harness.settings import Settings, load_settings

CELLS = os.environ.get("NPU_MATRIX_TEST_CELLS", "0.9.1").split()
ENGINES = os.environ.get("NPU_MATRIX_TEST_ENGINES", "docker").split()
CHECKS = ("environment", "loss")
# Where and when it was measured, not what.
OF_THE_PLACE = {"seconds", "container", "digest", "python", "prefix", "runtime", "site_packages", "reused"}


def settings_of(engine: str, base: str = "") -> Settings:
    flags = {"engine": engine, "base_image": base} if engine != "venv" else {"engine": engine}
    return load_settings(flags, os.environ, REPOSITORY)


def cell_of(plan: Plan, verl: str) -> Any:
    found = [cell for cell in plan.cells if cell.axes.get("verl") == verl and cell.device == "sim"]
    if not found:
        missing(f"the profile has no simulated cell of verl {verl}")
    return found[0]


def outcomes(settings: Settings, verl: str) -> Mapping[str, tuple[Any, Outcome]]:
    plan = open_bench(settings, checks=list(CHECKS)).plan
    cell = cell_of(plan, verl)
    found = {}
    with Ledger.open(settings.path("state")) as ledger:
        for entry in plan.entries:
            if entry.cell_id == cell.id and entry.check in CHECKS:
                outcome = ledger.get(entry.key)
                if outcome is None:
                    missing(f"{entry.check} of verl {verl} has no outcome: run `nox -s npu_e2e` first")
                found[entry.check] = (plan.tasks[entry.key].check, outcome)
    return found


def run(engine: str, environ: Mapping[str, str], base: str, verl: str, folder: Path) -> None:
    cell = cell_of(open_bench(settings_of(engine, base), checks=list(CHECKS)).plan, verl)
    argv = [sys.executable, "-m", "harness", "run", "--only", cell.id, "--engine", engine]
    argv += ["--base-image", base, "--reports", str(folder / "reports")]
    argv += [word for check in CHECKS for word in ("--check", check)]
    done = subprocess.run(argv, env={**os.environ, **environ}, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module", params=[(engine, verl) for engine in ENGINES for verl in CELLS])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Mapping[str, tuple[Any, Outcome]], Mapping[str, tuple[Any, Outcome]]]:
    engine, verl = request.param
    embedded = outcomes(settings_of("venv"), verl)
    if engine == "docker":
        environ, base = {"DOCKER_HOST": request.getfixturevalue("docker_host")}, BASE
    else:
        environ, base = request.getfixturevalue("podman_environ"), f"localhost/{BASE}"
    run(engine, environ, base, verl, tmp_path_factory.mktemp("run"))
    return embedded, outcomes(settings_of(engine, base), verl)


def test_the_container_gives_the_verdicts_of_the_embedded_engine(both: Any) -> None:
    for check in CHECKS:
        (code, embedded), (_code, contained) = both[0][check], both[1][check]
        assert contained.key != embedded.key
        assert contained.evidence is embedded.evidence is Evidence.SIMULATED
        left, right = (code.judge(one.measurements, code.params) for one in (embedded, contained))
        assert (left.status, left.reasons) == (right.status, right.reasons)


def test_what_was_measured_is_the_same_but_for_the_place(both: Any) -> None:
    (_code, embedded), (_again, contained) = both[0]["environment"], both[1]["environment"]
    for name in embedded.measurements.keys() - OF_THE_PLACE - {"probe", "requested_device"}:
        assert contained.measurements[name] == embedded.measurements[name], name
    left, right = embedded.measurements["probe"], contained.measurements["probe"]
    assert left["packages"] == right["packages"]
    assert left["files"] == right["files"]
    assert left["device"] == right["device"]


def test_versions_materials_and_provenance_are_kept_with_the_outcome(both: Any) -> None:
    _check, outcome = both[1]["environment"]
    container, settings = outcome.measurements["container"], settings_of("venv")
    assert container["image"].startswith("sha256:")
    assert [layer["name"] for layer in container["layers"]][:2] == ["python", "torch"]
    assert "digest" in container["notices"][0]
    with Ledger.open(settings.path("state")) as ledger:
        texts = {
            name: ledger.artifacts.get(outcome.artifact(name)).read_text()
            for name in ("sbom.cdx.json", "provenance.json")
        }
    sbom, provenance = (json.loads(texts[name]) for name in ("sbom.cdx.json", "provenance.json"))
    versions = {one["name"]: one["version"] for one in sbom["components"] if one["type"] == "library"}
    assert versions == outcome.measurements["expected"]
    assert sbom["bomFormat"] == "CycloneDX"
    assert provenance["subject"][0]["digest"]["sha256"] == container["image"].removeprefix("sha256:")
    assert provenance["predicateType"] == "https://slsa.dev/provenance/v1"
