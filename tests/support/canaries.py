"""One canary for every place in which tools document credentials, and a search for them in files.

Tests plant all canaries, use the program, and look for each of them in everything that is on disk. A variable
or a file that the program reads and that has no entry here makes a test fail.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import sqlite3
import threading
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote


def token(place: str) -> str:
    """The canary of a place: letters and digits, with characters that URLs and shells must escape."""
    return f"Cn{hashlib.sha256(place.encode()).hexdigest()[:16]}%41z"


def plain_token(place: str) -> str:
    """A canary without special characters."""
    return token(place).replace("%41", "41")


def pair(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


@dataclass(frozen=True)
class Place:
    """A variable or file (`~/...` or, in the working directory, `./...`) with its content, in which `{0}`, `{1}` are canaries.

    host: the text contains `HOST`, the address of an index. special: the canaries need escapes.
    """

    name: str
    content: str
    special: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        make = token if self.special else plain_token
        return tuple(make(f"{self.name}{n}") for n in range(3) if f"{n}}}" in self.content)

    def filled(self, host: str) -> str:
        text = self.content.replace("HOST", host)
        for n, value in enumerate(self.tokens):
            text = text.replace(
                f"{{{n}}}", quote(value, safe="") if "://" in text and self.special else value
            )
            text = text.replace(f"{{pair{n}}}", pair("someone", value))
        return text

    @property
    def is_file(self) -> bool:
        return self.name.startswith(("~", "./"))


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n{0}\n-----END OPENSSH PRIVATE KEY-----\n"
VARIABLES = (
    # pip and uv
    Place("PIP_INDEX_URL", "http://{0}:{1}@HOST/main/simple"),
    Place(
        "PIP_EXTRA_INDEX_URL", "http://{0}:{1}@HOST/extra/simple http://x-access-token:{2}@HOST/other/simple"
    ),
    Place("PIP_PROXY", "http://{0}:{1}@proxy.invalid:3128"),
    Place("UV_DEFAULT_INDEX", "http://{0}:{1}@HOST/main/simple"),
    Place("UV_INDEX_URL", "http://{0}:{1}@HOST/main/simple"),
    Place("UV_EXTRA_INDEX_URL", "http://{0}:{1}@HOST/extra/simple"),
    Place("UV_INDEX", "named=http://{0}:{1}@HOST/named/simple private=http://HOST/private/simple"),
    Place("UV_INDEX_PRIVATE_USERNAME", "{0}"),
    Place("UV_INDEX_PRIVATE_PASSWORD", "{0}"),
    Place("UV_FIND_LINKS", "http://{0}:{1}@HOST/links/"),
    Place("PIP_FIND_LINKS", "http://{0}:{1}@HOST/links/"),
    Place("UV_PUBLISH_TOKEN", "{0}"),
    Place("UV_PUBLISH_PASSWORD", "{0}"),
    Place("UV_GITHUB_TOKEN", "{0}"),
    Place("TWINE_PASSWORD", "{0}"),
    # proxies
    Place("HTTP_PROXY", "http://{0}:{1}@proxy.invalid:3128"),
    Place("HTTPS_PROXY", "http://{0}:{1}@proxy.invalid:3128", special=True),
    Place("ALL_PROXY", "socks5://{0}:{1}@proxy.invalid:1080"),
    Place("http_proxy", "http://{0}:{1}@proxy.invalid:3128"),
    Place("https_proxy", "http://{0}:{1}@proxy.invalid:3128"),
    Place("all_proxy", "socks5h://{0}:{1}@proxy.invalid:1080"),
    # tokens
    Place("HF_TOKEN", "{0}"),
    Place("HUGGING_FACE_HUB_TOKEN", "{0}"),
    Place("GITHUB_TOKEN", "{0}"),
    Place("GH_TOKEN", "{0}"),
    Place("GITLAB_TOKEN", "{0}"),
    Place("CI_JOB_TOKEN", "{0}"),
    Place("ACTIONS_RUNTIME_TOKEN", "{0}"),
    Place("AWS_ACCESS_KEY_ID", "{0}"),
    Place("AWS_SECRET_ACCESS_KEY", "{0}", special=True),
    Place("AWS_SESSION_TOKEN", "{0}"),
    Place("AZURE_CLIENT_SECRET", "{0}"),
    Place("AZURE_STORAGE_CONNECTION_STRING", "AccountName=team;AccountKey={0};EndpointSuffix=x"),
    Place("GOOGLE_API_KEY", "{0}"),
    Place("OPENAI_API_KEY", "{0}"),
    Place("WANDB_API_KEY", "{0}"),
    Place("SWANLAB_API_KEY", "{0}"),
    Place("MLFLOW_TRACKING_PASSWORD", "{0}"),
    Place("MODELSCOPE_API_TOKEN", "{0}"),
    Place("KAGGLE_KEY", "{0}"),
    Place("OBS_SECRET_ACCESS_KEY", "{0}"),
    Place("UV_PYTHON_INSTALL_MIRROR", "https://HOST/t/{0}/python"),
    Place("PIP_TRUSTED_HOST", "{0}:{1}@trusted.invalid"),
    Place("CMAKE_ARGS", "-DUPLOAD={0}"),
    Place("MY_COMPANY_THING", "{0}", special=True),
    Place("TEAM_SETTINGS", '{"user": "someone", "deep": {"value": "{0}"}}'),
    # git
    Place("GIT_CONFIG_KEY_0", "url.http://{0}@HOST/.insteadOf"),
    Place("GIT_CONFIG_VALUE_0", "http://never.invalid/"),
    Place("GIT_CONFIG_KEY_1", "http.extraHeader"),
    Place("GIT_CONFIG_VALUE_1", "AUTHORIZATION: basic {pair0}"),
    Place("GIT_ASKPASS_PASSWORD", "{0}"),
    # containers and Ray
    Place("DOCKER_AUTH_CONFIG", '{"auths": {"registry.invalid": {"auth": "{pair0}"}}}'),
    Place("DOCKER_HOST", "tcp://{0}:{1}@127.0.0.1:1"),
    Place("CONTAINER_HOST", "tcp://{0}:{1}@127.0.0.1:1"),
    Place("RAY_ADDRESS", "ray://{0}:{1}@head.invalid:10001"),
    Place("RAY_AUTH_TOKEN", "{0}"),
    Place("RAY_REDIS_PASSWORD", "{0}"),
    Place("NPU_MATRIX_RAY_ADDRESS", "ray://{0}:{1}@head.invalid:10001?token={2}"),
    Place("NPU_MATRIX_DATA_ROOT", "s3://{0}:{1}@bucket.invalid/data"),
    Place("HF_ENDPOINT", "https://{0}:{1}@hub.invalid"),
)
FILES = (
    Place("~/.netrc", "machine index.invalid login {0} password {1}\n"),
    Place("~/my-netrc", 'machine other.invalid login {0}\n  password "{1}"\n'),
    Place("~/.pip/pip.conf", "[global]\nindex-url = http://{0}:{1}@HOST/pipconf/simple\n"),
    Place("~/.config/pip/pip.conf", "[install]\nproxy = {0}:{1}@proxy.invalid:3128\n"),
    Place("~/.config/uv/uv.toml", '[[index]]\nname = "of-uv"\nurl = "http://{0}:{1}@HOST/uvtoml/simple"\n'),
    Place(
        "~/.local/share/uv/credentials/credentials.toml",
        '[[credential]]\nusername = "{0}"\npassword = "{1}"\n',
    ),
    Place("~/.pypirc", "[pypi]\nusername = __token__\npassword = {0}\n"),
    Place("~/.local/share/python_keyring/keyring_pass.cfg", "[index]\npassword = {0}\n"),
    Place("~/.git-credentials", "https://someone:{0}@git.invalid\n"),
    Place(
        "~/.gitconfig",
        "[http]\n\textraHeader = Authorization: Bearer {0}\n[include]\n\tpath = ~/.gitconfig-work\n[credential]\n"
        '\thelper = store --file=~/store/credentials\n\thelper = "!f() { echo username=x; echo password={1}; }; f"\n',
    ),
    Place("~/.gitconfig-work", "[http]\n\textraHeader = X-Private: {0}\n"),
    Place("~/store/credentials", "https://someone:{0}@git.invalid\n"),
    Place(
        "./.git/config",
        '[remote "origin"]\n\turl = https://x-access-token:{0}@git.invalid/a/b\n'
        '[http "https://git.invalid/"]\n\textraheader = AUTHORIZATION: basic {pair1}\n',
    ),
    Place("./uv.toml", '[[index]]\nname = "of-project"\nurl = "http://{0}:{1}@HOST/project/simple"\n'),
    Place("./pyproject.toml", '[tool.uv]\nextra-index-url = ["http://{0}:{1}@HOST/pyproject/simple"]\n'),
    Place(
        "~/.docker/config.json",
        '{"auths": {"registry.invalid": {"auth": "{pair0}"}}, "HttpHeaders": {"X-Private": "{1}"},'
        ' "proxies": {"default": {"httpProxy": "http://someone:{2}@proxy.invalid:3128"}}}',
    ),
    Place("~/.docker/contexts/tls/abc/docker/key.pem", KEY),
    Place("~/ray/server.key", KEY),
    Place("~/named-by-a-variable", "{0}\n"),
    Place("~/.npmrc", "//registry.invalid/:_authToken={0}\n"),
    Place("~/.wgetrc", "http_password = {0}\n"),
    Place("~/.curlrc", 'proxy-user = "someone:{0}"\n'),
    Place("~/.modelscope/credentials/git_token", "{0}"),
    Place("~/.config/containers/auth.json", '{"auths": {"registry.invalid": {"auth": "{pair0}"}}}'),
    Place("~/.cache/huggingface/token", "{0}"),
    Place("~/.cache/huggingface/stored_tokens", "[mine]\nhf_token = {0}\n"),
    Place("~/.ray/auth_token", "{0}"),
    Place("~/.aws/credentials", "[default]\naws_access_key_id = {0}\naws_secret_access_key = {1}\n"),
    Place("~/.config/gcloud/application_default_credentials.json", '{"refresh_token": "{0}"}'),
    Place("~/.kaggle/kaggle.json", '{"username": "someone", "key": "{0}"}'),
    Place("~/.config/gh/hosts.yml", "github.invalid:\n    oauth_token: {0}\n"),
    Place("~/.kube/config", "users:\n- name: x\n  user:\n    token: {0}\n"),
    Place("~/.ssh/id_ed25519", KEY),
)
EVERYWHERE = (*VARIABLES, *FILES)


def plant(
    home: Path, host: str, *, project: Path | None = None, leaving_out: Collection[str] = ()
) -> dict[str, str]:
    """Write all files below `home` and `project` and return the variables; `leaving_out`: names of places."""
    for place in FILES:
        if place.name not in leaving_out:
            folder, _, path = place.name.partition("/")
            file = (home if folder == "~" else project or home) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(place.filled(host))
            file.chmod(0o600)
    variables = {place.name: place.filled(host) for place in VARIABLES if place.name not in leaving_out}
    return {
        **variables,
        "HOME": str(home),
        "NETRC": str(home / "my-netrc"),
        "RAY_TLS_SERVER_KEY": str(home / "ray" / "server.key"),
        "DATABASE_PASSWORD_FILE": str(home / "named-by-a-variable"),
        "GIT_CONFIG_COUNT": "2",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def credentials() -> set[str]:
    """`user:password` of all places that name the index."""
    found = {"x-access-token:" + plain_token("PIP_EXTRA_INDEX_URL2")}
    found.add(f"{plain_token('UV_INDEX_PRIVATE_USERNAME0')}:{plain_token('UV_INDEX_PRIVATE_PASSWORD0')}")
    return found | {
        f"{place.tokens[0]}:{place.tokens[1]}" for place in EVERYWHERE if "{1}@HOST" in place.content
    }


PART = 12


def needles() -> dict[bytes, str]:
    """Every form of every canary -> the name of its place."""
    found: dict[bytes, str] = {}
    for place in EVERYWHERE:
        for value in place.tokens:
            data = value.encode()
            forms = {data, data.hex().encode(), quote(value, safe="").encode(), data[::-1]}
            for skipped, first in ((0, 0), (1, 2), (2, 3)):
                text = base64.b64encode(b"\0" * skipped + data)[first : (skipped + len(data)) * 8 // 6]
                forms |= {text, text.replace(b"+", b"-").replace(b"/", b"_")}
            # A part is enough: half a password on disk is too much.
            found.update({form[:PART]: place.name for form in forms})
    return found


class Search:
    """Looks for canaries in files, with the members of archives and the rows of databases."""

    def __init__(self) -> None:
        self._needles = needles()
        # The forms of all canaries begin in a few ways, which are looked for instead of a thousand needles.
        self._beginnings = {needle[:2] for needle in self._needles}
        assert {len(needle) for needle in self._needles} == {PART}

    def in_data(self, data: bytes) -> set[str]:
        return {name for part in _unpacked(data) for name in self._in_part(part)}

    def _in_part(self, data: bytes) -> Iterator[str]:
        for beginning in self._beginnings:
            at = data.find(beginning)
            while at >= 0:
                if name := self._needles.get(data[at : at + PART]):
                    yield name
                at = data.find(beginning, at + 1)

    def below(self, folder: Path, *, leaving_out: Collection[Path] = ()) -> dict[str, set[str]]:
        """File -> places whose canaries it contains, for all files below `folder`."""
        found = {}
        for parent, folders, names in os.walk(folder):
            for name in (*names, *folders):
                path = Path(parent, name)
                if path in leaving_out:
                    continue
                places = self.in_data(str(path).encode())
                if path.is_symlink():
                    places |= self.in_data(str(path.readlink()).encode())
                elif path.is_file():
                    places |= self.in_data(path.read_bytes())
                    places |= _rows(path, self) if path.suffix == ".sqlite3" else set()
                if places:
                    found[str(path.relative_to(folder))] = places
        return found


# In rounds of the watch, of 5 ms or more.
YOUNG, RARELY = 200, 50


class ProcessWatch:
    """Reads the command lines of all processes all the time, and reports canaries in them."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}
        self._search = Search()
        self._seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        ages: dict[str, int] = {}
        while not self._stop.wait(0.005):
            names = [path.name for path in Path("/proc").iterdir()]
            ages = {name: ages.get(name, 0) + 1 for name in names if name.isdecimal()}
            for name, age in ages.items():
                # A process gets its arguments when it is young. Reading those of all others takes half a core.
                if age < YOUNG or age % RARELY == 0:
                    self._look(Path("/proc", name, "cmdline"))

    def _look(self, file: Path) -> None:
        try:
            line = file.read_bytes()
        except OSError:
            return
        if line not in self._seen:
            self._seen.add(line)
            if places := self._search.in_data(line):
                self.found[line.decode(errors="replace")[:300]] = places

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()


def _unpacked(data: bytes) -> Iterator[bytes]:
    yield data
    for magic, unpack in (
        (b"\x1f\x8b", gzip.decompress),
        (b"BZh", bz2.decompress),
        (b"\xfd7zXZ", lzma.decompress),
    ):
        if data.startswith(magic):
            try:
                yield unpack(data)
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
                return
    if data.startswith(b"PK"):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for member in archive.infolist():
                    yield from _unpacked(archive.read(member))
        except zipfile.BadZipFile:
            return


def _rows(path: Path, search: Search) -> set[str]:
    found: set[str] = set()
    with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                found |= search.in_data(json.dumps(row, default=repr).encode())
    database.close()
    return found
