from __future__ import annotations

import json
import platform
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pytest
from authenticated_index import AuthenticatedIndex
from environments import GOOD, GOOD_PROBE, environment_built, environment_probe
from git_command import commit_all

from harness.builds.cell import (
    environment_files,
    environment_judge,
    environment_spec,
    host_requirements,
    venv_environment,
)
from harness.builds.cell.environment_build import environment_evidence
from harness.builds.checks import CHECKS
from harness.builds.cleanup.cleanup_candidates import CleanupPolicy, judge_environments, remove_candidate
from harness.cell_program.built_environment import (
    ENVIRONMENT_FORMAT,
    CellDevice,
    EnvironmentBuilt,
    EnvironmentNotBuilt,
    FailedImport,
    ImportedModule,
    ProbedDevice,
)
from harness.check import Completed
from harness.digest import digest_bytes, digest_file
from harness.errors import InfrastructureError
from harness.evidence import Runtime
from harness.outcome import ArtifactRef, Evidence, Judgement, Outcome, State, Status, Tier
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolveMeasured

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def outcome(check: str, artifacts: tuple[str, ...] = (), **measurements: Any) -> Outcome:
    return Outcome(
        key="k",
        check=check,
        tier=Tier.BUILD,
        state=State.COMPLETED,
        evidence=Evidence.STATIC,
        facets={},
        measurements=measurements,
        artifacts=tuple(ArtifactRef(name=name, digest="", size=0) for name in artifacts),
    )


class Cell:
    """A cell of tiny packages on the CPU, locked, ready to be built."""

    def __init__(self, context: Any, tmp_path: Path, *locked: Path) -> None:
        self.lock = tmp_path / "lock.txt"
        lines = []
        for wheel in locked:
            name, version = wheel.name.split("-")[:2]
            lines.append(f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest_file(wheel)}\n")
        self.lock.write_text("".join(lines))
        self.ctx = context(
            {
                "pins": {},
                "platform": {"python": PYTHON, "arch": platform.machine(), "host": True},
                "verl_tree": {},
                "patches[verl]": [],
                "patches[vllm_ascend]": [],
                "patches[others]": [],
                "device": {"kind": "cpu", "count": 1},
            }
        )
        self.ctx.cache = tmp_path / "cache"
        measured = RESOLVE_FORMAT.write(ResolveMeasured(resolved=True))
        self.ctx.inputs = {"resolve": outcome("resolve", **measured)}
        self.ctx.artifacts["resolve", "lock.txt"] = self.lock

    def patch(self, tmp_path: Path, files: dict[str, tuple[bytes | None, bytes | None]]) -> None:
        archive, manifest = tmp_path / "patched.zip", tmp_path / "patched.json"
        with zipfile.ZipFile(archive, "w") as opened:
            for name, (_, post) in files.items():
                if post is not None:
                    opened.writestr(name, post)
        manifest.write_text(
            json.dumps(
                {
                    name: {
                        "pre": digest_bytes(pre) if pre else None,
                        "post": digest_bytes(post) if post else None,
                    }
                    for name, (pre, post) in files.items()
                }
            )
        )
        self.ctx.inputs["patches"] = outcome("patches", ("patched.zip", "patched.json"))
        self.ctx.artifacts["patches", "patched.zip"] = archive
        self.ctx.artifacts["patches", "patched.json"] = manifest

    def run(self) -> tuple[EnvironmentBuilt | EnvironmentNotBuilt, Judgement]:
        measured = venv_environment.run(self.ctx)
        self.evidence = measured.evidence
        stored = json.loads(json.dumps(ENVIRONMENT_FORMAT.write(measured.measurements)))
        found = ENVIRONMENT_FORMAT.read(stored)
        assert found == measured.measurements
        return found, environment_judge.judge(found, {})

    def build(self) -> tuple[EnvironmentBuilt, Judgement]:
        found, judgement = self.run()
        assert isinstance(found, EnvironmentBuilt), found.tail
        return found, judgement

    def fail(self) -> tuple[EnvironmentNotBuilt, Judgement]:
        found, judgement = self.run()
        assert isinstance(found, EnvironmentNotBuilt)
        return found, judgement


@pytest.fixture
def cell(wheels: Any, context: Any, tmp_path: Path) -> Cell:
    files = {"verl/core.py": "ANSWER = 1\n"}
    return Cell(context, tmp_path, wheels.add("verl", "0.9.1", files=files), wheels.add("ray", "2.0"))


ORIGINAL = b"ANSWER = 1\n"


def test_a_locked_cell_is_built_and_looked_into(cell: Cell) -> None:
    found, judgement = cell.build()
    assert judgement.status is Status.PASS, judgement
    assert found.probe.packages == {"ray": "2.0", "verl": "0.9.1"}
    assert found.probe.modules["verl"].file.startswith(found.site_packages)
    assert cell.evidence is Evidence.CPU
    assert venv_environment.holds(found) == ""


def test_only_the_probe_of_the_device_leases_cards(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    command, with_cards, without = cell.ctx.command, [], []

    def watched(argv: list[str], **more: Any) -> Completed:
        (with_cards if cell.ctx.has_cards else without).append(argv)
        return command(argv, **more)

    monkeypatch.setattr(cell.ctx, "command", watched)
    cell.build()
    assert len(with_cards) == 1
    assert "harness.fixtures.environment_probe" in with_cards[0]
    assert without


def test_a_second_build_takes_the_first(cell: Cell) -> None:
    first, _ = cell.build()
    second, judgement = cell.build()
    assert (first.reused, second.reused) == (False, True)
    assert "install" not in second.seconds
    assert judgement.status is Status.PASS


def test_two_builders_at_once_share_one_environment(wheels: Any, context: Any, tmp_path: Path) -> None:
    wheel = wheels.add("verl", "0.9.1")
    cells = [Cell(context, tmp_path, wheel) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda cell: cell.build(), cells))
    assert sorted(found.reused for found, _judgement in built) == [False, True]
    assert {judgement.status for _found, judgement in built} == {Status.PASS}


def test_environments_are_listed_and_removed_unless_used_or_being_built(cell: Cell) -> None:
    found, _ = cell.build()
    [needed] = judge_environments(cell.ctx.cache, CleanupPolicy(environments={found.digest}))
    assert (needed.removable, needed.reason) == (False, "an outcome needs it")
    [stored] = judge_environments(cell.ctx.cache, CleanupPolicy(unused_after_s=0.0))
    assert (stored.name, stored.removable) == (found.digest, True)
    with filelock.FileLock(stored.paths[0].with_suffix(".lock")):
        assert remove_candidate(stored, None) == "it is being built"
    assert venv_environment.holds(found) == ""
    assert remove_candidate(stored, None) == ""
    assert judge_environments(cell.ctx.cache, CleanupPolicy()) == ()
    assert "gone" in venv_environment.holds(found)


def test_what_a_killed_build_left_is_thrown_away(cell: Cell) -> None:
    found, _ = cell.build()
    home = Path(found.prefix).parent
    (home / environment_files.FINISHED).unlink()
    (Path(found.site_packages) / "half-written.py").write_text("garbage")
    assert "gone" in venv_environment.holds(found)
    again, judgement = cell.build()
    assert again.reused is False
    assert judgement.status is Status.PASS
    assert not (Path(found.site_packages) / "half-written.py").exists()


def test_a_damaged_environment_is_built_again(cell: Cell, tmp_path: Path) -> None:
    cell.patch(tmp_path, {"verl/core.py": (ORIGINAL, b"ANSWER = 2\n")})
    found, _ = cell.build()
    target = Path(found.site_packages) / "verl/core.py"
    target.unlink()
    target.write_bytes(b"ANSWER = 3\n")
    _again, judgement = cell.build()
    assert judgement.status is Status.PASS
    assert target.read_bytes() == b"ANSWER = 2\n"


def test_a_file_of_the_index_that_is_not_the_locked_one_fails_the_cell(
    wheels: Any, context: Any, tmp_path: Path
) -> None:
    wheel = wheels.add("ray", "2.0")
    cell = Cell(context, tmp_path, wheel)
    wheels.add("ray", "2.0", files={"ray/evil.py": "import os\n"})
    found, judgement = cell.fail()
    assert judgement.status is Status.FAIL
    assert found.step == "install"
    assert "another digest than the locked one" in judgement.reasons[0]
    assert cell.evidence is Evidence.STATIC


def test_a_truncated_wheel_fails_the_cell_and_nothing_else(wheels: Any, context: Any, tmp_path: Path) -> None:
    wheel = wheels.add("ray", "2.0")
    wheel.write_bytes(wheel.read_bytes()[:200])
    found, judgement = Cell(context, tmp_path, wheel).fail()
    assert judgement.status is Status.FAIL
    assert found.step == "install"
    assert found.tail


def test_a_locked_package_that_has_gone_fails_the_cell(wheels: Any, context: Any, tmp_path: Path) -> None:
    wheel = wheels.add("ray", "2.0")
    cell = Cell(context, tmp_path, wheel)
    wheel.unlink()
    _found, judgement = cell.run()
    assert judgement.status is Status.FAIL


def test_patched_files_are_on_disk(cell: Cell, tmp_path: Path) -> None:
    cell.patch(
        tmp_path, {"verl/core.py": (ORIGINAL, b"ANSWER = 2\n"), "verl/new/__init__.py": (None, b"NEW = 1\n")}
    )
    found, judgement = cell.build()
    assert judgement.status is Status.PASS
    site = Path(found.site_packages)
    assert (site / "verl/core.py").read_bytes() == b"ANSWER = 2\n"
    assert (site / "verl/new/__init__.py").is_file()
    assert found.probe.files == found.patched


def test_no_file_of_an_environment_is_a_link_into_a_cache(cell: Cell) -> None:
    found, _ = cell.build()
    files = [path for path in Path(found.prefix).rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.stat().st_nlink for path in files} == {1}


def test_patches_are_part_of_what_an_environment_is(cell: Cell, tmp_path: Path) -> None:
    plain, _ = cell.build()
    cell.patch(tmp_path, {"verl/core.py": (ORIGINAL, b"ANSWER = 2\n")})
    patched, _ = cell.build()
    assert plain.prefix != patched.prefix
    assert (Path(plain.site_packages) / "verl/core.py").read_bytes() == ORIGINAL


@pytest.mark.parametrize(
    ("name", "pre", "said"),
    [
        ("verl/core.py", b"ANSWER = 0\n", "is not the file the patch was made for"),
        ("verl/gone.py", b"x", "is not in the installed package"),
        ("verl/core.py", None, "is in the installed package already"),
    ],
)
def test_a_patch_for_another_file_fails_the_cell_and_writes_nothing(
    cell: Cell, tmp_path: Path, name: str, pre: bytes | None, said: str
) -> None:
    cell.patch(tmp_path, {"verl/a_new.py": (None, b"x\n"), name: (pre, b"ANSWER = 2\n")})
    found, judgement = cell.fail()
    assert judgement.status is Status.FAIL
    assert found.step == "patch"
    assert said in judgement.reasons[0]
    assert not list(cell.ctx.cache.glob("cells/*/**/verl/a_new.py"))


def test_a_module_that_does_not_import_fails_the_cell(wheels: Any, context: Any, tmp_path: Path) -> None:
    broken = wheels.add("verl", "0.9.1", files={"verl/__init__.py": "import nothing_of_the_kind\n"})
    _found, judgement = Cell(context, tmp_path, broken).run()
    assert judgement.status is Status.FAIL
    assert "nothing_of_the_kind" in judgement.reasons[0]


def test_no_network_is_no_verdict_and_keeps_nothing_half_built(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(InfrastructureError) as caught:
        cell.build()
    assert "127.0.0.1:9" in str(caught.value)


@pytest.mark.parametrize("refusal", [401, 403, 407])
def test_a_wrong_password_of_the_index_is_no_verdict(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    with AuthenticatedIndex(tmp_path, {"me:right"}, refusal=refusal) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url("me:hunter2"))
        with pytest.raises(InfrastructureError, match=index.host) as caught:
            cell.build()
    assert "hunter2" not in str(caught.value)


def test_a_full_disk_is_no_verdict(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "error: failed to write\n  cause: No space left on device (os error 28)\n"
    monkeypatch.setattr(
        cell.ctx,
        "command",
        lambda argv, **_: Completed(argv=tuple(argv), returncode=2, tail=said, seconds=0.1),
    )
    with pytest.raises(InfrastructureError) as caught:
        cell.build()
    assert "No space left" in str(caught.value)


LACKING = {
    "python": ("platform", {"python": "2.6", "arch": platform.machine(), "host": True}, "no Python 2.6"),
    "machine": ("platform", {"python": PYTHON, "arch": "s390x", "host": False}, "is for s390x"),
    "engine": ("pins", {"from_source": [{"package": "vllm", "version": "1"}]}, "vllm"),
    "commits": (
        "pins",
        {"from_source": [{"package": "verl", "version": "1", "commit": "0" * 40}]},
        "verl 0000",
    ),
    "cann": ("device", {"kind": "npu"}, "no CANN toolkit"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_what_this_host_lacks_is_no_answer_about_the_cell(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "NPU_MATRIX_MIRRORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    facet, value, said = LACKING[kind]
    cell.ctx.facets[facet] = value
    found, judgement = cell.fail()
    assert judgement.status is Status.NOT_RUN
    assert said in judgement.reasons[0]
    assert judgement.remedies
    [check] = CHECKS
    assert not check.holds(found, outcome("environment")), "it is not tried again while nothing has changed"


def test_it_is_tried_again_when_the_host_has_what_it_lacked(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    cell.ctx.facets["device"] = {"kind": "npu"}
    found, _judgement = cell.fail()
    [check] = CHECKS
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    assert check.holds(found, outcome("environment"))
    older = replace(found, lacks=None)
    assert check.holds(older, outcome("environment")), "older versions did not store what was missing"


def test_an_installed_cann_whose_variables_are_not_set_is_named(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    script = tmp_path / "cann" / "set_env.sh"
    script.parent.mkdir()
    script.touch()
    monkeypatch.setattr(host_requirements, "cann_folders", lambda _environ, _ascend: [script.parent])
    cell.ctx.facets["device"] = {"kind": "npu"}
    _found, judgement = cell.fail()
    assert judgement.status is Status.NOT_RUN
    assert judgement.remedies == (f"Run `source {script}`, then run again.",)


def test_a_container_engine_needs_no_python_cann_or_clone_of_this_host(cell: Cell) -> None:
    cell.ctx.facets["platform"] = {"python": "2.6", "arch": "s390x", "host": False}
    cell.ctx.facets["device"] = {"kind": "npu", "soc": "Ascend910B3", "engine": "docker"}
    sources = [
        {"package": "verl", "version": "0.7.0", "commit": "0" * 40},
        {"package": "vllm", "version": "1"},
    ]
    cell.ctx.facets["pins"] = {"from_source": sources}
    spec = environment_spec.environment_spec(cell.ctx)
    assert spec.minor == "2.6"
    assert spec.expected.items() >= {("verl", "0.7.0"), ("vllm", "1")}
    cell.ctx.facets["pins"] = {"from_source": sources[:1]}
    assert environment_spec.environment_spec(cell.ctx).digest != spec.digest


@pytest.mark.parametrize(
    ("cann", "said"),
    [("8.5.0", ""), ("8.3.RC1", "CANN 8.3.RC1 is in use"), ("", "could not be read")],
    ids=["the same", "another", "unknown"],
)
def test_the_cann_in_use_is_that_of_the_cell(cell: Cell, cann: str, said: str) -> None:
    found, _judgement = cell.build()
    device = ProbedDevice(kind="npu", count=1, sum_of_ones=4.0, runtime=Runtime.CANN, cann=cann)
    on_npu = replace(
        found,
        requested_device=CellDevice(kind="npu", cann="8.5.0"),
        probe=replace(found.probe, device=device),
    )
    judgement = environment_judge.judge(on_npu, {})
    assert (judgement.status is Status.FAIL) is bool(said)
    assert said in judgement.reasons[0]


def test_the_version_of_a_package_from_a_repository_is_not_compared() -> None:
    found = {"vllm-ascend": "0.1.dev1+g1234567"}
    expected = {"vllm-ascend": "0.18.0"}
    assert environment_judge.package_reasons(expected, found, ())
    assert not environment_judge.package_reasons(expected, found, (), ("vllm-ascend",))
    assert environment_judge.package_reasons(expected, {}, (), ("vllm-ascend",)), "but it has to be there"


def test_a_commit_of_a_mirror_is_part_of_the_environment_and_found_again(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "mirrors" / "verl"
    (clone / "verl").mkdir(parents=True)
    (clone / "verl" / "__init__.py").write_text("ANSWER = 3\n")
    (clone / "setup.py").write_text("install_requires = []\n")
    source = {"package": "verl", "version": "0.7.0.dev0", "commit": commit_all(clone)}
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    cell.ctx.facets["pins"] = {"from_source": [source]}
    cell.lock.write_text("")

    found, judgement = cell.build()
    again, _judgement = cell.build()

    assert judgement.status is Status.PASS, judgement.reasons
    assert found.probe.packages["verl"] == "0.7.0.dev0"
    assert (found.reused, again.reused) == (False, True)


def test_a_cell_whose_patches_did_not_apply_is_not_built_without_them(cell: Cell) -> None:
    cell.ctx.facets["patches[verl]"] = [{"id": "fix"}]
    cell.ctx.inputs["patches"] = outcome("patches")
    found, judgement = cell.fail()
    assert (judgement.status, found.step) == (Status.FAIL, "patch")


def test_a_stale_compiled_file_beside_a_patched_one_fails_the_cell(cell: Cell, tmp_path: Path) -> None:
    cell.patch(tmp_path, {"verl/core.py": (ORIGINAL, b"ANSWER = 2\n")})
    found, judgement = cell.build()
    assert [one.state for one in found.probe.patched or ()] == ["patched"]
    stale = tuple(replace(one, state="stale-code") for one in found.probe.patched or ())
    changed = replace(found, probe=replace(found.probe, patched=stale))
    assert "stale-code" in environment_judge.judge(changed, {}).reasons[0]
    assert judgement.status is Status.PASS


def test_a_good_simulated_cell_passes() -> None:
    assert environment_judge.judge(GOOD, {}).status is Status.PASS


DEVICE = GOOD_PROBE.device


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"packages": {"torch": "2.12.0", "Ray": "2.0"}},
            "torch 2.12.0 is installed, but 2.13.0+cpu is locked",
        ),
        ({"packages": {**GOOD_PROBE.packages, "extra": "1"}}, "extra 1 is installed but not locked"),
        ({"files": {"verl/core.py": "bb"}}, "is not the patched file"),
        ({"files": {"verl/core.py": ""}}, "it is missing"),
        (
            {"modules": {**GOOD_PROBE.modules, "torch": ImportedModule(file="/usr/lib/torch/__init__.py")}},
            "outside the environment",
        ),
        (
            {"modules": {**GOOD_PROBE.modules, "torch": FailedImport(error="ImportError: libhccl.so")}},
            "libhccl.so",
        ),
        ({"modules": {"torch": GOOD_PROBE.modules["torch"]}}, "`import ray` was not tried"),
        ({"patched": None}, "which of them an import loads was not asked"),
        ({"patched": ()}, "which of them an import loads was not asked"),
        ({"device": replace(DEVICE, count=0)}, "needs 1 device(s) and sees 0"),
        ({"device": replace(DEVICE, sum_of_ones=3.0)}, "four ones on the device is 3.0"),
        ({"device": replace(DEVICE, error="RuntimeError: ACL 507033")}, "ACL 507033"),
        ({"device": replace(DEVICE, runtime=Runtime.CANN)}, "is real; the cell needs a simulated one"),
        ({"device": replace(DEVICE, runtime=Runtime.NONE)}, "no CANN runtime reports a device"),
    ],
)
def test_each_seeded_fault_turns_the_check_red(changes: dict[str, Any], said: str) -> None:
    judgement = environment_judge.judge(environment_built(probe=environment_probe(**changes)), {})
    assert judgement.status is Status.FAIL
    assert any(said in reason for reason in judgement.reasons), judgement.reasons


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        (Runtime.CANN, "2 packages have their locked versions, 1 files are patched."),
        (Runtime.SIMULATED, "The device is simulated; the cell needs a real one."),
        (Runtime.NONE, "The cell needs a real device, but no CANN runtime reports a device."),
    ],
)
def test_a_real_device_is_shown_by_its_runtime(runtime: Runtime, said: str) -> None:
    device = replace(DEVICE, runtime=runtime, simulated=runtime is Runtime.SIMULATED)
    built = environment_built(requested_device=CellDevice(kind="npu"), probe=environment_probe(device=device))
    assert environment_judge.judge(built, {}).reasons == (said,)


@pytest.mark.parametrize(
    ("device", "evidence"),
    [
        (ProbedDevice(kind="npu", runtime=Runtime.SIMULATED, simulated=True), Evidence.SIMULATED),
        (ProbedDevice(kind="npu", runtime=Runtime.CANN), Evidence.HARDWARE),
        (ProbedDevice(kind="npu", runtime=Runtime.CANN, available=False), Evidence.CPU),
        (ProbedDevice(kind="npu", runtime=Runtime.NONE), Evidence.CPU),
        (ProbedDevice(kind="npu"), Evidence.CPU),
    ],
)
def test_an_environment_without_a_sentinel_is_not_thereby_hardware(
    device: ProbedDevice, evidence: Evidence
) -> None:
    assert environment_evidence(environment_built(probe=environment_probe(device=device))) is evidence


def test_a_package_that_is_not_there_turns_the_check_red() -> None:
    built = environment_built(probe=environment_probe(packages={"torch": "2.13.0+cpu"}))
    assert environment_judge.judge(built, {}).reasons == ("ray 2.0 is locked but not installed.",)


@pytest.mark.parametrize("known", [False, True], ids=["of hardware", "in the lock already"])
def test_what_a_package_from_a_commit_requires_is_installed_too(
    context: Any, wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    wheels.add("numpy", "1.26.4")
    wheels.add("omegaconf", "2.3.0")
    wheels.add("hydra-core", "1.3.2", "omegaconf>=2.2", "numpy")
    cell = Cell(context, tmp_path, wheels.add("numpy", "2.2.6"))
    repository = tmp_path / "mirrors" / "verl"
    repository.mkdir(parents=True)
    (repository / "setup.py").write_text(
        "setup(packages=['verl'], install_requires=['hydra-core', 'numpy<2'])"
    )
    commit = commit_all(repository)
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    cell.ctx.facets["pins"] = {"from_source": [{"package": "verl", "version": "0.7.0", "commit": commit}]}
    if known:
        measured = ResolveMeasured(resolved=True, source_requirements={"verl": ("numpy",)})
        cell.ctx.inputs = {"resolve": outcome("resolve", **RESOLVE_FORMAT.write(measured))}
    # The lock may have what only packages need that are not installed on an NPU.
    with cell.lock.open("a") as file:
        file.write("omegaconf==2.2.0 --hash=sha256:aa\n    # via cupy-cuda12x\n")
    monkeypatch.setattr(
        environment_spec,
        "omitted_packages",
        lambda packages, _kind: {one.name: "x" for one in packages if one.via == ("cupy-cuda12x",)},
    )
    spec = environment_spec.environment_spec(cell.ctx)
    added = {} if known else {"hydra-core": "1.3.2", "omegaconf": "2.3.0"}
    assert spec.expected == {"numpy": "2.2.6", "verl": "0.7.0", **added}
    assert set(spec.omitted) == ({"omegaconf"} if known else set())
    assert [one.via for one in spec.added if one.name == "omegaconf"] == [("hydra-core", "verl")] * (
        not known
    )

    wheels.add("hydra-core", "1.4.0")
    assert environment_spec.environment_spec(cell.ctx).digest == spec.digest


def test_requirements_of_a_commit_that_no_release_fits_end_the_build(
    context: Any, wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(context, tmp_path, wheels.add("numpy", "2.2.6"))
    repository = tmp_path / "mirrors" / "verl"
    repository.mkdir(parents=True)
    (repository / "setup.py").write_text("setup(packages=['verl'], install_requires=['hydra-core>=9'])")
    commit = commit_all(repository)
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    cell.ctx.facets["pins"] = {"from_source": [{"package": "verl", "version": "0.7.0", "commit": commit}]}
    found, judgement = cell.fail()
    assert found.step == "resolve"
    assert judgement.status is Status.FAIL
    assert "hydra-core" in found.tail
