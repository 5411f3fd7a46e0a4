"""A message that names no package: the release that raises it tells the function and the condition."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compat.knowledge.pack_at_hand import PackAtHand
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.raised_messages import RAISED, message_lines
from harness.verdict.triage.diagnosis import Diagnosis, triage_text

FILE = "verl/utils/config.py"
OLD = b"""
def validate_config(config):
    if config.n % config.cards != 0:
        raise ValueError(f"real_train_batch_size ({config.n}) must be divisible by {config.cards}")

def init_model(path):
    if not path:
        raise RuntimeError(f"the weights of the reference policy are not in {path}")

def load_checkpoint(path):
    if not exists(path):
        raise ValueError(f"the checkpoint of the reference policy is not in {path}")

class RayPPOTrainer:
    def _validate(self):
        assert len(self.scores) == self.samples, f"there are {len(self.scores)} scores of samples"
"""
NEW = OLD.replace(b"config.n % config.cards != 0", b"config.n % minimal_bsz != 0")
REFUSED = "ValueError: real_train_batch_size (30) must be divisible by 16"
FAILED = "RuntimeError: the weights of the reference policy are not in /data"


@pytest.fixture
def pack(tmp_path: Path) -> PackAtHand:
    contents = {
        version: {FILE: b"def validate_config(config): ...\n", f"{FILE}{RAISED}": message_lines(FILE, source)}
        for version, source in (("0.6.1", OLD), ("0.9.1", NEW))
    }
    releases = tuple(PackedRelease(version=version) for version in contents)
    write_pack(tmp_path / "s.pack", {"verl": PackagedFiles(releases=releases, contents=contents)})
    return PackAtHand(tmp_path / "s.pack")


def asked(pack: PackAtHand, text: str, version: str = "") -> Diagnosis:
    return triage_text(text.encode(), versions={"verl": version} if version else {}, surfaces=pack)


def test_what_a_validator_refuses_is_a_cause(pack: PackAtHand) -> None:
    root = asked(pack, REFUSED).root
    assert root is not None
    assert root.signature is not None
    assert root.signature.cause == "verl raises this in `validate_config` when `config.n % minimal_bsz != 0`"
    assert (root.signature.area, root.signature.role) == ("config", "cause")
    assert root.signature.sources == ("verl/utils/config.py of verl 0.9.1",)


def test_the_condition_is_that_of_the_release_in_the_log(pack: PackAtHand) -> None:
    root = asked(pack, REFUSED, "0.6.1").root
    assert root is not None
    assert root.signature is not None
    assert "`config.n % config.cards != 0`" in root.signature.cause


def test_what_another_function_raises_is_a_symptom(pack: PackAtHand) -> None:
    found = asked(pack, FAILED)
    assert not found.known
    assert found.root is not None
    assert found.root.signature is not None
    assert "in `init_model` when `not path`" in found.root.signature.cause


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: the checkpoint of the reference policy is not in /data",
        "AssertionError: there are 3 scores of samples",
    ],
)
def test_to_load_a_checkpoint_and_to_evaluate_is_no_check_of_settings(pack: PackAtHand, text: str) -> None:
    found = asked(pack, text, "0.9.1")
    assert not found.known
    assert found.root is not None
    assert found.root.signature is not None
    assert found.root.signature.role == "symptom"


def test_a_short_message_is_that_of_a_package_only_if_the_log_shows_it(pack: PackAtHand) -> None:
    short = "AssertionError: there are 3 scores of samples"
    for log, is_told in (
        (short, False),
        (f"{traceback(f'/x/site-packages/{FILE}:other')}{short}", True),
        (f"verl 0.9.1\n{short}", False),
    ):
        root = asked(pack, log).root
        assert root is not None
        assert (root.signature is not None) is is_told
    assert asked(pack, REFUSED).known


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("assert config.data.train_batch_size >= config.actor.ppo_mini_batch_size", True),
        ("assert len(rows) == 3", False),
        ("check(config)", False),
    ],
)
def test_an_assertion_without_a_message_is_told_by_its_condition(
    pack: PackAtHand, code: str, known: bool
) -> None:
    log = f"{traceback('/x/site-packages/verl/trainer/main.py:fit')}    {code}\nAssertionError\n"
    found = asked(pack, log)
    assert found.known is known
    assert found.root is not None
    told = found.root.signature.cause if found.root.signature else ""
    assert (code.removeprefix("assert ") in told) is code.startswith("assert")


def traceback(*places: str) -> str:
    frames = "".join(
        f'  File "{file}", line 1, in {name}\n' for file, _, name in (p.partition(":") for p in places)
    )
    return f"Traceback (most recent call last):\n{frames}"


def test_only_the_innermost_function_can_have_raised_it(pack: PackAtHand) -> None:
    main, check = "/x/site-packages/verl/main.py:run", f"/x/site-packages/{FILE}:validate_config"
    assert asked(pack, f"{traceback(main, check)}{REFUSED}").known
    assert not asked(pack, f"{traceback(main, check, '/home/me/reward.py:score')}{REFUSED}").known


@pytest.mark.parametrize(
    "text",
    [
        REFUSED.replace("ValueError", "OSError"),
        REFUSED.replace("divisible", "dividable"),
        REFUSED.replace(": ", ": here, "),
        # The traceback is in another package.
        f'Traceback (most recent call last):\n  File "/x/site-packages/vllm/a.py", line 1, in f\n{REFUSED}',
    ],
)
def test_another_message_is_not_taken_for_it(pack: PackAtHand, text: str) -> None:
    assert not asked(pack, text).known


def test_a_message_that_was_cut_in_a_value_is_known_by_its_beginning(tmp_path: Path) -> None:
    source = b"""
def check_nodes(config, nodes):
    if config.cards > nodes:
        raise ValueError(f"this configuration needs more cards than the nodes have, {nodes=}. Add a node.")
"""
    contents = {"0.9.1": {FILE: b"def check_nodes(): ...\n", f"{FILE}{RAISED}": message_lines(FILE, source)}}
    packaged = PackagedFiles(releases=(PackedRelease(version="0.9.1"),), contents=contents)
    write_pack(tmp_path / "s.pack", {"verl": packaged})
    pack = PackAtHand(tmp_path / "s.pack")
    said = "ValueError: this configuration needs more cards than the nodes have, nodes={'NPU': 8"
    found = asked(pack, said).root
    assert found is not None
    assert found.signature is not None
    assert "verl raises this in `check_nodes`" in found.signature.cause
    other = asked(pack, said.replace("more cards", "other cards")).root
    assert other is None or other.derived is None


TWO = b"""
class NPUWorker:
    def profile(self):
        assert self.peak > 0, f"the memory of the worker was not cleaned up before it started: {self.peak}"
class NPUWorker310:
    def profile(self):
        assert self.peak > 0, f"the memory of the worker was not cleaned up before it started: {self.peak}"
"""
UNCLEAN = "AssertionError: the memory of the worker was not cleaned up before it started: 3"


def packed(folder: Path, **packages: tuple[str, bytes]) -> PackAtHand:
    made = {}
    for name, (version, source) in packages.items():
        path = f"{name}/worker.py"
        files = {path: b"x = 1\n", f"{path}{RAISED}": message_lines(path, source)}
        made[name.replace("_", "-")] = PackagedFiles(
            releases=(PackedRelease(version=version),), contents={version: files}
        )
    write_pack(folder / "s.pack", made)
    return PackAtHand(folder / "s.pack")


def test_functions_that_cannot_be_told_apart_are_all_named(tmp_path: Path) -> None:
    root = asked(packed(tmp_path, vllm_ascend=("0.18.0", TWO), vllm=("0.18.0", TWO)), UNCLEAN).root
    assert root is not None
    assert root.signature is not None
    assert root.signature.role == "symptom"
    assert root.signature.cause.startswith("vllm-ascend raises this in `NPUWorker")
    assert "or vllm in `NPUWorker310.profile`" in root.signature.cause
    assert root.derived is not None
    assert root.derived.packages == ("vllm-ascend", "vllm")


def test_the_last_release_of_a_minor_version_stands_for_the_others(tmp_path: Path) -> None:
    path = "vllm/worker.py"
    contents = {version: {path: b"x = 1\n"} for version in ("0.7.3", "0.8.4", "0.8.5")}
    contents["0.8.5"][f"{path}{RAISED}"] = message_lines(path, OLD)
    releases = tuple(PackedRelease(version=version) for version in contents)
    write_pack(tmp_path / "s.pack", {"vllm": PackagedFiles(releases=releases, contents=contents)})
    for version, is_told in {"0.8.5": True, "0.8.4": True, "0.7.3": False}.items():
        pack = PackAtHand(tmp_path / "s.pack")
        found = triage_text(REFUSED.encode(), versions={"vllm": version}, surfaces=pack).root
        assert found is not None
        assert (found.derived is not None) is is_told


def test_what_a_validator_of_pydantic_raises_is_that_of_its_function(pack: PackAtHand) -> None:
    frame = 'File "/x/site-packages/pydantic/_internal/_dataclasses.py", line 123, in __init__\n    validate(self)\n'
    text = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for Config\n  Value error, "
        "real_train_batch_size (30) must be divisible by 16 [type=value_error, input_value=ArgsKwargs(()), "
        "input_type=ArgsKwargs]"
    )
    root = asked(pack, f"Traceback (most recent call last):\n  {frame}{text}").root
    assert root is not None
    assert root.signature is not None
    assert root.signature.cause == "verl raises this in `validate_config` when `config.n % minimal_bsz != 0`"
    assert root.signature.role == "cause"
