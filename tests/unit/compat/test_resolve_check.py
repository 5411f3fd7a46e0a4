from __future__ import annotations

import platform
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from authenticated_index import AuthenticatedIndex
from git_command import commit_all
from wheelhouse import Wheels, record_line, rewritten

from harness.compat.resolve import resolve_check
from harness.compat.resolve.resolve_problems import remedy
from harness.compat.resolve.resolve_request import ResolveRequest
from harness.errors import InfrastructureError, InputError
from harness.matrix.model.environment_facets import PinsFacet
from harness.outcome import Status
from harness.sources.packages.lockfile import parse_lock
from harness.sources.packages.release_fetcher import TooLargeError
from harness.sources.packages.resolve_measurements import (
    RESOLVE_FORMAT,
    RequirementOverride,
    ResolveMeasured,
)
from harness.sources.packages.uv_errors import UvFailureKind, parse_uv_failure

HERE = {
    "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    "arch": platform.machine(),
    "host": True,
}
ASCEND = {"python": "3.11", "arch": "aarch64", "host": False}


def pins(*requirements: str, **more: Any) -> dict[str, Any]:
    return {
        "requirements": list(requirements),
        "overrides": [],
        "from_source": [],
        "index": {},
        **more,
    }


def override(of: str, requirement: str) -> dict[str, str]:
    """An override of the facet `pins`."""
    return {
        "of": of,
        "requirement": requirement,
        "reason": "It is built without a device",
        "source": "its setup.py",
    }


def measure(
    context: Any, chosen: dict[str, Any], target: dict[str, Any] = HERE
) -> tuple[ResolveMeasured, Any, Any]:
    ctx = context({"pins": chosen, "platform": target})
    measured = resolve_check.run(ctx)
    assert RESOLVE_FORMAT.read(RESOLVE_FORMAT.write(measured.measurements)) == measured.measurements
    return measured.measurements, resolve_check.judge(measured.measurements, {}), (ctx, measured)


def test_compatible_pins_give_a_lock_with_digests(wheels: Any, context: Any) -> None:
    wheels.add("engine", "1.0", "base>=2")
    wheels.add("base", "2.0")
    found, judgement, (ctx, measured) = measure(context, pins("engine==1.0"))
    assert judgement.status is Status.PASS
    lock = parse_lock((ctx.workdir / measured.artifacts["lock.txt"]).read_text())
    assert [(p.name, p.version) for p in lock] == [("base", "2.0"), ("engine", "1.0")]
    assert all(p.hashes[0].startswith("sha256:") for p in lock)
    assert found.packages[0].via == ("engine",)


def test_a_pass_names_the_archives_that_could_not_be_read(
    wheels: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_ranges(_self: object, name: str, _version: str) -> None:
        raise TooLargeError(f"the sources of {name} could not be fetched", why="no range requests")

    wheels.add("engine", "1.0")
    monkeypatch.setattr(resolve_check.ReleaseFetcher, "sources", without_ranges)
    found, judgement, _ = measure(context, pins("engine==1.0"))
    assert judgement.status is Status.PASS
    assert found.read == ()
    [reason] = judgement.reasons
    assert reason.startswith("Not verified: the archive of engine 1.0 could not be read (the sources of")


CODE = {"engine/core.py": "X = 1\n", "engine/data.bin": "data"}
LINE = record_line("engine/core.py", b"X = 1\n")
METADATA = "engine-1.0.dist-info/METADATA"


@pytest.mark.parametrize(
    ("change", "added", "said"),
    [
        (lambda text: text.replace(LINE, record_line("engine/core.py", b"X = 2\n")), {}, "is not the file"),
        (lambda text: text.replace(LINE, f"{LINE}0"), {}, "is not the file"),
        (lambda text: text.replace(f"{LINE}\n", ""), {}, "'engine/core.py' has no digest"),
        (
            lambda text: text.replace(LINE, "engine/core.py,md5=1B2M2Y8AsgTpgAmY7PhCfg,6"),
            {},
            "is not the file",
        ),
        (lambda text: text.replace(LINE, "engine/core.py,shake_128=abcd,6"), {}, "is not the file"),
        (lambda text: text, {"sitecustomize.py": "X = 1"}, "'sitecustomize.py' has no digest"),
        (lambda text: text, {"engine/kernel.so": "X"}, "'engine/kernel.so' has no digest"),
        (lambda text: text + "engine/gone.py,sha256=A,6\n", {}, "'engine/gone.py', which its RECORD lists"),
        (lambda text: text, {"engine//data.bin": "data"}, "several files with one name"),
    ],
)
@pytest.mark.parametrize("overridden", [False, True])
def test_a_wheel_that_contradicts_its_record_fails(
    wheels: Any,
    context: Any,
    change: Callable[[str], str],
    added: dict[str, str],
    said: str,
    overridden: bool,
) -> None:
    wheel = wheels.add("engine", "1.0", "base>=2", files=CODE)
    wheels.add("base", "1.0")
    wheels.add("base", "2.0")
    rewritten(wheel, change, added)
    overrides = [override("engine", "base==1.0")] if overridden else []
    found, judgement, _ = measure(context, pins("engine==1.0", overrides=overrides))
    assert judgement.status is Status.FAIL
    assert judgement.reasons[0].startswith("The wheel of engine 1.0 is not what it says: ")
    assert said in judgement.reasons[0]
    assert judgement.remedies == (resolve_check.UNUSABLE_REMEDY,)
    # It was read: the outcome is not reused when the index serves another archive.
    assert found.read == ("engine",)


def test_a_damaged_wheel_fails(wheels: Any, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_self: object, _name: str, _version: str) -> None:
        raise InputError("this wheel cannot be read", why="Bad CRC-32")

    wheels.add("engine", "1.0")
    monkeypatch.setattr(resolve_check.ReleaseFetcher, "sources", damaged)
    _found, judgement, _ = measure(context, pins("engine==1.0"))
    assert judgement.status is Status.FAIL
    assert "Bad CRC-32" in judgement.reasons[0]


def test_a_wheel_whose_metadata_was_edited_after_the_build_passes(wheels: Any, context: Any) -> None:
    """As torch_npu 2.5.1.post1 and 2.6.0 on the package index: their README has other links."""
    wheel = wheels.add("engine", "1.0")
    with zipfile.ZipFile(wheel) as archive:
        line = record_line(METADATA, archive.read(METADATA))
    rewritten(wheel, lambda text: text.replace(line, record_line(METADATA, b"the former one")), {})
    _found, judgement, _ = measure(context, pins("engine==1.0"))
    assert judgement.status is Status.PASS
    [reason] = judgement.reasons
    assert "METADATA in the wheel of engine 1.0 was edited" in reason
    rewritten(wheel, lambda text: text.replace(record_line(METADATA, b"the former one"), line), {})
    assert measure(context, pins("engine==1.0"))[1].reasons == ()


def test_remedies_for_invalid_requirements_and_unknown_errors() -> None:
    request = ResolveRequest.from_facets(PinsFacet(requirements=("engine==1.0",)), HERE)
    written = parse_uv_failure("error: Couldn't parse requirement in `requirements.in` at position 0")
    assert remedy(written, request) == "Correct the requirement in matrix.yaml."
    assert remedy(parse_uv_failure("error: the dog ate it"), request) == ""


def test_a_conflict_names_the_packages_and_their_requirements(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0", "torch==2.8.0")
    wheels.add("vllm-ascend", "0.11.0", "torch==2.7.1")
    wheels.add("torch", "2.8.0")
    wheels.add("torch", "2.7.1")
    found, judgement, (_ctx, measured) = measure(context, pins("vllm==0.11.0", "vllm-ascend==0.11.0"))
    assert judgement.status is Status.FAIL
    assert "lock.txt" not in measured.artifacts
    [problem] = found.problems
    assert problem.kind is UvFailureKind.CONFLICT
    assert problem.contested == ("torch",)
    assert set(problem.blamed[:2]) == {"vllm", "vllm-ascend"}
    assert "vllm requires torch==2.8.0" in judgement.reasons[0]
    assert "VLLM_TARGET_DEVICE=empty" in judgement.remedies[0]
    assert "an entry for torch under `overrides`" in judgement.remedies[0]
    assert len(problem.chain) == 2


def test_an_override_resolves_a_conflict(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0", "torch==2.8.0")
    wheels.add("vllm-ascend", "0.11.0", "torch==2.7.1")
    wheels.add("torch", "2.7.1")
    chosen = pins("vllm==0.11.0", "vllm-ascend==0.11.0", overrides=[override("vllm", "torch==2.7.1")])
    found, judgement, _ = measure(context, chosen)
    assert judgement.status is Status.PASS
    assert found.overrides == (RequirementOverride(**override("vllm", "torch==2.7.1")),)
    [hidden] = found.hidden
    assert (hidden.of, hidden.version, hidden.requirement) == ("vllm", "0.11.0", "torch==2.8.0")
    [reason] = judgement.reasons
    assert reason.startswith("Override of the requirement torch==2.8.0 of vllm 0.11.0: the lock has 2.7.1.")
    assert reason.endswith("It is built without a device (its setup.py).")


def test_what_an_override_hides_has_the_reason_that_was_written_for_this_package(
    wheels: Any, context: Any
) -> None:
    wheels.add("vllm", "0.11.0", "torch==2.8.0")
    wheels.add("verl", "0.7.0", "torch>=2")
    wheels.add("torch", "2.7.1")
    overrides = [override("vllm", "torch"), {**override("verl", "torch"), "reason": "Of another package"}]
    stack = ("torch==2.7.1", "vllm==0.11.0", "verl==0.7.0")
    found, _judgement, _ = measure(context, pins(*stack, overrides=overrides))
    assert [(one.of, one.reason) for one in found.hidden] == [("vllm", "It is built without a device")]


def test_overrides_apply_in_the_checkout_of_another_project(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0", "torch==2.8.0")
    wheels.add("torch", "2.7.1")
    project = '[project]\nname = "plugin"\nversion = "1"\n[tool.uv]\nconstraint-dependencies = ["torch<2"]\n'
    chosen = pins("vllm==0.11.0", "torch==2.7.1", overrides=[override("vllm", "torch")])
    ctx = context({"pins": chosen, "platform": HERE})
    ctx.workdir.parent.joinpath("pyproject.toml").write_text(project)
    measured = resolve_check.run(ctx).measurements
    assert resolve_check.judge(measured, {}).status is Status.PASS
    assert [one.requirement for one in measured.hidden] == ["torch==2.8.0"]


def test_contradicting_requirements_yield_to_the_package_that_is_installed_later(
    wheels: Any, context: Any
) -> None:
    wheels.add("vllm", "0.13.0", "xgrammar==0.1.27", "fastapi>=0.115", "ray==2.40.0")
    wheels.add("vllm-ascend", "0.13.0", "xgrammar>=0.1.30", "fastapi<0.124")
    wheels.add("verl", "0.7.0", "ray>=2.41")
    for name, versions in {
        "xgrammar": ("0.1.27", "0.1.33"),
        "fastapi": ("0.120.0", "0.130.0"),
        "ray": ("2.40.0", "2.41.0"),
    }.items():
        for version in versions:
            wheels.add(name, version)
    later = {**override("vllm", ""), "yields_to": "vllm-ascend"}
    found, judgement, _ = measure(context, pins("vllm==0.13.0", "vllm-ascend==0.13.0", overrides=[later]))
    assert judgement.status is Status.PASS
    assert [one.requirement for one in found.hidden] == ["xgrammar==0.1.27"]
    locked = {one.name: one.version for one in found.packages}
    assert (locked["xgrammar"], locked["fastapi"]) == ("0.1.33", "0.120.0")
    assert [one.requirement for one in found.overrides] == ["xgrammar"]

    stack = ("vllm==0.13.0", "vllm-ascend==0.13.0", "verl==0.7.0")
    _found, judgement, _ = measure(context, pins(*stack, overrides=[later]))
    assert judgement.status is Status.FAIL, "it was not written for verl"
    assert "ray" in judgement.reasons[0]


def test_an_override_hides_no_requirement_of_another_package(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0", "torch==2.8.0")
    wheels.add("vllm-ascend", "0.11.0rc1", "torch==2.7.1", "torch-npu==2.7.1")
    for version in ("2.7.1", "2.8.0"):
        wheels.add("torch", version)
        wheels.add("torch-npu", version, f"torch=={version}")
    overrides = [override("vllm", "torch")]
    stack = ("vllm==0.11.0", "vllm-ascend==0.11.0rc1")
    found, judgement, _ = measure(
        context, pins("torch==2.8.0", "torch-npu==2.8.0", *stack, overrides=overrides)
    )
    assert judgement.status is Status.FAIL
    assert not found.resolved
    assert any("vllm-ascend" in reason and "requires torch" in reason for reason in judgement.reasons)

    found, judgement, _ = measure(
        context, pins("torch==2.7.1", "torch-npu==2.7.1", *stack, overrides=overrides)
    )
    assert judgement.status is Status.PASS
    assert [one.requirement for one in found.hidden] == ["torch==2.8.0"]


def test_overrides_of_two_packages_hide_only_what_each_was_written_for(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0", "torch==2.8.0", "numpy<2")
    wheels.add("verl", "0.7.0", "torch==2.8.0", "numpy<2")
    for package, versions in {"torch": ("2.7.1", "2.8.0"), "numpy": ("1.26.4", "2.2.0")}.items():
        for version in versions:
            wheels.add(package, version)
    overrides = [override("vllm", "torch"), override("verl", "numpy")]

    def resolved(*versions: str) -> tuple[ResolveMeasured, Any]:
        chosen = pins("vllm==0.11.0", "verl==0.7.0", *versions, overrides=overrides)
        return measure(context, chosen)[:2]

    _found, judgement = resolved("torch==2.7.1", "numpy==1.26.4")
    assert judgement.status is Status.FAIL
    assert "verl requires torch==2.8.0" in judgement.reasons[0]
    _found, judgement = resolved("torch==2.8.0", "numpy==2.2.0")
    assert judgement.status is Status.FAIL
    assert "vllm requires numpy" in judgement.reasons[0]
    found, judgement = resolved("torch==2.8.0", "numpy==1.26.4")
    assert judgement.status is Status.PASS
    assert found.hidden == ()

    overrides = [{**override(of, "torch"), "reason": f"of {of}"} for of in ("vllm", "verl")]
    found, _judgement = resolved("torch==2.7.1")
    assert {one.of: one.reason for one in found.hidden} == {"vllm": "of vllm", "verl": "of verl"}


def test_an_override_without_a_version_lets_other_packages_determine_it(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.8.4", "torch==2.6.0", "torchvision==0.21.0")
    for torch, vision in (("2.5.1", "0.20.1"), ("2.6.0", "0.21.0")):
        wheels.add("torch", torch)
        wheels.add("torchvision", vision, f"torch=={torch}")
    overrides = [override("vllm", "torch"), override("vllm", "torchvision")]
    found, _judgement, _ = measure(context, pins("torch==2.5.1", "vllm==0.8.4", overrides=overrides))
    assert {package.name: package.version for package in found.packages}["torchvision"] == "0.20.1"
    assert [(one.requirement, one.locked) for one in found.hidden] == [
        ("torch==2.6.0", "2.5.1"),
        ("torchvision==0.21.0", "0.20.1"),
    ]


def test_an_override_that_hides_nothing_is_not_mentioned(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0", "torch>=2.7", 'xformers==1; platform_machine == "sparc"')
    wheels.add("torch", "2.7.1")
    overrides = [override("vllm", "torch"), override("vllm", "xformers"), override("verl", "torch")]
    found, judgement, _ = measure(context, pins("torch==2.7.1", "vllm==0.11.0", overrides=overrides))
    assert judgement.status is Status.PASS
    assert found.hidden == ()
    assert judgement.reasons == ()


def test_all_missing_packages_are_reported_together(wheels: Any, context: Any) -> None:
    wheels.add("vllm-ascend", "0.23.0", "triton-ascend==3.2.2")
    wheels.add("triton-ascend", "3.2.0")
    found, judgement, _ = measure(
        context, pins("vllm-ascend==0.23.0", "torch-npu==2.7.1.post1", "nowhere==1"), ASCEND
    )
    assert judgement.status is Status.FAIL
    assert {(p.kind.value, p.subject) for p in found.problems} == {
        ("missing-version", "triton-ascend==3.2.2"),
        ("unknown-package", "torch-npu"),
        ("unknown-package", "nowhere"),
    }
    assert any("required by vllm-ascend" in reason for reason in judgement.reasons)


def test_a_version_that_may_be_only_a_tag_says_how_to_write_it(wheels: Any, context: Any) -> None:
    wheels.add("vllm", "0.11.0")
    wheels.add("engine", "1.0", "base==3")
    wheels.add("base", "2.0")
    for stack in (("vllm==0.11.0rc3",), ("nowhere==0.11.0rc3",), ("vllm-ascend==0.11.0rc3",)):
        [told] = measure(context, pins(*stack))[1].remedies
        assert "only a tag in git" in told
        assert "`0.11.0rc3@v0.11.0rc3`" in told
    for stack in (("engine==1.0",), ("torch==2.7.1+cpu",)):
        [told] = measure(context, pins(*stack))[1].remedies
        assert "only a tag" not in told, "no value of an axis can name a tag of it"


def test_a_wheel_for_another_platform_differs_from_a_missing_release(wheels: Any, context: Any) -> None:
    wheels.add("triton-ascend", "3.2.0", tag="cp311-cp311-manylinux_2_28_aarch64")
    assert measure(context, pins("triton-ascend==3.2.0"), ASCEND)[1].status is Status.PASS
    other_python, judgement, _ = measure(context, pins("triton-ascend==3.2.0"), {**ASCEND, "python": "3.12"})
    assert other_python.problems[0].kind is UvFailureKind.WRONG_TARGET
    assert "cp311" in judgement.remedies[0]
    other_machine, _, _ = measure(context, pins("triton-ascend==3.2.0"), {**ASCEND, "arch": "x86_64"})
    assert other_machine.problems[0].kind in (UvFailureKind.WRONG_TARGET, UvFailureKind.NO_WHEEL)


def test_packages_built_from_source_are_not_resolved(wheels: Any, context: Any) -> None:
    wheels.add("base", "2.0")
    source = [{"package": "verl", "version": "0.6.1", "commit": "d62da495", "repository": "r"}]
    found, judgement, _ = measure(context, pins("base==2.0", "verl==0.6.1", from_source=source))
    assert judgement.status is Status.PASS
    assert [package.name for package in found.packages] == ["base"]
    assert "verl is built from source at d62da495" in judgement.reasons[0]


def test_an_unreachable_index_is_an_infrastructure_error(
    wheels: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(InfrastructureError) as caught:
        measure(context, pins("base==2.0"))
    assert "127.0.0.1:9/simple/base" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.fixture(params=[401, 403, 407])
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AuthenticatedIndex]:
    """An index that has base 2.0 and requires a password."""
    served = Wheels(tmp_path / "refusing")
    served.add("base", "2.0")
    with AuthenticatedIndex(served.folder, {"me:right"}, refusal=request.param) as made:
        yield made


def test_a_wrong_password_of_an_index_is_not_an_unknown_package(
    refusing: AuthenticatedIndex, wheels: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", refusing.url("me:hunter2"))
    with pytest.raises(InfrastructureError) as caught:
        measure(context, pins("base==2.0"))
    text = str(caught.value)
    assert f"{refusing.host}/main/simple" in text
    assert ("proxy" if refusing.refusal == 407 else "credentials") in text
    assert "hunter2" not in text

    monkeypatch.setenv("PIP_INDEX_URL", refusing.url("me:right"))
    assert measure(context, pins("base==2.0"))[1].status is Status.PASS
    judgement = measure(context, pins("base==2.1"))[1]
    assert judgement.status is Status.FAIL, "every index answered"


def test_another_index_with_an_older_release_does_not_hide_a_wrong_password(
    refusing: AuthenticatedIndex, wheels: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.add("base", "1.0")
    wheels.add("engine", "1.0", "base>=2")
    monkeypatch.delenv("PIP_NO_INDEX")
    with AuthenticatedIndex(wheels.folder, {""}) as older:
        monkeypatch.setenv("PIP_INDEX_URL", older.url())
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", refusing.url("me:hunter2"))
        for stack in (("base==2.0",), ("engine==1.0", "base")):
            with pytest.raises(InfrastructureError, match=refusing.host):
                measure(context, pins(*stack))


def test_a_vendor_index_that_refuses_access_decides_nothing(
    refusing: AuthenticatedIndex, wheels: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "index"
    empty.mkdir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", empty.as_uri())
    found, judgement, _ = measure(context, pins("base==2.0", index={"base": [refusing.url()]}))
    assert found.unreachable == (refusing.url(),)
    assert judgement.status is Status.NOT_RUN


def test_an_unreachable_vendor_index_gives_not_run(
    wheels: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.add("base", "2.0")
    empty = tmp_path / "index"
    empty.mkdir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{empty}")
    monkeypatch.setenv("PIP_RETRIES", "0")
    vendor = {"triton-ascend": ["http://127.0.0.1:9/simple"]}
    chosen = pins("base==2.0", "triton-ascend==3.2.2", index=vendor)
    found, judgement, _ = measure(context, chosen)
    assert found.unreachable == ("http://127.0.0.1:9/simple",)
    assert judgement.status is Status.NOT_RUN
    assert any("--fresh" in remedy and "127.0.0.1:9" in remedy for remedy in judgement.remedies)
    assert "127.0.0.1:9" in judgement.reasons[0]

    for stack in (("base==2.1", "triton-ascend==3.2.2"), ("triton-ascend==3.2.2", "base==2.1")):
        other, judgement, _ = measure(context, pins(*stack, index=vendor))
        assert judgement.status is Status.FAIL, "no index may have this release of base"
        assert sorted(problem.undecided for problem in other.problems) == [False, True]
        assert judgement.reasons[0].startswith("base==2.1"), "what is certain comes first"

    found, judgement, _ = measure(context, pins("base==2.0", index=vendor))
    assert judgement.status is Status.PASS
    assert found.indexes == (), "an index is searched only for what the user's own indexes lack"


def test_an_additional_index_is_searched_for_a_package_that_another_one_requires(
    wheels: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.add("vllm-ascend", "0.20.2rc1", "triton-ascend==3.2.1")
    wheels.add("triton-ascend", "3.2.0")
    vendor = Wheels(tmp_path / "vendor")
    vendor.add("triton-ascend", "3.2.1")
    [file] = vendor.folder.glob("*.whl")
    page = tmp_path / "simple" / "triton-ascend"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<a href="{file.as_uri()}">{file.name}</a>')
    empty = tmp_path / "index"
    empty.mkdir()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", empty.as_uri())
    url = page.parent.as_uri()
    found, judgement, _ = measure(
        context, pins("vllm-ascend==0.20.2rc1", index={"triton-ascend": [url], "torch-npu": ["file:///no"]})
    )
    assert judgement.status is Status.PASS
    assert found.indexes == (url,)
    assert {one.name: one.version for one in found.packages}["triton-ascend"] == "3.2.1"


def test_an_invalid_requirement_is_an_input_error(wheels: Any, context: Any) -> None:
    with pytest.raises(InputError):
        measure(context, pins("torch = 2.7"))


def test_requirements_of_a_commit_are_locked_once_a_mirror_has_it(
    wheels: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.add("torch", "2.13.0")
    wheels.add("ray", "2.50.0")
    clone = tmp_path / "mirrors" / "verl"
    clone.mkdir(parents=True)
    (clone / "setup.py").write_text('install_requires = ["ray>=2", "torch<2.13"]\n')
    source = {"package": "verl", "version": "0.7.0.dev0", "commit": commit_all(clone), "repository": "r"}
    chosen = pins("torch==2.13.0", from_source=[source], overrides=[override("verl", "torch")])

    monkeypatch.delenv("NPU_MATRIX_MIRRORS", raising=False)
    without, _judgement, _ = measure(context, chosen)
    assert [package.name for package in without.packages] == ["torch"]
    assert resolve_check.newly_available_sources(without, ()) == ""
    assert "a mirror now has the commit of verl" in resolve_check.newly_available_sources(
        without, [tmp_path / "mirrors"]
    )

    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    found, judgement, _ = measure(context, chosen)
    assert [package.name for package in found.packages] == ["ray", "torch"]
    assert any("its requirements, not the package itself" in reason for reason in judgement.reasons)
    assert [(one.of, one.requirement) for one in found.hidden] == [("verl", "torch<2.13")]
    assert any("Override of the requirement torch<2.13 of verl" in reason for reason in judgement.reasons)
    assert resolve_check.newly_available_sources(found, [tmp_path / "mirrors"]) == ""

    elsewhere, _judgement, _ = measure(context, chosen, {**HERE, "host": False})
    assert [package.name for package in elsewhere.packages] == ["torch"]
