"""Versions in install commands: of READMEs and scripts, at commits and in submodules."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner
from git_command import commit_all, git

from harness.cli.app import app
from harness.matrix.reading.load_matrix import load_matrix
from harness.workspace.pins.install_commands import (
    command_pins,
    installed_lines,
    is_readme,
    readme_lines,
    script_lines,
)
from harness.workspace.pins.pinned_commits import commit_version

PATCH = "diff --git a/{0}/x.py b/{0}/x.py\n--- a/{0}/x.py\n+++ b/{0}/x.py\n@@ -1 +1,2 @@\n a = 1\n+b = 1\n"
README = """\
# A recipe
Older images (`docker pull quay.io/ascend/vllm-ascend:v0.9.1`) are not supported. git clone -b v0.1.0 x/vllm.git
- vllm==0.11.0
- `vllm_ascend == v0.11.0rc1`
- about torch==2.7.1 and more
```python
os.system("git clone -b v0.2.0 https://x.org/vllm-project/vllm.git")
```
   ```bash
   # git clone -b v0.3.0 https://x.org/vllm-project/vllm.git
   $ git clone https://x.org/volcengine/verl.git && cd verl
   git checkout {commit}
   ```
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def committed(root: Path, files: dict[str, str]) -> str:
    return commit_all(write(root, files))


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commit of a clone of verl between two releases, below the folder of mirrors."""
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    monkeypatch.setenv("NPU_MATRIX_FETCH", "false")
    return committed(tmp_path / "mirrors/verl", {"verl/version/version": "0.7.0.dev\n"})


def entries(root: Path) -> dict[str, tuple[str, str]]:
    """Folder -> (upstream and versions, why it is left out) of what `init` wrote."""
    done = CliRunner().invoke(app, ["init", str(root)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return {
        one.folder: (f"{one.upstream} {one.versions or ''}".strip(), one.left_out)
        for one in load_matrix(root / "matrix.yaml").patch_places
        if not one.is_included
    }


def test_only_shell_blocks_and_list_items_of_a_readme_count() -> None:
    lines = list(readme_lines(README.format(commit="c651b7b4207e")))
    assert lines[:2] == [("vllm==0.11.0", 3), ("vllm_ascend==0.11.0rc1", 4)]
    assert list(command_pins(lines)) == [("verl", "@c651b7b4207e", 12)]
    assert is_readme(PurePosixPath("a/README.md"))
    assert is_readme(PurePosixPath("README_zh-CN.md"))
    assert not is_readme(PurePosixPath("readme.py"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("docker pull quay.io/ascend/vllm-ascend:v0.14.0rc1-a3", [("vllm-ascend", "0.14.0rc1")]),
        ("FROM x.io/ascend/vllm-ascend:0.18.0-310p-openeuler AS base", [("vllm-ascend", "0.18.0")]),
        ("IMAGE=quay.io/ascend/cann:8.3.rc1-910b-ubuntu22.04-py3.11", [("cann", "8.3.RC1")]),
        # Builds of a branch or of a night are not the release.
        ("docker pull quay.io/ascend/vllm-ascend:v0.9.1-dev-openeuler", []),
        ("docker pull quay.io/ascend/vllm-ascend:nightly-releases-v0.20.2rc-openeuler", []),
        ("docker pull quay.io/ascend/vllm-ascend:main-a3", []),
        (
            "git -C verl reset --hard 54c9b7364c2d188b2ba4107404cfa3c2b446df19",
            [("verl", "@54c9b7364c2d188b2ba4107404cfa3c2b446df19")],
        ),
        ("cd verl; git checkout 95470480", [("verl", "@95470480")]),
        ("cd MindSpeed && git checkout v2.0.0_core_r0.8.0", [("MindSpeed", "2.0.0_core_r0.8.0")]),
        ("cd verl && git checkout feature", []),
        ("git checkout 95470480", []),
    ],
)
def test_what_commands_name(line: str, found: list[tuple[str, str]]) -> None:
    assert [(name, version) for name, version, _ in command_pins(script_lines(line))] == found


SCRIPT = """\
pip uninstall -y torch==2.7.1
echo torch==2.6.0
# pip install torch==2.5.1
pip install -q \\
  "torch==2.9.0" \\
  torchvision==0.24.0 && echo vllm==0.9.0
uv pip install vllm-ascend==0.11.0; cd verl
torch==2.4.0
"""


def test_a_script_pins_what_it_installs() -> None:
    lines = installed_lines(script_lines(SCRIPT))
    assert [(text.strip().rstrip("\\").strip(), number) for text, number in lines] == [
        ("-q", 4),
        ('"torch==2.9.0"', 5),
        ("torchvision==0.24.0", 6),
        ("vllm-ascend==0.11.0", 7),
    ]


def test_patches_of_an_installed_package_are_found_by_the_files_of_its_releases(tmp_path: Path) -> None:
    """As in AgentSDK, whose scripts enter the folder of the installed package: `patch -p1 -N < x.patch`."""
    eagle = "worker/model_runner_v1.py"
    added = "--- /dev/null\n+++ b/worker/mine.py\n@@ -0,0 +1 @@\n+a = 1\n"
    plain = "--- models/llama/modeling_llama.py\n+++ models/llama/modeling_llama.py\n@@ -1 +1 @@\n-a\n+b\n"
    root = write(
        tmp_path,
        {
            "deploy/install.sh": "pip install vllm==0.11.0 torch==2.7.1\npip install transformers==4.57.1\n",
            "deploy/vllm-ascend.patch": PATCH.format("worker").replace("worker/x.py", eagle) + added,
            "deploy/moe/transformers.patch": plain,
            # No release has this file, and nothing names an upstream.
            "deploy/vllm-plugin.patch": PATCH.format("nowhere"),
            "deploy/other/fix.patch": PATCH.format("worker").replace("worker/x.py", eagle),
        },
    )
    assert CliRunner().invoke(app, ["init", str(root)], catch_exceptions=False).exit_code == 0
    matrix = load_matrix(root / "matrix.yaml")
    found = {
        (one.folder, one.files or ("*",), one.upstream, one.strip, one.inside)
        for one in matrix.patch_places
        if not one.is_included and not one.left_out
    }
    assert found == {
        ("deploy", ("vllm-ascend.patch",), "vllm_ascend", 1, "vllm_ascend"),
        ("deploy/moe", ("*",), "transformers", 0, "transformers"),
    }
    assert {
        one.axes["vllm"]: one.axes["torch"] for one in matrix.stacks.values() if "deploy" in one.name
    } == {"0.11.0": "2.7.1"}


def test_a_requirement_on_a_commit_that_a_script_checks_out_is_a_pin(tmp_path: Path, upstream: str) -> None:
    root = write(
        tmp_path / "own",
        {
            "requirements_third_party.txt": f"verl=={upstream}\nrllm==v0.1\nmindspeed==core_r0.8.0\n",
            "get.sh": "git clone https://x.org/MindSpeed.git\ncd MindSpeed && git checkout 2.3.0_core_r0.12.1\n",
            "patches/a.patch": PATCH.format("verl"),
        },
    )
    assert CliRunner().invoke(app, ["init", str(root)], catch_exceptions=False).exit_code == 0
    own = [one for one in load_matrix(root / "matrix.yaml").stacks.values() if one.name.startswith("own")]
    assert [(one.axes["verl"], one.axes["mindspeed"]) for one in own] == [(f"0.7.0.dev0@{upstream}", "2.3.0")]


@pytest.mark.parametrize(
    ("tag", "commits", "version"),
    [
        ("v0.16.0rc1", 32, "0.16.0rc2.dev32"),
        ("v0.9.1", 0, "0.9.1"),
        ("v0.9.1", 3, "0.9.2.dev3"),
        ("v0.7.3.post1", 2, "0.7.3.post2.dev2"),
        ("core_v0.12.1", 1, "0.12.2.dev1"),
        ("nightly", 1, ""),
        ("", 1, ""),
    ],
)
def test_a_commit_whose_files_state_no_version_has_that_of_its_tags(
    tag: str, commits: int, version: str, tmp_path: Path
) -> None:
    commit = committed(tmp_path, {"vllm_ascend/x.py": "a = 1\n"})
    if tag:
        git(tmp_path, "tag", tag)
    for number in range(commits):
        commit = committed(tmp_path, {"vllm_ascend/x.py": f"a = {number + 2}\n"})
    found = commit_version("vllm_ascend", commit[:9], [tmp_path])
    assert found == (f"{version}@{commit}" if version else "")


def test_a_shallow_clone_tells_no_version_of_a_commit(tmp_path: Path) -> None:
    for number in range(3):
        commit = committed(tmp_path / "whole", {"vllm_ascend/x.py": f"a = {number}\n"})
    shallow = ["clone", "-q", "--depth", "1", f"file://{tmp_path}/whole", str(tmp_path / "shallow")]
    git(tmp_path, *shallow)
    assert commit_version("vllm_ascend", commit, [tmp_path / "shallow"]) == ""


def test_each_project_gets_the_commit_that_its_readme_checks_out(tmp_path: Path, upstream: str) -> None:
    root = write(
        tmp_path / "recipes",
        {
            "one/README.md": README.format(commit=upstream[:10]),
            "one/patches/a.patch": PATCH.format("verl"),
            "two/README.md": "```\ndocker pull quay.io/ascend/vllm-ascend:v0.14.0rc1-a3\n```\n",
            "two/patches/b.patch": PATCH.format("vllm_ascend"),
            "two/patches/c.patch": PATCH.format("vllm"),
            "three/README.md": README.format(commit="f" * 40),
            "three/patches/d.patch": PATCH.format("verl"),
            "four/README.md": "no commands",
            "four/patches/e.patch": PATCH.format("vllm_ascend"),
            # Without patches below it, a README pins nothing.
            "docs/README.md": "```\ngit clone -b v0.6.1 https://x.org/verl-project/verl.git\n```\n",
        },
    )
    found = entries(root)
    assert found["one/patches"] == (f"verl verl ==0.7.0.dev0@{upstream}", "")
    left_out = found.pop("three/patches")[1]
    assert (
        "three/README.md:12 pins the commit ffffffffffff of verl, and no clone here tells its version"
        in left_out
    )
    assert "pins no version of it" in found["four/patches"][1]
    text = (root / "matrix.yaml").read_text()
    # vllm is not pinned there: the published table lists it for this vllm-ascend.
    assert 'folder: two/patches, upstream: vllm, versions: "==0.14.1"' in text
    stacks = load_matrix(root / "matrix.yaml").stacks
    assert stacks["recipes-one"].axes["verl"] == f"0.7.0.dev0@{upstream}"
    assert stacks["recipes-one"].axes["vllm_ascend"] == "0.11.0rc1"
    assert stacks["recipes-two"].axes["vllm_ascend"] == "0.14.0rc1"
    assert not any("docs" in name for name in stacks)


def test_a_commit_that_no_clone_has_gets_the_version_that_a_table_lists(
    tmp_path: Path, upstream: str
) -> None:
    commands = f"git clone https://x.org/vllm-project/vllm.git && cd vllm\ngit checkout {'f' * 40}\n"
    readme = f"- vllm_ascend==0.14.0rc1\n```bash\n{commands}```\n"
    write(tmp_path / "mine", {"README.md": readme, "patches/a.patch": PATCH.format("vllm_ascend")})
    entries(tmp_path / "mine")
    axes = load_matrix(tmp_path / "mine/matrix.yaml").stacks["mine"].axes
    assert (axes["vllm_ascend"], axes["vllm"]) == ("0.14.0rc1", f"0.14.1@{'f' * 40}")


def test_patches_like_the_tree_of_a_submodule_are_one_project_at_its_commit(
    tmp_path: Path, upstream: str
) -> None:
    root = tmp_path / "big"
    committed(root, {"README.md": "", "backends/verl/verl/own.py": "", "backends/verl/verl/a/own.py": ""})
    git(root, "submodule", "--quiet", "add", str(tmp_path / "mirrors/verl"), "third_party/verl")
    for folder in ("", "a/", "a/b/"):
        patch = PATCH.format("verl").replace("/verl/", f"/verl/{folder}")
        write(root, {f"backends/verl/verl/{folder}x.py.patch": patch})
    git(root, "add", ".")
    found = entries(root)
    assert set(found.values()) == {("verl", "")}
    assert f"verl: 0.7.0.dev0@{upstream}  # .gitmodules:2" in (root / "matrix.yaml").read_text()
