"""The draft of a report to an upstream project, in English and in Chinese. Nothing here sends it.

It is Markdown, as the forms for issues expect it. Tokens, passwords and queries of URLs are masked.
"""

from __future__ import annotations

from functools import cache, partial

import jinja2

from harness.plan.tasks.task import reproduce_command
from harness.report.model.logs import LogExcerpt, read_log
from harness.report.model.markdown_text import code_block, escape
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.turning_points import Turn
from harness.report.model.visible_text import clip, moment
from harness.report.pages.chinese import in_chinese
from harness.report.pages.page_templates import resource
from harness.settings import DEFAULT_PROFILE
from harness.sources.redact import mask_secrets, redact_text

LANGUAGES = ("en", "zh")
#: How many lines of the log a draft contains, around the line that triage named, or at its end.
LOG_LINES = 40
MAX_LINE = 300
MAX_REASONS = 8


def upstream_draft(
    model: ReportModel, row: ReportRow, result: ReportResult, language: str = "en", bisected: str = ""
) -> str:
    """The draft about a check of a cell. language: one of `LANGUAGES`.

    bisected: the first bad commit; by default the one that the runs or the survival of patches show, if they
    do.
    """
    axes = row.cell.axes
    profile = model.inputs.run.profile or DEFAULT_PROFILE
    broke = next((turn for turn in reversed(result.turns) if not turn.better), None)
    expected, diagnosis = result.verdict.expected, result.diagnosis
    say = in_chinese if language == "zh" else str
    text = _template(language).render(
        check=result.check,
        versions=", ".join(f"{name} {axes[name]}" for name in model.axes if name in axes),
        reasons=[say(reason) for reason in result.verdict.reasons[:MAX_REASONS] or (result.mark.value,)],
        evidence=result.shown_evidence.value if result.shown_evidence else "",
        axes=list(axes.items()),
        # Without the options of this host: its folders say nothing to the readers of the upstream.
        reproduce=reproduce_command(row.cell.id, result.check, profile=profile),
        lock=f"npu-matrix lock {row.cell.id} --format requirements",
        log=_log(read_log(result.log), diagnosis.line if diagnosis else 0),
        cause=say(diagnosis.cause) if diagnosis else "",
        broke=broke,
        bisected=bisected or _broken_by(model, result, broke),
        source=expected.source if expected else "",
    )
    return mask_secrets(redact_text(text))


@cache
def _template(language: str) -> jinja2.Template:
    # The text is Markdown: every value is escaped by `md` or is in a code block.
    texts = jinja2.Environment(  # noqa: S701
        loader=jinja2.FunctionLoader(partial(resource, "templates")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    texts.filters |= {"md": escape, "code": code_block, "moment": moment}
    return texts.get_template(f"draft.{language}.md")


def _log(excerpt: LogExcerpt, named: int) -> str:
    """The lines around the one that triage named, otherwise the last ones."""
    shown = excerpt.lines
    place = next((index for index, line in enumerate(shown) if line.number == named), None)
    first = max(0, len(shown) - LOG_LINES) if place is None else max(0, place - LOG_LINES // 2)
    return "\n".join(clip(line.text, MAX_LINE) for line in shown[first : first + LOG_LINES])


def _broken_by(model: ReportModel, result: ReportResult, broke: Turn | None) -> str:
    """The commit that broke it, if it is known: the only commit of an upstream between two runs, or the one
    that the survival of the patches names."""
    for commits in model.inputs.commits.of(broke) if broke else ():
        if commits.upstream and len(commits.commits) == 1 and not commits.more:
            return f"{commits.commits[0].id} {commits.commits[0].subject}"
    survival = model.inputs.survival
    if survival is None or result.check != "patches":
        return ""
    breaks = [turn for patch in survival.patches if patch.id in result.reason for turn in patch.breaks[:1]]
    return f"{breaks[0].commit} {breaks[0].subject}" if breaks else ""
