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

from harness.sources.secrets.credential_text import (
    URL,
    address_secrets,
    parts_of,
    secrets_in,
    token_segments,
    url_secrets,
)
from harness.sources.secrets.stored_variables import Storage, is_credential_name, storage_of
from harness.user_folders import XDG_DEFAULTS, home_folder

Reader = Callable[[str], Iterator[str]]
MAX_BYTES = 1 << 20
_NETRC = re.compile(r"""\b(?P<name>login|account|password)\s+(?P<value>"(?:\\.|[^"\\\n])*"|\S+)""")
_ASSIGNMENT = re.compile(r"^[ \t]*(?P<name>[\w.-]+)[ \t]*[=:][ \t]*(?P<value>\S.*?)[ \t\r]*$", re.MULTILINE)
# Assignments inside of a line, for example in a credential helper of git that is a shell function.
_INNER_ASSIGNMENT = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)=(?P<value>[^\s\"';,&|)}]+)")
# Git settings with the path of another file: an included one, and that of `git credential-store`.
_GIT_FILE = re.compile(
    r"^[ \t]*path[ \t]*=[ \t]*\"?(?P<path>[^\"\n]+)|--file[ =](?P<store>[^\s\"']+)", re.MULTILINE
)
# Settings whose value is a credential, in the files of clouds and of package indexes.
_SECRET_OPTION = re.compile(
    r"passw|secret|token|key|auth|credential|cookie|username|extraheader", re.IGNORECASE
)


def _netrc(text: str) -> Iterator[str]:
    login = ""
    for match in _NETRC.finditer(text):
        value = match["value"]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        if match["name"] == "password":
            yield f"{login}:{value}"
        else:
            login = value
        yield value


def _assignments(text: str) -> Iterator[str]:
    """The values of options with a name such as `password`, and the credentials of all URLs."""
    yield from url_secrets(text)
    for url in URL.finditer(text):
        yield from token_segments(url[0])
    for match in (*_ASSIGNMENT.finditer(text), *_INNER_ASSIGNMENT.finditer(text)):
        value = match["value"].strip("\"',")
        if match["name"].lower().endswith("proxy"):
            yield from address_secrets(value)
        elif _SECRET_OPTION.search(match["name"]):
            yield from secrets_in(value)


def _pem(text: str) -> Iterator[str]:
    """The lines of a private key; a certificate is public."""
    for key in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", text, re.DOTALL):
        yield from key.split()


def _curl(text: str) -> Iterator[str]:
    """The options `user` and `proxy-user` have the form `name:password`."""
    yield from _assignments(text)
    for match in re.finditer(
        r"""^[ \t-]*(?:proxy-)?user[ \t=:]+["']?(?P<pair>[^"'\n]+)""", text, re.MULTILINE
    ):
        yield from url_secrets(f"any://{match['pair'].strip()}@host")


def _keys_and_urls(text: str) -> Iterator[str]:
    yield from (*_pem(text), *url_secrets(text))


def _any_credentials(text: str) -> Iterator[str]:
    """For a file of a variable such as `DB_PASSWORD_FILE`: a key, JSON, assignments or only one word."""
    yield from _keys_and_urls(text)
    yield from parts_of(text) if text.lstrip().startswith("{") else _assignments(text)
    if len(text.split()) == 1:
        yield from secrets_in(text)


@dataclass(frozen=True, kw_only=True)
class CredentialFile:
    """Files of one tool.

    `paths` may contain wildcards and start with `~`, `$VARIABLE` or `./`, which is the working directory and
    all folders above it. A path in a folder for which there is an XDG variable, such as `~/.config`, is also
    looked for there. others: the paths in a text of further files of the same kind.
    """

    tool: str
    paths: tuple[str, ...]
    read: Reader
    others: Callable[[str], Iterator[str]] | None = None


def _git_files(text: str) -> Iterator[str]:
    for match in _GIT_FILE.finditer(text):
        yield (match["path"] or match["store"]).strip() or "."
    if text.startswith("gitdir:"):
        # The checkout of a submodule or of a worktree.
        folder = text.partition(":")[2].strip()
        yield from (f"{folder}/config", f"{folder}/../../config")


FILES = (
    CredentialFile(tool="netrc", paths=("$NETRC", "~/.netrc", "~/_netrc"), read=_netrc),
    CredentialFile(
        tool="pip",
        paths=(
            "$PIP_CONFIG_FILE",
            "$VIRTUAL_ENV/pip.conf",
            f"{sys.prefix}/pip.conf",
            "~/.pip/pip.conf",
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
            "~/.config/uv/uv.toml",
            "$XDG_CONFIG_DIRS/uv/uv.toml",
            "/etc/xdg/uv/uv.toml",
            "/etc/uv/uv.toml",
            "./uv.toml",
            "$UV_ENV_FILE",
            "$UV_CONSTRAINT",
            "$UV_CREDENTIALS_DIR/credentials.toml",
            "~/.local/share/uv/credentials/credentials.toml",
        ),
        read=_assignments,
    ),
    CredentialFile(tool="uv", paths=("./pyproject.toml",), read=url_secrets),
    CredentialFile(tool="twine", paths=("~/.pypirc",), read=_assignments),
    CredentialFile(
        tool="keyring",
        paths=("~/.local/share/python_keyring/keyring_pass.cfg",),
        read=_assignments,
    ),
    CredentialFile(
        tool="git",
        paths=(
            "~/.git-credentials",
            "~/.config/git/credentials",
            "$GIT_CONFIG_GLOBAL",
            "~/.gitconfig",
            "~/.config/git/config",
            "$GIT_CONFIG_SYSTEM",
            "/etc/gitconfig",
            "./.git",
            "./.git/config",
            "$GIT_DIR/config",
        ),
        read=_assignments,
        others=_git_files,
    ),
    CredentialFile(
        tool="docker and podman",
        paths=(
            "$DOCKER_CONFIG/config.json",
            "~/.docker/config.json",
            "~/.dockercfg",
            "$REGISTRY_AUTH_FILE",
            "$XDG_RUNTIME_DIR/containers/auth.json",
            "/run/containers/*/auth.json",
            "~/.config/containers/auth.json",
        ),
        read=parts_of,
    ),
    CredentialFile(
        tool="docker and podman",
        paths=(
            "$DOCKER_CERT_PATH/key.pem",
            "$DOCKER_CONFIG/contexts/tls/*/*/key.pem",
            "~/.docker/key.pem",
            "~/.docker/contexts/tls/*/*/key.pem",
        ),
        read=_pem,
    ),
    CredentialFile(tool="secrets of containers", paths=("/run/secrets/*",), read=secrets_in),
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
    CredentialFile(tool="ModelScope", paths=("~/.modelscope/credentials/*",), read=secrets_in),
    CredentialFile(
        tool="package managers",
        paths=(
            "$NPM_CONFIG_USERCONFIG",
            "~/.npmrc",
            "~/.config/pypoetry/auth.toml",
            "$CONDARC",
            "~/.condarc",
        ),
        read=_assignments,
    ),
    CredentialFile(tool="wget", paths=("$WGETRC", "~/.wgetrc"), read=_assignments),
    CredentialFile(tool="curl", paths=("$CURL_HOME/.curlrc", "~/.curlrc", "~/.config/curlrc"), read=_curl),
    CredentialFile(
        tool="GitHub CLI", paths=("$GH_CONFIG_DIR/hosts.yml", "~/.config/gh/hosts.yml"), read=_assignments
    ),
    CredentialFile(tool="Kubernetes", paths=("$KUBECONFIG", "~/.kube/config"), read=_assignments),
    CredentialFile(tool="SSH", paths=("~/.ssh/id_*", "~/.ssh/*.pem"), read=_pem),
)


def file_secrets(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(path, secret) for the files that exist and can be read, and those that other variables name."""
    done: set[Path] = set()
    for file in (*FILES, *_named_files(environ)):
        pending = list(file_paths(file, environ))
        while pending:
            path = pending.pop()
            if path in done:
                continue
            done.add(path)
            if text := _text(path):
                yield from ((str(path), secret) for secret in file.read(text))
                for other in file.others(text) if file.others else ():
                    pending += _found(other if other[0] in "~/" else f"{path.parent}/{other}", environ)


def file_paths(file: CredentialFile, environ: Mapping[str, str]) -> Iterator[Path]:
    """The existing files that the patterns of `file` name in this environment."""
    for pattern in dict.fromkeys(file.paths):
        yield from _found(pattern, environ)
        for variable, folder in XDG_DEFAULTS.items():
            if pattern.startswith(f"~/{folder}/"):
                yield from _found(pattern.replace(f"~/{folder}", f"${variable}"), environ)


def _named_files(environ: Mapping[str, str]) -> Iterator[CredentialFile]:
    """The files that variables name whose values may not be stored, such as `DB_PASSWORD_FILE`."""
    for name, value in environ.items():
        if value.startswith("/") and storage_of(name) is Storage.NAME:
            read = _any_credentials if is_credential_name(name) else _keys_and_urls
            yield CredentialFile(tool=name, paths=(f"${name}",), read=read)


def _found(pattern: str, environ: Mapping[str, str]) -> Iterator[Path]:
    start, slash, rest = pattern.partition("/")
    if start == "~":
        folders = [str(home_folder(environ))]
    elif start == ".":
        folders = _current_folders()
    elif start.startswith("$"):
        # A variable may name several files or folders.
        folders = environ.get(start[1:], "").split(os.pathsep)
    else:
        folders = [start or "/"]
    for folder in filter(None, folders):
        base = Path(folder)
        try:
            found = sorted(base.glob(rest.lstrip("/"))) if slash else [base]
            yield from (path for path in found if path.is_file())
        except (OSError, ValueError):
            continue


def _current_folders() -> list[str]:
    """The current folder and those above it; none if it was deleted, as Ray does with that of a worker."""
    try:
        here = Path.cwd()
    except OSError:
        return []
    return [str(folder) for folder in (here, *here.parents)]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in data else data.decode("utf-8", "replace")
