"""The files in which tools keep credentials, and how these are read from them.

Programs of a task can read these files. What a program prints of them is masked, so they are read here, too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sources.secrets.credential_text import parts_of, secrets_in, url_secrets

Reader = Callable[[str], Iterator[str]]
MAX_BYTES = 1 << 20
_NETRC = re.compile(r"\b(?P<name>login|account|password)\s+(?P<value>\"[^\"\n]*\"|\S+)")
_ASSIGNMENT = re.compile(r"^[ \t]*(?P<name>[\w.-]+)[ \t]*[=:][ \t]*(?P<value>\S.*?)[ \t\r]*$", re.MULTILINE)
# Settings whose value is a credential, in the files of clouds and of package indexes.
_SECRET_OPTION = re.compile(
    r"passw|secret|token|key|auth|credential|cookie|username|extraheader", re.IGNORECASE
)


def _netrc(text: str) -> Iterator[str]:
    login = ""
    for match in _NETRC.finditer(text):
        value = match["value"].strip('"')
        if match["name"] == "password":
            yield f"{login}:{value}"
        else:
            login = value
        yield value


def _assignments(text: str) -> Iterator[str]:
    """The values of options with a name such as `password`, and the credentials of all URLs."""
    yield from url_secrets(text)
    for match in _ASSIGNMENT.finditer(text):
        value = match["value"].strip("\"',")
        if _SECRET_OPTION.search(match["name"]):
            yield from secrets_in(value)


def _pem(text: str) -> Iterator[str]:
    """The lines of a private key; a certificate is public."""
    for key in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", text, re.DOTALL):
        yield from key.split()


@dataclass(frozen=True, kw_only=True)
class CredentialFile:
    """Files of one tool. `paths` may start with `~` or `$VARIABLE` and contain wildcards."""

    tool: str
    paths: tuple[str, ...]
    read: Reader


FILES = (
    CredentialFile(tool="netrc", paths=("$NETRC", "~/.netrc", "~/_netrc"), read=_netrc),
    CredentialFile(
        tool="pip",
        paths=(
            "$PIP_CONFIG_FILE",
            "$VIRTUAL_ENV/pip.conf",
            f"{sys.prefix}/pip.conf",
            "~/.pip/pip.conf",
            "$XDG_CONFIG_HOME/pip/pip.conf",
            "~/.config/pip/pip.conf",
            "~/Library/Application Support/pip/pip.conf",
            "$XDG_CONFIG_DIRS/pip/pip.conf",
            "/etc/xdg/pip/pip.conf",
            "/etc/pip.conf",
            "$PIP_REQUIREMENT",
            "$PIP_CONSTRAINT",
        ),
        read=_assignments,
    ),
    CredentialFile(tool="client certificate", paths=("$PIP_CLIENT_CERT", "$SSL_CLIENT_CERT"), read=_pem),
    CredentialFile(
        tool="uv",
        paths=(
            "$UV_CONFIG_FILE",
            "$XDG_CONFIG_HOME/uv/uv.toml",
            "~/.config/uv/uv.toml",
            "/etc/uv/uv.toml",
            "$UV_CREDENTIALS_DIR/credentials.toml",
            "$XDG_DATA_HOME/uv/credentials/credentials.toml",
            "~/.local/share/uv/credentials/credentials.toml",
        ),
        read=_assignments,
    ),
    CredentialFile(tool="twine", paths=("~/.pypirc",), read=_assignments),
    CredentialFile(
        tool="keyring",
        paths=(
            "$XDG_DATA_HOME/python_keyring/keyring_pass.cfg",
            "~/.local/share/python_keyring/keyring_pass.cfg",
        ),
        read=_assignments,
    ),
    CredentialFile(
        tool="git",
        paths=(
            "~/.git-credentials",
            "$XDG_CONFIG_HOME/git/credentials",
            "~/.config/git/credentials",
            "$GIT_CONFIG_GLOBAL",
            "~/.gitconfig",
            "$XDG_CONFIG_HOME/git/config",
            "~/.config/git/config",
            "/etc/gitconfig",
        ),
        read=_assignments,
    ),
    CredentialFile(
        tool="docker and podman",
        paths=(
            "$DOCKER_CONFIG/config.json",
            "~/.docker/config.json",
            "$REGISTRY_AUTH_FILE",
            "$XDG_RUNTIME_DIR/containers/auth.json",
            "~/.config/containers/auth.json",
        ),
        read=parts_of,
    ),
    CredentialFile(
        tool="Hugging Face",
        paths=("$HF_TOKEN_PATH", "$HF_HOME/token", "~/.cache/huggingface/token", "~/.huggingface/token"),
        read=secrets_in,
    ),
    CredentialFile(
        tool="Hugging Face",
        paths=("$HF_HOME/stored_tokens", "~/.cache/huggingface/stored_tokens"),
        read=_assignments,
    ),
    CredentialFile(tool="Ray", paths=("$RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"), read=secrets_in),
    CredentialFile(
        tool="cloud SDKs",
        paths=(
            "$AWS_SHARED_CREDENTIALS_FILE",
            "~/.aws/credentials",
            "$AWS_CONFIG_FILE",
            "~/.aws/config",
            "~/.oss/credentials",
            "~/.ossutilconfig",
            "~/.obsutilconfig",
            "~/.s3cfg",
            "~/.config/rclone/rclone.conf",
        ),
        read=_assignments,
    ),
    CredentialFile(
        tool="cloud SDKs",
        paths=(
            "$GOOGLE_APPLICATION_CREDENTIALS",
            "~/.config/gcloud/application_default_credentials.json",
            "$KAGGLE_CONFIG_DIR/kaggle.json",
            "~/.kaggle/kaggle.json",
            "~/.azure/msal_token_cache.json",
        ),
        read=parts_of,
    ),
    CredentialFile(
        tool="GitHub CLI", paths=("$GH_CONFIG_DIR/hosts.yml", "~/.config/gh/hosts.yml"), read=_assignments
    ),
    CredentialFile(tool="Kubernetes", paths=("$KUBECONFIG", "~/.kube/config"), read=_assignments),
    CredentialFile(tool="SSH", paths=("~/.ssh/id_*", "~/.ssh/*.pem"), read=_pem),
)


def file_secrets(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(path, secret) for the files that exist and can be read."""
    for file in FILES:
        for path in file_paths(file, environ):
            text = _text(path)
            yield from ((str(path), secret) for secret in (file.read(text) if text else ()))


def file_paths(file: CredentialFile, environ: Mapping[str, str]) -> Iterator[Path]:
    """The existing files that the patterns of `file` name in this environment."""
    for pattern in dict.fromkeys(file.paths):
        start, slash, rest = pattern.partition("/")
        variable = "HOME" if start == "~" else start.removeprefix("$") if start.startswith("$") else ""
        # A variable may name several files or folders.
        folders = environ.get(variable, "").split(os.pathsep) if variable else [start or "/"]
        for folder in filter(None, folders):
            base = Path(folder)
            try:
                found = sorted(base.glob(rest.lstrip("/"))) if slash else [base]
                yield from (path for path in found if path.is_file())
            except (OSError, ValueError):
                continue


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
