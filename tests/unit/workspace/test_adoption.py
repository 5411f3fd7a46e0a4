"""`init`: what it finds in repositories of other people, and what it writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from harness.cli.app import app
from harness.errors import InputError
from harness.matrix.reading.load_matrix import load_matrix
from harness.matrix.version_matrix import Matrix
from harness.settings import load_settings
from harness.workspace.planning.open_plan import patch_sources, unused_patches

PATCH = "diff --git a/{0}/x.py b/{0}/x.py\n--- a/{0}/x.py\n+++ b/{0}/x.py\n@@ -1 +1,2 @@\n a = 1\n+b = 1\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(
        ["git", *who, "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout


def init(root: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["init", str(root), *options], catch_exceptions=False)


def matrix_of(root: Path) -> Matrix:
    done = init(root)
    assert done.exit_code == 0, done.output
    return load_matrix(root / "matrix.yaml")


def selected(matrix: Matrix) -> list[str]:
    return [cell.stack for cell in matrix.cells("default").cells]


def test_the_plugin_gets_the_shipped_stacks_that_its_patches_are_for(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "verl_npu/verl_npu/patch/verl/d62da4950/a.patch": PATCH.format("verl"),
            "verl_npu/verl_npu/patch/nobody/1234567/b.patch": PATCH.format("nobody"),
        },
    )
    matrix = matrix_of(root)
    assert selected(matrix) == ["gptoss-20b-grpo"]
    sources = patch_sources(load_settings({}, {}, root), matrix)
    version = matrix.stacks["gptoss-20b-grpo"].axes["verl"]
    assert [patch.id for patch in sources.select("verl", {"verl": version})] == ["verl/d62da4950/a"]
    unused = unused_patches(load_settings({}, {}, root), matrix)
    assert [one.reason for one in unused] == ["matrix.yaml has no axis for 'nobody'"]


def test_the_commits_of_a_fork_become_patches_of_the_release_before_them(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, {"verl/__init__.py": "", "verl/trainer/main_ppo.py": "a = 1\n"})
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "upstream")
    git(tmp_path, "tag", "v0.7.1")
    write(tmp_path, {"verl/trainer/main_ppo.py": "a = 2\n"})
    git(tmp_path, "commit", "-q", "-a", "-m", "ours")
    matrix = matrix_of(tmp_path)
    (name,) = selected(matrix)
    version = f"0.7.1@{git(tmp_path, 'rev-parse', 'v0.7.1').strip()}"
    assert matrix.stacks[name].axes["verl"] == version
    sources = patch_sources(load_settings({}, {}, tmp_path), matrix)
    assert [patch.id for patch in sources.select("verl", {"verl": version})] == ["verl/0001-ours"]


def test_recipes_get_one_stack_for_each_folder_that_pins_versions(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "a/REQUIRED_VERL.txt": "# x\nTAG=v0.6.1\n",
            "a/run.sh": "python3 -m verl.trainer.main_ppo x=1\n",
            "b/REQUIRED_VERL.txt": "TAG=v0.7.0\n",
            "b/requirements.txt": "vllm-ascend==0.11.0rc1  # tested\nnumpy==1.26\n",
            "cuda/requirements.txt": "torch==2.9.0+cu130\n",
        },
    )
    matrix = matrix_of(root)
    axes = [matrix.stacks[name].axes for name in selected(matrix)]
    assert [(one["verl"], one.get("vllm_ascend")) for one in axes] == [
        ("0.6.1", None),
        ("0.7.0", "0.11.0rc1"),
    ]
    assert str(matrix.stacks[selected(matrix)[0]].source) == "a/REQUIRED_VERL.txt"
    # Each script is linted for the verl that its own recipe requires.
    assert "npu-matrix lint a --verl profile" in (root / ".github/workflows/npu-matrix.yml").read_text()


def test_a_vllm_ascend_gets_the_vllm_that_it_is_published_for(tmp_path: Path) -> None:
    matrix = matrix_of(write(tmp_path / "one", {"requirements.txt": "vllm-ascend==0.13.0\n"}))
    (name,) = selected(matrix)
    assert matrix.stacks[name].axes["vllm"] == "0.13.0"
    assert "release compatibility lists it" in (tmp_path / "one/matrix.yaml").read_text()
    # Two releases of vLLM are listed for the first, none for the second.
    for version in ("0.10.1rc1", "0.99.0"):
        matrix = matrix_of(write(tmp_path / version, {"requirements.txt": f"vllm-ascend=={version}\n"}))
        (name,) = selected(matrix)
        assert "vllm" not in matrix.stacks[name].axes
    matrix = matrix_of(write(tmp_path / "own", {"requirements.txt": "vllm-ascend==0.13.0\nvllm==0.13.1\n"}))
    (name,) = selected(matrix)
    assert matrix.stacks[name].axes["vllm"] == "0.13.1"


@pytest.mark.parametrize(
    ("requirement", "version"),
    [
        ("verl @ git+https://github.com/verl-project/verl@v0.6.1", "0.6.1"),
        ("verl[vllm]@git+ssh://git@github.com/verl-project/verl.git@v0.7.1#egg=verl", "0.7.1"),
        (
            "verl @ git+https://github.com/verl-project/verl@refs/tags/v0.8.0 ; python_version > '3.9'",
            "0.8.0",
        ),
        ("verl @ git+https://github.com/verl-project/verl@main", ""),
        ("verl @ git+https://github.com/verl-project/verl", ""),
        ("# verl==0.5.0", ""),
    ],
)
def test_a_requirement_on_a_tag_of_the_repository_is_a_pin(
    tmp_path: Path, requirement: str, version: str
) -> None:
    root = write(tmp_path, {"requirements-npu.txt": f"{requirement}\n"})
    matrix = matrix_of(root)
    own = [stack for stack in matrix.stacks.values() if matrix.is_own(stack.where)]
    assert [stack.axes["verl"] for stack in own] == [version] * bool(version)
    assert [stack.name for stack in own] == selected(matrix)[: len(own)]


def test_quilt_and_format_patch_folders_are_found_by_what_they_change(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "debian/patches/series": "one.patch\n",
            "debian/patches/one.patch": PATCH.format("verl"),
            "npu/v0.7.1/0001-x.patch": PATCH.format("vllm_ascend"),
            "misc/gcc.patch": PATCH.format("gcc"),
            "p0/a.patch": "--- verl/x.py\n+++ verl/x.py\n@@ -1 +1 @@\n-a\n+b\n",
            "half/a.patch": PATCH.format("verl"),
            "half/b.patch": PATCH.format("gcc"),
            "mixed/a.patch": PATCH.format("verl"),
            "mixed/b.patch": PATCH.format("vllm"),
            # As quilt writes them.
            "q/series": "two.diff -p1\n",
            "q/two.diff": "--- verl-0.9.0.orig/verl/x.py\n+++ verl-0.9.0/verl/x.py\n@@ -1 +1 @@\n-a\n+b\n",
        },
    )
    done = init(root)
    own = [place for place in load_matrix(root / "matrix.yaml").patch_places if not place.is_included]
    assert sorted((one.folder, one.upstream, one.files, one.strip, bool(one.left_out)) for one in own) == [
        ("debian/patches", "verl", (), 1, False),
        ("half", "", ("b.patch",), 1, True),
        ("half", "verl", ("a.patch",), 1, False),
        ("misc", "", (), 1, True),
        ("mixed", "verl", ("a.patch",), 1, False),
        ("mixed", "vllm", ("b.patch",), 1, False),
        ("npu", "vllm_ascend", (), 1, False),
        ("p0", "verl", (), 0, False),
        ("q", "verl", (), 1, False),
    ]
    assert "misc: 1 files, not used: they change no package" in done.output
    assert "p0: 1 files, patches of verl, paths for -p0" in done.output


def test_a_script_that_applies_patches_gives_their_order(tmp_path: Path) -> None:
    names = ("b-first.patch", "a-second.patch", "c-old.patch", "v0.8.0/d.patch")
    applied = 'git apply --whitespace=nowarn "$ROOT/b-first.patch"\n  patch -p1 < ${ROOT}/a-second.patch\n'
    root = write(
        tmp_path,
        {
            **{f"deep/patches/{name}": f"{name}\n{PATCH.format('verl')}" for name in names},
            "tools/install.sh": f"cd ./verl\ngit checkout tags/v0.6.1\n{applied}# git apply $ROOT/c-old.patch\n",
        },
    )
    found = [one for one in matrix_of(root).patch_places if not one.is_included]
    assert [(one.files, bool(one.left_out)) for one in found] == [
        (("b-first.patch", "a-second.patch"), False),
        (("c-old.patch",), True),
        (("v0.8.0/d.patch",), False),
    ]
    assert "tools/install.sh applies others" in found[1].left_out
    matrix = load_matrix(root / "matrix.yaml")
    sources = patch_sources(load_settings({}, {}, root), matrix)
    assert [one.id for one in sources.select("verl", {"verl": "0.6.1"})] == [
        "verl/b-first",
        "verl/a-second",
    ]


SOURCES = "rl/qwen3"


def test_paths_of_the_repository_that_patches_lie_in_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in repositories that download the sources of upstreams into one of their folders."""
    deep = PATCH.format("verl").replace("/verl/", f"/{SOURCES}/verl/")
    adapter = PATCH.format("x").replace("/x/", "/lmcache/integration/vllm/")
    root = write(
        tmp_path,
        {
            f"{SOURCES}/README.md": "",
            f"{SOURCES}/get.sh": "git clone https://x.org/m/verl.git\ncd verl\ngit checkout v0.6.1\n",
            f"{SOURCES}/patches/verl/0001-a.patch": deep,
            f"{SOURCES}/patches/verl/0002-tests.patch": PATCH.format("tests"),
            "other/README.md": "",
            "other/patches/verl.patch": PATCH.format("verl"),
            "kv/adapter.patch": adapter,
            "python/sglang.patch": PATCH.format("python"),
        },
    )
    matrix = matrix_of(root)
    own = {
        (one.folder, one.upstream, one.strip, bool(one.versions), bool(one.left_out))
        for one in matrix.patch_places
        if not one.is_included
    }
    assert own == {
        (f"{SOURCES}/patches/verl", "verl", 3, True, False),
        # Another project's, for a version that it does not say.
        ("other/patches", "verl", 1, False, True),
        # A package of another project that contains a folder `vllm`, and a folder `python`.
        ("kv", "", 1, False, True),
        ("python", "", 1, False, True),
    }
    assert [matrix.stacks[name].axes["verl"] for name in selected(matrix)] == ["0.6.1"]
    monkeypatch.chdir(root)
    listed = patches(root, "list")
    assert listed.exit_code == 0, listed.output
    assert "of this repository: 2 patch files are in cells, 3 are left out" in listed.output
    git(root, "init", "-q")
    write(root, {"new/fix.patch": PATCH.format("verl")})
    listed = patches(root, "list")
    assert "NOT USED  new/fix.patch: no entry of the section `patches` names it" in listed.output


def test_an_empty_folder_gets_the_newest_release(tmp_path: Path) -> None:
    done = init(tmp_path)
    assert "an empty repository" in done.output
    assert "no git repository" in done.output
    matrix = load_matrix(tmp_path / "matrix.yaml")
    (cell,) = matrix.cells("default").cells
    assert cell.axes["verl"] == "0.9.1"
    # What a guide lists may contradict itself, and then nothing can be built from it.
    assert matrix.expectation_for(cell, "resolve") is None


def test_a_dry_run_writes_nothing_and_existing_files_are_kept(tmp_path: Path) -> None:
    done = init(tmp_path, "--dry-run")
    assert "would write matrix.yaml" in done.output
    assert "include: npu-matrix:" in done.output
    assert list(tmp_path.iterdir()) == []
    write(tmp_path, {"matrix.yaml": "mine\n", ".gitignore": "/reports/\nbuild"})
    done = init(tmp_path)
    assert "kept matrix.yaml" in done.output
    assert (tmp_path / "matrix.yaml").read_text() == "mine\n"
    lines = (tmp_path / ".gitignore").read_text().splitlines()
    assert lines[:2] == ["/reports/", "build"]
    assert lines.count("/reports/") == 1
    assert ".npu-matrix/" in lines
    assert "kept .gitignore" in init(tmp_path).output, "a second time changes nothing"
    assert "replaced matrix.yaml" in init(tmp_path, "--force").output
    assert "include:" in (tmp_path / "matrix.yaml").read_text()


@pytest.mark.parametrize("name", ["a: b # c", "x\nfake: 1", "'\"{}[]", "日本", "-"])
def test_odd_names_of_folders_stay_data(name: str, tmp_path: Path) -> None:
    root = write(tmp_path / "r", {f"{name}/0001-x.patch": PATCH.format("verl")})
    (place,) = (place for place in matrix_of(root).patch_places if not place.is_included)
    assert (place.upstream, place.folder) == ("verl", name)
    yaml.safe_load((root / ".github/workflows/npu-matrix.yml").read_text())


def test_json_has_what_was_found_and_each_file(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": "verl==0.7.1\n"})
    found = json.loads(init(tmp_path, "--json", "--dry-run").output)
    assert found["schema"] == {"name": "npu-matrix.init", "version": 1}
    assert found["written"] is False
    assert found["pins"] == [{"axis": "verl", "version": "0.7.1", "where": "requirements.txt:1"}]
    assert [file["action"] for file in found["files"]] == ["create"] * 3


def test_a_link_out_of_the_repository_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "r", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / ".github").symlink_to(outside)
    done = CliRunner().invoke(app, ["init", str(root)])
    assert done.exit_code != 0
    assert list(outside.iterdir()) == []


def fork_of_main(tmp_path: Path) -> tuple[Path, str]:
    """A clone of an upstream whose main is some commits after a release, and the commit it was cloned at."""
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q", "-b", "main")
    write(upstream, {"verl/version/version": "0.7.1\n", "verl/trainer/main_ppo.py": "a = 1\n"})
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "release")
    git(upstream, "tag", "v0.7.1")
    write(upstream, {"verl/version/version": "0.8.0.dev\n", "verl/trainer/main_ppo.py": "a = 2\n"})
    git(upstream, "commit", "-q", "-a", "-m", "after it")
    git(tmp_path, "clone", "-q", str(upstream), str(tmp_path / "fork"))
    git(tmp_path / "fork", "remote", "add", "upstream", str(upstream))
    git(tmp_path / "fork", "fetch", "-q", "upstream")
    return tmp_path / "fork", git(upstream, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("own", [0, 1])
def test_a_fork_of_a_branch_is_compared_with_the_commit_where_it_left_the_branch(
    own: int, tmp_path: Path
) -> None:
    fork, start = fork_of_main(tmp_path)
    if own:
        write(fork, {"verl/trainer/main_ppo.py": "a = 3\n"})
        git(fork, "commit", "-q", "-a", "-m", "ours")
    matrix = matrix_of(fork)
    (name,) = selected(matrix)
    version = f"0.8.0.dev0@{start}"
    assert matrix.stacks[name].axes["verl"] == version
    assert own_commits(fork, matrix, version) == own
    # A later commit of the fork is a patch, too.
    write(fork, {"verl/trainer/main_ppo.py": "a = 4\n"})
    git(fork, "commit", "-q", "-a", "-m", "later")
    assert own_commits(fork, matrix, version) == own + 1


def own_commits(fork: Path, matrix: Matrix, version: str) -> int:
    """How many patches of verl are commits of the fork. There are no others, also before its first commit."""
    sources = patch_sources(load_settings({}, {}, fork), matrix)
    selected = sources.select("verl", {"verl": version})
    assert all(one.id.startswith("verl/0") for one in selected)
    return len(selected)


def test_a_fork_of_a_release_has_the_release_although_the_upstream_has_a_branch(tmp_path: Path) -> None:
    fork, _ = fork_of_main(tmp_path)
    git(fork, "checkout", "-q", "-b", "ours", "v0.7.1")
    write(fork, {"verl/trainer/main_ppo.py": "a = 3\n"})
    git(fork, "commit", "-q", "-a", "-m", "ours")
    matrix = matrix_of(fork)
    (name,) = selected(matrix)
    assert matrix.stacks[name].axes["verl"] == f"0.7.1@{git(fork, 'rev-parse', 'v0.7.1').strip()}"


@pytest.mark.parametrize(
    ("files", "origin", "written"),
    [
        ({}, "git@gitcode.com:Ascend/MindSpeed-RL.git", ".gitcode/workflows/npu-matrix.yml"),
        ({}, "https://user@gitlab.example.com/team/recipes.git", ".gitlab/npu-matrix.yml"),
        ({".gitlab-ci.yml": "a: {script: [x]}\n"}, "", ".gitlab/npu-matrix.yml"),
        ({"Jenkinsfile": "pipeline {}\n"}, "https://git.example.com/x/y", "Jenkinsfile.npu-matrix"),
        ({"Jenkinsfile": "x\n"}, "https://github.com/gitlab-mirror/y", ".github/workflows/npu-matrix.yml"),
        ({}, "https://git.example.com/gitlab/y", ".github/workflows/npu-matrix.yml"),
    ],
)
def test_the_gate_is_for_the_server_of_the_repository(
    files: dict[str, str], origin: str, written: str, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    write(tmp_path, files)
    if origin:
        git(tmp_path, "remote", "add", "origin", origin)
    done = init(tmp_path)
    assert f"wrote {written}" in done.output
    assert "gate --base trunk " in done.output
    gates = [
        name for name in json.loads(init(tmp_path, "--json").output)["files"] if "npu-matrix" in name["name"]
    ]
    assert [one["name"] for one in gates] == [written]
    if written.startswith(".gitlab"):
        text = (tmp_path / ".gitlab-ci.yml").read_text()
        assert text == files.get(".gitlab-ci.yml", "include:\n  - local: .gitlab/npu-matrix.yml\n")


def test_pins_and_patches_for_other_hardware_are_not_those_of_the_npu(tmp_path: Path) -> None:
    project = """\
[build-system]
requires = ["torch-npu==2.9.0"]
[project]
name = "x"
dependencies = ["verl==0.8.0"]
[project.optional-dependencies]
vllm = ["vllm==0.24.0", "torch==2.11.0"]
npu = ["vllm-ascend==0.18.0"]
"""
    root = write(
        tmp_path,
        {
            "pyproject.toml": project,
            "requirements-cuda.txt": "transformers==5.5.3\n",
            "docker/rocm/patches/a.patch": PATCH.format("verl"),
            "cuda_graph/b.patch": PATCH.format("verl"),
            "reports/exports/x/requirements.txt": "torch==2.1.0\ntorch-npu==2.1.0\n",
        },
    )
    matrix = matrix_of(root)
    (name,) = selected(matrix)
    pinned = {axis: version for axis, version in matrix.stacks[name].axes.items() if axis != "python"}
    assert pinned == {
        "verl": "0.8.0",
        "torch_npu": "2.9.0",
        "vllm_ascend": "0.18.0",
        "vllm": "0.18.0",
        "device": "npu",
    }
    text = (root / "matrix.yaml").read_text()
    assert 'docker/rocm/patches, left_out: "they are for other hardware than NPUs"' in text
    assert "folder: cuda_graph, upstream: verl" in text


def patches(root: Path, *command: str) -> Result:
    settings = load_settings({}, {}, root)
    return CliRunner().invoke(app, ["--matrix", str(settings.path("matrix")), "patches", *command])


def test_patches_in_other_layouts_are_checked_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = "debian/patches/series"
    root = write(
        tmp_path / "我的 补丁",
        {
            series: "修复.patch\n",
            "debian/patches/修复.patch": PATCH.format("verl"),
            "补丁/v0.7.1/0001-a b.patch": PATCH.format("verl"),
        },
    )
    monkeypatch.chdir(root)
    assert init(root).exit_code == 0
    checked = patches(root, "check")
    assert checked.exit_code == 0, checked.output
    assert "2 patches in other layouts can be read" in checked.output
    listed = patches(root, "list")
    assert listed.exit_code == 0, listed.output
    assert "NOT USED" not in listed.output
    (root / "补丁/v0.7.1/0001-a b.patch").write_text(PATCH.format("verl").replace("-1 +1,2", "-1 +1,9"))
    broken = patches(root, "check")
    assert isinstance(broken.exception, InputError)
    assert "0001-a b.patch:" in str(broken.exception)
    (root / series).write_text("修复.patch\nlost.patch\n")
    for command in ("check", "list"):
        lost = patches(root, command)
        assert isinstance(lost.exception, InputError)
        assert f"{root / series}:2: there is no lost.patch" in str(lost.exception)


DOCKERFILE = """\
# FROM quay.io/ascend/cann:8.2.rc1-910b-ubuntu22.04-py3.10
ARG REGISTRY="quay.io/ascend/cann"
ARG CANN=8.5.0
FROM ${REGISTRY}:${CANN}-@CHIP@-ubuntu22.04-py3.11
ARG VLLM_TAG=v0.13.0
RUN git clone --depth 1 --branch core_v0.12.1 https://github.com/NVIDIA/Megatron-LM.git && \\
    pip install torch==2.8.0 torch_npu==${TORCH_NPU:-2.8.0} triton==3.1.0
"""


def test_a_dockerfile_pins_its_image_and_what_it_installs_or_clones(tmp_path: Path) -> None:
    old = DOCKERFILE.replace("8.5.0", "8.3.rc1").replace("v0.13.0", "v0.11.0")
    root = write(
        tmp_path / "fork",
        {
            "docker/Dockerfile.a2": DOCKERFILE.replace("@CHIP@", "910b"),
            "docker/Dockerfile.a2.openEuler": DOCKERFILE.replace("@CHIP@", "910b"),
            "docker/Dockerfile.a3": DOCKERFILE.replace("@CHIP@", "a3"),
            "docker/Dockerfile.310p": DOCKERFILE.replace("@CHIP@", "310p"),
            "docker/Dockerfile.old": old.replace("@CHIP@", "910b"),
            "docker/Dockerfile.cuda": "FROM nvidia/cuda:12.8.1\nARG VLLM_TAG=v0.12.0\n",
        },
    )
    matrix = matrix_of(root)
    expected = {
        "cann": "8.5.0",
        "python": "3.11",
        "vllm": "0.13.0",
        "megatron_core": "0.12.1",
        "torch": "2.8.0",
        "torch_npu": "2.8.0",
        "device": "npu",
    }
    assert {name: dict(matrix.stacks[name].axes) for name in selected(matrix)} == {
        "fork-a2": {**expected, "soc": "a2"},
        "fork-a3": {**expected, "soc": "a3"},
    }


def test_a_fork_of_verl_gets_the_newest_dockerfile_that_installs_it_without_naming_a_version(
    tmp_path: Path,
) -> None:
    newest = (
        "FROM quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12\n"
        "RUN git clone -b v0.23.0 https://github.com/vllm-project/vllm.git\n"
        "RUN pip install torch==2.10.0+cpu\n"
    )
    root, _start = fork_of_main(tmp_path)
    write(root, {"Dockerfile.new": newest, "Dockerfile.old": DOCKERFILE.replace("@CHIP@", "910b")})
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "images")
    matrix = matrix_of(root)
    [stack] = [matrix.stacks[name].axes for name in selected(matrix)]
    assert stack["cann"] == "9.1.0"
    assert stack["torch"] == "2.10.0"
    assert stack["vllm"] == "0.23.0"


def test_a_source_far_from_any_release_is_followed_from_today_on(tmp_path: Path) -> None:
    root = write(tmp_path / "fork", {"vllm_ascend/__init__.py": "", "vllm_ascend/ops.py": "a = 1\n"})
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    start = git(root, "rev-parse", "HEAD").strip()
    matrix = matrix_of(root)
    assert matrix.stacks["fork"].axes["vllm_ascend"].endswith(f"@{start}")
    (entry,) = yaml.safe_load((root / "matrix.yaml").read_text())["patches"]
    assert entry == {"branch": "HEAD", "base": start, "upstream": "vllm_ascend"}


@pytest.mark.parametrize(
    "name",
    [
        "third_party/verl/0.7.1/patches/fix.diff",
        "patches/verl-0.7.1/0001-x.patch",
        "npu/verl-v0.7.1.patch",
        "补丁/verl v0.7.1/时间 修复.patch",
    ],
)
def test_patches_are_for_the_release_that_their_path_names(name: str, tmp_path: Path) -> None:
    root = write(tmp_path, {name: PATCH.format("verl")})
    init(root)
    matrix = load_matrix(root / "matrix.yaml")
    [place] = [place for place in matrix.patch_places if not place.is_included]
    axis = matrix.axes["verl"]
    assert place.versions is not None
    assert place.versions.holds({"verl": axis.parse("0.7.1")})
    assert not place.versions.holds({"verl": axis.parse("0.9.0")})
    chosen = matrix.cells("default").cells
    assert {cell.axes["verl"] for cell in chosen if cell.stack and "-to-" not in cell.stack} == {"0.7.1"}


@pytest.mark.parametrize(
    "name", ["torch-2.7.1/verl.patch", "plugin/2.3.0/patches/verl/x.patch", "verl/0.7.1.0.5abc/x.patch"]
)
def test_a_number_that_is_no_release_of_the_upstream_restricts_nothing(name: str, tmp_path: Path) -> None:
    root = write(tmp_path, {name: PATCH.format("verl")})
    init(root)
    [place] = [one for one in load_matrix(root / "matrix.yaml").patch_places if not one.is_included]
    assert place.versions is None


@pytest.mark.parametrize(
    "files",
    [
        {"patches/verl/README.md": "words\n"},
        {"patches/verl/gcc.patch": PATCH.format("gcc")},
        {"patches/vllm_ascend/build.sh": "true\n", "patches/vllm_ascend/sub/x.txt": "\n"},
    ],
)
def test_folders_that_are_named_like_stacks_of_this_project_are_none(
    files: dict[str, str], tmp_path: Path
) -> None:
    root = write(tmp_path, files)
    init(root)
    done = CliRunner().invoke(app, ["--root", str(root), "plan"])
    assert done.exit_code == 0, done.output


def test_damaged_files_among_patches_are_named_and_keep_nothing_else_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, {"patches/verl/a.patch": PATCH.format("verl"), "patches/verl/empty.patch": ""})
    (root / "patches/verl/binary.patch").write_bytes(b"\0\xff")
    monkeypatch.chdir(root)
    done = init(root)
    assert "3 files, patches of verl" in done.output
    listed = patches(root, "list")
    assert "verl/a  in" in listed.output
    assert "empty.patch" in listed.output
    assert "a.patch)" in listed.output
    # Those of the included matrix are of another repository.
    others = patches(root, "list", "--without-own").output
    assert "verl/a  in" not in others
    assert "2.patch, of another repository)" in others
    every = json.loads(patches(root, "list", "--json").stdout)["patches"]
    own = [one["file"] for one in every if one["is_own"]]
    assert sorted(own) == [f"patches/verl/{name}.patch" for name in ("a", "binary", "empty")]


@pytest.mark.parametrize(
    "arguments", [("--root", "{here}", "init"), ("--root", "elsewhere", "init", "{here}")]
)
def test_the_folder_is_the_one_that_is_named_or_that_of_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    given = [one.format(here=tmp_path / "here") for one in arguments]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "here/matrix.yaml").is_file()
    assert list((tmp_path / "cwd").iterdir()) == []
