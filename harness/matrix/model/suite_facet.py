"""The facet `suites`: what the check `upstream-tests` reads of a suite and of the cell's upstream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.matrix.model.definitions import Axis
from harness.matrix.model.suite import LeftOutTest, Suite


@dataclass(frozen=True, kw_only=True)
class SuiteFacet:
    """A suite for a cell. version, commit: of the upstream in the cell; package: its distribution. The other
    members are those of `Suite`; descriptions and what only judges outcomes are left out."""

    name: str
    device: str
    package: str
    version: str
    commit: str
    revision: tuple[str, ...]
    repositories: tuple[str, ...]
    submodule: str
    submodule_repositories: tuple[str, ...]
    tree: tuple[str, ...]
    paths: tuple[str, ...]
    cwd: str
    python_path: tuple[str, ...]
    config: str
    env: Mapping[str, str]
    preload: tuple[str, ...]
    cards: int
    requirements: tuple[str, ...]
    left_out: tuple[LeftOutTest, ...]
    test_seconds: int
    file_seconds: int
    memory_mib: int
    disabled: str


def suite_facet(suite: Suite, value: str, axes: Mapping[str, Axis]) -> SuiteFacet:
    """value: of the cell's axis `suite.upstream`."""
    version, _, commit = value.partition("@")
    return SuiteFacet(
        name=suite.name,
        device=suite.device,
        package=axes[suite.upstream].package,
        version=version,
        commit=commit,
        revision=suite.revision,
        repositories=suite.repositories,
        submodule=suite.submodule,
        submodule_repositories=suite.submodule_repositories,
        tree=suite.tree,
        paths=suite.paths,
        cwd=suite.cwd,
        python_path=suite.python_path,
        config=suite.config,
        env=dict(suite.env),
        preload=suite.preload,
        cards=suite.cards,
        requirements=suite.requirements,
        left_out=suite.left_out,
        test_seconds=suite.test_seconds,
        file_seconds=suite.file_seconds,
        memory_mib=suite.memory_mib,
        disabled=suite.disabled,
    )
