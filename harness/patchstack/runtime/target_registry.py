"""The registry of runtime patch targets: the state of each target in every recorded upstream version.

It is written on the host from an upstream tree and read inside cells by `harness.fixtures.runtime_patches`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import InputError, Location
from harness.fixtures.runtime_patches import SCHEMA, source_digest
from harness.patchstack.runtime.monkey_patches import RuntimeVerdict, TargetState
from harness.sources.tree import Tree

_Text = Annotated[str, Field(max_length=10_000)]


class _RegistryModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RegisteredTarget(_RegistryModel):
    """A target in one version: the file that defines it, its name there, and the digest of its source text.

    These are "" if the target did not exist.
    """

    state: TargetState
    path: _Text = ""
    name: _Text = ""
    signature: _Text = ""
    digest: _Text = ""


class _Schema(_RegistryModel):
    name: str
    version: int


class TargetRegistry(_RegistryModel):
    """Targets in one package: dotted name -> version -> the target's state."""

    schema_: _Schema = Field(alias="schema")
    package: _Text
    targets: Mapping[_Text, Mapping[_Text, RegisteredTarget]]


def read_registry(file: Path) -> TargetRegistry:
    """Read a registry file; InputError if it is not one."""
    try:
        found = TargetRegistry.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError("this registry cannot be read", where=Location(file), why=str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(
            "this is not a registry of runtime patches",
            where=Location(file),
            why=f"{place}: {first['msg']}",
            fix="write it with `npu-matrix patches runtime --record`",
        ) from None
    if found.schema_.model_dump() != SCHEMA:
        raise InputError("this is not a registry of this format version", where=Location(file))
    return found


def record_targets(
    before: TargetRegistry | None, package: str, version: str, verdicts: Sequence[RuntimeVerdict], tree: Tree
) -> TargetRegistry:
    """The registry with the targets of this version added.

    InputError if the registry is for another package, or the version is unknown.
    """
    if before and before.package != package:
        raise InputError(f"this registry is for {before.package}, not for {package}")
    if not version:
        raise InputError("the version of this tree is unknown", fix="name it with --version")
    targets = {name: dict(versions) for name, versions in (before.targets if before else {}).items()}
    for verdict in verdicts:
        found = verdict.target
        entry = RegisteredTarget(
            state=found.state,
            path=found.path,
            name=found.name,
            signature=found.signature,
            digest=source_digest(tree.read(found.path), found.name) if found.name else "",
        )
        targets.setdefault(found.target, {})[version] = entry
    schema = _Schema.model_validate(SCHEMA)
    return TargetRegistry.model_validate({"schema": schema, "package": package, "targets": targets})


def write_registry(file: Path, registry: TargetRegistry) -> None:
    """Write a registry with sorted keys; InputError if that fails."""
    text = json.dumps(registry.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True)
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError("this file cannot be written", where=Location(file), why=str(error)) from error


def registry_differences(
    registry: TargetRegistry, verdicts: Sequence[RuntimeVerdict], version: str
) -> list[str]:
    """Sentences on targets that differ from those in the newest other recorded version."""
    found = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.target.target):
        known = registry.targets.get(verdict.target.target, {})
        others = [name for name in known if name != version]
        if not others:
            continue
        before = max(others, key=_order)
        old, new = known[before], verdict.target
        if old.state is TargetState.FOUND and new.state is not TargetState.FOUND:
            found.append(f"{new.target} existed in {before} and was removed: {new.reason}")
        elif old.state is TargetState.FOUND and old.signature != new.signature:
            old_signature, new_signature = old.signature or "nothing", new.signature or "nothing"
            found.append(f"{new.target} took {old_signature} in {before} and now takes {new_signature}")
    return list(dict.fromkeys(found))


def _order(version: str) -> tuple[bool, object, str]:
    try:
        return True, Version(version), version
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return False, Version("0"), version
