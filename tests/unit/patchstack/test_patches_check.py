from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pygit2
import pytest
from make_outcome import make_outcome

from harness.check import Completed
from harness.digest import digest_bytes, digest_file
from harness.errors import InfrastructureError, InputError
from harness.outcome import Evidence, Measured, Outcome, State, Status, Tier
from harness.patchstack.checks import CHECKS, PATCHES, judge_upstream
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.patch_measurements import PATCHES_FORMAT, PatchesMeasured
from harness.sources.git.mirrors import MIRRORS
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolvedPackage, ResolveMeasured

PLATFORM = {"python": "3.11", "arch": "x86_64", "host": True}
OLD, NEW = b"a = 1\nb = 2\n", b"a = 1\nb = 3\n"


class Context:
    """A task in a temporary folder whose package index has at most one wheel."""

    def __init__(self, root: Path, facets: Mapping[str, Any], wheel: Path | None = None) -> None:
        self.root, self.wheel = root, wheel
        self.facets = {
            "patches[vllm_ascend]": [],
            "patches[others]": [],
            "pins": {},
            "platform": PLATFORM,
            **facets,
        }
        self.params: Mapping[str, Any] = {}
        self.inputs: Mapping[str, Outcome] = {}
        self.workdir, self.cache = root / "work", root / "cache"
        self.workdir.mkdir(exist_ok=True)
        self.lines: list[str] = []
        self.tail = ""

    def log(self, text: str) -> None:
        self.lines.append(text)

    def artifact(self, check: str, name: str) -> Path:
        raise AssertionError

    def in_cell(self, module: str, *args: str, **_more: object) -> Completed:
        raise AssertionError

    def command(self, argv: Sequence[str], *, cwd: Path | None = None, **_more: object) -> Completed:
        if self.wheel is None or cwd is None:
            return Completed(argv=tuple(argv), returncode=1, tail=self.tail, seconds=0.0)
        digest = digest_file(self.wheel)
        wheel = f'{{ url = "{self.wheel.as_uri()}", hashes = {{ sha256 = "{digest}" }} }}'
        text = f'[[packages]]\nname = "verl"\nversion = "1.0"\nwheels = [{wheel}]\n'
        (cwd / "pylock.toml").write_text(text)
        return Completed(argv=tuple(argv), returncode=0, tail="", seconds=0.0)


def selected(root: Path, data: bytes) -> list[dict[str, Any]]:
    file = root / "patches" / "verl" / "fix" / "1.patch"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return [
        {
            "id": "verl/fix",
            "version_range": ">=1",
            "file": "patches/verl/fix/1.patch",
            "digest": digest_bytes(data),
            "series": 1,
        }
    ]


def release(root: Path, content: bytes = OLD) -> tuple[dict[str, Any], Path]:
    wheel = root / "verl-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("verl/mod.py", content)
    return {"package": "verl", "kind": "release", "version": "1.0"}, wheel


PATCH = diff_files({"verl/mod.py": (OLD, NEW)})


def run(ctx: Context) -> tuple[Measured[PatchesMeasured], Status, tuple[str, ...]]:
    measured = PATCHES.run(ctx)
    stored = json.loads(json.dumps(PATCHES_FORMAT.write(measured.measurements)))
    judgement = PATCHES.judge(PATCHES_FORMAT.read(stored), {})
    assert measured.evidence is Evidence.STATIC
    return measured, judgement.status, judgement.reasons


def test_the_package_declares_its_check() -> None:
    assert [check.name for check in CHECKS] == ["patches"]
    patches = ("patches[verl]", "patches[vllm_ascend]", "patches[others]")
    assert PATCHES.facets == ("verl_tree", *patches, "pins", "platform")


def test_a_patch_that_applies_passes_and_stores_the_patched_files(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}, wheel)
    measured, status, reasons = run(ctx)
    assert status is Status.PASS
    assert "verl/fix applies to verl-1.0-py3-none-any.whl as it is" in reasons[0]
    with zipfile.ZipFile(ctx.workdir / measured.artifacts["patched.zip"]) as archive:
        assert archive.read("verl/mod.py") == NEW
    digests = json.loads((ctx.workdir / measured.artifacts["patched.json"]).read_text(encoding="utf-8"))
    assert digests == {"verl/mod.py": {"pre": digest_bytes(OLD), "post": digest_bytes(NEW)}}


def test_equal_stacks_write_equal_archives(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}, wheel)
    run(ctx)
    first = (ctx.workdir / "patched.zip").read_bytes()
    run(ctx)
    assert (ctx.workdir / "patched.zip").read_bytes() == first


def resolved(tmp_path: Path, wheel: Path, version: str = "1.0") -> dict[str, Outcome]:
    """The outcome of `resolve` with the wheel in its lock."""
    package = ResolvedPackage(name="verl", version=version, file=wheel.name, sha256=digest_file(wheel))
    measured = RESOLVE_FORMAT.write(ResolveMeasured(resolved=True, packages=(package,)))
    return {"resolve": make_outcome("k", "resolve", measurements=measured)}


def test_patches_are_applied_to_the_archive_in_the_lock(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}, wheel)
    ctx.inputs = resolved(tmp_path, wheel)
    measured, status, _reasons = run(ctx)
    assert status is Status.PASS
    assert [archive.sha256 for archive in measured.measurements.archives_read] == [digest_file(wheel)]
    release(tmp_path, b"a = 1\nb = 99\n")
    with pytest.raises(InfrastructureError, match="does not have the locked archive"):
        run(ctx)


def test_patches_are_applied_to_the_version_in_the_lock(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path)
    planned = {"verl_tree": {**tree, "version": "0.9"}, "patches[verl]": selected(tmp_path, PATCH)}
    ctx = Context(tmp_path, planned, wheel)
    ctx.inputs = resolved(tmp_path, wheel)
    assert run(ctx)[1] is Status.PASS


def test_a_conflict_fails_with_reason_and_remedy(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path, b"a = 1\nb = 99\n")
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}, wheel)
    measured, status, reasons = run(ctx)
    assert status is Status.FAIL
    assert "conflict" in reasons[0]
    assert "b = 2" in reasons[0]
    assert PATCHES.judge(measured.measurements, {}).remedies
    assert measured.artifacts == {}


def test_the_reasons_of_a_failure_are_about_patches_that_do_not_apply(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path)
    good = selected(tmp_path, PATCH)[0]
    broken = tmp_path / "patches" / "verl" / "fix" / "broken.patch"
    broken.write_bytes(b"no patch\n")
    file = str(broken.relative_to(tmp_path))
    bad = {**good, "id": "verl/bad", "file": file, "digest": digest_bytes(broken.read_bytes())}
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": [good, bad]}, wheel)
    _, status, reasons = run(ctx)
    assert status is Status.FAIL
    assert len(reasons) == 1
    assert reasons[0].startswith("verl/bad")


def test_already_upstream_passes_with_this_reason(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path, NEW)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}, wheel)
    measured, status, reasons = run(ctx)
    assert status is Status.PASS
    assert "already-upstream" in reasons[0]
    assert json.loads((ctx.workdir / measured.artifacts["patched.json"]).read_text(encoding="utf-8")) == {}


def test_no_patches_need_no_tree(tmp_path: Path) -> None:
    tree, _wheel = release(tmp_path)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": []})
    measured, status, reasons = run(ctx)
    assert status is Status.UNSUPPORTED
    assert reasons == ("No patch of this project is for the versions of this cell.",)
    assert set(measured.artifacts) == {"patched.zip", "patched.json"}


def ascend(root: Path, commit_id: str, data: bytes) -> list[dict[str, Any]]:
    """The facet of a patch for vllm-ascend."""
    file = root / "patches" / "vllm_ascend" / "fix" / "1.patch"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    tree = {"package": "vllm_ascend", "kind": "commit", "version": "1.0", "commit": commit_id}
    facts = {"id": "vllm_ascend/fix", "file": str(file.relative_to(root)), "digest": digest_bytes(data)}
    return [{**facts, "version_range": ">=1", "series": 1, "tree": tree}]


ASCEND = diff_files({"vllm_ascend/mod.py": (b"a = 1\r\nb = 2\r\n", b"a = 1\r\nb = 3\r\n")})


def test_patches_of_two_upstreams_are_in_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = commit(tmp_path / "mirrors" / "x.git", b"a = 1\r\nb = 2\r\n", "vllm_ascend")
    monkeypatch.setenv(MIRRORS, str(tmp_path / "mirrors"))
    tree, wheel = release(tmp_path)
    facets = {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}
    ctx = Context(tmp_path, {**facets, "patches[vllm_ascend]": ascend(tmp_path, mirror, ASCEND)}, wheel)
    measured, status, reasons = run(ctx)
    assert status is Status.PASS
    assert list(reasons) == [
        "verl/fix applies to verl-1.0-py3-none-any.whl as it is",
        f"vllm_ascend/fix applies to {mirror[:12]} as it is",
    ]
    with zipfile.ZipFile(ctx.workdir / measured.artifacts["patched.zip"]) as archive:
        assert archive.read("verl/mod.py") == NEW
        assert archive.read("vllm_ascend/mod.py") == b"a = 1\r\nb = 3\r\n"


@pytest.mark.parametrize("is_there", [True, False], ids=["tried", "no clone"])
def test_a_file_that_patches_of_two_upstreams_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """Only one of the two contents would be installed, also where one of the patches could not be tried."""
    mirror = commit(tmp_path / "mirrors" / "x.git", OLD, "vllm_ascend")
    monkeypatch.setenv(MIRRORS, str(tmp_path / "mirrors" if is_there else tmp_path / "none"))
    tree, wheel = release(tmp_path)
    first, second = (diff_files({"shared.py": (None, data)}) for data in (b"a = 1\n", b"a = 2\n"))
    facets = {"verl_tree": tree, "patches[verl]": selected(tmp_path, first)}
    ctx = Context(tmp_path, {**facets, "patches[vllm_ascend]": ascend(tmp_path, mirror, second)}, wheel)
    measured, status, reasons = run(ctx)
    assert status is Status.FAIL
    assert reasons[0] == "Patches for two packages write shared.py."
    # A gate that asks about one upstream alone does not pass either.
    assert judge_upstream(measured.measurements, "verl").status is Status.FAIL


def test_a_patch_that_makes_a_symbolic_link_fails(tmp_path: Path) -> None:
    """The environment would have a file with the text of the link."""
    tree, wheel = release(tmp_path)
    link = (
        b"diff --git a/verl/link.py b/verl/link.py\nnew file mode 120000\n--- /dev/null\n+++ b/verl/link.py\n"
        b"@@ -0,0 +1 @@\n+mod.py\n\\ No newline at end of file\n"
    )
    _measured, status, reasons = run(
        Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, link)}, wheel)
    )
    assert status is Status.FAIL
    assert "verl/link.py is a symbolic link" in reasons[0]


@pytest.mark.parametrize(
    ("content", "expected", "reason"),
    [(OLD, Status.NOT_RUN, "no local clone"), (b"a = 1\nb = 99\n", Status.FAIL, "conflict")],
    ids=["fits", "does not"],
)
def test_an_unavailable_upstream_does_not_hide_failures_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, expected: Status, reason: str
) -> None:
    monkeypatch.delenv(MIRRORS, raising=False)
    tree, wheel = release(tmp_path, content)
    facets = {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)}
    ctx = Context(tmp_path, {**facets, "patches[vllm_ascend]": ascend(tmp_path, "a" * 40, ASCEND)}, wheel)
    measured, status, reasons = run(ctx)
    assert status is expected
    assert measured.artifacts == {}
    assert reason in reasons[0]


def test_no_network_is_an_infrastructure_error(tmp_path: Path) -> None:
    tree, _wheel = release(tmp_path)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)})
    ctx.tail = "error: Failed to fetch: `https://x.invalid/simple/verl/`\n  Caused by: dns error"
    with pytest.raises(InfrastructureError, match=r"could not fetch https://x\.invalid/simple/verl"):
        PATCHES.run(ctx)


def test_a_missing_release_gives_not_run(tmp_path: Path) -> None:
    tree, _wheel = release(tmp_path)
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)})
    ctx.tail = (
        "  x No solution found when resolving dependencies:\n  `-> Because there is no version of verl==1.0 "
        "and you require verl==1.0, we can conclude that your requirements are unsatisfiable."
    )
    _measured, status, reasons = run(ctx)
    assert status is Status.NOT_RUN
    assert "has no verl 1.0" in reasons[0]


def test_a_variant_that_changed_after_planning_is_rejected(tmp_path: Path) -> None:
    tree, wheel = release(tmp_path)
    chosen = selected(tmp_path, PATCH)
    selected(tmp_path, PATCH + b"\n")
    with pytest.raises(InputError, match="changed after the plan"):
        PATCHES.run(Context(tmp_path, {"verl_tree": tree, "patches[verl]": chosen}, wheel))


def commit(folder: Path, content: bytes, package: str = "verl") -> str:
    repository = pygit2.init_repository(str(folder), bare=True)
    inner = repository.TreeBuilder()
    inner.insert("mod.py", repository.create_blob(content), pygit2.enums.FileMode.BLOB)
    root = repository.TreeBuilder()
    root.insert(package, inner.write(), pygit2.enums.FileMode.TREE)
    who = pygit2.Signature("a", "a@example.org", 1, 0)
    return str(repository.create_commit("refs/heads/main", who, who, "m", root.write(), []))


def test_a_commit_is_read_from_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = commit(tmp_path / "mirrors" / "any name.git", OLD)
    tree = {
        "package": "verl",
        "kind": "commit",
        "version": "1.0",
        "commit": full[:8],
        "repository": "https://x",
    }
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)})
    monkeypatch.setenv(MIRRORS, str(tmp_path / "mirrors"))
    _measured, status, reasons = run(ctx)
    assert status is Status.PASS
    assert full[:12] in reasons[0]


def test_a_commit_gives_not_run_until_a_mirror_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MIRRORS, raising=False)
    tree = {"package": "verl", "kind": "commit", "version": "1.0", "commit": "a" * 40, "repository": ""}
    ctx = Context(tmp_path, {"verl_tree": tree, "patches[verl]": selected(tmp_path, PATCH)})
    measured, status, reasons = run(ctx)
    assert status is Status.NOT_RUN
    assert "no local clone" in reasons[0]
    outcome = Outcome(
        key="k",
        check="patches",
        tier=Tier.STATIC,
        state=State.COMPLETED,
        evidence=Evidence.STATIC,
        facets={},
        measurements=PATCHES_FORMAT.write(measured.measurements),
    )
    assert PATCHES.outdated(outcome) == ""
    full = commit(tmp_path / "mirrors" / "verl.git", OLD)
    monkeypatch.setenv(MIRRORS, str(tmp_path / "mirrors"))
    assert PATCHES.outdated(outcome) == ""
    assert measured.measurements.source is not None
    source = replace(measured.measurements.source, commit=full)
    found = replace(outcome, measurements=PATCHES_FORMAT.write(replace(measured.measurements, source=source)))
    assert "a mirror now has" in PATCHES.outdated(found)
