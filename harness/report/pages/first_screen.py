"""The first screen: which stack for which host, what changed, what nobody has decided yet."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from harness.report.model.changes import RunChange, RunChangeKind
from harness.report.model.host_kinds import HostKind, StackAdvice, find_host_kinds
from harness.report.model.marks import Mark
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.pages.cell_pages import lock_command, stored_exports
from harness.report.pages.page_templates import PageWriter, anchor_of

MAX_KINDS = 60
MAX_CHANGED = 5
#: The versions that people name a stack by.
NAMED_AXES = ("verl", "torch_npu", "vllm_ascend", "python")
INSTALLABLE = ("install.sh", "requirements.txt", "CELL.md")


@dataclass(frozen=True, kw_only=True)
class ShownStack:
    """A stack of the table: its advice, and the files and the command that install it, if it has a lock.

    why_no_lock: why there is none, "" if there is one.
    """

    advice: StackAdvice
    title: str
    href: str
    versions: tuple[tuple[str, str], ...]
    exports: tuple[tuple[str, str], ...]
    command: str
    why_no_lock: str

    def link(self, check: str) -> str:
        """The section of a check on the page of the stack, or the page."""
        return f"{self.href}#{anchor_of(check)}" if check else self.href


@dataclass(frozen=True, kw_only=True)
class ShownHost:
    """A row of the table of hosts; query: selects its cells in the grid.

    advise: the command that searches other versions for this host, "" for simulated devices.
    """

    kind: HostKind
    name: str
    query: str
    advise: str
    stacks: tuple[ShownStack, ...]


@dataclass(frozen=True, kw_only=True)
class ShownChange:
    """A change since the run before, with a link to the check if this run planned it."""

    turn: RunChangeKind
    check: str
    title: str
    href: str
    reason: str


def shown_hosts(
    model: ReportModel, writer: PageWriter, short: dict[str, str]
) -> tuple[tuple[ShownHost, ...], int]:
    """The rows of the table of hosts, and how many more kinds there are.

    short: version -> how the grid shows it, where that is shorter.
    """
    kinds = find_host_kinds(model.rows)
    shown = tuple(_host(model, writer, short, kind) for kind in kinds[:MAX_KINDS])
    return shown, len(kinds) - len(shown)


def _host(model: ReportModel, writer: PageWriter, short: dict[str, str], kind: HostKind) -> ShownHost:
    terms = [f'{axis}="{value}"' for axis, value in (("soc", kind.soc), ("cann", kind.cann)) if value != "—"]
    if kind.newest.row.cell.device:
        terms += ["!device:npu" if kind.simulated else "device:npu"]
    name = f"{kind.soc.upper() if len(kind.soc) < 4 else kind.soc} · CANN {kind.cann}"
    stacks = [advice for advice in (kind.newest, kind.sound) if advice]
    return ShownHost(
        kind=kind,
        name=name,
        query=" & ".join(terms),
        advise=""
        if kind.simulated or "—" in {kind.soc, kind.cann}
        else shlex.join(["npu-matrix", "advise", "--soc", kind.soc, "--cann", kind.cann]),
        stacks=tuple(_stack(model, writer, short, advice) for advice in stacks),
    )


def _stack(model: ReportModel, writer: PageWriter, short: dict[str, str], advice: StackAdvice) -> ShownStack:
    row = advice.row
    axes = row.cell.axes
    stored = stored_exports(writer, row)
    return ShownStack(
        advice=advice,
        title=model.names[row.cell.id],
        href=f"cells/{row.slug}.html",
        versions=tuple(
            (axis, short.get(axes[axis], axes[axis])) for axis in NAMED_AXES if axes.get(axis, "—") != "—"
        ),
        exports=tuple((name, href) for name, href in stored if name in INSTALLABLE) or tuple(stored[:4]),
        command=lock_command(model, row),
        why_no_lock="" if stored or lock_command(model, row) else _why_no_lock(row),
    )


def _why_no_lock(row: ReportRow) -> str:
    resolved = row.results.get("resolve")
    if resolved is None:
        return "Its versions were never resolved into a lock."
    if resolved.mark in {Mark.FAIL, Mark.KNOWN_FAIL}:
        return "It cannot be installed as declared: resolve fails."
    return "There is no lock yet: resolve has no verdict."


def shown_changes(model: ReportModel) -> tuple[ShownChange, ...]:
    """The most urgent changes since the run before, without checks that are as broken as before."""
    by_id = {row.cell.id: row for row in model.rows}
    new = [change for change in model.changes if change.turn is not RunChangeKind.STILL]
    return tuple(
        _change(change, by_id.get(change.cell), model.names.get(change.cell, change.cell))
        for change in new[:MAX_CHANGED]
    )


def _change(change: RunChange, row: ReportRow | None, title: str) -> ShownChange:
    verdict = change.before if change.turn is RunChangeKind.FIXED else change.after or change.before
    return ShownChange(
        turn=change.turn,
        check=change.check,
        title=title,
        href=f"cells/{row.slug}.html#{anchor_of(change.check)}"
        if row and change.check in row.results
        else "",
        reason=verdict.reason if verdict else "",
    )
