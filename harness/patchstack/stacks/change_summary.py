"""Find the definitions that patches change, by comparing the code before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.patchstack.apply.classify import LoadedPatch, classify
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.python_source.source_outline import SourceDefinition, outline
from harness.serialisation import JsonValue
from harness.sources.tree import HasBlobs, Tree, TreeFile


@dataclass(frozen=True, kw_only=True)
class SymbolChange:
    """One added, replaced or deleted definition, with both signatures if a callable was replaced."""

    action: str
    kind: str
    name: str
    was: str = ""
    now: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Action, kind and name, and both signatures if they differ."""
        change: dict[str, JsonValue] = {"action": self.action, "kind": self.kind, "name": self.name}
        if self.was != self.now:
            change["signature"] = {"was": self.was, "now": self.now}
        return change


@dataclass(frozen=True, kw_only=True)
class ClassChange:
    """An added, updated or deleted class, and the changes in it."""

    name: str
    action: str
    changes: tuple[SymbolChange, ...]


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """The changes in one file's module and classes, or a note if there are none."""

    path: str
    module: tuple[SymbolChange, ...] = ()
    classes: tuple[ClassChange, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchChanges:
    """The changes of one patch to one tree. `files` is empty if the patch does not apply."""

    patch: str
    verdict: PatchVerdict
    files: tuple[FileChanges, ...]


@dataclass(frozen=True, kw_only=True)
class ChangeSummary:
    """The changes of several patches to one upstream tree."""

    upstream: str
    tree: str
    patches: tuple[PatchChanges, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Everything, as JSON values."""
        return {
            "schema": {"name": "npu-matrix/patch-summary", "version": 1},
            "upstream": self.upstream,
            "tree": self.tree,
            "patches": [
                {
                    "id": patch.patch,
                    "verdict": patch.verdict.value,
                    "files": [_file_json(file) for file in patch.files],
                }
                for patch in self.patches
            ],
        }

    def to_text(self) -> str:
        """The text in the format of the NPU plugin."""
        lines = [_rule("NPU Patch Summary", 32), "", _rule(f"{self.upstream} Patch Summary", 16)]
        number = 0
        for patch in self.patches:
            lines += ["", f"Patch: {patch.patch} ({patch.verdict} on {self.tree})"]
            for file in patch.files:
                number += 1
                lines += [f"Patch File{number}: {file.path}", *_file_lines(file)]
        lines += ["", _rule(f"{self.upstream} Patch Summary End", 16), _rule("NPU Patch Summary End", 32)]
        return "\n".join(lines)


def summarise_changes(
    upstream: str, patches: Iterable[LoadedPatch], tree: Tree, blobs: HasBlobs | None = None
) -> ChangeSummary:
    """The changes of each patch alone to `tree`. A patch that does not apply has only a verdict."""
    return ChangeSummary(
        upstream=upstream,
        tree=tree.label,
        patches=tuple(_patch(loaded, tree, blobs) for loaded in patches),
    )


def _patch(loaded: LoadedPatch, tree: Tree, blobs: HasBlobs | None) -> PatchChanges:
    verdict = classify(loaded, tree, blobs)
    files = tuple(
        summarise_file(path, tree.read(path) if tree.mode(path) else None, after)
        for path, after in sorted(verdict.files.items())
    )
    return PatchChanges(patch=loaded.name, verdict=verdict.verdict, files=files)


def summarise_file(path: str, before: bytes | None, after: TreeFile | None) -> FileChanges:
    """The changes between two contents of a file (None: no file)."""
    if not path.endswith((".py", ".pyi")):
        return FileChanges(path=path, note=_note(before, after, "not Python"))
    old = {} if before is None else outline(before)
    new = {} if after is None else outline(after.data)
    if old is None or new is None:
        return FileChanges(path=path, note=_note(before, after, "not readable as Python"))
    changes = []
    for name in [*old, *(name for name in new if name not in old)]:
        change = _compared(old.get(name), new.get(name))
        if change is not None:
            changes.append((new[name] if name in new else old[name], change))
    if not changes:
        return FileChanges(path=path, note="no definition changes: comments, layout or module code only")
    module = tuple(
        change for definition, change in changes if not definition.owner and change.kind != "class"
    )
    return FileChanges(path=path, module=module, classes=_classes(old, new, changes))


def _compared(old: SourceDefinition | None, new: SourceDefinition | None) -> SymbolChange | None:
    if old is None and new is not None:
        return SymbolChange(action="added", kind=new.kind, name=new.name)
    if new is None and old is not None:
        return SymbolChange(action="deleted", kind=old.kind, name=old.name)
    if old is None or new is None or old.body == new.body:
        return None
    return SymbolChange(action="replaced", kind=new.kind, name=new.name, was=old.signature, now=new.signature)


def _classes(
    old: Mapping[str, SourceDefinition],
    new: Mapping[str, SourceDefinition],
    changes: Sequence[tuple[SourceDefinition, SymbolChange]],
) -> tuple[ClassChange, ...]:
    touched: dict[str, list[SymbolChange]] = {}
    for definition, change in changes:
        if change.kind == "class":
            touched.setdefault(definition.qualified, [])
            if change.action == "replaced":
                touched[definition.qualified].append(change)
        if definition.owner:
            touched.setdefault(definition.owner, []).append(change)
    return tuple(
        ClassChange(
            name=name,
            action="added" if name not in old else "deleted" if name not in new else "updated",
            changes=tuple(inner),
        )
        for name, inner in touched.items()
    )


def _note(before: bytes | None, after: TreeFile | None, why: str) -> str:
    if before is None:
        return f"file added ({why})"
    return f"file deleted ({why})" if after is None else f"file changed ({why})"


def _file_json(file: FileChanges) -> dict[str, JsonValue]:
    return {
        "path": file.path,
        "module_changes": [change.to_json() for change in file.module],
        "class_changes": [
            {
                "class": change.name,
                "action": change.action,
                "changes": [inner.to_json() for inner in change.changes],
            }
            for change in file.classes
        ],
        "note": file.note,
    }


def _file_lines(file: FileChanges) -> list[str]:
    lines = [f"   {file.note}"] if file.note else []
    if file.module:
        lines += ["   Module Changes:", *map(_change_line, file.module)]
    module = file.path.removesuffix(".py").replace("/", ".")
    for number, change in enumerate(file.classes, start=1):
        lines.append(f"  ({number}) Patch class: {module}.{change.name} ({change.action})")
        if change.changes:
            lines += ["       Class Changes:", *map(_change_line, change.changes)]
    return lines


def _change_line(change: SymbolChange) -> str:
    signature = f"   {change.was} became {change.now}" if change.was != change.now else ""
    return f"          - {change.action:<12}{change.kind:<12}{change.name}{signature}"


def _rule(text: str, width: int) -> str:
    return f"{'=' * width} {text} {'=' * width}"
