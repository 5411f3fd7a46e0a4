"""Untrusted text in any field stays text, in every format."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import NAMES, changed, log_file, poisoned_inputs, small_inputs

from harness.report.formats.terminal import plain_grid
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import build_model
from harness.report.publish.publish import render_all

ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</script><script>alert(1)</script>",
    "</textarea></style></title><svg onload=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "a\u202egnp.exe\u2066",
    "[x](javascript:alert(1)) ![y](http://example.invalid/z) | a | <b>",
    "\x00\x1b[31mred\x07\ud800",
    "../../../etc/passwd",
    "]]><!--",
]
SCRIPTS = (
    "assets/query.js",
    "assets/help.js",
    "assets/words.js",
    "assets/language.js",
    "assets/grid.js",
    "assets/report.js",
    "assets/runs.js",
    "assets/find.js",
    "data/grid.js",
    "data/runs.js",
)
TAGS = {
    "dfn",
    "html",
    "head",
    "meta",
    "title",
    "link",
    "script",
    "body",
    "a",
    "svg",
    "defs",
    "symbol",
    "path",
    "circle",
    "rect",
    "use",
    "header",
    "nav",
    "main",
    "section",
    "div",
    "h1",
    "h2",
    "h3",
    "h4",
    "p",
    "span",
    "b",
    "small",
    "code",
    "kbd",
    "ul",
    "ol",
    "li",
    "dl",
    "dt",
    "dd",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "button",
    "label",
    "input",
    "select",
    "option",
    "form",
    "dialog",
    "footer",
    "time",
    "details",
    "summary",
    "figure",
    "figcaption",
    "polygon",
    "text",
    "g",
    "pre",
    "noscript",
}


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def assert_inert(page: Path, folder: Path) -> None:
    parsed = Page(page.read_text(encoding="utf-8"))
    for tag, attributes in parsed.seen:
        assert tag in TAGS, f"unexpected <{tag}> in {page.name}"
        assert not [
            name for name in attributes if name.startswith("on") or name in {"style", "srcdoc", "src"}
        ] or (tag == "script" and set(attributes) <= {"src", "defer"}), f"<{tag} {attributes}> in {page.name}"
        for link in (attributes.get("href"), attributes.get("src")):
            if link and not link.startswith(("#", "data:image/svg+xml,")):
                target = (page.parent / link.split("#")[0]).resolve()
                assert target.is_relative_to(folder), link
                assert target.is_file(), f"dead link {link} in {page.name}"
    scripts = [attributes["src"] for tag, attributes in parsed.seen if tag == "script"]
    assert all(str(source).endswith(SCRIPTS) for source in scripts)


def check_report(inputs: ReportInputs) -> None:
    model = build_model(inputs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "reports"
        written = render_all(model, folder)
        assert sorted(written) == sorted(path for path in folder.rglob("*") if path.is_file())
        for page in folder.rglob("*.html"):
            assert_inert(page, folder)
            text = page.read_text(encoding="utf-8")
            assert not set(text) & set("\u202e\u2066\x00\x1b\x07")
        for file, name in (("grid", "NPU_MATRIX"), ("runs", "NPU_MATRIX_RUNS")):
            data = (folder / "data" / f"{file}.js").read_text(encoding="ascii")
            assert "<" not in data
            json.loads(data.removeprefix(f"window.{name}=").rstrip().removesuffix(";"))
        json.loads((folder / "report.json").read_text(encoding="utf-8"))
        for badge in folder.glob("badges/*.svg"):
            assert {element.tag.rpartition("}")[2] for element in ET.parse(badge).iter()} <= {
                "svg", "title", "rect", "g", "text"
            }  # fmt: skip
        for markdown in folder.glob("*.md"):
            text = (
                markdown.read_text(encoding="utf-8")
                .replace("<sub>", "")
                .replace("</sub>", "")
                .replace("<br>", "")
            )
            assert "<" not in text
            assert not re.search(r"(?<!\\)\]\(", text)
            heads = {
                len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")
            }
            assert len(heads) <= 2
        assert "\x1b" not in plain_grid(model)


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_stay_text(attack: str) -> None:
    check_report(poisoned_inputs(attack))


@settings(max_examples=10, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_any_text_stays_text(text: str) -> None:
    check_report(poisoned_inputs(text))


def test_a_megabyte_in_a_field_is_cut_and_linked(tmp_path: Path) -> None:
    inputs = small_inputs()
    long = "x<b>" * 250_000
    results = tuple(
        dataclasses.replace(
            changed(item, reasons=(long,), remedies=(long,), measurements={"note": long}), log=log_file(long)
        )
        for item in inputs.results
        if item.check in NAMES[:2]
    )
    cell = dataclasses.replace(inputs.cells[0], title=long)
    render_all(build_model(dataclasses.replace(inputs, cells=(cell,), results=results)), tmp_path / "reports")
    for page in (tmp_path / "reports").rglob("*.html"):
        assert page.stat().st_size < 200_000
        assert_inert(page, (tmp_path / "reports").resolve())
    assert any(path.read_text() == long for path in (tmp_path / "reports" / "text").iterdir())
    assert len(list((tmp_path / "reports" / "text").iterdir())) == 1
