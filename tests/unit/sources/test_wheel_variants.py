"""Wheel variants: file names and descriptions as vllm-ascend publishes them.

The description is what variantlib 0.2.2 writes for the three variants in .github/workflows/scripts/wheel of
vllm-ascend; the one of version 0.0.3 has more fields, as in variantlib's own tests.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.errors import InfrastructureError, InputError, Location
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.uv_errors import UvFailureKind, parse_uv_failure
from harness.sources.packages.variant_index import published_variants
from harness.sources.packages.wheel_variants import (
    Variants,
    abi_values,
    files_of,
    fitting_variants,
    misfits,
    parse_wheel_name,
    read_variants,
)

PROVIDER = {
    "plugin-api": "huawei_ascend_variant_provider.plugin:AscendVariantPlugin",
    "requires": ["huawei-ascend-variant-provider>=0.0.2,<0.0.3"],
}
ASCEND = {
    "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
    "default-priorities": {"namespace": ["ascend"]},
    "providers": {"ascend": PROVIDER},
    "variants": {label: {"ascend": {"npu_type": [label]}} for label in ("310p", "910b", "a3")},
}
OLDER = {
    **ASCEND,
    "$schema": "https://variants-schema.wheelnext.dev/v0.0.3.json",
    "default-priorities": {"namespace": ["ascend"], "feature": {}, "property": {}},
    "providers": {"ascend": {**PROVIDER, "enable-if": "platform_system == 'Linux'"}},
}
WHERE = Location("vllm_ascend-0.23.0-variants.json")
STEM = "vllm_ascend-0.23.0-cp311-cp311-manylinux_2_34"


def read(document: object) -> Variants:
    return read_variants(json.dumps(document), WHERE)


@pytest.mark.parametrize(
    ("file", "package", "version", "python", "label"),
    [
        (f"{STEM}_aarch64-a3.whl", "vllm-ascend", "0.23.0", "cp311", "a3"),
        (f"{STEM}_x86_64.whl", "vllm-ascend", "0.23.0", "cp311", ""),
        ("deep_ep-1.0.0-cp311-cp311-linux_aarch64-910b.whl", "deep-ep", "1.0.0", "cp311", "910b"),
        ("helloworld-0.1-py3-none-any-null.whl", "helloworld", "0.1", "py3", "null"),
        ("x-1-2build-py3-none-any.whl", "x", "1", "py3", ""),
        ("x-1-2build-py3-none-any-a3.whl", "x", "1", "py3", "a3"),
        (
            "torch-2.0.0-cp39-cp39-manylinux2014_x86_64-cuda12.1_x86.whl",
            "torch",
            "2.0.0",
            "cp39",
            "cuda12.1_x86",
        ),
    ],
)
def test_file_names(file: str, package: str, version: str, python: str, label: str) -> None:
    wheel = parse_wheel_name(file)
    assert wheel is not None
    assert (wheel.package, wheel.version, wheel.python, wheel.label) == (package, version, python, label)


@pytest.mark.parametrize(
    "file", ["x-1.tar.gz", "x-1.whl", f"{STEM}_aarch64-A3.whl", "a b-1-py3-none-any.whl", ""]
)
def test_what_is_no_wheel(file: str) -> None:
    assert parse_wheel_name(file) is None


@pytest.mark.parametrize("document", [ASCEND, OLDER])
def test_the_variant_for_an_npu_is_chosen(document: object) -> None:
    variants = read(document)
    for npu_type in ("310p", "910b", "a3"):
        assert fitting_variants(variants, {"ascend": {"npu_type": (npu_type,)}}) == (npu_type,)
    assert fitting_variants(variants, {"ascend": {"npu_type": ("950",)}}) == ()
    assert fitting_variants(variants, {}) == ()
    assert misfits(variants, "a3", {"ascend": {"npu_type": ("910b",)}}) == ("ascend :: npu_type :: a3",)


def test_cann_and_torch_decide_too_and_the_variant_without_properties_comes_last() -> None:
    variants = read(
        {
            "default-priorities": {"namespace": ["ascend", "abi_dependency"]},
            "variants": {
                "null": {},
                "a3": {"ascend": {"npu_type": ["a3"]}},
                "a3_cann9": {"ascend": {"npu_type": ["a3"], "cann_version": ["9.0.0", "9.1.0"]}},
                "a3_cann8": {"ascend": {"npu_type": ["a3"], "cann_version": ["8.5.0"]}},
                "a3_torch": {"ascend": {"npu_type": ["a3"]}, "abi_dependency": {"torch": ["2.10"]}},
            },
        }
    )
    host = {
        "ascend": {"npu_type": ("a3",), "driver_version": (), "cann_version": ("9.1.0",)},
        "abi_dependency": abi_values({"torch": "2.10.0+cpu", "torch-npu": "2.10.0.post4"}),
    }
    assert host["abi_dependency"] == {"torch": ("2.10.0", "2.10", "2"), "torch_npu": ("2.10.0", "2.10", "2")}
    assert fitting_variants(variants, host) == ("a3_cann9", "a3_torch", "a3", "null")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {
            "default-priorities": {"namespace": ["ascend"]},
            "variants": {"A3": {"ascend": {"npu_type": ["a3"]}}},
        },
        {
            "default-priorities": {"namespace": ["ascend"]},
            "variants": {"a3": {"ascend": {"npu_type": ["a 3"]}}},
        },
        {"default-priorities": {"namespace": ["ascend"]}, "variants": {"a3": {}}},
        {
            "default-priorities": {"namespace": ["ascend"]},
            "variants": {"null": {"ascend": {"npu_type": ["a3"]}}},
        },
        {"default-priorities": {"namespace": []}, "variants": {"a3": {"ascend": {"npu_type": ["a3"]}}}},
        {"default-priorities": {"namespace": ["ascend"]}, "variants": {"a3": {"ascend": {"npu_type": [3]}}}},
    ],
)
def test_a_damaged_description_is_an_error_that_names_the_file(document: object) -> None:
    with pytest.raises(InputError) as error:
        read(document)
    assert "vllm_ascend-0.23.0-variants.json" in str(error.value)


def test_an_index_of_variants_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "vllm-ascend"
    folder.mkdir()
    names = [f"{STEM}_{machine}-{label}.whl" for machine in ("aarch64", "x86_64") for label in ("910b", "a3")]
    for name in [*names, f"{STEM}_aarch64.whl"]:
        (folder / name).touch()
    (folder / "vllm_ascend-0.23.0-variants.json").write_text(json.dumps(ASCEND))
    settings = index_environment({})
    found = published_variants(tmp_path.as_uri(), "vllm-ascend", "0.23.0", settings)
    assert found is not None
    assert sorted(files_of("a3", found.files, "0.23.0", "3.11")) == [names[1], names[3]]
    assert files_of("a3", found.files, "0.23.0", "3.12") == ()
    assert published_variants(tmp_path.as_uri(), "vllm-ascend", "0.22.0", settings) is None
    with pytest.raises(InfrastructureError, match="cannot be read"):
        published_variants(tmp_path.as_uri(), "verl", "0.9.1", settings)


def test_uv_says_that_an_index_has_only_variants() -> None:
    failure = parse_uv_failure(
        "error: No solution found when resolving dependencies\n"
        "  cause: Because vllm-ascend==0.23.0 has only unsupported wheel variants and you require "
        "vllm-ascend==0.23.0, we can conclude that your requirements are unsatisfiable."
    )
    assert (failure.kind, failure.subject) == (UvFailureKind.NO_WHEEL, "vllm-ascend")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on a server of this machine."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_digests_of_the_index_page_are_read(tmp_path: Path) -> None:
    digest = "b" * 64
    page = tmp_path / "vllm-ascend"
    page.mkdir()
    variants = {"a3": {"ascend": {"npu_type": ["a3"]}}}
    document = json.dumps({"default-priorities": {"namespace": ["ascend"]}, "variants": variants})
    (page / "vllm_ascend-0.23.0-variants.json").write_text(document)
    file = "vllm_ascend-0.23.0-cp312-cp312-linux_aarch64-a3.whl"
    links = f'<a href="{file}#sha256={digest}">x</a><a href="vllm_ascend-0.23.0-variants.json">y</a>'
    (page / "index.html").write_text(links)
    with served(tmp_path) as address:
        found = published_variants(address, "vllm-ascend", "0.23.0", index_environment({}))
    assert found is not None
    assert found.digests == {file: digest}
    assert found.files[file] == f"{address}/vllm-ascend/{file}"
