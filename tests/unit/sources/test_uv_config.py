"""Only indexes and network settings are taken from uv's own settings: pins come from the matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import InputError
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.uv_config import uv_config_variables


def write(folder: Path, text: str) -> dict[str, str]:
    (folder / ".config" / "uv").mkdir(parents=True)
    (folder / ".config" / "uv" / "uv.toml").write_text(text)
    return {"HOME": str(folder)}


CONFIG = """
override-dependencies = ["transformers==4.57.1"]
exclude-newer = "2020-01-01"
native-tls = true
index-strategy = "first-index"
[pip]
no-deps = true
extra-index-url = ["https://a.example", "https://b.example"]
[[index]]
name = "own"
url = "https://own.example/simple"
default = true
[[index]]
name = "torch"
url = "https://explicit.example"
explicit = true
"""


def test_indexes_and_network_settings_are_used_and_nothing_that_changes_a_lock(tmp_path):
    assert uv_config_variables(write(tmp_path, CONFIG), tmp_path) == {
        "UV_NATIVE_TLS": "true",
        "UV_INDEX_STRATEGY": "first-index",
        "UV_EXTRA_INDEX_URL": "https://a.example https://b.example",
        "UV_DEFAULT_INDEX": "own=https://own.example/simple",
    }


def test_variables_win_and_replace_their_rivals(tmp_path):
    environ = {**write(tmp_path, CONFIG), "UV_INDEX_URL": "https://mine", "UV_INDEX": "https://more"}
    assert set(uv_config_variables(environ, tmp_path)) == {"UV_NATIVE_TLS", "UV_INDEX_STRATEGY"}


def test_uv_reads_our_settings_only_wherever_the_user_has_others(tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(CONFIG)
    environ = {
        "HOME": str(tmp_path),
        "UV_CONFIG_FILE": str(other),
        "UV_OVERRIDE": "over.txt",
        "UV_CONSTRAINT": "c.txt",
        "UV_EXCLUDE_NEWER": "2020-01-01",
        "UV_PRERELEASE": "allow",
    }
    variables = index_environment(environ, etc=tmp_path, prefix=tmp_path).uv_environment()
    assert variables["UV_CONFIG_FILE"] == "uv.toml"
    assert variables["UV_DEFAULT_INDEX"] == "own=https://own.example/simple"
    assert not set(variables) & {"UV_OVERRIDE", "UV_CONSTRAINT", "UV_EXCLUDE_NEWER", "UV_PRERELEASE"}


def test_a_damaged_settings_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        uv_config_variables(write(tmp_path, "["), tmp_path)
