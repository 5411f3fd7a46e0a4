"""No credential of this machine reaches a disk: one canary in every place, and a search of all files after use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from authenticated_index import AuthenticatedIndex
from canaries import FILES, ProcessWatch, Search, credentials, plain_token, plant
from command_checkout import PATCH, REPOSITORY, SECONDS, Checkout
from git_command import commit_all

from harness.digest import digest_file
from harness.sources.packages.index_settings import index_environment, uv_binary

# Variables of uv that define the default index; each test uses one way to name it.
DEFAULT_INDEX = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
# uv refuses the first of these and takes the second. Links to a page without packages, and a proxy that does not exist, end a run.
OTHERS = (
    "PIP_TRUSTED_HOST",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "PIP_FIND_LINKS",
    "PIP_PROXY",
    "~/.config/pip/pip.conf",
)
FORMATS = ("requirements", "script", "dockerfile", "json")


class Machine:
    """A checkout on a machine with a canary in every place, and an index that requires a password."""

    def __init__(self, checkout: Checkout, index: AuthenticatedIndex) -> None:
        self.checkout, self.index = checkout, index
        self.folder = checkout.root.parent
        self.home, self.temporary = self.folder / "home", self.folder / "tmp"
        self.temporary.mkdir()
        self.output = ""

    def plant(self, *leaving_out: str) -> None:
        for name in ("PIP_CONFIG_FILE", "PIP_NO_INDEX", "PIP_FIND_LINKS"):
            self.checkout.environ.pop(name, None)
        self.checkout.environ |= {
            **plant(self.home, self.index.host, project=self.folder, leaving_out=leaving_out),
            "TMPDIR": str(self.temporary),
            "UV_CACHE_DIR": str(self.folder / "own-uv-cache"),
        }
        self.planted = {path for path in self.home.rglob("*") if path.is_file()}
        self.planted |= {self.folder / place.name for place in FILES if place.name.startswith("./")}

    def use(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """The output of a command, which may contain tracebacks."""
        with self.checkout.start(*arguments) as process:
            output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode in codes, output
        self.output += output
        return output

    def found(self) -> dict[str, set[str]]:
        search = Search()
        shown = search.in_data(self.output.encode())
        return {**search.below(self.folder, leaving_out=self.planted), **({"output": shown} if shown else {})}


@pytest.fixture
def machine(checkout: Checkout) -> Iterator[Machine]:
    with AuthenticatedIndex(checkout.wheels.folder, credentials()) as index:
        yield Machine(checkout, index)


BUILD = ("--check", "resolve", "--check", "patches", "--check", "environment")


def test_after_a_build_locks_reports_a_merge_a_gate_and_a_cleanup(machine: Machine) -> None:
    machine.plant(*DEFAULT_INDEX[1:], *OTHERS)
    (machine.checkout.root / ".gitignore").write_text("/*\n!matrix.yaml\n!patches\n")
    commit_all(machine.checkout.root)
    with ProcessWatch() as watch:
        # The wheels are no real torch_npu, so the environment is installed, and its simulated device fails.
        assert "environment" in machine.use("run", *BUILD, codes=(1, 4))
        cell = json.loads(machine.use("status", "--json", codes=(1, 4)))["verdicts"][0]["cell"]
        shutil.copytree(REPOSITORY / "docker", machine.checkout.root / "docker")
        for name in FORMATS:
            machine.use("lock", cell, "--format", name)
        machine.use("lock", cell, "--format", "dockerfile", "--output", str(machine.folder / "context"))
        machine.use("report", codes=(0, 1, 4))
        assert list((machine.folder / "own-uv-cache").rglob("verl/core.py"))
        machine.use("--state", "other-state", "ledger", "merge", ".npu-matrix")
        machine.checkout.patch(PATCH.replace("return 0", "return 0.0"))
        machine.use(
            "gate", "--base", "HEAD", "--comment", "comment.md", "--sarif", "gate.sarif", codes=(0, 1, 4)
        )
        machine.use("--show-config", "plan")
        found = machine.found()
        machine.use("cleanup", codes=(0, 4))
    assert f"{plain_token('PIP_INDEX_URL0')}:{plain_token('PIP_INDEX_URL1')}" in machine.index.users
    assert {**found, **machine.found()} == {}
    assert watch.found == {}


def test_after_a_run_whose_index_refuses_the_password(machine: Machine) -> None:
    machine.plant(*OTHERS[:-2])
    machine.index.accepted.clear()
    # With its other strategies uv does not say that an index refused the password.
    machine.checkout.environ["UV_INDEX_STRATEGY"] = "first-index"
    with ProcessWatch() as watch:
        output = machine.use("--debug", "run", "--check", "resolve", "--only", "*0-9-1*", codes=(4,))
    assert f"could not fetch http://{machine.index.host}/" in output
    assert "401" in output
    assert machine.found() == {}
    assert watch.found == {}


SOURCES = ("--check", "resolve", "--check", "api", "--check", "patches")
WAYS = {
    "pip's variable": "PIP_INDEX_URL",
    "uv's variable": "UV_DEFAULT_INDEX",
    "uv's old variable": "UV_INDEX_URL",
    "pip.conf": "~/.pip/pip.conf",
}


@pytest.mark.parametrize("way", WAYS)
def test_an_index_that_requires_a_password_works_however_it_is_given(machine: Machine, way: str) -> None:
    place = WAYS[way]
    machine.plant(
        *(set(DEFAULT_INDEX) - {place}), *OTHERS, "UV_INDEX", "PIP_EXTRA_INDEX_URL", "~/.config/uv/uv.toml"
    )
    machine.use("run", *SOURCES, codes=(0, 1))
    assert f"{plain_token(f'{place}0')}:{plain_token(f'{place}1')}" in machine.index.users
    assert machine.found() == {}


@pytest.mark.parametrize("way", ["netrc", "a named index of uv"])
def test_a_password_that_is_no_part_of_the_address_works(machine: Machine, way: str) -> None:
    left_out = ("UV_INDEX", "PIP_EXTRA_INDEX_URL", "~/.config/uv/uv.toml", "~/.pip/pip.conf")
    machine.plant(*DEFAULT_INDEX, *OTHERS, *left_out)
    environ = machine.checkout.environ
    if way == "netrc":
        user, password = plain_token("~/my-netrc0"), plain_token("~/my-netrc1")
        Path(environ["NETRC"]).write_text(f"machine 127.0.0.1 login {user} password {password}\n")
        machine.index.accepted.add(f"{user}:{password}")
        environ["PIP_INDEX_URL"] = machine.index.url()
    else:
        user, password = environ["UV_INDEX_PRIVATE_USERNAME"], environ["UV_INDEX_PRIVATE_PASSWORD"]
        environ["UV_DEFAULT_INDEX"] = f"private={machine.index.url()}"
    machine.use("run", *SOURCES, codes=(0, 1))
    assert machine.index.users == {f"{user}:{password}"}
    assert machine.found() == {}


def test_an_environment_that_uv_installs_from_such_an_index_holds_no_password(machine: Machine) -> None:
    machine.plant(*DEFAULT_INDEX[1:], *OTHERS)
    environ = machine.checkout.environ
    settings = index_environment(environ, etc=machine.folder, prefix=machine.folder, cwd=machine.folder)
    prefix = machine.folder / "venv"
    for words in (
        ("venv", "--python", sys.executable, str(prefix)),
        ("pip", "install", "--python", str(prefix), "--require-hashes", "--requirements", "in.txt"),
        ("pip", "compile", "in.in", "--emit-index-url", "--format", "pylock.toml", "-o", "pylock.toml"),
    ):
        wheel = machine.checkout.wheels.folder / "verl-0.9.1-py3-none-any.whl"
        (machine.folder / "in.in").write_text("verl==0.9.1\n")
        (machine.folder / "in.txt").write_text(f"verl==0.9.1 --hash=sha256:{digest_file(wheel)}\n")
        subprocess.run(
            [uv_binary(), *words],
            env=settings.uv_environment(),
            cwd=machine.folder,
            check=True,
            capture_output=True,
        )
    assert list(prefix.rglob("verl/core.py"))
    assert machine.found() == {}
