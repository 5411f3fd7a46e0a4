"""The check `api` on lists of versions: every stated package is compared with the stated packages it uses."""

from __future__ import annotations

from typing import Any

import pytest

from harness.compat.api.api_check import judge, run
from harness.compat.api.api_measurements import SHARED, CheckedPair
from harness.compat.checks import CHECKS
from harness.outcome import Judgement, Status

NAMES = "from lib import gone\n"


def facets(**versions: str) -> dict[str, Any]:
    return {
        "pins": {"requirements": [f"{name}=={one}" for name, one in versions.items()], "overrides": []},
        "platform": {"python": "3.11", "arch": "x86_64", "host": True},
        "verl_tree": {"version": ""},
        "vllm_ascend": {"version": ""},
        "patches[verl]": [],
        "patches[vllm_ascend]": [],
        "paired": versions,
    }


@pytest.fixture
def judged(wheels: Any, context: Any) -> Any:
    """Judges `user 1.0` with `lib 1.0`, which has the name `gone`, and with `lib 2.0`, which lacks it."""
    wheels.add("lib", "1.0", files={"lib/__init__.py": "def gone(): ...\n"})
    wheels.add("lib", "2.0", files={"lib/__init__.py": ""})

    def judge_list(
        lib: str, *requires: str, init: str = "", entry_points: str = "", **files: str
    ) -> Judgement:
        content = {name.replace("__", "/") + ".py": text for name, text in files.items()}
        content = {"user/__init__.py": init, **content}
        if entry_points:
            content["user-1.0.dist-info/entry_points.txt"] = entry_points
        wheels.add("user", "1.0", *requires, files=content)
        return judge(run(context(facets(user="1.0", lib=lib))).measurements, {})

    return judge_list


def test_a_list_of_two_packages_is_checked() -> None:
    [check] = [one for one in CHECKS if one.name == "api"]
    assert check.applies(facets(user="1.0", lib="2.0")) == ""
    assert check.applies(facets(user="1.0"))


@pytest.mark.parametrize("requires", [("lib",), ()])
def test_a_package_that_cannot_be_imported_fails_the_list(judged: Any, requires: tuple[str, ...]) -> None:
    assert judged("1.0", *requires, user__a=NAMES, init="from .a import gone\n").status is Status.PASS
    bad = judged("2.0", *requires, user__a=NAMES, init="from .a import gone\n")
    assert bad.status is Status.FAIL
    assert bad.reasons[0] == "user/a.py:1: lib has no gone (lib 2.0, 1.0 had it)."


@pytest.mark.parametrize(
    ("groups", "status"),
    [
        ("[console_scripts]\nuser = user.a:main\n", Status.FAIL),
        ("[lib.plugins]\nuser = user.a\n", Status.FAIL),
        ("[other.plugins]\nuser = user.a\n", Status.PASS),
    ],
)
def test_programs_and_plugins_of_stated_packages_must_start(judged: Any, groups: str, status: Status) -> None:
    assert judged("1.0", user__a=NAMES, entry_points=groups).status is Status.PASS
    assert judged("2.0", user__a=NAMES, entry_points=groups).status is status


def shared_by(importers: int, text: str = "") -> dict[str, str]:
    """A module that no import of the package reaches, and modules that import it."""
    importing = f"from user.core import gone\n{text}"
    return {"user__core": NAMES} | {f"user__m{number}": importing for number in range(importers)}


@pytest.mark.parametrize(
    ("requirement", "files", "status"),
    [
        ("lib", shared_by(SHARED), Status.FAIL),
        ("lib", shared_by(SHARED - 1), Status.PASS),
        # What only an extra requires is optional, unless the whole package imports it.
        ("lib; extra == 'lib'", shared_by(SHARED), Status.PASS),
        ("lib; extra == 'lib'", shared_by(SHARED, "import lib\n"), Status.FAIL),
    ],
)
def test_shared_code_that_cannot_be_imported_fails_the_list(
    judged: Any, requirement: str, files: dict[str, str], status: Status
) -> None:
    assert judged("1.0", requirement, **files).status is Status.PASS
    found = judged("2.0", requirement, **files)
    assert found.status is status
    assert status is Status.FAIL or any("Breaks only when it is called" in one for one in found.reasons)


def test_packages_that_were_built_for_one_version_are_left_to_resolve(wheels: Any, context: Any) -> None:
    wheels.add("lib", "2.0", files={"lib/__init__.py": ""})
    wheels.add("third", "1.0", "lib", files={"third/__init__.py": "import lib\n"})
    wheels.add("user", "1.0", "lib==1.0", "third", files={"user/__init__.py": f"import third\n{NAMES}"})
    measured = run(context(facets(user="1.0", lib="2.0", third="1.0"))).measurements
    assert measured.pairs == (
        CheckedPair("user", "1.0", "third", "1.0"),
        CheckedPair("third", "1.0", "lib", "2.0"),
    )


def test_a_list_with_nothing_to_compare_does_not_pass(wheels: Any, context: Any) -> None:
    wheels.add("lib", "2.0", files={"lib/__init__.py": ""})
    wheels.add("user", "1.0", "lib==2.0", files={"user/__init__.py": "import lib\n"})
    found = judge(run(context(facets(user="1.0", lib="2.0"))).measurements, {})
    assert (found.status, "without pinning its version" in found.reasons[0]) == (Status.UNSUPPORTED, True)
