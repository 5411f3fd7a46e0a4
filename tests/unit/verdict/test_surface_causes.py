"""Causes that are computed from the releases in a surface pack, here of packages made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compat.knowledge.module_outline import outline
from harness.compat.knowledge.pack_at_hand import PackAtHand, pack_at_hand, user_pack_file
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.verdict.triage.diagnosis import triage_text

# What the provider (by the name of a known package) has in three releases.
EARLY = """
from abc import abstractmethod
from dataclasses import dataclass
class Batch:
    def __init__(self, size): ...
    def fill(self, first): ...
    old = 1
class Base:
    def run(self, x): ...
class Open:
    def __getattr__(self, name): ...
@dataclass
class Options:
    size: int = 1
def gone(): ...
class Runner:
    def call(self, x): ...
"""
LATE = """
from abc import abstractmethod
from dataclasses import dataclass
class Batch:
    def __init__(self, size, block_size): ...
    def fill(self, first, second): ...
class Base:
    @abstractmethod
    def run(self, x): ...
    @abstractmethod
    def stop(self): ...
class Open:
    def __getattr__(self, name): ...
@dataclass
class Options:
    size: int = 1
    seed: int = 0
def new(): ...
class Runner:
    def __init__(self): self.budget = 1
    def call(self, x, mask): ...
"""
PLUGIN = (
    "from vllm.core import Base, Runner\nclass NpuRunner(Runner):\n    def call(self, x): ...\n"
    "class Worker(Base):\n    def run(self, x): ...\n"
)
PLUGIN_LATER = PLUGIN + "    def stop(self): ...\n"
SCHEMAS = "custom:\n  - func: npu_a(Tensor self) -> Tensor\n"
USER = 'Traceback (most recent call last):\n  File "/x/site-packages/vllm_ascend/worker.py", line 3, in f\n    y\n'


def files(**modules: str) -> dict[str, bytes]:
    return {name.replace("__", "/") + ".py": outline(text.encode()) for name, text in modules.items()}


def releases(contents: dict[str, dict[str, bytes] | None]) -> PackagedFiles:
    return PackagedFiles(
        releases=tuple(PackedRelease(version=v, unread="" if c else "not read") for v, c in contents.items()),
        contents={version: content for version, content in contents.items() if content},
    )


@pytest.fixture(scope="module")
def pack_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    early, late = files(vllm__core=EARLY), files(vllm__core=LATE, vllm__extra="x = 1\n")
    for content in (early, late):
        content["vllm/__init__.py"] = b"\n"
    plugin = {"vllm_ascend/__init__.py": b"\n"}
    operators = {
        "torch_npu/csrc/aten/npu_native_functions.yaml": SCHEMAS.encode(),
        "torch_npu/__init__.py": b"\n",
    }
    file = tmp_path_factory.mktemp("packs") / "s.pack"
    write_pack(
        file,
        {
            "vllm": releases({"0.8.5": early, "0.9.0": None, "0.9.1": late, "0.10.0": late}),
            "vllm-ascend": releases(
                {
                    "0.8.5rc1": {**plugin, **files(vllm_ascend__worker=PLUGIN)},
                    "0.9.1": {**plugin, **files(vllm_ascend__worker=PLUGIN_LATER)},
                }
            ),
            "torch-npu": releases({"2.5.1": {"torch_npu/__init__.py": b"\n"}, "2.7.1": operators}),
        },
    )
    return file


def derived(text: str, pack_file: Path, **versions: str):
    given = {name.replace("_", "-"): version for name, version in versions.items()}
    root = triage_text(text.encode(), versions=given, surfaces=PackAtHand(pack_file)).root
    return root.derived if root else None


CHANGED = {
    "ImportError: cannot import name 'new' from 'vllm.core' (/x/vllm/core.py)": (
        "0.8.5",
        "`vllm.core.new` exists in vllm from 0.9.1 on; vllm 0.8.5, which is installed, is not one of them",
    ),
    "ImportError: cannot import name 'gone' from 'vllm.core' (/x/vllm/core.py)": (
        "0.9.1",
        "`vllm.core.gone` exists in vllm until 0.8.5; vllm 0.9.1, which is installed, is not one of them",
    ),
    "ModuleNotFoundError: No module named 'vllm.extra'": (
        "0.8.5",
        "the module `vllm.extra` exists in vllm from",
    ),
    "TypeError: Batch.__init__() got an unexpected keyword argument 'block_size'": (
        "0.8.5",
        "`Batch.__init__` takes `block_size` in vllm from 0.9.1 on",
    ),
    "TypeError: Batch.__init__() missing 1 required positional argument: 'block_size'": (
        "0.9.1",
        "`Batch.__init__` can be called without `block_size` in vllm until 0.8.5",
    ),
    "TypeError: Options.__init__() got an unexpected keyword argument 'seed'": (
        "0.8.5",
        "`Options.__init__` takes `seed` in vllm from 0.9.1 on",
    ),
    "TypeError: Batch.fill() takes 2 positional arguments but 3 were given": (
        "0.8.5",
        "`Batch.fill` takes 3 positional arguments in vllm from 0.9.1 on",
    ),
    "AttributeError: 'Batch' object has no attribute 'old'": (
        "0.9.1",
        "`Batch` has `old` in vllm until 0.8.5",
    ),
    "AttributeError: module 'vllm.core' has no attribute 'new'": (
        "0.8.5",
        "`vllm.core.new` exists in vllm from",
    ),
}


@pytest.mark.parametrize("text", CHANGED)
def test_what_another_release_has_is_a_proven_cause(text: str, pack_file: Path) -> None:
    version, sentence = CHANGED[text]
    cause = derived(USER + text, pack_file, vllm=version)
    assert cause is not None
    assert cause.degree == "proven"
    assert sentence in cause.sentence
    assert cause.packages == ("vllm", "vllm-ascend")


# Of a module, Python says itself that it found it, and what it lacks; of a call, what refused it.
@pytest.mark.parametrize("text", CHANGED)
def test_without_the_version_the_cause_is_likely_or_names_what_else_it_can_be(
    text: str, pack_file: Path
) -> None:
    cause = derived(USER + text, pack_file)
    assert cause is not None
    if "object has no attribute" in text:
        # Not every object has what its class assigns.
        assert (cause.degree, cause.is_open) == ("likely", False)
        return
    assert (cause.degree, cause.is_open) == ("proven", True)
    if "()" in text:
        assert "what was called is of another release or commit of vllm, or other code of" in cause.sentence
    else:
        assert "does not have it: another release or commit of vllm, an incomplete" in cause.sentence
    assert cause.remedy.startswith("look up which vllm and which folder Python uses")


@pytest.mark.parametrize("text", ["partially initialized module ", ""])
def test_a_module_that_python_found_only_in_part_rules_nothing_out(text: str, pack_file: Path) -> None:
    where = "most likely due to a circular import" if text else "unknown location"
    cause = derived(
        f"{USER}ImportError: cannot import name 'new' from {text}'vllm.core' ({where})", pack_file
    )
    assert cause is None or (cause.degree, cause.is_open) == ("likely", False)


def test_a_name_that_a_build_makes_is_missing_in_sources(tmp_path: Path) -> None:
    """Releases import it from themselves and have no source of it; one has a stub."""
    text = "ImportError: cannot import name 'kernel_ops' from 'vllm'"
    user = {"vllm__layers": "from vllm import kernel_ops\n"}
    built = {"0.1": user, "0.2": {**user, "vllm__kernel_ops": "x = 1\n"}, "0.3": user, "0.4": user}
    later = {version: {"vllm__layers": "x = 1\n"} for version in ("0.5", "0.6", "0.7")}
    pack = packed(tmp_path, {"vllm": built | later})
    cause = derived(text, pack)
    assert cause is not None
    assert "`vllm.kernel_ops` is made when vllm is built" in cause.sentence
    assert "it is a folder of source code, an incomplete build, or another release" in cause.sentence
    assert (cause.degree, cause.is_open) == ("proven", True)
    # Where no release imports it from itself, the release that has it is the only one.
    (tmp_path / "other").mkdir()
    plain = {version: {"vllm__layers": "x = 1\n"} for version in ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")}
    plain["0.2"] = {"vllm__kernel_ops": "x = 1\n"}
    other = derived(text, packed(tmp_path / "other", {"vllm": plain}))
    assert other is not None
    assert "`vllm.kernel_ops` exists in vllm 0.2" in other.sentence


def test_an_attribute_that_the_installed_class_assigns_is_told_as_a_symptom(pack_file: Path) -> None:
    """A release that has it is no reason to install another one."""
    text = USER + "AttributeError: 'Runner' object has no attribute 'budget'"
    cause = derived(text, pack_file, vllm="0.9.1")
    assert cause is not None
    assert cause.degree == "symptom"
    assert "`Runner` of vllm 0.9.1 (vllm/core.py) has `budget`, and this object does not" in cause.sentence
    other = derived(text, pack_file, vllm="0.8.5")
    assert other is not None
    assert "`Runner` has `budget` in vllm from 0.9.1 on" in other.sentence


def test_a_path_of_windows_names_an_installed_file(pack_file: Path) -> None:
    file = r"(H:\python\Lib\site-packages\vllm\core.py)"
    cause = derived(f"ImportError: cannot import name 'new' from 'vllm.core' {file}", pack_file)
    assert cause is not None
    assert cause.degree == "proven"
    assert "the installed vllm, which has refused it, is not one of them" in cause.sentence


@pytest.mark.parametrize("text", CHANGED)
def test_what_the_installed_release_has_is_no_cause(text: str, pack_file: Path) -> None:
    other = "0.9.1" if CHANGED[text][0] == "0.8.5" else "0.8.5"
    cause = derived(USER + text, pack_file, vllm=other)
    assert cause is None or cause.degree == "symptom"


@pytest.mark.parametrize(
    "text",
    [
        "AttributeError: 'Open' object has no attribute 'any'",
        "AttributeError: 'Batch' object has no attribute 'never'",
        "ImportError: cannot import name 'never' from 'vllm.generated' (/x/vllm/generated.py)",
        "ModuleNotFoundError: No module named 'vllm.generated'",
        "TypeError: Nowhere.__init__() got an unexpected keyword argument 'seed'",
    ],
)
def test_what_no_release_tells_is_not_derived(text: str, pack_file: Path) -> None:
    cause = derived(USER + text, pack_file, vllm="0.9.1")
    assert cause is None or cause.degree == "symptom"


def test_a_package_that_python_does_not_find_is_missing_in_whatever_release(pack_file: Path) -> None:
    cause = derived(f"{USER}ModuleNotFoundError: No module named 'vllm'", pack_file, vllm="0.9.1")
    assert cause is not None
    assert cause.is_open
    assert "this Python finds no module `vllm`" in cause.sentence
    assert "0.9.1" not in cause.sentence


def test_an_imported_name_that_no_release_has_was_written_for_another_one(pack_file: Path) -> None:
    text = USER + "ImportError: cannot import name 'never' from 'vllm.core' (/x/vllm/core.py)"
    cause = derived(text, pack_file, vllm="0.9.1")
    assert cause is not None
    assert cause.degree == "likely"
    assert "`vllm.core.never` exists in none of the 3 releases of vllm from 0.8.5 to 0.10.0" in cause.sentence


def test_a_release_that_was_not_read_proves_nothing(pack_file: Path) -> None:
    text = USER + "ImportError: cannot import name 'new' from 'vllm.core' (/x/vllm/core.py)"
    cause = derived(text, pack_file, vllm="0.9.0")
    assert cause is not None
    assert cause.degree == "likely"


def test_a_development_version_between_releases_that_agree_is_likely(pack_file: Path) -> None:
    text = USER + "ImportError: cannot import name 'gone' from 'vllm.core' (/x/vllm/core.py)"
    cause = derived(text, pack_file, vllm="0.9.2.dev3+g1234567")
    assert cause is not None
    assert cause.degree == "likely"
    assert "vllm 0.9.2.dev3+g1234567, which is installed, is not one of them" in cause.sentence


def test_an_abstract_method_is_explained_by_both_sides(pack_file: Path) -> None:
    text = USER + "TypeError: Can't instantiate abstract class Worker with abstract method stop"
    own = derived(text, pack_file, vllm_ascend="0.8.5rc1")
    assert own is not None
    assert own.degree == "proven"
    assert "`Worker` defines `stop` in vllm-ascend from 0.9.1 on" in own.sentence
    base = derived(text, pack_file, vllm="0.10.0")
    assert base is not None
    assert base.degree == "proven"
    assert "`Base` does not require `stop` in vllm until 0.8.5" in base.sentence


def test_a_method_that_overrides_one_of_another_package_is_called_by_that_package(pack_file: Path) -> None:
    text = "TypeError: NpuRunner.call() got an unexpected keyword argument 'mask'"
    cause = derived(text, pack_file, vllm="0.9.1")
    assert cause is not None
    assert cause.degree == "proven"
    assert "`Runner.call` has no `mask` in vllm until 0.8.5; vllm 0.9.1" in cause.sentence
    assert cause.packages == ("vllm", "vllm-ascend")


def test_an_attribute_of_a_base_class_of_another_package(pack_file: Path) -> None:
    text = "AttributeError: 'NpuRunner' object has no attribute 'budget'"
    cause = derived(text, pack_file, vllm="0.8.5")
    assert cause is not None
    assert cause.degree == "proven"
    assert "`Runner` has `budget` in vllm from 0.9.1 on" in cause.sentence


def test_a_lazily_defined_name_that_no_file_of_a_release_contains_is_likely(tmp_path: Path) -> None:
    lazy = "def __getattr__(name): ...\n"
    there = {"transformers/__init__.py": outline((lazy + "from .models import AutoThing\n").encode())}
    gone = {"transformers/__init__.py": outline(lazy.encode())}
    write_pack(tmp_path / "t.pack", {"transformers": releases({"4.57.0": there, "5.0.0": gone})})
    text = "ImportError: cannot import name 'AutoThing' from 'transformers' (/x/transformers/__init__.py)"
    cause = derived(text, tmp_path / "t.pack", transformers="5.0.0")
    assert cause is not None
    assert cause.degree == "likely"
    assert "`transformers.AutoThing` exists in transformers until 4.57.0" in cause.sentence


def test_a_key_that_is_a_model_type_of_other_releases(tmp_path: Path) -> None:
    path = "transformers/models/auto/configuration_auto.py"
    early, late = ({path: outline(f"X = {names}\n".encode())} for names in (["bert"], ["bert", "qwen9"]))
    write_pack(tmp_path / "t.pack", {"transformers": releases({"4.0.0": early, "5.0.0": late})})
    cause = derived("KeyError: 'qwen9'", tmp_path / "t.pack", transformers="4.0.0")
    assert cause is not None
    assert "transformers has the model type `qwen9`" in cause.sentence
    assert derived("KeyError: 'prompt_ids'", tmp_path / "t.pack", transformers="4.0.0") is None


def test_an_operator_of_a_compiled_extension_names_its_package() -> None:
    cause = derived("AttributeError: '_OpNamespace' '_C_ascend' object has no attribute 'f'", Path("/none"))
    assert cause is not None
    assert cause.packages == ("vllm-ascend",)


def test_an_operator_is_looked_up_in_the_schemas(pack_file: Path) -> None:
    text = "AttributeError: '_OpNamespace' 'npu' object has no attribute 'npu_a'"
    cause = derived(text, pack_file, torch_npu="2.5.1")
    assert cause is not None
    assert cause.degree == "proven"
    assert "the operator `npu_a` exists in torch-npu from 2.7.1 on" in cause.sentence


def test_who_expects_it_was_released_for_another_version(pack_file: Path) -> None:
    text = USER + "ImportError: cannot import name 'gone' from 'vllm.core' (/x/vllm/core.py)"
    cause = derived(text, pack_file, vllm="0.9.1", vllm_ascend="0.8.5rc1")
    assert cause is not None
    assert "vllm-ascend 0.8.5rc1, which needs one of them, was released for vllm 0.8.5" in cause.sentence
    assert any("vllm_ascend 0.8.5rc1 is published with vllm 0.8.5.post1" in one for one in cause.proof)
    assert cause.stacks


def test_a_missing_or_damaged_pack_is_told_and_nothing_is_derived(tmp_path: Path, pack_file: Path) -> None:
    text = (USER + "ImportError: cannot import name 'new' from 'vllm.core' (/x/vllm/core.py)").encode()
    absent = triage_text(text, surfaces=PackAtHand(tmp_path / "no.pack"))
    assert any("there is no surface pack (npu-matrix knowledge update)" in note for note in absent.notes)
    damaged = tmp_path / "damaged.pack"
    damaged.write_bytes(pack_file.read_bytes()[:4000])
    found = triage_text(text, surfaces=PackAtHand(damaged))
    assert any("releases were not compared" in note and "damaged.pack" in note for note in found.notes)
    for one in (absent, found):
        assert one.root is not None
        assert one.root.derived is None or one.root.derived.degree == "symptom"


def test_a_log_that_asks_nothing_opens_no_pack(tmp_path: Path) -> None:
    surfaces = PackAtHand(tmp_path / "no.pack")
    assert not triage_text(b"ValueError: tile 17 is odd\n", surfaces=surfaces).notes


def test_a_pack_of_the_user_that_lacks_what_the_shipped_one_has_is_not_used(tmp_path: Path) -> None:
    """One from before an upgrade said of names that they are in none of its four releases."""
    both, newest = releases({"1.0": {}, "2.0": {}}), releases({"3.0": {}})
    digest = write_pack(tmp_path / "shipped.pack", {"lib": both})

    def used(began_with: str) -> list[str]:
        write_pack(user_pack_file(tmp_path), {"lib": newest}, began_with=began_with)
        pack = PackAtHand(tmp_path / "shipped.pack", user_pack_file(tmp_path)).pack
        assert pack is not None
        return [one.version for one in pack.releases("lib")]

    assert used(began_with=digest) == ["3.0"]
    assert used(began_with="") == used(began_with="of another release") == ["1.0", "2.0"]
    # A build without a pack of its own uses what there is.
    assert PackAtHand(tmp_path / "none.pack", user_pack_file(tmp_path)).pack is not None
    assert pack_at_hand(tmp_path).pack is not None


def test_a_constructor_that_overrides_one_of_another_package_is_called_by_that_package(
    tmp_path: Path,
) -> None:
    old, new = (
        "class Core:\n    def __init__(self, a): ...\n",
        "class Core:\n    def __init__(self, a, b=0): ...\n",
    )
    child = "from vllm.core import Core\nclass Child(Core):\n    def __init__(self, a): ...\n"
    vllm = {
        version: {"vllm/__init__.py": b"\n", **files(vllm__core=text)}
        for version, text in (("0.8.0", old), ("0.9.0", new))
    }
    plugin = {"0.8.0rc1": {"vllm_ascend/__init__.py": b"\n", **files(vllm_ascend__core=child)}}
    write_pack(tmp_path / "s.pack", {"vllm": releases(vllm), "vllm-ascend": releases(plugin)})
    text = "TypeError: Child.__init__() got an unexpected keyword argument 'b'"
    cause = derived(text, tmp_path / "s.pack", vllm="0.9.0")
    assert cause is not None
    assert cause.degree == "proven"
    assert "`Core.__init__` has no `b` in vllm until 0.8.0; vllm 0.9.0, which is installed" in cause.sentence


def test_a_definition_with_which_the_use_never_fails_is_not_the_one_that_is_meant(tmp_path: Path) -> None:
    """Two functions of one name: only one of them ever lacked the parameter."""
    other = "def build(args, task=None): ...\n"
    old, new = "def build(args): ...\n", "def build(args, task): ...\n"
    contents = {
        version: {"vllm/__init__.py": b"\n", **files(vllm__a=other, vllm__b=text)}
        for version, text in (("0.8.0", old), ("0.9.0", new))
    }
    write_pack(tmp_path / "s.pack", {"vllm": releases(contents)})
    cause = derived("TypeError: build() missing 1 required positional argument: 'task'", tmp_path / "s.pack")
    assert cause is not None
    assert "`build` can be called without `task` in vllm until 0.8.0" in cause.sentence


def test_a_package_whose_folder_is_shared_is_found_by_its_modules(tmp_path: Path) -> None:
    core = {"megatron/core/utils.py": outline(b"def new(): ...\n")}
    bridge = {"megatron/bridge/utils.py": outline(b"def other(): ...\n")}
    before = {"megatron/core/utils.py": outline(b"x = 1\n")}
    write_pack(
        tmp_path / "s.pack",
        {"megatron-core": releases({"0.12.1": before, "0.15.0": core}), "a-bridge": releases({"1": bridge})},
    )
    text = "ImportError: cannot import name 'new' from 'megatron.core.utils' (/x/megatron/core/utils.py)"
    cause = derived(text, tmp_path / "s.pack", megatron_core="0.12.1")
    assert cause is not None
    assert cause.degree == "proven"
    assert cause.packages[0] == "megatron-core"


def test_an_operator_is_an_attribute_of_torch_npu_in_each_run_of_releases(tmp_path: Path) -> None:
    def release(schema: str) -> dict[str, bytes]:
        return {
            "torch_npu/csrc/aten/npu_native_functions.yaml": schema.encode(),
            "torch_npu/__init__.py": outline(b"def __getattr__(name): ...\n"),
        }

    has, lacks = release(SCHEMAS), release("custom:\n  - func: npu_b(Tensor self) -> Tensor\n")
    contents = {"2.4.0": lacks, "2.4.0.post4": has, "2.5.0": lacks, "2.5.1": has}
    write_pack(tmp_path / "s.pack", {"torch-npu": releases(contents)})
    text = "AttributeError: module 'torch_npu' has no attribute 'npu_a'"
    cause = derived(text, tmp_path / "s.pack", torch_npu="2.5.0")
    assert cause is not None
    assert cause.degree == "proven"
    assert (
        "`torch_npu.npu_a` exists in torch-npu from 2.5.1 on, 2.4.0.post4; torch-npu 2.5.0" in cause.sentence
    )


@pytest.mark.parametrize(("torch", "is_proven"), [("2.6.0", True), ("2.4.0+cpu", False)])
def test_a_broken_requirement_between_the_packages_of_a_use(
    torch: str, is_proven: bool, tmp_path: Path
) -> None:
    stated = {"vllm/__init__.py": b"\n", "METADATA": b"Requires-Dist: torch==2.4.0\nRequires-Dist: numpy<2\n"}
    write_pack(tmp_path / "s.pack", {"vllm": releases({"0.6.3": stated})})
    text = "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'"
    cause = derived(text, tmp_path / "s.pack", vllm="0.6.3", torch=torch, numpy="2.1.0")
    assert cause is not None
    assert (cause.degree == "proven") is is_proven
    if is_proven:
        assert cause.sentence == f"vllm 0.6.3 requires torch==2.4.0, and torch {torch} is installed"


def packed(tmp_path: Path, packages: dict[str, dict[str, dict[str, str]]]) -> Path:
    """A pack of packages: name -> release -> path without its ending -> source."""
    contents = {
        name: releases({version: files(**modules) for version, modules in found.items()})
        for name, found in packages.items()
    }
    write_pack(tmp_path / "p.pack", contents)
    return tmp_path / "p.pack"


def traced(*frames: str, error: str) -> str:
    lines = "".join(f'  File "/x/site-packages/{frame}\n' for frame in frames)
    return f"Traceback (most recent call last):\n{lines}{error}"


def test_the_message_is_about_the_decorated_function(tmp_path: Path) -> None:
    early, late = (f"class Net:\n @wrapped\n def forward(self, {names}): ...\n" for names in ("a", "a, b"))
    pack = packed(tmp_path, {"vllm": {"0.8.5": {"vllm__net": early}, "0.9.1": {"vllm__net": late}}})
    cause = derived("TypeError: Net.forward() got an unexpected keyword argument 'b'", pack, vllm="0.8.5")
    assert cause is not None
    assert (cause.degree, cause.packages) == ("proven", ("vllm",))


def test_an_argument_that_no_release_takes(pack_file: Path) -> None:
    text = "TypeError: Batch.__init__() got an unexpected keyword argument 'forked'"
    cause = derived(text, pack_file, vllm="0.9.1")
    assert cause is not None
    assert cause.degree == "likely"
    assert "takes `forked` in none of the 3 releases of vllm from 0.8.5 to 0.10.0" in cause.sentence


def test_what_every_release_has_is_only_a_symptom(pack_file: Path) -> None:
    text = "ImportError: cannot import name 'Batch' from 'vllm.core' (/x/vllm/core.py)"
    cause = derived(text, pack_file)
    assert cause is not None
    assert cause.degree == "symptom"
    assert "the installed vllm is older, or its installation is incomplete" in cause.sentence


NEW = "ImportError: cannot import name 'new' from 'vllm.core' (/x/vllm/core.py)"
PLUGIN_FRAME = 'vllm_ascend/worker.py", line 3, in f'


def test_files_and_functions_of_a_stack_tell_the_release(tmp_path: Path) -> None:
    pack = packed(
        tmp_path,
        {
            "vllm": {
                "0.8.5": {"vllm__core": "def run(): ...\n", "vllm__old": "def load(): ...\n"},
                "0.9.1": {"vllm__core": "def run(): ...\ndef new(): ...\n"},
                "0.10.0": {"vllm__core": "def new(): ...\n", "vllm__old": "def load(): ...\n"},
            }
        },
    )
    early = traced('vllm/old.py", line 3, in load', 'vllm/core.py", line 2, in run', PLUGIN_FRAME, error=NEW)
    cause = derived(early, pack)
    assert cause is not None
    assert cause.degree == "likely"
    assert "the classes and files that the log names are those of vllm 0.8.5" in cause.sentence
    late = traced('vllm/core.py", line 3, in new', PLUGIN_FRAME, error=NEW)
    assert (found := derived(late, pack)) is None or found.degree == "symptom"


def test_a_version_that_the_stack_contradicts_proves_nothing(tmp_path: Path) -> None:
    early, late = {"vllm__core": "x = 1\n"}, {"vllm__core": "new = 1\n", "vllm__late": "def load(): ...\n"}
    pack = packed(tmp_path, {"vllm": {"0.8.5": early, "0.9.1": late}})
    core, newer = 'vllm/core.py", line 3, in <module>', 'vllm/late.py", line 3, in load'
    proven = derived(traced(core, PLUGIN_FRAME, error=NEW), pack, vllm="0.8.5")
    unsure = derived(traced(newer, PLUGIN_FRAME, error=NEW), pack, vllm="0.8.5")
    assert proven is not None
    assert unsure is not None
    assert (proven.degree, unsure.degree) == ("proven", "likely")


SAME_NAME = {
    "vllm": {
        "0.8.5": {"vllm__args": "class Args:\n def __init__(self, a): ...\n"},
        "0.9.1": {"vllm__args": "class Args:\n def __init__(self, a, b): ...\n"},
    },
    "verl": {
        "0.4.0": {"verl__own": "class Args:\n def __init__(self, **more): ...\n"},
        "0.5.0": {"verl__run": "from vllm.args import Args\n"},
    },
    "ray": {"2.40.0": {"ray__args": "class Args:\n def __init__(self): ...\n"}},
}


def test_the_class_is_the_one_that_the_failing_file_imports(tmp_path: Path) -> None:
    pack = packed(tmp_path, SAME_NAME)
    error = "TypeError: Args.__init__() got an unexpected keyword argument 'b'"
    cause = derived(traced('verl/run.py", line 3, in main', error=error), pack)
    assert cause is not None
    assert (cause.degree, cause.is_open, cause.packages) == ("proven", True, ("vllm", "verl"))
    assert "of another release or commit of vllm, or other code of this name; verl needs" in cause.sentence


def test_code_in_the_stack_names_the_class_that_the_message_leaves_out(tmp_path: Path) -> None:
    pack = packed(tmp_path, SAME_NAME)
    for error in (
        "TypeError: __init__() got an unexpected keyword argument 'b'",
        "TypeError: Unexpected keyword argument 'b'",
    ):
        frame = 'verl/run.py", line 3, in main\n    args = Args(a=1, b=2)'
        cause = derived(traced(frame, error=error), pack, vllm="0.8.5")
        assert cause is not None
        assert "`Args.__init__` takes `b` in vllm from 0.9.1 on" in cause.sentence


def test_a_member_of_an_enumeration_is_found_by_the_code(tmp_path: Path) -> None:
    early, late = ({"vllm__level": f"class Level:\n {name} = 1\n"} for name in ("NONE", "OFF"))
    pack = packed(tmp_path, {"vllm": {"0.8.5": early, "0.9.1": late}})
    frames = ('vllm/x.py", line 3, in f\n    if x == Level.NONE:', 'enum.py", line 3, in __getattr__')
    cause = derived(traced(*frames, error="AttributeError: NONE"), pack, vllm="0.9.1")
    assert cause is not None
    assert "`Level` has `NONE` in vllm until 0.8.5" in cause.sentence


def test_a_name_without_its_class_is_that_of_the_only_package_which_ever_had_the_word(tmp_path: Path) -> None:
    early, late = ({"vllm__level": f"class Level:\n {name} = 1\n"} for name in ("WAIT_FOR_IT", "WAITS"))
    other = {"verl__x": "class Other:\n WAIT_FOR_IT = 1\n"}
    text = "AttributeError: WAIT_FOR_IT"
    (tmp_path / "one").mkdir()
    pack = packed(tmp_path / "one", {"vllm": {"0.8.5": early, "0.9.1": late}})
    cause = derived(text, pack, vllm="0.9.1")
    assert cause is not None
    assert (cause.degree, cause.packages) == ("likely", ("vllm",))
    assert "`WAIT_FOR_IT` is mentioned in vllm until 0.8.5" in cause.sentence
    both = packed(tmp_path, {"vllm": {"0.8.5": early, "0.9.1": late}, "verl": {"0.6.1": other}})
    assert derived(text, both, vllm="0.9.1") is None


def test_what_a_program_only_logs_is_a_symptom(tmp_path: Path) -> None:
    """A program that logs what it could not import may go on without it."""
    early, late = ({"vllm__a": "x = 1\n", **more} for more in ({}, {"vllm__extra_kernels": "y = 1\n"}))
    pack = packed(tmp_path, {"vllm": {"0.8.5": early, "0.9.1": late}})
    name = "cannot import name 'extra_kernels' from 'vllm'"
    raised = derived(f"ImportError: {name} (/x/vllm/__init__.py)", pack)
    logged = derived(f"ERROR 01-29 20:46:04 [config.py:32] Failed to import kernels. Error: {name}", pack)
    assert raised is not None
    assert logged is not None
    assert (raised.degree, logged.degree) == ("proven", "symptom")


def test_a_message_that_goes_on_in_the_next_line(pack_file: Path) -> None:
    error = f"RuntimeError: Failed to import vllm because of the following error:\n{NEW[13:]}"
    cause = derived(traced('vllm_ascend/worker.py", line 3, in f', error=error), pack_file, vllm="0.8.5")
    assert cause is not None
    assert cause.degree == "proven"


def test_a_method_that_a_plugin_has_to_override(tmp_path: Path) -> None:
    plain, own = "class P:\n def other(self): ...\n", "class P:\n def get_size(self): ...\n"
    pack = packed(
        tmp_path,
        {
            "vllm": {"0.9.1": {"vllm__platform": "class Platform:\n def get_size(self): ...\n"}},
            "vllm-ascend": {"0.8.5rc1": {"vllm_ascend__p": plain}, "0.9.1": {"vllm_ascend__p": own}},
        },
    )
    text = traced('vllm/platform.py", line 3, in get_size', error="NotImplementedError")
    cause = derived(text, pack, vllm="0.9.1", vllm_ascend="0.8.5rc1")
    assert cause is not None
    assert "a class has its own `get_size` in vllm-ascend from 0.9.1 on" in cause.sentence
    assert derived(text, pack, vllm="0.9.1") is None


def test_of_very_many_failures_the_last_and_the_first_ones_are_looked_up(pack_file: Path) -> None:
    def failure(name: str, file: str) -> str:
        return traced(
            f'vllm_ascend/{file}.py", line 3, in f',
            error=f"ImportError: cannot import name '{name}' from 'vllm.core' (/x/vllm/core.py)\n",
        )

    log = "".join(failure(f"never{number}", "worker") for number in range(60)) + failure("new", "late")
    found = triage_text(log.encode(), versions={"vllm": "0.8.5"}, surfaces=PackAtHand(pack_file))
    derived_causes = [one.derived for one in found.findings if one.derived]
    assert 1 < sum(one.degree != "symptom" for one in derived_causes) < 60
    assert any(one.degree == "proven" for one in derived_causes)


def test_what_python_suggests_is_no_part_of_the_message(pack_file: Path) -> None:
    error = "AttributeError: 'Batch' object has no attribute 'old'"
    plain = derived(error, pack_file, vllm="0.9.1")
    assert plain is not None
    assert derived(f"{error}. Did you mean: 'fill'?", pack_file, vllm="0.9.1") == plain


SHARED = {
    "triton": {"3.2.0": {"triton__core": "x = 1\n"}},
    "triton-ascend": {"3.2.1": {"triton__core": "y = 1\n"}},
}


def test_a_file_where_a_folder_of_modules_was_is_that_of_another_package(tmp_path: Path) -> None:
    file = packed(tmp_path, SHARED)
    error = "ModuleNotFoundError: No module named 'triton.core.ascend'"
    cause = derived(f"{error}; 'triton.core' is not a package", file)
    assert cause.degree == "likely"
    assert "triton and triton-ascend install into one folder, `triton`" in cause.sentence
    # Without that, or with one package only, the folder tells nothing.
    assert derived(error, file).degree == "symptom"
    alone = packed(tmp_path, {"triton": SHARED["triton"]})
    assert derived(f"{error}; 'triton.core' is not a package", alone).degree == "symptom"


def test_an_installation_that_lacks_what_its_release_has_is_damaged(tmp_path: Path) -> None:
    file = packed(tmp_path, {"vllm": {"0.8.5": {"vllm__core": "def kept(): ...\n"}}})
    error = "ImportError: cannot import name 'kept' from 'vllm.core' ({})"
    path = "/x/site-packages/vllm/core.py"
    cause = derived(error.format(path), file, vllm="0.8.5")
    assert cause.degree == "likely"
    assert "vllm 0.8.5 has `vllm.core.kept`, but /x/site-packages/vllm/core.py does not" in cause.sentence
    # A folder of that name, an unknown version and a circular import have other reasons.
    for text, versions in (
        (error.format("unknown location"), {"vllm": "0.8.5"}),
        (error.format(path), {}),
        (error.format(path).replace("from ", "from partially initialized module "), {"vllm": "0.8.5"}),
    ):
        cause = derived(text, file, **versions)
        assert cause is None or "overwritten" not in cause.sentence


def test_a_word_of_releases_long_ago_is_only_a_symptom(tmp_path: Path) -> None:
    word = {"vllm__core": "class Worker:\n    def start_the_group(self): ...\n"}
    without = {"vllm__core": "class Worker: ...\n"}
    near = {f"0.{n}.0": word if n < 18 else without for n in range(1, 21)}
    long_ago = {f"0.{n}.0": word if n < 3 else without for n in range(1, 21)}
    error = "AttributeError: 'Runner' object has no attribute 'start_the_group'"
    for contents, degree in ((near, "likely"), (long_ago, "symptom")):
        with_class = {v: {**c, "vllm__run": "class Runner: ...\n"} for v, c in contents.items()}
        assert derived(error, packed(tmp_path, {"vllm": with_class}), vllm="0.20.0").degree == degree


def test_a_call_of_a_file_that_imports_it_was_refused_by_what_is_installed(tmp_path: Path) -> None:
    packages = {
        "vllm": {
            "0.8.5": {"vllm__core": "class Batch:\n    def __init__(self, old): ...\n"},
            "0.9.1": {"vllm__core": "class Batch:\n    def __init__(self): ...\n"},
        },
        "vllm-ascend": {
            "0.8.5": {"vllm_ascend__worker": "from vllm.core import Batch\n"},
            "0.9.1": {"vllm_ascend__worker": "from vllm.core import Batch\n"},
        },
    }
    file = packed(tmp_path, packages)
    error = "TypeError: Batch.__init__() got an unexpected keyword argument 'old'"
    text = traced('vllm_ascend/worker.py", line 3, in f', error=error)
    for shown in ("0.8.5", "0.8.7"):
        cause = derived(text, file, vllm_ascend=shown)
        assert cause.degree == "proven"
        assert "the installed vllm, which has refused it, is not one of them" in cause.sentence
        assert not cause.is_open
    assert derived(text, file).is_open


@pytest.mark.parametrize(
    ("versions", "degree"),
    [
        ({}, "proven"),
        ({"torchvision": "0.21.0"}, "proven"),
        ({"torchvision": "0.21.0", "torch": "2.6.0+cpu"}, "symptom"),
        ({"torchvision": "0.29.0"}, "symptom"),
    ],
)
def test_an_operator_that_a_package_for_another_torch_did_not_register(
    tmp_path: Path, versions: dict[str, str], degree: str
) -> None:
    metadata = {"0.21.0": "Requires-Dist: torch==2.6.0", "0.29.0": "Requires-Dist: torch>=2.14"}
    contents = {
        version: {"torchvision/__init__.py": b"\n", "METADATA": text.encode()}
        for version, text in metadata.items()
    }
    write_pack(tmp_path / "s.pack", {"torchvision": releases(contents)})
    error = "RuntimeError: operator torchvision::nms does not exist"
    cause = derived(error, tmp_path / "s.pack", **versions)
    assert cause is not None
    assert cause.degree == degree
    assert ("was not loaded" in cause.sentence) is (degree == "proven")
    assert (
        ("or is missing, damaged or not imported" in cause.sentence) is cause.is_open is (degree == "proven")
    )


REFUSED_NAME = "ImportError: cannot import name 'gone' from 'torch.tools' (/v/site-packages/torch/tools.py)"
CHECKED_OUT_NAME = REFUSED_NAME.replace("/v/site-packages", "/home/me/pytorch")


def test_a_name_that_the_printed_file_lacks_was_refused_by_what_is_installed(tmp_path: Path) -> None:
    pack = packed(
        tmp_path,
        {
            "torch": {
                "1.0": {"torch/__init__": "", "torch/tools": "def gone(): ...\n"},
                "2.0": {"torch/__init__": "", "torch/tools": "def kept(): ...\n"},
            }
        },
    )
    root = triage_text(REFUSED_NAME.encode(), surfaces=PackAtHand(pack)).root
    assert root.derived.degree.value == "proven"
    assert "which has refused it, is not one of them" in root.derived.sentence
    assert not root.derived.is_open
    for unsure in (REFUSED_NAME.partition(" (")[0], CHECKED_OUT_NAME):
        cause = triage_text(unsure.encode(), surfaces=PackAtHand(pack)).root.derived
        assert cause.is_open
        assert "another release or commit of torch" in cause.sentence


def test_a_derived_class_of_a_package_that_the_log_does_not_name_is_not_meant(tmp_path: Path) -> None:
    engine = "class Engine:\n    def __init__(self):\n        self.driver_worker = 1\n"
    pack = packed(
        tmp_path,
        {
            "vllm": {
                "0.3.0": {"vllm/__init__": "", "vllm/engine": engine},
                "0.4.0": {"vllm/__init__": "", "vllm/engine": "class Engine:\n    def run(self): ...\n"},
            },
            "verl": {
                "0.2.0": {
                    "verl/__init__": "",
                    "verl/own": "from vllm.engine import Engine\nclass Engine(Engine):\n    def go(self): ...\n",
                }
            },
        },
    )
    log = b"torch version: 2.4.0\nAttributeError: 'Engine' object has no attribute 'driver_worker'\n"
    derived_cause = triage_text(log, surfaces=PackAtHand(pack)).root.derived
    assert "verl" not in derived_cause.sentence
    assert derived_cause.packages == ("vllm",)


def test_what_a_compiled_module_has_is_found_by_the_texts_that_mention_it(tmp_path: Path) -> None:
    pack = packed(
        tmp_path,
        {
            "torch": {
                "1.0": {"torch/__init__": "from torch._C import *\n"},
                "2.0": {
                    "torch/__init__": "from torch._C import *\n",
                    "torch/refs": "x = 'float8_new_kind'\n",
                },
            }
        },
    )
    error = b"AttributeError: module 'torch' has no attribute 'float8_new_kind'"
    derived_cause = triage_text(error, surfaces=PackAtHand(pack)).root.derived
    assert derived_cause.degree.value == "likely"
    assert "from 2.0 on" in derived_cause.sentence


def test_what_was_read_for_one_cause_is_forgotten_before_the_next(tmp_path: Path, monkeypatch) -> None:
    pack = PackAtHand(packed(tmp_path, SAME_NAME))
    trims = []
    monkeypatch.setattr(pack, "trim", lambda: trims.append(1))
    errors = (f"TypeError: Args.__init__() got an unexpected keyword argument '{name}'\n" for name in "bcd")
    triage_text("".join(errors).encode(), surfaces=pack)
    assert len(trims) == 4


OPTIONS = """
from dataclasses import dataclass, field
class Holder:
    def __init__(self): self.assigned_late = 1
    @property
    def computed_late(self): ...
@dataclass
class Options:
    size: int = 1
    left_out_field: int = field(init=False)
    other_size: int = field(default=1)
    def to_other(self): ...
"""
PLAIN = (
    "from dataclasses import dataclass\nclass Holder: ...\n@dataclass\nclass Options:\n    size: int = 1\n"
)
MODULE = "vllm__core"


@pytest.mark.parametrize("name", ["other_size", "to_other"])
def test_an_object_without_what_each_object_has_rules_out_the_releases_that_have_it(tmp_path: Path, name):
    pack = packed(tmp_path, {"vllm": {"0.8.5": {MODULE: PLAIN}, "0.9.1": {MODULE: OPTIONS}}})
    cause = derived(f"AttributeError: 'Options' object has no attribute '{name}'", pack)
    assert cause is not None
    assert (cause.degree, cause.is_open) == ("proven", True)
    assert f"`Options` has `{name}` in vllm from 0.9.1 on" in cause.sentence
    assert "another release or commit of vllm, or other code" in cause.sentence


@pytest.mark.parametrize("use", ["Options.left_out_field", "Holder.assigned_late", "Holder.computed_late"])
def test_what_an_object_may_lack_anyway_rules_out_no_release(tmp_path: Path, use):
    pack = packed(tmp_path, {"vllm": {"0.8.5": {MODULE: PLAIN}, "0.9.1": {MODULE: OPTIONS}}})
    owner, name = use.split(".")
    cause = derived(f"AttributeError: '{owner}' object has no attribute '{name}'", pack)
    assert cause is None or cause.degree == "symptom"


def test_the_class_in_a_message_tells_the_releases_that_have_it(tmp_path: Path) -> None:
    early, late = "class Old:\n    special_words = 1\n", "class Newest: ...\n"
    pack = packed(tmp_path, {"vllm": {"0.8.5": {MODULE: early}, "0.9.1": {MODULE: late}}})
    cause = derived("AttributeError: Newest has no attribute special_words", pack)
    assert cause is not None
    assert cause.degree == "likely"
    assert "`special_words` is mentioned in vllm until 0.8.5" in cause.sentence
    assert "those of vllm 0.9.1" in cause.sentence


def test_a_symptom_names_the_package_whose_function_was_called(tmp_path: Path) -> None:
    forwards = "def _replaced(obj, **kwargs): ...\n"
    pack = packed(tmp_path, {"torch-npu": {"2.7.1": {"torch_npu__contrib__replace": forwards}}})
    frame = 'File "/x/site-packages/vllm/core.py", line 3, in f\n    @torch.compile(backend=x)\n'
    cause = derived(f"{frame}TypeError: _replaced() got an unexpected keyword argument 'backend'", pack)
    assert cause is not None
    assert cause.degree == "symptom"
    assert "the function is that of torch-npu (torch_npu/contrib/replace.py)" in cause.sentence
    assert cause.packages == ("vllm", "torch-npu")
