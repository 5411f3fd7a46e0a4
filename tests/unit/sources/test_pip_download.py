from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import harness.sources.packages.pip_download as module
from harness.check import Completed
from harness.errors import InfrastructureError, InputError
from harness.sources.packages.pip_download import ReleaseNotFoundError, fetch_release


class Index:
    """A fake pip with a package index; its behaviour can be set."""

    def __init__(self, *, tail: str = "", code: int = 0, data: bytes = b"wheel") -> None:
        self.tail, self.code, self.data = tail, code, data
        self.argv: list[Sequence[str]] = []
        self.env: Mapping[str, str] = {}

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        self.argv.append(argv)
        self.env = env or {}
        if not self.code:
            dest = next(word for word in argv if word.startswith("--dest=")).removeprefix("--dest=")
            (Path(dest) / "verl-1.0-py3-none-any.whl").write_bytes(self.data)
        return Completed(argv=tuple(argv), returncode=self.code, tail=self.tail, seconds=0.0)


def test_a_release_is_fetched_once_and_kept(tmp_path: Path) -> None:
    index = Index()
    first = fetch_release("verl", "1.0", cache=tmp_path, command=index)
    assert first.read_bytes() == b"wheel"
    assert fetch_release("verl", "1.0", cache=tmp_path, command=index) == first
    assert len(index.argv) == 1
    assert [path.name for path in (tmp_path / "sources").iterdir()] == ["verl-1.0"]


def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    index = Index()
    fetch_release("verl", "1.0", cache=tmp_path, command=index).write_bytes(b"damaged")
    assert fetch_release("verl", "1.0", cache=tmp_path, command=index).read_bytes() == b"wheel"


def test_nothing_is_built_and_nothing_else_is_fetched(tmp_path: Path) -> None:
    index = Index()
    fetch_release("verl", "1.0", cache=tmp_path, command=index)
    assert {"download", "--no-deps", "--only-binary=:all:", "verl==1.0"} <= set(index.argv[0])


def test_pip_is_given_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    index = Index()
    fetch_release("verl", "1.0", cache=tmp_path, command=index)
    assert index.env["PIP_INDEX_URL"] == "https://mirror.example/simple"
    assert index.env["https_proxy"] == "http://proxy.example"
    assert "SECRET_TOKEN" not in index.env


def test_a_version_the_index_does_not_have(tmp_path: Path) -> None:
    index = Index(code=1, tail="ERROR: no version satisfies verl==9 (from versions: 0.1, 0.2)")
    with pytest.raises(ReleaseNotFoundError, match=r"no wheel of verl 9"):
        fetch_release("verl", "9", cache=tmp_path, command=index)
    assert list((tmp_path / "sources").iterdir()) == []


@pytest.mark.parametrize(
    "tail",
    ["", "ERROR: Could not find a version (from versions: none)\nERROR: No matching distribution found"],
    ids=["silent", "no index answered"],
)
def test_no_network_names_what_could_not_be_fetched(tmp_path: Path, tail: str) -> None:
    with pytest.raises(InfrastructureError, match=r"verl 1\.0 could not be fetched"):
        fetch_release("verl", "1.0", cache=tmp_path, command=Index(code=1, tail=tail))


def test_credentials_in_what_pip_says_are_not_shown(tmp_path: Path) -> None:
    index = Index(code=1, tail="ERROR: cannot reach https://user:hunter2@mirror.example/simple")
    with pytest.raises(InfrastructureError) as caught:
        fetch_release("verl", "1.0", cache=tmp_path, command=index)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "version"), [("../x", "1"), ("verl", "../1"), ("--index-url", "1"), ("v", "")]
)
def test_names_that_are_none_are_input_errors(tmp_path: Path, package: str, version: str) -> None:
    with pytest.raises(InputError, match="is not a valid release"):
        fetch_release(package, version, cache=tmp_path, command=Index())


def test_a_cache_that_another_run_filled_meanwhile_is_used(tmp_path: Path) -> None:
    index = Index()

    class Race(Index):
        def __call__(self, argv: Sequence[str], **more: object) -> Completed:  # type: ignore[override]
            fetch_release("verl", "1.0", cache=tmp_path, command=index)
            return super().__call__(argv)

    assert fetch_release("verl", "1.0", cache=tmp_path, command=Race(data=b"later")).read_bytes() == b"wheel"


def test_some_pip_is_found_here() -> None:
    assert module.pip_command()


def test_without_any_pip_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setitem(os.environ, "PATH", "")
    with pytest.raises(InfrastructureError, match="pip was not found"):
        module.pip_command()
