from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.errors import InfrastructureError, InputError
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.packages.index_settings import uv_binary
from harness.sources.packages.lockfile import normal_name, parse_lock

LOCK = """\
# made by uv
absl-py==2.5.1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via tensorboard
torch==2.13.0+cpu \\
    --hash=sha256:cc
    # via
    #   -r requirements.in
    #   verl
"""


def test_packages_versions_digests_and_askers() -> None:
    first, second = parse_lock(LOCK)
    assert (first.name, first.version, first.hashes, first.via) == (
        "absl-py",
        "2.5.1",
        ("sha256:aa", "sha256:bb"),
        ("tensorboard",),
    )
    assert (second.version, second.via) == ("2.13.0+cpu", ("-r requirements.in", "verl"))


@pytest.mark.parametrize("line", ["torch", "torch>=2", "torch==2.*", "not a requirement !!"])
def test_a_line_that_pins_nothing_is_named(line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_lock(f"absl-py==1\n{line}\n", "my.lock")
    assert "my.lock:2" in str(caught.value)


def test_names_are_spelled_one_way() -> None:
    assert normal_name("Torch_NPU") == normal_name("torch.npu") == "torch-npu"


@pytest.mark.parametrize(
    ("said", "url", "status"),
    [
        (
            (
                "error: Failed to fetch: `https://me:secret@a.example/x/`\n"
                "  Caused by: HTTP status client error (401 Unauthorized) for url (https://a.example/x/)\n"
            ),
            "https://me:secret@a.example/x/",
            401,
        ),
        ("error: dns error: no such host\n", "", 0),
        ("error: invalid peer certificate: UnknownIssuer\n", "", 0),
    ],
)
def test_failures_to_fetch_are_told_from_others(said: str, url: str, status: int) -> None:
    failure = fetch_failure(said)
    assert failure is not None
    assert (failure.url, failure.status) == (url, status)
    error = failure.error()
    assert isinstance(error, InfrastructureError)
    assert "secret" not in str(error)
    assert ("credentials" in str(error)) is (status == 401)


def test_other_failures_are_none() -> None:
    assert fetch_failure("error: Hash mismatch for `x`") is None
    assert machine_failure("error: Hash mismatch for `x`") is None
    assert "No space left" in str(machine_failure("a\n cause: No space left on device (os error 28)\n"))


def test_a_cache_that_uv_cannot_use_is_a_failure_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [uv_binary(), "pip", "compile", "-"],
        input="x",
        env={"UV_CACHE_DIR": str(tmp_path / "file" / "cache"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    shown = str(machine_failure(done.stderr))
    assert str(tmp_path) in shown
    assert "UV_CACHE_DIR" in shown
