from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.matrix.cells.pins import check_template, pins_facet, placeholders
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix

TEXT = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, source: s, package: verl, repository: "https://example.org/verl"}
  torch: {title: PyTorch, scheme: pep440, source: s, package: torch}
  vllm: {title: vLLM, scheme: pep440, source: s, package: vllm, build_env: {VLLM_TARGET_DEVICE: empty}}
  mindspeed:
    {title: MindSpeed, scheme: pep440, source: s, package: mindspeed, on_index: false, repository: "https://example.org/ms", tag: "v{version}"}
  npu: {title: n, scheme: pep440, source: s, package: torch-npu, extra_index: ["https://example.org/simple"]}
  cann: {title: CANN, scheme: cann, source: s}
stacks:
  row: {title: t, source: a document, axes: {verl: 0.6.1@d62da4950573, torch: 2.7.1, vllm: 0.11.0, mindspeed: 2.2.0, npu: 2.7.1, cann: 8.5.0}}
pins:
  - {when: {verl: "<0.8"}, require: "transformers<5", reason: it imports what 5 dropped, source: an import}
  - {when: {verl: "<0.7"}, require: "transformers<5", reason: again, source: s}
  - {when: {verl: ">=0.8"}, require: "transformers>=5", reason: r, source: s}
  - {require: "x=={torch}", reason: r, source: s}
overrides:
  - {when: {vllm: "*"}, of: [vLLM, other_package], override: "torch=={torch}", reason: vLLM pins a later one, source: its metadata}
profiles:
  default: {title: t, select: [{stacks: all}, {product: {verl: [0.9.1]}, with: {torch: 2.13.0}}]}
"""


def matrix(text: str = TEXT) -> Matrix:
    return parse_matrix(text, "m.yaml")


def facet(stack: str) -> PinsFacet:
    loaded = matrix()
    cell = loaded.cells("default").get(stack) or loaded.cells("default").cells[-1]
    return pins_facet(cell, loaded.axes)


def test_a_row_is_split_into_index_and_source() -> None:
    row = facet("row")
    assert row.requirements == (
        "torch==2.7.1",
        "vllm==0.11.0",
        "torch-npu==2.7.1",
        "transformers<5",
        "x==2.7.1",
    )
    assert row.from_source == (
        PinnedSource(
            package="verl", version="0.6.1", commit="d62da4950573", repository="https://example.org/verl"
        ),
        PinnedSource(
            package="mindspeed", version="2.2.0", commit="v2.2.0", repository="https://example.org/ms"
        ),
    )
    assert [(one.of, one.requirement) for one in row.overrides] == [
        ("vllm", "torch==2.7.1"),
        ("other-package", "torch==2.7.1"),
    ]
    assert {(one.reason, one.source) for one in row.overrides} == {("vLLM pins a later one", "its metadata")}
    assert row.index == {}, "no table lists 2.7.1, and it is a release"
    assert row.build_env == {"vllm": {"VLLM_TARGET_DEVICE": "empty"}}


@pytest.mark.parametrize(
    ("value", "searched"),
    [("2.7.1", False), ("2.7.1.post1", True), ("2.5.1.post1.dev20250619", True), ("2.9.0+git1", True)],
)
def test_an_additional_index_is_for_versions_that_are_listed_or_not_final(value: str, searched: bool) -> None:
    table = (
        "published: {t: {title: t, source: s, date: 2026-01-01, key: verl, columns: [verl, npu], "
        'rows: [[0.6.1, 2.7.1.post1], [0.7.0, ">=2.8"]]}}\n'
    )
    loaded = matrix(TEXT.replace("npu: 2.7.1", f"npu: {value}").replace("pins:\n", f"{table}pins:\n", 1))
    index = pins_facet(loaded.stack_cell("row"), loaded.axes).index
    assert index == ({"torch-npu": ("https://example.org/simple",)} if searched else {})


def test_a_package_that_only_others_require_may_be_on_an_additional_index() -> None:
    assert facet("product").index == {"torch-npu": ("https://example.org/simple",)}


def test_every_pin_has_a_reason_and_a_source() -> None:
    pin = next(pin for pin in matrix().stack_cell("row").pins if pin.requirement == "transformers<5")
    assert (pin.reason, pin.source) == ("it imports what 5 dropped", "an import")


def test_rules_apply_to_the_cells_that_meet_them() -> None:
    assert facet("product").requirements == ("verl==0.9.1", "torch==2.13.0", "transformers>=5", "x==2.13.0")
    assert facet("product").overrides == ()


def test_the_facet_does_not_depend_on_the_position_in_the_file() -> None:
    moved = matrix(TEXT.replace("format: 1\n", "# moved\n\nformat: 1\n"))
    assert pins_facet(moved.stack_cell("row"), moved.axes) == facet("row")


def test_a_pin_knows_where_it_is_written() -> None:
    first = matrix().stack_cell("row").pins[0]
    assert (first.requirement, str(first.where)) == ("transformers<5", "m.yaml:13:5")


@pytest.mark.parametrize(
    "text", ["a", "a==1", "a>=1,<2", "a[b,c]>=1 , <2", "a==1.*", "torch-npu!=2.7.1.post2"]
)
def test_requirements(text: str) -> None:
    check_template(text, ())


@pytest.mark.parametrize(
    "text", ["", "a>=", "a>=1,,<2", "a>=x", "a 1", "a; b", "a @ http://x", "-a==1", "a\n"]
)
def test_what_is_no_requirement(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a"):
        check_template(text, ())


def test_placeholders_are_plain_names() -> None:
    assert placeholders("torch=={torch}, {verl}{torch}") == ("torch", "verl")
    for text in ("{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{", "}"):
        with pytest.raises(ValueError, match=r"."):
            placeholders(text)


def test_an_override_replaces_one_requirement_or_yields_to_a_package() -> None:
    own = 'override: "torch=={torch}"'
    loaded = matrix(TEXT.replace(own, "yields_to: Other_Package", 1))
    facet = pins_facet(loaded.stack_cell("row"), loaded.axes)
    assert [(one.of, one.requirement, one.yields_to) for one in facet.overrides] == [
        ("vllm", "", "other-package"),
        ("other-package", "", "other-package"),
    ]
    for text in (f"{own}, yields_to: x", "yields_to: null"):
        with pytest.raises(InputError, match=r"override|yields_to"):
            matrix(TEXT.replace(own, text, 1))
