"""The survival of names as a self-contained HTML page: a map of uses and versions, and the turning points."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from harness.compat.name_survival.name_survival import LEGEND, NameSurvival, UseHistory

#: Letter and colour of each state. Colour-blind readers can distinguish these colours (Okabe and Ito).
MARKS = ((".", "#009e73"), ("g", "#56b4e9"), ("X", "#d55e00"))
_ROW, _LABEL, _WIDTH, _LETTERS = 20, 380, 800, 52
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }
svg text { font: 12px ui-monospace, monospace; fill: currentColor; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.mark { display: inline-block; width: 1.4em; text-align: center; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616; } }
"""


def name_survival_page(survival: NameSurvival) -> str:
    """The page. Every text of the packages is escaped."""
    title = f"Uses of {survival.provider} by {survival.consumer}"
    legend = "".join(
        f'<span class="mark" style="background:{colour};color:#000">{letter}</span> {escape(word)} '
        for word, (letter, colour) in zip(LEGEND, MARKS, strict=True)
    )
    rows = "".join(_turns(survival, history) for history in survival.uses)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head><body>'
        f"<h1>{escape(title)}</h1><p>{survival.checked} uses over {len(survival.versions)} versions, "
        f"<code>{escape(survival.revisions)}</code>, the oldest on the left; {len(survival.uses)} of them "
        f"break somewhere. Static evidence: sources were read, no code was run.</p><p>{legend}</p>"
        f'<div class="wide">{_map(survival)}</div><h2>Turning points</h2><div class="wide"><table>'
        "<tr><th>use</th><th>where</th><th>broken by</th><th>mended by</th><th>at the last version</th></tr>"
        f"{rows}</table></div></body></html>\n"
    )


def _map(survival: NameSurvival) -> str:
    height = len(survival.uses) * _ROW + 24
    box = f'viewBox="0 0 {_LABEL + _WIDTH} {height}" width="{_LABEL + _WIDTH}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="survival of names" {box}>']
    for number, history in enumerate(survival.uses):
        parts += _row(survival, history, number * _ROW)
    for at, anchor, version in (
        (_LABEL, "start", survival.versions[0]),
        (_LABEL + _WIDTH, "end", survival.versions[-1]),
    ):
        label = escape(f"{version.short} {version.date[:10]}")
        parts.append(f'<text x="{at}" y="{height - 6}" text-anchor="{anchor}">{label}</text>')
    return "".join([*parts, "</svg>"])


def _row(survival: NameSurvival, history: UseHistory, top: int) -> Iterator[str]:
    name = history.use.target
    shown = name if len(name) <= _LETTERS else f"…{name[1 - _LETTERS :]}"
    yield f'<text x="{_LABEL - 8}" y="{top + 14}" text-anchor="end">{escape(shown)}</text>'
    scale = _WIDTH / len(survival.versions)
    ends = [*(start for start, _answer in history.runs[1:]), len(survival.versions)]
    for (start, answer), end in zip(history.runs, ends, strict=True):
        first, last = survival.versions[start], survival.versions[end - 1]
        title = escape(f"{name}: {LEGEND[answer.state]}, {first.short} to {last.short}. {answer.text}")
        wide = (end - start) * scale
        yield (
            f'<rect x="{_LABEL + start * scale:.2f}" y="{top + 2}" width="{max(wide, 0.4):.2f}" '
            f'height="{_ROW - 4}" fill="{MARKS[answer.state][1]}"><title>{title}</title></rect>'
        )
        if wide > _ROW:
            letter = MARKS[answer.state][0]
            at = _LABEL + start * scale + 4
            yield f'<text x="{at:.2f}" y="{top + 14}" style="fill:#000">{letter}</text>'


def _turns(survival: NameSurvival, history: UseHistory) -> str:
    def turns(*, broke: bool) -> str:
        found = [survival.versions[turn.version] for turn in history.turns if turn.broke is broke]
        return "<br>".join(
            escape(f"{version.short} {version.date[:10]} {version.subject}") for version in found
        )

    release, place = history.newest_place
    last = history.at(len(survival.versions) - 1)
    cells = [
        f"{escape(history.use.kind)} <code>{escape(history.use.target)}</code>",
        escape(f"{release}: {place}"),
        turns(broke=True),
        turns(broke=False),
        escape(last.text or LEGEND[last.state]),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
