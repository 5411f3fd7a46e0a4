"""Builds the documentation: `python docs/build.py site`. Pages open from a folder, without a network.

Markdown of docs/en and docs/zh becomes pages in the style of the report; docs/reference.py generates the
reference pages from the code. Links between pages end in `.md`; a dead link is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import reference  # noqa: E402 - beside this file, which is no package

from harness import __version__  # noqa: E402

SECTIONS = {
    "tutorial": ("patch-maintainer", "bring-up", "ci-owner", "first-report"),
    "how-to": (
        "advise",
        "inspect",
        "find-cause",
        "new-verl",
        "rebase-patch",
        "add-npu-host",
        "containers",
        "upstream-sources",
        "upstream-tests",
        "gate-patch-pr",
        "rows",
        "tests-in-a-cell",
        "read-report",
        "status-page",
        "read-red-numerics",
        "read-red-generation",
    ),
    "explanation": ("evidence", "trust", "keys", "error-model", "decision-rule"),
    "reference": ("glossary", *reference.PAGES),
    "project": ("architecture", "contributing", "security", "releasing"),
}
LANGUAGES = {
    "en": {
        "name": "English",
        "home": "Documentation",
        "tutorial": "Tutorial",
        "how-to": "How to",
        "explanation": "Explanation",
        "reference": "Reference",
        "project": "Work on npu-matrix",
        "generated": "This page is made from the code.",
        "skip": "Skip to the content",
    },
    "zh": {
        "name": "中文",
        "home": "文档",
        "tutorial": "教程",
        "how-to": "操作指南",
        "explanation": "原理",
        "reference": "参考",
        "project": "参与开发",
        "generated": "本页由代码生成；帮助文本、字段说明、规则和特征等来自代码的内容保持英文。",  # noqa: RUF001 - Chinese punctuation
        "skip": "跳到正文",
    },
}
_TITLE = re.compile(r"# (.+)")
_WIDE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
_LINK = re.compile(r'href="([^"]+)"')
_MARKDOWN_LINK = re.compile(r"\[([^\]]*)\]\(([^)#]+)(#[^)]*)?\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page in one language; generated: whether docs/reference.py made it."""

    language: str
    name: str
    section: str
    title: str
    text: str
    generated: bool


def pages() -> Iterator[Page]:
    """Every page in every language; FileNotFoundError if a language lacks a page."""
    for language in LANGUAGES:
        made = {name: make(reference.LANGUAGES[language]) for name, make in reference.PAGES.items()}
        yield _page(language, "index", "", (HERE / language / "index.md").read_text(encoding="utf-8"))
        for section, names in SECTIONS.items():
            for name in names:
                text = made.get(name) or _text(language, section, name)
                yield _page(language, name, section, text, generated=name in made)


def _text(language: str, section: str, name: str) -> str:
    """The Markdown of a page; the section `project` has files of the repository's root, in English."""
    if section != "project":
        return (HERE / language / f"{name}.md").read_text(encoding="utf-8")
    text = (HERE.parent / f"{name.upper()}.md").read_text(encoding="utf-8")
    return _MARKDOWN_LINK.sub(_site_link, _COMMENT.sub("", text))


def _site_link(link: re.Match[str]) -> str:
    """A link of such a file as a link of the site, or as plain text if the site does not have the page."""
    label, target, place = link.groups("")
    if "://" in target:
        return link[0]
    page = target.removeprefix("docs/en/") if target.startswith("docs/en/") else target.lower()
    names = {f"{name}.md" for names in SECTIONS.values() for name in names} | {"index.md"}
    return f"[{label}]({page}{place})" if page in names else label


def _page(language: str, name: str, section: str, text: str, *, generated: bool = False) -> Page:
    found = _TITLE.match(text)
    if not found:
        raise ValueError(f"{language}/{name}.md does not begin with its title")
    return Page(language=language, name=name, section=section, title=found[1], text=text, generated=generated)


def build(folder: Path) -> list[Path]:
    """Write the site into `folder` and return the pages. ValueError for a dead link."""
    everything = list(pages())
    for name in ("report.css",):
        _write(
            folder / "assets" / name,
            resources.files("harness.report.pages").joinpath("assets", name).read_bytes(),
        )
    for asset in sorted((HERE / "assets").iterdir()):
        _write(folder / "assets" / asset.name, asset.read_bytes())
    shutil.copytree(
        HERE / "images", folder / "images", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py")
    )
    shutil.copytree(HERE / "schema", folder / "schema", dirs_exist_ok=True)
    for name, schema in reference.SCHEMAS.items():
        _write(folder / "schema" / name, (json.dumps(schema(), indent=1) + "\n").encode())
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    ).get_template("page.html")
    written = []
    for page in everything:
        path = folder / page.language / f"{page.name}.html"
        _write(path, template.render(**_context(page, everything)).encode())
        written.append(path)
    _write(folder / "index.html", (HERE / "assets" / "choose.html").read_bytes())
    _check_links(written, folder)
    return written


def _context(page: Page, everything: list[Page]) -> dict[str, Any]:
    mine = [other for other in everything if other.language == page.language]
    return {
        "page": page,
        "words": LANGUAGES[page.language],
        "languages": LANGUAGES,
        "sections": [
            (LANGUAGES[page.language][section], [other for other in mine if other.section == section])
            for section in SECTIONS
        ],
        "body": Markup(render(page.text)),  # noqa: S704 - of our own files, and html is off
        "version": __version__,
    }


def render(text: str) -> str:
    """Markdown as HTML. HTML in the Markdown is escaped, tables scroll, and headings are anchors."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag != "h1":
            token.attrSet("id", anchor(tokens[place + 1].content))
        for child in _joined(token.children or []):
            target = child.attrGet("href") if child.type == "link_open" else None
            if isinstance(target, str) and "://" not in target:
                child.attrSet("href", re.sub(r"\.md(#|$)", r".html\1", target))
    html: str = markdown.renderer.render(tokens, markdown.options, {})
    scroll = '<div class="scroll" tabindex="0" role="group" aria-label="table"><table class="data">'
    html = html.replace("<table>", scroll).replace("</table>", "</table></div>")
    return html.replace("<pre>", '<pre tabindex="0">').replace("<th>", '<th scope="col">')


def _joined(children: list[Token]) -> list[Token]:
    """The children without line breaks between Chinese characters, which browsers would show as spaces."""
    for before, child, after in zip(children, children[1:], children[2:], strict=False):
        if (
            child.type == "softbreak"
            and _WIDE.search(before.content[-1:])
            and _WIDE.search(after.content[:1])
        ):
            child.type = "text"
    return children


def anchor(heading: str) -> str:
    """The id of a heading."""
    return re.sub(r"[^\w]+", "-", heading.lower()).strip("-")


def _check_links(written: list[Path], folder: Path) -> None:
    for path in written:
        for link in _LINK.findall(path.read_text(encoding="utf-8")):
            if link.startswith(("#", "http://", "https://", "data:")):
                continue
            target, _, place = link.partition("#")
            found = (path.parent / target).resolve()
            if not found.is_file() or not found.is_relative_to(folder.resolve()):
                raise ValueError(f"{path.relative_to(folder)} links to {link}, which is not there")
            if place and f'id="{place}"' not in found.read_text(encoding="utf-8"):
                raise ValueError(f"{path.relative_to(folder)} links to {link}, which has no such heading")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> int:
    """Build the site into the folder of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sys.stdout.write(f"{len(build(folder))} pages in {folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
