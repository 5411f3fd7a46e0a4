"""The check `api`, and API changes between two versions, with small wheels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from source_zip import write_zip

from harness.cli.app import main
from harness.compat.api.api_analysis import ApiRequest
from harness.compat.api.api_check import judge, pinned_versions, run
from harness.compat.api.api_diff import api_changes
from harness.compat.api.api_measurements import API_FORMAT, ApiMeasured, CheckedPair
from harness.compat.checks import CHECKS
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_process import analyse
from harness.compat.uses.package_pairs import Package
from harness.digest import digest_bytes
from harness.errors import InfrastructureError, InputError
from harness.matrix.model.environment_facets import PinnedOverride, PinsFacet
from harness.outcome import Status

PLATFORM = {"python": "3.11", "arch": "x86_64", "host": True}
MODEL = "from transformers import AutoModel\n"
ENTRY = "from verl.utils import model\n"


@pytest.fixture
def stack(wheels: Any) -> Any:
    wheels.add("transformers", "4.57.6", files={"transformers/auto.py": "class AutoModel: ...\n"} | old())
    wheels.add("transformers", "5.5.4", files={"transformers/auto.py": "class Other: ...\n"} | new())
    wheels.add("tensordict", "0.10.0")
    return wheels


def old() -> dict[str, str]:
    return {"transformers/__init__.py": "from .auto import AutoModel\ndef load(name, *, dtype=None): ...\n"}


def new() -> dict[str, str]:
    return {"transformers/__init__.py": "from .auto import Other\ndef load(name, *, kind): ...\n"}


def verl(stack: Any, **files: str) -> None:
    content = {
        "verl/trainer/main_ppo.py": ENTRY,
        "verl/utils/__init__.py": "",
        "verl/utils/model.py": "x = 1\n",
    }
    stack.add(
        "verl",
        "1.0",
        "tensordict<=0.10.0",
        files=content | {name.replace("__", "/") + ".py": text for name, text in files.items()},
    )


def run_check(
    context: Any,
    transformers: str,
    patches: Sequence[dict[str, str]] = (),
    root: Path = Path(),
    platform: dict[str, Any] = PLATFORM,
    **tree: str,
) -> Any:
    pins = {"requirements": [f"transformers=={transformers}"], "overrides": []}
    facet = {"package": "verl", "kind": "release", "version": "1.0", **tree}
    task = context(
        {
            "pins": pins,
            "platform": platform,
            "verl_tree": facet,
            "vllm_ascend": {"version": ""},
            "patches[verl]": list(patches),
            "patches[vllm_ascend]": [],
            "paired": {},
        },
    )
    task.root = root if patches else task.root
    measured = run(task)
    assert API_FORMAT.read(API_FORMAT.write(measured.measurements)) == measured.measurements
    return measured.measurements, judge(measured.measurements, {})


def test_a_missing_name_that_every_training_imports_fails_the_cell(stack: Any, context: Any) -> None:
    verl(stack, verl__utils__model=MODEL)
    _, good = run_check(context, "4.57.6")
    assert good.status is Status.PASS
    _, bad = run_check(context, "5.5.4")
    assert bad.status is Status.FAIL
    assert bad.reasons[0] == (
        "verl/utils/model.py:1: transformers has no AutoModel (transformers 5.5.4, 4.57.6 had it)."
    )
    assert bad.remedies == ("transformers 4.57.6 is the last release with transformers.AutoModel.",)


def test_a_consumer_without_any_use_does_not_pass(stack: Any, context: Any) -> None:
    stack.add("verl", "1.0", "tensordict<=0.10.0", files={"verl/__init__.py": ""})
    found, judgement = run_check(context, "4.57.6")
    assert found.pairs
    assert judgement.status is Status.INCONCLUSIVE
    assert "No use of another package was found in verl" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"verl__utils__model": f"def f():\n    {MODEL}"}, "Breaks only when it is called"),
        ({"verl__extra": MODEL}, "Breaks only when it is called"),
        (
            {"verl__utils__model": f"try:\n    {MODEL}except ImportError:\n    pass\n"},
            "Checked: verl 1.0 with",
        ),
    ],
)
def test_a_missing_name_that_no_import_needs_is_reported_and_passes(
    stack: Any, context: Any, files: dict[str, str], message: str
) -> None:
    verl(stack, **files)
    _, judgement = run_check(context, "5.5.4")
    assert judgement.status is Status.PASS
    assert any(message in reason for reason in judgement.reasons)


def patch_of(root: Path, new: str) -> list[dict[str, str]]:
    """A patch that appends a line to verl/extra.py, a module that no training needs."""
    text = f"--- a/verl/extra.py\n+++ b/verl/extra.py\n@@ -1 +1,2 @@\n {MODEL}+{new}\n"
    (root / "0001-extra.patch").write_text(text)
    digest = digest_bytes(text.encode())
    return [{"id": "verl/0001-extra", "file": "0001-extra.patch", "digest": digest}]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("from transformers import load", Status.PASS),
        ("from transformers import Lost", Status.FAIL),
        ("from transformers import AutoModel as Again", Status.PASS),
    ],
)
def test_a_use_that_our_patch_adds_and_that_breaks_fails_the_cell_wherever_it_is(
    stack: Any, context: Any, tmp_path: Path, line: str, status: Status
) -> None:
    verl(stack, verl__extra=MODEL)
    _, judgement = run_check(context, "5.5.4", patch_of(tmp_path, line), tmp_path)
    assert judgement.status is status
    if status is Status.FAIL:
        assert judgement.reasons[0].startswith(
            "verl/extra.py:2: transformers has no Lost (transformers 5.5.4;"
        )
        assert "our patch verl/0001-extra adds this use" in judgement.reasons[0]
        assert judgement.remedies[0].startswith("Change the patch verl/0001-extra, or choose a version")


@pytest.mark.parametrize(
    ("python", "line", "reason"),
    [
        ("3.11", "from verl.utils import model", ""),
        (
            "3.11",
            "from verl.utils import lost",
            "verl/extra.py:2: verl.utils has no lost (verl 1.0; our patch",
        ),
        ("3.11", "import verl.lost", "verl/extra.py:2: verl has no lost (verl 1.0; our patch"),
        ("3.11", "def f(:", "verl/extra.py:2: this is no Python: invalid syntax (verl 1.0; our patch"),
        # The cell's Python may have other syntax than this one.
        ("3.99", "def f(:", ""),
    ],
)
def test_what_our_patch_breaks_within_the_package_fails_the_cell(
    stack: Any, context: Any, tmp_path: Path, python: str, line: str, reason: str
) -> None:
    verl(stack, verl__extra=MODEL)
    platform = {**PLATFORM, "python": python}
    measured, judgement = run_check(context, "4.57.6", patch_of(tmp_path, line), tmp_path, platform=platform)
    assert judgement.status is (Status.FAIL if reason else Status.PASS)
    assert reason in judgement.reasons[0]
    assert measured.unparsed == (("verl/extra.py",) if python == "3.99" else ())
    if reason:
        assert judgement.remedies[0].startswith("Change the patch verl/0001-extra: it breaks verl")
    else:
        assert "verl 1.0: its own names with our patches" in judgement.reasons[0]


@pytest.mark.parametrize(("name", "status"), [("Old", Status.FAIL), ("New", Status.PASS)])
def test_a_stack_without_verl_is_checked_for_what_vllm_ascend_uses(
    wheels: Any, context: Any, name: str, status: Status
) -> None:
    wheels.add("vllm", "0.14.1", files={"vllm/attention.py": "class New: ...\n"})
    wheels.add(
        "vllm-ascend", "0.13.0", files={"vllm_ascend/platform.py": f"from vllm.attention import {name}\n"}
    )
    facets = {
        "pins": {"requirements": ["vllm==0.14.1", "vllm-ascend==0.13.0"], "overrides": []},
        "platform": PLATFORM,
        "verl_tree": {"version": ""},
        "vllm_ascend": {"package": "vllm-ascend", "kind": "release", "version": "0.13.0"},
        "patches[verl]": [],
        "patches[vllm_ascend]": [],
        "paired": {},
    }
    [check] = [check for check in CHECKS if check.name == "api"]
    assert check.applies(facets) == ""
    assert judge(run(context(facets)).measurements, {}).status is status
    assert check.applies({**facets, "vllm_ascend": {"version": ""}})


def test_a_range_selects_the_newest_release_in_it(stack: Any, context: Any) -> None:
    stack.add("tensordict", "0.11.0")
    verl(stack, verl__utils__model="import tensordict\n")
    measurements, _ = run_check(context, "4.57.6")
    assert CheckedPair("verl", "1.0", "tensordict", "0.10.0") in measurements.pairs


def test_unavailable_sources_give_not_run(stack: Any, context: Any) -> None:
    verl(stack)
    _, absent = run_check(context, "9.9")
    assert absent.status is Status.NOT_RUN
    _, commit = run_check(context, "4.57.6", kind="commit", commit="d" * 40)
    assert commit.status is Status.NOT_RUN
    assert "dddddddddddd" in commit.reasons[0]


def test_pinned_versions_use_overrides_and_ignore_ranges() -> None:
    pins = PinsFacet(
        requirements=("a==1", "b>=2", "c==1.*", "d==3"),
        overrides=(PinnedOverride(of="a", requirement="d==4"),),
    )
    assert pinned_versions(pins) == {"a": "1", "d": "4"}


def surface(path: Path, text: str) -> ApiSurface:
    return ApiSurface(write_zip(path, {"lib/__init__.py": text}))


@pytest.mark.parametrize(
    ("before", "after", "message", "breaking"),
    [
        ("def f(a): ...", "", "lib.f: removed", True),
        ("", "def f(a): ...", "lib.f: added", False),
        ("def f(a): ...", "def f(a, b): ...", "parameter b is now required", True),
        ("def f(a): ...", "def f(a, b=1): ...", "parameter b added", False),
        ("def f(a, b=1): ...", "def f(a): ...", "parameter b removed", True),
        ("def f(a, b=1): ...", "def f(a, **k): ...", "parameter b removed", False),
        ("def f(a, b=1): ...", "def f(a, *, b=1): ...", "b became keyword-only", True),
        ("def f(a, b): ...", "def f(b, a): ...", "positional order is now b, a", True),
        ("class C:\n  def m(self, a): ...", "class C:\n  def m(self): ...", "C.m: parameter a removed", True),
    ],
)
def test_api_changes_state_what_breaks(
    tmp_path: Path, before: str, after: str, message: str, breaking: bool
) -> None:
    [change] = api_changes(surface(tmp_path / "a.zip", before), surface(tmp_path / "b.zip", after))
    assert message in str(change)
    assert change.breaking is breaking


def test_api_diff_prints_changes(stack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--root", str(tmp_path), "--cache", str(tmp_path / "cache")]
    with pytest.raises(SystemExit) as stopped:
        main([*options, "api", "diff", "--json", "transformers==4.57.6", "transformers==5.5.4"])
    assert not stopped.value.code
    names = {change["name"] for change in json.loads(capsys.readouterr().out)["changes"]}
    assert {"transformers.auto.AutoModel", "transformers.auto.Other", "transformers.load"} <= names


@pytest.mark.parametrize("spec", ["transformers", "transformers==9.9"])
def test_api_diff_rejects_an_invalid_release(
    stack: Any, tmp_path: Path, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "--root",
                str(tmp_path),
                "--cache",
                str(tmp_path / "c"),
                "api",
                "diff",
                spec,
                "transformers==5.5.4",
            ]
        )
    assert stopped.value.code == 2
    assert spec.partition("==")[0] in capsys.readouterr().err


def test_a_damaged_package_is_an_input_error(context: Any, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no archive")
    broken = tuple(Package(name=name, version="1", file=tmp_path / "x.zip") for name in ("verl", "ray"))
    request = ApiRequest(cache=tmp_path / "cache", code="x", packages=broken)
    with pytest.raises(InputError, match="cannot be read"):
        analyse(context({}), "harness.compat.api.api_analysis", request, ApiMeasured)


def test_an_analysis_that_crashes_is_an_infrastructure_error(context: Any) -> None:
    with pytest.raises(InfrastructureError, match="exit code"):
        analyse(context({}), "harness.compat.api.api_analysis", CheckedPair("a", "1", "b", "1"), ApiMeasured)
