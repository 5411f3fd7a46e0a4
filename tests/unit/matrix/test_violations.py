from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from harness.matrix.cells.pins import resolve_rules
from harness.matrix.cells.violations import Violation
from harness.matrix.model.constraints import ViolationKind
from harness.matrix.reading.load_matrix import parse_matrix

TEXT = """\
format: 1
axes:
  engine: {title: engine, scheme: pep440, source: s, package: engine}
  plugin: {title: plugin, scheme: pep440, source: s, package: engine-plugin}
  torch: {title: PyTorch, scheme: pep440, source: s, package: torch}
  torch_npu: {title: t, scheme: pep440, source: s, package: torch-npu}
  cann: {title: CANN, scheme: cann, source: s}
stacks:
  row: {title: t, source: s, axes: {plugin: 0.11.0rc1, torch: 2.8.0, torch_npu: 2.8.0, cann: 9.0.0}}
published:
  pins:
    title: metadata
    source: METADATA
    date: 2026-01-01
    key: plugin
    columns: [plugin, torch, torch_npu]
    rows:
      - [0.11.0rc1, "==2.7.1", "==2.7.1"]
      - [0.12.0, ">=2.7.1,<3", "*"]
  pairs:
    title: pairs
    source: https://example.org/pairs
    date: 2026-01-01
    key: plugin
    columns: [plugin, engine, cann, torch_npu, torch]
    rows:
      - [0.11.0rc1, 0.11.0, 8.3.RC1, "2.7.1 (or later)", 2.7.1.post1]
      - [0.12.0, 0.12.1 / 0.12.2, 8.5.0, latest release, null]
      - [0.13.0, 0.13.0, 8.5.0, 2.9.0.post1+git4c901a4, null]
constraints:
  abi: {require: {torch_npu: {same_as: torch, part: release}}, reason: symbols, source: s}
  plugin-torch:
    {kind: requirement, require: {torch: {table: pins}}, reason: metadata, source: s}
  plugin-torch-npu:
    {kind: requirement, require: {torch_npu: {table: pins}}, reason: metadata, source: s}
  minor: {require: {engine: {table: pairs, part: minor}}, reason: other classes, source: s}
  own-minor:
    {when: {plugin: "<=0.12.0.dev0"}, require: {engine: {same_as: plugin, part: minor}}, reason: r, source: s}
  exact: {kind: unlisted, require: {engine: {table: pairs}}, reason: one release, source: s}
overrides:
  - {when: {cann: 8.5.0}, of: Engine_Plugin, override: "torch=={torch}", reason: a guide installs it last, source: g}
  - {of: engine, override: torch-npu, reason: r, source: s}
  - {of: engine_plugin, override: engine, reason: r, source: s}
  - {when: {torch: {table: pairs}}, of: engine_plugin, override: "torch=={torch}", reason: listed, source: g}
  - {when: {cann: 8.2.RC1}, of: engine_plugin, override: torch~=2.9, reason: r, source: s}
  - when: {torch_npu: {table: pins, part: later-build}}
    of: engine-plugin
    override: torch-npu=={torch_npu}
    reason: later builds
    source: g
profiles:
  default: {title: t, select: [{stacks: all}]}
"""
MATRIX = parse_matrix(TEXT, "m.yaml")


def found(**axes: str) -> dict[str, Violation]:
    versions = MATRIX.versions(axes)
    overrides = resolve_rules(MATRIX.override_rules, versions)
    return {one.rule: one for one in MATRIX.violations.of(versions, overrides)}


def test_every_violated_constraint_is_found_with_its_kind_and_place() -> None:
    violated = found(plugin="0.11.0rc1", torch="2.8.0", torch_npu="2.8.0")
    assert {name: one.kind.value for name, one in violated.items()} == {
        "plugin-torch": "requirement",
        "plugin-torch-npu": "requirement",
        "pairs": "unlisted",
    }
    assert str(violated["plugin-torch"].where).startswith("m.yaml:")
    assert violated["plugin-torch"].override is None
    assert violated["plugin-torch-npu"].override is None


def test_an_override_counts_only_for_the_package_and_requirement_it_was_written_for() -> None:
    violated = found(plugin="0.11.0rc1", torch="2.8.0", torch_npu="2.8.0", cann="8.5.0")
    torch = violated["plugin-torch"].override
    assert torch is not None
    assert torch.reason == "a guide installs it last"
    assert violated["plugin-torch-npu"].override is None


def test_an_override_permits_only_the_versions_that_it_allows() -> None:
    violated = found(plugin="0.11.0rc1", torch="2.8.0", cann="8.2.RC1")
    assert violated["plugin-torch"].override is None
    violated = found(plugin="0.11.0rc1", torch="2.10.0", cann="8.2.RC1")
    assert violated["plugin-torch"].override is not None


def test_an_override_of_a_requirement_does_not_make_versions_compatible() -> None:
    violated = found(plugin="0.12.0", engine="0.11.0")
    assert {name: one.override for name, one in violated.items()} == {"minor": None, "exact": None}


def test_builds_for_other_platforms_are_the_version_that_a_table_lists() -> None:
    assert "pairs" in found(plugin="0.13.0", torch_npu="2.9.0.post2")
    for label in ("", "+git4c901a4", "+gitdc51c2d"):
        assert "pairs" not in found(plugin="0.13.0", torch_npu=f"2.9.0.post1{label}")


def test_an_override_can_apply_to_what_a_published_table_lists() -> None:
    permitting = found(plugin="0.11.0rc1", torch="2.7.1.post1")["plugin-torch"].override
    assert permitting is not None
    assert permitting.reason == "listed"
    assert found(plugin="0.11.0rc1", torch="2.7.1.post2")["plugin-torch"].override is None


@pytest.mark.parametrize(
    ("torch_npu", "permitted"),
    [
        ("2.7.1.post1", True),
        ("2.7.1.post1.dev20250619", True),
        ("2.7.1.post2+git4c901a4", True),
        ("2.7.1rc1", False),
        ("2.7.1.dev20250724", False),
        ("2.7.2", False),
        ("2.7.10", False),
        ("2.8.0", False),
    ],
)
def test_an_override_can_apply_to_later_builds_of_a_listed_release(torch_npu: str, permitted: bool) -> None:
    violated = found(plugin="0.11.0rc1", torch_npu=torch_npu)["plugin-torch-npu"]
    assert (violated.override is not None) is permitted


@pytest.mark.parametrize(
    ("plugin", "kind"), [("0.12.0.dev0", "incompatible"), ("0.12.0.dev0@54879467c417", "unlisted")]
)
def test_a_commit_between_two_releases_need_not_be_like_the_next_one(plugin: str, kind: str) -> None:
    versions = MATRIX.versions({"plugin": plugin, "engine": "0.11.0"})
    [violated] = [one for one in MATRIX.violations.of(versions, ()) if one.rule == "own-minor"]
    assert violated.kind.value == kind


def test_the_metadata_of_a_release_does_not_make_a_commit_fail() -> None:
    violated = found(plugin="0.11.0rc1@54879467c417", torch="2.8.0")
    assert violated["plugin-torch"].kind is ViolationKind.UNLISTED


def test_a_published_table_lists_other_versions_in_one_finding() -> None:
    violated = found(plugin="0.11.0rc1", engine="0.11.0", torch_npu="2.8.0", cann="9.0.0")["pairs"]
    assert violated.kind is ViolationKind.UNLISTED
    assert violated.what == (
        "plugin 0.11.0rc1 is listed with cann 8.3.RC1 (here 9.0.0), torch_npu 2.7.1 (or later) (here 2.8.0)"
    )
    assert violated.source == "https://example.org/pairs"


@pytest.mark.parametrize(
    ("plugin", "engine", "rules"),
    [
        ("0.12.0", "0.12.1", set()),
        ("0.12.0", "0.12.2+npu", set()),
        ("0.12.0+local", "0.12.3", {"exact"}),
        ("0.12", "0.11.0", {"exact", "minor"}),
        ("0.12.0.post1", "0.11.0", set()),
    ],
)
def test_another_patch_release_is_unlisted_and_another_minor_release_is_incompatible(
    plugin: str, engine: str, rules: set[str]
) -> None:
    assert set(found(plugin=plugin, engine=engine)) == rules


@pytest.mark.parametrize(
    ("torch", "torch_npu", "differs"),
    [
        ("2.8", "2.8.0", False),
        ("2.8.0+cpu", "2.8.0.post2", False),
        ("2.8.0", "2.8.0.dev20250724", False),
        ("2.8.0", "2.8.1", True),
    ],
)
def test_equal_releases_differ_in_no_suffix(torch: str, torch_npu: str, differs: bool) -> None:
    assert ("abi" in found(torch=torch, torch_npu=torch_npu)) is differs


VERSIONS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["2.7.1", "2.8", "2.8.0", "3.0.0", "2.7.0"]),
        st.sampled_from(["", "rc1", ".post1", ".dev20250724", "a1"]),
        st.sampled_from(["", "+cpu", "+git4c901a4"]),
    ),
)


@given(plugin=st.sampled_from(["0.11.0rc1", "0.12.0"]), torch=VERSIONS)
def test_versions_are_compared_with_metadata_as_installers_do(plugin: str, torch: str) -> None:
    published = {"0.11.0rc1": "==2.7.1", "0.12.0": ">=2.7.1,<3"}[plugin]
    allowed = SpecifierSet(published).contains(torch, prereleases=True)
    assert ("plugin-torch" not in found(plugin=plugin, torch=torch)) is allowed


def test_the_findings_of_a_stack_are_its_violations() -> None:
    stack = MATRIX.stack_cell("row")
    rules = [finding.constraint for finding in stack.findings]
    assert rules == list(found(**dict(stack.axes)))


def test_what_is_compared_is_counted() -> None:
    violations = MATRIX.violations
    assert violations.compared(MATRIX.versions({"cann": "9.0.0"})) == 0
    assert violations.compared(MATRIX.versions({"plugin": "0.12.0", "torch": "2.8.0"})) == 2
    assert set(violations.axes_read) == {"engine", "plugin", "torch", "torch_npu", "cann"}
