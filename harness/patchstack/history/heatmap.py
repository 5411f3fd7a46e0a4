"""Draw patch survival as SVG, as an HTML page or as text. Every verdict has a colour and a letter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from harness.patchstack.apply.patch_verdict import MEANING, SEVERITY, PatchVerdict
from harness.patchstack.history.survival import PatchHistory, Survival, VerdictChange
from harness.sources.git.commit_history import Commit

#: Letter and colour of each verdict. Colour-blind readers can distinguish these colours (Okabe and Ito).
MARKS = {
    PatchVerdict.CLEAN: (".", "#009e73"),
    PatchVerdict.OFFSET: ("o", "#7fd0b8"),
    PatchVerdict.MERGED: ("m", "#f0e442"),
    PatchVerdict.ALREADY_UPSTREAM: ("u", "#56b4e9"),
    PatchVerdict.LINE_ENDINGS: ("e", "#e69f00"),
    PatchVerdict.MISPLACED: ("!", "#cc79a7"),
    PatchVerdict.CONFLICT: ("X", "#d55e00"),
    PatchVerdict.MISSING_TARGET: ("-", "#9a9a9a"),
    PatchVerdict.CORRUPT: ("?", "#5b3f8c"),
    PatchVerdict.UNSAFE: ("#", "#000000"),
    PatchVerdict.UNSUPPORTED: ("b", "#b8a37f"),
}
_ROW = 22
_LABEL = 320
_WIDTH = 1200
_MIN_LETTER_WIDTH = 14
_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }
svg text { font: 12px ui-monospace, monospace; fill: currentColor; }
table { border-collapse: collapse; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; }
.mark { display: inline-block; width: 1.4em; text-align: center; color: #fff; text-shadow: 0 0 2px #000; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616; } }
"""


def heatmap_text(survival: Survival, width: int = 100) -> str:
    """One line per patch, oldest commit on the left. A column for several commits shows the worst verdict."""
    name_width = max((len(patch.patch) for patch in survival.patches), default=0)
    columns = max(10, width - name_width - 8)
    lines = [
        f"{patch.patch:<{name_width}}  {patch.share:>4.0%} "
        + "".join(MARKS[verdict][0] for verdict in _buckets(patch.verdicts[::-1], columns))
        for patch in survival.patches
    ]
    used = _used(survival)
    lines += ["", "  ".join(f"{MARKS[verdict][0]} {verdict}" for verdict in used)]
    oldest, newest = survival.commits[-1], survival.commits[0]
    lines.append(f"{len(survival.commits)} commits, {_when(oldest)} to {_when(newest)}")
    return "\n".join(lines)


def turning_point_lines(survival: Survival) -> list[str]:
    """For each patch, the commit that first broke it and the commit that first fixed it."""
    lines = []
    for patch in survival.patches:
        for word, found in (("broken", patch.breaks[:1]), ("fixed", patch.fixes[:1])):
            lines += [
                f"{patch.patch} first {word} by {_when(change.commit)} {change.commit.subject}"
                for change in found
            ]
    return lines


def _when(commit: Commit) -> str:
    """A commit's short id and date; a release has no date."""
    return f"{commit.id[:9]} ({commit.date[:10]})" if commit.date else commit.id


def heatmap_svg(survival: Survival) -> str:
    """The heat map as SVG. Each run of equal verdicts is one rectangle with a title."""
    height = len(survival.patches) * _ROW + 24
    box = f'viewBox="0 0 {_LABEL + _WIDTH + 60} {height}" width="100%"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="patch survival" {box}>']
    for row, patch in enumerate(survival.patches):
        parts += _svg_row(survival, patch, row * _ROW)
    for at, anchor, commit in (
        (_LABEL, "start", survival.commits[-1]),
        (_LABEL + _WIDTH, "end", survival.commits[0]),
    ):
        parts.append(_svg_text(at, height - 8, _when(commit), anchor))
    return "".join([*parts, "</svg>"])


def _svg_row(survival: Survival, patch: PatchHistory, top: int) -> Iterator[str]:
    scale = _WIDTH / len(survival.commits)
    yield _svg_text(_LABEL - 8, top + 15, _short(patch.patch), "end")
    for start, end, verdict in _runs(patch.verdicts[::-1]):
        first, last = survival.commits[-1 - start], survival.commits[-end]
        letter, colour = MARKS[verdict]
        x, wide = _LABEL + start * scale, (end - start) * scale
        title = (
            f"{patch.patch}: {verdict} at {end - start} commits, {first.id[:9]} ({first.date[:10]}) to "
            f"{last.id[:9]} ({last.date[:10]}); since: {first.subject}"
        )
        yield (
            f'<rect x="{x:.2f}" y="{top + 2}" width="{max(wide, 0.4):.2f}" height="{_ROW - 4}" '
            f'fill="{colour}"><title>{escape(title)}</title></rect>'
        )
        if wide > _MIN_LETTER_WIDTH:
            yield f'<text x="{x + 4:.2f}" y="{top + 15}" style="fill:#000">{escape(letter)}</text>'
    yield _svg_text(_LABEL + _WIDTH + 6, top + 15, f"{patch.share:.0%}", "start")


def _svg_text(x: int, y: int, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def heatmap_page(survival: Survival, title: str = "Patch survival") -> str:
    """A self-contained page: heat map, legend, and the commits that first broke and fixed each patch."""
    legend = "".join(_legend(verdict) for verdict in _used(survival))
    rows = "".join(_row(patch) for patch in survival.patches)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head><body>'
        f"<h1>{escape(title)}</h1><p>{len(survival.patches)} patches over {len(survival.commits)} commits of "
        f"<code>{escape(survival.revisions)}</code>, the oldest on the left. "
        "Static evidence: the patches were applied, no code was run.</p>"
        f"{heatmap_svg(survival)}<h2>Legend</h2><table>{legend}</table>"
        f"<h2>Turning points</h2><table><tr><th>patch</th><th>applies to</th><th>first broken by</th>"
        f"<th>first fixed by</th><th>on the newest commit</th></tr>{rows}</table></body></html>\n"
    )


def _legend(verdict: PatchVerdict) -> str:
    letter, colour = MARKS[verdict]
    mark = f'<span class="mark" style="background:{colour}">{escape(letter)}</span>'
    return f"<tr><td>{mark}</td><td>{verdict}</td><td>{escape(MEANING[verdict])}</td></tr>"


def _row(patch: PatchHistory) -> str:
    newest = ": ".join(filter(None, [patch.newest.verdict.value, "; ".join(patch.newest.reasons)]))
    cells = [
        f"<code>{escape(patch.patch)}</code>",
        f"{patch.share:.0%}",
        _first_change(patch.breaks),
        _first_change(patch.fixes),
        escape(newest),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _first_change(changes: Sequence[VerdictChange]) -> str:
    if not changes:
        return "nothing"
    first = changes[0]
    return (
        f"<code>{first.commit.id[:9]}</code> {escape(first.commit.date[:10])} {escape(first.commit.subject)} "
        f"({first.before} to {first.after})"
    )


def _used(survival: Survival) -> list[PatchVerdict]:
    seen = {verdict for patch in survival.patches for verdict in patch.verdicts}
    return [verdict for verdict in PatchVerdict if verdict in seen]


def _runs(verdicts: Sequence[PatchVerdict]) -> Iterator[tuple[int, int, PatchVerdict]]:
    """(first, last + 1, verdict) of every run of equal verdicts."""
    start = 0
    for number in range(1, len(verdicts) + 1):
        if number == len(verdicts) or verdicts[number] is not verdicts[start]:
            yield start, number, verdicts[start]
            start = number


def _buckets(verdicts: Sequence[PatchVerdict], columns: int) -> list[PatchVerdict]:
    count = min(columns, len(verdicts))
    edges = [number * len(verdicts) // count for number in range(count + 1)]
    return [max(verdicts[start:end], key=SEVERITY.__getitem__) for start, end in pairwise(edges)]


def _short(name: str) -> str:
    return name if len(name) <= 44 else f"…{name[-43:]}"
