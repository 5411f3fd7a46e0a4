"""What the NPU plugin's `patch_summary.yaml` says its patches change, with the line of every claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.errors import Location, Problem
from harness.patchstack.stacks.change_summary import PatchChanges


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One line of the summary: in `owner` ("" for the module) the name was added, replaced or deleted.

    name is "" for a file that is listed without changes.
    """

    repository: str
    revision: str
    folder: str
    file: str
    owner: str
    action: str
    kind: str
    name: str
    line: int


def read_claims(file: Path) -> tuple[list[Claim], list[Problem]]:
    """Every claim of a summary, and what is wrong with it as YAML: keys given twice, a revision not there."""
    problems: list[Problem] = []
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return [], [Problem("this summary is no YAML", Location(file), why=str(error).split("\n")[0])]
    top = _mapping(root, file, problems)
    claims = []
    for patch in _items(top.get("patches")):
        entry = _mapping(patch, file, problems)
        repository, current = _text(entry.get("repo")), _text(entry.get("current_rev"))
        versions = [_mapping(version, file, problems) for version in _items(entry.get("versions"))]
        if current and current not in {_text(version.get("rev")) for version in versions}:
            problems.append(
                Problem(
                    f"{repository}: no version has the current revision {current[:12]}", _where(file, patch)
                )
            )
        for version in versions:
            for listed in _items(version.get("files")):
                names = _mapping(listed, file, problems)
                base = Claim(
                    repository=repository,
                    revision=_text(version.get("rev")),
                    folder=_text(version.get("dir")),
                    file=_text(names.get("name")),
                    owner="",
                    action="",
                    kind="",
                    name="",
                    line=listed.start_mark.line + 1,
                )
                claims += list(_file_claims(base, names.get("diff"), file, problems))
    return claims, problems


def _file_claims(base: Claim, diff: yaml.Node | None, file: Path, problems: list[Problem]) -> Iterator[Claim]:
    changes = _mapping(diff, file, problems)
    found = [_claim(base, "", change, file, problems) for change in _items(changes.get("module_changes"))]
    for one in _items(changes.get("class_changes")):
        inner = _mapping(one, file, problems)
        owner = _text(inner.get("name"))
        found += [_claim(base, owner, change, file, problems) for change in _items(inner.get("changes"))]
    yield from found or [base]


def _claim(base: Claim, owner: str, node: yaml.Node, file: Path, problems: list[Problem]) -> Claim:
    change = _mapping(node, file, problems)
    return Claim(
        repository=base.repository,
        revision=base.revision,
        folder=base.folder,
        file=base.file,
        owner=owner,
        action=_text(change.get("action")),
        kind=_text(change.get("kind")),
        name=_text(change.get("name")),
        line=node.start_mark.line + 1,
    )


def disagreements(claims: tuple[Claim, ...], summary: PatchChanges, file: Path) -> list[Problem]:
    """Where claims and code differ: what is claimed and not so, and what is so and not claimed.

    Owners are compared by their last name, and a claimed owner that is the file's own name is the module: the
    plugin writes module changes so. Kinds are not compared, since it calls functions methods.
    """
    if not summary.files:
        what = f"{summary.patch} is {summary.verdict}, so what is said of it cannot be checked"
        return [Problem(what, Location(file))]
    stems = {found.path.rsplit("/", 1)[-1].removesuffix(".py") for found in summary.files}
    stems |= {claim.file for claim in claims}
    real: dict[tuple[str, str, str], str] = {}
    for found in summary.files:
        for change in found.module:
            real["", change.name, change.action] = found.path
        for inner in found.classes:
            if inner.action != "updated":
                real["", inner.name, inner.action] = found.path
            for change in inner.changes:
                real[inner.name.rsplit(".", 1)[-1], change.name, change.action] = found.path
    claimed: dict[tuple[str, str, str], int] = {}
    for claim in claims:
        if claim.name:
            owner = "" if claim.owner in stems else claim.owner
            claimed[owner, claim.name, claim.action] = claim.line
    problems = [
        Problem(f"{summary.patch}: says {_named(*key)}; the code does not", Location(file, line))
        for key, line in claimed.items()
        if key not in real
    ]
    problems += [
        Problem(f"{summary.patch}: the code has {_named(*key)}; the summary does not say so", Location(file))
        for key in real
        if key not in claimed and not _inside_new_class(key, real)
    ]
    return problems


def _inside_new_class(key: tuple[str, str, str], real: dict[tuple[str, str, str], str]) -> bool:
    """Members of a class that is added or deleted whole need no words of their own."""
    return bool(key[0]) and ("", key[0], key[2]) in real


def _named(owner: str, name: str, action: str) -> str:
    return f"{owner + '.' if owner else ''}{name} {action}"


def _mapping(node: yaml.Node | None, file: Path, problems: list[Problem]) -> dict[str, yaml.Node]:
    """A mapping node's values by key; a key given twice is a problem, and its last value counts."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _text(key)
        if name in found:
            problems.append(
                Problem(
                    f"the key {name!r} is given twice",
                    Location(file, key.start_mark.line + 1),
                    why="YAML keeps the last one, so what the first one held is not in the summary",
                )
            )
        found[name] = value
    return found


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _text(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _where(file: Path, node: yaml.Node) -> Location:
    return Location(file, node.start_mark.line + 1)
