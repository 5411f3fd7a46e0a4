"""Every place where this program reads the environment or credentials has an entry in the table of canaries."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import canaries
import pytest

from harness.package import PACKAGE_ROOT
from harness.sources.packages.pip_config import configuration_files
from harness.sources.packages.uv_config import uv_config_files
from harness.sources.secrets.credential_files import FILES, file_paths, file_secrets
from harness.sources.secrets.secret_values import secret_values
from harness.sources.secrets.stored_variables import Storage, storage_of, stored_value
from harness.user_folders import XDG_DEFAULTS

# What these modules read is set by this program, in the environment of programs that it starts in a cell.
IN_CELL = ("cell_program", "convergence", "devices/sim", "fixtures", "numerics", "rollout")
READERS = ("get", "getenv", "pop", "setdefault")


def read_variables() -> Iterator[tuple[str, str]]:
    """(file, variable) for every variable that a module of the host side reads from an environment."""
    modules = {path: ast.parse(path.read_text()) for path in PACKAGE_ROOT.rglob("*.py")}
    constants = {
        target.id: node.value.value
        for tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    for path, tree in modules.items():
        name = path.relative_to(PACKAGE_ROOT).as_posix()
        if name.startswith(IN_CELL):
            continue
        for node in ast.walk(tree):
            key: ast.expr | None = None
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
                key = node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner = ast.unparse(node.func.value)
                if node.func.attr in READERS and (owner.endswith("environ") or owner == "os"):
                    key = node.args[0]
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield name, key.value
            elif isinstance(key, ast.Name) and key.id in constants:
                yield name, constants[key.id]


def test_every_variable_that_is_read_is_on_the_allow_list_or_has_a_canary() -> None:
    read = set(read_variables())
    assert len(read) >= 20
    planted = {place.name for place in canaries.VARIABLES}
    missing = [
        (file, name)
        for file, name in sorted(read)
        if storage_of(name) is Storage.NAME and name not in planted
    ]
    assert not missing, (
        f"add these to stored_variables.py with a reason, or to tests/support/canaries.py: {missing}"
    )


@pytest.mark.parametrize("place", canaries.EVERYWHERE, ids=lambda place: place.name)
def test_the_secrets_of_every_place_are_known(
    place: canaries.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = canaries.plant(tmp_path, "index.example")
    monkeypatch.chdir(tmp_path)
    names = {"HOME", "NETRC", "RAY_TLS_SERVER_KEY", "DATABASE_PASSWORD_FILE"} | (
        {place.name} if not place.is_file else set()
    )
    found = secret_values({name: value for name, value in everything.items() if name in names})
    assert set(place.tokens) <= found


@pytest.mark.parametrize("place", canaries.VARIABLES, ids=lambda place: place.name)
def test_nothing_secret_of_a_variable_is_stored(place: canaries.Place) -> None:
    stored = stored_value(place.name, place.filled("index.example")) or ""
    assert canaries.Search().in_data(stored.encode()) == set()
    if "HOST" in place.content:
        assert "index.example" in stored


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if any(path.startswith(("~", "$", "./")) for path in file.paths)],
    ids=lambda file: file.paths[-1],
)
def test_every_credential_file_has_a_canary(
    file: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = canaries.plant(tmp_path, "index.example")
    monkeypatch.chdir(tmp_path)
    certificate = tmp_path / "client.pem"
    certificate.write_text(canaries.token("pem"))
    paths = list(file_paths(file, {**environ, "SSL_CLIENT_CERT": str(certificate)}))  # type: ignore[arg-type]
    assert [path for path in paths if path.is_relative_to(tmp_path)], (
        "add a file to tests/support/canaries.py"
    )


BASE_FOLDERS = [
    pytest.param(place, variable, f"~/{folder}/", id=f"{variable} {place.name}")
    for place in canaries.FILES
    for variable, folder in XDG_DEFAULTS.items()
    if place.name.startswith(f"~/{folder}/")
]


@pytest.mark.parametrize(("place", "variable", "folder"), BASE_FOLDERS)
def test_a_file_is_also_looked_for_in_the_folder_of_its_xdg_variable(
    place: canaries.Place, variable: str, folder: str, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    file = moved / place.name.removeprefix(folder)
    file.parent.mkdir(parents=True)
    file.write_text(place.filled("index.example"))
    home = tmp_path / "home"
    home.mkdir()
    assert set(place.tokens) <= secret_values({"HOME": str(home), variable: str(moved)})


@pytest.mark.parametrize(
    "given", ["", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "PIP_CONFIG_FILE", "UV_CONFIG_FILE"]
)
def test_the_settings_files_that_this_program_reads_are_searched_for_secrets(
    given: str, tmp_path: Path
) -> None:
    environ = {"HOME": str(tmp_path), **({given: str(tmp_path / "given")} if given else {})}
    read = (
        *configuration_files(environ, Path("/etc"), Path(sys.prefix)),
        *uv_config_files(environ, Path("/etc")),
    )
    for file in (file for file in read if file.is_relative_to(tmp_path)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"password = {canaries.plain_token(str(file))}")
        assert canaries.plain_token(str(file)) in secret_values(environ), file
        file.unlink()
    searched = {path for file in FILES for path in file.paths}
    assert not [file for file in read if not file.is_relative_to(tmp_path) and str(file) not in searched]


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".netrc").mkdir()
    assert [
        path for path, _secret in file_secrets({"HOME": str(tmp_path)}) if path.startswith(str(tmp_path))
    ] == []
