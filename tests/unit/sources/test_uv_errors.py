"""The samples are output of uv 0.13.8. If a new uv words its output differently, a test here fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sources.packages.fetch_failure import fetch_failure
from harness.sources.packages.uv_errors import UvFailureKind, parse_uv_failure

CONFLICT = """\
error: No solution found when resolving dependencies
  cause: Because vllm-ascend==0.11.0 depends on transformers<=4.57.1 and verl>=0.9.1 depends on one of:
             transformers>=5.5.3,<5.6.0
             transformers>5.6.0,<5.11
         we can conclude that verl>=0.9.1 and vllm-ascend==0.11.0 are incompatible.
         And because you require verl==0.9.1 and vllm-ascend==0.11.0, we can conclude that your requirements are unsatisfiable.
"""
MARKED = """\
error: No solution found when resolving dependencies
  cause: Because vllm-ascend==0.14.0rc1 depends on xgrammar>=0.1.30 and vllm==0.14.1 depends on xgrammar{platform_machine == 'aarch64' or platform_machine == 'x86_64'}==0.1.29, we can conclude that vllm==0.14.1 and vllm-ascend==0.14.0rc1 are incompatible.
         And because you require vllm==0.14.1 and vllm-ascend==0.14.0rc1, we can conclude that your requirements are unsatisfiable.
"""
NARROWED = """\
error: No solution found when resolving dependencies
  cause: Because verl>=0.9.1 depends on one of:
             transformers>=5.5.3,<5.6.0
             transformers>5.6.0,<5.11
         and you require verl==0.9.1, we can conclude that you require one of:
             transformers>=5.5.3,<5.6.0
             transformers>5.6.0,<5.11

         And because you require transformers==4.57.3, we can conclude that your requirements are unsatisfiable.
"""
NO_VERSION = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of torch==2.7.1+cpu and torch-npu==2.7.1 depends on torch==2.7.1+cpu, we can conclude that torch-npu==2.7.1 cannot be used.
         And because you require torch-npu==2.7.1, we can conclude that your requirements are unsatisfiable.
"""
WRONG_PYTHON = """\
error: No solution found when resolving dependencies
  cause: Because triton-ascend==3.2.0 has no wheels with a matching Python ABI tag (e.g., `cp312`) and you require triton-ascend==3.2.0, we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.12 (`cp312`), but we only found wheels for `triton-ascend` (v3.2.0) with the following Python ABI tags: `cp39`, `cp310`, `cp311`
"""
NO_WHEEL = """\
error: No solution found when resolving dependencies
  cause: Because vllm==0.18.0 has no usable wheels and you require vllm==0.18.0, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `vllm` because building from source is disabled for all packages (i.e., with `--no-build`)
"""
UNREACHABLE = """\
error: Request failed after 3 retries in 9.0s
  cause: Failed to fetch: https://index.example/simple/pandas/
  cause: error sending request for url (https://index.example/simple/pandas/)
  cause: client error (Connect)
  cause: dns error
  cause: failed to lookup address information: Name or service not known
"""
OFFLINE = """\
error: No solution found when resolving dependencies
  cause: Because pandas was not found in the cache and you require pandas==2.2.0, we can conclude that your requirements are unsatisfiable.

hint: Packages were unavailable because the network was disabled. When the network is disabled, registry packages may only be read from the cache.
"""
BAD_REQUIREMENT = """\
error: Couldn't parse requirement in `i.in` at position 0
  cause: Expected one of `@`, `(`, `<`, `=`, `>`, `~`, `!`, `;`, found `r`
"""


@pytest.mark.parametrize(
    ("text", "kind", "subject", "blamed"),
    [
        (CONFLICT, UvFailureKind.CONFLICT, "", ("vllm-ascend", "verl", "transformers")),
        (NARROWED, UvFailureKind.CONFLICT, "", ("verl", "transformers")),
        (NO_VERSION, UvFailureKind.MISSING_VERSION, "torch==2.7.1+cpu", ("torch", "torch-npu")),
        (WRONG_PYTHON, UvFailureKind.WRONG_TARGET, "triton-ascend==3.2.0", ("triton-ascend",)),
        (NO_WHEEL, UvFailureKind.NO_WHEEL, "vllm==0.18.0", ("vllm",)),
        (UNREACHABLE, UvFailureKind.NETWORK, "", ()),
        (OFFLINE, UvFailureKind.NETWORK, "", ()),
        (BAD_REQUIREMENT, UvFailureKind.REQUIREMENT, "", ()),
        ("error: something else\n", UvFailureKind.OTHER, "", ()),
    ],
    ids=lambda value: value.value if isinstance(value, UvFailureKind) else None,
)
def test_what_uv_says_is_understood(
    text: str, kind: UvFailureKind, subject: str, blamed: tuple[str, ...]
) -> None:
    found = parse_uv_failure("warning: something before\n" + text)
    assert found.kind is kind
    assert found.subject + found.subject_versions == subject
    assert found.blamed[: len(blamed)] == blamed


def test_a_conflict_is_a_chain_of_causes() -> None:
    found = parse_uv_failure(CONFLICT)
    assert found.contested == ("transformers",)
    assert [step.conclusion for step in found.chain] == [
        "verl>=0.9.1 and vllm-ascend==0.11.0 are incompatible",
        "your requirements are unsatisfiable",
    ]
    wishes = {(d.package, d.needed_versions) for d in found.dependencies if d.needs == "transformers"}
    assert wishes == {("vllm-ascend", "<=4.57.1"), ("verl", ">=5.5.3,<5.6.0|>5.6.0,<5.11")}


def test_the_address_that_could_not_be_fetched_is_kept() -> None:
    assert parse_uv_failure(UNREACHABLE).url == "https://index.example/simple/pandas/"


@given(text=st.text(max_size=300))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    parse_uv_failure(text)
    parse_uv_failure(f"error: No solution found when resolving dependencies\n  cause: Because {text}")


def test_what_is_wanted_under_a_marker_is_contested_like_anything_else() -> None:
    found = parse_uv_failure(MARKED)
    assert found.kind is UvFailureKind.CONFLICT
    assert found.contested == ("xgrammar",)
    assert set(found.blamed) == {"vllm-ascend", "vllm", "xgrammar"}
    wanted = {d.package: d.needed_versions for d in found.dependencies if d.needs == "xgrammar"}
    assert wanted == {"vllm-ascend": ">=0.1.30", "vllm": "==0.1.29"}
    assert "platform_machine" not in found.chain[0].facts


REFUSED_INDEX = """\
error: No solution found when resolving dependencies
  cause: Because verl was not found in the package registry and you require verl==1, we can conclude that your \
requirements are unsatisfiable.

hint: An index URL (http://127.0.0.1:38399/b/simple) could not be queried due to a lack of valid authentication \
credentials (401 Unauthorized)
"""


REFUSED_TUNNEL = """\
error: Failed to fetch: https://index.example/simple/verl/
  cause: error sending request for url (https://index.example/simple/verl/)
  cause: client error (Connect)
  cause: tunnel error: proxy authorization required
"""
REFUSED_BY_PROXY = """\
error: Failed to fetch: http://index.example/simple/verl/
  cause: HTTP status client error (407 Proxy Authentication Required) for url (http://index.example/simple/verl/)
"""


@pytest.mark.parametrize("output", [REFUSED_TUNNEL, REFUSED_BY_PROXY])
def test_a_proxy_that_refuses_the_password_is_named_in_the_remedy(output: str) -> None:
    failure = parse_uv_failure(output)
    assert failure.kind is UvFailureKind.NETWORK
    fetched = fetch_failure(output)
    assert fetched is not None
    assert "index.example" in str(fetched.error())
    assert fetched.error().problems[0].fix == "correct the user name and password in the address of the proxy"


def test_an_index_that_refuses_the_credentials_says_nothing_about_a_package() -> None:
    failure = parse_uv_failure(REFUSED_INDEX)
    assert failure.kind is UvFailureKind.NETWORK
    assert failure.url == "http://127.0.0.1:38399/b/simple"
    fetched = fetch_failure(REFUSED_INDEX)
    assert fetched is not None
    error = fetched.error()
    assert "http://127.0.0.1:38399/b/simple" in str(error)
    assert "requires valid credentials" in str(error)
