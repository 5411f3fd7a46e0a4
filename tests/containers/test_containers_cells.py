"""A simulated cell has the same verdicts in a container as in a virtual environment: checks and tests/npu.

The tests use the ledger with the cells that `nox -s npu_e2e` built, and add the outcomes of the container to
it. NPU_MATRIX_TEST_CELLS: the verl versions (default 0.9.1). NPU_MATRIX_TEST_ENGINES: the engines (docker).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import BASE, REPOSITORY
from missing_programs import missing
from npu_tests import differences, run_npu_tests

import harness
from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.cell_program.built_environment import environment_location
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome
from harness.plan.tasks.task import Plan
from harness.settings import Settings, load_settings
from harness.workspace.planning.open_plan import open_plan

CELLS = os.environ.get("NPU_MATRIX_TEST_CELLS", "0.9.1").split()
ENGINES = os.environ.get("NPU_MATRIX_TEST_ENGINES", "docker").split()
CHECKS = ("environment", "loss", "actor", "grpo")
# Measurements about the location and time of a build; they differ between engines.
LOCATION_FIELDS = {"seconds", "container", "digest", "python", "prefix", "runtime", "site_packages", "reused"}


def settings_of(engine: str, base: str = "") -> Settings:
    flags = {"engine": engine, "base_image": base} if engine != "venv" else {"engine": engine}
    return load_settings(flags, os.environ, REPOSITORY)


def cell_of(plan: Plan, verl: str) -> Any:
    found = [cell for cell in plan.cells if cell.axes.get("verl") == verl and cell.device == "sim"]
    if not found:
        missing(f"the profile has no simulated cell of verl {verl}")
    return found[0]


def outcomes(settings: Settings, verl: str) -> Mapping[str, tuple[Any, Outcome]]:
    plan = open_plan(settings, checks=list(CHECKS)).plan
    cell = cell_of(plan, verl)
    found = {}
    with Ledger.open(settings.path("state")) as ledger:
        for entry in plan.entries:
            if entry.cell_id == cell.id and entry.check in CHECKS:
                outcome = ledger.get(entry.key)
                if outcome is None:
                    none = f"{entry.check} of verl {verl} has no outcome with {settings['engine']}"
                    if settings["engine"] == "venv":
                        missing(f"{none}: run `nox -s npu_e2e` first")
                    pytest.fail(f"{none}, though it was just run: did somebody write in the tree meanwhile?")
                found[entry.check] = (plan.tasks[entry.key].check, outcome)
    return found


def run(engine: str, environ: Mapping[str, str], base: str, verl: str, folder: Path) -> None:
    cell = cell_of(open_plan(settings_of(engine, base), checks=list(CHECKS)).plan, verl)
    argv = [sys.executable, "-m", "harness", "run", "--only", cell.id, "--engine", engine]
    argv += ["--base-image", base, "--reports", str(folder / "reports")]
    argv += [word for check in CHECKS for word in ("--check", check)]
    done = subprocess.run(argv, env={**os.environ, **environ}, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@dataclass(frozen=True, kw_only=True)
class Both:
    """One cell with both engines. embedded, contained: check name -> the check and its outcome.

    environ: environment variables that define how to connect to the container engine.
    """

    engine: str
    embedded: Mapping[str, tuple[Any, Outcome]]
    contained: Mapping[str, tuple[Any, Outcome]]
    environ: Mapping[str, str]

    def npu_tests(
        self, engine: str, folder: Path, only: Sequence[str] = ("",), faults: Sequence[Any] = ()
    ) -> tuple[Mapping[str, str], str]:
        _code, outcome = (self.embedded if engine == "venv" else self.contained)["environment"]
        bundle = make_bundle(Path(harness.__file__).parent, settings_of("venv").cache)

        def command(module: str, *args: str) -> tuple[list[str], dict[str, str]]:
            return cell_command(environment_location(outcome), bundle, module, args, faults)

        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environ.items():
                patched.setenv(name, value)
            return run_npu_tests(command, folder, only=only)


@pytest.fixture(scope="module", params=[(engine, verl) for engine in ENGINES for verl in CELLS])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    engine, verl = request.param
    embedded = outcomes(settings_of("venv"), verl)
    if engine == "docker":
        environ, base = {"DOCKER_HOST": request.getfixturevalue("docker_host")}, BASE
    else:
        environ, base = request.getfixturevalue("podman_environ"), f"localhost/{BASE}"
    run(engine, environ, base, verl, tmp_path_factory.mktemp("run"))
    contained = outcomes(settings_of(engine, base), verl)
    return Both(engine=engine, embedded=embedded, contained=contained, environ=environ)


@pytest.fixture(scope="module")
def npu_tests_in_venv(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    found, said = both.npu_tests("venv", tmp_path_factory.mktemp("venv"))
    assert found, said[-4000:]
    return found


def without_files(reasons: Sequence[str]) -> list[str]:
    """The reasons without the one about installed files, which are on this host or in the image."""
    return [reason for reason in reasons if "as their packages and patches say" not in reason]


def test_the_container_gives_the_verdicts_of_the_embedded_engine(both: Both) -> None:
    for check in CHECKS:
        (code, embedded), (_code, contained) = both.embedded[check], both.contained[check]
        assert contained.key != embedded.key
        assert contained.evidence is embedded.evidence is Evidence.SIMULATED
        left, right = (code.judge(code.read(one), code.params) for one in (embedded, contained))
        assert left.status == right.status
        assert without_files(left.reasons) == without_files(right.reasons)


@pytest.mark.timeout(1500)
def test_tests_npu_says_the_same_of_every_test_in_the_container(
    both: Both, npu_tests_in_venv: Mapping[str, str], tmp_path: Path
) -> None:
    found, said = both.npu_tests(both.engine, tmp_path)
    print(both.engine, Counter(found.values()))
    assert found, said[-4000:]
    assert not differences("venv", npu_tests_in_venv, both.engine, found), said[-4000:]
    # Both engines skip the tests of packages that the cell does not have.
    assert set(found.values()) <= {"passed", "skipped"}, said[-4000:]


def test_a_device_that_is_wrong_in_the_container_alone_is_named_by_its_tests(
    both: Both, npu_tests_in_venv: Mapping[str, str], tmp_path: Path
) -> None:
    fault = {"op": "exp", "kind": "ulp", "ulps": 2000}
    found, said = both.npu_tests(both.engine, tmp_path, ["test_loss.py"], [fault])
    same = {test: npu_tests_in_venv[test] for test in found}
    different = differences("venv", same, both.engine, found)
    assert any("passed with venv, failed with" in one for one in different), said[-4000:]


def test_what_was_measured_is_the_same_but_for_the_place(both: Both) -> None:
    (_code, embedded), (_again, contained) = both.embedded["environment"], both.contained["environment"]
    for name in embedded.measurements.keys() - LOCATION_FIELDS - {"probe", "requested_device"}:
        assert contained.measurements[name] == embedded.measurements[name], name
    left, right = embedded.measurements["probe"], contained.measurements["probe"]
    assert left["packages"] == right["packages"]
    assert left["files"] == right["files"]
    assert left["device"] == right["device"]


def test_versions_materials_and_provenance_are_kept_with_the_outcome(both: Both) -> None:
    _check, outcome = both.contained["environment"]
    container, settings = outcome.measurements["container"], settings_of("venv")
    assert container["image"].startswith("sha256:")
    assert [layer["name"] for layer in container["layers"]][:2] == ["python", "torch"]
    assert "digest" in container["notices"][0]
    with Ledger.open(settings.path("state")) as ledger:
        texts = {one.name: ledger.artifacts.get(one).read_text() for one in outcome.artifacts}
    sbom, provenance = (json.loads(texts[name]) for name in ("sbom.cdx.json", "provenance.json"))
    versions = {one["name"]: one["version"] for one in sbom["components"] if one["type"] == "library"}
    assert versions == outcome.measurements["expected"]
    assert sbom["bomFormat"] == "CycloneDX"
    assert provenance["subject"][0]["digest"]["sha256"] == container["image"].removeprefix("sha256:")
    assert provenance["predicateType"] == "https://slsa.dev/provenance/v1"
