"""Find the problems of a patch stack: in its series, headers, variants, and version ranges."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

from harness.errors import Location, Problem
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.format.patch_header import PatchHeader, in_range
from harness.patchstack.stacks.patch_origin import OriginState, origins
from harness.patchstack.stacks.patch_stack import no_variant, read_patch_file, read_stack


def lint_stack(
    patches: Path, upstream: str, versions: Iterable[str] = (), *, today: date | None = None
) -> list[Problem]:
    """All problems of a stack. `versions`: the versions of the matrix, which the ranges have to cover."""
    stack, problems = read_stack(patches, upstream)
    known = sorted(set(versions))
    for patch in stack.patches:
        problems += _range_problems(patch, known)
        problems += _guard_problems(patch, patches.parent)
        problems += [
            found.problem for found in origins((patch,), patches.parent) if found.state is OriginState.CHANGED
        ]
        if today and patch.review_by < today:
            problems.append(
                Problem(
                    f"the review date of {patch.id} has passed: {patch.review_by}",
                    Location(patch.file),
                    why="without review, patches that are no longer needed stay in the stack",
                    fix="check whether the patch is still needed, then set a new Review-By date",
                )
            )
        for variant in patch.variants:
            data = read_patch_file(variant.file)
            loaded = read_patch(patch.id, data)
            if loaded.error:
                problems.append(Problem(loaded.error.why, Location(variant.file, loaded.error.line)))
            if loaded.patch:
                problems += [
                    Problem(
                        "this change comes after the end of its hunk and would be ignored",
                        Location(variant.file, line),
                        fix="correct the line counts in the hunk's header",
                    )
                    for line in loaded.patch.stray
                ]
            problems += _text_problems(variant.file, data)
    return problems


def _guard_problems(patch: PatchHeader, root: Path) -> list[Problem]:
    """Guards that name a test which does not exist."""
    problems = []
    for guard in patch.guarded_by:
        file, colons, test = guard.partition("::")
        if not colons:
            continue
        try:
            text = (root / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = ""
        if f"def {test}(" not in text:
            problems.append(
                Problem(
                    f"{patch.id} is guarded by {guard}, which does not exist",
                    Location(patch.file),
                    fix="name a test that fails without the patch",
                )
            )
    return problems


def _range_problems(patch: PatchHeader, versions: list[str]) -> list[Problem]:
    problems = []
    for version in versions:
        covering = [variant for variant in patch.variants if variant.covers(version)]
        inside = in_range(patch.applies_to, version)
        if inside and not covering:
            problems.append(no_variant(patch, version))
        what = (
            f"{version} is in the ranges of {len(covering)} variants"
            if inside
            else f"{version} is outside Applies-To"
        )
        problems += [
            Problem(what, Location(patch.file, variant.line), fix="make the ranges adjacent, without overlap")
            for variant in covering
            if len(covering) > 1 or not inside
        ]
    return problems


def _text_problems(file: Path, data: bytes) -> list[Problem]:
    problems = []
    if data.startswith(b"\xef\xbb\xbf"):
        problems.append(
            Problem("the patch starts with a byte order mark", Location(file, 1), fix="remove it")
        )
    if data and not data.endswith(b"\n"):
        problems.append(
            Problem(
                "the patch does not end with a newline", Location(file, data.count(b"\n") + 1), fix="add it"
            )
        )
    return problems
