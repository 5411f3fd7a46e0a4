from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InputError
from harness.sources.packages.index_settings import IndexSettings, index_environment
from harness.sources.redact import redact_text, redact_url


class Machine:
    """A machine with its own /etc, home and environment folder."""

    def __init__(self, root: Path) -> None:
        self.etc, self.home, self.prefix = root / "etc", root / "home", root / "venv"
        for folder in (self.etc, self.home, self.prefix):
            folder.mkdir()
        self.environ = {"HOME": str(self.home)}

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def settings(self, **more: str) -> IndexSettings:
        return index_environment({**self.environ, **more}, etc=self.etc, prefix=self.prefix, cwd=self.home)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def index(name: str) -> str:
    return f"[global]\nindex-url = https://{name}.example/simple\n"


def test_later_files_win_over_earlier_ones(machine: Machine) -> None:
    places = [
        machine.etc / "xdg/pip/pip.conf",
        machine.etc / "pip.conf",
        machine.home / ".pip/pip.conf",
        machine.home / ".config/pip/pip.conf",
        machine.prefix / "pip.conf",
    ]
    for number, place in enumerate(places):
        machine.write(place, index(f"i{number}"))
        assert machine.settings().index_url == f"https://i{number}.example/simple"
    explicit = machine.home / "explicit.conf"
    machine.write(explicit, index("explicit"))
    assert machine.settings(PIP_CONFIG_FILE=str(explicit)).index_url == "https://explicit.example/simple"
    assert machine.settings(PIP_INDEX_URL="https://variable.example").index_url == "https://variable.example"


def test_a_config_file_variable_hides_the_users_files(machine: Machine) -> None:
    machine.write(machine.home / ".config/pip/pip.conf", index("user"))
    explicit = machine.home / "explicit.conf"
    machine.write(explicit, "[global]\ntimeout = 7\n")
    assert machine.settings(PIP_CONFIG_FILE=str(explicit)).index_url is None
    missing = machine.settings(PIP_CONFIG_FILE=str(machine.home / "missing.conf"))
    assert missing.index_url == "https://user.example/simple"


def test_the_null_device_means_no_files_but_variables_count(machine: Machine) -> None:
    machine.write(machine.etc / "pip.conf", index("global"))
    settings = machine.settings(PIP_CONFIG_FILE=os.devnull, PIP_TIMEOUT="9")
    assert settings.index_url is None
    assert settings.timeout_s == 9


def test_the_install_section_of_a_weak_file_beats_the_global_section_of_a_strong_one(
    machine: Machine,
) -> None:
    machine.write(machine.etc / "pip.conf", "[install]\nindex-url = https://install.example\n")
    machine.write(machine.prefix / "pip.conf", index("site"))
    assert machine.settings().index_url == "https://install.example"


def test_sections_of_other_commands_do_not_count(machine: Machine) -> None:
    machine.write(machine.etc / "pip.conf", "[download]\nindex-url = https://download.example\n")
    assert machine.settings().index_url is None


def test_an_empty_value_in_a_stronger_file_takes_the_setting_back(machine: Machine) -> None:
    machine.write(machine.etc / "pip.conf", index("global"))
    machine.write(machine.prefix / "pip.conf", "[global]\nindex-url =\n")
    assert machine.settings().index_url is None
    assert machine.settings(PIP_INDEX_URL="").index_url is None


def test_lists_are_split_at_white_space_and_replaced_as_a_whole(machine: Machine) -> None:
    machine.write(
        machine.etc / "pip.conf",
        "[global]\nextra-index-url =\n    https://a.example/simple\n    https://b.example/simple\n",
    )
    assert machine.settings().extra_index_urls == ("https://a.example/simple", "https://b.example/simple")
    assert machine.settings(PIP_EXTRA_INDEX_URL="https://c.example").extra_index_urls == (
        "https://c.example",
    )


@pytest.mark.parametrize("spelling", ["index_url", "INDEX-URL", "--index-url", "pypi-url"])
def test_every_spelling_of_a_setting_counts(machine: Machine, spelling: str) -> None:
    machine.write(machine.etc / "pip.conf", f"[global]\n{spelling} = https://a.example\n")
    assert machine.settings().index_url == "https://a.example"


def test_what_is_missing_on_disk_is_left_out_with_a_notice(machine: Machine) -> None:
    there = machine.home / "wheels, here"
    there.mkdir()
    settings = machine.settings(
        PIP_EXTRA_INDEX_URL=f"{machine.home.as_uri()}/missing https://a.example",
        PIP_FIND_LINKS="~/also-missing",
    )
    assert settings.extra_index_urls == ("https://a.example",)
    assert settings.find_links == ()
    assert [notice.split()[0] for notice in settings.notices] == ["extra-index-url", "find-links"]


def test_find_links_reach_uv_whatever_their_name(machine: Machine) -> None:
    (machine.home / "a,b").mkdir()
    links = machine.settings(PIP_FIND_LINKS="~/a,b").uv_environment()["UV_FIND_LINKS"]
    assert links.split(",") == [f"{machine.home.as_uri()}/a%2Cb"]


def test_a_missing_own_index_never_becomes_the_default_one(machine: Machine) -> None:
    gone = f"file://{machine.home}/missing"
    alone = machine.settings(PIP_INDEX_URL=gone)
    assert alone.uv_arguments() == ("--no-index",)
    beside = machine.settings(PIP_INDEX_URL=gone, PIP_EXTRA_INDEX_URL="https://a.example")
    assert beside.uv_environment()["UV_DEFAULT_INDEX"] == "https://a.example"
    assert "UV_INDEX" not in beside.uv_environment()


def test_uvs_own_settings_win_over_pips(machine: Machine) -> None:
    settings = machine.settings(
        PIP_INDEX_URL="https://pip.example",
        UV_INDEX_URL="https://uv.example",
        PIP_EXTRA_INDEX_URL="https://pip-more.example",
        UV_INDEX="https://uv-more.example",
        UV_INDEX_STRATEGY="first-index",
    )
    variables = settings.with_indexes(("https://vendor.example",)).uv_environment()
    assert "UV_DEFAULT_INDEX" not in variables
    assert variables["UV_INDEX_URL"] == "https://uv.example"
    assert variables["UV_INDEX"].split() == ["https://uv-more.example", "https://vendor.example"]
    assert variables["UV_INDEX_STRATEGY"] == "first-index"


def test_the_best_version_of_all_indexes_is_taken_as_pip_does(machine: Machine) -> None:
    assert machine.settings().uv_environment()["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_connection_settings_are_translated(machine: Machine) -> None:
    bundle = machine.home / "ca.pem"
    bundle.write_text("")
    variables = machine.settings(
        PIP_CERT="~/ca.pem",
        PIP_CLIENT_CERT="~/me.pem",
        PIP_TRUSTED_HOST="a.example b.example:8080",
        PIP_DEFAULT_TIMEOUT="12.5",
        PIP_RETRIES="2",
        PIP_PROXY="proxy.example:3128",
        no_proxy="localhost",
    ).uv_environment()
    assert variables["SSL_CERT_FILE"] == str(bundle)
    assert variables["SSL_CLIENT_CERT"] == str(machine.home / "me.pem")
    assert variables["UV_INSECURE_HOST"] == "a.example b.example:8080"
    assert variables["UV_HTTP_TIMEOUT"] == "13"
    assert variables["UV_HTTP_RETRIES"] == "2"
    assert variables["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert variables["no_proxy"] == "localhost"


def test_pips_certificate_wins_over_that_of_requests_and_a_missing_one_is_said(machine: Machine) -> None:
    for name in ("pip.pem", "requests.pem"):
        (machine.home / name).write_text("")
    both = machine.settings(PIP_CERT="~/pip.pem", REQUESTS_CA_BUNDLE=str(machine.home / "requests.pem"))
    assert both.cert == str(machine.home / "pip.pem")
    gone = machine.settings(PIP_CERT="~/gone.pem", REQUESTS_CA_BUNDLE=str(machine.home / "requests.pem"))
    assert gone.cert == str(machine.home / "requests.pem")
    assert "gone.pem" in gone.notices[0]


def test_settings_that_would_change_a_cells_pins_are_not_applied_and_said(machine: Machine) -> None:
    settings = machine.settings(PIP_CONSTRAINT="/some/constraints.txt")
    assert "constraint" in settings.notices[0]


@pytest.mark.parametrize(("variable", "value"), [("PIP_TIMEOUT", "soon"), ("PIP_NO_INDEX", "perhaps")])
def test_bad_values_name_the_variable(machine: Machine, variable: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        machine.settings(**{variable: value})
    assert variable in str(caught.value)


@pytest.mark.parametrize("content", [b"no section\n", b"[global]\nindex-url = \xff\xfe\n"])
def test_an_unreadable_file_is_named(machine: Machine, content: bytes) -> None:
    (machine.etc / "pip.conf").write_bytes(content)
    with pytest.raises(InputError) as caught:
        machine.settings()
    assert str(machine.etc / "pip.conf") in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@a.example/simple", "https://***@a.example/simple"),
        ("https://token@a.example/simple", "https://***@a.example/simple"),
        ("https://a.example/simple", "https://a.example/simple"),
        ("https://me:p@ss@a.example/x", "https://***@a.example/x"),
    ],
)
def test_credentials_are_hidden(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_text(f"failed to fetch `{url}` (twice)") == f"failed to fetch `{shown}` (twice)"


def test_no_credential_is_in_what_may_be_logged(machine: Machine) -> None:
    settings = machine.settings(
        PIP_INDEX_URL="https://me:hunter2@a.example",
        PIP_EXTRA_INDEX_URL="https://you:hunter2@b.example",
        PIP_PROXY="http://p:hunter2@proxy.example",
        UV_INDEX="x=https://z:hunter2@c.example",
        UV_INDEX_X_PASSWORD="hunter2",
    )
    assert "hunter2" not in str(settings.redacted())
    assert "hunter2" in str(settings.uv_environment())


@given(text=st.text())
def test_text_without_credentials_is_not_changed(text: str) -> None:
    if "@" not in text:
        assert redact_text(text) == text


def test_real_pip_reads_the_same_values(machine: Machine) -> None:
    try:
        subprocess.run([sys.executable, "-m", "pip", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this environment has no pip to compare with")
    machine.write(machine.home / ".pip/pip.conf", index("legacy"))
    machine.write(
        machine.home / ".config/pip/pip.conf",
        "[global]\ntimeout = 5\nextra-index-url = https://a.example\n  https://b.example\n",
    )
    environ = {**machine.environ, "PATH": os.environ["PATH"], "PIP_TRUSTED_HOST": "a.example"}
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    settings = index_environment(environ)
    assert f"index-url='{settings.index_url}'" in listed
    assert f"timeout='{settings.timeout_s}'" in listed
    assert f"trusted-host='{settings.trusted_hosts[0]}'" in listed
    assert all(url in listed for url in settings.extra_index_urls)


def tables(settings: IndexSettings) -> dict[str, dict[str, object]]:
    return {table["url"]: table for table in tomllib.loads(settings.uv_file()).get("index", ())}


def test_answers_of_indexes_hold_for_ten_minutes_and_files_of_pypi_for_good(machine: Machine) -> None:
    assert tables(machine.settings()) == {
        "https://pypi.org/simple": {
            "url": "https://pypi.org/simple",
            "default": True,
            "cache-control": {"api": "max-age=600", "files": "max-age=365000000, immutable"},
        }
    }
    machine.write(machine.etc / "pip.conf", index("mirror") + "extra-index-url = https://more.example/a\n")
    found = tables(machine.settings().with_indexes(("https://vendor.example/simple",)))
    assert list(found) == [
        "https://mirror.example/simple",
        "https://more.example/a",
        "https://vendor.example/simple",
    ]
    assert [table.get("default") for table in found.values()] == [True, None, None]
    held = {"api": "max-age=600", "files": "max-age=600"}
    assert all(table["cache-control"] == held for table in found.values())


def test_uvs_own_index_settings_are_the_ones_that_hold(machine: Machine) -> None:
    settings = machine.settings(
        UV_DEFAULT_INDEX="https://own.example/simple", UV_INDEX="named=https://more.example/simple"
    )
    assert list(tables(settings)) == ["https://own.example/simple", "https://more.example/simple"]


def test_no_credentials_folders_or_forbidden_indexes_in_uvs_file(machine: Machine) -> None:
    machine.write(
        machine.etc / "pip.conf",
        "[global]\nindex-url = https://user:secret@private.example/simple\nextra-index-url = /srv/wheels\n",
    )
    assert machine.settings().uv_file() == ""
    assert machine.settings(PIP_NO_INDEX="1", PIP_INDEX_URL="https://a.example").uv_file() == ""
