"""The page of a cell: its versions, and each check with its verdict, measurements, log and history."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from jinja2 import Template
from markupsafe import Markup, escape

from harness.ledger.outcome_record import outcome_body, outcome_uid
from harness.outcome import Outcome
from harness.report.model.failure_patterns import PASSING
from harness.report.model.logs import ArtifactFile, read_artifact, read_log, stored_name
from harness.report.model.marks import Mark
from harness.report.model.provenance import provenance
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.similar_failures import SimilarFailures
from harness.report.model.visible_text import as_bytes, clip, file_name, visible
from harness.report.pages.figures import figures
from harness.report.pages.page_templates import PageWriter, anchor_of, environment
from harness.report.pages.timeline import since_words
from harness.settings import DEFAULT_PROFILE

OPEN_LOGS = (Mark.FAIL, Mark.ERROR, Mark.INCONCLUSIVE)
#: How many rendered lists of facets are cached.
MAX_CACHED = 5_000
#: In reports with more cells, the outcomes are in report.json only.
MOST_OUTCOME_FILES = 200
LOCK_FORMAT = ("--format", "dockerfile")
#: How many letters of a cell's name the title of its page shows.
NAME = 120


def _shell(page: Template, model: ReportModel) -> tuple[bytes, bytes, bytes, bytes]:
    """The parts that all pages of cells share: before the name, up to its second place, up to the content,
    and after the content."""
    # All other texts are escaped, so that these markers cannot occur elsewhere.
    name, content = Markup("<!--name-->"), Markup("<!--content-->")
    text = page.render(model=model, name=name, content=content)
    first, second, rest = text.split(name)
    third, last = rest.split(content)
    return as_bytes(first), as_bytes(second), as_bytes(third), as_bytes(last)


def stored_exports(writer: PageWriter, row: ReportRow) -> list[tuple[str, str]]:
    """The lock of a cell in each format, written once: (name, name of the file in the report)."""
    return [
        (name, writer.store(f"exports/{row.slug}/{stored_name(name)}", text))
        for name, text in row.exports.items()
    ]


def lock_command(model: ReportModel, row: ReportRow) -> str:
    """The command that exports the lock of a cell; "" if it has none."""
    resolved = row.results.get("resolve")
    if resolved is None or resolved.mark not in PASSING:
        return ""
    run = model.inputs.run
    profile = ("--profile", run.profile) if run.profile not in {"", DEFAULT_PROFILE} else ()
    folder = f"build/{row.slug}"
    return shlex.join(
        ["npu-matrix", *run.options, *profile, "lock", row.cell.id, *LOCK_FORMAT, "--output", folder]
    )


class CellPages:
    """Renders the pages of cells; parts that are equal on many pages are rendered once."""

    def __init__(self, model: ReportModel, writer: PageWriter) -> None:
        self._model = model
        self._writer = writer
        env = environment(writer, up="../")
        self._shell = _shell(env.get_template("cellpage.html"), model)
        self._main = env.get_template("cell.html")
        self._stripcheck = env.get_template("macros.html").module.stripcheck  # type: ignore[attr-defined]
        self._similar = SimilarFailures(model)
        parts = env.get_template("check.html").module
        self._checked = parts.section  # type: ignore[attr-defined]
        self._opening = parts.opening  # type: ignore[attr-defined]
        self._facets = parts.facets  # type: ignore[attr-defined]
        self._tiles: dict[tuple[object, ...], Markup] = {}
        self._openings: dict[tuple[object, ...], Markup] = {}
        self._facet_lists: dict[str, Markup] = {}

    def render(self, row: ReportRow) -> bytes:
        """The page of one cell."""
        name = escape(visible(clip(row.cell.title or row.cell.id, NAME)))
        main = self._main.render(
            row=row,
            strip=self._strip(row),
            sections=[self._section(row, result) for result in row.results.values()],
            exports=[(name, f"../{href}") for name, href in stored_exports(self._writer, row)],
            lock_command=lock_command(self._model, row),
        )
        *head, foot = self._shell
        return as_bytes(name).join(head) + as_bytes(main) + foot

    def _strip(self, row: ReportRow) -> list[tuple[str, Markup]]:
        tiers = []
        for tier in self._model.tiers:
            tiles = [
                self._tile(row.results[check.name]) for check in tier.checks if check.name in row.results
            ]
            if tiles:
                tiers.append((tier.tier.value, Markup().join(tiles)))
        return tiers

    def _tile(self, result: ReportResult) -> Markup:
        # The tile omits the reasons, which the section below it shows, so that many pages share one tile.
        key = (result.check, result.mark, result.verdict.evidence, result.change)
        if key not in self._tiles:
            bare = replace(result, verdict=replace(result.verdict, reasons=()))
            self._tiles[key] = self._stripcheck(bare, f"#{anchor_of(result.check)}")
        return self._tiles[key]

    def _section(self, row: ReportRow, result: ReportResult) -> Markup:
        outcome = result.verdict.outcome
        log = read_log(result.log)
        whole = ""
        if log.whole:
            whole = "../" + self._writer.store(f"logs/{row.slug}.{file_name(result.check)}.txt", log.whole)
        parts = {
            "anchor": Markup(anchor_of(result.check)),  # noqa: S704 - a name that is safe as a file's
            "opening": self._opening_of(result),
            "facets": self._facets_of(result.facets) if result.facets else "",
            "measured": figures(result.measurements, result.check),
            "similar": self._similar.siblings_of(row, result),
            "files": [
                self._file(read_artifact(ref, result.files.get(ref.digest)))
                for ref in (outcome.artifacts if outcome else ())
            ],
            "proof": provenance(result, row.results),
            "outcome_file": self._outcome_file(outcome) if outcome else "",
            "notes": self._model.notes_on(result),
            "since": since_words(self._model.streak(result), result.verdict.status),
            "log": {"lines": log.lines, "total": log.total, "skipped": log.skipped, "href": whole},
        }
        section: Markup = self._checked(result, parts, OPEN_LOGS)
        return section

    def _outcome_file(self, outcome: Outcome) -> str:
        """The link to the stored outcome as JSON; "" in a large report, whose report.json has it."""
        if len(self._model.rows) > MOST_OUTCOME_FILES:
            return ""
        try:
            body = outcome_body(outcome)
            name = f"outcomes/{file_name(f'{outcome.check}-{outcome_uid(body)[:16]}')}.json"
        except (TypeError, ValueError):
            return ""  # no ledger can store it
        return "../" + self._writer.store(name, body + "\n")

    def _opening_of(self, result: ReportResult) -> Markup:
        key = (result.check, result.entry.question, result.mark, result.verdict.evidence, result.change)
        if key not in self._openings:
            self._openings[key] = self._opening(result, anchor_of(result.check))
        return self._openings[key]

    def _facets_of(self, facets: Mapping[str, object]) -> Markup:
        """The list of facets; cached, because cells that share a task have the same facets."""
        key = repr(facets)
        if key not in self._facet_lists:
            if len(self._facet_lists) > MAX_CACHED:
                self._facet_lists.clear()
            self._facet_lists[key] = self._facets(facets)
        return self._facet_lists[key]

    def _file(self, file: ArtifactFile) -> dict[str, object]:
        href = (
            "../" + self._writer.store(f"files/{file.stored}", file.content)
            if file.content is not None
            else ""
        )
        return {"name": file.name, "size": file.size, "note": file.note, "href": href}
