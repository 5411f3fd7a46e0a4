from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from git_command import commit_all, git

from harness.builds.export.docker_context import docker_context, patch_contents
from harness.builds.export.export_formats import EXPORTS
from harness.builds.export.install_script import as_script
from harness.builds.lock.cell_lock import CellLock, LockFacets, PatchFile, make_lock
from harness.builds.lock.commit_trees import add_tree_ids
from harness.builds.lock.lock_notices import lock_notices
from harness.digest import digest_bytes
from harness.errors import InputError
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet, PlatformFacet
from harness.sources.packages.lockfile import parse_lock
from harness.sources.packages.wheel_variants import VariantWheel

ROOT = Path(__file__).parents[3]
LOCK = """\
jinja2==3.1.6 \\
    --hash=sha256:aa
    # via torch
numpy==1.26.4 \\
    --hash=sha256:bb
    # via
    #   verl
    #   vllm-ascend
ray==2.60.0 \\
    --hash=sha256:cc
    # via verl
torch==2.7.1 \\
    --hash=sha256:dd
    # via torch-npu
torch-npu==2.7.1 \\
    --hash=sha256:ee
    # via -r requirements.in
verl==0.7.1 \\
    --hash=sha256:ff
    # via -r requirements.in
vllm-ascend==0.11.0 \\
    --hash=sha256:11
    # via -r requirements.in
"""
PATCH = b"--- a/verl/a.py\n+++ b/verl/a.py\n@@ -1 +1 @@\n-A = 1\n+A = 2\n"


PINS = PinsFacet(
    from_source=(
        PinnedSource(
            package="vllm", version="0.11.0", commit="v0.11.0", repository="https://git.example/vllm"
        ),
    ),
    build_env={
        "vllm": {"VLLM_TARGET_DEVICE": "empty"},
        "vllm-ascend": {"COMPILE_CUSTOM_KERNELS": "1"},
    },
)


def lock(tmp_path: Path, name: str = "patches/verl/fix/0.7.1.patch", **changes: Any) -> CellLock:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(PATCH)
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker/cell.Dockerfile.j2").write_text((ROOT / "docker/cell.Dockerfile.j2").read_text())
    patch = PatchFile(id="verl/fix", file=name, digest=digest_bytes(PATCH))
    facets = LockFacets(
        pins=replace(PINS, **changes.pop("pins", {})),
        platform=PlatformFacet(python="3.11", arch="aarch64"),
        patches=(patch,),
    )
    cell = {
        "cell": "verl-0-7-1-4f7be5e8e382",
        "title": "a title | with <markup>\nand two lines",
        "axes": {"cann": "8.5.0", "soc": "a2", "verl": "0.7.1"},
        "inconsistencies": ["says 2.7.1.post1\nRUN evil (a table)"],
    }
    return make_lock(facets, LOCK, **{**cell, **changes})


def test_layers_go_from_what_changes_seldom_to_what_changes_often(tmp_path: Path) -> None:
    layers = {name: [package.name for package in packages] for name, packages in lock(tmp_path).layers()}
    assert layers == {
        "torch": ["jinja2", "torch", "torch-npu"],
        "vllm-ascend": ["numpy", "vllm-ascend"],
        "training": ["ray"],
        "verl": ["verl"],
    }


@pytest.mark.parametrize("name", ["补丁/0001-a b.patch", "p/[BugFix] it's.diff"])
def test_a_patch_with_any_name_gets_one_that_a_dockerfile_can_name(name: str, tmp_path: Path) -> None:
    """Patches lie in repositories of other people, under the names that these have given them."""
    made = lock(tmp_path, name)
    exported = f"patches/{digest_bytes(PATCH)}.patch"
    context = docker_context(made, tmp_path)
    assert context[exported] == PATCH
    dockerfile = context["Dockerfile"].decode()
    assert f"COPY {exported} /cell/{exported}" in dockerfile
    assert name not in dockerfile
    script = as_script(made, patch_contents(made, tmp_path))
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert name in EXPORTS["requirements"](made)


def test_every_package_is_in_one_layer(tmp_path: Path) -> None:
    made = lock(tmp_path)
    placed = sorted(package.name for _name, packages in made.layers() for package in packages)
    assert placed == sorted(package.name for package in made.packages)


def test_requirements_are_a_lock_again(tmp_path: Path) -> None:
    made = lock(tmp_path)
    again = parse_lock(EXPORTS["requirements"](made))
    assert [(p.name, p.version, p.hashes) for p in again] == [
        (p.name, p.version, p.hashes) for p in made.packages
    ]


def test_the_script_is_bash_and_holds_everything(tmp_path: Path) -> None:
    script = EXPORTS["script"](lock(tmp_path))
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "VLLM_TARGET_DEVICE=empty python3 -m pip install" in script
    assert digest_bytes(PATCH) in script
    assert "SOC_VERSION=ascend910b1" in script


def test_the_dockerfile_is_whole_and_nothing_breaks_out_of_a_comment(tmp_path: Path) -> None:
    made = lock(tmp_path, image_digest=f"sha256:{'ab' * 32}")
    context = docker_context(made, tmp_path)
    text = context["Dockerfile"].decode()
    lines = text.splitlines()
    assert f"FROM ${{REGISTRY}}quay.io/ascend/cann@sha256:{'ab' * 32} AS cell" in lines
    assert "# quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11" in lines
    assert not [line for line in lines if line.startswith("RUN evil")]
    assert set(context) == {
        "Dockerfile",
        "cell.json",
        "cann_version.py",
        "cell_check.py",
        "layers/torch.txt",
        "layers/vllm-ascend.txt",
        "layers/training.txt",
        "layers/verl.txt",
        "patches/verl/fix/0.7.1.patch",
    }
    built = next(line for line in lines if line.endswith("layers/vllm-ascend.txt") and "pip" in line)
    assert "--no-binary vllm-ascend " in built
    assert text.count("--no-binary") == 1
    order = [text.index(f"COPY layers/{name}.txt") for name in ("torch", "vllm-ascend", "training", "verl")]
    assert order == sorted(order)
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert set(copied) == set(context) - {"Dockerfile"}


def test_an_image_without_a_digest_is_said_with_how_to_pin_it(tmp_path: Path) -> None:
    made = lock(tmp_path)
    pin = "npu-matrix --base-image quay.io/ascend/cann@sha256:DIGEST lock verl-0-7-1-4f7be5e8e382"
    assert pin in lock_notices(made)[0]
    for shape in ("requirements", "script", "conda"):
        assert f"# note: {lock_notices(made)[0]}" in EXPORTS[shape](made)
    assert pin in EXPORTS["markdown"](made)
    assert f"# Note: {lock_notices(made)[0]}" in docker_context(made, tmp_path)["Dockerfile"].decode()


@pytest.mark.parametrize(
    ("reference", "image", "base"),
    [
        (f"my.example:5000/cann@sha256:{'a' * 64}", "my.example:5000/cann", None),
        (f"my.example:5000/cann:9@sha256:{'a' * 64}", "my.example:5000/cann:9", None),
        ("my.example:5000/cann", "my.example:5000/cann", "my.example:5000/cann"),
    ],
)
def test_another_base_image_by_digest_or_tag(tmp_path: Path, reference: str, image: str, base: str | None):
    made = lock(tmp_path, base_image=reference)
    assert made.image == image
    assert made.base == (base or f"my.example:5000/cann@sha256:{'a' * 64}")
    assert any("given by a tag" in notice for notice in lock_notices(made)) == (base is not None)
    assert f"FROM ${{REGISTRY}}{made.base} AS cell" in docker_context(made, tmp_path)["Dockerfile"].decode()


def test_a_base_image_that_is_no_digest_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not an image digest"):
        lock(tmp_path, base_image="cann@sha256:short")


def test_a_commit_named_by_its_first_digits_is_looked_up_in_the_whole_history(tmp_path: Path) -> None:
    pins = {"from_source": (PinnedSource(package="x", version="1", commit="8365f70e925", repository="r"),)}
    made = lock(tmp_path, pins=pins)
    for text in (EXPORTS["script"](made), docker_context(made, tmp_path)["Dockerfile"].decode()):
        assert "checkout -q 8365f70e925" in text
        assert "--depth 1" not in text
    assert "fetch -q --depth 1 https://git.example/vllm v0.11.0" in EXPORTS["script"](lock(tmp_path))


def test_sources_that_took_no_part_in_the_resolution_are_named(tmp_path: Path) -> None:
    made = lock(tmp_path, resolved_sources=())
    assert made.unpinned_sources == ("vllm",)
    assert "neither pinned nor installed" in EXPORTS["markdown"](made)
    assert "pip check" in EXPORTS["requirements"](made)
    assert lock(tmp_path, resolved_sources=("vllm",)).unpinned_sources == ()


CUDA_LOCK = """\
nvidia-cublas-cu12==12.8 \\
    --hash=sha256:aa
    # via torch
torch==2.9.0 \\
    --hash=sha256:bb
    # via -r requirements.in
"""


def test_a_simulated_cell_installs_no_cuda_and_needs_no_cann(tmp_path: Path) -> None:
    facets = LockFacets(pins=PinsFacet(), platform=PlatformFacet(python="3.11", arch="x86_64"))
    axes = {"cann": "8.5.0", "soc": "a2", "device": "sim"}
    made = make_lock(facets, CUDA_LOCK, cell="c", title="c", axes=axes)
    assert [package.name for package in made.packages] == ["torch"]
    assert made.image == "python:3.11-slim"
    assert made.build_env == {}
    assert "# not installed on this device: nvidia-cublas-cu12: a CUDA library" in EXPORTS["requirements"](
        made
    )
    assert "nvidia-cublas-cu12: a CUDA library" in EXPORTS["markdown"](made)
    real = make_lock(facets, CUDA_LOCK, cell="c", title="c", axes={**axes, "device": "npu"})
    assert not real.omitted, "a torch for CUDA does not load without its libraries"
    assert any("torch is a build for CUDA" in notice for notice in lock_notices(real))
    assert real.image.startswith("quay.io/ascend/cann:8.5.0-910b")


def test_packages_of_another_index_are_installed_with_it(tmp_path: Path) -> None:
    index = {"torch-npu": ("https://vendor.example/simple", "https://other.example/simple")}
    made = lock(tmp_path, pins={"index": index}, searched=["https://vendor.example/simple"])
    option = "--extra-index-url https://vendor.example/simple\n"
    assert EXPORTS["requirements"](made).count(option) == 1
    assert "other.example" not in EXPORTS["requirements"](made)
    context = {name: data.decode() for name, data in docker_context(made, tmp_path).items()}
    assert [name for name, text in context.items() if option in text] == ["layers/torch.txt"]
    assert option in EXPORTS["script"](made)


def test_a_builder_without_buildkit_gets_a_file_without_mounts(tmp_path: Path) -> None:
    text = docker_context(lock(tmp_path), tmp_path, buildkit=False)["Dockerfile"].decode()
    assert "--mount" not in text
    assert "ARG PIP_INDEX_URL" in text
    assert "--no-buildkit" in docker_context(lock(tmp_path), tmp_path)["Dockerfile"].decode()


def test_the_build_environment_reaches_only_layers_that_compile(tmp_path: Path) -> None:
    text = docker_context(lock(tmp_path), tmp_path)["Dockerfile"].decode()
    steps = dict(
        re.findall(
            r"^# (torch|vllm|vllm-ascend|training|verl)\n(.*?)(?=^# |\Z)", text, re.MULTILINE | re.DOTALL
        )
    )
    assert "SOC_VERSION" not in steps["torch"] + steps["training"] + steps["verl"]
    assert "export SOC_VERSION=ascend910b1" in steps["vllm-ascend"]
    assert "ENV SOC_VERSION" not in text


VARIANT = VariantWheel(
    label="a3",
    address="https://wheels.example/v/vllm_ascend-0.11.0-cp311-cp311-linux_aarch64-a3.whl",
    sha256=64 * "a",
)


def test_a_wheel_variant_for_the_chip_is_fetched_and_not_compiled(tmp_path: Path) -> None:
    plain, made = lock(tmp_path), lock(tmp_path).with_variants({"vllm-ascend": VARIANT})
    assert "--no-binary vllm-ascend" in EXPORTS["script"](plain)
    context = docker_context(made, tmp_path)
    script = EXPORTS["script"](made)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    for text in (script, context["Dockerfile"].decode()):
        assert "--no-binary" not in text
        steps = [
            text.index(step) for step in (f"curl -fLo {VARIANT.plain_name}", "sha256sum -c", VARIANT.name)
        ]
        assert text.index(f"install --no-deps ./{VARIANT.plain_name}") > max(steps[:2])
        assert re.search(r"command -v .*curl|for tool in .*curl", text)
        assert "not compiled: its wheel variant a3" in text
    assert b"vllm-ascend" not in context["layers/vllm-ascend.txt"]
    assert "vllm-ascend==0.11.0" in EXPORTS["requirements"](made)


@pytest.mark.parametrize(
    "odd",
    [
        {"sha256": ""},
        {"sha256": "aa"},
        {"address": f"{VARIANT.address.removesuffix('-a3.whl')}%0ARUN%20evil-a3.whl"},
        {"address": VARIANT.address.replace("https", "file")},
        {"address": VARIANT.address.replace("/v/", "/v\n/")},
    ],
)
def test_a_wheel_variant_that_nothing_pins_is_only_named(tmp_path: Path, odd: dict[str, str]) -> None:
    made = lock(tmp_path).with_variants({"vllm-ascend": replace(VARIANT, **odd)})
    assert "--no-binary vllm-ascend" in EXPORTS["script"](made)
    assert any("pip and uv choose no variants" in notice for notice in lock_notices(made))
    assert "\nRUN evil" not in docker_context(made, tmp_path)["Dockerfile"].decode()


def test_a_package_built_from_a_repository_stands_in_its_layer(tmp_path: Path) -> None:
    text = docker_context(lock(tmp_path), tmp_path)["Dockerfile"].decode()
    places = [
        text.index(part)
        for part in ("layers/torch.txt", "https://git.example/vllm", "layers/vllm-ascend.txt")
    ]
    assert places == sorted(places)
    assert "its tree id is unknown" in text


def test_what_a_commit_held_is_checked_where_a_mirror_tells(tmp_path: Path) -> None:
    repository = tmp_path / "mirrors/vllm"
    repository.mkdir(parents=True)
    (repository / "setup.py").write_text("")
    commit_all(repository)
    git(repository, "tag", "v0.11.0")
    tree = git(repository, "rev-parse", "HEAD^{tree}")
    made = add_tree_ids(lock(tmp_path), [tmp_path / "mirrors"])
    assert made.from_source[0].tree == tree
    assert f"| `v0.11.0` | {tree} |" in EXPORTS["markdown"](made)
    for text in (EXPORTS["script"](made), docker_context(made, tmp_path)["Dockerfile"].decode()):
        assert f')" = {tree}' in text
    assert add_tree_ids(lock(tmp_path), ()).from_source[0].tree == ""


@pytest.mark.parametrize("shape", ["requirements", "script", "markdown", "conda"])
def test_every_export_says_base_patches_and_inconsistencies(tmp_path: Path, shape: str) -> None:
    text = EXPORTS[shape](lock(tmp_path))
    assert "by tag; its digest is not known" in text
    assert digest_bytes(PATCH) in text
    assert "says 2.7.1.post1 RUN evil" in text
    assert "v0.11.0" in text or "built from source" in text
    pinned = EXPORTS[shape](lock(tmp_path, image_digest=f"sha256:{'ab' * 32}"))
    assert f"sha256:{'ab' * 32}" in pinned


def test_markdown_has_the_parts_the_inconsistencies_and_no_markup_of_others(tmp_path: Path) -> None:
    text = EXPORTS["markdown"](lock(tmp_path))
    assert "| cann | 8.5.0 |" in text
    assert "- says 2.7.1.post1 RUN evil (a table)" in text
    assert "<markup>" not in text
    assert "7 packages" in text


def test_conda_and_json_can_be_read(tmp_path: Path) -> None:
    made = lock(tmp_path)
    conda = yaml.safe_load(EXPORTS["conda"](made))
    assert conda["dependencies"][0] == "python=3.11"
    assert conda["variables"]["VLLM_TARGET_DEVICE"] == "empty"
    assert json.loads(EXPORTS["json"](made))["schema"]["name"] == "npu-matrix.lock"


@pytest.mark.parametrize(
    "changes",
    [
        {
            "pins": {
                "from_source": (PinnedSource(package="x", version="1", commit="$(evil)", repository="r"),)
            }
        },
        {
            "pins": {
                "from_source": (PinnedSource(package="x", version="1", commit="c", repository="r; evil"),)
            }
        },
        {"pins": {"build_env": {"x": {"A": "b\nRUN evil"}}}},
        {"axes": {"cann": "8.5.0 evil", "soc": "a2"}},
        {"image_digest": "sha256:zz"},
    ],
)
def test_values_that_could_break_out_of_a_build_file_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(InputError):
        lock(tmp_path, **changes)


def test_a_patch_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    made = lock(tmp_path)
    (tmp_path / "patches/verl/fix/0.7.1.patch").write_bytes(b"other")
    with pytest.raises(InputError) as caught:
        docker_context(made, tmp_path)
    assert "verl/fix" in str(caught.value)
