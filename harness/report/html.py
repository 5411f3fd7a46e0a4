"""The report as pages that open from a folder: one grid, one page per cell, no network, hardly any script."""

from __future__ import annotations

from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from harness.digest import digest_bytes
from harness.errors import EXIT_BAD_INPUT, EXIT_CODES, EXIT_OK, EXIT_UNEXPECTED
from harness.report import svg
from harness.report.figures import figures
from harness.report.grid import grid_script
from harness.report.logs import read_artifact, read_log
from harness.report.marks import EVIDENCE, RAN, STYLES, Mark, mark_of
from harness.report.measures import Chart, Facts, Table, scalar
from harness.report.model import ReportModel, Result, Row
from harness.report.text import clip, duration, file_name, iso, moment, number, size, visible

STATIC_ROWS = 300
FIRST_ROWS = 60
ATTENTION_ROWS = 8
HARD_LIMIT = 20_000
TOOLTIP = 200
QUERIES = {
    Mark.FAIL: "unexpected-fail",
    Mark.KNOWN_FAIL: "known",
    Mark.UNEXPECTED_PASS: "unexpected-pass",
}
EXIT_WORDS = {0: "as expected", 1: "unexpected", 2: "bad input", 3: "nothing selected", 130: "interrupted"}
OPEN_LOGS = (Mark.FAIL, Mark.ERROR, Mark.INCONCLUSIVE)
ASSETS = ("report.css", "report.js")


def render_html(model: ReportModel, folder: Path) -> list[Path]:
    """Write the pages into `folder` (which exists) and return what was written. OSError when it cannot be."""
    writer = Writer(folder)
    for name in ASSETS:
        writer.write(f"assets/{name}", _resource("assets", name))
    writer.write("data/grid.js", grid_script(model))
    writer.write("index.html", _index(model, writer))
    pages = _environment(writer, up="../")
    for row in model.rows:
        writer.write(f"cells/{row.slug}.html", _cell(model, row, pages, writer))
    return writer.written


class Writer:
    """Writes files below one folder and remembers them; texts and files are stored once, by content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self._stored: set[str] = set()

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file; parents are made as needed."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        path.write_bytes(data)
        self.written.append(path)

    def store(self, name: str, content: str | bytes) -> str:
        """Write a file named by its content, unless it is there already, and return its name."""
        if name not in self._stored:
            self._stored.add(name)
            self.write(name, content)
        return name

    def spill(self, text: str, up: str) -> str:
        """Store a text too long for a page and return the link to it."""
        digest = digest_bytes(text.encode("utf-8", "backslashreplace"))[:16]
        return up + self.store(f"text/{digest}.txt", text)


def anchor_of(check: str) -> str:
    """The anchor of a check on its cell's page."""
    return "check-" + file_name(check)


def _index(model: ReportModel, writer: Writer) -> str:
    rows = model.rows if len(model.rows) <= STATIC_ROWS else model.rows[:FIRST_ROWS]
    by_id = {row.cell.id: row for row in model.rows}
    return (
        _environment(writer, up="")
        .get_template("index.html")
        .render(
            model=model,
            rows=rows,
            attention=model.attention[:ATTENTION_ROWS],
            titles={cell: row.cell.title or cell for cell, row in by_id.items()},
            href=lambda cell, check: f"cells/{by_id[cell].slug}.html#{anchor_of(check)}",
            anchors={check.name: anchor_of(check.name) for check in model.checks},
            queries={mark: QUERIES.get(mark, mark.value) for mark in Mark},
            state=_state(model),
            facts=_run_facts(model),
        )
    )


def _state(model: ReportModel) -> dict[str, str]:
    code = model.run.exit_code
    if code is not None:
        kind = {EXIT_OK: "ok", EXIT_UNEXPECTED: "bad", EXIT_BAD_INPUT: "bad"}.get(code, "open")
        meaning = f"Exit code {code}: {EXIT_CODES.get(code, 'unknown')}."
        return {"kind": kind, "word": EXIT_WORDS.get(code, "incomplete"), "meaning": meaning}
    unexpected = model.counts.get(Mark.FAIL, 0) + model.counts.get(Mark.UNEXPECTED_PASS, 0)
    if unexpected:
        return {"kind": "bad", "word": EXIT_WORDS[EXIT_UNEXPECTED], "meaning": ""}
    if model.complete and model.planned:
        return {"kind": "ok", "word": EXIT_WORDS[EXIT_OK], "meaning": ""}
    return {"kind": "open", "word": "incomplete", "meaning": ""}


def _run_facts(model: ReportModel) -> list[tuple[str, str]]:
    run = model.run
    facts = [
        ("profile", run.profile),
        ("revision", run.revision),
        ("cells", f"{len(model.rows):,}"),
        ("planned", f"{model.planned:,} checks"),
        ("executed", f"{run.executed:,} tasks"),
        ("reused", f"{run.reused:,} tasks"),
        ("started", moment(run.started) if run.started else ""),
        ("took", duration(run.seconds) if run.seconds else ""),
        ("command", run.command),
    ]
    return [(name, value) for name, value in facts if value]


def _cell(model: ReportModel, row: Row, pages: jinja2.Environment, writer: Writer) -> str:
    check_page = pages.get_template("check.html")
    sections = [
        Markup(_check(row, result, check_page, writer))  # noqa: S704 - rendered with autoescape
        for result in row.results.values()
    ]
    return pages.get_template("cell.html").render(
        model=model,
        row=row,
        sections=sections,
        anchors={check: anchor_of(check) for check in row.results},
    )


def _check(row: Row, result: Result, page: jinja2.Template, writer: Writer) -> str:
    facts = result.facts
    log = read_log(facts)
    whole = writer.store(f"logs/{row.slug}.{file_name(facts.check)}.txt", log.whole) if log.whole else ""
    files = []
    for artifact in facts.artifacts:
        file = read_artifact(artifact)
        href = "../" + writer.store(f"files/{file.stored}", file.content) if file.content is not None else ""
        files.append({"name": file.name, "size": file.size, "note": file.note, "href": href})
    return page.render(
        r=result,
        anchor=anchor_of(facts.check),
        measured=figures(facts.measurements),
        files=files,
        log={
            "lines": log.lines,
            "total": log.total,
            "skipped": log.skipped,
            "href": f"../{whole}" if whole else "",
        },
        open_marks=OPEN_LOGS,
    )


def _environment(writer: Writer, *, up: str) -> jinja2.Environment:
    """Templates with autoescape; whatever is printed has its hidden characters made visible first."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(partial(_resource, "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
    )

    def long(value: Any, limit: int = 1500) -> Any:
        text = str(value)
        if len(text) <= limit:
            return value
        link = Markup(' <a class="spill" href="{}">whole text</a>').format(writer.spill(text, up))
        return escape(visible(clip(text, limit))) + link

    env.filters |= {
        "long": long,
        "clip": lambda value, limit=300: clip(str(value), limit),
        "moment": moment,
        "iso": iso,
        "duration": duration,
        "size": size,
        "scalar": scalar,
        "chart": svg.chart_svg,
        "chart_small": partial(svg.chart_svg, small=True),
        "legend": svg.legend,
        "last": _last,
        "share": svg.share_bar,
        "tooltip": tooltip,
    }
    env.tests |= {
        "facts": lambda block: isinstance(block, Facts),
        "datatable": lambda block: isinstance(block, Table),
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


def tooltip(result: Result) -> str:
    """One line that says what a tile says, and the first reason of what is not a pass."""
    style = STYLES[result.mark]
    said = f"{result.facts.check}: {style.label}"
    if result.facts.evidence and result.mark in RAN:
        said += f" ({EVIDENCE[result.facts.evidence].label})"
    if result.facts.reasons and result.mark is not Mark.PASS:
        said += f". {result.facts.reasons[0]}"
    return clip(said, TOOLTIP)


def _last(chart: Any) -> str:
    values = chart.series[0].values
    return number(values[-1]) if values else ""


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(clip(value, HARD_LIMIT))


@cache
def _resource(folder: str, name: str) -> str:
    return resources.files(__package__).joinpath(folder, name).read_text(encoding="utf-8")
