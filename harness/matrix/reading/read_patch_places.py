"""Reads the section `patches`: folders and branches whose patches are read where they lie."""

from __future__ import annotations

from pathlib import PurePosixPath

from harness.matrix.document.included_documents import SHIPPED_NAME
from harness.matrix.document.yaml_positions import NodePath
from harness.matrix.model.constraints import Condition
from harness.matrix.model.definitions import PatchPlace
from harness.matrix.reading.resolve_names import Entry, NameResolver, text, texts


def read_patch_place(resolver: NameResolver, index: int, entry: Entry) -> PatchPlace:
    """The entry, which satisfies the schema; problems are added to `resolver`."""
    path: NodePath = ("patches", index)
    folder, branch = text(entry.get("folder", "")), text(entry.get("branch", ""))
    upstream = text(entry.get("upstream", ""))
    if bool(folder) == bool(branch):
        resolver.problem(path, "an entry needs either 'folder' or 'branch'", fix="use one entry for each")
    if branch and not (upstream and entry.get("base")):
        resolver.problem(
            path,
            "a branch needs 'upstream' and 'base'",
            fix="add the axis of the upstream, and the tag or branch of the upstream that it started from",
        )
    if not folder or entry.get("axis"):
        for name in ("files", "inside", "left_out") + (("strip",) if branch else ()):
            if entry.get(name):
                resolver.problem((*path, name), f"{name!r} is for a folder of this repository")
    if folder and not _is_inside(folder):
        resolver.problem(
            (*path, "folder"),
            f"{folder!r} is outside this repository",
            fix="write a path relative to matrix.yaml, without `..`",
        )
    inside = text(entry.get("inside", ""))
    if inside and not _is_inside(inside):
        resolver.problem(
            (*path, "inside"),
            f"{inside!r} is outside the sources of the upstream",
            fix="write a path relative to the top of its repository, without `..`",
        )
    _check_axis(resolver, path, entry)
    axis = resolver.axis((*path, "upstream"), upstream) if upstream else None
    condition = None
    if "versions" in entry and axis is None:
        if not upstream:
            resolver.problem(
                (*path, "versions"), "'versions' needs 'upstream'", fix="add the axis of the upstream"
            )
    elif "versions" in entry and axis is not None:
        specifiers = [
            resolver.specifier((*path, "versions"), axis, word) for word in texts(entry["versions"])
        ]
        condition = Condition(axis=axis.name, specifiers=tuple(one for one in specifiers if one))
    return PatchPlace(
        upstream=upstream,
        folder=folder,
        axis=text(entry.get("axis", "")),
        layout=text(entry.get("layout", "")),
        versions=condition,
        files=tuple(texts(entry.get("files") or [])),
        strip=int(entry.get("strip", 1)),
        inside=inside.strip("/"),
        left_out=text(entry.get("left_out", "")),
        branch=branch,
        base=text(entry.get("base", "")),
        source=text(entry.get("source", "")),
        is_included=str(resolver.document.where(path).file).startswith(f"{SHIPPED_NAME}:"),
        where=resolver.document.where(path),
    )


def _check_axis(resolver: NameResolver, path: NodePath, entry: Entry) -> None:
    """Problems with `axis`: it is not defined, has no repository, or stands beside a branch."""
    name = text(entry.get("axis", ""))
    if not name:
        return
    axis = resolver.axis((*path, "axis"), name)
    if axis is not None and not axis.repository:
        resolver.problem(
            (*path, "axis"), f"the axis {name} has no repository", fix="add 'repository' to the axis"
        )
    if entry.get("branch"):
        resolver.problem(
            (*path, "axis"), "'axis' is for a folder, not for a branch", fix="remove 'axis' or 'branch'"
        )


def _is_inside(folder: str) -> bool:
    path = PurePosixPath(folder)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in folder
