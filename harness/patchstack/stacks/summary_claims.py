"""The changes that the NPU plugin's `patch_summary.yaml` claims for its patches, compared with the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from harness.errors import Location, Problem
from harness.patchstack.stacks.change_summary import PatchChanges


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A change in the summary: `name` was added, replaced or deleted in the class `owner` ("": the module).

    name: "" for a file that is listed without changes.
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
    """Every claim of a summary, and its problems: duplicate keys, a current revision without a version."""
    problems: list[Problem] = []
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return [], [Problem("this summary is not valid YAML", Location(file), why=str(error).split("\n")[0])]
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
    for class_change in _items(changes.get("class_changes")):
        inner = _mapping(class_change, file, problems)
        owner = _text(inner.get("name"))
        found += [_claim(base, owner, change, file, problems) for change in _items(inner.get("changes"))]
    yield from found or [base]


def _claim(base: Claim, owner: str, node: yaml.Node, file: Path, problems: list[Problem]) -> Claim:
    change = _mapping(node, file, problems)
    return replace(
        base,
        owner=owner,
        action=_text(change.get("action")),
        kind=_text(change.get("kind")),
        name=_text(change.get("name")),
        line=node.start_mark.line + 1,
    )


def disagreements(claims: tuple[Claim, ...], summary: PatchChanges, file: Path) -> list[Problem]:
    """Differences between claims and code, in both directions.

    Owners are compared by their last name. A claimed owner that equals the file's name is the module, as the
    plugin writes it. Kinds are not compared, because the plugin calls functions methods.
    """
    if not summary.files:
        what = f"{summary.patch} is {summary.verdict}, so its summary cannot be checked"
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
        Problem(
            f"{summary.patch}: the summary says {_named(*key)}, but the code does not have this change",
            Location(file, line),
        )
        for key, line in claimed.items()
        if key not in real
    ]
    problems += [
        Problem(f"{summary.patch}: the code has {_named(*key)}, but the summary does not", Location(file))
        for key in real
        if key not in claimed and not _inside_new_class(key, real)
    ]
    return problems


def _inside_new_class(key: tuple[str, str, str], real: dict[tuple[str, str, str], str]) -> bool:
    """Whether the change is a member of a class that is added or deleted as a whole."""
    return bool(key[0]) and ("", key[0], key[2]) in real


def _named(owner: str, name: str, action: str) -> str:
    return f"{owner + '.' if owner else ''}{name} {action}"


def _mapping(node: yaml.Node | None, file: Path, problems: list[Problem]) -> dict[str, yaml.Node]:
    """The values of a mapping node by key. A duplicate key is a problem; its last value is used."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _text(key)
        if name in found:
            problems.append(
                Problem(
                    f"the key {name!r} occurs twice",
                    Location(file, key.start_mark.line + 1),
                    why="YAML keeps the last value, so the first one is lost",
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
