"""Configurations of scripts that are not trusted: they leave the folder of verl, read the machine, or explode."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compat.lint.hydra_loader import ConfigLoader, ConfigValue, NotComposedError, RefusedError

MAIN = """\
defaults:
  - engine: dp
  - _self_
trainer: {nnodes: 1, dir: "${oc.env:HOME_OF_TEST}/${trainer.nnodes}", list: [1, "${oc.env:HOME_OF_TEST}"]}
"""


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME_OF_TEST", "hunter2")
    root = tmp_path / "verl"
    (root / "engine").mkdir(parents=True)
    (root / "main.yaml").write_text(MAIN)
    (root / "engine" / "dp.yaml").write_text("size: 2\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "dp.yaml").write_text("# @package _global_\nstolen: hunter2\n")
    return root


def compose(root: Path, *overrides: str) -> Mapping[str, ConfigValue]:
    loader = ConfigLoader(root)
    for override in overrides:
        problem = loader.syntax_problem(override)
        if problem:
            raise RefusedError(problem)
    return loader.compose("", "main", overrides)


def test_the_environment_is_not_read(root: Path) -> None:
    values = compose(root, "+mine=${oc.env:HOME_OF_TEST}", "hydra.job.env_copy=[HOME_OF_TEST,NOT_SET]")
    assert "hunter2" not in str(values)
    assert values["mine"] == "${oc.env:HOME_OF_TEST}"
    trainer = values["trainer"]
    assert isinstance(trainer, dict)
    assert trainer["dir"] == "${oc.env:HOME_OF_TEST}/${trainer.nnodes}"
    assert trainer["list"] == [1, "${oc.env:HOME_OF_TEST}"]


def test_resolvers_are_as_before_afterwards(root: Path) -> None:
    from omegaconf import OmegaConf

    compose(root)
    assert OmegaConf.create({"a": "${oc.env:HOME_OF_TEST}"}).a == "hunter2"


def test_a_group_that_the_environment_names_is_not_known(root: Path) -> None:
    (root / "main.yaml").write_text("defaults:\n  - engine: ${oc.env:HOME_OF_TEST}\n  - _self_\n")
    with pytest.raises(NotComposedError, match="the environment variable HOME_OF_TEST"):
        compose(root)


@pytest.mark.parametrize("engine", ["../../outside/dp", "{outside}/dp", "../engine/../../outside/dp"])
def test_a_group_does_not_leave_the_folder(root: Path, engine: str) -> None:
    with pytest.raises(RefusedError, match="Could not find"):
        compose(root, f"engine={engine.format(outside=root.parent / 'outside')}")


def test_a_link_does_not_leave_the_folder(root: Path) -> None:
    (root / "engine" / "linked.yaml").symlink_to(root.parent / "outside" / "dp.yaml")
    with pytest.raises(RefusedError, match="Could not find"):
        compose(root, "engine=linked")


@pytest.mark.parametrize("path", ["file://{outside}", "pkg://antigravity", "pkg://this", "other://x"])
def test_a_search_path_imports_and_reads_nothing(root: Path, path: str) -> None:
    path = path.format(outside=root.parent / "outside")
    values = compose(root, f"hydra.searchpath=[{path}]", "trainer.nnodes=2")
    assert "stolen" not in values
    assert not {"antigravity", "this"} & sys.modules.keys()


@pytest.mark.parametrize(
    "overrides",
    [
        [*(f"+a{i}=${{a{i + 1}}}${{a{i + 1}}}" for i in range(40)), "+a40=x"],
        [*(f"+a{i}=[${{a{i + 1}}},${{a{i + 1}}}]" for i in range(40)), "+a40=x"],
        ["+a={b:${a}}"],
        ["+a=" + "[" * 90 + "]" * 90],
        ["+a=[" + "1," * 9000 + "1]"],
        ["+a={" + ",".join(f"k{i}:${{trainer}}" for i in range(900)) + "}", "+b=${a}", "+c={x:${a},y:${b}}"],
    ],
    ids=["texts", "lists", "itself", "nesting", "length", "values"],
)
def test_what_grows_without_bound_is_not_composed(root: Path, overrides: list[str]) -> None:
    values: Mapping[str, ConfigValue] = {}
    with suppress(NotComposedError):
        values = compose(root, *overrides)
    assert len(str(values)) < 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)),
        "a0: &a0 {k0: 1}\n"
        + "".join(f"a{i}: &a{i}\n  <<: [{','.join([f'*a{i - 1}'] * 20)}]\n  k{i}: 1\n" for i in range(1, 9)),
        "a: &a [*a]\n",
        "a: " + "[" * 5000 + "]" * 5000,
    ],
    ids=["aliases", "merge keys", "itself", "nesting"],
)
def test_a_file_that_grows_without_bound_is_not_composed(root: Path, text: str) -> None:
    (root / "engine" / "dp.yaml").write_text(text)
    with pytest.raises(NotComposedError):
        compose(root)


def test_messages_do_not_name_the_temporary_folder(root: Path) -> None:
    (root / "engine" / "dp.yaml").write_text("a: [1\nb: }")
    with pytest.raises(RefusedError, match=r"engine/dp\.yaml") as error:
        compose(root)
    assert str(root.parent) not in str(error.value)


def test_files_run_nothing(root: Path) -> None:
    file = root.parent / "pwned"
    (root / "engine" / "dp.yaml").write_text(f"a: !!python/object/apply:os.system ['touch {file}']")
    with pytest.raises(RefusedError, match="constructor"):
        compose(root)
    assert not file.exists()


def test_equal_defaults_are_merged_once_and_do_not_share_changes(root: Path) -> None:
    loader = ConfigLoader(root)
    for text in ("trainer.nnodes=5", "+trainer.list2=[1]"):
        assert not loader.syntax_problem(text)
    changed = loader.compose("", "main", ["trainer.nnodes=5", "+trainer.list2=[1]"])
    plain = loader.compose("", "main", [])
    assert changed["trainer"] != plain["trainer"]
    assert plain == ConfigLoader(root).compose("", "main", [])


@pytest.mark.parametrize(
    "overrides",
    [
        ("engine=tp", "trainer.nnodes=5"),
        ("trainer.nnodes=5", "engine=tp", "engine.size=7"),
        ("engine={size:4}",),
        ("engine={size:4}", "engine=tp"),
        ("~engine", "trainer.nnodes=5"),
        ("~engine=dp", "+engine={size:9}"),
        ("+engine@other=tp", "other.size=4"),
        ("engine=absent",),
        ("+engine=tp",),
        ("~engine=tp",),
        ("engine@trainer=tp",),
    ],
)
def test_earlier_compositions_change_nothing(root: Path, overrides: tuple[str, ...]) -> None:
    (root / "engine" / "tp.yaml").write_text("size: 3\n")
    used = ConfigLoader(root)
    for before in (("engine=tp",), ("engine=tp", "engine.size=5"), ("~engine",), overrides):
        outcome(used, before)
    assert outcome(used, overrides) == outcome(ConfigLoader(root), overrides)


def outcome(loader: ConfigLoader, overrides: tuple[str, ...]) -> Mapping[str, ConfigValue] | str:
    for override in overrides:
        assert not loader.syntax_problem(override)
    try:
        return loader.compose("", "main", overrides)
    except RefusedError as error:
        return str(error)


PARTS = [
    "a",
    "engine",
    "trainer",
    ".",
    "=",
    "+",
    "~",
    "@",
    "/",
    "..",
    "${",
    "}",
    "[",
    "]",
    "{",
    ":",
    ",",
    "'",
    "oc.env:",
    "oc.decode:",
    "hydra",
    "null",
    "1e999",
    "range(",
    ")",
    "???",
    "\\",
    "é",
    "-1",
]
OVERRIDES = st.lists(st.lists(st.sampled_from([*PARTS, " ", "\0"]), max_size=12).map("".join), max_size=3)


@settings(max_examples=60, deadline=None)
@given(overrides=OVERRIDES)
def test_random_overrides_are_taken_or_refused(
    overrides: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("verl")
    (root / "main.yaml").write_text("trainer: {a: 1, b: '${trainer.a}', c: [1, {d: 2}]}\n")
    with suppress(RefusedError, NotComposedError):
        compose(root, *overrides)
