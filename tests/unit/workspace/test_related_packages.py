"""Which packages of a list `api` compares with those of the matrix."""

from pathlib import Path

import pytest

from harness.compat.inspection.distributions import Distribution
from harness.compat.inspection.stated_packages import Inventory, SourceKind, StatedPackage
from harness.errors import InfrastructureError
from harness.sources.packages.index_lookup import PublishedFile, ReleaseNotFoundError
from harness.workspace.inspection import related_packages as module
from harness.workspace.inspection.related_packages import RelatedPackages, related_packages

MATRIX = frozenset({"torch", "transformers", "vllm"})


class Index:
    """An index with these requirements. It counts how often it is asked for files."""

    def __init__(self, requires: dict[str, tuple[str, ...]], reachable: bool = True) -> None:
        self.requires = requires
        self.reachable = reachable
        self.asked = 0

    def listed(self, releases: list[tuple[str, str]]) -> tuple[PublishedFile, ...]:
        self.asked += 1
        if not self.reachable:
            raise InfrastructureError("the index does not respond")
        if any(name not in self.requires for name, _version in releases):
            raise ReleaseNotFoundError("one of them is not there")
        return tuple(
            PublishedFile(package=name, version=version, url=f"https://x.example/{name}{end}", sha256="")
            for name, version in releases
            for end in (".tar.gz", ".whl")
        )

    def metadata_of(self, file: PublishedFile) -> bytes:
        assert file.name.endswith(".whl")
        lines = (f"Requires-Dist: {text}\n" for text in self.requires[file.package])
        return f"Name: {file.package}\n{''.join(lines)}".encode()


def related(
    index: Index, *names: str, installed: dict[str, tuple[str, ...]] | None = None
) -> RelatedPackages:
    packages = {name: StatedPackage(name=name, version="1.0") for name in (*names, *(installed or {}))}
    distributions = [
        Distribution(name=name, version="1.0", folder=Path(), requires=requires)
        for name, requires in (installed or {}).items()
    ]
    inventory = Inventory(kind=SourceKind.FREEZE, where="a list", packages=packages)
    return related_packages(inventory, distributions, None, MATRIX, index)  # type: ignore[arg-type]


def test_packages_that_require_one_of_the_matrix() -> None:
    index = Index(
        {
            "trl": ("transformers>=4.5",),
            "diffusers": ("requests", 'torch; extra == "torch"'),
            "requests": ("certifi",),
            "timm": ("torchvision",),
            "vllm-omni": (),
        }
    )
    found = related(index, "torch", "transformers", "vllm", *index.requires)
    assert found == RelatedPackages(names=("trl", "vllm-omni", "diffusers"))
    assert index.asked == 1


def test_what_is_required_of_the_list_counts() -> None:
    assert related(Index({"trl": ("transformers",)}), "torch", "trl") == RelatedPackages()


def test_releases_that_the_index_lacks_are_named() -> None:
    index = Index({"trl": ("torch",), "peft": ("torch",)})
    found = related(index, "torch", "trl", "ours", "peft", "mine")
    assert found.names == ("peft", "trl")
    assert found.left_out == ("uses of mine, ours: what they require is not known",)


def test_without_an_index_nothing_is_asked_again() -> None:
    index = Index({"trl": ("torch",)}, reachable=False)
    assert related(index, "torch", "trl", "peft").left_out == (
        "uses of peft, trl: what they require is not known",
    )
    assert index.asked == 1


def test_an_environment_states_the_requirements_itself() -> None:
    index = Index({})
    found = related(index, installed={"torch": (), "trl": ("torch",), "click": (), "bad": ("= =",)})
    assert found == RelatedPackages(names=("trl",))
    assert index.asked == 0


def test_an_index_is_asked_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", -1.0)
    found = related(Index({"trl": ("torch",)}), "torch", "trl")
    assert found.left_out == ("uses of trl: what they require is not known",)


def test_at_most_so_many_packages_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    index = Index({"alpha": ('torch; extra == "all"',), "beta": ("torch",)})
    found = related(index, "torch", "alpha", "beta")
    assert found.names == ("beta",)
    assert found.left_out == ("uses of alpha: 1 other packages were compared",)


def test_what_a_package_of_the_matrix_requires_is_not_asked_for() -> None:
    index = Index({})
    found = related(index, "fastapi", installed={"vllm": ("fastapi",)})
    assert found == RelatedPackages()
    assert index.asked == 0
