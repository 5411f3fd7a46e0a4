"""Which values are secret: those of every variable that is not on the allow-list, and those of known files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from harness.settings import ENVIRONMENT_PREFIX, OPTIONS
from harness.sources.packages.index_settings import INHERITED, PROXIES
from harness.sources.secrets.credential_files import FILES, file_paths
from harness.sources.secrets.secret_values import secret_values
from harness.sources.secrets.stored_variables import STORED, Storage, storage_of, stored_value


def canary(name: str) -> str:
    return f"canary-{name}-5f1c"


def pair(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


VARIABLES = {
    "PIP_INDEX_URL": f"https://{canary('user')}:{canary('password')}@index.example/simple",
    "PIP_EXTRA_INDEX_URL": f"https://a.example/simple https://{canary('token')}@b.example/simple?key={canary('query')}",
    "PIP_PROXY": f"http://me:{canary('proxy')}@proxy.example:3128",
    "HTTPS_PROXY": f"me:{canary('noscheme')}@proxy.example:3128",
    "https_proxy": f"http://me:{canary('lower')}@proxy.example",
    "UV_INDEX": f"private=https://me:{canary('named')}@index.example/simple,https://t:{canary('comma')}@c.example/s",
    "UV_INDEX_PRIVATE_USERNAME": canary("uv-user"),
    "UV_INDEX_PRIVATE_PASSWORD": canary("uv-password"),
    "UV_PUBLISH_TOKEN": canary("publish"),
    "HF_TOKEN": canary("hf"),
    "AWS_SECRET_ACCESS_KEY": canary("aws"),
    "MY_COMPANY_THING": canary("invented"),
    "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {pair('me', canary('header'))}",
    "GIT_CONFIG_KEY_0": f"url.https://{canary('insteadof')}@github.example/.insteadOf",
    "DOCKER_AUTH_CONFIG": json.dumps(
        {"auths": {"r.example": {"auth": pair(canary("d-user"), canary("docker"))}}}
    ),
    "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=team;AccountKey={canary('azure')};EndpointSuffix=x",
    "RAY_ADDRESS": f"ray://token:{canary('ray')}@head.example:10001",
    "NPU_MATRIX_RAY_ADDRESS": f"ray://head.example:10001?token={canary('matrix')}",
    "SHORT_PASSWORD": "hunter",
}
CANARIES = (
    *(
        "user",
        "password",
        "token",
        "query",
        "proxy",
        "noscheme",
        "lower",
        "named",
        "comma",
        "uv-user",
        "uv-password",
    ),
    *(
        "publish",
        "hf",
        "aws",
        "invented",
        "header",
        "insteadof",
        "d-user",
        "docker",
        "azure",
        "ray",
        "matrix",
    ),
)
FILES_WITH_CANARIES = {
    "$NETRC": f"machine a.example login {canary('netrc-login')} password {canary('netrc')}\n",
    "~/.netrc": f'default login me password "{canary("home-netrc")}"\n',
    "~/.config/pip/pip.conf": f"[global]\nindex-url = https://me:{canary('pip-conf')}@i.example/simple\n",
    "~/.config/uv/uv.toml": f'[[index]]\nurl = "https://me:{canary("uv-toml")}@i.example/simple"\n',
    "~/.pypirc": f"[pypi]\nusername = __token__\npassword = {canary('pypirc')}\n",
    "~/.git-credentials": f"https://me:{canary('git-file')}@github.example\n",
    "~/.gitconfig": f"[http]\n\textraHeader = Authorization: Bearer {canary('git-config')}\n",
    "~/.docker/config.json": json.dumps(
        {"auths": {"r.example": {"auth": pair("me", canary("docker-file"))}}}
    ),
    "~/.cache/huggingface/token": canary("hf-file"),
    "~/.aws/credentials": f"[default]\naws_secret_access_key = {canary('aws-file')}\n",
    "~/.ssh/id_ed25519": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{canary('ssh')}\n-----END OPENSSH PRIVATE KEY-----\n",
    "~/.config/gh/hosts.yml": f"github.com:\n    oauth_token: {canary('gh')}\n",
}


def test_every_credential_of_the_environment_is_known() -> None:
    found = secret_values(VARIABLES)
    assert {canary(name) for name in CANARIES} <= found
    assert "hunter" in found
    assert not {"index.example", "https://index.example/simple", "me", "proxy.example:3128"} & found


def test_nothing_secret_of_the_environment_is_stored_and_hosts_are() -> None:
    stored = {name: stored_value(name, value) for name, value in VARIABLES.items()}
    assert "canary" not in str(stored)
    assert "hunter" not in str(stored)
    assert stored["UV_INDEX"] == "private=https://***@index.example/simple,https://***@c.example/s"
    assert stored["PIP_EXTRA_INDEX_URL"] == "https://a.example/simple https://***@b.example/simple"
    assert stored["MY_COMPANY_THING"] is None
    assert stored["HTTPS_PROXY"] == "***@proxy.example:3128"


def test_every_credential_file_is_read(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "my-netrc")}
    for name, text in FILES_WITH_CANARIES.items():
        file = tmp_path / "my-netrc" if name == "$NETRC" else tmp_path / name.removeprefix("~/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = secret_values(environ)
    expected = {word for text in FILES_WITH_CANARIES.values() for word in text.split() if "canary" in word}
    assert len(expected) >= 8
    for name in (
        "netrc-login",
        "netrc",
        "home-netrc",
        "pip-conf",
        "uv-toml",
        "pypirc",
        "git-file",
        "git-config",
    ):
        assert canary(name) in found, name
    for name in ("docker-file", "hf-file", "aws-file", "ssh", "gh"):
        assert canary(name) in found, name


JOBS = {
    "include": [
        {"name": "1", "cells": "verl-0-9-0-d2e0b61347f7 verl-0-8-0-87615c0bc83e", "checks": "resolve"}
    ]
}


def test_public_parts_of_json_and_of_a_list_are_no_secrets(tmp_path: Path) -> None:
    cells = "verl-0-9-0-d2e0b61347f7 verl-0-8-0-87615c0bc83e"
    # The files of the user who runs the tests may hold secrets of their own.
    home = {"HOME": str(tmp_path)}
    environ = home | {"MATRIX": json.dumps(JOBS), "CELLS": cells}
    assert set(cells.split()) <= secret_values(environ)
    public = json.dumps(cells.split())
    assert secret_values(environ, public) == {json.dumps(JOBS)}
    assert secret_values(home | {"CELLS": cells}, public) == frozenset()


def test_what_calls_itself_a_credential_stays_secret_where_everything_is_public() -> None:
    parts = {
        "cells": "verl-0-9-0-d2e0b61347f7",
        "deploy": {"pw": canary("leaf")},
        "apiKey": [canary("camel")],
        "url": f"https://me:{canary('url')}@x.example",
        "header": pair("me", canary("pair")),
    }
    environ = {
        "JOB": json.dumps(parts),
        "JOB_TOKEN": "resolve",
        "CONNECTION": f"AccountName=team;AccountKey={canary('key')};password: {canary('words')}",
    }
    everything = "\n".join(("resolve", str(parts), environ["CONNECTION"], canary("pair")))
    found = secret_values(environ, everything)
    assert {canary(name) for name in ("leaf", "camel", "url", "pair", "key", "words")} <= found
    assert "resolve" in found
    assert "verl-0-9-0-d2e0b61347f7" not in found


def test_a_value_that_is_public_is_no_secret(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "TEAM_CHIP": "Ascend910B3",
        "TEAM_FOLDER": "/usr/lib/team",
        "TEAM_NUMBER": "123456789.0",
        "X": "short",
    }
    assert secret_values(environ) == {"Ascend910B3"}
    assert secret_values(environ, public='{"soc": "Ascend910B3"}') == frozenset()
    # A name that says "token" is believed, whatever the value looks like.
    environ = {"HOME": str(tmp_path), "X_TOKEN": "123456789"}
    assert secret_values(environ, public="123456789") == {"123456789"}


def test_every_setting_and_every_inherited_variable_is_classified() -> None:
    unlisted = [f"{ENVIRONMENT_PREFIX}{option.name.upper()}" for option in OPTIONS]
    unlisted += [*INHERITED, *PROXIES, *(name.lower() for name in PROXIES)]
    assert [name for name in unlisted if storage_of(name) is Storage.NAME] == ["SSL_CLIENT_CERT"]


@pytest.mark.parametrize(
    "name", ["UV_INDEX_A_PASSWORD", "UV_INDEX_A_USERNAME", "HF_TOKEN", "ASCEND_TOKEN", "PIP_X"]
)
def test_a_variable_that_nobody_listed_is_stored_by_name_only(name: str) -> None:
    assert storage_of(name) is Storage.NAME


def test_every_entry_of_the_tables_says_why_and_names_a_tool() -> None:
    assert all(entry.reason and entry.storage is not Storage.NAME for entry in STORED)
    assert all(entry.tool and entry.paths for entry in FILES)


def test_a_variable_may_name_several_files(tmp_path: Path) -> None:
    kube = next(file for file in FILES if file.tool == "Kubernetes")
    for name in ("a", "b"):
        (tmp_path / name).write_text("token: x")
    environ = {"KUBECONFIG": f"{tmp_path / 'a'}:{tmp_path / 'b'}:/nonexistent"}
    assert list(file_paths(kube, environ)) == [tmp_path / "a", tmp_path / "b"]
