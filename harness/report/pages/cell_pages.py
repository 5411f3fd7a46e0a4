"""The page of a cell: its versions, and each check with its verdict, measurements, log and history."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
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
from harness.report.pages.measurement_blocks import Block, FactList
from harness.report.pages.page_templates import PageWriter, anchor_of, environment
from harness.report.pages.printing import printed
from harness.report.pages.timeline import input_changed, since_words, timeline_svg
from harness.settings import DEFAULT_PROFILE

OPEN_LOGS = (Mark.FAIL, Mark.ERROR, Mark.INCONCLUSIVE)
#: How many rendered parts of pages are cached.
MAX_CACHED = 20_000
#: In reports with more cells, the outcomes are in report.json only.
MOST_OUTCOME_FILES = 200
#: Shorter texts are shown whole by every filter.
SHORT_TEXT = 90
#: Characters without a meaning in Unicode, which stand for the texts in rendered HTML, in order.
PLACES = tuple(map(chr, range(0xE000, 0xE020)))
_PLACE = re.compile(f"([{PLACES[0]}-{PLACES[-1]}])")
NO_CHECKS = '<p class="note">Nothing was planned for this cell.</p>'
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
        self._stripcheck = env.get_template("macros.html").module.stripcheck  # type: ignore[attr-defined]
        self._similar = SimilarFailures(model)
        modules = [env.get_template(name).module for name in ("cell.html", "check.html")]
        self._macros = {name: macro for module in modules for name, macro in vars(module).items()}
        self._tiles: dict[tuple[object, ...], Markup] = {}
        #: Name of a macro, and what it shows -> the rendered part.
        self._parts: dict[tuple[object, ...], str] = {}
        #: Name of a macro, and what it shows besides texts -> the HTML around them, and the index of each.
        self._forms: dict[tuple[object, ...], list[str | int]] = {}
        #: Name of a macro, and what it shows besides one text -> the HTML between the places of that text.
        self._frames: dict[tuple[object, ...], list[str]] = {}
        #: What decides how the history of a check is shown -> the rendered part.
        self._histories: dict[tuple[object, ...], str] = {}

    def render(self, row: ReportRow) -> bytes:
        """The page of one cell."""
        name = escape(visible(clip(row.cell.name, NAME)))
        sections = [self._section(row, one) for one in row.results.values()]
        main = "".join([*self._above(row), *(sections or [NO_CHECKS])])
        *head, foot = self._shell
        return b"".join([as_bytes(name).join(head), as_bytes(main), foot])

    def _above(self, row: ReportRow) -> Iterator[str]:
        """The page above its checks."""
        cell = row.cell
        title = cell.name
        if len(title) > SHORT_TEXT or len(cell.id) > SHORT_TEXT:
            yield self._macro("top", title, cell.id, cell)
        else:
            kinds = (cell.stack, cell.device, cell.recipe)
            yield self._filled("top", kinds, [printed(title), printed(cell.id)], cell)
        yield from self._strip(row)
        declared = cell.provenance.get
        rows = [
            self._part("version", (axis, value, declared(axis, "")), axis, value, declared(axis, ""))
            for axis, value in cell.axes.items()
        ]
        yield self._filled("versions", (), ["".join(rows)])
        yield self._macro("findings", cell.findings)
        yield self._macro("published", row.published)
        exports = [(name, f"../{href}") for name, href in stored_exports(self._writer, row)]
        command = lock_command(self._model, row)
        yield self._macro("lock", (command, exports)) if exports else self._around("command", command)
        yield "\n</section>\n</div>\n"

    def _strip(self, row: ReportRow) -> Iterator[str]:
        for tier in self._model.tiers:
            tiles = [
                self._tile(row.results[check.name]) for check in tier.checks if check.name in row.results
            ]
            if tiles:
                yield self._filled("tier", (tier.tier.value,), ["".join(tiles)], tier.tier.value)

    def _tile(self, result: ReportResult) -> Markup:
        # The tile omits the reasons, which the section below it shows, so that many pages share one tile.
        key = (result.check, result.mark, result.verdict.evidence, result.change)
        if key not in self._tiles:
            bare = replace(result, verdict=replace(result.verdict, reasons=()))
            self._tiles[key] = self._stripcheck(bare, f"#{anchor_of(result.check)}")
        return self._tiles[key]

    def _section(self, row: ReportRow, result: ReportResult) -> str:
        """A check on the page: the parts of `check.html`, most of which other cells show too.

        They are HTML as plain text, because joining Markup escapes every part again.
        """
        anchor = Markup(anchor_of(result.check))  # noqa: S704 - a name that is safe as a file's
        similar = self._similar.siblings_of(row, result)
        found = figures(result.measurements, result.check)
        command = self._around("reproduce", result.reproduce, result.mark is not Mark.PASS)
        parts = [
            self._opening(result, anchor),
            self._origin(row, result),
            self._when(result),
            self._judged(result),
            self._macro("triage", result.diagnosis, anchor),
            self._macro("similar", similar, anchor),
            command if result.mark is not Mark.PASS else "",
            self._measured(found),
            self._files(result.verdict.outcome, result),
            self._log(row, result, anchor),
            self._more(result, command if result.mark is Mark.PASS else ""),
        ]
        return "\n".join([part for part in parts if part])

    def _macro(self, name: str, shown: object, *others: object) -> str:
        """A macro; "" if there is nothing to show."""
        return str(self._macros[name](shown, *others)) if shown else ""

    def _part(self, name: str, key: tuple[object, ...], *shown: object) -> str:
        """A macro, rendered once for each key."""
        full = (name, *key)
        part = self._parts.get(full)
        if part is None:
            if len(self._parts) > MAX_CACHED:
                self._parts.clear()
            part = self._parts[full] = str(self._macros[name](*shown))
        return part

    def _filled(
        self, name: str, key: tuple[object, ...], texts: Sequence[str], *others: object, form: object = None
    ) -> str:
        """A macro with some texts, which are HTML. What is around them is rendered once for each key.

        form: the first argument of the macro, if it is not the texts.
        """
        full = (name, len(texts), *key)
        pieces = self._forms.get(full)
        if pieces is None:
            if len(self._forms) > MAX_CACHED:
                self._forms.clear()
            shown = PLACES[: len(texts)] if form is None else (form,)
            split = _PLACE.split(str(self._macros[name](*shown, *others)))
            pieces = [PLACES.index(piece) if at % 2 else piece for at, piece in enumerate(split)]
            self._forms[full] = pieces
        return "".join([texts[piece] if type(piece) is int else piece for piece in pieces])  # type: ignore[misc]

    def _around(self, name: str, text: str, *others: object) -> str:
        """A macro that shows one short text; "" without one."""
        if not text or len(text) > SHORT_TEXT:
            return self._macro(name, text, *others)
        frame = self._frames.get((name, others))
        if frame is None:
            frame = self._frames[name, others] = str(self._macros[name](PLACES[0], *others)).split(PLACES[0])
        return printed(text).join(frame)

    def _measured(self, found: Sequence[Block]) -> str:
        """The measurements; in most sections they are plain facts."""
        if len(found) == 1 and isinstance(found[0], FactList):
            title, pairs = found[0].title, found[0].pairs
            texts = [text for _, text in pairs]
            names = tuple([name for name, _ in pairs])
            short = len(pairs) <= len(PLACES) and max(map(len, texts)) <= SHORT_TEXT
            if short and "\n" not in "".join(texts) and not _PLACE.search("".join((title, *names))):
                form = (FactList(title=title, pairs=tuple(zip(names, PLACES, strict=False))),)
                return self._filled("measured", (title, names), [*map(printed, texts)], form=form)
        return self._macro("measured", found)

    def _opening(self, result: ReportResult, anchor: Markup) -> str:
        key = (result.check, result.entry.question, result.mark, result.verdict.evidence, result.change)
        return self._part("opening", key, result, anchor)

    def _origin(self, row: ReportRow, result: ReportResult) -> str:
        outcome = result.verdict.outcome
        proof = provenance(result, row.results)
        file = self._outcome_file(outcome) if outcome else ""
        ran = (outcome.started, outcome.seconds, outcome.attempt, outcome.trust) if outcome else None
        key = (result.shown_evidence, ran, result.reused, proof, file)
        return self._part("origin", key, result, outcome, proof, file)

    def _when(self, result: ReportResult) -> str:
        history, verdict = result.history, result.verdict
        if not history:
            return ""
        turned = input_changed(result)
        # Many results share a history, which lives as long as the model.
        key = (result.check, id(history), result.mark, verdict.status, verdict.evidence, turned)
        shown = self._histories.get(key)
        if shown is None:
            since = since_words(self._model.streak(result), verdict.status)
            texts = [timeline_svg(result), printed(since)]
            shown = self._histories[key] = self._filled("when", (result.check,), texts, result.check)
        return shown

    def _judged(self, result: ReportResult) -> str:
        verdict, notes = result.verdict, self._model.notes_on(result)
        key = (verdict.reasons, verdict.remedies, verdict.expected, notes)
        return self._part("judged", key, verdict, notes)

    def _files(self, outcome: Outcome | None, result: ReportResult) -> str:
        if outcome is None or not outcome.artifacts:
            return ""
        files = [self._file(read_artifact(ref, result.files.get(ref.digest))) for ref in outcome.artifacts]
        return self._macro("files", files)

    def _log(self, row: ReportRow, result: ReportResult, anchor: Markup) -> str:
        if result.log is None:
            return ""
        log = read_log(result.log)
        if not log.lines:
            return ""
        whole = ""
        if log.whole:
            whole = "../" + self._writer.store(f"logs/{row.slug}.{file_name(result.check)}.txt", log.whole)
        shown = {"lines": log.lines, "total": log.total, "skipped": log.skipped, "href": whole}
        return self._macro("log", shown, result.check, anchor, result.mark in OPEN_LOGS)

    def _more(self, result: ReportResult, command: str) -> str:
        outcome = result.verdict.outcome
        around = outcome.environment if outcome else {}
        texts = f"{result.facets!r}{around!r}"
        shown = self._part("inside", (texts,), result.facets, around) if result.facets or around else ""
        parts = [
            self._part("more", (bool(command),), bool(command)),
            command,
            self._around("key", result.entry.key),
            shown,
            self._part("past", (result.past,), result.past if result.history else None),
        ]
        return "".join(parts)

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

    def _file(self, file: ArtifactFile) -> dict[str, object]:
        href = (
            "../" + self._writer.store(f"files/{file.stored}", file.content)
            if file.content is not None
            else ""
        )
        return {"name": file.name, "size": file.size, "note": file.note, "href": href}
