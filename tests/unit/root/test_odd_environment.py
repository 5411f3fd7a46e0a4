"""Whatever an environment variable is set to, what reads it works or names the problem to the user.

The variables are those that a call reads; the values are all that a path, a number or an address cannot be.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from harness.builds.cell.cann_variables import selected_toolkit
from harness.builds.cell.interpreter import find_interpreter
from harness.cell_program.torch_device import device_facts
from harness.devices.cards.card_leases import CardLeases
from harness.devices.host.host_inspection import HostView, inspect_host
from harness.devices.sim.runtime_build.compiler import find_compiler
from harness.errors import HarnessError
from harness.settings import load_settings
from harness.sources.packages.index_credentials import authenticated_request
from harness.sources.packages.index_settings import ALIASES, NOT_APPLIED, SETTINGS, index_environment
from harness.sources.secrets.masking import Masker


class RecordingEnvironment(dict[str, str]):
    """An environment that notes which variables are read."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.read.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)


def settings_of_pip(environ: Mapping[str, str]) -> None:
    found = index_environment(environ)
    found.uv_environment()
    found.uv_file()
    json.dumps(found.redacted())
    authenticated_request("https://index.example/simple/verl", found)


def own_settings(environ: Mapping[str, str]) -> None:
    settings = load_settings({}, environ, Path("/checkout"))
    settings.exported()
    assert settings.path("state").is_absolute()
    assert settings.jobs > 0
    assert settings.wait in {True, False}
    assert len(settings.engine) in {0, 2}


def leases(environ: Mapping[str, str]) -> None:
    CardLeases.of_host(environ).list_leases()


CALLS: dict[str, Callable[[Mapping[str, str]], object]] = {
    "pip": settings_of_pip,
    "settings": own_settings,
    "interpreter": lambda environ: find_interpreter("3.1", environ),
    "leases": leases,
    "compiler": find_compiler,
    "toolkit": selected_toolkit,
    "device": lambda environ: device_facts("cpu", environ),
    "host": lambda environ: inspect_host(HostView(environ=environ, which=lambda _program: None)),
    "masker": Masker.of_host,
}
#: Variables that are read by iterating over all of them.
LISTED = {"pip": [f"PIP_{name.upper().replace('-', '_')}" for name in (*SETTINGS, *ALIASES, *NOT_APPLIED)]}


def odd_values(folder: Path) -> Iterator[tuple[str, str | None]]:
    """(name, value) of everything that a variable can be and rarely is; None means that it is not set."""
    (folder / "file").write_text("text")
    (folder / "binary").write_bytes(b"\xff\xfe\0\n=[")
    (folder / "folder").mkdir()
    (folder / "closed").mkdir(mode=0)
    (folder / "link").symlink_to(folder / "link")
    os.mkfifo(folder / "pipe")
    os.mkdir(os.fsencode(folder) + b"/caf\xe9 %41,")  # noqa: PTH102 - the name is no text
    (folder / "deep").write_text("[" * 100_000)
    for path in folder.iterdir():
        yield path.name, str(path)
        yield f"below {path.name}", f"{path}/below"
    yield from (("missing", None), ("empty", ""), ("space", " "), ("relative", "a/b"), ("user", "~nobody/x"))
    yield from (
        ("bytes", "\udcff\udcfe"),
        ("lines", "a\nb"),
        ("braces", "%(a)s{}[%%$HOME"),
        ("zero", "0"),
        ("quote", '"'),
    )
    yield from (
        ("long", "/" + "x" * 300),
        ("longer", "/x" * 3000),
        ("number", "9" * 5000),
    )
    yield from (
        ("port", "http://a:b@c:99999999/"),
        ("bracket", "http://[::1/"),
        ("no host", "://@"),
        ("list", "a=b,c d"),
    )


def problem(call: str, usual: Mapping[str, str], names: Iterable[str], value: str | None) -> Exception | None:
    """The error of a call with this value in these variables."""
    variables = {**usual, **dict.fromkeys(names, value)}
    try:
        CALLS[call]({name: text for name, text in variables.items() if text is not None})
    except Exception as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.parametrize("call", CALLS)
def test_an_odd_variable_is_named_or_does_no_harm(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    usual = RecordingEnvironment({"HOME": str(home), "PATH": ""})
    with contextlib.suppress(HarnessError):
        CALLS[call](usual)
    names = sorted(usual.read | set(LISTED.get(call, ())))
    assert names
    odd = tmp_path / "odd"
    odd.mkdir()
    failures = []
    for title, value in odd_values(odd):
        # One at a time only if one is refused, which hides the others.
        groups = [names] if not problem(call, usual, names, value) else [[name] for name in names]
        for group in groups:
            error = problem(call, usual, group, value)
            if error and not isinstance(error, HarnessError):
                failures.append(f"{', '.join(group)} ({title}): {error!r:.200}")
    assert not failures, "\n".join(failures)


def test_a_cache_folder_that_depends_on_the_current_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    with pytest.raises(HarnessError, match="is not an absolute path"):
        _ = load_settings({}, {}, Path("/checkout")).cache
