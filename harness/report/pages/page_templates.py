"""The templates of all pages, which escape every text, and the writer of their files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import urlencode

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from harness.digest import digest_bytes
from harness.report.model.folded_tier import fold
from harness.report.model.host_kinds import StageProof
from harness.report.model.marks import EVIDENCE, RAN, STYLES, Mark, mark_of
from harness.report.model.report_inputs import ReportResult
from harness.report.model.streak import CondensedHistory
from harness.report.model.visible_text import (
    as_bytes,
    clip,
    counted,
    duration,
    file_name,
    iso,
    moment,
    number,
    size,
    visible,
)
from harness.report.pages import svg
from harness.report.pages.measurement_blocks import Chart, FactList, TableBlock, scalar
from harness.report.pages.printing import Templates, printed
from harness.report.pages.timeline import timeline_svg

TOOLTIP = 200
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass
class KeptTexts:
    """What earlier updates of a report made: digests of files, and texts with what they were made of."""

    digests: dict[str, str] = field(default_factory=dict)
    _texts: dict[str, tuple[tuple[object, ...], str]] = field(default_factory=dict)

    def text(self, name: str, sources: tuple[object, ...], make: Callable[[], str]) -> str:
        """The text `name`: the kept one if it was made of the same objects, otherwise a new one."""
        known = self._texts.get(name)
        if known is None or any(one is not other for one, other in zip(known[0], sources, strict=True)):
            known = self._texts[name] = (sources, make())
        return known[1]


class PageWriter:
    """Writes files below a folder and remembers their names; equal texts and files are stored once.

    kept: the texts of earlier updates. Files that are equal to the kept ones are not written again.
    """

    def __init__(self, folder: Path, kept: KeptTexts | None = None) -> None:
        self.folder = folder
        self.kept = kept or KeptTexts()
        self._skips = kept is not None
        self._environments: dict[str, jinja2.Environment] = {}
        #: The names of the files, relative to the folder, in the order of writing.
        self.names: list[str] = []
        self._stored: set[str] = set()
        self._made: set[str] = set()

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file and create its parent folders; not again if the kept file is equal."""
        data = as_bytes(content) if isinstance(content, str) else content
        if self._skips:
            digest = digest_bytes(data)
            if self.kept.digests.get(name) == digest:
                return
            self.kept.digests[name] = digest
        parent = name.rpartition("/")[0]
        if parent not in self._made:
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        with open(f"{self.folder}/{name}", "wb") as stream:  # noqa: PTH123 - a Path for each of 10,000 is slow
            stream.write(data)
        self.names.append(name)

    def environment(self, up: str) -> jinja2.Environment:
        """The templates for pages from which `up` leads to the folder of the report."""
        if up not in self._environments:
            self._environments[up] = _new_environment(self, up)
        return self._environments[up]

    @property
    def written(self) -> list[Path]:
        """The files."""
        return [self.folder / name for name in self.names]

    def store(self, name: str, content: str | bytes) -> str:
        """Write a file that is named by its content, unless it was written before; returns its name."""
        if name not in self._stored:
            self._stored.add(name)
            self.write(name, content)
        return name

    def spill(self, text: str, up: str) -> str:
        """Store a text that is too long for a page; returns the link to it."""
        digest = digest_bytes(as_bytes(text))[:16]
        return up + self.store(f"text/{digest}.txt", text)


class _Compiled(jinja2.BytecodeCache):
    """Templates compiled once per process: compiling takes longer than rendering a small report."""

    def __init__(self) -> None:
        self._code: dict[str, CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get(f"{bucket.key} {bucket.checksum}")

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._code[f"{bucket.key} {bucket.checksum}"] = bucket.code


@cache
def _compiled() -> _Compiled:
    return _Compiled()


@cache
def anchor_of(check: str) -> str:
    """The anchor of a check on its cell's page."""
    return "check-" + file_name(check)


def environment(writer: PageWriter, *, up: str) -> jinja2.Environment:
    """The templates of a writer, which escape every value and make hidden characters visible."""
    return writer.environment(up)


def _new_environment(writer: PageWriter, up: str) -> jinja2.Environment:
    env = Templates(jinja2.FunctionLoader(partial(resource, "templates")), _compiled())

    def long(value: Any, limit: int = 1500) -> Any:
        text = str(value)
        if len(text) <= limit:
            return value
        link = Markup(' <a class="spill" href="{}">whole text</a>').format(writer.spill(text, up))
        return escape(visible(clip(text, limit))) + link

    def prose(value: Any, limit: int = 1500) -> Any:
        """Like `long`, with `commands in backticks` as code. The pages' script translates it as one text."""
        text = str(value)
        if "`" not in text:
            return long(value, limit)
        parts = _CODE.split(clip(text, limit))
        shown = [
            f"<code>{printed(part)}</code>" if at % 2 else printed(part) for at, part in enumerate(parts)
        ]
        rest = (
            f' <a class="spill" href="{writer.spill(text, up)}">whole text</a>' if len(text) > limit else ""
        )
        # `printed` escapes every part.
        return Markup(f'<span class="prose">{"".join(shown)}</span>{rest}')  # noqa: S704

    @lru_cache(maxsize=16_384)
    def past(found: CondensedHistory) -> Markup:
        macros = env.get_template("macros.html").module
        return Markup(macros.past(found.stretches))  # type: ignore[attr-defined]  # noqa: S704 - the macro escapes

    env.filters |= {
        "long": long,
        "prose": prose,
        "counted": counted,
        "clip": lambda value, limit=300: clip(str(value), limit),
        "moment": moment,
        "ago": ago,
        "asked": lambda query: "#" + urlencode({"q": visible(query)}),
        "anchor": anchor_of,
        "fold": fold,
        "proof": proof_words,
        "iso": iso,
        "duration": duration,
        "size": size,
        "scalar": scalar,
        "chart": svg.chart_svg,
        "chart_small": partial(svg.chart_svg, small=True),
        "legend": svg.legend,
        "last": _last,
        "share": svg.share_bar,
        "percent": svg.percent,
        "tooltip": tooltip,
        "timeline": timeline_svg,
        "past": past,
    }
    env.tests |= {
        "facts": lambda block: isinstance(block, FactList),
        "datatable": lambda block: isinstance(block, TableBlock),
        "curves": lambda block: isinstance(block, Chart),
    }
    env.globals |= {
        "styles": STYLES,
        "evidence_styles": EVIDENCE,
        "marks": Mark,
        "ran": RAN,
        "mark_of": mark_of,
        "up": up,
    }
    return env


def ago(seconds: float) -> Markup:
    """A time that the script of the page shows as an age; without scripts it is a date."""
    return Markup('<time class="ago" datetime="{}" title="{}">{}</time>').format(
        iso(seconds), moment(seconds), moment(seconds)[:10]
    )


def proof_words(proof: StageProof) -> str:
    """How many checks of a stage passed, such as `4 of 6, 2 known`."""
    if not proof.planned:
        return "—"
    words = [f"{proof.passed} of {proof.planned}"]
    words += [
        f"{count} {word}" for count, word in ((proof.failed, "failed"), (proof.known, "known")) if count
    ]
    return ", ".join(words)


def tooltip(result: ReportResult) -> str:
    """The text of a tile, and the first reason of a verdict that is not a pass."""
    style = STYLES[result.mark]
    tooltip = f"{result.check}: {style.label}"
    if result.shown_evidence:
        tooltip += f" ({EVIDENCE[result.shown_evidence].label})"
    if result.reason and result.mark is not Mark.PASS:
        tooltip += f". {result.reason}"
    return clip(tooltip, TOOLTIP)


def _last(chart: Any) -> str:
    values = chart.series[0].values
    return number(values[-1]) if values else ""


@cache
def resource(folder: str, name: str) -> str:
    """A file of this package, as text."""
    return resources.files(__package__).joinpath(folder, name).read_text(encoding="utf-8")
